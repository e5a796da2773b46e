//! `kura trace` on the command line.

use crate::size::Size;
use clap::{Subcommand, ValueEnum, ValueHint};
use serde::Serialize;
use std::path::PathBuf;

/// Commands on recordings of volumes' requests.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Record a volume's requests, including those of clients already connected
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
    /// Write a recording as a trace, whether it is running or stopped
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
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
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
