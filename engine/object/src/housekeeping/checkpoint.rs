//! Checkpoints: the index written out beside the log, so that a restart reads little.
//!
//! ```text
//!  a segment:  0 magic u32   4 CRC u32 of the head (64 bytes, itself as zero)   8 store u64   16 checkpoint's number u64
//!             24 next segment u32 (0: the last one)   28 bytes used u32          32 zeroes to 64
//!             then leaves, none over a segment's end: bytes u32, CRC u32, the leaf
//! ```
//!
//! The index goes on changing while it is written: each leaf is as of some moment after the place in the log from which
//! a restart replays, and every later change is in the log behind that place. Replaying it over a newer leaf ends in the
//! same state. What must hold: the root that names a checkpoint is written when every change that it may hold is durable; and
//! what the one before it needed is kept until both roots name this one.

use crate::index::{Index, Leaf};
use crate::log::ahead::Ahead;
use crate::object::Row;
use crate::root::{CheckpointRef, Root};
use crate::space::segment::Use;
use crate::store::{Inner, passes};
use kura_block::{BLOCK_BYTES, Block, Buf, Error, Reader, Result, Writer, is_sealed};
use std::time::Duration;
use tokio::sync::MutexGuard;

const MAGIC: u32 = 0x496f_754b; // "KuoI"
const CRC_AT: usize = 4;
const HEAD_BYTES: usize = 64;
const LEAF_HEAD_BYTES: usize = 8;

/// Leaves that are gathered without a pause.
const STEP_LEAVES: usize = 64;
/// Bytes of one write: of a size that buffers are kept of.
const PIECE_BYTES: usize = 1 << 20;

/// Where the walk through a changing index stands.
struct Walk {
    leaves: u32,
    after: Option<Row>,
    /// A leaf that did not fit into the last segment, and its last row.
    held: Option<(Row, Leaf)>,
    is_done: bool,
}

struct Head {
    store: u64,
    number: u64,
    next_segment: u32,
    used_bytes: u32,
}

impl Head {
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_room(HEAD_BYTES);
        out.u32(MAGIC).u32(0).u64(self.store).u64(self.number).u32(self.next_segment).u32(self.used_bytes);
        out.pad_to(HEAD_BYTES);
        out.seal(CRC_AT);
        out.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let head = bytes.get(..HEAD_BYTES).unwrap_or_default();
        let mut reader = Reader::new(head);
        if reader.u32()? != MAGIC || !is_sealed(head, CRC_AT) {
            return Err(Error::corrupt("a segment of the index fails its checksum"));
        }
        reader.u32()?;
        Ok(Self { store: reader.u64()?, number: reader.u64()?, next_segment: reader.u32()?, used_bytes: reader.u32()? })
    }
}

impl Inner {
    /// Writes the index out and lets the log before it go. Users go on meanwhile, but not so far that a restart would
    /// take long.
    pub async fn checkpoint(&self) -> Result<()> {
        let result = self.write_checkpoint().await;
        {
            let state = &mut *self.state.borrow_mut();
            state.in_checkpoint = false;
            state.space.end_checkpoint();
        }
        self.progress.notify_waiters();
        result
    }

    async fn write_checkpoint(&self) -> Result<()> {
        self.begin_opening().await?;
        let (start, number, taken_back, replaced) = {
            let state = &mut *self.state.borrow_mut();
            let start = state.log.start();
            // Only from here on: while it cannot begin, users must be told why instead of waiting for it.
            state.in_checkpoint = true;
            let log = &mut state.log;
            let bytes = std::mem::replace(&mut log.bytes_since_checkpoint, 0);
            let revision = std::mem::replace(&mut log.checkpoint_revision, start.revision);
            (start, state.root.checkpoint.number + 1, log.taken_back, (bytes, revision))
        };
        let mut segments = Vec::new();
        let done = async {
            let leaves = self.write_leaves(number, &mut segments).await?;
            // What the leaves may hold must be durable before they count.
            let ticket = self.state.borrow().log.ticket(true);
            self.written(&ticket).await?;
            if self.state.borrow().log.taken_back != taken_back {
                return Err(Error::retry("what a checkpoint may hold was taken back meanwhile"));
            }
            self.flush_log().await?;
            let checkpoint = CheckpointRef { number, first_segment: segments.first().copied().unwrap_or(0), leaves };
            self.write_root(|root| Root { checkpoint, start, ..root }).await
        };
        let done = done.await;
        let state = &mut *self.state.borrow_mut();
        // It may count although its root's second copy was refused.
        if state.root.checkpoint.number != number {
            if done.as_ref().is_err_and(passes) {
                for segment in segments {
                    state.space.free(segment);
                }
                state.log.bytes_since_checkpoint += replaced.0;
                state.log.checkpoint_revision = replaced.1;
            }
            return done;
        }
        let old = std::mem::replace(&mut state.index_segments, segments);
        state.old_index_segments.extend(old);
        done?;
        self.count(|counters| counters.checkpoints += 1);
        // What could not be read may be by now.
        state.space.stuck.clear();
        state.note_both_roots();
        Ok(())
    }

    /// Writes the root anew, in both places, as `change` says: one at a time. An error says that nothing may be used for something
    /// else yet; where only the second copy was refused, the root counts all the same.
    pub async fn write_root(&self, change: impl FnOnce(Root) -> Root) -> Result<()> {
        let turn = self.rooting.lock().await;
        self.write_root_in(&turn, change).await
    }

    /// The same in a turn that has begun.
    pub async fn write_root_in(&self, _turn: &MutexGuard<'_, ()>, change: impl FnOnce(Root) -> Root) -> Result<()> {
        let (now, durable_sequence) = {
            let state = self.state.borrow();
            (state.root, state.log.durable)
        };
        let root = Root { generation: now.generation + 1, durable_sequence, ..change(now) };
        root.write(&*self.device).await?;
        self.state.borrow_mut().root = root;
        let copy = Root { generation: root.generation + 1, ..root };
        copy.write(&*self.device).await?;
        let state = &mut *self.state.borrow_mut();
        state.root = copy;
        state.note_both_roots();
        Ok(())
    }

    /// Writes the root once more where its second copy was refused; where it is again, the next round tries.
    pub async fn complete_root(&self) -> Result<()> {
        if !self.state.borrow().root_is_alone() {
            return Ok(());
        }
        match self.write_root(|root| root).await {
            Err(error) if passes(&error) => Ok(()),
            written => written,
        }
    }

    /// Writes all leaves into fresh segments: how many they are.
    async fn write_leaves(&self, number: u64, segments: &mut Vec<u32>) -> Result<u32> {
        let mut walk = Walk { leaves: 0, after: None, held: None, is_done: false };
        let mut out = Vec::with_capacity(self.segment_bytes as usize);
        let mut segment = self.take_segment(segments)?;
        loop {
            out.clear();
            out.resize(HEAD_BYTES, 0);
            loop {
                self.gather(&mut walk, &mut out)?;
                if walk.is_done || walk.held.is_some() {
                    break;
                }
                // Users first: so many leaves take some hundred microseconds.
                self.runtime.sleep(Duration::ZERO).await;
            }
            let next = if walk.is_done { None } else { Some(self.take_segment(segments)?) };
            let store = self.state.borrow().log.store;
            let head = Head { store, number, next_segment: next.unwrap_or(0), used_bytes: out.len() as u32 };
            out[..HEAD_BYTES].copy_from_slice(&head.encode());
            out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
            let mut place = self.state.borrow().space.place(segment);
            for piece in out.chunks(PIECE_BYTES) {
                let written = self.device.write(place, Buf::copy_of(piece).into(), false).await;
                written.inspect_err(|error| self.note_full(error))?;
                place += piece.len() as u64;
            }
            self.count(|counters| counters.checkpoint_bytes += out.len() as u64);
            match next {
                Some(next) => segment = next,
                None => return Ok(walk.leaves),
            }
        }
    }

    /// Adds some leaves to a segment, until it is full or they are all taken.
    fn gather(&self, walk: &mut Walk, out: &mut Vec<u8>) -> Result<()> {
        let state = self.state.borrow();
        for _ in 0..STEP_LEAVES {
            let held = walk.held.take();
            let next = if held.is_some() { held } else { state.index.leaf_after(walk.after.as_ref())? };
            let Some((last, leaf)) = next else {
                walk.is_done = true;
                return Ok(());
            };
            let bytes = leaf.bytes();
            if out.len() + LEAF_HEAD_BYTES + bytes.len() > self.segment_bytes as usize {
                walk.held = Some((last, leaf));
                return Ok(());
            }
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(&crc32c::crc32c(bytes).to_le_bytes());
            out.extend_from_slice(bytes);
            walk.leaves += 1;
            walk.after = Some(last);
        }
        Ok(())
    }

    fn take_segment(&self, segments: &mut Vec<u32>) -> Result<u32> {
        let taken = self.state.borrow_mut().space.take(Use::Index, 0);
        let segment = taken.ok_or_else(|| Error::full("the object store has no room for a checkpoint of its index"))?;
        segments.push(segment);
        Ok(segment)
    }
}

/// Reads the index as last checkpointed, and the segments it lies in.
pub(crate) async fn load(device: &dyn Block, root: &Root) -> Result<(Index, Vec<u32>)> {
    let mut index = Index::new();
    let segments = read(device, root, |leaf| index.push_leaf(leaf)).await?;
    Ok((index, segments))
}

/// Reads what the last checkpoint has, held against its checksums, leaf by leaf: the segments it lies in.
pub(crate) async fn read(
    device: &dyn Block,
    root: &Root,
    mut take: impl FnMut(Leaf) -> Result<()>,
) -> Result<Vec<u32>> {
    let mut segments = Vec::new();
    let mut leaves = 0;
    let segment_bytes = root.segment_bytes as usize;
    let is_link = |next: &u32| (1..root.segments).contains(next);
    let first = root.checkpoint.first_segment;
    let next_of = |block: &[u8]| Head::decode(block).ok().map(|head| head.next_segment).filter(is_link);
    let mut chain = Ahead::new(device, root.segment_bytes, Some(first).filter(is_link).into_iter().collect(), next_of);
    let mut next = first;
    while next != 0 {
        if !is_link(&next) || segments.len() > root.segments as usize {
            return Err(Error::corrupt("the chain of the index's segments leaves the device"));
        }
        segments.push(next);
        let bytes = chain.next(next).await?;
        let head = Head::decode(&bytes)?;
        let used = head.used_bytes as usize;
        if head.store != root.store() || head.number != root.checkpoint.number || used > segment_bytes {
            return Err(Error::corrupt(format!("segment {next} holds another checkpoint than the root says")));
        }
        let mut reader = Reader::new(&bytes[HEAD_BYTES.min(used)..used]);
        while !reader.is_done() {
            let (len, crc) = (reader.u32()?, reader.u32()?);
            let leaf = reader.bytes(len as usize)?;
            if crc32c::crc32c(leaf) != crc {
                return Err(Error::corrupt(format!("a leaf of the index in segment {next} fails its checksum")));
            }
            take(Leaf::from_bytes(leaf))?;
            leaves += 1;
        }
        next = head.next_segment;
    }
    if leaves != root.checkpoint.leaves {
        return Err(Error::corrupt("the index's checkpoint has another number of leaves than the root says"));
    }
    Ok(segments)
}
