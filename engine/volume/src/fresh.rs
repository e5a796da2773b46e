//! Large writes of blocks that hold nothing yet: straight to their places, with only a record of it in the journal.
//!
//! ```text
//!  write ─> write buffer, record that waits ─> reply         the record's place in the log is that of any other write's
//!              └─> places ─> flush ─> the record is written: "this lies there"      where the data got there
//!                                  └> the record is written with its data           where it did not
//! ```
//!
//! What must hold besides what holds of every write:
//! 1. The places hold nothing that a recovery may ask for: no version of these blocks is in the write buffer or on its way, and
//!    that they hold nothing is durable.
//! 2. The record says so only once all copies have the data, durably, and no disk went out of service that a restart would
//!    find in service.

use crate::destage::{Destination, Flight};
use crate::extent::Extent;
use crate::record::Record;
use crate::store::Inner;
use crate::tables::VolumeState;
use kura_block::{Bufs, Checksum};
use kura_journal::{Carried, Lsn, Settle};
use std::cell::Cell;
use std::ops::Range;
use std::rc::{Rc, Weak};
use tokio::sync::oneshot;

/// Bytes of such writes that may be on their way, or wait for their records: more wait. All of them are in memory.
const LIMIT_BYTES: u64 = 12 << 20;

impl Inner {
    /// Tells the journal how to make durable what went straight to its place.
    pub fn begin_straight(&self) {
        let me = Weak::clone(&self.me);
        let settle: Settle = Box::new(move || {
            let (tells, told) = oneshot::channel();
            if let Some(inner) = me.upgrade() {
                let runtime = Rc::clone(&inner.runtime);
                runtime.spawn(Box::pin(async move {
                    // Whoever asked may be gone, but not what a flush says of its disk.
                    let _ = tells.send(inner.settle_places().await);
                }));
            }
            Box::pin(async { told.await.unwrap_or(false) })
        });
        self.journal().settle_by(settle);
    }

    /// Makes durable what lies at its places by now; false where that is not so on all disks, or one went out of service and
    /// a restart would not know of it.
    async fn settle_places(&self) -> bool {
        let failures = self.array.flush().await;
        for failure in &failures {
            self.put_out_of_service(failure.device);
        }
        failures.is_empty() && self.disk_failed.get() < self.journal().durable()
    }

    /// Waits until a write of these blocks, if it is to go straight to their places, may go.
    pub async fn wait_to_go_straight(&self, volume: &VolumeState, first: u64, blocks: usize) {
        let is_much = || self.journal().elsewhere_bytes() >= LIMIT_BYTES && self.journal().alive().is_ok();
        while is_much() && self.is_fresh(volume, first, blocks).is_some() {
            self.journal().progress().await;
        }
    }

    /// The extent of blocks that are to go straight to their places now.
    pub fn goes_straight(&self, volume: &VolumeState, first: u64, blocks: usize) -> Option<Rc<Extent>> {
        self.is_fresh(volume, first, blocks).filter(|_| self.journal().elsewhere_bytes() < LIMIT_BYTES)
    }

    /// The extent of blocks that may be written straight to their places, and should be.
    fn is_fresh(&self, volume: &VolumeState, first: u64, blocks: usize) -> Option<Rc<Extent>> {
        let extent_blocks = self.array.extent_blocks() as u64;
        let (index, inside) = ((first / extent_blocks) as u32, (first % extent_blocks) as usize);
        let should = blocks >= self.settings.straight_blocks
            && inside + blocks <= extent_blocks as usize
            && !volume.shape.parity
            && !self.journal().is_asked_often()
            && self.stalled.borrow().is_none();
        let extent = volume.extent(index).filter(|_| should)?;
        let fresh = extent.fast().is_none()
            && !extent.group.is_moving()
            && extent.cleared() < self.journal().durable()
            && self.is_beside_journal(&extent)
            && extent.is_loaded()
            && extent.with_page(|page| (inside..inside + blocks).all(|block| page.get(block).is_none()))
            && volume.dirty.borrow().range(first..first + blocks as u64).next().is_none();
        fresh.then_some(extent)
    }

    /// True when an extent's disks are of the journal's class: with a faster journal, who waits for it should not wait for them.
    fn is_beside_journal(&self, extent: &Extent) -> bool {
        let class = |disk| self.array.member(disk).map(|member| member.class);
        let journal_disks = self.journal_disks.borrow();
        let slower = |place: &kura_array::Place| journal_disks.values().any(|disk| class(*disk) != class(place.device));
        !extent.group.places().iter().any(slower)
    }

    /// Appends the record of blocks that are about to go straight to their places; the sender says that they got there.
    pub fn append_straight(
        &self,
        volume: &VolumeState,
        first: u64,
        data: &Bufs,
        checksums: &[Checksum],
    ) -> (Lsn, oneshot::Sender<()>) {
        let (arrives, arrival) = oneshot::channel();
        let written = Record::Write { volume: volume.id, first }.encode();
        let carried = Carried { body: written, data: data.clone(), checksums: checksums.to_vec() };
        let placed = Record::Placed { volume: volume.id, first, checksums: checksums.to_vec() };
        let lsn = self.journal().append_elsewhere(&placed.encode(), carried, arrival);
        self.last_records.borrow_mut().insert(volume.id, lsn);
        (lsn, arrives)
    }

    /// Sends blocks in the write buffer straight to their places.
    pub fn send_straight(
        &self,
        volume: &Rc<VolumeState>,
        extent: Rc<Extent>,
        blocks: Range<u64>,
        arrives: oneshot::Sender<()>,
    ) {
        let Some(me) = self.me.upgrade() else { return };
        let flight = {
            let mut dirty = volume.dirty.borrow_mut();
            Flight::of(volume, vec![extent], Destination::Straight(Cell::new(Some(arrives))), dirty.range_mut(blocks))
        };
        self.runtime.spawn(Box::pin(async move { me.destage(flight).await }));
    }
}
