//! What is written to the copies beside entries, and which of them live.

use crate::Lsn;
use crate::journal::{Inner, JournalCopy};
use crate::root::{ROOT_BYTES, Root, TablesRef};
use crate::state::Mend;
use futures::future::join_all;
use kura_block::{BufMut, Error, Result};

impl Inner {
    /// Does `work` on every live copy at once; a copy that fails is dead from then on, and with the last one the
    /// journal: nothing more is written then, not even to a copy that joins.
    pub async fn on_live_copies(&self, work: impl AsyncFn(usize, JournalCopy) -> Result<()>) -> Result<()> {
        let written = {
            let state = self.state.borrow();
            state.alive()?;
            state.live_copies | state.joining.map_or(0, |joining| 1 << joining.index)
        };
        let copies: Vec<_> = self.copies.borrow().iter().cloned().enumerate().collect();
        let copies = copies.into_iter().filter(|(index, _)| written & 1 << index != 0);
        let work = copies.filter_map(|(index, copy)| {
            let done = work(index, copy?);
            Some(async move { (index, done.await) })
        });
        for (index, done) in join_all(work).await {
            if let Err(error) = done {
                self.kill(index, &error);
            }
        }
        self.state.borrow().alive()
    }

    pub fn kill(&self, index: usize, error: &Error) {
        let state = &mut *self.state.borrow_mut();
        if state.joining.take_if(|joining| joining.index == index).is_some() {
            state.lost_copies |= 1 << index;
        }
        if state.live_copies & 1 << index == 0 {
            return;
        }
        tracing::warn!(controller = self.identity.controller, copy = index, %error, "a journal copy is out of service");
        state.live_copies &= !(1 << index);
        state.lost_copies |= 1 << index;
        if state.live_copies == 0 {
            state.failed = Some(Error::device(format!(
                "no copy of controller {}'s journal is left: {error}",
                self.identity.controller
            )));
            self.progress.notify_waiters();
        }
    }

    pub async fn write_tables(&self, bytes: &[u8], area: u32, lsn: Lsn) -> Result<TablesRef> {
        const CHUNK_BYTES: usize = 1 << 20;
        let joining = self.state.borrow().joining;
        let tables = TablesRef { area, crc: crc32c::crc32c(bytes), bytes: bytes.len() as u64, lsn };
        if tables.bytes.next_multiple_of(ROOT_BYTES) > self.shape.tables_bytes {
            return Err(Error::full(format!(
                "controller {}'s tables take {} bytes and its journal has room for {}: make a pool with more controllers or larger extents",
                self.identity.controller, tables.bytes, self.shape.tables_bytes
            )));
        }
        for (number, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
            let at = self.shape.tables_at(area) + (number * CHUNK_BYTES) as u64;
            let chunk = BufMut::padded(&[chunk], ROOT_BYTES as usize).freeze();
            let write = async |_: usize, copy: JournalCopy| {
                copy.device.write(copy.offset + at, chunk.clone().into(), false).await
            };
            self.on_live_copies(write).await?;
        }
        self.on_live_copies(async |_, copy| copy.device.flush().await).await?;
        if let Some(joining) = joining
            && let Some(now) = &mut self.state.borrow_mut().joining
        {
            now.has_tables |= now.index == joining.index && now.sequence == joining.sequence;
        }
        Ok(tables)
    }

    /// Writes the root that says where the log begins; the first one after a scan begins a new epoch.
    pub async fn write_root(&self, tail: Lsn, settled: Lsn, tables: TablesRef) -> Result<()> {
        let _alone = self.telling.lock().await;
        loop {
            let root = self.state.borrow().next_root(tail, settled, tables);
            self.put_root(&root).await?;
            let state = &mut *self.state.borrow_mut();
            if let Some(joining) = state.joining.take_if(|joining| root.live_copies & 1 << joining.index != 0) {
                state.live_copies |= 1 << joining.index;
            }
            state.root = root;
            state.sealed = false;
            if state.live_copies == root.live_copies {
                state.told = root.live_copies;
                return Ok(());
            }
        }
    }

    /// Writes a root as it is.
    pub async fn put_root(&self, root: &Root) -> Result<()> {
        let at = root.generation % 2 * ROOT_BYTES;
        let block = root.encode(self.identity);
        let write =
            async |_: usize, copy: JournalCopy| copy.device.write(copy.offset + at, block.clone().into(), true).await;
        self.on_live_copies(write).await
    }

    /// Writes an entry to a copy that lacks it, if that lives.
    pub async fn mend(&self, Mend { source, lacking, position, bytes }: Mend) -> Result<()> {
        if self.state.borrow().live_copies & 1 << lacking == 0 {
            return Ok(());
        }
        let place = self.shape.place(position);
        let entry = source.device.read(source.offset + place, bytes as usize).await?;
        let write = async |index: usize, copy: JournalCopy| {
            if index != lacking {
                return Ok(());
            }
            copy.device.write(copy.offset + place, entry.clone(), false).await
        };
        self.on_live_copies(write).await
    }
}
