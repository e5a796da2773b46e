//! The device's segments: which are free, what is alive in the others, and when what died may be used again.
//!
//! What must hold:
//! 1. What a record names is not overwritten before a record that no longer names it is durable. An extent is kept even
//!    longer, until the heads of entries alone tell a replay that this record was durable: see `Log::proven`.
//! 2. A segment of the log is not overwritten while a replay would still read it, nor while the log may go back into it: until
//!    it is durable, the entry that did not fit there any more may be taken back.
//! 3. Nothing is overwritten while somebody reads it.

pub(crate) mod blocks;
pub(crate) mod extent;
pub(crate) mod free;
pub(crate) mod segment;

use crate::known::Known;
use blocks::Blocks;
use free::{Free, Query};
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Error, Result};
use segment::{OPEN, Segment, Use};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An extent that wants more is given no smaller run, while there are larger ones.
const LEAST_RUN_BLOCKS: u32 = 17;
/// Data segments with room that are looked at before a fresh one is taken.
const PARTLY_TRIES: usize = 32;

/// Blocks that may be used again once an entry is durable.
struct Limbo {
    sequence: u64,
    block: u32,
    blocks: u32,
}

pub(crate) struct Space {
    pub segment_blocks: u32,
    pub segments: Vec<Segment>,
    pub free: Free,
    /// Data segments with room, by how much; not the open one.
    partly: BTreeSet<(u32, u32)>,
    open_data: Option<u32>,
    /// Data segments that the device has no room for all of: nothing more goes there before it has room to spare.
    short: BTreeSet<u32>,
    limbo: VecDeque<Limbo>,
    /// Extents whose death is known after a crash too, that are being read still: first block and blocks.
    read_dead: BTreeMap<u32, u32>,
    /// Log segments without a live record, that wait for a checkpoint or a flush.
    empty: BTreeSet<u32>,
    /// First blocks of what is being read, and how often.
    pins: BTreeMap<u32, u32>,
    /// Extents of uploads that are not committed yet: first block and blocks.
    pub held: BTreeMap<u32, u32>,
    /// Every entry below is durable.
    durable: u64,
    /// Entries below are never replayed.
    replay: u64,
    /// Segments that cleaning did not empty: something in them cannot be read. Tried again after a checkpoint.
    pub stuck: BTreeSet<u32>,
    /// Data segments that are being emptied: no extent is put there.
    evacuating: BTreeSet<u32>,
    data_segments: u64,
    data_taken_blocks: u64,
    /// Segments that are lent, and those of the checkpoint under way.
    lent: usize,
    checkpoint_segments: usize,
    /// False while the index is being read: what is alive is counted when all of it is known.
    pub counts: bool,
}

impl Space {
    pub fn new(segment_bytes: u32, segments: u32) -> Self {
        let mut space = Self {
            segment_blocks: segment_bytes / BLOCK_BYTES as u32,
            segments: vec![Segment::new(Use::Root)],
            free: Free::default(),
            partly: BTreeSet::new(),
            open_data: None,
            short: BTreeSet::new(),
            limbo: VecDeque::new(),
            read_dead: BTreeMap::new(),
            empty: BTreeSet::new(),
            pins: BTreeMap::new(),
            held: BTreeMap::new(),
            durable: 0,
            replay: 0,
            stuck: BTreeSet::new(),
            evacuating: BTreeSet::new(),
            data_segments: 0,
            data_taken_blocks: 0,
            lent: 0,
            checkpoint_segments: 0,
            counts: false,
        };
        space.grow(segments);
        space
    }

    /// There are so many segments from now on: those that are new are free.
    pub fn grow(&mut self, segments: u32) {
        self.free.extend(self.segments.len() as u32..segments);
        self.segments.resize_with(segments as usize, || Segment::new(Use::Free));
    }

    fn segment_bytes(&self) -> u64 {
        u64::from(self.segment_blocks) * BLOCK_BYTES_U64
    }

    /// Where a segment begins on the device, in bytes.
    pub fn place(&self, segment: u32) -> u64 {
        u64::from(segment) * self.segment_bytes()
    }

    pub fn segment_of_place(&self, place: u64) -> u32 {
        (place / self.segment_bytes()) as u32
    }

    pub fn segment_of_block(&self, block: u32) -> u32 {
        block / self.segment_blocks
    }

    /// Free segments that can be written, with what is only away: lent, or held by a checkpoint under way, which gives back as
    /// many as it takes.
    pub fn free_at_rest(&self) -> usize {
        // What is lent does not count where only what the device has given does.
        let lent = if self.free.device_is_full { 0 } else { self.lent };
        self.free.len() + self.checkpoint_segments + lent
    }

    /// No checkpoint is under way any more.
    pub fn end_checkpoint(&mut self) {
        self.checkpoint_segments = 0;
    }

    /// The device had no room for what was to go to `block`: the next extent goes elsewhere.
    pub fn note_short(&mut self, block: u32) {
        let segment = self.segment_of_block(block);
        let taken = self.segments[segment as usize].taken_blocks;
        self.partly.remove(&(self.segment_blocks - taken, segment));
        self.short.insert(segment);
        self.close_data(segment);
    }

    /// The device has given all that the reserve wants: it may have room for these, too.
    pub fn reopen_short(&mut self) {
        for segment in std::mem::take(&mut self.short) {
            self.note_room(segment);
        }
    }

    /// Takes a free segment that the device is told or asked about; it comes back by [`Space::give_asked`].
    pub fn lend(&mut self, segment: u32) {
        self.mark(segment, Use::Lent);
    }

    /// What the device is to be asked next, its segment lent; see [`Free::query`].
    pub fn take_to_ask(&mut self, waits: bool) -> Option<Query> {
        let query = self.free.query(waits)?;
        self.lend(query.segment());
        Some(query)
    }

    /// A segment comes back that the device, as is known now, has room for all of, or nothing of.
    pub fn give_asked(&mut self, segment: u32, is_whole: bool) {
        self.mark(segment, Use::Free);
        self.free.add_seen(segment, is_whole);
    }

    /// Takes a free segment for the log or a checkpoint, if more than `floor` are free.
    pub fn take(&mut self, usage: Use, floor: usize) -> Option<u32> {
        if self.free.len() <= floor {
            return None;
        }
        let segment = self.free.choose(usage)?;
        self.mark(segment, usage);
        self.checkpoint_segments += usize::from(usage == Use::Index);
        Some(segment)
    }

    /// Marks a free segment as found in use when the store was opened, or as taken.
    pub fn mark(&mut self, segment: u32, usage: Use) {
        self.free.remove(segment);
        let known = &mut self.segments[segment as usize];
        self.data_segments -= u64::from(known.usage == Use::Data);
        self.data_taken_blocks -= u64::from(known.taken_blocks);
        self.data_segments += u64::from(usage == Use::Data);
        self.lent -= usize::from(known.usage == Use::Lent);
        self.lent += usize::from(usage == Use::Lent);
        known.usage = usage;
        known.live_bytes = 0;
        known.killed_sequence = 0;
        known.last_sequence = if usage == Use::Log { OPEN } else { 0 };
        known.taken = (usage == Use::Data).then(|| Blocks::new(self.segment_blocks));
        known.taken_blocks = 0;
    }

    /// Gives a segment back at once.
    pub fn free(&mut self, segment: u32) {
        self.mark(segment, Use::Free);
        self.empty.remove(&segment);
        self.stuck.remove(&segment);
        self.evacuating.remove(&segment);
        self.short.remove(&segment);
        self.free.add(segment);
    }

    /// The log has gone on elsewhere: `last_sequence` is the newest entry of this segment.
    pub fn seal(&mut self, segment: u32, last_sequence: u64) {
        let known = &mut self.segments[segment as usize];
        known.last_sequence = last_sequence;
        if known.is_dead_log() {
            self.empty.insert(segment);
        }
    }

    pub fn add_record(&mut self, place: u64, bytes: u32) {
        let segment = self.segment_of_place(place);
        self.segments[segment as usize].live_bytes += bytes;
        self.empty.remove(&segment);
    }

    /// The index does not name this record any more; the entry `sequence` said so.
    pub fn kill_record(&mut self, place: u64, bytes: u32, sequence: u64) {
        let segment = self.segment_of_place(place);
        let known = &mut self.segments[segment as usize];
        known.live_bytes -= bytes;
        known.killed_sequence = known.killed_sequence.max(sequence);
        if known.is_dead_log() {
            self.empty.insert(segment);
        }
    }

    /// Takes an extent for up to `data_blocks`: its first block and how many data blocks it has. It is held until
    /// [`Space::keep`] or [`Space::release`].
    pub fn allocate(&mut self, data_blocks: u32, floor: usize) -> Option<(u32, u32)> {
        let all = (data_blocks + 1).min(self.segment_blocks);
        let least = all.min((self.segment_blocks / 4).min(LEAST_RUN_BLOCKS));
        let (segment, start, run) = self.find_room(least, floor).or_else(|| self.find_room(2, floor))?;
        let block = segment * self.segment_blocks + start;
        let blocks = run.min(all);
        self.set_taken(block, blocks, true);
        self.held.insert(block, blocks);
        Some((block, blocks - 1))
    }

    /// A run of at least `least` blocks: in the open data segment, then in a fresh one while there are many, then in
    /// those with most room.
    fn find_room(&mut self, least: u32, floor: usize) -> Option<(u32, u32, u32)> {
        if let Some(segment) = self.open_data {
            if let Some((start, run)) = self.find_run(segment, least) {
                return Some((segment, start, run));
            }
            self.close_data(segment);
        }
        let plenty = floor.max(self.segments.len() / 8);
        if self.free.len() <= plenty {
            let roomy = self.partly.iter().rev().take(PARTLY_TRIES).copied();
            let found =
                roomy.into_iter().find_map(|(room, segment)| Some((room, segment, self.find_run(segment, least)?)));
            if let Some((room, segment, (start, run))) = found {
                self.partly.remove(&(room, segment));
                self.open_data = Some(segment);
                return Some((segment, start, run));
            }
        }
        let segment = self.take(Use::Data, floor)?;
        self.open_data = Some(segment);
        Some((segment, 0, self.segment_blocks))
    }

    /// Enters a data segment where it belongs by what is taken in it.
    fn note_room(&mut self, segment: u32) {
        let taken = self.segments[segment as usize].taken_blocks;
        if taken == 0 {
            self.free(segment);
        } else if taken < self.segment_blocks && self.takes_data(segment) {
            self.partly.insert((self.segment_blocks - taken, segment));
        }
    }

    /// False where no extent goes for now.
    fn takes_data(&self, segment: u32) -> bool {
        !self.evacuating.contains(&segment) && !self.short.contains(&segment)
    }

    /// The next extent goes elsewhere.
    fn close_data(&mut self, segment: u32) {
        self.open_data = self.open_data.filter(|open| *open != segment);
        self.note_room(segment);
    }

    /// Puts no more extents into these data segments.
    pub fn begin_evacuation(&mut self, segments: &BTreeSet<u32>) {
        for segment in segments {
            self.evacuating.insert(*segment);
            let taken = self.segments[*segment as usize].taken_blocks;
            self.partly.remove(&(self.segment_blocks - taken, *segment));
            self.close_data(*segment);
        }
    }

    /// What is left in them stays.
    pub fn end_evacuation(&mut self) {
        for segment in std::mem::take(&mut self.evacuating) {
            self.note_room(segment);
        }
    }

    /// Blocks that could be taken: in free segments and in those of data.
    pub fn room_blocks(&self) -> u64 {
        (self.free.len() as u64 + self.data_segments) * u64::from(self.segment_blocks) - self.data_taken_blocks
    }

    /// The first run of free blocks that has `least` of them.
    fn find_run(&self, segment: u32, least: u32) -> Option<(u32, u32)> {
        let known = &self.segments[segment as usize];
        let taken = known.taken.as_ref()?;
        if self.segment_blocks - known.taken_blocks < least {
            return None;
        }
        let mut start = 0;
        for at in 0..=self.segment_blocks {
            if at == self.segment_blocks || taken.has(at) {
                if at - start >= least {
                    return Some((start, at - start));
                }
                start = at + 1;
            }
        }
        None
    }

    /// Marks blocks of one data segment; false when one of them was so already.
    pub fn set_taken(&mut self, block: u32, blocks: u32, to: bool) -> bool {
        let segment = self.segment_of_block(block);
        let known = &mut self.segments[segment as usize];
        let Some(taken) = &mut known.taken else { return false };
        let changed = taken.set(block % self.segment_blocks, blocks, to);
        known.taken_blocks = if to { known.taken_blocks + changed } else { known.taken_blocks - changed };
        let all = &mut self.data_taken_blocks;
        *all = if to { *all + u64::from(changed) } else { *all - u64::from(changed) };
        changed == blocks
    }

    /// A record that was never written is not there after all.
    pub fn unwrite_record(&mut self, place: u64, bytes: u32) {
        let segment = self.segment_of_place(place);
        self.segments[segment as usize].live_bytes -= bytes;
    }

    /// What the entry `sequence` or a later one let go is alive after all.
    pub fn forget_deaths(&mut self, sequence: u64) {
        self.limbo.retain(|dead| dead.sequence < sequence);
    }

    /// No record names this extent, nor did one that counts: it is free as soon as nobody reads it.
    pub fn disown(&mut self, block: u32, blocks: u32) {
        self.limbo.push_front(Limbo { sequence: 0, block, blocks });
    }

    /// The log goes on in these after all.
    pub fn unseal(&mut self, segments: [u32; 2]) {
        for segment in segments {
            let known = &mut self.segments[segment as usize];
            assert!(known.usage == Use::Log, "segment {segment} is the log's, which goes back into it");
            known.last_sequence = OPEN;
            self.empty.remove(&segment);
        }
    }

    /// An upload's extent is named by a record now.
    pub fn keep(&mut self, block: u32) {
        self.held.remove(&block);
    }

    /// An upload's extent that no record names is free again.
    pub fn release(&mut self, block: u32) {
        if let Some(blocks) = self.held.remove(&block) {
            self.give_back(block, blocks);
        }
    }

    fn give_back(&mut self, block: u32, blocks: u32) {
        let segment = self.segment_of_block(block);
        let taken = self.segments[segment as usize].taken_blocks;
        self.partly.remove(&(self.segment_blocks - taken, segment));
        let whole = self.set_taken(block, blocks, false);
        assert!(whole, "blocks {block}+{blocks} are given back once");
        if self.open_data != Some(segment) {
            self.note_room(segment);
        }
    }

    /// The index does not name this extent any more; the entry `sequence` said so.
    pub fn kill_extent(&mut self, block: u32, blocks: u32, sequence: u64) {
        self.limbo.push_back(Limbo { sequence, block, blocks });
    }

    /// What begins at this block stays as it is until it is unpinned: an extent, or a segment of the log. Not all of an
    /// extent's segment: what is always being read there would keep the room beside it for ever.
    pub fn pin(&mut self, block: u32) {
        *self.pins.entry(block).or_default() += 1;
    }

    /// What died meanwhile is free when the last one has read it.
    pub fn unpin(&mut self, block: u32) {
        let Some(count) = self.pins.get_mut(&block) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.pins.remove(&block);
        let segment = self.segment_of_block(block);
        if let Some(blocks) = self.read_dead.remove(&block) {
            self.give_back(block, blocks);
        } else if self.empty.contains(&segment) && self.is_reusable(segment) {
            self.free(segment);
        }
    }

    /// The block that a segment begins at.
    pub fn first_block(&self, segment: u32) -> u32 {
        segment * self.segment_blocks
    }

    /// Entries below `durable` are durable, those below `proven` are known to be so after a crash too, and those below
    /// `replay` are never replayed: what died may be used again.
    pub fn settle(&mut self, durable: u64, proven: u64, replay: u64) {
        (self.durable, self.replay) = (self.durable.max(durable), self.replay.max(replay));
        while let Some(dead) = self.limbo.pop_front_if(|dead| dead.sequence < proven) {
            if self.pins.contains_key(&dead.block) {
                self.read_dead.insert(dead.block, dead.blocks);
            } else {
                self.give_back(dead.block, dead.blocks);
            }
        }
        let done: Vec<u32> = self.empty.iter().filter(|segment| self.is_reusable(**segment)).copied().collect();
        for segment in done {
            self.free(segment);
        }
    }

    /// True for a log segment without a live record that no replay wants, nor the log, nor a reader.
    fn is_reusable(&self, segment: u32) -> bool {
        let known = &self.segments[segment as usize];
        known.killed_sequence < self.durable
            && known.last_sequence < self.replay
            && known.last_sequence + 1 < self.durable
            && !self.pins.contains_key(&self.first_block(segment))
    }

    /// True when extents wait for their death to be known after a crash too.
    pub fn has_limbo(&self) -> bool {
        !self.limbo.is_empty()
    }

    /// Log segments that only a checkpoint keeps from being free.
    pub fn waiting_for_checkpoint(&self) -> usize {
        let waits = |segment: &&u32| self.segments[**segment as usize].last_sequence >= self.replay;
        self.empty.iter().filter(waits).count()
    }

    /// Counts what a version found in the index keeps alive; `Corrupt` where it cannot be.
    pub fn count(&mut self, known: &Known) -> Result<()> {
        let segment = self.segment_of_place(known.place);
        self.found(segment, Use::Log)?;
        self.segments[segment as usize].live_bytes += known.log_bytes();
        for extent in known.extents() {
            self.found(self.segment_of_block(extent.block), Use::Data)?;
            if !self.set_taken(extent.block, extent.all_blocks(), true) {
                return Err(Error::corrupt(format!(
                    "the extent at block {} belongs to another object too",
                    extent.block
                )));
            }
        }
        Ok(())
    }

    /// A segment that the index names is of this use.
    fn found(&mut self, segment: u32, usage: Use) -> Result<()> {
        let known = self.segments.get(segment as usize).map(|known| known.usage);
        match known {
            Some(Use::Free) => {
                self.mark(segment, usage);
                // Of the log: older than anything that is replayed.
                self.segments[segment as usize].last_sequence = 0;
                Ok(())
            }
            Some(known) if known == usage => Ok(()),
            _ => Err(Error::corrupt(format!("segment {segment} is used in two ways"))),
        }
    }

    /// After the index was read: data segments with room are open for use.
    pub fn index_rooms(&mut self) {
        self.counts = true;
        for segment in 0..self.segments.len() as u32 {
            match self.segments[segment as usize].usage {
                Use::Data => self.note_room(segment),
                Use::Log if self.segments[segment as usize].is_dead_log() => drop(self.empty.insert(segment)),
                _ => {}
            }
        }
    }
}

impl Space {
    /// Blocks that died and wait for a flush, or for a reader.
    pub fn in_limbo(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let read = self.read_dead.iter().map(|(block, blocks)| (*block, *blocks));
        self.limbo.iter().map(|dead| (dead.block, dead.blocks)).chain(read)
    }

    /// Data segments that have something in them which no cleaner can move: extents of uploads, and dead ones that wait.
    pub fn unmovable(&self) -> BTreeSet<u32> {
        let dead = self.in_limbo().map(|(block, _)| block);
        self.held.keys().copied().chain(dead).map(|block| self.segment_of_block(block)).collect()
    }
}

/// For checks.
impl Space {
    /// What is wrong with the lists of segments, as to these; nothing, that is.
    pub fn check(&self, segments: std::ops::Range<u32>) -> Vec<String> {
        let mut wrong = Vec::new();
        for number in segments {
            let segment = &self.segments[number as usize];
            if (segment.usage == Use::Free) != self.free.contains(number) {
                wrong.push(format!("segment {number} is {:?} and the list of free ones disagrees", segment.usage));
            }
            let room = self.segment_blocks - segment.taken_blocks;
            let is_partly = segment.usage == Use::Data && room > 0 && self.open_data != Some(number);
            if is_partly && self.takes_data(number) && !self.partly.contains(&(room, number)) {
                wrong.push(format!("segment {number} has room for data and is not found when room is looked for"));
            }
            if segment.is_dead_log() != self.empty.contains(&number) {
                wrong.push(format!("segment {number} of the log is without a live record, or is said to be"));
            }
        }
        wrong
    }
}
