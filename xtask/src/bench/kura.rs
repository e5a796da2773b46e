//! kura itself as a side: the release build, on one preallocated file, without redundancy.

use super::fio::{Access, Work, fill, run};
use super::process::Process;
use super::rest::Rest;
use super::side::{Side, uri};
use crate::shell;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Instant;

/// A server with a pool of one file.
pub struct Kura {
    binary: PathBuf,
    data: PathBuf,
    server: Rc<Process>,
}

/// What a first start with nothing configured takes.
pub struct DefaultStart {
    pub ready_s: f64,
    pub memory_at_rest_mib: f64,
    /// After the whole 1 GiB volume was written, and read at random.
    pub memory_after_mib: f64,
}

/// Builds the release binary and returns its path.
pub fn build() -> Result<PathBuf> {
    shell::run(&mut shell::cargo(["build", "--release", "--package", "kura"]))?;
    Ok(shell::target("release")?.join("kura"))
}

impl Kura {
    /// A new pool with room for a volume of `size_bytes`, served.
    pub fn start(binary: &Path, data: &Path, size_bytes: u64) -> Result<Self> {
        // Room for the labels, the journals and the tables beside the data.
        // A journal as one gives a disk that is not a toy: the default is made for the demo's small files.
        Self::on(binary, data, 1, size_bytes + size_bytes / 8 + (2 << 30), "journal = '512M'")
    }

    /// A new pool of so many files, served, with these lines in the configuration's `[pool]`.
    pub fn on(binary: &Path, data: &Path, disks: usize, disk_bytes: u64, pool: &str) -> Result<Self> {
        let disks: Vec<_> =
            (0..disks).map(|number| (format!("disk{number}.raw"), "class = 'slow'", disk_bytes)).collect();
        Self::of(binary, data, &disks, pool, "")
    }

    /// A new pool of files, each with its name, what the configuration says of it, and the bytes preallocated: of none,
    /// the server makes it. Served, with these lines in the configuration's `[pool]`, and these behind it.
    pub fn of(binary: &Path, data: &Path, disks: &[(String, &str, u64)], pool: &str, more: &str) -> Result<Self> {
        std::fs::create_dir_all(data)?;
        let mut members = Vec::new();
        for (name, is, bytes) in disks {
            let disk = data.join(name);
            if *bytes > 0 {
                shell::output(Command::new("fallocate").arg("--length").arg(bytes.to_string()).arg(&disk))?;
            }
            members.push(format!("{{ path = {:?}, {is} }}", disk.display()));
        }
        let config = data.join("kura.toml");
        std::fs::write(&config, format!("[pool]\n{pool}\ndisks = [{}]\n{more}", members.join(", ")))?;
        let mut command = serve(binary, data);
        // The object store's volume would lie beside those that are measured, and take part in what is.
        command.args(["--s3", "off"]).arg("--config").arg(&config);
        let server = Process::start(&mut command, &data.join("nbd.sock"))?;
        Ok(Self { binary: binary.to_path_buf(), data: data.to_path_buf(), server: server.into() })
    }

    /// A volume that takes all its space at once, and a thin one in which nothing is ever written.
    pub fn sides(&self, size_bytes: u64) -> Result<Vec<Side>> {
        let size = size_bytes.to_string();
        self.ask(&["volume", "create", "bench", "--size", &size, "--layout", "none", "--thick"])?;
        self.ask(&["volume", "create", "zeroes", "--size", &size, "--layout", "none", "--thin"])?;
        Ok(vec![Side { name: "kura", ..self.export("bench") }, Side { name: "kura-zeroes", ..self.export("zeroes") }])
    }

    /// A volume of a layout, called like it.
    pub fn layout(&self, layout: &'static str, size_bytes: u64) -> Result<Side> {
        self.volume(layout, layout, size_bytes)
    }

    /// A volume of a layout that takes all its space at once.
    pub fn volume(&self, name: &'static str, layout: &str, size_bytes: u64) -> Result<Side> {
        self.ask(&["volume", "create", name, "--size", &size_bytes.to_string(), "--layout", layout, "--thick"])?;
        Ok(self.export(name))
    }

    /// A thin volume of a layout, owned by this controller.
    pub fn thin(&self, name: &'static str, layout: &str, size_bytes: u64, controller: usize) -> Result<Side> {
        self.ask(&["volume", "create", name, "--size", &size_bytes.to_string(), "--layout", layout, "--thin"])?;
        self.ask(&["volume", "move-to", name, &controller.to_string()])?;
        Ok(self.export(name))
    }

    fn export(&self, name: &'static str) -> Side {
        Side { name, target: uri(name, &self.data.join("nbd.sock")), server: Some(Rc::clone(&self.server)) }
    }

    /// What each controller says of itself.
    pub fn controllers(&self) -> Result<Vec<Value>> {
        serde_json::from_str(&self.ask(&["controller", "stats", "--json"])?).context("what controllers say")
    }

    /// A way to make and delete snapshots that starts no process for each.
    pub fn rest(&self) -> Result<Rest> {
        Rest::open(&self.data.join("admin.sock"))
    }

    /// Runs a command of `kura` on this server; what it prints.
    pub fn ask(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.binary);
        command.args(args).arg("--server").arg(self.data.join("admin.sock"));
        shell::output(&mut command)
    }
}

/// Starts the server with nothing configured and uses its volume.
pub fn default_start(binary: &Path, data: &Path) -> Result<DefaultStart> {
    let start = Instant::now();
    let socket = data.join("nbd.sock");
    let server = Process::start(serve(binary, data).args(["--s3", "127.0.0.1:0"]), &socket).context("a first start")?;
    let ready_s = start.elapsed().as_secs_f64();
    server.settle()?;
    let memory_at_rest_mib = server.memory_mib()?;
    let demo = uri("demo", &socket);
    fill(&demo, 1 << 30)?;
    run(&Work::random("read", Access::Read, 16, 1), &demo, 1 << 30, 3)?;
    Ok(DefaultStart { ready_s, memory_at_rest_mib, memory_after_mib: server.memory_mib()? })
}

fn serve(binary: &Path, data: &Path) -> Command {
    let mut command = Command::new(binary);
    command.arg("serve").arg("--data").arg(data);
    command.args(["--nbd", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log", "warn"]);
    command
}
