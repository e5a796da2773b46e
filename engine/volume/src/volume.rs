//! A volume, opened.

use crate::clear::Space;
use crate::status::Status;
use crate::store::Store;
use crate::tables::VolumeState;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Block, Bufs, Error, Geometry, Local, Result, Run};
use std::rc::Rc;

/// Blocks of a request that are as much work as the request by itself.
const WORK_BLOCKS: u64 = 16;

/// A volume of a store, opened: a block device with any alignment. Clones and handles see the same bytes.
pub struct Volume {
    store: Store,
    state: Rc<VolumeState>,
}

impl Store {
    /// Opens a volume: a block device that lives until it is dropped.
    pub fn open(&self, name: &str) -> Result<Volume> {
        let state = self.inner.find(name)?;
        state.check_family()?;
        state.opened.set(state.opened.get() + 1);
        Ok(Volume { store: self.clone(), state })
    }
}

impl Store {
    /// Opens a volume by its number, if it is here.
    pub fn open_id(&self, id: u64) -> Option<Volume> {
        let state = self.inner.tables.borrow().volumes.get(&id).cloned()?;
        state.opened.set(state.opened.get() + 1);
        Some(Volume { store: self.clone(), state })
    }
}

impl Volume {
    /// True when it is another controller's: what this handle answered since counts for nothing.
    pub fn has_departed(&self) -> bool {
        self.state.departed.get()
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.state.spec.borrow().name.clone()
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.state.id
    }

    /// Refuses a change of a read-only volume.
    fn check_writable(&self) -> Result<()> {
        let spec = self.state.spec.borrow();
        if spec.read_only { Err(Error::read_only(format!("volume {} is read-only", spec.name))) } else { Ok(()) }
    }

    /// Counts a request for these blocks, and what it looks up: where each of their extents lies.
    fn look_up(&self, first: u64, end: u64) {
        self.state.work.set(self.state.work.get() + 1 + (end - first) / WORK_BLOCKS);
        let blocks = self.store.inner.array.extent_blocks() as u64;
        let last = end.max(first + 1) - 1;
        self.store.inner.share.looked_up(last / blocks - first / blocks + 1);
    }

    fn count(&self, add: impl FnOnce(&mut Status)) {
        self.store.inner.count(add);
    }

    /// Makes durable what was acknowledged, because a client asks for it.
    async fn finish(&self) -> Result<()> {
        self.store.inner.journal().asked();
        self.store.inner.commit_all().await
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.state.opened.set(self.state.opened.get() - 1);
    }
}

impl Block for Volume {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.state.size_bytes(),
            align_bytes: 1,
            optimal_bytes: BLOCK_BYTES as u32,
            rotational: false,
            discards: true,
        }
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        Box::pin(async move {
            self.geometry().check(offset, len as u64)?;
            self.state.check_there()?;
            let unit = BLOCK_BYTES_U64;
            let (first, end) = (offset / unit, (offset + len as u64).div_ceil(unit));
            self.store.inner.note_use(&self.state, first, end, false);
            self.look_up(first, end);
            self.store.inner.last_read.set(self.store.inner.runtime.now());
            let blocks = self.store.inner.read_seen(&self.state, first, end).await?;
            self.count(|counts| {
                counts.reads += 1;
                counts.read_bytes += len as u64;
            });
            let skip = (offset - first * unit) as usize;
            if skip == 0 && blocks.len() == len { Ok(blocks) } else { Ok(blocks.slice(skip..skip + len)) }
        })
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.check_writable()?;
            self.geometry().check(offset, data.len() as u64)?;
            let unit = BLOCK_BYTES_U64;
            let end = (offset + data.len() as u64).div_ceil(unit);
            self.look_up(offset / unit, end);
            self.store.inner.write_bytes(&self.state, offset, &data).await?;
            // Where they are by now: the old versions may stay where they were.
            self.store.inner.note_use(&self.state, offset / unit, end, true);
            self.count(|counts| {
                counts.writes += 1;
                counts.written_bytes += data.len() as u64;
            });
            if fua { self.finish().await } else { Ok(()) }
        })
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        Box::pin(self.finish())
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.check_writable()?;
            self.geometry().check(offset, len)?;
            let unit = BLOCK_BYTES_U64;
            let (first, end) = (offset.div_ceil(unit), (offset + len) / unit);
            if first < end {
                self.store.inner.clear_blocks(&self.state, first, end, Space::GiveBack).await?;
            }
            Ok(())
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.check_writable()?;
            self.geometry().check(offset, len)?;
            let space = if keep { Space::Keep } else { Space::GiveBack };
            self.store.inner.clear_bytes(&self.state, offset, len, space).await
        })
    }

    fn runs(&self, offset: u64, len: u64) -> Local<'_, Result<Vec<Run>>> {
        Box::pin(async move {
            self.geometry().check(offset, len)?;
            self.state.check_there()?;
            self.store.inner.runs_seen(&self.state, offset, len).await
        })
    }
}
