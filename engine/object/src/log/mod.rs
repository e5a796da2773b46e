//! The log's end: groups being gathered, and where each record will lie. No I/O here.

pub(crate) mod ahead;
pub(crate) mod entry;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod submit;
mod undo;

use crate::root::Start;
use crate::space::Space;
use crate::space::segment::Use;
use entry::{HEAD_BYTES, Head};
use kura_block::{BLOCK_BYTES, BufMut, Bufs, Error, Result};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use undo::Undo;

/// An entry is closed at this many bytes, so that one wait does not get too long.
const GROUP_BYTES: usize = 1 << 20;

/// What a row of the index, with the heads before it, may take more than its record.
const ROW_SPARE_BYTES: usize = 64;

/// Why a group was given up, if it was.
pub(crate) type Fate = Rc<OnceCell<Error>>;

/// Where the log stands: the segment, where in it, and the segment it goes on in.
#[derive(Clone, Copy)]
struct Place {
    segment: u32,
    offset: usize,
    next_segment: u32,
    /// So many segments were free when the log went on in this one.
    free: usize,
}

/// What is remembered of a group until it is written.
pub(crate) struct Memo {
    pub sequence: u64,
    first_revision: u64,
    /// Where the log stood before the group.
    began: Place,
    /// What its batches changed.
    pub undo: Vec<Vec<Undo>>,
    /// A client was told that it happened, though it is volatile.
    pub acknowledged: bool,
    pub fate: Fate,
}

/// Which entry a batch is in, and whether its client waits until that is durable.
pub(crate) struct Ticket {
    pub sequence: u64,
    pub durable: bool,
    pub fate: Fate,
}

/// Batches gathered for one entry. Its place is known from its beginning, so that the index can name its records.
pub(crate) struct Group {
    pub sequence: u64,
    /// Where it lies on the device, in bytes.
    pub place: u64,
    /// As large as what is in it wants: what is alive of an entry may keep all of it in memory for long.
    buf: BufMut,
    limit_bytes: usize,
    used_bytes: usize,
    records: u32,
    first_revision: u64,
    next_segment: u32,
    /// Somebody waits until it is durable.
    pub durable: bool,
    /// It names extents that were written and not flushed.
    pub names_extents: bool,
}

impl Group {
    fn padded_bytes(&self) -> usize {
        self.used_bytes.next_multiple_of(BLOCK_BYTES)
    }

    fn covers(&self, place: u64) -> bool {
        (self.place..self.place + self.used_bytes as u64).contains(&place)
    }

    /// Makes room in memory for `bytes` more, which the limit allows.
    fn make_room(&mut self, bytes: usize) {
        let needed = (self.used_bytes + bytes).next_multiple_of(BLOCK_BYTES);
        if needed > self.buf.len() {
            let room = needed.next_power_of_two().min(self.limit_bytes);
            let less = std::mem::replace(&mut self.buf, BufMut::room(room));
            self.buf[..self.used_bytes].copy_from_slice(&less[..self.used_bytes]);
        }
    }

    /// The entry as it goes to the device.
    pub fn encode(mut self, store: u64, opening: u64, durable_sequence: u64) -> Bufs {
        let entry_bytes = self.padded_bytes();
        let head = Head {
            store,
            opening,
            sequence: self.sequence,
            first_revision: self.first_revision,
            durable_sequence,
            entry_bytes: entry_bytes as u32,
            records: self.records,
            next_segment: self.next_segment,
            used_bytes: self.used_bytes as u32,
        };
        head.write(&mut self.buf);
        self.buf[self.used_bytes..entry_bytes].fill(0);
        self.buf.truncate(entry_bytes);
        self.buf.freeze().into()
    }
}

pub(crate) struct Log {
    pub store: u64,
    pub opening: u64,
    segment_bytes: usize,
    /// Groups to be written; the last one is open to more if `open`.
    queue: VecDeque<(Group, Memo)>,
    open: bool,
    /// What is on its way to the device: first byte and end.
    in_flight: Option<(u64, u64)>,
    /// What is on its way to the device, to be taken back if it does not arrive.
    writing: Option<Memo>,
    /// Where the next group begins.
    at: Place,
    next_sequence: u64,
    pub next_revision: u64,
    /// Every entry below is written.
    pub written: u64,
    /// Every entry below is durable.
    pub durable: u64,
    /// A replay needs no more than heads to know that entries below were durable: one that says so is durable, or the
    /// root says so.
    pub proven: u64,
    /// Entries that are written and not durable yet, and below which entry each one's head says that all is durable.
    proofs: VecDeque<(u64, u64)>,
    /// Names whose last change is to be durable before it is seen, and the entry it is in.
    pending: BTreeMap<Vec<u8>, u64>,
    /// Bytes of entries since the last checkpoint began.
    pub bytes_since_checkpoint: u64,
    /// The revision at which the last checkpoint began.
    pub checkpoint_revision: u64,
    /// How often entries were taken back.
    pub taken_back: u64,
    /// Nothing is written before the root says that a new opening begins: at a start, and after entries were taken back.
    pub must_reopen: bool,
    /// What was acknowledged in memory was taken back: the next flush says so.
    pub lost: Option<Error>,
}

impl Log {
    /// A log that goes on at `start`.
    pub fn new(store: u64, opening: u64, segment_bytes: u32, start: Start) -> Self {
        Self {
            store,
            opening,
            segment_bytes: segment_bytes as usize,
            queue: VecDeque::new(),
            open: false,
            in_flight: None,
            writing: None,
            at: Place {
                segment: start.segment,
                offset: start.offset as usize,
                next_segment: start.next_segment,
                free: 0,
            },
            next_sequence: start.sequence,
            next_revision: start.revision,
            written: start.sequence,
            durable: start.sequence,
            proven: start.sequence,
            proofs: VecDeque::new(),
            pending: BTreeMap::new(),
            bytes_since_checkpoint: 0,
            checkpoint_revision: start.revision,
            taken_back: 0,
            must_reopen: true,
            lost: None,
        }
    }

    /// It goes on, after a start, with so many segments free.
    pub fn begin(&mut self, free: usize) {
        self.at.free = free;
    }

    /// What one batch may take in the log, in bytes: less than a segment has room for, so that a row of the index, which has more
    /// numbers than its record, fits a segment, too.
    pub fn batch_limit_bytes(&self) -> usize {
        self.segment_bytes - HEAD_BYTES - ROW_SPARE_BYTES
    }

    /// Makes room for a batch of `bytes` in one group; `Full` when that wants a segment and `floor` or fewer are free.
    ///
    /// What must hold: nobody goes on in a segment that was taken below his own floor, before there is room again. Removals and
    /// the cleaner take those to make room; filled up with what others put, they are gone, and in the end nothing makes room
    /// any more.
    pub fn reserve(&mut self, space: &mut Space, bytes: usize, floor: usize) -> Result<()> {
        if self.at.free <= floor && space.free_at_rest() < floor {
            return Err(full());
        }
        if let Some(group) = self.open_group().map(|(group, _)| group)
            && group.used_bytes + bytes <= group.limit_bytes
        {
            group.make_room(bytes);
            return Ok(());
        }
        self.close_group();
        let needed = HEAD_BYTES + bytes;
        if bytes > self.batch_limit_bytes() {
            return Err(Error::invalid(format!(
                "a batch takes at most {} bytes in the log, not {bytes}: make it smaller",
                self.batch_limit_bytes()
            )));
        }
        let began = self.at;
        if self.at.offset + needed > self.segment_bytes {
            let free = space.free.len();
            let fresh = space.take(Use::Log, floor).ok_or_else(full)?;
            space.seal(self.at.segment, self.next_sequence - 1);
            self.at = Place { segment: self.at.next_segment, offset: 0, next_segment: fresh, free };
        }
        let limit_bytes =
            (self.segment_bytes - self.at.offset).min(GROUP_BYTES.max(needed.next_multiple_of(BLOCK_BYTES)));
        let memo = Memo {
            sequence: self.next_sequence,
            first_revision: self.next_revision,
            began,
            undo: Vec::new(),
            acknowledged: false,
            fate: Fate::default(),
        };
        let mut group = Group {
            sequence: self.next_sequence,
            place: space.place(self.at.segment) + self.at.offset as u64,
            buf: BufMut::room(BLOCK_BYTES),
            limit_bytes,
            used_bytes: HEAD_BYTES,
            records: 0,
            first_revision: self.next_revision,
            next_segment: self.at.next_segment,
            durable: false,
            names_extents: false,
        };
        group.make_room(bytes);
        self.queue.push_back((group, memo));
        self.next_sequence += 1;
        self.open = true;
        Ok(())
    }

    /// Appends a record to the group that [`Log::reserve`] made room in: its place on the device.
    pub fn append(&mut self, record: &[u8], inline: &Bufs) -> u64 {
        let Some((group, _)) = self.queue.back_mut() else { return 0 };
        let at = group.used_bytes;
        let inline_at = at + record.len();
        let end = inline_at + inline.len();
        group.buf[at..inline_at].copy_from_slice(record);
        inline.copy_to(&mut group.buf[inline_at..end]);
        group.used_bytes = end;
        group.records += 1;
        self.next_revision += 1;
        group.place + at as u64
    }

    /// The open group, to note what it holds.
    pub fn open_group(&mut self) -> Option<&mut (Group, Memo)> {
        if self.open { self.queue.back_mut() } else { None }
    }

    /// The sequence number of the group that was appended to last.
    pub fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// No more is added to the last group: the next one's place is known.
    fn close_group(&mut self) {
        if std::mem::take(&mut self.open)
            && let Some((group, _)) = self.queue.back()
        {
            self.at.offset += group.padded_bytes();
            self.bytes_since_checkpoint += group.padded_bytes() as u64;
        }
    }

    /// Where a replay begins that is to see everything appended from now on.
    pub fn start(&mut self) -> Start {
        self.close_group();
        Start {
            sequence: self.next_sequence,
            revision: self.next_revision,
            segment: self.at.segment,
            offset: self.at.offset as u32,
            next_segment: self.at.next_segment,
        }
    }

    /// A ticket of the group that was appended to last.
    pub fn ticket(&self, durable: bool) -> Ticket {
        self.ticket_at(self.last_sequence(), durable)
    }

    /// A ticket of an entry; one that is written is not given up any more.
    fn ticket_at(&self, sequence: u64, durable: bool) -> Ticket {
        let memos = self.queue.iter().rev().map(|(_, memo)| memo).chain(&self.writing);
        let mut own = memos.filter(|memo| memo.sequence == sequence);
        Ticket { sequence, durable, fate: own.next().map(|memo| Rc::clone(&memo.fate)).unwrap_or_default() }
    }

    /// Forgets every group that is not written: what they were, the oldest first, and the segments that the log took
    /// for them.
    pub fn take_back(&mut self) -> Option<(Vec<Memo>, BTreeSet<u32>)> {
        let memos = self.writing.take().into_iter().chain(self.queue.drain(..).map(|(_, memo)| memo));
        let memos: Vec<Memo> = memos.collect();
        let Memo { sequence, first_revision, began, .. } = *memos.first()?;
        let mut fresh: BTreeSet<u32> = memos.iter().map(|memo| memo.began.next_segment).collect();
        fresh.insert(self.at.next_segment);
        self.at = began;
        for segment in self.segments() {
            fresh.remove(&segment);
        }
        (self.open, self.in_flight) = (false, None);
        (self.next_sequence, self.next_revision) = (sequence, first_revision);
        // A checkpoint under way began behind what is taken back: it will not count.
        self.checkpoint_revision = self.checkpoint_revision.min(first_revision);
        self.taken_back += 1;
        // What such a name said before may not be durable either.
        for last in self.pending.values_mut() {
            *last = (*last).min(sequence - 1);
        }
        let durable = self.durable;
        self.pending.retain(|_, last| *last >= durable);
        Some((memos, fresh))
    }

    /// The group to write next; it counts as in flight until [`Log::note_written`].
    pub fn take(&mut self) -> Option<Group> {
        if self.queue.len() == 1 {
            self.close_group();
        }
        let (group, memo) = self.queue.pop_front()?;
        self.writing = Some(memo);
        self.in_flight = Some((group.place, group.place + group.used_bytes as u64));
        Some(group)
    }

    /// The group taken last is written, and says that entries below `proof` are durable.
    pub fn note_written(&mut self, proof: u64) {
        self.proofs.push_back((self.written, proof));
        self.written += 1;
        self.in_flight = None;
        self.writing = None;
    }

    /// True when a group waits to be written.
    pub fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Groups that wait to be written.
    pub fn backlog(&self) -> usize {
        self.queue.len()
    }

    /// True when something is written that is not durable yet.
    pub fn is_unflushed(&self) -> bool {
        self.written > self.durable
    }

    /// Every entry below `sequence` is durable.
    pub fn note_durable(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence);
        while let Some((_, proof)) = self.proofs.pop_front_if(|(written, _)| *written < sequence) {
            self.proven = self.proven.max(proof);
        }
        let durable = self.durable;
        self.pending.retain(|_, sequence| *sequence >= durable);
    }

    /// A ticket of the group that has the record at `place`; none where that can be read from the device.
    pub fn ticket_of(&self, place: u64) -> Option<Ticket> {
        let in_flight = self.in_flight.is_some_and(|(start, end)| (start..end).contains(&place));
        let waiting = self.queue.iter().find(|(group, _)| group.covers(place)).map(|(_, memo)| memo);
        let memo = if in_flight { self.writing.as_ref() } else { waiting }?;
        Some(Ticket { sequence: memo.sequence, durable: false, fate: Rc::clone(&memo.fate) })
    }

    /// Nobody is to see the last change of `name` before it is durable.
    pub fn hide(&mut self, name: &[u8]) {
        self.pending.insert(name.to_vec(), self.last_sequence());
    }

    /// A ticket of the last change of `name`, where that is to be durable before it is seen.
    pub fn pending(&self, name: &[u8]) -> Option<Ticket> {
        self.pending.get(name).map(|sequence| self.ticket_at(*sequence, true))
    }

    /// A ticket of the last change of all that is to be durable before it is seen.
    pub fn last_pending(&self) -> Option<Ticket> {
        self.pending.values().max().map(|sequence| self.ticket_at(*sequence, true))
    }

    /// What is left of the segment that the log stands in, in bytes.
    pub fn rest_bytes(&self) -> usize {
        let in_group = if self.open { self.queue.back().map_or(0, |(group, _)| group.padded_bytes()) } else { 0 };
        self.segment_bytes - self.at.offset - in_group
    }

    /// Segments that the log is about to use: where it stands and where it goes on.
    pub fn segments(&self) -> [u32; 2] {
        [self.at.segment, self.at.next_segment]
    }
}

fn full() -> Error {
    Error::full("the object store is full: remove objects or give it a larger device")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_takes_the_memory_that_it_wants() {
        let mut space = Space::new(4 << 20, 16);
        let start = Start { sequence: 1, revision: 1, segment: 1, offset: 0, next_segment: 2 };
        let mut log = Log::new(7, 1, 4 << 20, start);
        let taken = |log: &Log| log.queue.back().map(|(group, _)| group.buf.len());
        let mut all = Vec::new();
        for (len, wanted) in [(100, 4096), (5000, 8192), (5000, 16_384), (100_000, 131_072)] {
            log.reserve(&mut space, len, 0).unwrap();
            let bytes = vec![len as u8; len];
            log.append(&bytes, &Bufs::new());
            all.extend(bytes);
            assert_eq!(taken(&log), Some(wanted), "{len} bytes more");
        }
        // What is larger than a group comes to be is one of its own.
        log.reserve(&mut space, 2 << 20, 0).unwrap();
        assert_eq!((log.queue.len(), taken(&log)), (2, Some((2 << 20) + BLOCK_BYTES)));
        let entry = log.take().map(|group| group.encode(7, 1, 1).contiguous());
        assert_eq!(entry.map(|bytes| bytes[HEAD_BYTES..HEAD_BYTES + all.len()] == all), Some(true));
    }
}
