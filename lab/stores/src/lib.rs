//! Object stores beside each other, measured for real: what the paper's Figs. 2 and 3 are about.
//!
//! A [`Backend`] creates objects of one size durably and reads them back cold, by one client or several at a time:
//!
//! | name | what it is | an object is durable by |
//! | --- | --- | --- |
//! | `kura` | [`kura_object`] on a file, `O_DIRECT` | group commit |
//! | `files` | one file an object, on the file system of the folder (ext3, ext4, Btrfs) | `fsync` of the file |
//! | `device` | one preallocated file, written in order: the bare device, what no store can beat by much | `fdatasync` |
//!
//! Each backend works in a folder of its own, on the same file system as the others.

mod device;
mod files;
mod kura;
mod work;

pub use kura::index;
pub use work::{Backend, Index, Phase, Work, drop_caches, run_clients};

use anyhow::{Result, bail};
use std::path::Path;

/// The backends' names.
pub const NAMES: [&str; 3] = ["kura", "files", "device"];

/// A backend by its name, empty, in a folder that exists.
pub fn backend(name: &str, folder: &Path, work: &Work) -> Result<Box<dyn Backend>> {
    Ok(match name {
        "kura" => Box::new(kura::Kura::new(folder, work)?),
        "files" => Box::new(files::Files::new(folder)),
        "device" => Box::new(device::Device::new(folder, work)?),
        _ => bail!("no backend is called {name}: there are {}", NAMES.join(", ")),
    })
}
