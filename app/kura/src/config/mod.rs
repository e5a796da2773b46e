//! What a server is told: `kura.toml`, under the flags.
//!
//! A flag comes before its environment variable, that before the file, and that before the default. Every value is
//! checked before anything starts, and what is wrong is told with its line, its key and what to do.

mod check;
mod finding;
mod hot;
#[cfg(test)]
mod tests;
mod tier;

pub use check::{parse_extent, parse_journal};
pub use finding::{Finding, Findings};
pub use hot::Hot;
pub use tier::Tier;

use crate::size::Size;
use kura_admin::DiskClass;
use kura_sim::Model;
use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use toml::Spanned;
use toml::de::DeTable;
use tracing_subscriber::EnvFilter;

/// The whole configuration. Its defaults are a server on this machine with nothing to configure.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The data directory.
    pub data: Spanned<PathBuf>,
    /// Size of the volume `demo` that is made together with a new pool, and a bucket `demo`; 0 makes neither.
    pub demo: Spanned<Size>,
    /// What is logged.
    pub log: Log,
    /// The NBD door.
    pub nbd: Nbd,
    /// The S3 door.
    pub s3: S3,
    /// The REST door.
    pub admin: Admin,
    /// The pool.
    pub pool: Pool,
    /// The tiers.
    pub tier: Tier,
}

/// What is logged, to standard error.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// From which level on.
    pub level: Level,
    /// How a line looks.
    pub format: LogFormat,
}

/// How a line of log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// An object a line.
    Json,
}

/// The NBD door.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nbd {
    /// The TCP address.
    pub listen: Spanned<Listen>,
    /// The Unix socket; `DIR/nbd.sock` unless it is named.
    pub unix: Option<Spanned<PathBuf>>,
    /// TLS on the TCP address.
    pub tls: Option<NbdTls>,
    /// The most data one request may carry.
    pub request_bytes: Spanned<Size>,
    /// The most requests of one connection that are served at once.
    pub in_flight: Spanned<usize>,
    /// The most clients connected at once to the address, and to the socket.
    pub connections: Spanned<usize>,
}

/// TLS where clients show certificates.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NbdTls {
    /// The server's certificate and its chain, PEM.
    pub cert: Spanned<PathBuf>,
    /// The certificate's key, PEM.
    pub key: Spanned<PathBuf>,
    /// The authority whose certificates clients must show, PEM.
    pub client_ca: Option<Spanned<PathBuf>>,
}

/// The S3 door.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct S3 {
    /// The TCP address.
    pub listen: Spanned<Listen>,
    /// Bytes of objects' content that are kept in memory for those who read it again; 0 keeps none, and unless given it is
    /// a share of the memory that there is.
    pub cache: Option<Spanned<Size>>,
    /// When what changes objects is acknowledged.
    pub acknowledge: Acknowledge,
    /// TLS on the TCP address.
    pub tls: Option<Identity>,
}

/// The REST door.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// The TCP address.
    pub listen: Spanned<Listen>,
    /// The secret that clients of the TCP address show.
    pub token: Option<Spanned<String>>,
    /// TLS on the TCP address.
    pub tls: Option<Identity>,
}

/// TLS where clients show a secret of another kind.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The server's certificate and its chain, PEM.
    pub cert: Spanned<PathBuf>,
    /// The certificate's key, PEM.
    pub key: Spanned<PathBuf>,
}

/// The pool: what a new one is made of, and how it is served.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    /// Controllers, each a thread; one a core, at most four, unless it is said. A new pool keeps their number for ever.
    pub controllers: Option<Spanned<u16>>,
    /// Bytes in an extent, the unit in which volumes take space. A new pool keeps it for ever.
    pub extent: Spanned<Size>,
    /// Bytes of each controller's journal on each fast disk. A new pool keeps it for ever.
    pub journal: Spanned<Size>,
    /// Room beside each extent for volumes of layout `floating`, in percent of it. A new pool keeps it for ever.
    pub floating_percent: Spanned<u8>,
    /// The most a controller keeps in memory of writes that are not flushed.
    pub write_buffer: Spanned<Size>,
    /// The most bytes a second that a controller copies in a rebuild; 0 is no limit.
    pub rebuild_rate: Size,
    /// How what a snapshot sees is saved from a write.
    pub saving: Saving,
    /// What happens when a write finds the pool full.
    pub when_full: WhenFull,
    /// How controllers share what is free.
    pub sharing: Sharing,
    /// Seconds between looks at which controller has most to do, for a volume of its to move to the one with least; 0 never
    /// looks.
    pub balance_s: Spanned<u64>,
    /// Per cents of use from which on the pool warns, rising; none never warns.
    pub warn_at_percent: Spanned<Vec<u8>>,
    /// Seconds after which a disk that gives no answer counts as failed; 0 waits for ever.
    pub disk_timeout_s: Spanned<u64>,
    /// Groups of extents that a controller moves at once in a rebuild.
    pub rebuild_width: Spanned<usize>,
    /// Disks are mixed in stripes and copies, so that a rebuild reads from all of them.
    pub scatter: bool,
    /// The most disks of a stripe of new volumes with parity; one fewer than there are, and at most six, unless it is said.
    pub raid_width: Option<Spanned<u8>>,
    /// Requests that a disk which turns is given at once, in the order of who waits for them; 0 gives it all at once.
    pub disk_queue: Spanned<usize>,
    /// The mirrored hot area.
    pub hot: Hot,
    /// The disks; none stands for sparse files in the data directory.
    pub disks: Vec<Disk>,
}

/// A disk of the pool: of a path, or of a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// A block device, or a file.
    pub path: Option<Spanned<PathBuf>>,
    /// How it behaves, for `kura lab replay`.
    pub model: Option<Spanned<Model>>,
    /// What it is used for.
    pub class: Spanned<DiskClass>,
    /// Size of the sparse file that is made where the path names nothing, or of the model.
    pub size: Option<Spanned<Size>>,
}

impl Disk {
    /// Its path; none where it is a model.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_ref().map(|path| path.get_ref().as_path())
    }

    /// Its size, where it says one.
    pub fn size(&self) -> Option<Size> {
        self.size.as_ref().map(|size| *size.get_ref())
    }
}

/// When what changes objects is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Acknowledge {
    /// When it is on the disks.
    #[default]
    Durable,
    /// When it is in memory: a crash may cost the newest changes.
    Memory,
}

/// How what a snapshot sees is saved from a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Saving {
    /// The old data is copied away, and the new data takes its place.
    Copy,
    /// The new data goes to a new place.
    #[default]
    Redirect,
}

/// What happens when a write finds the pool full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// It is refused, and snapshots stay.
    #[default]
    Refuse,
    /// The oldest snapshots go until there is room.
    DropOldest,
}

/// How controllers share what is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// Each has a part of its own, and takes no other's.
    Aggregate,
    /// Each knows all that is free, and tells the others what it takes.
    Message,
    /// What is free is looked up in shared memory, one extent at a time.
    AccessChange,
    /// What is free is leased in batches, and called back when there is no more.
    #[default]
    Lease,
}

impl From<Sharing> for kura_controller::Sharing {
    fn from(sharing: Sharing) -> Self {
        match sharing {
            Sharing::Aggregate => Self::Aggregate,
            Sharing::Message => Self::Message,
            Sharing::AccessChange => Self::AccessChange,
            Sharing::Lease => Self::Lease,
        }
    }
}

impl From<Acknowledge> for kura_object::Durability {
    fn from(acknowledge: Acknowledge) -> Self {
        match acknowledge {
            Acknowledge::Durable => Self::Durable,
            Acknowledge::Memory => Self::Memory,
        }
    }
}

impl From<WhenFull> for kura_controller::WhenFull {
    fn from(when_full: WhenFull) -> Self {
        match when_full {
            WhenFull::Refuse => Self::Refuse,
            WhenFull::DropOldest => Self::DropOldest,
        }
    }
}

impl From<Saving> for kura_controller::Saving {
    fn from(saving: Saving) -> Self {
        match saving {
            Saving::Copy => Self::Copy,
            Saving::Redirect => Self::Redirect,
        }
    }
}

/// Where a door listens on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// At this address; port 0 takes a free one.
    At(SocketAddr),
}

/// From which level on is logged: a level, or more of them for single rooms, such as `info,kura_nbd=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level(String);

/// What a configuration is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A server on this machine.
    Serve,
    /// A node in the lab: nothing but the pool counts, and its disks need not be here.
    Lab,
}

/// What the command line and the environment say.
#[derive(Debug, Default)]
pub struct Flags {
    /// `--data`
    pub data: Option<PathBuf>,
    /// `--nbd`
    pub nbd: Option<Listen>,
    /// `--s3`
    pub s3: Option<Listen>,
    /// `--admin`
    pub admin: Option<Listen>,
    /// `--log`
    pub log: Option<Level>,
}

impl Config {
    /// The configuration in `file`, or the default one, under `flags`; all that is wrong with it otherwise.
    pub fn load(file: Option<&Path>, flags: Flags) -> Result<Self, Findings> {
        Self::load_for(Purpose::Serve, file, flags)
    }

    /// The same for this purpose.
    pub fn load_for(purpose: Purpose, file: Option<&Path>, flags: Flags) -> Result<Self, Findings> {
        let (mut config, text) = match file {
            None => (Self::default(), String::new()),
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| Findings::unreadable(path, &error))?;
                (Self::parse(path, &text)?, text)
            }
        };
        config.apply(flags);
        let findings = Findings::new(file, &text, config.check(purpose));
        if findings.is_empty() { Ok(config) } else { Err(findings) }
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Findings> {
        let findings = |wrong| Findings::new(Some(path), text, wrong);
        let mut table = DeTable::parse(text).map_err(|error| findings(vec![Finding::of_toml(&error)]))?;
        let mut wrong: Vec<Finding> = Vec::new();
        loop {
            let error = match Self::deserialize(toml::Deserializer::from(table.clone())) {
                Ok(config) if wrong.is_empty() => return Ok(config),
                Ok(_) => break,
                Err(error) => error,
            };
            // What is missing may be what was taken out.
            if error.message().starts_with("missing field") && !wrong.is_empty() {
                break;
            }
            wrong.push(Finding::of_toml(&error));
            // What else is wrong is seen without it.
            if !error.span().is_some_and(|span| finding::take_out(table.get_mut(), span.start)) {
                break;
            }
        }
        Err(findings(wrong))
    }

    fn apply(&mut self, flags: Flags) {
        let Flags { data, nbd, s3, admin, log } = flags;
        if let Some(data) = data {
            self.data = unplaced(data);
        }
        if let Some(nbd) = nbd {
            self.nbd.listen = unplaced(nbd);
        }
        if let Some(s3) = s3 {
            self.s3.listen = unplaced(s3);
        }
        if let Some(admin) = admin {
            self.admin.listen = unplaced(admin);
        }
        if let Some(log) = log {
            self.log.level = log;
        }
    }
}

/// A value that stands in no file.
fn unplaced<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

const fn local(port: u16) -> Listen {
    Listen::At(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: unplaced("kura-data".into()),
            demo: unplaced(Size(1 << 30)),
            log: Log::default(),
            nbd: Nbd::default(),
            s3: S3::default(),
            admin: Admin::default(),
            pool: Pool::default(),
            tier: Tier::default(),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: Level("info".to_owned()), format: LogFormat::Text }
    }
}

impl Default for Nbd {
    fn default() -> Self {
        Self {
            listen: unplaced(local(10809)),
            unix: None,
            tls: None,
            request_bytes: unplaced(Size(64 << 20)),
            in_flight: unplaced(256),
            connections: unplaced(1024),
        }
    }
}

impl Default for S3 {
    fn default() -> Self {
        Self { listen: unplaced(local(9000)), cache: None, acknowledge: Acknowledge::default(), tls: None }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: unplaced(local(7400)), token: None, tls: None }
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            controllers: None,
            extent: unplaced(Size(4 << 20)),
            journal: unplaced(Size(64 << 20)),
            floating_percent: unplaced(0),
            write_buffer: unplaced(Size(24 << 20)),
            rebuild_rate: Size(0),
            saving: Saving::default(),
            when_full: WhenFull::default(),
            sharing: Sharing::default(),
            balance_s: unplaced(0),
            warn_at_percent: unplaced(vec![80, 95]),
            disk_timeout_s: unplaced(30),
            rebuild_width: unplaced(3),
            scatter: true,
            raid_width: None,
            disk_queue: unplaced(0),
            hot: Hot::default(),
            disks: vec![],
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        let address = numeric.as_deref().unwrap_or(text).parse();
        address.map(Self::At).map_err(|_| {
            format!("{text:?} is not an address: write IP:PORT with a port up to 65535, as in 127.0.0.1:7400, or off")
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let valid = |part: &str| LEVELS.contains(&part.split_once('=').map_or(part, |(_, level)| level));
        if text.split(',').all(valid) && EnvFilter::try_new(text).is_ok() {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("{text:?} is not a level: write one of {}, or as in info,kura_nbd=debug", LEVELS.join(", ")))
    }
}

impl Level {
    /// The level in the words of `tracing_subscriber::EnvFilter`.
    pub fn directives(&self) -> &str {
        &self.0
    }
}

macro_rules! deserialize_from_text {
    ($($what:ty),*) => {
        $(impl<'de> Deserialize<'de> for $what {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        })*
    };
}
deserialize_from_text!(Listen, Level);
