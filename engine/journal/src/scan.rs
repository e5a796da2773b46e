//! Making a journal, and reading one back after a stop or a crash.

use crate::Lsn;
use crate::entry::{ENTRY_LIMIT_BYTES, Entry, Head};
use crate::journal::{Journal, JournalCopy, Limits};
use crate::root::{Identity, ROOT_BYTES, Root, Shape, TablesRef};
use crate::state::{Kept, Mend, Start};
use futures::future::{join_all, try_join, try_join_all};
use futures::{StreamExt, stream};
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Bufs, Error, Result, Runtime};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;

/// Makes an empty journal on all copies, with no tables.
pub async fn format(copies: &[JournalCopy], shape: Shape, identity: Identity) -> Result<()> {
    shape.check()?;
    // Epochs begin at a number drawn from the pool's UUID and the controller: what an earlier pool left in the ring, or a
    // write of another controller that landed here, is foreign to this one. LSNs begin at one drawn from the UUID: they tell
    // apart whose pages lie on a disk, and an earlier pool had volumes and extents of the same numbers.
    let [epochs, lsns] =
        [0, 8].map(|at| identity.pool[at..at + 8].iter().fold(0, |all, byte| all << 8 | u64::from(*byte)));
    let epoch = (epochs >> 2) + (u64::from(identity.controller) << 32);
    let first = Lsn((lsns >> 4).max(1));
    let root = Root {
        generation: 1,
        epoch,
        tail_lsn: first,
        tables: TablesRef { lsn: first, crc: crc32c::crc32c(&[]), ..TablesRef::default() },
        live_copies: (1 << copies.len()) - 1,
        ..Root::default()
    };
    let block = root.encode(identity);
    let at = root.generation % 2 * ROOT_BYTES;
    try_join_all(copies.iter().map(|copy| copy.device.write(copy.offset + at, block.clone().into(), true))).await?;
    Ok(())
}

/// Makes the place of a copy one that has no root: what it was before, on a disk that was here already, may be of this pool.
pub async fn blank(copy: &JournalCopy) -> Result<()> {
    copy.device.write(copy.offset, Bufs::zeroes(2 * ROOT_BYTES as usize), true).await
}

/// Bytes of the ring in one read where an entry is looked for.
const CHUNK_BYTES: u64 = 1 << 20;
/// So many of these at a time.
const CHUNKS: usize = 4;
/// Refusals after which a disk is not asked for more of its ring: each may take it seconds.
const REFUSALS_MOST: usize = 8;

/// A journal being read back, from its tail to its end.
pub struct Scan {
    copies: Vec<Option<JournalCopy>>,
    shape: Shape,
    identity: Identity,
    root: Root,
    position: u64,
    sequence: u64,
    next_lsn: Lsn,
    /// As the root and the entries so far tell. What lies on other copies is not believed: they may have gone another way.
    live_copies: u32,
    /// Copies that could not be read where the log seems to end.
    unreadable: u32,
    /// Of the last entry.
    epoch: u64,
    kept: VecDeque<Kept>,
    mends: Vec<Mend>,
}

/// An entry that could be the next one, and where it was.
struct Found {
    position: u64,
    index: usize,
    entry: Entry,
}

impl Scan {
    /// Finds the newest root. `copies` has every copy of the journal in its order, `None` where the device is away.
    pub async fn open(mut copies: Vec<Option<JournalCopy>>, shape: Shape, identity: Identity) -> Result<Self> {
        shape.check()?;
        let mut newest: Option<Root> = None;
        for copy in &mut copies {
            let Some(JournalCopy { device, offset }) = copy else { continue };
            let slots = try_join(device.read(*offset, BLOCK_BYTES), device.read(*offset + ROOT_BYTES, BLOCK_BYTES));
            let Ok((first, second)) = slots.await else {
                // As good as away: it may have the newest of all.
                *copy = None;
                continue;
            };
            // One that has joined but now may have none yet.
            for slot in [first, second] {
                let root = Root::decode(&slot.contiguous(), identity)?;
                newest = newest.into_iter().chain(root).max_by_key(Root::age);
            }
        }
        let root = newest.ok_or_else(|| {
            Error::corrupt(format!(
                "no root of controller {}'s journal can be read: the pool's journal disks are damaged or away: bring one of them back",
                identity.controller
            ))
        })?;
        if !root.is_sound(&shape) {
            return Err(Error::corrupt(format!(
                "the root of controller {}'s journal says what no kura writes: it was damaged, or made up",
                identity.controller
            )));
        }
        Ok(Self {
            copies,
            shape,
            identity,
            root,
            position: root.tail_position,
            sequence: root.tail_sequence,
            next_lsn: root.tail_lsn,
            live_copies: root.live_copies,
            unreadable: 0,
            epoch: 0,
            kept: VecDeque::new(),
            mends: Vec::new(),
        })
    }

    /// The tables as last checkpointed whole (empty when never), what has changed since, in the order of the checkpoints, and the LSN
    /// below which both together hold every record.
    pub async fn tables(&self) -> Result<(Vec<u8>, Vec<u8>, Lsn)> {
        let (tables, mut unreadable) = (self.root.tables, 0);
        if tables.end() == 0 {
            return Ok((Vec::new(), Vec::new(), tables.lsn));
        }
        for (index, copy) in self.copies.iter().enumerate() {
            let Some(copy) = copy else { continue };
            let at = copy.offset + self.shape.tables_at(tables.area);
            let Ok(read) = copy.device.read(at, tables.end() as usize).await else {
                unreadable |= 1 << index;
                continue;
            };
            let mut bytes = read.contiguous().to_vec();
            let changes = bytes.split_off(tables.changes_at() as usize);
            bytes.truncate(tables.bytes as usize);
            if crc32c::crc32c(&bytes) == tables.crc && crc32c::crc32c(&changes) == tables.changes_crc {
                return Ok((bytes, changes, tables.lsn));
            }
        }
        Err(self.missing("its tables fail their checksum", unreadable))
    }

    /// What records below speak of was complete and durable at the last checkpoint.
    pub fn settled(&self) -> Lsn {
        self.root.settled
    }

    /// The next entry, or `None` at the log's end.
    ///
    /// Of all entries that could be it the one of the latest epoch is: a recovery that could not read an older one went
    /// on without it.
    pub async fn next(&mut self) -> Result<Option<Entry>> {
        let wrap = self.shape.wrap(self.position);
        // An entry begins the ring anew only where it could have been too large for what was left.
        let wraps = (1..ENTRY_LIMIT_BYTES).contains(&(wrap - self.position));
        let positions = [Some(self.position), wraps.then_some(wrap)].into_iter().flatten();
        let (mut found, mut unreadable) = (Vec::new(), 0);
        for position in positions {
            for (index, copy) in self.present_live() {
                match self.read_entry(copy, position).await {
                    Ok(entry) => found.extend(entry.map(|entry| Found { position, index, entry })),
                    Err(_) => unreadable |= 1 << index,
                }
            }
        }
        self.unreadable = unreadable;
        let Some(newest) = found.iter().map(|found| found.entry.stamp.epoch).max() else {
            self.refuse_a_gap().await?;
            return Ok(None);
        };
        found.retain(|found| found.entry.stamp.epoch == newest);
        let holders = found.iter().fold(0, |set, found| set | 1 << found.index);
        let next = found.swap_remove(0);
        self.take(&next, holders);
        Ok(Some(next.entry))
    }

    /// Goes on behind an entry, which live copies but `holders` lack.
    fn take(&mut self, Found { position, index, entry }: &Found, holders: u32) {
        if self.sequence >= self.root.told_sequence {
            self.live_copies = entry.stamp.live_copies;
        }
        if let Some(source) = &self.copies[*index] {
            let lacking = self.present_live().map(|(index, _)| index).filter(|index| holders & 1 << index == 0);
            let mend = |lacking| Mend { source: source.clone(), lacking, position: *position, bytes: entry.bytes };
            let mends: Vec<_> = lacking.map(mend).collect();
            self.mends.extend(mends);
        }
        let first_lsn = entry.stamp.first_lsn;
        self.next_lsn = Lsn(first_lsn.0 + entry.records.len() as u64);
        self.kept.push_back(Kept { first_lsn, end_lsn: self.next_lsn, sequence: self.sequence, position: *position });
        self.position = position + entry.bytes;
        self.sequence += 1;
        self.epoch = entry.stamp.epoch;
    }

    /// The live copies that are here.
    fn present_live(&self) -> impl Iterator<Item = (usize, &JournalCopy)> {
        let copies = self.copies.iter().enumerate().filter(|(index, _)| self.live_copies & 1 << index != 0);
        copies.filter_map(|(index, copy)| Some((index, copy.as_ref()?)))
    }

    /// The journal, standing at the log's end; [`Journal::begin`] comes next. `degraded` allows that a copy is away, or
    /// unreadable, which may hold newer entries. Without a live copy there is no journal.
    pub fn finish(self, limits: Limits, runtime: Rc<dyn Runtime>, degraded: bool) -> Result<Journal> {
        let controller = self.identity.controller;
        let live_copies = self.present_live().fold(0, |set, (index, _)| set | 1 << index);
        let lost = self.lost(self.unreadable);
        if lost != 0 && !degraded {
            return Err(Error::invalid(format!(
                "journal copy {} of controller {controller} is away or cannot be read and may hold newer writes than the \
                 others: bring its disk back, or start with --degraded to go on without it",
                lost.trailing_zeros(),
            )));
        }
        if live_copies == 0 {
            return Err(Error::invalid(format!(
                "no copy of controller {controller}'s journal that is here has all of it: bring back the disk with copy {}",
                lost.trailing_zeros(),
            )));
        }
        let start = Start {
            root: self.root,
            next_lsn: self.next_lsn,
            position: self.position,
            sequence: self.sequence,
            kept: self.kept,
            live_copies,
            mends: self.mends,
        };
        Ok(Journal::start(self.copies, self.shape, self.identity, limits, runtime, start))
    }

    /// The entry at a position, if it can be the next one; an error where that cannot be read.
    async fn read_entry(&self, copy: &JournalCopy, position: u64) -> Result<Option<Entry>> {
        let place = self.shape.place(position);
        let block = copy.device.read(copy.offset + place, BLOCK_BYTES).await?;
        let Some(head) = Head::decode(&block.contiguous()) else { return Ok(None) };
        let fits = place + head.entry_bytes() <= self.shape.region_bytes();
        let epoch = head.stamp.epoch;
        // Within the log epochs only grow: what an earlier one left behind its end is never taken for a part of it.
        let of_its_time = if self.sequence >= self.root.epoch_sequence {
            epoch == self.root.epoch
        } else {
            (self.epoch..self.root.epoch).contains(&epoch)
        };
        // Numbers may have been skipped, never used twice.
        let expected = of_its_time && head.stamp.sequence == self.sequence && head.stamp.first_lsn >= self.next_lsn;
        if !fits || !expected {
            return Ok(None);
        }
        let bytes = copy.device.read(copy.offset + place, head.entry_bytes() as usize).await?;
        Ok(head.verify(&bytes).ok())
    }

    /// An entry that says the one missing here was durable proves that the log is damaged, not finished. Where no live copy can
    /// be read as a whole, such an entry may lie where one cannot: those copies are noted as unreadable. Behind the end of a log
    /// that was closed nobody wrote anything.
    async fn refuse_a_gap(&mut self) -> Result<()> {
        let durable = self.root.durable_sequence();
        if self.sequence < durable {
            return Err(self.damaged());
        }
        if self.root.closed && self.sequence == durable {
            return Ok(());
        }
        let (mut refused, mut is_known) = (0, false);
        let scan = &*self;
        let proofs = scan.present_live().map(|(index, copy)| async move { (index, scan.has_proof(copy).await) });
        for (index, proof) in join_all(proofs).await {
            match proof {
                Ok(true) => return Err(self.damaged()),
                Ok(false) => is_known = true,
                Err(_) => refused |= 1 << index,
            }
        }
        if !is_known {
            self.unreadable |= refused;
        }
        Ok(())
    }

    /// True when a copy has an entry that says that the one missing here was durable; an error where what can be read of it has
    /// none, and not all of it can.
    async fn has_proof(&self, copy: &JournalCopy) -> Result<bool> {
        // A ring may be said to be longer than its disk: nothing is there to be read.
        let size_bytes = copy.device.geometry().size_bytes;
        let there = size_bytes.saturating_sub(copy.offset + self.shape.ring_at()) / BLOCK_BYTES_U64;
        let ring_bytes = self.shape.ring_bytes.min(there * BLOCK_BYTES_U64);
        let chunks = stream::iter((0..ring_bytes).step_by(CHUNK_BYTES as usize)).map(|at| async move {
            let (place, len) = (copy.offset + self.shape.ring_at() + at, CHUNK_BYTES.min(ring_bytes - at) as usize);
            (place, len, copy.device.read(place, len).await.map(|chunk| chunk.contiguous()))
        });
        let mut chunks = pin!(chunks.buffered(CHUNKS));
        let mut refusals = 0;
        let mut known = Ok(false);
        while let Some((place, len, chunk)) = chunks.next().await {
            for inside in (0..len).step_by(BLOCK_BYTES) {
                let place = place + inside as u64;
                // What the disk refuses of a chunk need not be all of it.
                let block = match &chunk {
                    Ok(chunk) => Ok(chunk.slice(inside..inside + BLOCK_BYTES)),
                    Err(_) => copy.device.read(place, BLOCK_BYTES).await.map(|block| block.contiguous()),
                };
                let claims = match block {
                    Ok(block) => self.claims_more(copy, place, &block).await,
                    Err(error) => Err(error),
                };
                match claims {
                    Ok(true) => return Ok(true),
                    Ok(false) => {}
                    Err(error) => {
                        known = Err(error);
                        refusals += 1;
                        if refusals == REFUSALS_MOST {
                            return known;
                        }
                    }
                }
            }
        }
        known
    }

    fn damaged(&self) -> Error {
        let what = format!("damaged in its middle, entry {} is unreadable and was durable", self.sequence);
        self.missing(&what, self.unreadable)
    }

    /// The live copies that are away, or among those that could not be read: they may have what the others lack.
    fn lost(&self, unreadable: u32) -> u32 {
        let present = self.present_live().fold(0, |set, (index, _)| set | 1 << index);
        self.live_copies & (!present | unreadable)
    }

    /// What was durable is not on the copies that are here: nobody has it, unless one does that could not be asked.
    fn missing(&self, what: &str, unreadable: u32) -> Error {
        let controller = self.identity.controller;
        match self.lost(unreadable) {
            0 => Error::corrupt(format!("controller {controller}'s journal: {what}: restore the pool from a copy")),
            lost => Error::invalid(format!(
                "controller {controller}'s journal: {what}, and copy {}, which may have it, is away or cannot be read: bring its \
                 disk back, or restore the pool from a copy",
                lost.trailing_zeros(),
            )),
        }
    }

    /// True when the header that begins with `block` says, believably, that the entry missing here was durable.
    async fn claims_more(&self, copy: &JournalCopy, place: u64, block: &[u8]) -> Result<bool> {
        let Some(head) = Head::decode(block) else { return Ok(false) };
        let is_later = head.stamp.epoch == self.root.epoch && head.stamp.durable_sequence > self.sequence;
        if !is_later || place + head.header_bytes as u64 > copy.offset + self.shape.region_bytes() {
            return Ok(false);
        }
        let header = copy.device.read(place, head.header_bytes).await?;
        Ok(Head::holds(&header.contiguous()))
    }
}
