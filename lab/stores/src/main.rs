//! What our index of many objects takes: one line of JSON. `cargo xtask bench object` judges it.
#![allow(clippy::print_stdout)] // it is what this program is for

use anyhow::Result;
use clap::Parser;
use kura_stores::{Many, index};
use serde_json::json;
use std::path::PathBuf;

/// As in `kura` itself.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Opens a store of many objects, and tells how long that took and what its index takes.
#[derive(Parser)]
struct Args {
    /// The folder to work in, which stays.
    #[arg(long)]
    folder: PathBuf,
    /// Objects.
    #[arg(long)]
    count: usize,
    /// Bytes of content of each.
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Makes the store and fills it first.
    #[arg(long)]
    fill: bool,
    /// Closes it at the end; else it ends as if killed.
    #[arg(long)]
    close: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let many = Many { count: args.count, size_bytes: args.size, fill: args.fill, close: args.close };
    println!("{}", json!(index(&args.folder, many)?));
    Ok(())
}
