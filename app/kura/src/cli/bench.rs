//! The command line of measurements.

use crate::size::Size;
use clap::{Args, Subcommand};
use std::time::Duration;

/// Measurements of a running server.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure a volume over NBD: a temporary one, or the one you name, which is only read
    Volume {
        /// A volume to measure by reading only
        name: Option<String>,
        /// Size of the requests that go anywhere: 512 to 32M
        #[arg(long, default_value = "4K", value_name = "SIZE")]
        block: Size,
        #[command(flatten)]
        load: BenchLoad,
    },
    /// Measure the object store, in a temporary bucket
    Object {
        /// Size of the objects: 1 to 64M
        #[arg(long, default_value = "64K")]
        size: Size,
        #[command(flatten)]
        load: BenchLoad,
    },
}

/// How it is measured.
#[derive(Clone, Debug, Args)]
pub struct BenchLoad {
    /// How long to run each load
    #[arg(long = "time", default_value = "3s", value_name = "TIME", value_parser = super::interval)]
    pub time: Duration,
    /// Clients at once, each with one request at a time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
}
