//! Where copies go: a directory of this machine, or servers on its loopback or at the end of a link that is far.

use super::far::{self, Far};
use crate::bench::process::Process;
use crate::shell;
use anyhow::{Result, bail};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The way to the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// A directory.
    Local,
    /// Daemons on the loopback.
    Loopback,
    /// Daemons behind a link of 1 Gbit/s and a round trip of 50 ms.
    Far,
}

/// What the far link carries a second, in bytes, and how long it takes one way.
const RATE: f64 = 125e6;
const DELAY: Duration = Duration::from_millis(25);

/// Where the servers listen: kura in TLS, kura in plain, rsync, and what serves rclone.
const KURAS: u16 = 17402;
const KURA: u16 = 17403;
const RSYNC: u16 = 17404;
const SFTP: u16 = 17405;
const PASSWORD: &str = "bench";

/// The place in which all is measured, and its servers, which end with it.
pub struct Place {
    binary: PathBuf,
    pub folder: PathBuf,
    way: Way,
    /// For rclone, as its command line wants it.
    password: String,
    // Before the namespaces: servers end before their network does.
    servers: Vec<Process>,
    far: Option<Far>,
}

impl Place {
    pub fn new(binary: PathBuf, folder: &Path, way: Way) -> Result<Self> {
        let far = if way == Way::Far { Some(Far::new(RATE, DELAY)?) } else { None };
        let password = shell::output(Command::new("rclone").args(["obscure", PASSWORD]))?.trim().to_owned();
        let mut place = Self { binary, folder: folder.to_owned(), way, password, servers: Vec::new(), far };
        if way != Way::Local {
            place.serve()?;
        }
        Ok(place)
    }

    fn address(&self) -> &'static str {
        if self.way == Way::Far { far::ADDRESS } else { "127.0.0.1" }
    }

    /// A program where the source is.
    fn near(&self, program: &str) -> Command {
        self.far.as_ref().map_or_else(|| Command::new(program), |far| far.near(program))
    }

    fn start(&mut self, program: &str, port: u16, args: &[&str]) -> Result<()> {
        let mut command = self.far.as_ref().map_or_else(|| Command::new(program), |far| far.far(program));
        let place = format!("{}:{port}", self.address());
        let started = match &self.far {
            None => Process::start_until(command.args(args), &place, || TcpStream::connect(&place).map(drop)),
            // The other end's own view: this process is in neither namespace.
            Some(far) => Process::start_until(command.args(args), &place, || {
                let script = format!("exec 3<>/dev/tcp/{}/{port}", far::ADDRESS);
                let reached = far.near("bash").args(["-c", &script]).output()?;
                if reached.status.success() { Ok(()) } else { Err(std::io::Error::other("not yet")) }
            }),
        };
        self.servers.push(started?);
        Ok(())
    }

    fn serve(&mut self) -> Result<()> {
        for folder in ["served", "module", "sftp"] {
            fs::create_dir_all(self.folder.join(folder))?;
        }
        let path = |name: &str| self.folder.join(name).display().to_string();
        certify(&self.folder)?;
        let configuration = format!(
            "port = {RSYNC}\naddress = {}\nuse chroot = no\nuid = 0\ngid = 0\nsocket options = TCP_NODELAY\n[m]\npath = {}\nread only = no\nmunge symlinks = no\n",
            self.address(),
            path("module")
        );
        fs::write(self.folder.join("rsyncd.conf"), configuration)?;
        let (binary, served, token) = (self.binary.display().to_string(), path("served"), path("served.token"));
        let (cert, key, module) = (path("cert.pem"), path("key.pem"), format!("--config={}", path("rsyncd.conf")));
        let (sftp, at) = (path("sftp"), |port: u16| format!("{}:{port}", self.address()));
        let (kuras, sftp_at) = (at(KURAS), at(SFTP));
        let serve = ["replicate", "serve", &*served, "--token-file", &token, "--listen"];
        self.start(&binary, KURAS, &[&serve[..], &[&kuras, "--cert", &cert, "--key", &key]].concat())?;
        if self.way == Way::Loopback {
            self.start(&binary, KURA, &[&serve[..], &[&format!("127.0.0.1:{KURA}")]].concat())?;
        }
        self.start("rsync", RSYNC, &["--daemon", "--no-detach", &module])?;
        self.start("rclone", SFTP, &["serve", "sftp", "--user", "bench", "--pass", PASSWORD, "--addr", &sftp_at, &sftp])
    }

    /// Takes away all copies, and what a side knows of them.
    pub fn clear(&self) -> Result<()> {
        for name in ["copies", "state", "served/copy", "module/copy", "sftp/copy"] {
            remove(&self.folder.join(name))?;
        }
        Ok(())
    }

    /// What a side is started as.
    pub fn command(&self, side: &str, source: &Path) -> Result<Command> {
        let target = self.folder.join("copies").join(side.replace([' ', ','], "-"));
        let (from, local) = (source.display(), target.display().to_string());
        let is_local = self.way == Way::Local;
        let at = |scheme: &str, port: u16, path: &str| format!("{scheme}://{}:{port}/{path}", self.address());
        // Whoever copies into a directory finds one.
        fs::create_dir_all(if is_local { &target } else { &self.folder })?;
        if !is_local {
            fs::create_dir_all(self.folder.join("module/copy"))?;
        }
        let by_rsync = if is_local { local.clone() } else { at("rsync", RSYNC, "m/copy") };
        let shell = |line: String| {
            let mut command = self.near("sh");
            command.args(["-c", &line]);
            command
        };
        let kura = |more: &[&str], to: &str| {
            let mut command = self.near(&self.binary.display().to_string());
            command.args(["replicate", "run", "--json", "--data"]).arg(self.folder.join("state").join(side));
            command.arg(source).arg(to).args(more);
            command.arg("--target-token-file").arg(self.folder.join("served.token"));
            command.arg("--target-ca").arg(self.folder.join("ca.pem"));
            command
        };
        let by_kura = if is_local { local.clone() } else { at("kuras", KURAS, "copy") };
        let to_rclone = if is_local {
            local.clone()
        } else {
            let server = format!("host={},port={SFTP},user=bench,pass={}", self.address(), self.password);
            format!("\":sftp,{server},shell_type=none,md5sum_command=none,sha1sum_command=none:copy\"")
        };
        Ok(match side {
            "rsync -a" => shell(format!("rsync -a --delete {from}/ {by_rsync}/")),
            "xargs rsync" => shell(format!("cd {from} && ls -A | xargs -P4 -I@ rsync -a --delete ./@ {by_rsync}/")),
            "fpsync" => shell(format!("fpsync -n 4 -f 1000 -t {local}.fpsync {from}/ {by_rsync}/")),
            "rclone" => shell(format!("rclone sync --links --transfers 4 --checkers 4 {from} {to_rclone} 2>&1")),
            "kura, rsync by size" => kura(&["--with", "rsync", "--split", "size-aware", "--no-sync"], &by_rsync),
            "kura, rsync balanced" => kura(&["--with", "rsync", "--no-sync"], &by_rsync),
            "kura" => kura(&["--no-sync"], &by_kura),
            "kura, durable" => kura(&[], &by_kura),
            "kura, in place" => kura(&["--no-sync", "--in-place"], &by_kura),
            "kura, plain" => kura(&["--no-sync"], &at("kura", KURA, "copy")),
            side => bail!("no side {side}"),
        })
    }
}

pub fn remove(path: &Path) -> Result<()> {
    if path.exists() { Ok(fs::remove_dir_all(path)?) } else { Ok(()) }
}

/// An authority, and what the server shows, on the loopback and far away.
fn certify(folder: &Path) -> Result<()> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let names = ["127.0.0.1".to_owned(), far::ADDRESS.to_owned()];
    let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
    for (name, text) in [("ca.pem", authority.pem()), ("cert.pem", certificate.pem()), ("key.pem", key.serialize_pem())]
    {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}
