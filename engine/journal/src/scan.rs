//! Making a journal, and reading one back after a stop or a crash.

use crate::Lsn;
use crate::entry::{Entry, Head};
use crate::journal::{Journal, JournalCopy, Limits};
use crate::root::{Identity, ROOT_BYTES, Root, Shape, TablesRef};
use crate::state::{Kept, Mend, Start};
use futures::future::try_join_all;
use kura_block::{BLOCK_BYTES, Bufs, Error, Result, Runtime};
use std::collections::VecDeque;
use std::rc::Rc;

/// Makes an empty journal on all copies, with no tables.
pub async fn format(copies: &[JournalCopy], shape: Shape, identity: Identity) -> Result<()> {
    if shape.ring_bytes < Shape::RING_MIN_BYTES || !shape.ring_bytes.is_multiple_of(BLOCK_BYTES as u64) {
        return Err(Error::invalid(format!(
            "a journal of {} bytes: give it a multiple of 4096, at least {} bytes",
            shape.ring_bytes,
            Shape::RING_MIN_BYTES
        )));
    }
    // Epochs begin at a number drawn from the pool's UUID and the controller: what an earlier pool left in the ring, or a
    // write of another controller that landed here, is foreign to this one.
    let pool = identity.pool.iter().take(8).fold(0, |epoch, byte| epoch << 8 | u64::from(*byte)) >> 2;
    let epoch = pool + (u64::from(identity.controller) << 32);
    let root = Root {
        generation: 1,
        epoch,
        tail_lsn: Lsn(1),
        tables: TablesRef { lsn: Lsn(1), crc: crc32c::crc32c(&[]), ..TablesRef::default() },
        live_copies: (1 << copies.len()) - 1,
        ..Root::default()
    };
    let block = root.encode(identity);
    let at = root.generation % 2 * ROOT_BYTES;
    try_join_all(copies.iter().map(|copy| copy.device.write(copy.offset + at, block.clone().into(), true))).await?;
    Ok(())
}

/// A journal being read back, from its tail to its end.
pub struct Scan {
    copies: Vec<Option<JournalCopy>>,
    shape: Shape,
    identity: Identity,
    root: Root,
    position: u64,
    sequence: u64,
    next_lsn: Lsn,
    live_copies: u32,
    /// Of the last entry.
    epoch: u64,
    kept: VecDeque<Kept>,
    mends: Vec<Mend>,
}

impl Scan {
    /// Finds the newest root. `copies` has every copy of the journal in its order, `None` where the device is away.
    pub async fn open(copies: Vec<Option<JournalCopy>>, shape: Shape, identity: Identity) -> Result<Self> {
        let mut newest: Option<Root> = None;
        for copy in copies.iter().flatten() {
            for slot in 0..2 {
                // A copy that cannot be read is as good as away: the other one decides.
                let Ok(block) = copy.device.read(copy.offset + slot * ROOT_BYTES, BLOCK_BYTES).await else { continue };
                if let Some(root) = Root::decode(&block.contiguous(), identity)?
                    && newest.is_none_or(|newest| newest.generation < root.generation)
                {
                    newest = Some(root);
                }
            }
        }
        let root = newest.ok_or_else(|| {
            Error::corrupt(format!(
                "no root of controller {}'s journal can be read: the pool's journal disks are damaged or away",
                identity.controller
            ))
        })?;
        Ok(Self {
            copies,
            shape,
            identity,
            root,
            position: root.tail_position,
            sequence: root.tail_sequence,
            next_lsn: root.tail_lsn,
            live_copies: root.live_copies,
            epoch: 0,
            kept: VecDeque::new(),
            mends: Vec::new(),
        })
    }

    /// The tables as last checkpointed (empty when never), and the LSN below which they hold every record.
    pub async fn tables(&self) -> Result<(Vec<u8>, Lsn)> {
        let tables = self.root.tables;
        if tables.bytes == 0 {
            return Ok((Vec::new(), tables.lsn));
        }
        let len = (tables.bytes as usize).next_multiple_of(BLOCK_BYTES);
        for copy in self.copies.iter().flatten() {
            let Ok(read) = copy.device.read(copy.offset + self.shape.tables_at(tables.area), len).await else {
                continue;
            };
            let mut bytes = read.contiguous().to_vec();
            bytes.truncate(tables.bytes as usize);
            if crc32c::crc32c(&bytes) == tables.crc {
                return Ok((bytes, tables.lsn));
            }
        }
        Err(Error::corrupt(format!(
            "controller {}'s tables fail their checksum on every journal disk: restore the pool from a copy",
            self.identity.controller
        )))
    }

    /// What records below speak of was complete and durable at the last checkpoint.
    pub fn settled(&self) -> Lsn {
        self.root.settled
    }

    /// The next entry, or `None` at the log's end.
    pub async fn next(&mut self) -> Result<Option<Entry>> {
        for position in [self.position, self.shape.wrap(self.position)] {
            let mut found: Option<(Entry, Bufs)> = None;
            let mut lacking = Vec::new();
            for (index, copy) in self.copies.iter().enumerate().filter_map(|(at, copy)| Some((at, copy.as_ref()?))) {
                match self.read_entry(copy, position).await {
                    Some(read) => found = found.or(Some(read)),
                    None => lacking.push(index),
                }
            }
            let Some((entry, bytes)) = found else { continue };
            self.mends.extend(lacking.into_iter().map(|copy| Mend { copy, position, entry: bytes.clone() }));
            let first_lsn = self.next_lsn;
            self.next_lsn = Lsn(first_lsn.0 + entry.records.len() as u64);
            self.kept.push_back(Kept { first_lsn, end_lsn: self.next_lsn, sequence: self.sequence, position });
            self.position = position + entry.bytes;
            self.sequence += 1;
            self.live_copies = entry.stamp.live_copies;
            self.epoch = entry.stamp.epoch;
            return Ok(Some(entry));
        }
        self.refuse_a_gap().await?;
        Ok(None)
    }

    /// The journal, standing at the log's end; [`Journal::begin`] comes next. `degraded` allows that a copy is away which may hold newer entries.
    pub fn finish(self, limits: Limits, runtime: Rc<dyn Runtime>, degraded: bool) -> Result<Journal> {
        for (index, copy) in self.copies.iter().enumerate() {
            if copy.is_none() && self.live_copies & 1 << index != 0 && !degraded {
                return Err(Error::invalid(format!(
                    "journal copy {index} of controller {} is away and may hold newer writes than the others: \
                     bring its disk back, or start with --degraded to go on without it",
                    self.identity.controller
                )));
            }
        }
        let present = self.copies.iter().enumerate().filter(|(_, copy)| copy.is_some());
        let start = Start {
            root: self.root,
            next_lsn: self.next_lsn,
            position: self.position,
            sequence: self.sequence,
            kept: self.kept,
            live_copies: present.fold(0, |set, (index, _)| set | 1 << index) & self.live_copies,
            mends: self.mends,
        };
        Ok(Journal::start(self.copies, self.shape, self.identity, limits, runtime, start))
    }

    async fn read_entry(&self, copy: &JournalCopy, position: u64) -> Option<(Entry, Bufs)> {
        let place = self.shape.place(position);
        let head = Head::decode(&copy.device.read(copy.offset + place, BLOCK_BYTES).await.ok()?.contiguous())?;
        let fits = place + head.entry_bytes() <= self.shape.region_bytes();
        let epoch = head.stamp.epoch;
        // Within the log epochs only grow: what an earlier one left behind its end is never taken for a part of it.
        let of_its_time = if self.sequence >= self.root.epoch_sequence {
            epoch == self.root.epoch
        } else {
            (self.epoch..self.root.epoch).contains(&epoch)
        };
        let expected = of_its_time && head.stamp.sequence == self.sequence && head.stamp.first_lsn == self.next_lsn;
        if !fits || !expected {
            return None;
        }
        let bytes = copy.device.read(copy.offset + place, head.entry_bytes() as usize).await.ok()?;
        Some((head.verify(&bytes).ok()?, bytes))
    }

    /// An entry that says the one missing here was durable proves that the log is damaged, not finished.
    async fn refuse_a_gap(&self) -> Result<()> {
        const CHUNK_BYTES: u64 = 1 << 20;
        if self.sequence < self.root.epoch_sequence {
            return Err(self.damaged());
        }
        for copy in self.copies.iter().flatten() {
            let mut at = 0;
            while at < self.shape.ring_bytes {
                let len = CHUNK_BYTES.min(self.shape.ring_bytes - at);
                let place = copy.offset + self.shape.ring_at() + at;
                at += len;
                let Ok(chunk) = copy.device.read(place, len as usize).await else { continue };
                for (number, block) in chunk.contiguous().chunks(BLOCK_BYTES).enumerate() {
                    if self.claims_more(copy, place + (number * BLOCK_BYTES) as u64, block).await {
                        return Err(self.damaged());
                    }
                }
            }
        }
        Ok(())
    }

    fn damaged(&self) -> Error {
        Error::corrupt(format!(
            "controller {}'s journal is damaged in its middle (entry {} is unreadable and was durable): \
             restore the pool from a copy",
            self.identity.controller, self.sequence
        ))
    }

    /// True when the header that begins with `block` says, believably, that the entry missing here was durable.
    async fn claims_more(&self, copy: &JournalCopy, place: u64, block: &[u8]) -> bool {
        let Some(head) = Head::decode(block) else { return false };
        if head.stamp.epoch != self.root.epoch || head.stamp.durable_sequence <= self.sequence {
            return false;
        }
        let fits = place + head.header_bytes as u64 <= copy.offset + self.shape.region_bytes();
        let header = copy.device.read(place, if fits { head.header_bytes } else { BLOCK_BYTES }).await;
        fits && header.is_ok_and(|header| Head::holds(&header.contiguous()))
    }
}
