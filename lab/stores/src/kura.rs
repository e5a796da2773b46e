//! Ours: the object store on a preallocated file.

use crate::work::{Backend, Index, Phase, Work, drop_caches};
use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kura_block::{Block, Buf};
use kura_disk::{Disk, Options as DiskOptions, create_sparse, preallocate};
use kura_object::{Attributes, Batch, Counters, Durability, Format, Options, PartitionId, Put, Store, Which};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

pub struct Kura {
    path: PathBuf,
}

const BUCKET: &[u8] = b"bucket";

impl Kura {
    pub fn new(folder: &Path, work: &Work) -> Result<Self> {
        let path = folder.join("store");
        // Room for the objects and half as much again, with what each takes besides.
        let size_bytes = ((work.size_bytes + 8192) * work.count * 3 / 2) as u64;
        let size_bytes = size_bytes.max(1 << 30).next_multiple_of(4 << 20);
        create_sparse(&path, size_bytes)?;
        preallocate(&path, 0..size_bytes)?;
        on_thread(|_| async {
            let disk = Disk::open(&path, DiskOptions::default())?;
            Store::format(&disk, Format { id: [7; 16], segment_bytes: None }).await
        })??;
        Ok(Self { path })
    }

    /// Opens the store, does `work` with it, and closes it.
    fn with_store<T, F>(&self, work: F) -> Result<T>
    where
        F: AsyncFnOnce(&Store, PartitionId) -> Result<T>,
    {
        on_thread(|runtime| async move {
            let disk: Rc<dyn Block> = Rc::new(Disk::open(&self.path, DiskOptions::default())?);
            let store = Store::open(disk, runtime, Options::default()).await?;
            let bucket = match store.partition(BUCKET).await {
                Ok(bucket) => bucket.id,
                Err(_) => store.create_partition(BUCKET, Attributes::new(), 0).await?.id,
            };
            let result = work(&store, bucket).await?;
            store.close().await?;
            Ok(result)
        })?
    }
}

/// Fills a store with many small objects, or opens one that was filled: what its index takes, and how long that took.
pub fn index(folder: &Path, count: usize, fill: bool, close: bool) -> Result<Index> {
    let path = folder.join("store");
    if fill {
        let size_bytes = (count as u64 * 512).max(1 << 30).next_multiple_of(4 << 20);
        create_sparse(&path, size_bytes)?;
        on_thread(|_| async {
            let disk = Disk::open(&path, DiskOptions::default())?;
            Store::format(&disk, Format { id: [7; 16], segment_bytes: None }).await
        })??;
    }
    drop_caches()?;
    on_thread(|runtime| async move {
        let before = resident_bytes()?;
        let start = Instant::now();
        let disk: Rc<dyn Block> = Rc::new(Disk::open(&path, DiskOptions::default())?);
        let store = Store::open(disk, runtime, Options::default()).await?;
        let open_s = start.elapsed().as_secs_f64();
        if fill {
            let bucket = store.create_partition(BUCKET, Attributes::new(), 0).await?.id;
            for first in (0..count).step_by(INDEX_BATCH) {
                let mut batch = Batch::new();
                for object in first..count.min(first + INDEX_BATCH) {
                    // Keys as people have them, in no order: 37 bytes, of which neighbours share some.
                    let spread = object.wrapping_mul(0x9e37_79b9) & 0xffff_ffff;
                    let key = format!("photos/2024/{:02}/camera-{:04}/{spread:08x}.jpg", spread % 12, spread % 999);
                    let content = (&[object as u8; 100][..]).into();
                    let put =
                        Put { content, tag: vec![object as u8; 16], modified_ms: 1_700_000_000_000, ..Put::default() };
                    batch.put(bucket, key.as_bytes(), put);
                }
                batch.durability(Durability::Memory);
                store.commit(batch).await?;
            }
            store.flush().await?;
        }
        let usage = store.usage();
        let resident_bytes = resident_bytes()?.saturating_sub(before);
        if close {
            store.close().await?;
        }
        Ok(Index { objects: usage.versions, index_bytes: usage.index_bytes, resident_bytes, open_s })
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

fn on_thread<M, F>(main: M) -> Result<F::Output>
where
    M: FnOnce(Rc<kura_disk::HostRuntime>) -> F,
    F: Future,
{
    kura_disk::run(main).context("starting the store's thread")
}

fn key(object: usize) -> Vec<u8> {
    format!("{object:08}").into_bytes()
}

/// Runs `each` for every object, by as many clients as there are.
async fn clients<F>(work: &Work, each: F) -> Result<Phase>
where
    F: AsyncFn(usize) -> Result<()>,
{
    let start = Instant::now();
    let each = &each;
    let shares = (0..work.clients).map(|client| async move {
        let mut latencies: Vec<Duration> = Vec::with_capacity(work.count / work.clients + 1);
        for object in (client..work.count).step_by(work.clients) {
            let begin = Instant::now();
            each(object).await?;
            latencies.push(begin.elapsed());
        }
        anyhow::Ok(latencies)
    });
    let latencies = try_join_all(shares).await?.concat();
    Ok(Phase::of(work, start.elapsed(), latencies))
}

fn written_bytes(counters: Counters) -> u64 {
    counters.log_bytes + counters.extent_bytes + counters.checkpoint_bytes
}

impl Backend for Kura {
    fn create(&mut self, work: &Work) -> Result<Phase> {
        let content = work.content(0);
        self.with_store(async |store, bucket| {
            let mut phase = clients(work, async |object| {
                let content = kura_block::Bufs::from(Buf::copy_of(&content)).into();
                let put = Put { content, ..Put::default() };
                store.put(bucket, &key(object), put).await?;
                Ok(())
            })
            .await?;
            let content_bytes = (work.size_bytes * work.count) as f64;
            phase.amplification = Some(written_bytes(store.counters()) as f64 / content_bytes);
            Ok(phase)
        })
    }

    fn read(&mut self, work: &Work) -> Result<Phase> {
        drop_caches()?;
        self.with_store(async |store, bucket| {
            clients(work, async |nth| {
                let mut reader = store.read(bucket, &key(work.shuffled(nth)), Which::Latest).await?;
                let mut bytes = 0;
                while let Some(data) = reader.next().await? {
                    bytes += data.len();
                }
                ensure!(bytes == work.size_bytes, "{bytes} bytes were read");
                Ok(())
            })
            .await
        })
    }
}
