//! Writing: into the journal and the write buffer.

use crate::extent::{Before, Dirty, Extent};
use crate::record::Record;
use crate::snapshot::{Change, Place};
use crate::store::Inner;
use crate::straight::{Ahead, Home};
use crate::tables::VolumeState;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Buf, BufMut, Bufs, Checksum, PAGE_BYTES, Result};
use kura_journal::Lsn;
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;

/// Blocks in one record.
pub(crate) const PIECE_BLOCKS: usize = 256;

/// The first and last block of a write that does not cover them whole: it holds only as long as these stay as they were
/// when it read them.
#[derive(Default)]
pub(crate) struct Edges(SmallVec<[(u64, Seen); 2]>);

impl Edges {
    /// Blocks, each as it was seen.
    pub fn of(blocks: impl Iterator<Item = (u64, Seen)>) -> Self {
        Self(blocks.collect())
    }

    /// Where they lie.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.0.iter().map(|(_, seen)| &seen.place)
    }
}

/// What a block was when it was looked at, and where.
#[derive(Clone, PartialEq)]
pub(crate) struct Seen {
    place: Place,
    checksum: Option<Checksum>,
    buffered: Option<Lsn>,
}

impl Seen {
    /// True for the bytes of what was seen.
    pub fn is(&self, bytes: &Bufs) -> bool {
        match self.checksum {
            Some(checksum) => Checksum::of(&bytes.contiguous()) == checksum,
            None => bytes.is_lent_zeroes() || bytes.contiguous().iter().all(|byte| *byte == 0),
        }
    }
}

/// How a write passes the journal by.
enum Past {
    /// To its places, which hold nothing.
    Straight(Home),
    /// To the successor of its extent.
    Ahead(Ahead),
}

impl Past {
    /// What the log says of the write where it got there.
    fn placed(&self, volume: &VolumeState, first: u64, checksums: &[Checksum]) -> Record {
        let (volume, checksums) = (volume.id, checksums.to_vec());
        match self {
            Self::Straight(home) => {
                Record::Placed { volume, first, checksums, in_parity: matches!(home, Home::Stripes(_)) }
            }
            Self::Ahead(ahead) => Record::Ahead { volume, first, places: ahead.places(), checksums },
        }
    }
}

/// Why a write cannot go ahead yet.
enum Wants {
    Extent(u32),
    Page(Rc<Extent>),
}

impl Inner {
    /// Writes bytes at any offset; buffered when the future resolves.
    pub async fn write_bytes(&self, volume: &Rc<VolumeState>, offset: u64, data: &Bufs) -> Result<()> {
        let end = offset + data.len() as u64;
        let mut at = offset;
        while at < end {
            let piece_end = self.end_of_piece(volume, at, end);
            let piece = data.slice((at - offset) as usize..(piece_end - offset) as usize);
            self.write_piece(volume, at, piece).await?;
            at = piece_end;
        }
        Ok(())
    }

    /// Where the first piece of a write ends. One that has whole stripes which may go straight to their places has pieces of them, and
    /// others of what is before and behind.
    fn end_of_piece(&self, volume: &VolumeState, at: u64, end: u64) -> u64 {
        let piece_bytes = (PIECE_BLOCKS * BLOCK_BYTES) as u64;
        let stripe_bytes = volume.shape.stripe_blocks() * BLOCK_BYTES_U64;
        let (first, last) = (at.next_multiple_of(stripe_bytes), end / stripe_bytes * stripe_bytes);
        let cut = first < last
            && stripe_bytes <= piece_bytes
            && self.may_go_in_stripes(volume)
            && volume.branch.borrow().is_none()
            && self.goes_to_places(((end - at) / BLOCK_BYTES_U64) as usize);
        if !cut {
            end.min((at / piece_bytes + 1) * piece_bytes)
        } else if at < first {
            first
        } else {
            last.min(at + piece_bytes / stripe_bytes * stripe_bytes)
        }
    }

    async fn write_piece(&self, volume: &Rc<VolumeState>, offset: u64, data: Bufs) -> Result<()> {
        let unit = BLOCK_BYTES_U64;
        let (first, end) = (offset / unit, (offset + data.len() as u64).div_ceil(unit));
        let whole = offset.is_multiple_of(unit) && data.len().is_multiple_of(BLOCK_BYTES);
        self.begin_successor(volume, first, end).await;
        loop {
            self.wait_to_go_straight(volume, first, (end - first) as usize).await;
            let (blocks, edges) = if whole {
                (aligned(&data), Edges::default())
            } else {
                self.complete(volume, offset, &data, first, end).await?
            };
            let checksums = checksums_of(&blocks);
            if let Some(branch) = volume.branch() {
                let change = Change::Write { data: &blocks, checksums: &checksums };
                if self.change(volume, &branch, first..end, &change, &edges).await? {
                    return Ok(());
                }
                continue;
            }
            self.make_writable(volume, first, end, Self::bytes_of(end - first)).await?;
            if volume.held.get() {
                self.released(volume).await;
                continue;
            }
            self.check_places(volume, first..end)?;
            if self.holds(volume, &edges) && volume.branch.borrow().is_none() {
                self.put_blocks(volume, first, &blocks, &checksums);
                self.client_wrote();
                return Ok(());
            }
        }
    }

    /// A client has written: what waits for idle time waits, and the buffer has more to empty.
    pub fn client_wrote(&self) {
        self.last_write.set(self.runtime.now());
        self.stir();
    }

    /// Writes blocks into the journal and the write buffer; their extents are there and their pages are loaded.
    pub fn put_blocks(&self, volume: &Rc<VolumeState>, first: u64, data: &Bufs, checksums: &[Checksum]) {
        let past = match self.goes_ahead(volume, first, checksums.len()) {
            Some(ahead) => Some(Past::Ahead(ahead)),
            None => {
                self.give_up_successors_of(volume, first..first + checksums.len() as u64);
                self.goes_straight(volume, first, checksums.len()).map(Past::Straight)
            }
        };
        let (lsn, arrives) = match &past {
            Some(past) => {
                let placed = past.placed(volume, first, checksums);
                let (lsn, arrives) = self.append_elsewhere(volume, first, &placed, data, checksums);
                (lsn, Some(arrives))
            }
            None => (self.append_data(&Record::Write { volume: volume.id, first }, data, checksums), None),
        };
        let (mut block, mut left, mut bytes) = (first, checksums, blocks_of(data));
        while !left.is_empty() {
            let in_extent = (self.array.extent_blocks() - self.split(block).1).min(left.len());
            let (fresh, rest) = left.split_at(in_extent);
            let at_rest = self.set_checksums(volume, block, fresh);
            let mut dirty = volume.dirty.borrow_mut();
            for ((checksum, at_rest), bytes) in fresh.iter().zip(at_rest).zip(bytes.by_ref()) {
                self.buffer_in(&mut dirty, volume, block, Dirty::new(bytes, *checksum, lsn, at_rest));
                block += 1;
            }
            left = rest;
        }
        match past.zip(arrives) {
            Some((Past::Straight(home), arrives)) => self.send_straight(volume, home, first..block, (lsn, arrives)),
            Some((Past::Ahead(ahead), arrives)) => self.send_ahead(volume, ahead, data.clone(), (lsn, arrives)),
            None => {}
        }
    }

    /// True when the edges are what they were.
    pub fn holds(&self, volume: &Rc<VolumeState>, edges: &Edges) -> bool {
        edges.0.iter().all(|(block, seen)| self.seen(volume, *block) == *seen)
    }

    /// Makes whole blocks of a write that covers its first or last one in part; those between stay where they are.
    async fn complete(
        &self,
        volume: &Rc<VolumeState>,
        offset: u64,
        data: &Bufs,
        first: u64,
        end: u64,
    ) -> Result<(Bufs, Edges)> {
        let unit = BLOCK_BYTES_U64;
        let data_end = offset + data.len() as u64;
        let covers = |block: u64| offset <= block * unit && (block + 1) * unit <= data_end;
        let (mut whole, mut edges) = (Bufs::new(), Edges::default());
        if !covers(first) {
            whole.append(self.complete_block(volume, offset, data, first, &mut edges).await?);
        }
        let (from, to) = (offset.next_multiple_of(unit), data_end / unit * unit);
        if from < to {
            whole.append(data.slice((from - offset) as usize..(to - offset) as usize));
        }
        let last = end - 1;
        if last > first && !covers(last) {
            whole.append(self.complete_block(volume, offset, data, last, &mut edges).await?);
        }
        Ok((aligned(&whole), edges))
    }

    /// A block as a write leaves it that covers a part of it.
    async fn complete_block(
        &self,
        volume: &Rc<VolumeState>,
        offset: u64,
        data: &Bufs,
        block: u64,
        edges: &mut Edges,
    ) -> Result<Bufs> {
        let unit = BLOCK_BYTES_U64;
        let old = loop {
            let seen = self.look(volume, block).await?;
            let old = self.read_seen(volume, block, block + 1).await?;
            // What was read may be younger than what was looked at, which may come again.
            if seen.is(&old) {
                edges.0.push((block, seen));
                break old;
            }
        };
        let start = block * unit;
        let (from, to) = (offset.max(start), (offset + data.len() as u64).min(start + unit));
        let new = data.slice((from - offset) as usize..(to - offset) as usize);
        if old.is_lent_zeroes() && new.is_lent_zeroes() {
            return Ok(Bufs::zeroes(BLOCK_BYTES));
        }
        let mut whole = BufMut::room(BLOCK_BYTES);
        old.copy_to(&mut whole);
        new.copy_to(&mut whole[(from - start) as usize..(to - start) as usize]);
        Ok(whole.freeze().into())
    }

    /// Waits until a write of these blocks can go ahead that puts so many bytes into the buffer: from then to the caller's next
    /// await nothing changes.
    pub async fn make_writable(&self, volume: &Rc<VolumeState>, first: u64, end: u64, bytes: u64) -> Result<()> {
        loop {
            self.ready(volume)?;
            volume.check_blocks(end)?;
            match self.wants(volume, first, end) {
                None if self.has_room(bytes) => return Ok(()),
                None => self.make_room(bytes).await?,
                Some(Wants::Extent(index)) => self.map(volume, index).await?,
                Some(Wants::Page(extent)) => self.load(&extent).await?,
            }
        }
    }

    fn wants(&self, volume: &VolumeState, first: u64, end: u64) -> Option<Wants> {
        (self.index_of(first)..=self.index_of(end - 1)).find_map(|index| match volume.extent(index) {
            None => Some(Wants::Extent(index)),
            Some(extent) if !extent.is_loaded() => Some(Wants::Page(extent)),
            Some(_) => None,
        })
    }

    /// The checksum of a block, where its extent's page is loaded and it is written.
    pub fn checksum(&self, volume: &VolumeState, block: u64) -> Option<Checksum> {
        let (index, inside) = self.split(block);
        let extent = volume.extent(index).filter(|extent| extent.is_loaded())?;
        extent.with_page(|page| page.get(inside))
    }

    /// What a block is just now, where its page is loaded.
    pub fn seen(&self, volume: &Rc<VolumeState>, block: u64) -> Seen {
        let (place, _) = self.locate(volume, block, block + 1);
        let (checksum, buffered) = match &place {
            Place::Zero => (None, None),
            Place::At(state, at) => (self.checksum(state, *at), state.dirty.borrow().get(at).map(|dirty| dirty.lsn)),
        };
        Seen { place, checksum, buffered }
    }

    /// What a block is, its page loaded.
    async fn look(&self, volume: &Rc<VolumeState>, block: u64) -> Result<Seen> {
        loop {
            let seen = self.seen(volume, block);
            let unloaded = match &seen.place {
                Place::At(state, at) => self.unloaded(state, *at),
                Place::Zero => None,
            };
            match unloaded {
                Some(extent) => self.load(&extent).await?,
                None => return Ok(seen),
            }
        }
    }

    /// Sets or clears the checksum of a block whose extent's page is loaded.
    pub fn set_checksum(&self, volume: &VolumeState, block: u64, checksum: Option<Checksum>) {
        let (index, inside) = self.split(block);
        if let Some(extent) = volume.extent(index) {
            let was_clean = extent.set(inside, checksum);
            self.page_changed(&extent, was_clean);
        }
    }

    /// Sets the checksums of blocks of one extent, whose page is loaded; returns what they were.
    fn set_checksums(&self, volume: &VolumeState, first: u64, checksums: &[Checksum]) -> Before {
        let (index, inside) = self.split(first);
        let Some(extent) = volume.extent(index) else { return smallvec![None; checksums.len()] };
        let (before, was_clean) = extent.set_run(inside, checksums);
        self.page_changed(&extent, was_clean);
        before
    }

    /// Puts a block into the write buffer.
    pub fn buffer(&self, volume: &VolumeState, block: u64, fresh: Dirty) {
        self.buffer_in(&mut volume.dirty.borrow_mut(), volume, block, fresh);
    }

    fn buffer_in(&self, dirty: &mut BTreeMap<u64, Dirty>, volume: &VolumeState, block: u64, mut fresh: Dirty) {
        match dirty.entry(block) {
            Entry::Vacant(entry) => {
                self.count_dirty(volume, 1);
                entry.insert(fresh);
            }
            Entry::Occupied(mut entry) => {
                let before = entry.get_mut();
                fresh.in_flight = before.in_flight;
                if before.data.is_some() {
                    self.drained(before.lsn);
                    fresh.at_rest = before.at_rest;
                } else {
                    // It was cleared, and its place may be another one by now; or it is not read yet.
                    self.count_dirty(volume, 1);
                }
                *before = fresh;
            }
        }
    }

    /// Counts blocks of a volume that come into the write buffer, or leave it.
    pub fn count_dirty(&self, volume: &VolumeState, blocks: i64) {
        let bytes = blocks * BLOCK_BYTES_U64.cast_signed();
        self.dirty_bytes.set(self.dirty_bytes.get().saturating_add_signed(bytes));
        if volume.shape.parity {
            self.dirty_in_stripes.set(self.dirty_in_stripes.get().saturating_add_signed(bytes));
        }
    }

    /// Forgets blocks in the write buffer, from `first` to before `end`.
    pub fn drop_dirty(&self, volume: &VolumeState, first: u64, end: u64) {
        let mut dirty = volume.dirty.borrow_mut();
        let blocks: Vec<u64> = dirty.range(first..end).map(|(block, _)| *block).collect();
        for block in blocks {
            let Some(entry) = dirty.get_mut(&block) else { continue };
            if entry.data.take().is_some() {
                self.count_dirty(volume, -1);
                self.drained(entry.lsn);
            }
            if !entry.in_flight {
                dirty.remove(&block);
            }
        }
        self.room.notify_waiters();
    }
}

impl VolumeState {
    /// Refuses requests for a volume that is gone or lost, or a snapshot of which only a roll-back knows any more.
    pub(crate) fn check_there(&self) -> Result<()> {
        let left = self.is_hidden() && !self.is_pool();
        if !self.deleted.get() && !left {
            return self.check_family();
        }
        Err(kura_block::Error::missing(format!("volume {}: deleted", self.spec.borrow().name)))
    }

    /// Refuses blocks beyond the volume's end: it may have become smaller since the request was checked.
    pub(crate) fn check_blocks(&self, end: u64) -> Result<()> {
        let spec = self.spec.borrow();
        if end * BLOCK_BYTES_U64 <= spec.size_bytes {
            return Ok(());
        }
        Err(kura_block::Error::invalid(format!("volume {}: block {} is beyond its end", spec.name, end - 1)))
    }
}

/// `data`, whole blocks, with every part at a page's start in memory, as direct I/O wants.
fn aligned(data: &Bufs) -> Bufs {
    let fit =
        |part: &Buf| (part.as_ptr() as usize).is_multiple_of(PAGE_BYTES) && part.len().is_multiple_of(BLOCK_BYTES);
    if data.parts().iter().all(fit) {
        return data.clone();
    }
    let mut copy = BufMut::room(data.len());
    data.copy_to(&mut copy);
    copy.freeze().into()
}

/// The blocks of `data`, whose parts are whole blocks.
fn blocks_of(data: &Bufs) -> impl Iterator<Item = Buf> {
    data.parts()
        .iter()
        .flat_map(|part| (0..part.len() / BLOCK_BYTES).map(|at| part.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES)))
}

pub(crate) fn checksums_of(data: &Bufs) -> SmallVec<[Checksum; 32]> {
    data.parts().iter().flat_map(Checksum::of_blocks).collect()
}
