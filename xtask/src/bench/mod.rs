//! `cargo xtask bench NAME`: kura beside its peers, alternating in one run, judged against its aims.
//!
//! A bench is a list of sides (servers over the same bytes), a list of works (what fio does to them) and a list of
//! aims (what must hold between the figures). Every round does every work on every side once, and the medians of the
//! rounds are compared. What a bench prints is Markdown, ready for `docs/benchmarks.md`; every sample goes to a JSON
//! file under `target/bench/`.

mod array;
mod controllers;
mod fill;
mod fio;
mod http;
mod image;
pub mod kura;
mod machine;
mod nbd;
mod object;
mod process;
mod replay;
mod replicate;
mod report;
mod rest;
mod s3;
mod side;
mod snapshot;
mod tier;
mod tiered;
mod trace;

use crate::shell;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Which bench to run.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    name: Name,
}

#[derive(clap::Subcommand)]
enum Name {
    /// Layouts beside each other, and beside Btrfs's RAID.
    Array(array::Args),
    /// One controller beside two that share a pool.
    Controllers(controllers::Args),
    /// A new volume written from its start to its end, beside the raw file, qemu-nbd and nbdkit.
    Fill(fill::Args),
    /// Volumes over NBD beside the raw file, qemu-nbd and nbdkit.
    Nbd(nbd::Args),
    /// What the index of a million objects takes: memory, and a restart.
    Object(object::Args),
    /// How many requests of a trace a second the lab replays, and in how much memory.
    Replay(replay::Args),
    /// Copies of file trees beside rsync, xargs, fpsync and rclone.
    Replicate(replicate::Args),
    /// Objects over S3 beside `MinIO`, versitygw and s3s-fs.
    S3(s3::Args),
    /// Volumes before and after snapshots, beside qcow2 and reflinked files.
    Snapshot(snapshot::Args),
    /// What tiers cost: a step of each policy over a million regions, a hit, and reads while regions move.
    Tier(tier::Args),
    /// A volume while its requests are recorded beside the same volume while they are not.
    Trace(trace::Args),
}

/// What a bench measures on, and with.
#[derive(clap::Args)]
struct Ground {
    /// Where the files lie: the file system and device to measure on.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A release build that is there already.
    #[arg(long)]
    binary: Option<PathBuf>,
}

impl Ground {
    /// A folder of its own for the files of a bench.
    fn folder(&self, bench: &str) -> Result<TempDir> {
        folder(bench, self.dir.as_deref())
    }

    /// The release build, built unless there is one.
    fn binary(&self) -> Result<PathBuf> {
        self.binary.clone().map_or_else(kura::build, Ok)
    }
}

/// A folder for the files of a bench, gone with what it holds when dropped: in `dir`, or where results lie.
fn folder(bench: &str, dir: Option<&Path>) -> Result<TempDir> {
    let within = dir.map_or_else(|| shell::target("bench"), |dir| Ok(dir.to_owned()))?;
    let made = tempfile::Builder::new().prefix(&format!("{bench}-")).tempdir_in(&within);
    made.with_context(|| format!("making a folder in {}", within.display()))
}

/// Runs the bench.
pub fn run(args: &Args) -> Result<()> {
    match &args.name {
        Name::Array(args) => array::run(args),
        Name::Controllers(args) => controllers::run(args),
        Name::Fill(args) => fill::run(args),
        Name::Nbd(args) => nbd::run(args),
        Name::Object(args) => object::run(args),
        Name::Replay(args) => replay::run(args),
        Name::Replicate(args) => replicate::run(args),
        Name::S3(args) => s3::run(args),
        Name::Snapshot(args) => snapshot::run(args),
        Name::Tier(args) => tier::run(args),
        Name::Trace(args) => trace::run(args),
    }
}
