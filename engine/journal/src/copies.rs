//! What is written to the copies beside entries, and which of them live.

use crate::Lsn;
use crate::journal::{Inner, JournalCopy, Tables};
use crate::root::{ROOT_BYTES, Root, TablesRef};
use crate::state::Mend;
use futures::future::join_all;
use kura_block::{BLOCK_BYTES, BufMut, Bufs, Error, Kind, Result};
use std::time::Duration;

/// How long a copy may be without space, and between two times that it is asked.
const FULL: Duration = Duration::from_secs(30);
const FULL_AGAIN: Duration = Duration::from_millis(100);

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

    /// Writes tables into the other area, or changes behind those that are there: durable when the future resolves.
    pub async fn write_tables(&self, tables: &Tables, lsn: Lsn) -> Result<TablesRef> {
        let (before, joining) = {
            let state = self.state.borrow();
            (state.root.tables, state.joining)
        };
        let written = match tables {
            Tables::Whole(bytes) => TablesRef {
                area: before.area ^ 1,
                crc: crc32c::crc32c(bytes),
                bytes: bytes.len() as u64,
                lsn,
                ..TablesRef::default()
            },
            Tables::Changes(bytes) => {
                assert!(bytes.len().is_multiple_of(BLOCK_BYTES), "changes of tables are whole blocks");
                TablesRef {
                    changes_bytes: before.changes_bytes + bytes.len() as u64,
                    changes_crc: crc32c::crc32c_append(before.changes_crc, bytes),
                    lsn,
                    ..before
                }
            }
        };
        if written.end() > self.shape.tables_bytes {
            return Err(Error::full(format!(
                "controller {}'s tables take {} bytes and its journal has room for {}: make a pool with more controllers or larger extents",
                self.identity.controller,
                written.end(),
                self.shape.tables_bytes
            )));
        }
        let (bytes, at) = match tables {
            Tables::Whole(bytes) => (bytes, 0),
            Tables::Changes(bytes) => (bytes, before.end()),
        };
        self.write_in_area(bytes, self.shape.tables_at(written.area) + at).await?;
        if matches!(tables, Tables::Whole(_))
            && let Some(joining) = joining
            && let Some(now) = &mut self.state.borrow_mut().joining
        {
            now.has_tables |= now.index == joining.index && now.sequence == joining.sequence;
        }
        Ok(written)
    }

    async fn write_in_area(&self, bytes: &[u8], at: u64) -> Result<()> {
        const CHUNK_BYTES: usize = 1 << 20;
        for (number, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
            let at = at + (number * CHUNK_BYTES) as u64;
            let chunk = BufMut::padded(&[chunk], ROOT_BYTES as usize).freeze().into();
            self.on_live_copies(async |index, copy| self.put((index, copy), at, &chunk, false).await).await?;
        }
        self.on_live_copies(async |_, copy| copy.device.flush().await).await
    }

    /// Writes the root that says where the log begins; the first one after a scan begins a new epoch.
    pub async fn write_root(&self, tail: Lsn, settled: Lsn, tables: TablesRef) -> Result<()> {
        let _alone = self.telling.lock().await;
        self.tell_root(tail, settled, tables).await
    }

    /// The same, for who has locked `telling`.
    pub async fn tell_root(&self, tail: Lsn, settled: Lsn, tables: TablesRef) -> Result<()> {
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
        let block = root.encode(self.identity).into();
        self.on_live_copies(async |index, copy| self.put((index, copy), at, &block, true).await).await
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
            self.put((index, copy), place, &entry, false).await
        };
        self.on_live_copies(write).await
    }

    /// Writes to a copy. One that has no space is no broken disk: others use what its file lies on, too, and it is asked again for
    /// a while, as long as it lives. A write that finds none has changed nothing of what was written before; a flush may have, and
    /// is asked for once.
    pub async fn put(&self, (index, copy): (usize, JournalCopy), at: u64, data: &Bufs, durable: bool) -> Result<()> {
        let until = self.runtime.now() + FULL;
        loop {
            let done = copy.device.write(copy.offset + at, data.clone(), durable).await;
            let waits = self.state.borrow().live_copies & 1 << index != 0 && self.runtime.now() < until;
            match done {
                Err(error) if error.kind() == Kind::Full && waits => self.runtime.sleep(FULL_AGAIN).await,
                done => return done,
            }
        }
    }
}
