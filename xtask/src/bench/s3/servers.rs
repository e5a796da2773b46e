//! The servers under measurement, each on an ext4 of its own.

use super::super::http::Connection;
use super::super::image::Mounted;
use super::super::process::Process;
use super::sign::{Credentials, Request, content_sum, signed};
use crate::shell;
use anyhow::{Context, Result, bail, ensure};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A server is ready within this time.
const READY: Duration = Duration::from_secs(30);

/// A side: its name, the program it runs, and whether its file system makes every write durable before it returns.
/// versitygw and s3s-fs sync nothing by themselves: what they acknowledge is lost with the power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub name: &'static str,
    program: &'static str,
    mounted_sync: bool,
    /// What it acknowledges survives a loss of power.
    pub durable: bool,
}

const fn kind(name: &'static str, program: &'static str, mounted_sync: bool, durable: bool) -> Kind {
    Kind { name, program, mounted_sync, durable }
}

impl Kind {
    /// The program that it runs.
    pub fn program(&self) -> &'static str {
        self.program
    }
}

pub const KINDS: [Kind; 6] = [
    kind("kura", "kura", false, true),
    kind("MinIO", "minio", false, true),
    kind("versitygw, synced", "versitygw", true, true),
    kind("s3s-fs, synced", "s3s-fs", true, true),
    kind("versitygw", "versitygw", false, false),
    kind("s3s-fs", "s3s-fs", false, false),
];

/// A peer's program, its version, and how it comes here from the registry of its language. `MinIO` is the Go module proxy's
/// last one.
pub const PEERS: [(&str, &str, &[&str]); 3] = [
    ("minio", "v0.0.0-20260212201848-7aac2a2c5b7c", &["go", "install", "github.com/minio/minio"]),
    ("versitygw", "v1.8.0", &["go", "install", "github.com/versity/versitygw/cmd/versitygw"]),
    ("s3s-fs", "0.14.1", &["cargo", "install", "--locked", "--root=.", "--features=binary", "s3s-fs"]),
];

/// Where a peer's program is: in `folder`, or built into it now.
pub fn peer(program: &str, folder: &Path) -> Result<PathBuf> {
    let known = PEERS.iter().find(|(name, ..)| *name == program);
    let Some((_, version, [tool, options @ .., what])) = known else {
        bail!("{program}: it is not known where it comes from")
    };
    let binary = folder.join(format!("{program}-{version}"));
    if binary.exists() {
        return Ok(binary);
    }
    ensure!(
        shell::has_program(tool),
        "{program} is built with Go 1.25 or later, which is not here: https://go.dev/dl has it"
    );
    std::fs::create_dir_all(folder)?;
    let mut command = shell::command(tool, options);
    command.arg(format!("{what}@{version}")).current_dir(folder).env("GOBIN", folder).env_remove("CARGO_TARGET_DIR");
    shell::run(&mut command).with_context(|| format!("building {program}"))?;
    // Cargo has a folder of its own for programs.
    let built = [folder.join(program), folder.join("bin").join(program)].into_iter().find(|built| built.exists());
    std::fs::rename(built.with_context(|| format!("{program}: it was not built"))?, &binary)?;
    Ok(binary)
}

/// A server that runs, with a bucket `bench`.
pub struct Server {
    pub kind: Kind,
    pub at: SocketAddr,
    pub credentials: Credentials,
    _process: Process,
    /// Unmounted when its server is gone.
    _mounted: Mounted,
}

impl Server {
    /// Starts a server on a file system of `mib` MiB below `folder`.
    pub fn start(kind: Kind, binary: &Path, folder: &Path, mib: usize) -> Result<Self> {
        let data = folder.join("data");
        std::fs::create_dir_all(&data)?;
        let mounted = Mounted::new(&folder.join("image"), "ext4", data.clone(), mib)?;
        if kind.mounted_sync {
            shell::output(shell::command("mount", ["-o", "remount,sync,dirsync"]).arg(&data))?;
        }
        let at = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut credentials = Credentials { id: "benchbenchbench".into(), secret: "secretsecretsecret".into() };
        let store = data.join("store");
        std::fs::create_dir(&store)?;
        let mut command = command(kind, binary, &store, at, &credentials, mib)?;
        let process = Process::start_until(&mut command, &at.to_string(), || TcpStream::connect(at).map(drop))?;
        if kind.program == "kura" {
            credentials = kura_key(binary, &store)?;
        }
        make_bucket(&credentials, at).with_context(|| format!("{}: making the bucket", kind.name))?;
        Ok(Self { kind, at, credentials, _process: process, _mounted: mounted })
    }
}

/// Makes the bucket; some servers listen before they are ready.
fn make_bucket(credentials: &Credentials, at: SocketAddr) -> Result<()> {
    let start = Instant::now();
    loop {
        let sum = content_sum(&[]);
        let head = signed(credentials, at, &Request { verb: "PUT", path: "/bench", len: 0, sum: &sum });
        let answer = Connection::tcp(at)?.ask(&head, &[]).map(drop);
        match answer {
            Err(_) if start.elapsed() < READY => std::thread::sleep(Duration::from_millis(200)),
            answer => return answer,
        }
    }
}

fn command(
    kind: Kind,
    binary: &Path,
    store: &Path,
    at: SocketAddr,
    Credentials { id, secret }: &Credentials,
    mib: usize,
) -> Result<Command> {
    let mut command = Command::new(binary);
    let port = at.port().to_string();
    match kind.program {
        "kura" => {
            // One preallocated file, as the peers have one file system.
            let disk = store.join("disk.raw");
            let size = format!("{}M", mib - mib / 16 - 256);
            shell::output(Command::new("fallocate").args(["--length", &size]).arg(&disk))?;
            let disks =
                format!("[pool]\njournal = '256M'\ndisks = [{{ path = {:?}, class = \"slow\" }}]\n", disk.display());
            let config = store.join("kura.toml");
            std::fs::write(&config, disks)?;
            command.arg("serve").arg("--data").arg(store).arg("--config").arg(&config);
            command.args(["--nbd", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log", "warn", "--s3", &at.to_string()]);
        }
        "minio" => {
            command.args(["server", "--quiet", "--address", &at.to_string()]).arg(store);
            command.envs([("MINIO_ROOT_USER", id), ("MINIO_ROOT_PASSWORD", secret)]);
        }
        "versitygw" => {
            command
                .args([
                    "--quiet",
                    "--keep-alive",
                    "--access",
                    id,
                    "--secret",
                    secret,
                    "--port",
                    &at.to_string(),
                    "posix",
                ])
                .arg(store);
        }
        _ => {
            command
                .args(["--access-key", id, "--secret-key", secret, "--host", "127.0.0.1", "--port", &port])
                .arg(store);
        }
    }
    Ok(command)
}

fn kura_key(binary: &Path, store: &Path) -> Result<Credentials> {
    let mut command = Command::new(binary);
    command.args(["key", "create", "--json", "--server"]).arg(store.join("admin.sock"));
    let made: serde_json::Value = serde_json::from_str(&shell::output(&mut command)?)?;
    let text = |name: &str| made[name].as_str().map(str::to_owned).with_context(|| format!("a key without {name}"));
    Ok(Credentials { id: text("id")?, secret: text("secret")? })
}
