//! Measures one backend once, in a folder: one line of JSON for each figure. `cargo xtask bench object` puts them
//! together.
#![allow(clippy::print_stdout)] // it is what this program is for

use anyhow::{Context, Result};
use clap::Parser;
use kura_stores::{NAMES, Work, backend, index};
use serde_json::json;
use std::path::PathBuf;

/// As in `kura` itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures object stores, one at a time.
#[derive(Parser)]
enum Args {
    /// Creates objects durably, reads them cold, and writes them over.
    Work(WorkArgs),
    /// What our index of many objects takes.
    Index(IndexArgs),
}

#[derive(clap::Args)]
struct WorkArgs {
    /// Which store.
    #[arg(long, value_parser = NAMES)]
    store: String,
    /// The folder to work in; it must not exist, and is removed again.
    #[arg(long)]
    folder: PathBuf,
    /// Bytes of an object.
    #[arg(long)]
    size: usize,
    /// Objects.
    #[arg(long)]
    count: usize,
    /// Clients at once.
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// How often all objects are written over before the last phases.
    #[arg(long, default_value_t = 0)]
    overwrites: usize,
}

#[derive(clap::Args)]
struct IndexArgs {
    /// The folder to work in, which stays.
    #[arg(long)]
    folder: PathBuf,
    /// Objects.
    #[arg(long)]
    count: usize,
    /// Fills the store first.
    #[arg(long)]
    fill: bool,
    /// Closes it at the end; else it ends as if killed.
    #[arg(long)]
    close: bool,
}

fn main() -> Result<()> {
    match Args::parse() {
        Args::Index(args) => {
            println!("{}", json!(index(&args.folder, args.count, args.fill, args.close)?));
            Ok(())
        }
        Args::Work(args) => {
            std::fs::create_dir(&args.folder).with_context(|| format!("making {}", args.folder.display()))?;
            let measured = measure(&args);
            let removed = std::fs::remove_dir_all(&args.folder);
            removed.with_context(|| format!("removing {}", args.folder.display()))?;
            measured
        }
    }
}

fn measure(args: &WorkArgs) -> Result<()> {
    let work = Work { size_bytes: args.size, count: args.count, clients: args.clients };
    let mut store = backend(&args.store, &args.folder, &work)?;
    let say = |phase: &str, figures| println!("{}", json!({ "phase": phase, "figures": figures }));
    say("create", store.create(&work)?);
    say("read", store.read(&work)?);
    for _ in 0..args.overwrites {
        say("overwrite", store.create(&work)?);
    }
    if args.overwrites > 0 {
        say("read aged", store.read(&work)?);
    }
    Ok(())
}
