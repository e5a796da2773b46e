//! Making a store on a device, and opening it: the checkpoint, the log's tail, and what is alive.

use crate::housekeeping::checkpoint;
use crate::log::Log;
use crate::policy;
use crate::recent::Recent;
use crate::root::{CheckpointRef, Root, Start};
use crate::space::Space;
use crate::store::{Inner, Options, State, Store, passes};
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Block, Buf, Error, Kind, Result, Runtime};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::{Mutex, Notify};

/// How a store is laid out on its device.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The store's name among all: random bytes.
    pub id: [u8; 16],
    /// Bytes of a segment, a power of two of 64 KiB to 4 MiB; chosen by the device's size unless given.
    pub segment_bytes: Option<u32>,
}

/// Fewer segments than this cannot be a store.
pub(crate) const SEGMENTS_LEAST: u32 = 16;
/// More cannot be kept account of in little memory: as many as blocks of 32 bits make of 4 MiB, 16 TiB.
pub(crate) const SEGMENTS_MOST: u64 = 1 << 22;

/// True for the bytes that a segment may have.
pub(crate) fn is_segment_bytes(bytes: u32) -> bool {
    bytes.is_power_of_two() && (64 << 10..=4 << 20).contains(&bytes)
}

/// The segments of a device of this size. Blocks have numbers of 32 bits.
fn segments_of(size_bytes: u64, segment_bytes: u32) -> u32 {
    let size_bytes = size_bytes.min(u64::from(u32::MAX) * BLOCK_BYTES_U64);
    (size_bytes / u64::from(segment_bytes)).min(SEGMENTS_MOST) as u32
}

impl Store {
    /// Makes an empty store of all of `device`, in place of what was there.
    pub async fn format(device: &dyn Block, format: Format) -> Result<()> {
        let geometry = device.geometry();
        let segment_bytes = format.segment_bytes.unwrap_or_else(|| policy::segment_bytes(geometry.size_bytes));
        if !is_segment_bytes(segment_bytes) {
            return Err(Error::invalid(format!(
                "a segment has a power of two of 64 KiB to 4 MiB, not {segment_bytes}"
            )));
        }
        if !(BLOCK_BYTES as u32).is_multiple_of(geometry.align_bytes) {
            return Err(Error::invalid(format!(
                "an object store needs a device of sectors of at most {BLOCK_BYTES} bytes, not {}",
                geometry.align_bytes
            )));
        }
        let segments = segments_of(geometry.size_bytes, segment_bytes);
        if segments < SEGMENTS_LEAST {
            return Err(Error::invalid(format!(
                "an object store needs {} bytes, the device has {}",
                u64::from(SEGMENTS_LEAST) * u64::from(segment_bytes),
                geometry.size_bytes
            )));
        }
        let root = Root {
            id: format.id,
            generation: 1,
            segment_bytes,
            segments,
            opening: 0,
            opening_sequence: 1,
            checkpoint: CheckpointRef { number: 0, first_segment: 0, leaves: 0 },
            start: Start { sequence: 1, revision: 1, segment: 1, offset: 0, next_segment: 2 },
            inline_limit_bytes: policy::inline_limit_bytes(segment_bytes),
            durable_sequence: 1,
        };
        // A root of an earlier store must not count.
        device.write(0, Buf::copy_of(&[0; 2 * BLOCK_BYTES]).into(), true).await?;
        root.write(device).await
    }

    /// Opens the store on `device`: reads the index as last checkpointed, replays the log behind it, and begins a new
    /// opening, unless it is to be read only, or on a device without room once there is some. `Missing` when there is no
    /// store; `Corrupt` when what must be there cannot be read.
    pub async fn open(device: Rc<dyn Block>, runtime: Rc<dyn Runtime>, options: Options) -> Result<Self> {
        let root = Root::read(&*device).await?;
        let root = root.ok_or_else(|| Error::missing("no object store on this device: format it first"))?;
        if u64::from(root.segments) * u64::from(root.segment_bytes) > device.geometry().size_bytes {
            return Err(Error::corrupt("the device is smaller than the object store on it"));
        }
        if !options.read_only {
            // What a stopped process wrote may still be volatile, and is about to count.
            device.flush().await?;
        }
        let (index, index_segments) = checkpoint::load(&*device, &root).await?;
        let recent = Rc::new(Recent::new(options.recent_bytes));
        let state = State {
            index,
            space: Space::new(root.segment_bytes, root.segments),
            log: Log::new(root.store(), root.opening + 1, root.segment_bytes, root.start),
            root,
            partitions: BTreeMap::new(),
            recent: Rc::clone(&recent),
            index_segments,
            old_index_segments: Vec::new(),
            replay_from: 0,
            in_checkpoint: false,
            failed: None,
            closing: false,
            read_only: options.read_only,
        };
        let inner = Rc::new(Inner {
            device,
            runtime: Rc::clone(&runtime),
            options,
            segment_bytes: root.segment_bytes,
            state: RefCell::new(state),
            recent,
            wake: Notify::new(),
            progress: Notify::new(),
            housekeeping: Notify::new(),
            agenda: RefCell::default(),
            used_blocks: Cell::new(0),
            counters: Cell::default(),
            discarding: Cell::new(false),
            rooting: Mutex::default(),
            flushes: Cell::new(0),
            flushing_to: Cell::new(0),
            tasks: Cell::new(0),
        });
        inner.replay().await?;
        inner.read_partitions().await?;
        if options.read_only {
            return Ok(Self { inner });
        }
        inner.find_reserve().await?;
        match inner.begin_opening().await {
            // What is stored is read all the same; the opening begins when something is to be written and there is room.
            Err(error) if error.kind() == Kind::Full => {
                tracing::warn!(%error, "the object store's device has no room: nothing is written before there is");
                inner.note_full(&error);
            }
            begun => begun?,
        }
        inner.grow().await?;
        inner.tasks.set(2);
        runtime.spawn(Box::pin(Rc::clone(&inner).write_log()));
        runtime.spawn(Box::pin(Rc::clone(&inner).keep_house()));
        runtime.spawn(Box::pin(Inner::discard_free(Rc::downgrade(&inner))));
        Ok(Self { inner })
    }

    /// Writes a checkpoint and ends: everything acknowledged is durable then, in whatever way it was.
    pub async fn close(&self) -> Result<()> {
        if self.inner.options.read_only {
            return Ok(());
        }
        let flushed = self.flush().await;
        if flushed.as_ref().is_err_and(|error| !passes(error)) {
            return flushed;
        }
        self.inner.until(|_| !self.inner.agenda.borrow().in_round).await?;
        self.inner.state.borrow_mut().closing = true;
        self.inner.wake.notify_one();
        self.inner.housekeeping.notify_one();
        let busy = || self.inner.tasks.get() > 0 || self.inner.discarding.get();
        while busy() {
            let progress = self.inner.progress.notified();
            if busy() {
                progress.await;
            }
        }
        if let Some(error) = self.inner.state.borrow().failed.clone() {
            return Err(error);
        }
        match self.inner.checkpoint().await {
            // The log says it all, too: the next start takes longer.
            Err(error) if passes(&error) => flushed,
            result => result.and(flushed),
        }
    }
}

impl Inner {
    /// Takes in what the device has grown by; where the device does not take the root that says so, the next round tries again.
    ///
    /// What must hold: nothing goes to a new segment before both roots count it.
    pub async fn grow(&self) -> Result<()> {
        let segments = segments_of(self.device.geometry().size_bytes, self.segment_bytes);
        if segments as usize <= self.state.borrow().space.segments.len() {
            return Ok(());
        }
        match self.write_root(|root| Root { segments, ..root }).await {
            Err(error) if passes(&error) => return Ok(()),
            written => written?,
        }
        self.state.borrow_mut().space.grow(segments);
        tracing::info!(segments, "the object store has grown with its device");
        Ok(())
    }
}
