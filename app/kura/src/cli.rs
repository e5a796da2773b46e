//! The command line: only what there is.

mod lab;
mod object;
mod replicate;
mod snapshot;
mod tier;

pub use lab::{LabCommand, LabReplay, LabRun, ModelArg, Prefill};
pub use object::{BucketCommand, Grant as ObjectGrant, GrantArg, KeyCommand, ObjectCommand, ObjectName, PutArgs};
pub use replicate::{Data as ReplicateData, How as ReplicateHow, ReplicateCommand, Run as ReplicateRun};
pub use snapshot::{ScheduleCommand, SnapshotCommand};
pub use tier::{PinTo, TierCommand};

use crate::config::{Flags, Level, Listen};
use crate::size::Size;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use kura_admin::ServerUri;
use serde::Serialize;
use std::path::PathBuf;
use std::str::FromStr;

/// Volumes over NBD and objects over S3, on the disks you have.
///
/// `kura serve` starts a server with nothing to configure; the other commands ask it.
#[derive(Debug, Parser)]
#[command(name = "kura", version, max_term_width = 100)]
pub struct Cli {
    /// What is asked of which server, and how it is shown.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub struct Common {
    /// The server to ask: a socket's path, http://HOST:PORT or https://HOST:PORT
    #[arg(long, global = true, env = "KURA_SERVER", default_value = "kura-data/admin.sock", value_name = "URI")]
    pub server: ServerUri,
    /// The server's admin.token, for http and https
    #[arg(long, global = true, env = "KURA_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,
    /// The authority to trust with https, a PEM file
    #[arg(long, global = true, env = "KURA_CA", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ca: Option<PathBuf>,
    /// Print JSON: stable names, bytes as integers, times RFC 3339
    #[arg(long, global = true)]
    pub json: bool,
    /// Print nothing but errors
    #[arg(long, short, global = true, conflicts_with = "json")]
    pub quiet: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a server
    Serve(Serve),
    /// Show the server at a glance
    Status,
    /// Check every table, and every copy of every written block
    Check {
        /// Check tables only, and read no data
        #[arg(long)]
        tables: bool,
    },
    /// Make or show the pool
    #[command(subcommand)]
    Pool(PoolCommand),
    /// List, add, replace, remove or fail the pool's disks
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Make, list, resize, move or delete volumes, each an NBD export of its name
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Make, list, delete or compare snapshots of volumes, and roll back to them
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// List, measure, drain or resume controllers, which own volumes
    #[command(subcommand)]
    Controller(ControllerCommand),
    /// Make, list or delete buckets, which S3's clients see
    #[command(subcommand)]
    Bucket(BucketCommand),
    /// Make, list or revoke S3's access keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Store, read, list or delete objects, also several together
    #[command(subcommand)]
    Object(ObjectCommand),
    /// Show what lies in the fast tier and why, and hold volumes in a tier
    #[command(subcommand)]
    Tier(TierCommand),
    /// Record what clients ask of a volume, and export it as a trace
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Keep copies of file trees and volumes elsewhere
    #[command(subcommand)]
    Replicate(ReplicateCommand),
    /// Run the papers' experiments on simulated disks, and make a report of them
    #[command(subcommand)]
    Lab(LabCommand),
    /// Check a configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the completions of a shell
    #[command(after_help = "For bash: kura completions bash > /usr/share/bash-completion/completions/kura")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// What a server is started with; everything else is in the configuration file.
#[derive(Debug, Args)]
pub struct Serve {
    /// The configuration; docs/kura.toml is a commented one
    #[arg(long, env = "KURA_CONFIG", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// The data directory [default: kura-data]
    #[arg(long, env = "KURA_DATA", value_name = "DIR", value_hint = ValueHint::DirPath)]
    data: Option<PathBuf>,
    /// Where NBD listens, or off; port 0 takes a free one [default: 127.0.0.1:10809]
    #[arg(long, env = "KURA_NBD", value_name = "ADDR")]
    nbd: Option<Listen>,
    /// Where S3 listens, or off; port 0 takes a free one [default: 127.0.0.1:9000]
    #[arg(long, env = "KURA_S3", value_name = "ADDR")]
    s3: Option<Listen>,
    /// Where the REST API listens, or off; port 0 takes a free one [default: 127.0.0.1:7400]
    #[arg(long, env = "KURA_ADMIN", value_name = "ADDR")]
    admin: Option<Listen>,
    /// From which level on is logged: error, warn, info, debug, trace [default: info]
    #[arg(long, env = "KURA_LOG", value_name = "LEVEL")]
    log: Option<Level>,
    /// Start although a disk is away that may hold newer writes than the others: these writes are lost
    #[arg(long, env = "KURA_DEGRADED")]
    pub degraded: bool,
}

impl Serve {
    /// What comes before the configuration file.
    pub fn flags(self) -> Flags {
        Flags { data: self.data, nbd: self.nbd, s3: self.s3, admin: self.admin, log: self.log }
    }
}

/// Commands on the pool.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Make a data directory with a pool of the disks you name; `kura serve` then serves it
    #[command(after_help = "For example: kura pool create --fast /dev/nvme0n1 --fast /dev/nvme1n1 --slow /dev/sda")]
    Create(PoolCreate),
    /// Show the pool and its disks
    Status,
}

/// What a pool is made of.
#[derive(Debug, Args)]
pub struct PoolCreate {
    /// A disk for journals and the fast tier, or PATH=SIZE to make a sparse file; two are mirrored
    #[arg(long, value_name = "PATH[=SIZE]")]
    pub fast: Vec<DiskArg>,
    /// A disk for data, or PATH=SIZE to make a sparse file
    #[arg(long, required = true, value_name = "PATH[=SIZE]")]
    pub slow: Vec<DiskArg>,
    /// The data directory; it must not exist, or be empty
    #[arg(long, env = "KURA_DATA", default_value = "kura-data", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
    /// Controllers, each a thread [default: one a core]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub controllers: Option<u16>,
    /// Bytes in an extent, the unit in which volumes take space
    #[arg(long, default_value = "4M", value_name = "SIZE")]
    pub extent: Size,
    /// Bytes of each controller's journal
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub journal: Size,
    /// Make do with one fast disk: a fast tier on it takes no writes
    #[arg(long)]
    pub single_fast: bool,
    /// Take disks that are not blank: what they hold is lost
    #[arg(long)]
    pub force: bool,
}

/// A disk on the command line: `PATH`, or `PATH=SIZE`.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskArg {
    /// Its path.
    pub path: PathBuf,
    /// Size of the sparse file to be made.
    pub size: Option<Size>,
}

impl FromStr for DiskArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.rsplit_once('=') {
            None => Ok(Self { path: text.into(), size: None }),
            Some((path, size)) => Ok(Self { path: path.into(), size: Some(size.parse()?) }),
        }
    }
}

/// Commands on disks.
#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// List the pool's disks
    List,
    /// Add a disk to the pool; everything on it is lost
    Add {
        /// A block device or a file, as the server sees it
        path: PathBuf,
        /// What it is to be used for
        #[arg(long, value_enum)]
        class: Class,
        /// Make a sparse file of this size, such as 100G
        #[arg(long)]
        size: Option<Size>,
        /// Take it even though it is not blank
        #[arg(long)]
        force: bool,
    },
    /// Mark a disk as failed: it is not used any more, and copies of what it held are made on the others
    Fail {
        /// The disk's number, as listed
        disk: u16,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
    /// Let a disk leave the pool: what it holds moves to the others first
    #[command(after_help = "The disk may be working, failed or missing. It goes on after a restart of the server.")]
    Remove {
        /// The disk's number, as listed
        disk: u16,
        /// Do not wait for the end
        #[arg(long)]
        no_wait: bool,
        /// Only say what would happen
        #[arg(long, conflicts_with = "no_wait")]
        dry_run: bool,
    },
    /// Add a disk to the pool and let another one of its class leave
    Replace {
        /// The number of the disk that leaves, as listed
        disk: u16,
        /// The new one: a block device or a file, as the server sees it
        path: PathBuf,
        /// Make a sparse file of this size, such as 100G
        #[arg(long)]
        size: Option<Size>,
        /// Take the new one even though it is not blank
        #[arg(long)]
        force: bool,
        /// Do not wait for the end
        #[arg(long)]
        no_wait: bool,
    },
}

/// Commands on volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make a volume
    #[command(group = ArgGroup::new("provisioning").args(["thin", "thick"]))]
    Create {
        /// Its name, and its NBD export's
        name: String,
        /// Its size, such as 10G
        #[arg(long)]
        size: Size,
        /// How its data is laid on disks
        #[arg(long, value_enum, default_value_t = Layout::Mirror)]
        layout: Layout,
        /// Take space as it is written (the default)
        #[arg(long)]
        thin: bool,
        /// Take all its space at once, so that no write can meet a full pool
        #[arg(long)]
        thick: bool,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
    },
    /// List the volumes
    List,
    /// Show a volume
    Show {
        /// Its name
        name: String,
    },
    /// Change a volume's size; clients see it when they connect anew
    Resize {
        /// Its name
        name: String,
        /// Its size to be, such as 20G
        size: Size,
        /// Allow it to become smaller, which loses what lies beyond the new end
        #[arg(long)]
        shrink: bool,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
    /// Make another controller the owner of a volume, its snapshots and clones, while clients use them
    Move {
        /// Its name
        name: String,
        /// The controller's number, as listed
        #[arg(long)]
        controller: u16,
    },
    /// Delete a volume and all it holds
    Delete {
        /// Its name
        name: String,
        /// Delete it even while clients have it open
        #[arg(long)]
        force: bool,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
}

/// What a disk is used for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Class {
    /// Journals, and the fast tier
    Fast,
    /// Data
    Slow,
}

/// How a volume's data is laid on disks.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Layout {
    /// Two copies on two disks
    Mirror,
    /// Stripes over several disks, each with its parity: one disk may be lost
    Raid5,
    /// As raid5, with blocks that are used often in a mirrored area besides
    HotMirror,
    /// One copy: a lost disk loses data
    None,
}

/// Commands on controllers.
#[derive(Debug, Subcommand)]
pub enum ControllerCommand {
    /// List the controllers
    List,
    /// Show what it costs the controllers to share the pool, and how long snapshots stopped writes
    Stats,
    /// Move all volumes of a controller to the others, while clients use them; it takes none until it is resumed
    Drain {
        /// The controller's number, as listed
        controller: u16,
    },
    /// Let a controller that was drained take volumes again
    Resume {
        /// The controller's number, as listed
        controller: u16,
    },
}

/// Commands on recordings of volumes' requests.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Record every request of a volume, also of clients that are connected already
    #[command(after_help = "The newest requests are kept, 32 bytes each, in the server's memory: until the recording \
                            or the volume is deleted, or the server ends.")]
    Record {
        /// The volume's name
        volume: String,
        /// Memory for the newest requests, from 64K to 4G
        #[arg(long, default_value = "32M", value_name = "SIZE")]
        memory: Size,
    },
    /// List the recordings
    List,
    /// Stop a recording; what it holds stays
    Stop {
        /// The volume's name
        volume: String,
    },
    /// Write a recording as a trace, while it goes on or when it is stopped
    Export {
        /// The volume's name
        volume: String,
        /// What to write it as
        #[arg(long, value_enum, default_value_t = TraceFormat::Blkparse)]
        format: TraceFormat,
        /// Write to this file, whole or not at all, instead of to standard output
        #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Delete a recording
    Delete {
        /// The volume's name
        volume: String,
    },
}

/// What a trace is written as.
#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TraceFormat {
    /// The CSV of the MSR Cambridge traces: reads and writes, in bytes
    Msr,
    /// The text of blkparse: all requests, in sectors of 512 bytes
    Blkparse,
}

/// Commands on the configuration file.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Tell the line, the key and the remedy of what is wrong with a file
    Check {
        /// The file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lines_that_make_no_sense_are_refused_as_usage() {
        let cases = [
            ("status", true),
            ("status --json", true),
            ("--json status", true),
            ("status --json --quiet", false),
            ("", false),
            ("volume", false),
            ("volume create a", false),
            ("volume create a --size 10G", true),
            ("volume create a --size 10X", false),
            ("volume create a --size 10G --thin --thick", false),
            ("volume create a --size 10G --layout none --thick --read-only", true),
            ("volume create a --size 10G --layout raid9", false),
            ("volume resize a 20G --shrink --dry-run", true),
            ("volume resize a", false),
            ("volume move a --controller 1", true),
            ("volume move a", false),
            ("controller list --json", true),
            ("controller stats", true),
            ("controller stats 1", false),
            ("controller drain 1", true),
            ("controller drain", false),
            ("controller resume 1", true),
            ("volume delete a --force --dry-run", true),
            ("pool create --slow a", true),
            ("pool create --fast a --fast b --slow c=10G --slow d --force --controllers 4", true),
            ("pool create --fast a", false),
            ("pool create --slow a=b", false),
            ("disk add /dev/sda --class slow --force", true),
            ("disk add /dev/sda", false),
            ("disk fail 3", true),
            ("disk remove 3 --dry-run", true),
            ("disk remove 3 --dry-run --no-wait", false),
            ("disk replace 3 /dev/sdb --force", true),
            ("disk replace 3", false),
            ("disk fail three", false),
            ("disk fail 70000", false),
            ("check --tables", true),
            ("serve --nbd 127.0.0.1:0 --s3 127.0.0.1:0 --admin off --log debug --data d", true),
            ("serve --nbd nowhere", false),
            ("serve --log loud", false),
            ("trace record a --memory 1G", true),
            ("trace record", false),
            ("trace list", true),
            ("trace stop a", true),
            ("trace export a", true),
            ("trace export a --format msr -o a.csv", true),
            ("trace export a --format pdf", false),
            ("trace delete a", true),
            ("lab list", true),
            ("lab run", false),
            ("lab run a b --quick --seed 3 --trace c --trace d --out e --jobs 2 --again --json", true),
            ("lab run a --quick --full", false),
            ("lab run a --jobs 0", false),
            ("lab report --out d", true),
            ("lab replay", false),
            ("lab replay a --from 90s --for 1h30m --accelerate 2 --fit scale --size 10G -o b --json", true),
            ("lab replay a --closed-loop 32 --layout none --prefill all --verify --seed 3", true),
            ("lab replay a --closed-loop 32 --accelerate 2", false),
            ("lab replay a --closed-loop 0", false),
            ("lab replay a --model slow=sata-ssd --model fast=nvme", true),
            ("lab replay a --model slow=floppy", false),
            ("lab replay a --model sata-ssd", false),
            ("lab replay a --fit squeeze", false),
            ("lab replay a --from soon", false),
            ("config check kura.toml", true),
            ("config check", false),
            ("completions bash", true),
            ("completions dos", false),
            ("status --server ftp://there", false),
        ];
        check(&cases);
    }

    #[test]
    fn objects_are_named_with_their_buckets() {
        let cases = [
            ("bucket create photos", true),
            ("bucket delete", false),
            ("key create", true),
            ("key create backup --bucket a=read --bucket b=read-write", true),
            ("key create backup --bucket a=all", false),
            ("key revoke", false),
            ("object put demo/a file --new --content-type text/plain --metadata color=red", true),
            ("object put demo/a", false),
            ("object put demo file", false),
            ("object put demo/a file --metadata color", false),
            ("object get s3://demo/a/b", true),
            ("object get demo/a file --version null", true),
            ("object list demo/a/ --delimiter /", true),
            ("object stat demo/a --json", true),
            ("object delete demo/a --version 0000000000000001", true),
            ("object batch changes", true),
            ("object batch", false),
        ];
        check(&cases);
    }

    #[test]
    fn snapshot_lines_parse_or_are_refused() {
        check(&[
            ("snapshot create v@a w@a --read-only --json", true),
            ("snapshot create", false),
            ("snapshot list", true),
            ("snapshot list v", true),
            ("snapshot delete v@a v@b --force", true),
            ("snapshot rollback v@a --force", true),
            ("snapshot rollback", false),
            ("snapshot clone v@a w", true),
            ("snapshot clone v@a", false),
            ("snapshot diff v@a v --json", true),
            ("snapshot diff v@a", false),
            ("snapshot schedule add v --every 1h --keep 24 --prefix hourly", true),
            ("snapshot schedule add v --every soon --keep 24", false),
            ("snapshot schedule add v --keep 24", false),
            ("snapshot schedule list", true),
            ("snapshot schedule remove v", true),
        ]);
    }

    /// Each line is taken, or refused as usage.
    fn check(cases: &[(&str, bool)]) {
        for (line, fits) in cases {
            let parsed = Cli::try_parse_from(std::iter::once("kura").chain(line.split_whitespace()));
            assert_eq!(parsed.is_ok(), *fits, "{line}: {parsed:?}");
        }
    }
}
