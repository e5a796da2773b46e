//! The log's tail, read back; what is alive, counted; and the beginning of a new opening.

use crate::known::{Extent, Known};
use crate::log::Log;
use crate::log::ahead::{Ahead, READS};
use crate::log::entry::{self, HEAD_BYTES, Head, Records};
use crate::log::record::Record;
use crate::object::{Attributes, PARTITION_BYTES, PartitionId, Row, name_of};
use crate::root::{Root, Start, newest_is_lost};
use crate::space::extent;
use crate::space::segment::Use;
use crate::store::{Inner, State};
use futures::{StreamExt, TryStreamExt, future, stream};
use kura_block::{BLOCK_BYTES, Block, Buf, Error, Kind, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Leaves whose rows are counted without a pause: some hundred microseconds.
const STEP_LEAVES: usize = 64;

/// An entry met in the log, and where.
struct Met {
    head: Head,
    segment: u32,
    offset: u32,
    records: Result<Records>,
}

/// Where a scan of the log stands.
struct Scan<'a> {
    root: Root,
    position: Start,
    /// Of the entry met last: those behind it are of this opening or a later one.
    opening: u64,
    /// The segment being read, and the one where the log may go on.
    held: VecDeque<(u32, Buf)>,
    chain: Ahead<'a>,
}

impl Met {
    fn behind(&self) -> Start {
        Start {
            sequence: self.head.sequence + 1,
            revision: self.head.first_revision + u64::from(self.head.records),
            segment: self.segment,
            offset: self.offset + self.head.entry_bytes,
            next_segment: self.head.next_segment,
        }
    }
}

impl<'a> Scan<'a> {
    fn new(device: &'a dyn Block, root: Root) -> Self {
        let Start { sequence, segment, offset, next_segment, .. } = root.start;
        // Where there is no room for an entry, the segment is not looked at.
        let known = [segment, next_segment].into_iter().skip(usize::from(!has_room(&root, offset)));
        let mut least = sequence;
        let next_of = move |block: &[u8]| {
            let head = Head::read(block)?;
            // What an earlier use of a segment left goes on elsewhere.
            let is_link = head.store == root.store() && head.sequence >= least;
            least = head.sequence.saturating_add(1);
            Some(head.next_segment).filter(|next| is_link && is_of_device(&root, *next))
        };
        let known = known.take_while(|known| is_of_device(&root, *known)).collect();
        let chain = Ahead::new(device, root.segment_bytes, known, next_of);
        Self { root, position: root.start, opening: 0, held: VecDeque::new(), chain }
    }

    /// The next entry. Two places can hold it: behind the last one, and the beginning of the next segment. Where a crash
    /// left one in both, the later opening's counts.
    async fn next(&mut self) -> Result<Option<Met>> {
        let Start { segment, offset, next_segment, .. } = self.position;
        let mut here = None;
        if has_room(&self.root, offset) {
            let bytes = self.segment(segment).await?;
            here = self.head_at(&bytes, offset).map(|head| (head, segment, offset));
        }
        let behind = self.segment(next_segment).await?;
        let there = self.head_at(&behind, 0).map(|head| (head, next_segment, 0));
        let Some((head, segment, offset)) = [here, there].into_iter().flatten().max_by_key(|(head, ..)| head.opening)
        else {
            return Ok(None);
        };
        let bytes = self.segment(segment).await?;
        let entry = &bytes[offset as usize..offset as usize + head.entry_bytes as usize];
        let met = Met { head, segment, offset, records: entry::records(&head, entry) };
        self.opening = head.opening;
        self.position = met.behind();
        Ok(Some(met))
    }

    async fn segment(&mut self, segment: u32) -> Result<Buf> {
        if let Some((_, bytes)) = self.held.iter().find(|(held, _)| *held == segment) {
            return Ok(bytes.clone());
        }
        if !is_of_device(&self.root, segment) {
            return Err(Error::corrupt(format!("the log goes on in segment {segment}, which is not the log's")));
        }
        let read = self.chain.next(segment).await;
        let bytes = read.map_err(|error| error.at(format_args!("the log in segment {segment}")))?;
        if self.held.len() == 2 {
            self.held.pop_front();
        }
        self.held.push_back((segment, bytes.clone()));
        Ok(bytes)
    }

    /// The head of the entry that is expected, if it is there.
    fn head_at(&self, bytes: &[u8], offset: u32) -> Option<Head> {
        let head = Head::read(&bytes[offset as usize..])?;
        let root = &self.root;
        let expected = head.store == root.store()
            && head.sequence == self.position.sequence
            && head.first_revision == self.position.revision
            && (self.opening..=root.opening).contains(&head.opening)
            && (head.sequence < root.opening_sequence || head.opening == root.opening);
        let end = u64::from(offset) + u64::from(head.entry_bytes);
        (expected && end <= u64::from(root.segment_bytes)).then_some(head)
    }

    /// An entry that says the one missing here was durable proves that the log is damaged, not finished; and one of an
    /// opening that the root does not know, that there was a newer root.
    async fn refuse_a_gap(&mut self, missing: u64) -> Result<()> {
        let Start { segment, next_segment, .. } = self.position;
        for segment in [segment, next_segment] {
            let bytes = self.segment(segment).await?;
            let heads = bytes.chunks(BLOCK_BYTES).filter_map(Head::read);
            let own: Vec<Head> = heads.filter(|head| head.store == self.root.store()).collect();
            if own.iter().any(|head| head.opening > self.root.opening) {
                return Err(newest_is_lost());
            }
            let mut later = own.iter().filter(|head| head.opening >= self.opening);
            if later.any(|head| head.sequence > missing && head.durable_sequence > missing) {
                return Err(damaged(missing));
            }
        }
        Ok(())
    }
}

/// True when another entry may begin at `offset` of a segment.
fn has_room(root: &Root, offset: u32) -> bool {
    offset as usize + HEAD_BYTES <= root.segment_bytes as usize
}

fn is_of_device(root: &Root, segment: u32) -> bool {
    (1..root.segments).contains(&segment)
}

fn damaged(sequence: u64) -> Error {
    Error::corrupt(format!(
        "the log is damaged in its middle (entry {sequence} was durable and cannot be read): restore the store from a copy"
    ))
}

/// Reads the log from where the root says up to the entry `end`, which were durable, as a start does: an error where that would
/// be refused.
pub(crate) async fn verify(device: &dyn Block, root: Root, end: u64) -> Result<()> {
    let mut scan = Scan::new(device, root);
    loop {
        let sequence = scan.position.sequence;
        if sequence >= end {
            return Ok(());
        }
        if scan.next().await?.is_none_or(|met| met.records.is_err()) {
            return Err(damaged(sequence));
        }
    }
}

impl Inner {
    /// Replays the log from where the root says, and counts what is alive.
    pub async fn replay(&self) -> Result<()> {
        let root = self.state.borrow().root;
        let mut scan = Scan::new(&*self.device, root);
        let mut segments = BTreeMap::new();
        let mut end = (root.start, 0);
        // An entry counts when a later one says that it was durable, or else when all that it brings is there.
        let mut waiting: VecDeque<Met> = VecDeque::new();
        // What an earlier opening accepted is durable: it may be written over by now where a later entry let it go.
        let mut durable = root.start.sequence.max(root.opening_sequence).max(root.durable_sequence);
        loop {
            let met = scan.next().await?;
            let is_end = met.is_none();
            durable = met.as_ref().map_or(durable, |met| durable.max(met.head.durable_sequence));
            waiting.extend(met);
            while let Some(met) = waiting.front() {
                let known_durable = met.head.sequence < durable;
                if !known_durable && !is_end {
                    break;
                }
                let whole = known_durable || self.is_whole(met).await?;
                let Some(met) = waiting.pop_front().filter(|_| whole) else { break };
                end = (met.behind(), met.head.opening);
                segments.insert(met.segment, met.head.sequence);
                self.count(|counters| {
                    counters.replayed_records += u64::from(met.head.records);
                    counters.replayed_bytes += u64::from(met.head.entry_bytes);
                });
                self.take_in(met)?;
            }
            if is_end {
                break;
            }
        }
        if end.0.sequence < durable {
            return Err(damaged(end.0.sequence));
        }
        (scan.position, scan.opening) = end;
        scan.refuse_a_gap(end.0.sequence).await?;
        {
            let state = &mut *self.state.borrow_mut();
            state.log = Log::new(root.store(), root.opening + 1, root.segment_bytes, end.0);
            state.log.checkpoint_revision = root.start.revision;
            state.log.bytes_since_checkpoint = self.counters.get().replayed_bytes;
            state.mark_segments(&segments);
        }
        let mut from = self.state.borrow_mut().count_some(None)?;
        while from.is_some() {
            // Others first, whose volumes are on this thread, too.
            self.runtime.sleep(Duration::ZERO).await;
            from = self.state.borrow_mut().count_some(from.as_ref())?;
        }
        let state = &mut *self.state.borrow_mut();
        state.space.index_rooms();
        state.log.begin(state.space.free.len());
        Ok(())
    }

    /// True when all of an entry and all that it brings is there; an error where the device does not tell, for it may have
    /// been acknowledged.
    async fn is_whole(&self, met: &Met) -> Result<bool> {
        let Ok(records) = &met.records else { return Ok(false) };
        if !records.inline_holds {
            return Ok(false);
        }
        let extents = self.state.borrow().brought(records)?;
        let holds = |extent: Extent| async move {
            let len = extent.blocks as usize * BLOCK_BYTES;
            match extent::read(&*self.device, extent, 0, len, &mut None).await {
                Ok(_) => Ok(true),
                // It is not what the entry says, or leaves the device.
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Invalid) => Ok(false),
                Err(error) => Err(error.at("an object that was put last")),
            }
        };
        stream::iter(extents).map(holds).buffer_unordered(READS).try_all(future::ready).await
    }

    /// Makes the index agree with an entry.
    fn take_in(&self, met: Met) -> Result<()> {
        let state = &mut *self.state.borrow_mut();
        let place = state.space.place(met.segment) + u64::from(met.offset);
        let records = met.records.map_err(|_| damaged(met.head.sequence))?;
        for (at, Record { row, set, .. }) in records.records {
            match set {
                None => {
                    state.index.edit(&row, None)?;
                }
                Some((known, _)) => {
                    let known = Known { place: place + u64::from(at), ..known };
                    state.enter(&row, &known)?;
                    // The checkpoint may have had one that was put later, which comes back from its own entry. Left there, it would
                    // be the one that the next put replaces, and this one would stay.
                    while known.is_unversioned()
                        && let Some((other, _)) = state.index.unversioned(&row.name, Some(&row))?
                    {
                        state.index.edit(&other, None)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Partitions and their attributes stay in memory. One whose record cannot be read is noted as such, and keeps no other from
    /// being read.
    pub async fn read_partitions(self: &Rc<Self>) -> Result<()> {
        let mut rows = Vec::new();
        let root = Row::newest(name_of(PartitionId::ROOT, &[]));
        self.state.borrow().index.scan(&root, |row, known| {
            let is_partition = row.partition() == PartitionId::ROOT;
            if is_partition {
                rows.push((row, known));
            }
            is_partition
        })?;
        let read = |(row, known): (Row, Known)| async move {
            let read = self.record_at(&row, known.clone()).await;
            (row, known, read)
        };
        let mut reads = stream::iter(rows).map(read).buffer_unordered(READS);
        while let Some((row, known, read)) = reads.next().await {
            let read = read.map_err(|error| error.at(format_args!("partition {}", crate::object::shown(row.key()))));
            let (attributes, unreadable) = match read {
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Device) => (Attributes::new(), Some(error)),
                read => (read?.attributes, None),
            };
            let state = &mut *self.state.borrow_mut();
            state.note_partition(&row, &known, &attributes);
            state.partitions.entry(known.version).and_modify(|partition| partition.unreadable = unreadable);
        }
        Ok(())
    }

    /// Makes it durable that entries that are not written yet are a new opening's: what a crash or a write that failed
    /// left behind the log's end never counts again. Nothing to do where somebody else has done so meanwhile.
    ///
    /// What must hold: no entry is written from the look at the log until the root is, or it would be of the opening before
    /// and not count. So one opening begins at a time, and only while the log waits for it.
    pub async fn begin_opening(&self) -> Result<()> {
        let has_begun = || !self.state.borrow().log.must_reopen;
        if has_begun() {
            return Ok(());
        }
        let turn = self.rooting.lock().await;
        if has_begun() {
            return Ok(());
        }
        // A replay takes what the root calls an earlier opening's for durable.
        self.flush_log().await?;
        let (opening, opening_sequence) = {
            let state = self.state.borrow();
            (state.root.opening + 1, state.log.written)
        };
        self.write_root_in(&turn, |root| Root { opening, opening_sequence, ..root }).await?;
        let state = &mut *self.state.borrow_mut();
        state.log.opening = opening;
        state.log.must_reopen = false;
        state.settle();
        Ok(())
    }
}

impl State {
    /// The extents that came with an entry, each once: those that it names and the versions that it changes do not.
    ///
    /// What must hold: all before the entry is replayed. Then what those versions name was durable, or was looked at with
    /// the entry that brought it, and nothing took its place since, as no later entry is known to be durable. What has
    /// rotted of it says nothing of this entry, which a read can tell as well.
    fn brought(&self, records: &Records) -> Result<BTreeSet<Extent>> {
        let (mut brought, mut stood) = (BTreeSet::new(), BTreeSet::new());
        for (_, Record { row, set, .. }) in &records.records {
            brought.extend(set.iter().flat_map(|(known, _)| &known.pieces).filter_map(|piece| piece.extent));
            stood.extend(self.index.get(row)?.iter().flat_map(Known::extents));
        }
        brought.retain(|extent| !stood.contains(extent));
        Ok(brought)
    }

    /// Marks what is in use whatever the index names. `log_segments` are those of the tail, with the last entry in each.
    fn mark_segments(&mut self, log_segments: &BTreeMap<u32, u64>) {
        let Self { space, log, index_segments, .. } = self;
        for segment in index_segments {
            space.mark(*segment, Use::Index);
        }
        for (segment, last_sequence) in log_segments {
            space.mark(*segment, Use::Log);
            space.segments[*segment as usize].last_sequence = *last_sequence;
        }
        for segment in log.segments() {
            space.mark(segment, Use::Log);
        }
    }

    /// Counts what is alive in every segment, from what some leaves of the index name: where the next ones begin.
    fn count_some(&mut self, from: Option<&Row>) -> Result<Option<Row>> {
        let Self { index, space, .. } = self;
        index.each(from, STEP_LEAVES, |name, known| {
            space
                .count(known)
                .map_err(|error| error.at(crate::object::shown(name.get(PARTITION_BYTES..).unwrap_or_default())))
        })
    }
}
