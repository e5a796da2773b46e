//! The command line of the pool and its disks.

use crate::config::{parse_extent, parse_journal};
use crate::size::Size;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::str::FromStr;

/// Commands on the pool.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Create a pool on the disks you name, with its data directory; then run `kura serve`
    #[command(after_help = "For example: kura pool create --fast /dev/nvme0n1 --fast /dev/nvme1n1 --slow /dev/sda")]
    Create(PoolCreate),
    /// Create a data directory for a pool that has lost its own, from its disks, which are only read
    #[command(
        after_help = "For example: kura pool import --data /var/lib/kura /dev/nvme0n1 /dev/nvme1n1 /dev/sd[a-f]\n\
                            Schedules of snapshots, replication jobs, and which volumes are copies of others are kept in \
                            the data directory only: without --export they are not recovered."
    )]
    Import(PoolImport),
    /// Prepare a pool for another machine; nothing serves it here until `--cancel`
    #[command(
        after_help = "Stop the server first. Writes what the data directory alone knows (schedules of snapshots, \
                            replication jobs, which volumes are copies of others) to a file, which `kura pool import \
                            --export FILE` takes there, with the disks."
    )]
    Export(PoolExport),
    /// Show the pool and its disks
    Status,
    /// Add disks to the pool; everything on them is lost
    #[command(after_help = "For example: kura pool grow /dev/sdg /dev/sdh")]
    Grow {
        /// A disk, as the server sees it, or PATH=SIZE to create a sparse file
        #[arg(required = true, value_name = "PATH[=SIZE]")]
        disks: Vec<DiskArg>,
        /// What to use them for
        #[arg(long, value_enum, default_value = "slow")]
        class: Class,
        /// Take disks that are not blank: what they hold is lost
        #[arg(long)]
        force: bool,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
    /// Read every copy of every written block, and repair bad copies from good ones, as `kura check` does
    #[command(after_help = "The exit status is 1 when something is wrong that is not repaired.")]
    Scrub {
        /// Repair nothing, and report what would be repaired
        #[arg(long)]
        dry_run: bool,
        /// Return at once; `kura job list` shows progress, and `kura job follow` what was found
        #[arg(long)]
        no_wait: bool,
    },
}

/// Which pool goes elsewhere.
#[derive(Debug, Args)]
pub struct PoolExport {
    /// The data directory; no server may be running on it
    #[arg(long, env = "KURA_DATA", default_value = "kura-data", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
    /// The file for the import [default: export.json in the data directory]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Cancel the export
    #[arg(long, conflicts_with = "output")]
    pub cancel: bool,
}

/// What a pool is made of.
#[derive(Debug, Args)]
pub struct PoolCreate {
    /// A disk for journals and the fast tier, or PATH=SIZE to create a sparse file; give two, which are mirrored
    #[arg(long, value_name = "PATH[=SIZE]")]
    pub fast: Vec<DiskArg>,
    /// A disk for data, or PATH=SIZE to create a sparse file
    #[arg(long, required = true, value_name = "PATH[=SIZE]")]
    pub slow: Vec<DiskArg>,
    /// The data directory; made if missing, refused if it holds a pool already
    #[arg(long, env = "KURA_DATA", default_value = "kura-data", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
    /// Controllers, each a thread [default: one a core, at most 4]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub controllers: Option<u16>,
    /// Size of an extent, the unit in which volumes take space: a power of two, 1M to 64M
    #[arg(long, default_value = "4M", value_name = "SIZE", value_parser = parse_extent)]
    pub extent: Size,
    /// Bytes of each controller's journal, on each of the two journal disks: 16M to 64G
    #[arg(long, default_value = "64M", value_name = "SIZE", value_parser = parse_journal)]
    pub journal: Size,
    /// Room to leave free beside each extent, in percent of it, 0 to 100: volumes of layout floating need some, 11 is good
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub floating_percent: u8,
    /// Accept a single fast disk: it holds the journals (if it is lost, so is the pool), and the fast tier takes no writes
    #[arg(long)]
    pub single_fast: bool,
    /// Take disks that are not blank: what they hold is lost
    #[arg(long)]
    pub force: bool,
    /// Only say what would happen
    #[arg(long)]
    pub dry_run: bool,
}

/// Which pool gets a data directory.
#[derive(Debug, Args)]
pub struct PoolImport {
    /// All the pool's disks: block devices or files
    #[arg(required = true, value_name = "DISK", value_hint = ValueHint::FilePath)]
    pub disks: Vec<PathBuf>,
    /// The data directory; made if missing, refused if it holds a pool already
    #[arg(long, env = "KURA_DATA", default_value = "kura-data", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: PathBuf,
    /// Import it even if disks are missing; it is then served as if they had failed
    #[arg(long)]
    pub incomplete: bool,
    /// The file that `kura pool export` wrote: with it, schedules and replication jobs come too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub export: Option<PathBuf>,
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
    /// Show which device a disk is: its names, its model and serial number
    Identify {
        /// The disk's number, as listed
        disk: u16,
    },
    /// Add a disk to the pool; everything on it is lost
    Add {
        /// A block device or a file, as the server sees it
        path: PathBuf,
        /// What to use it for
        #[arg(long, value_enum)]
        class: Class,
        /// Create a sparse file of this size, such as 100G
        #[arg(long)]
        size: Option<Size>,
        /// Take a disk that is not blank: what it holds is lost
        #[arg(long)]
        force: bool,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
    /// Mark a disk as failed: stop using it and copy what it held to the others
    Fail {
        /// The disk's number, as listed
        disk: u16,
        /// Do it even if this disk holds the only copy of some data, which is then lost
        #[arg(long)]
        force: bool,
        /// Wait until what it held is on the others again, which may need another disk
        #[arg(long)]
        wait: bool,
        /// Return at once, as it does anyway without --wait
        #[arg(long, conflicts_with = "wait")]
        no_wait: bool,
        /// Only say what would happen
        #[arg(long, conflicts_with = "wait")]
        dry_run: bool,
    },
    /// Remove a disk from the pool; what it holds moves to the others first
    #[command(after_help = "The disk may be working, failed or missing. The move continues after a server restart.")]
    Remove {
        /// The disk's number, as listed
        disk: u16,
        /// Return at once; `kura job list` shows progress
        #[arg(long)]
        no_wait: bool,
        /// Only say what would happen
        #[arg(long, conflicts_with = "no_wait")]
        dry_run: bool,
    },
    /// Add a disk and remove another one of its class (the new one takes its data and journals)
    Replace {
        /// The number of the disk to remove, as listed
        disk: u16,
        /// The new disk: a block device or a file, as the server sees it
        path: PathBuf,
        /// Create a sparse file of this size, such as 100G
        #[arg(long)]
        size: Option<Size>,
        /// Take a new disk that is not blank: what it holds is lost
        #[arg(long)]
        force: bool,
        /// Return at once; `kura job list` shows progress
        #[arg(long)]
        no_wait: bool,
        /// Only say what would happen
        #[arg(long, conflicts_with = "no_wait")]
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

impl From<Class> for kura_admin::DiskClass {
    fn from(class: Class) -> Self {
        match class {
            Class::Fast => Self::Fast,
            Class::Slow => Self::Slow,
        }
    }
}
