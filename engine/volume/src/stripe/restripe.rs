//! Stripes as a whole: a place of them moved to another disk, and all of them held against their parity.

use crate::check::Report;
use crate::disks::Read;
use crate::extent::{Extent, Pins};
use crate::store::Inner;
use crate::stripe::row::{Slot, StripeRow, gather, others};
use crate::stripe::{Stripe, StripeLock, stripe_id};
use crate::tables::VolumeState;
use futures::future::join_all;
use futures::{StreamExt, stream};
use kura_array::parity::{Reads, Row, bits, xor};
use kura_array::{Berth, Urgency};
use kura_block::{BLOCK_BYTES, Buf, Bufs, Checksum, Error, Result};
use std::ops::Range;
use std::rc::Rc;

/// Blocks of stripes on end that are written as one: a disk that turns loses a turn before each.
const RUN_BLOCKS: usize = 32;
/// Runs of a group that are moved at once: the disks read one while another is written.
const RUNS: usize = 4;

/// A stripe of which a place moves, with what is to lie at the new one.
struct Taken<'a> {
    _lock: StripeLock<'a>,
    at: Stripe,
    rows: Vec<StripeRow>,
    /// By their number in the place.
    blocks: Vec<(usize, Buf)>,
    /// The rows of which a block is not told by the others, and parity must be made to agree.
    disagree: Vec<usize>,
    /// Blocks that nothing tells.
    lost: u64,
}

impl Inner {
    /// Writes what one of a group's places has, or had, to another place; bytes written.
    pub async fn move_stripes(
        &self,
        volume: &Rc<VolumeState>,
        extents: &[Rc<Extent>],
        at: usize,
        to: &Berth,
    ) -> Result<u64> {
        let (mut bytes, mut lost) = (0, 0);
        let all = self.stripes_of(volume, extents);
        let each = (RUN_BLOCKS as u64 / u64::from(volume.shape.chunk_blocks)).max(1);
        let runs = all.clone().step_by(each as usize).map(|first| first..all.end.min(first + each));
        let mut work =
            stream::iter(runs).map(|stripes| self.move_run(volume, extents, stripes, at, to)).buffer_unordered(RUNS);
        // To the end in any case: a write that is dropped on its way may still land where another extent lies by then.
        let mut failed = Ok(());
        while let Some(done) = work.next().await {
            match done {
                Ok((moved, missed)) => {
                    bytes += moved;
                    lost += missed;
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed?;
        if lost > 0 {
            tracing::error!(volume = volume.id, blocks = lost, "blocks are lost in a rebuild");
        }
        Ok(bytes)
    }

    /// The stripes of a group, by their number in the volume.
    fn stripes_of(&self, volume: &VolumeState, extents: &[Rc<Extent>]) -> std::ops::Range<u64> {
        let blocks = self.group_blocks(volume);
        let group = extents.first().map_or(0, |extent| u64::from(extent.owner.index / volume.shape.extents()));
        let stripes = blocks / volume.shape.stripe_blocks();
        group * stripes..(group + 1) * stripes
    }

    /// Moves a place of stripes on end: bytes that were written, and blocks that nothing tells.
    async fn move_run(
        &self,
        volume: &VolumeState,
        extents: &[Rc<Extent>],
        stripes: Range<u64>,
        from: usize,
        to: &Berth,
    ) -> Result<(u64, u64)> {
        let taken = stripes.map(|stripe| self.take_stripe(volume, extents, stripe, from));
        let mut taken = join_all(taken).await.into_iter().collect::<Result<Vec<_>>>()?;
        let blocks: Vec<_> = taken.iter_mut().flat_map(|stripe| std::mem::take(&mut stripe.blocks)).collect();
        let moved = (blocks.len() * BLOCK_BYTES) as u64;
        for (first, data) in gather(blocks) {
            self.heed(self.array.write_place(to, first, data, self.move_urgency()).await).await?;
        }
        if !self.array.works(to.place) {
            return Err(Error::device(format!("disk {}: went out of service in a rebuild", to.place.device.0)));
        }
        let mut lost = 0;
        for Taken { _lock, at, rows, disagree, lost: of_stripe, .. } in taken {
            lost += of_stripe;
            let moved_to = Stripe { site: at.site.moved(from, to), ..at };
            for row in rows.iter().filter(|row| disagree.contains(&row.row)) {
                let lies = self.as_it_lies(&moved_to, row).await?;
                self.agree(&moved_to, row, &lies).await?;
            }
        }
        Ok((moved, lost))
    }

    /// Locks a stripe, and tells what lies at one of its places.
    async fn take_stripe(
        &self,
        volume: &VolumeState,
        extents: &[Rc<Extent>],
        stripe: u64,
        from: usize,
    ) -> Result<Taken<'_>> {
        let lock = self.lock_stripe(stripe_id(volume, extents, stripe)).await?;
        let (at, mut rows) = self.whole_stripe(volume, extents, stripe).await?;
        let lies_there = |column: &usize| volume.shape.place_of(at.number, *column) == from;
        let slot = (0..usize::from(volume.shape.columns)).find(lies_there).map_or(Slot::Parity, Slot::Column);
        let works = self.array.works(at.place(slot));
        let counts = |facts: &Row| match slot {
            Slot::Parity => facts.counted != 0,
            Slot::Column(column) => facts.counted & 1 << column != 0,
        };
        rows.retain(|row| counts(&row.facts));
        if works {
            self.read_rows(&at, &mut rows, self.move_urgency(), |_| Some(only(slot))).await;
        }
        let here = |row: &StripeRow| match slot {
            Slot::Parity => row.parity.clone(),
            Slot::Column(column) => row.old[column].clone(),
        };
        self.read_rows(&at, &mut rows, self.move_urgency(), |facts| {
            let known = match slot {
                Slot::Parity => works && facts.parity,
                Slot::Column(column) => works && facts.lost & 1 << column == 0,
            };
            (!known).then(|| others(facts, slot))
        })
        .await;
        let (mut lost, mut disagree) = (0, Vec::new());
        let mut blocks = Vec::new();
        for row in &rows {
            let mine =
                here(row).filter(|_| works).or_else(|| row.reconstructed(slot).filter(|block| row.agrees(slot, block)));
            let above = if mine.is_none() { self.row_above(volume, stripe, slot, row).await } else { None };
            if mine.is_none() {
                // Nor may parity be made to agree without what a disk will read a moment later.
                row.unless_refused()?;
                disagree.push(row.row);
                lost += u64::from(above.is_none());
                if let Slot::Column(column) = slot {
                    let block = volume.shape.block_of(stripe, column, row.row);
                    self.write_table_again(volume.id, block..block + 1);
                }
            }
            let mine = mine.or(above);
            blocks.push((at.at(row.row), mine.unwrap_or_else(|| Buf::copy_of(&[0; BLOCK_BYTES]))));
        }
        Ok(Taken { _lock: lock, at, rows, blocks, disagree, lost })
    }

    /// A block of a stripe from the fast copy of its extent, where it lies there and is good.
    pub async fn row_above(&self, volume: &VolumeState, stripe: u64, slot: Slot, row: &StripeRow) -> Option<Buf> {
        let Slot::Column(column) = slot else { return None };
        let block = volume.shape.block_of(stripe, column, row.row);
        let above = self.read_above(volume, block, row.expected[column]?).await?;
        Some(above.contiguous())
    }

    /// What the places of a row hold that count in its parity, by column; `None` for one that is not read however often it is
    /// asked for.
    async fn as_it_lies(&self, at: &Stripe, row: &StripeRow) -> Result<Vec<(usize, Option<Buf>)>> {
        let mut found = Vec::new();
        for column in bits(row.facts.counted) {
            for read in self.read_each(&at.berth(Slot::Column(column)), at.at(row.row), 1, self.move_urgency()).await {
                match read {
                    Read::Found(block) => found.push((column, Some(block))),
                    Read::Refused(error) => return Err(error),
                    Read::Lost => found.push((column, None)),
                }
            }
        }
        Ok(found)
    }

    /// Makes the parity of a row of which something is lost agree with what its places hold. One that is not read is written
    /// again, as parity takes it for: else the next one of its row to be lost could not be reconstructed.
    async fn agree(&self, at: &Stripe, row: &StripeRow, lies: &[(usize, Option<Buf>)]) -> Result<()> {
        for (column, _) in lies.iter().filter(|(_, found)| found.is_none()) {
            let (berth, zeroes) = (at.berth(Slot::Column(*column)), Bufs::zeroes(BLOCK_BYTES));
            let refused = self.array.write_place(&berth, at.at(row.row), zeroes, self.move_urgency()).await;
            self.heed(refused).await?;
        }
        let parity = xor(lies.iter().filter_map(|(_, found)| found.as_deref()));
        let refused =
            self.array.write_place(&at.berth(Slot::Parity), at.at(row.row), parity.into(), self.move_urgency()).await;
        self.heed(refused).await
    }

    /// A stripe and all that is known of its rows; the caller has locked it.
    async fn whole_stripe(
        &self,
        volume: &VolumeState,
        extents: &[Rc<Extent>],
        stripe: u64,
    ) -> Result<(Stripe, Vec<StripeRow>)> {
        let _pins = self.load_stripe(volume, extents, stripe).await?;
        let at = match extents.first() {
            Some(extent) => self.stripe_of(extent, stripe),
            None => unreachable!("a group has extents"),
        };
        let rows = 0..usize::from(volume.shape.chunk_blocks);
        let rows = rows.map(|row| self.stripe_row(volume, extents, stripe, &at, row)).collect();
        Ok((at, rows))
    }

    /// Reads every block of a group, holds it against its checksum and its row against its parity, and mends what can be.
    pub async fn check_stripes(&self, volume: &Rc<VolumeState>, extents: &[Rc<Extent>], report: &mut Report) {
        let _pins = Pins::of(extents);
        for stripe in self.stripes_of(volume, extents) {
            let Some(locked) = self.lock_at_rest(volume, extents, stripe).await.transpose() else { return };
            let read = self.whole_stripe(volume, extents, stripe).await;
            let (lock, (at, mut rows)) = match locked.and_then(|lock| Ok((lock, read?))) {
                Ok(held) => held,
                Err(error) => {
                    report.found(volume, "stripe", stripe, error.to_string());
                    continue;
                }
            };
            for block in rows.iter().flat_map(|row| never_written(volume, stripe, row)) {
                report.found(volume, "block", block, "lost: it has a checksum, and no place".to_owned());
            }
            rows.retain(|row| row.facts.counted != 0);
            self.read_rows(&at, &mut rows, Urgency::Idle, |facts| Some(Reads { columns: facts.counted, parity: true }))
                .await;
            let mut again = Vec::new();
            for row in &rows {
                report.blocks += row.expected.iter().flatten().count() as u64;
                if self.check_row(volume, stripe, &at, row, report).await {
                    again.push(row.row);
                }
            }
            drop(lock);
            if !again.is_empty()
                && let Err(error) = self.mend_nobodys(volume, extents, stripe, &again, report).await
            {
                let why = format!("a row that its parity does not tell is not mended: {error}");
                report.found(volume, "stripe", stripe, why);
            }
        }
    }

    /// Locks a stripe of a group while nobody moves that: one that is moved later begins with the stripe itself. `None` when the
    /// group is given up, or the store stops.
    async fn lock_at_rest(
        &self,
        volume: &VolumeState,
        extents: &[Rc<Extent>],
        stripe: u64,
    ) -> Result<Option<StripeLock<'_>>> {
        let Some(first) = extents.first() else { return Ok(None) };
        loop {
            let here = volume.extent(first.owner.index).is_some_and(|now| Rc::ptr_eq(&now, first));
            if self.is_stopping() || volume.deleted.get() || !here {
                return Ok(None);
            }
            if first.group.is_moving() {
                self.room.notified().await;
                continue;
            }
            let lock = self.lock_stripe(stripe_id(volume, extents, stripe)).await?;
            if !first.group.is_moving() {
                return Ok(Some(lock));
            }
        }
    }

    /// Mends a row: what is bad where its disk works, and parity that does not agree with blocks which are all good. Each is
    /// written where it lies: what belongs there is known, and nobody else writes while the stripe is locked. The way of
    /// every write would leave the place of a block that goes to the hot area as it is, and other blocks of the row would count on it.
    /// True where only nobody's places are lost then, which [`Inner::mend_nobodys`] mends.
    async fn check_row(
        &self,
        volume: &VolumeState,
        stripe: u64,
        at: &Stripe,
        row: &StripeRow,
        report: &mut Report,
    ) -> bool {
        let lost = row.facts.lost & row.facts.counted;
        if lost == 0 {
            let sum = xor(row.old.iter().flatten().map(|block| &**block));
            let agrees = row.parity.as_deref().is_some_and(|parity| *parity == *sum);
            if !agrees && self.array.works(at.place(Slot::Parity)) {
                self.mend_row((volume, stripe), at, row, (Slot::Parity, sum), report).await;
            }
            return false;
        }
        let is_nobodys = |column: usize| row.nobodys & 1 << column != 0;
        let (mut nobodys, mut others) = (false, false);
        for column in bits(lost) {
            let Some(expected) = row.expected[column] else {
                nobodys |= is_nobodys(column);
                continue;
            };
            let block = volume.shape.block_of(stripe, column, row.row);
            let disk = at.place(Slot::Column(column));
            let reconstructed = row.reconstructed(Slot::Column(column));
            let good = match reconstructed.filter(|block| Checksum::of(block) == expected) {
                Some(block) => Some(block),
                None => self.read_above(volume, block, expected).await.map(|above| above.contiguous()),
            };
            match good {
                Some(good) if self.array.works(disk) => {
                    self.mend_row((volume, stripe), at, row, (Slot::Column(column), good), report).await;
                }
                Some(_) => others = true,
                None if is_nobodys(column) => nobodys = true,
                None => {
                    others = true;
                    if !report.dry_run {
                        self.write_table_again(volume.id, block..block + 1);
                    }
                    let why = format!("bad or away on disk {}, and its row does not tell it", disk.device.0);
                    report.found(volume, "block", block, why);
                }
            }
        }
        let slots = || bits(lost).map(Slot::Column).chain([Slot::Parity]);
        let only_nobodys = nobodys && !others && slots().all(|slot| self.array.works(at.place(slot)));
        report.repaired += u64::from(only_nobodys && report.dry_run);
        only_nobodys && !report.dry_run
    }

    /// Mends rows of which only earlier versions of blocks are lost that lie elsewhere now. They are nobody's, but parity counts on
    /// them, and with that all other blocks of these rows do: one that its row does not tell is written anew, and parity with it.
    ///
    /// That makes untrue what the log says of such a row, so that it is said anew before; and a checkpoint that came between would
    /// take the row for being at rest.
    async fn mend_nobodys(
        &self,
        volume: &VolumeState,
        extents: &[Rc<Extent>],
        stripe: u64,
        numbers: &[usize],
        report: &mut Report,
    ) -> Result<()> {
        self.room_in_journal().await?;
        let _no_checkpoint = self.checkpointing.lock().await;
        let _lock = self.lock_stripe(stripe_id(volume, extents, stripe)).await?;
        let (at, mut rows) = self.whole_stripe(volume, extents, stripe).await?;
        rows.retain(|row| numbers.contains(&row.row));
        let urgency = self.move_urgency();
        self.read_rows(&at, &mut rows, urgency, |facts| Some(Reads { columns: facts.counted, parity: true })).await;
        for row in &rows {
            let lost = || bits(row.facts.lost & row.facts.counted);
            let works = lost().map(Slot::Column).chain([Slot::Parity]).all(|slot| self.array.works(at.place(slot)));
            if !works || lost().any(|column| row.nobodys & 1 << column == 0) {
                continue;
            }
            for column in lost() {
                // What will lie there may be another version than was known.
                let block = volume.shape.block_of(stripe, column, row.row);
                if let Some(place) = volume.hot.borrow_mut().get_mut(&block) {
                    place.cold = None;
                }
                if let Some(entry) = volume.dirty.borrow_mut().get_mut(&block) {
                    entry.at_rest = None;
                }
            }
            let mended = lost().map(Slot::Column).map(|slot| row.reconstructed(slot).map(|block| (slot, block)));
            if let Some(mended) = mended.collect::<Option<Vec<_>>>() {
                for mended in mended {
                    self.mend_row((volume, stripe), &at, row, mended, report).await;
                }
                continue;
            }
            row.unless_refused()?;
            let lies = self.as_it_lies(&at, row).await?;
            self.announce_anew(volume, extents, stripe, row, &lies).await?;
            self.agree(&at, row, &lies).await?;
            report.repaired += 1;
        }
        Ok(())
    }

    /// Writes a block of a row, or its parity, again where it lies; the stripe is locked, and its group held.
    async fn mend_row(
        &self,
        (volume, stripe): (&VolumeState, u64),
        at: &Stripe,
        row: &StripeRow,
        (slot, bytes): (Slot, Buf),
        report: &mut Report,
    ) {
        report.repaired += 1;
        if report.dry_run {
            return;
        }
        let berth = at.berth(slot);
        tracing::warn!(
            volume = volume.id,
            disk = berth.place.device.0,
            row = row.row,
            "writing again what is bad in a row"
        );
        let refused = self.array.write_place(&berth, at.at(row.row), bytes.into(), self.move_urgency()).await;
        if let Err(error) = self.heed(refused).await {
            report.found(volume, "stripe", stripe, error.to_string());
        }
    }
}

/// The reads of a slot alone.
fn only(slot: Slot) -> Reads {
    match slot {
        Slot::Parity => Reads { columns: 0, parity: true },
        Slot::Column(column) => Reads { columns: 1 << column, parity: false },
    }
}

/// Blocks of a row that have a checksum where nothing was ever written: what lies there is not theirs, and nothing tells what is.
fn never_written(volume: &VolumeState, stripe: u64, row: &StripeRow) -> impl Iterator<Item = u64> {
    let expected = row.expected.iter().enumerate().filter(|(_, expected)| expected.is_some());
    let astray = expected.filter(|(column, _)| row.facts.counted & 1 << column == 0);
    astray.map(move |(column, _)| volume.shape.block_of(stripe, column, row.row))
}
