//! Rows of which too much is lost to be reconstructed, and that are written all the same.
//!
//! ```text
//!   disk 2 failed   disk 3       disk 4        what is written to the first column has parity for a place, once parity agrees
//!   [ new ]         [ lost ]     [ parity ]    with what the second one holds: what lies there, or what is written there
//! ```
//!
//! What must hold:
//! 1. A row is hopeless only when two of its places are lost, or bad: nothing that could be reconstructed before is given up. A disk
//!    that only refuses to read has lost nothing.
//! 2. What is lost stays an error for who reads it: its checksum is kept, and what lies at its place does not agree with that.
//! 3. A place that is written over is named by the record that goes before (rule 2 of stripes); alone of those named it has no data
//!    elsewhere, and a replay may find it old or new all the same. Nothing says any more that a block is at rest there.

use crate::destage::Flight;
use crate::store::Inner;
use crate::stripe::Stripe;
use crate::stripe::row::{Slot, StripeRow};
use crate::tables::VolumeState;
use kura_array::Urgency;
use kura_array::hot::Owner;
use kura_array::parity::{Row, Solution, bits};
use kura_block::{BLOCK_BYTES, Buf, Error, Result};

impl StripeRow {
    /// What lies at the place of a column, as far as parity knows, though it was not read there.
    fn know(&mut self, column: usize, block: Buf) {
        self.facts.lost &= !(1 << column);
        self.old[column] = Some(block);
    }

    /// A column that is lost counts as zeroes, and is written so, where nothing else is written there.
    fn give_up(&mut self, column: usize) {
        let zeroes = Buf::copy_of(&[0; BLOCK_BYTES]);
        self.facts.new |= 1 << column;
        self.new[column].get_or_insert_with(|| zeroes.clone());
        self.know(column, zeroes);
    }
}

impl Inner {
    /// For rows of which too much is lost to be reconstructed from the others: what a fast copy does not tell counts as it lies there,
    /// though it is not what it should be. It stays lost, and parity agrees with what lies there; what is not read however often it is
    /// asked for is written over. An error while a disk only refuses to read: as long as it does, the others of the row may still
    /// reconstruct what a write without parity would lose.
    pub async fn take_raw(
        &self,
        flight: &Flight,
        stripe: u64,
        at: &Stripe,
        rows: &mut [StripeRow],
        urgency: Urgency,
    ) -> Result<()> {
        let volume = &*flight.volume;
        for row in hopeless(rows) {
            row.unless_refused()?;
            for column in bits(row.facts.lost & row.facts.counted) {
                if let Some(above) = self.row_above(volume, stripe, Slot::Column(column), row).await {
                    row.know(column, above);
                }
            }
        }
        self.read_until_known(at, rows, urgency, Row::reads).await;
        let works = |column: &usize| self.array.works(at.place(Slot::Column(*column)));
        for row in hopeless(rows) {
            row.unless_refused()?;
            row.expected.iter_mut().for_each(|expected| *expected = None);
            let broken = bits(row.facts.lost).filter(works).fold(0, |lost, column| lost | 1 << column);
            row.facts.lost &= !broken;
        }
        loop {
            self.read_until_known(at, rows, urgency, Row::reads).await;
            let mut given_up = false;
            for row in hopeless(rows) {
                row.unless_refused()?;
                for column in bits(row.facts.lost & row.facts.counted).filter(works) {
                    self.forget_place(volume, volume.shape.block_of(stripe, column, row.row));
                    row.give_up(column);
                    given_up = true;
                }
            }
            // With these the others of the row may do.
            if !given_up {
                return Ok(());
            }
        }
    }

    /// The place of a block that does not read any more is going to be written over: nothing may take it for what it was.
    fn forget_place(&self, volume: &VolumeState, block: u64) {
        tracing::error!(volume = volume.id, block, "a place that is lost is written over");
        if let Some(place) = volume.hot.borrow_mut().get_mut(&block) {
            place.cold = None;
            // Nor does the block leave the hot area for it.
            let mut cooled = self.hot.cooled.borrow_mut();
            if cooled.extract_if(.., |(of, at, _)| (*of, *at) == (volume.id, block)).count() > 0 {
                self.hot.table.borrow_mut().fill(place.id, Owner { volume: volume.id, block });
            }
        }
        if let Some(entry) = volume.dirty.borrow_mut().get_mut(&block) {
            entry.at_rest = None;
        }
        if let Some(copy) = volume.extent(self.index_of(block)).and_then(|extent| extent.fast()) {
            self.forget_returned(&copy);
        }
        self.write_table_again(volume.id, block..block + 1);
    }

    /// Refuses blocks that neither a place nor parity would hold: two of the row's disks are out of service.
    pub fn refuse_homeless(&self, at: &Stripe, rows: &[StripeRow], solved: &[Option<Solution>]) -> Result<()> {
        for (row, solution) in rows.iter().zip(solved) {
            let homeless = |column: &usize| !self.array.works(at.place(Slot::Column(*column)));
            if solution.is_none()
                && let Some(column) = bits(row.facts.new).find(homeless)
            {
                return Err(Error::device(format!(
                    "disk {} is out of service, and so much else of a stripe is lost that no block can be written there",
                    at.place(Slot::Column(column)).device.0
                )));
            }
        }
        Ok(())
    }
}

/// Rows of which so much is lost that parity cannot be computed.
fn hopeless(rows: &mut [StripeRow]) -> impl Iterator<Item = &mut StripeRow> {
    rows.iter_mut().filter(|row| row.facts.reads().is_none())
}
