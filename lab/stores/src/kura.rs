//! Ours: the object store, straight on a device.

use crate::image::Device;
use crate::work::{Backend, Content, Phase, Work, xorshift};
use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kura_block::{Block, BufMut, Bufs};
use kura_disk::{Disk, Options as DiskOptions};
use kura_object::{Attributes, Batch, Durability, Format, Options, PartitionId, Put, Store, Which};
use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

pub struct Kura<'a> {
    work: Work,
    content: &'a Content,
    path: PathBuf,
}

pub(crate) const BUCKET: &[u8] = b"bucket";
/// Overwrites under way while a store is aged.
const AGING: usize = 16;

/// Bytes of a store for this work: half as much again as the objects take, which one by one take a block beside them,
/// and as many segments as it keeps free.
pub(crate) fn store_bytes(work: &Work) -> u64 {
    let objects = (work.size_bytes + 8192) * work.count;
    (objects as u64 * 3 / 2 + (96 << 20)).next_multiple_of(SEGMENT_BYTES.into())
}

/// As on large devices, also where this one is small: content is cut and kept as it is there.
const SEGMENT_BYTES: u32 = 4 << 20;

impl<'a> Kura<'a> {
    pub fn new(device: &Device, work: Work, content: &'a Content) -> Result<Self> {
        let path = device.path.clone();
        // Its own, for what an earlier store left on the device must not count.
        let id = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos().to_le_bytes();
        on_thread(|_| async {
            let disk = Disk::open(&path, DiskOptions::default())?;
            Store::format(&disk, Format { id, segment_bytes: Some(SEGMENT_BYTES) }).await
        })??;
        Ok(Self { work, content, path })
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

    fn put(&self, object: usize, version: u64) -> Put {
        let mut memory = BufMut::copy_of(self.content.base());
        Content::stamp(&mut memory, object, version);
        Put { content: Bufs::from(memory.freeze()).into(), ..Put::default() }
    }

    /// Runs `each` for every object, by as many clients as there are.
    async fn clients<F>(&self, each: F) -> Result<Phase>
    where
        F: AsyncFn(usize) -> Result<()>,
    {
        let Work { count, clients, .. } = self.work;
        let start = Instant::now();
        let each = &each;
        let shares = (0..clients).map(|client| async move {
            let mut latencies: Vec<Duration> = Vec::with_capacity(count / clients + 1);
            for object in (client..count).step_by(clients) {
                let begin = Instant::now();
                each(object).await?;
                latencies.push(begin.elapsed());
            }
            anyhow::Ok(latencies)
        });
        let latencies = try_join_all(shares).await?.concat();
        Ok(Phase::of(&self.work, start.elapsed(), latencies))
    }
}

pub(crate) fn on_thread<M, F>(main: M) -> Result<F::Output>
where
    M: FnOnce(Rc<kura_disk::HostRuntime>) -> F,
    F: Future,
{
    kura_disk::run(main).context("starting the store's thread")
}

fn key(object: usize) -> Vec<u8> {
    format!("{object:08}").into_bytes()
}

impl Backend for Kura<'_> {
    fn create(&mut self, version: u64) -> Result<Phase> {
        self.with_store(async |store, bucket| {
            self.clients(async |object| {
                store.put(bucket, &key(object), self.put(object, version)).await?;
                Ok(())
            })
            .await
        })
    }

    fn read(&mut self, version: u64) -> Result<Phase> {
        self.with_store(async |store, bucket| {
            self.clients(async |nth| {
                let object = self.work.shuffled(nth);
                let mut reader = store.read(bucket, &key(object), Which::Latest).await?;
                let mut read = 0;
                while let Some(data) = reader.next().await? {
                    for part in data.parts() {
                        self.content.check(part, read, object, version)?;
                        read += part.len();
                    }
                }
                ensure!(read == self.work.size_bytes, "{read} bytes of object {object} were read");
                Ok(())
            })
            .await
        })
    }

    fn age(&mut self, version: u64) -> Result<()> {
        let (work, room_bytes) = (self.work, store_bytes(&self.work));
        self.with_store(async |store, bucket| {
            let written = || {
                let counters = store.counters();
                counters.log_bytes + counters.extent_bytes
            };
            let (chance, next) = (Cell::new(1_u64), Cell::new(0));
            let client = || async {
                while next.get() < work.count {
                    let object = if written() < 3 * room_bytes {
                        chance.set(xorshift(chance.get()));
                        chance.get() as usize % work.count
                    } else {
                        next.replace(next.get() + 1)
                    };
                    let mut batch = Batch::new();
                    batch.put(bucket, &key(object), self.put(object, version));
                    // Not each durable by itself: that is not what is measured here.
                    batch.durability(Durability::Memory);
                    store.commit(batch).await?;
                }
                anyhow::Ok(())
            };
            try_join_all((0..AGING).map(|_| client())).await?;
            store.flush().await?;
            Ok(())
        })
    }
}
