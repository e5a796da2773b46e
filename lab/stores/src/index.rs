//! What the index of many objects takes: memory, and time of a restart.

use crate::kura::{BUCKET, on_thread};
use anyhow::{Context, Result};
use kura_block::Block;
use kura_disk::{Disk, Options as DiskOptions, create_sparse};
use kura_object::{Attributes, Batch, Durability, Format, Options, Put, Store};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A store of many objects, and what is done with it.
#[derive(Clone, Copy, Debug)]
pub struct Many {
    /// Objects.
    pub count: usize,
    /// Bytes of content of each.
    pub size_bytes: usize,
    /// Makes the store and fills it; else it is there.
    pub fill: bool,
    /// Closes it at the end; else it ends as if killed.
    pub close: bool,
}

/// What the index of an object store takes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Index {
    /// Objects in it, and the partition.
    pub objects: u64,
    /// Bytes of its leaves.
    pub index_bytes: u64,
    /// Resident bytes of the process, above those before the store was opened.
    pub resident_bytes: u64,
    /// Seconds that opening the store took.
    pub open_s: f64,
    /// Of those, that the process was at work.
    pub open_cpu_s: f64,
    /// Records of the log that were replayed.
    pub replayed_records: u64,
    /// Bytes of the entries that they were in.
    pub replayed_bytes: u64,
    /// Bytes of the log that were written since.
    pub log_bytes: u64,
    /// Bytes of checkpoints that were.
    pub checkpoint_bytes: u64,
}

/// Fills a store with many objects, or opens one that was filled: what its index takes, and how long that took.
pub fn index(folder: &Path, many: Many) -> Result<Index> {
    let Many { count, size_bytes, fill, close } = many;
    let path = folder.join("store");
    if fill {
        let object_bytes = (size_bytes + size_bytes / 8 + 512) as u64;
        let size_bytes = (count as u64 * object_bytes).max(1 << 30).next_multiple_of(4 << 20);
        create_sparse(&path, size_bytes)?;
        on_thread(|_| async {
            let disk = Disk::open(&path, DiskOptions::default())?;
            Store::format(&disk, Format { id: [7; 16], segment_bytes: None }).await
        })??;
    }
    drop_caches()?;
    on_thread(|runtime| async move {
        let before = resident_bytes()?;
        let (start, cpu_before_s) = (Instant::now(), cpu_s()?);
        let disk: Rc<dyn Block> = Rc::new(Disk::open(&path, DiskOptions::default())?);
        let store = Store::open(disk, runtime, Options::default()).await?;
        let (open_s, open_cpu_s) = (start.elapsed().as_secs_f64(), cpu_s()? - cpu_before_s);
        if fill {
            let bucket = store.create_partition(BUCKET, Attributes::new(), 0).await?.id;
            for first in (0..count).step_by(INDEX_BATCH) {
                let mut batch = Batch::new();
                for object in first..count.min(first + INDEX_BATCH) {
                    // Keys as people have them, in no order: 37 bytes, of which neighbours share some.
                    let spread = object.wrapping_mul(0x9e37_79b9) & 0xffff_ffff;
                    let key = format!("photos/2024/{:02}/camera-{:04}/{spread:08x}.jpg", spread % 12, spread % 999);
                    let content = vec![object as u8; size_bytes].as_slice().into();
                    let put =
                        Put { content, tag: vec![object as u8; 16], modified_ms: 1_700_000_000_000, ..Put::default() };
                    batch.put(bucket, key.as_bytes(), put);
                }
                batch.durability(Durability::Memory);
                store.commit(batch).await?;
            }
            store.flush().await?;
        }
        let (usage, counters) = (store.usage(), store.counters());
        let resident_bytes = resident_bytes()?.saturating_sub(before);
        if close {
            store.close().await?;
        }
        Ok(Index {
            objects: usage.versions,
            index_bytes: usage.index_bytes,
            resident_bytes,
            open_s,
            open_cpu_s,
            replayed_records: counters.replayed_records,
            replayed_bytes: counters.replayed_bytes,
            log_bytes: counters.log_bytes,
            checkpoint_bytes: counters.checkpoint_bytes,
        })
    })?
}

/// Objects in a batch when a store is filled for the sake of its index.
const INDEX_BATCH: usize = 200;

/// Resident memory of this process.
fn resident_bytes() -> Result<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let resident = pages.split(' ').nth(1).context("/proc/self/statm has a second field")?;
    Ok(resident.parse::<u64>()? * 4096)
}

/// Seconds that this process has been at work.
fn cpu_s() -> Result<f64> {
    Ok(Duration::try_from(clock_gettime(ClockId::ProcessCPUTime))?.as_secs_f64())
}

/// Empties the page cache and the caches of names and inodes; it needs root.
fn drop_caches() -> Result<()> {
    Command::new("sync").status().context("sync")?;
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping caches (/proc/sys/vm/drop_caches): needs root")
}
