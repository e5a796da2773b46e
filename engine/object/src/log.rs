//! The log's end: groups being gathered, and where each record will lie. No I/O here.

use crate::entry::{HEAD_BYTES, Head};
use crate::root::Start;
use crate::space::{Space, Use};
use kura_block::{BLOCK_BYTES, BufMut, Bufs, Error, Result};
use std::collections::{BTreeMap, VecDeque};

/// An entry is closed at this many bytes, so that one wait does not get too long.
const GROUP_BYTES: usize = 1 << 20;

/// Batches gathered for one entry. Its place is known from its beginning, so that the index can name its records.
pub(crate) struct Group {
    pub sequence: u64,
    /// Where it lies on the device, in bytes.
    pub place: u64,
    buf: BufMut,
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
    queue: VecDeque<Group>,
    open: bool,
    /// What is on its way to the device: first byte and end.
    in_flight: Option<(u64, u64)>,
    segment: u32,
    /// Where the next group begins in the segment.
    offset: usize,
    next_segment: u32,
    next_sequence: u64,
    pub next_revision: u64,
    /// Every entry below is written.
    pub written: u64,
    /// Every entry below is durable.
    pub durable: u64,
    /// A replay needs no more than heads to know that entries below were durable: one that says so is durable, or the
    /// root says so.
    pub proven: u64,
    /// What the head of the entry written last says was durable.
    last_proof: u64,
    /// Names whose last change is to be durable before it is seen, and the entry it is in.
    pending: BTreeMap<Vec<u8>, u64>,
    /// Bytes of entries since the last checkpoint began.
    pub bytes_since_checkpoint: u64,
    /// The revision at which the last checkpoint began.
    pub checkpoint_revision: u64,
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
            segment: start.segment,
            offset: start.offset as usize,
            next_segment: start.next_segment,
            next_sequence: start.sequence,
            next_revision: start.revision,
            written: start.sequence,
            durable: start.sequence,
            proven: start.sequence,
            last_proof: start.sequence,
            pending: BTreeMap::new(),
            bytes_since_checkpoint: 0,
            checkpoint_revision: start.revision,
        }
    }

    /// What one batch may take in the log, in bytes.
    pub fn batch_limit_bytes(&self) -> usize {
        self.segment_bytes - HEAD_BYTES
    }

    /// Makes room for a batch of `bytes` in one group; `Full` when that wants a segment and `floor` or fewer are free.
    pub fn reserve(&mut self, space: &mut Space, bytes: usize, floor: usize) -> Result<()> {
        if self.open && self.queue.back().is_some_and(|group| group.used_bytes + bytes <= group.buf.len()) {
            return Ok(());
        }
        self.close_group();
        let needed = HEAD_BYTES + bytes;
        if needed > self.segment_bytes {
            return Err(Error::invalid(format!(
                "a batch takes at most {} bytes in the log, not {bytes}: make it smaller",
                self.batch_limit_bytes()
            )));
        }
        if self.offset + needed > self.segment_bytes {
            let fresh = space.take(Use::Log, floor).ok_or_else(full)?;
            space.seal(self.segment, self.next_sequence - 1);
            self.segment = std::mem::replace(&mut self.next_segment, fresh);
            self.offset = 0;
        }
        let room = (self.segment_bytes - self.offset).min(GROUP_BYTES.max(needed));
        self.queue.push_back(Group {
            sequence: self.next_sequence,
            place: space.place(self.segment) + self.offset as u64,
            buf: BufMut::room(room),
            used_bytes: HEAD_BYTES,
            records: 0,
            first_revision: self.next_revision,
            next_segment: self.next_segment,
            durable: false,
            names_extents: false,
        });
        self.next_sequence += 1;
        self.open = true;
        Ok(())
    }

    /// Appends a record to the group that [`Log::reserve`] made room in: its place on the device.
    pub fn append(&mut self, record: &[u8], inline: &Bufs) -> u64 {
        let Some(group) = self.queue.back_mut() else { return 0 };
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
    pub fn open_group(&mut self) -> Option<&mut Group> {
        if self.open { self.queue.back_mut() } else { None }
    }

    /// The sequence number of the group that was appended to last.
    pub fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// No more is added to the last group: the next one's place is known.
    fn close_group(&mut self) {
        if std::mem::take(&mut self.open)
            && let Some(group) = self.queue.back()
        {
            self.offset += group.padded_bytes();
            self.bytes_since_checkpoint += group.padded_bytes() as u64;
        }
    }

    /// Where a replay begins that is to see everything appended from now on.
    pub fn start(&mut self) -> Start {
        self.close_group();
        Start {
            sequence: self.next_sequence,
            revision: self.next_revision,
            segment: self.segment,
            offset: self.offset as u32,
            next_segment: self.next_segment,
        }
    }

    /// The group to write next; it counts as in flight until [`Log::is_written`].
    pub fn take(&mut self) -> Option<Group> {
        if self.queue.len() == 1 {
            self.close_group();
        }
        let group = self.queue.pop_front()?;
        self.in_flight = Some((group.place, group.place + group.used_bytes as u64));
        Some(group)
    }

    /// The group taken last is written, and says that entries below `proof` are durable.
    pub fn note_written(&mut self, proof: u64) {
        self.written += 1;
        self.last_proof = proof;
        self.in_flight = None;
    }

    /// True when something is written that is not durable yet.
    pub fn is_unflushed(&self) -> bool {
        self.written > self.durable
    }

    /// Every entry below `sequence` is durable.
    pub fn note_durable(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence);
        if sequence >= self.written {
            self.proven = self.proven.max(self.last_proof);
        }
        let durable = self.durable;
        self.pending.retain(|_, sequence| *sequence >= durable);
    }

    /// True when the record at `place` can be read from the device.
    pub fn is_written(&self, place: u64) -> bool {
        let in_flight = self.in_flight.is_some_and(|(start, end)| (start..end).contains(&place));
        !in_flight && !self.queue.iter().any(|group| group.covers(place))
    }

    /// Nobody is to see the last change of `name` before it is durable.
    pub fn hide(&mut self, name: &[u8]) {
        self.pending.insert(name.to_vec(), self.last_sequence());
    }

    /// True when the last change of `name` is not durable and has to be.
    pub fn is_pending(&self, name: &[u8]) -> bool {
        self.pending.contains_key(name)
    }

    /// True when any change waits to be durable.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Segments that the log is about to use: where it stands and where it goes on.
    pub fn segments(&self) -> [u32; 2] {
        [self.segment, self.next_segment]
    }
}

fn full() -> Error {
    Error::full("the object store is full: remove objects or give it a larger device")
}
