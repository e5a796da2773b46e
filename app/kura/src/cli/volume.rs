//! `kura volume` on the command line.

use crate::size::Size;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};

/// Commands on volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a volume
    #[command(group = ArgGroup::new("provisioning").args(["thin", "thick"]))]
    Create {
        /// Its name, and its NBD export's
        name: String,
        /// Its size, such as 10G
        #[arg(long)]
        size: Size,
        /// How its data is laid out on disks [default: hot-mirror where three slow disks or more take data, else mirror]
        #[arg(long, value_enum)]
        layout: Option<Layout>,
        /// Take space as it is written (the default)
        #[arg(long)]
        thin: bool,
        /// Take all its space at once, so that no write fails for want of space
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
    /// Change a volume's size; clients see it when they reconnect
    Resize(Resize),
    /// Move a volume, with its snapshots and clones, to another controller while clients use it
    MoveTo(MoveTo),
    /// Delete a volume and all it holds; one with snapshots or clones is refused
    Delete {
        /// Its name
        name: String,
        /// Delete it even while clients have it open, or while it is a copy that follows its source
        #[arg(long)]
        force: bool,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
}

/// Which volume gets which size.
#[derive(Debug, Args)]
pub struct Resize {
    /// Its name
    pub name: String,
    /// The new size, such as 20G
    pub size: Size,
    /// Allow shrinking: what lies beyond the new end is lost
    #[arg(long)]
    pub shrink: bool,
    /// Shrink it even while clients have it open
    #[arg(long, requires = "shrink")]
    pub force: bool,
    /// Only say what would happen
    #[arg(long)]
    pub dry_run: bool,
}

/// Which volume moves, and where to.
#[derive(Debug, Args)]
pub struct MoveTo {
    /// The volume's name
    pub name: String,
    /// The controller's number, as listed
    pub controller: u16,
    /// Return at once; `kura job list` shows progress
    #[arg(long)]
    pub no_wait: bool,
}

/// How a volume's data is laid out on disks.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Layout {
    /// Two copies on two disks
    Mirror,
    /// Stripes over several disks, each with its parity: one disk may be lost
    Raid5,
    /// As raid5, with a mirrored area for the blocks used most
    HotMirror,
    /// As raid5, with data and parity written where a disk's head is next; the pool must have room for it
    Floating,
    /// One copy: a lost disk loses data
    None,
}

impl From<Layout> for kura_admin::Layout {
    fn from(layout: Layout) -> Self {
        match layout {
            Layout::Mirror => Self::Mirror,
            Layout::Raid5 => Self::Raid5,
            Layout::HotMirror => Self::HotMirror,
            Layout::Floating => Self::Floating,
            Layout::None => Self::None,
        }
    }
}
