//! Commands on snapshots.

use super::interval;
use clap::Subcommand;
use std::time::Duration;

/// Commands on snapshots.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Create snapshots, all at one instant
    #[command(after_help = "For example: kura snapshot create db@monday logs@monday")]
    Create {
        /// The volume and the snapshot's own name; each is an NBD export of its whole name
        #[arg(required = true, value_name = "VOLUME@NAME")]
        names: Vec<String>,
        /// Refuse writes to them
        #[arg(long)]
        read_only: bool,
    },
    /// List the snapshots
    List {
        /// Only those of this volume
        volume: Option<String>,
    },
    /// Delete snapshots; space only they used is freed
    Delete {
        /// Their names
        #[arg(required = true, value_name = "VOLUME@NAME")]
        names: Vec<String>,
        /// Delete them even while clients have them open, or where a copy cannot do without them
        #[arg(long)]
        force: bool,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
    /// Roll a volume back to a snapshot; what was written since is lost
    Rollback {
        /// The snapshot's name
        #[arg(value_name = "VOLUME@NAME")]
        name: String,
        /// Do it even while clients have the volume open, or it is `objects` and S3 is not served
        #[arg(long)]
        force: bool,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
    /// Create a volume with the contents of a snapshot
    Clone {
        /// The snapshot's name
        #[arg(value_name = "VOLUME@NAME")]
        name: String,
        /// The new volume's name
        #[arg(value_name = "NEW")]
        clone: String,
    },
    /// List the ranges in which two snapshots differ, or a snapshot and the volume
    Diff {
        /// A snapshot, or the volume
        #[arg(value_name = "VOLUME[@NAME]")]
        earlier: String,
        /// Another one: its ranges are listed
        #[arg(value_name = "VOLUME[@NAME]")]
        later: String,
    },
    /// Take snapshots on a schedule and keep the newest
    #[command(subcommand)]
    Schedule(ScheduleCommand),
}

/// Commands on schedules of snapshots.
#[derive(Debug, Subcommand)]
pub enum ScheduleCommand {
    /// Add a schedule to a volume; the first snapshot is taken at once
    #[command(after_help = "The snapshots are VOLUME@PREFIX-TIME. The oldest beyond --keep are deleted, except those \
                            that clients have open and those that have clones.")]
    Add {
        /// The volume's name
        volume: String,
        /// The time from one snapshot to the next, such as 1h
        #[arg(long, value_parser = interval, value_name = "TIME")]
        every: Duration,
        /// How many to keep
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=4096))]
        keep: u32,
        /// What the snapshots' names begin with
        #[arg(long, default_value = "auto")]
        prefix: String,
    },
    /// List the schedules
    List,
    /// Remove a schedule; its snapshots stay
    Remove {
        /// The volume's name
        volume: String,
        /// What the snapshots' names begin with
        #[arg(long, default_value = "auto")]
        prefix: String,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
}
