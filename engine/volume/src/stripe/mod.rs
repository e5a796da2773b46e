//! Stripes with parity: written so that no crash can leave parity and data apart, and read where a place is lost.
//!
//! ```text
//!   blocks of a stripe ─> read what parity needs ─> record of the partial parity, durable ─> data and parity, at once
//! ```
//!
//! What must hold:
//! 1. One thing at a time happens to a stripe: between its writes, parity is the XOR of all places that count in it.
//! 2. A place is written only after a record says, durably, that it may be, and what the others of its row come to; or, past the
//!    journal, with all of its stripe, of which nothing counts yet (`straight/mod.rs`).
//! 3. Every block of a row that such a record does not speak of is at rest, durably, and in the partial parity; every
//!    other one has its data elsewhere (journal, write buffer) until the next checkpoint.
//!
//! A block that does not agree with its checksum is no base for parity: it counts as lost, and is reconstructed from the others.

mod busy;
mod hopeless;
mod restripe;
mod resync;
mod row;

pub(crate) use busy::{Stripes, Word};
pub(crate) use resync::{Resync, Told};
pub(crate) use row::Slot;

use crate::destage::{Flight, STALLED};
use crate::extent::{Extent, Pins};
use crate::record::{ParityRow, Record, Rest};
use crate::store::Inner;
use crate::tables::VolumeState;
use futures::future::join_all;
use kura_array::parity::{Reads, Row, Solution, bits};
use kura_array::{Berth, Place, Site, Urgency};
use kura_block::{BLOCK_BYTES, Buf, Bufs, Checksum, Error, Result};
use kura_journal::Lsn;
use row::{StripeRow, gather, others};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;
use tokio::sync::oneshot;

/// A stripe of a volume: the volume, the birth of its group, and its number in the volume.
pub(crate) type StripeId = (u64, u64, u64);

/// The stripe of a volume in a group that `extents` make up.
pub(crate) fn stripe_id(volume: &VolumeState, extents: &[Rc<Extent>], stripe: u64) -> StripeId {
    (volume.id, extents.first().map_or(0, |extent| extent.owner.born), stripe)
}

/// Held while something happens to a stripe.
pub(crate) struct StripeLock<'a>(&'a Inner, StripeId);

impl Drop for StripeLock<'_> {
    fn drop(&mut self) {
        self.0.stripes.busy.borrow_mut().remove(&self.1);
        self.0.room.notify_waiters();
        self.0.destager.notify_one();
    }
}

/// A stripe that was taken, on its way: counted off, with what its records may take of the journal, when that ends.
pub(crate) struct Flying<'a> {
    lock: StripeLock<'a>,
    debt: u64,
}

impl Drop for Flying<'_> {
    fn drop(&mut self) {
        let stripes = &self.lock.0.stripes;
        stripes.flying.set(stripes.flying.get() - 1);
        stripes.flying_debt.set(stripes.flying_debt.get() - self.debt);
    }
}

/// A stripe of a group, where it lies.
pub(crate) struct Stripe {
    pub site: Site,
    /// Its number in its group.
    pub number: u64,
}

impl Stripe {
    /// Which of the group's places has a slot.
    fn number_of(&self, slot: Slot) -> usize {
        match slot {
            Slot::Column(column) => self.site.shape.place_of(self.number, column),
            Slot::Parity => self.site.shape.parity_place(self.number),
        }
    }

    pub fn place(&self, slot: Slot) -> Place {
        self.site.places[self.number_of(slot)]
    }

    /// The place of a slot, to be read or written in rows.
    pub fn berth(&self, slot: Slot) -> Berth {
        self.site.berth(self.number_of(slot))
    }

    pub fn at(&self, row: usize) -> usize {
        self.site.shape.row_at(self.number, row)
    }
}

impl Inner {
    /// Waits until nothing else happens to a stripe; `Retry` while what happens there waits for a disk that is full. Whatever
    /// else the store waits for is no matter here.
    pub async fn lock_stripe(&self, id: StripeId) -> Result<StripeLock<'_>> {
        loop {
            let room = self.room.notified();
            match self.stripes.busy.borrow_mut().entry(id) {
                Entry::Vacant(free) => {
                    free.insert(None);
                    return Ok(StripeLock(self, id));
                }
                Entry::Occupied(taken) => {
                    if let Some(full) = taken.get() {
                        return Err(Error::retry(format!("a stripe is being written, which waits for a disk: {full}")));
                    }
                }
            }
            room.await;
        }
    }

    /// A stripe of a volume, where the group of `extent` lies now.
    pub fn stripe_of(&self, extent: &Extent, stripe: u64) -> Stripe {
        let site = extent.group.site();
        let stripes = self.array.extent_blocks() as u64 / u64::from(site.shape.chunk_blocks);
        Stripe { site, number: stripe % stripes }
    }

    /// Those of a group's extents of which a stripe has blocks.
    fn in_stripe<'a>(
        &self,
        volume: &VolumeState,
        extents: &'a [Rc<Extent>],
        stripe: u64,
    ) -> impl Iterator<Item = &'a Rc<Extent>> {
        let first = self.index_of(stripe * volume.shape.stripe_blocks());
        let last = self.index_of((stripe + 1) * volume.shape.stripe_blocks() - 1);
        extents.iter().filter(move |extent| (first..=last).contains(&extent.owner.index))
    }

    /// Brings the pages that a stripe's blocks need into memory, where they stay as long as the pins: without them nobody
    /// knows what counts in its parity.
    pub async fn load_stripe(&self, volume: &VolumeState, extents: &[Rc<Extent>], stripe: u64) -> Result<Pins> {
        let pins = Pins::of(self.in_stripe(volume, extents, stripe));
        while let Some(unknown) = pins.extents().iter().find(|extent| !extent.is_loaded()) {
            self.load(unknown).await?;
        }
        Ok(pins)
    }

    /// What is known of a row whose stripe's pages are loaded.
    pub fn stripe_row(
        &self,
        volume: &VolumeState,
        extents: &[Rc<Extent>],
        stripe: u64,
        at: &Stripe,
        row: usize,
    ) -> StripeRow {
        let shape = volume.shape;
        let columns = usize::from(shape.columns);
        let touched = self.stripes.announced(stripe_id(volume, extents, stripe), row).columns;
        let mut facts = Row { touched, parity: self.array.works(at.place(Slot::Parity)), ..Row::default() };
        let mut expected: SmallVec<[Option<Checksum>; 8]> = SmallVec::from_elem(None, columns);
        let mut nobodys = 0;
        let (dirty, hot) = (volume.dirty.borrow(), volume.hot.borrow());
        for (column, expected) in expected.iter_mut().enumerate() {
            let block = shape.block_of(stripe, column, row);
            let (index, inside) = self.split(block);
            let extent = extents.iter().find(|extent| extent.owner.index == index);
            let Some(extent) = extent.filter(|extent| extent.is_loaded()) else { continue };
            let (counts, checksum) = extent.with_page(|page| (page.is_in_parity(inside), page.get(inside)));
            // What lies at the place of a block that is hot, or on its way, is an earlier version of it.
            *expected = match (hot.get(&block), dirty.get(&block)) {
                // Nor is what lies there known where the fast copy is newer. What came home from it lately is known: it may count
                // as home with the next checkpoint, unwritten, and must not get into parity unread.
                _ if extent.is_older(inside) => None,
                (Some(place), _) => place.cold,
                (None, Some(entry)) => entry.at_rest,
                (None, None) => checksum,
            };
            // A cooled one is about to be somebody's; one in the write buffer is newer than what lies here.
            let is_hot = hot.get(&block).is_some_and(|place| !self.hot.table.borrow().is_cooled(place.id));
            nobodys |= u32::from(expected.is_none() || is_hot || dirty.contains_key(&block)) << column;
            facts.counted |= u32::from(counts) << column;
            facts.doubtful |= u32::from(expected.is_none()) << column;
            facts.lost |= u32::from(!self.array.works(at.place(Slot::Column(column)))) << column;
        }
        let none = SmallVec::from_elem(None, columns);
        StripeRow {
            row,
            facts,
            expected,
            nobodys,
            old: none.clone(),
            bad: none.clone(),
            parity: None,
            new: none,
            refused: None,
        }
    }

    /// Reads what `wants` asks for of each row, unless it has been read. A column that cannot be read, or does not agree
    /// with its checksum, is lost from then on; so is the parity. Whether only for now, [`StripeRow::refused`] says.
    pub async fn read_rows(
        &self,
        at: &Stripe,
        rows: &mut [StripeRow],
        urgency: Urgency,
        wants: impl Fn(&Row) -> Option<Reads>,
    ) {
        let mut needed: BTreeMap<Slot, Vec<usize>> = BTreeMap::new();
        for (number, row) in rows.iter().enumerate() {
            let Some(reads) = wants(&row.facts) else { continue };
            for column in bits(reads.columns).filter(|column| row.old[*column].is_none()) {
                needed.entry(Slot::Column(column)).or_default().push(number);
            }
            if reads.parity && row.parity.is_none() {
                needed.entry(Slot::Parity).or_default().push(number);
            }
        }
        let runs = needed.iter().flat_map(|(slot, numbers)| {
            let neighbours = numbers.chunk_by(|one, next| rows[*one].row + 1 == rows[*next].row);
            neighbours.map(move |run| (*slot, run))
        });
        let reads = runs.map(|(slot, run)| {
            let first = at.at(rows[run[0]].row);
            async move { (slot, run, self.read_each(&at.berth(slot), first, run.len(), urgency).await) }
        });
        for (slot, run, blocks) in join_all(reads).await {
            for (row, block) in run.iter().zip(blocks) {
                rows[*row].take(slot, block);
            }
        }
    }

    /// Writes blocks of a stripe that was taken, and its parity.
    pub async fn write_stripe(&self, flight: &Flight, stripe: u64, urgency: Urgency) -> Result<()> {
        let volume = &*flight.volume;
        let id = stripe_id(volume, &flight.extents, stripe);
        let _flying = self.on_its_way(id, flight.data.len() as u64);
        let Some(extent) = flight.extents.first() else { return Ok(()) };
        let _pins = self.load_stripe(volume, &flight.extents, stripe).await?;
        let at = self.stripe_of(extent, stripe);
        let mut rows = self.rows_of(flight, stripe, &at);
        let parity_works = self.array.works(at.place(Slot::Parity));
        if parity_works {
            self.read_until_known(&at, &mut rows, urgency, Row::reads).await;
            self.take_raw(flight, stripe, &at, &mut rows, urgency).await?;
        }
        let solved: Vec<_> = rows.iter().map(|row| row.solve().filter(|_| parity_works)).collect();
        self.refuse_homeless(&at, &rows, &solved)?;
        self.announce(flight, stripe, &rows, &solved).await?;
        let failures = self.write_rows(&at, &rows, &solved, urgency).await;
        self.write_to_the_end(id, &at, (&rows, &solved), urgency, failures).await
    }

    /// Writes all of a stripe that is marked busy and of which nothing counts in parity yet. It counts when it is there, which the
    /// journal hears through `arrives`, or that it is not: before a disk goes out of service, for that waits for the journal.
    pub async fn write_fresh_stripe(&self, flight: &Flight, stripe: u64, arrives: oneshot::Sender<()>) -> Result<()> {
        let id = stripe_id(&flight.volume, &flight.extents, stripe);
        let _lock = StripeLock(self, id);
        let Some(extent) = flight.extents.first() else { return Ok(()) };
        let _pins = self.load_stripe(&flight.volume, &flight.extents, stripe).await?;
        let at = self.stripe_of(extent, stripe);
        let rows = self.rows_of(flight, stripe, &at);
        debug_assert!(rows.iter().all(|row| row.facts.counted == 0), "nothing of it counts yet");
        let parity_works = self.array.works(at.place(Slot::Parity));
        let solved: Vec<_> = rows.iter().map(|row| row.solve().filter(|_| parity_works)).collect();
        // A disk may have gone since the stripe was marked.
        self.refuse_homeless(&at, &rows, &solved)?;
        let failures = self.write_rows(&at, &rows, &solved, Urgency::Buffer).await;
        let places = &at.site.places;
        if failures.is_empty() && places.iter().all(|place| self.array.works(*place)) {
            self.straight.arrived(places);
            // A journal that has failed, or carries the data by now, waits for nothing.
            let _ = arrives.send(());
        } else {
            drop(arrives);
        }
        self.write_to_the_end(id, &at, (&rows, &solved), Urgency::Buffer, failures).await?;
        for (block, ..) in &flight.blocks {
            self.put_in_parity(&flight.extents, *block);
        }
        Ok(())
    }

    /// What came of writing rows: a disk that refuses goes out of service; one that is only full is asked again and again.
    async fn write_to_the_end(
        &self,
        id: StripeId,
        at: &Stripe,
        (rows, solved): (&[StripeRow], &[Option<Solution>]),
        urgency: Urgency,
        mut failures: Vec<kura_array::Failure>,
    ) -> Result<()> {
        let mut waited = false;
        while let Some(full) = self.dismiss(failures).await {
            waited = true;
            self.wait_for_room(id, full).await?;
            failures = self.write_rows(at, rows, solved, urgency).await;
        }
        if waited {
            self.found_room();
        }
        Ok(())
    }

    /// A stripe that was taken is on its way, with so many bytes.
    pub fn on_its_way(&self, id: StripeId, bytes: u64) -> Flying<'_> {
        let debt = Self::debt_of(bytes);
        self.stripes.flying_debt.set(self.stripes.flying_debt.get() + debt);
        Flying { lock: StripeLock(self, id), debt }
    }

    /// Waits a moment, with a stripe that is taken and not written whole, for a disk that is full; an error when the store ends.
    pub async fn wait_for_room(&self, id: StripeId, full: Error) -> Result<()> {
        if !self.goes_on() {
            // Data and parity may be apart: no checkpoint may say that they are not.
            self.stripes.torn.set(true);
            return Err(full);
        }
        self.stripes.busy.borrow_mut().insert(id, Some(full.clone()));
        self.stalled.replace(Some(full));
        self.room.notify_waiters();
        self.runtime.sleep(STALLED).await;
        Ok(())
    }

    /// A stripe that waited for room is whole. Nobody else may come along who would say so.
    pub fn found_room(&self) {
        self.stalled.take();
        self.room.notify_waiters();
    }

    /// Reads what `wants` asks for, and more where a place turns out to be lost.
    pub async fn read_until_known(
        &self,
        at: &Stripe,
        rows: &mut [StripeRow],
        urgency: Urgency,
        wants: impl Fn(&Row) -> Option<Reads>,
    ) {
        loop {
            let before: Vec<_> = rows.iter().map(|row| row.facts).collect();
            self.read_rows(at, rows, urgency, &wants).await;
            if rows.iter().zip(before).all(|(row, before)| row.facts == before) {
                return;
            }
        }
    }

    /// The rows that a flight writes, with what it writes.
    fn rows_of(&self, flight: &Flight, stripe: u64, at: &Stripe) -> Vec<StripeRow> {
        let shape = flight.volume.shape;
        let mut rows: BTreeMap<usize, StripeRow> = BTreeMap::new();
        for (number, (block, ..)) in flight.blocks.iter().enumerate() {
            let Some(piece) = shape.pieces(*block..block + 1).next() else { continue };
            let row = piece.rows.start;
            let entry =
                rows.entry(row).or_insert_with(|| self.stripe_row(&flight.volume, &flight.extents, stripe, at, row));
            entry.facts.new |= 1 << piece.column;
            let data = flight.data.slice(number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES);
            entry.new[piece.column] = Some(data.contiguous());
        }
        rows.into_values().collect()
    }

    /// Says durably which places will be written, and what the others of their rows come to. What the log says already is not said
    /// again: starts that come to nothing, one after another, would fill it.
    async fn announce(
        &self,
        flight: &Flight,
        stripe: u64,
        rows: &[StripeRow],
        solved: &[Option<Solution>],
    ) -> Result<()> {
        let volume = &*flight.volume;
        let id = stripe_id(volume, &flight.extents, stripe);
        let born = flight.extents.first().map_or(0, |extent| extent.owner.born);
        let (mut data, mut checksums, mut told, mut words) = (Bufs::new(), Vec::new(), Vec::new(), Vec::new());
        let mut said_at = Lsn(0);
        for (row, solution) in rows.iter().zip(solved) {
            let rest = solution.as_ref().and_then(|solution| solution.rest.clone());
            let rests = match (solution, &rest) {
                (None, _) => Rest::Unknown,
                (Some(_), None) => Rest::None,
                (Some(_), Some(_)) => Rest::Given,
            };
            let written = row.facts.new | row.facts.touched & row.facts.counted;
            let word = Word { written, rest: (rests, rest.as_deref().map(Checksum::of)) };
            if let Some((said, lsn)) = self.stripes.announced(id, row.row).last
                && said == word
            {
                said_at = said_at.max(lsn);
                continue;
            }
            words.push((row.row, word));
            told.push(ParityRow { row: row.row as u16, written, rest: rests });
            if let (Some(rest), Some(checksum)) = (rest, word.rest.1) {
                data.push(rest);
                checksums.push(checksum);
            }
        }
        if !told.is_empty() {
            let record = Record::Parity { volume: volume.id, stripe, born, rows: told };
            said_at = self.append_data(&record, &data, &checksums);
            for (row, word) in words {
                self.stripes.announce(id, row, word, said_at);
            }
        }
        for (block, ..) in &flight.blocks {
            self.put_in_parity(&flight.extents, *block);
        }
        self.journal().commit(Lsn(said_at.0 + 1)).await
    }

    /// True where the log says already that the place of a block will be written.
    pub fn is_announced(&self, volume: &VolumeState, block: u64) -> bool {
        let Some(piece) = volume.shape.pieces(block..block + 1).next() else { return false };
        let Some(extent) = volume.extent(self.index_of(block)) else { return false };
        let row = self.stripes.announced((volume.id, extent.owner.born, piece.stripe), piece.rows.start);
        row.last.is_some_and(|(word, _)| word.written & 1 << piece.column != 0)
    }

    /// Says durably that the places of a row that hold nothing that is read will be written, and its parity to agree with all that lie there.
    pub async fn announce_anew(
        &self,
        volume: &VolumeState,
        extents: &[Rc<Extent>],
        stripe: u64,
        row: &StripeRow,
        lies: &[(usize, Option<Buf>)],
    ) -> Result<()> {
        let id = stripe_id(volume, extents, stripe);
        let (_, born, _) = id;
        let is_written =
            |(column, found): &(usize, Option<Buf>)| found.is_none() || row.facts.touched & 1 << column != 0;
        let written = lies.iter().filter(|lies| is_written(lies)).fold(0, |written, (column, _)| written | 1 << column);
        let others = lies.iter().filter(|(column, _)| written & 1 << column == 0);
        let rest = kura_array::parity::xor(others.filter_map(|(_, found)| found.as_deref()));
        let rows = vec![ParityRow { row: row.row as u16, written, rest: Rest::Given }];
        let checksum = Checksum::of(&rest);
        let record = Record::Parity { volume: volume.id, stripe, born, rows };
        let lsn = self.append_data(&record, &Bufs::from(rest), &[checksum]);
        let word = Word { written, rest: (Rest::Given, Some(checksum)) };
        self.stripes.announce(id, row.row, word, lsn);
        self.journal().commit(Lsn(lsn.0 + 1)).await
    }

    /// Notes that the place of a block counts in parity from now on.
    pub fn put_in_parity(&self, extents: &[Rc<Extent>], block: u64) {
        let (index, inside) = self.split(block);
        let extent = extents.iter().find(|extent| extent.owner.index == index);
        if let Some(extent) = extent.filter(|extent| extent.is_loaded()) {
            let was_clean = extent.put_in_parity(inside);
            self.page_changed(extent, was_clean);
        }
    }

    async fn write_rows(
        &self,
        at: &Stripe,
        rows: &[StripeRow],
        solved: &[Option<Solution>],
        urgency: Urgency,
    ) -> Vec<kura_array::Failure> {
        let columns = (0..usize::from(at.site.shape.columns)).map(|column| {
            let new = rows.iter().filter_map(move |row| Some((row.row, row.new[column].clone()?)));
            (Slot::Column(column), gather(new))
        });
        let parity =
            rows.iter().zip(solved).filter_map(|(row, solved)| Some((row.row, solved.as_ref()?.parity.clone())));
        let slots = columns.chain([(Slot::Parity, gather(parity))]);
        let writes = slots.flat_map(|(slot, writes)| writes.into_iter().map(move |(row, data)| (slot, row, data)));
        let writes = writes.map(|(slot, row, data)| async move {
            let (berth, first, blocks) = (at.berth(slot), at.at(row), data.len() / BLOCK_BYTES);
            let failure = self.array.write_afloat(&berth, first, data, urgency).await;
            if failure.is_none() {
                self.wrote(&berth, first, blocks);
            }
            failure
        });
        join_all(writes).await.into_iter().flatten().collect()
    }

    /// Tells blocks of a column from the other ones of their rows; `None` where that is not what it must be, and an error
    /// instead where a disk refused to read one of them.
    pub async fn reconstruct(
        &self,
        volume: &VolumeState,
        extents: &[Rc<Extent>],
        (stripe, column): (u64, usize),
        wanted: &[(usize, Checksum)],
        urgency: Urgency,
    ) -> Result<Vec<Option<Buf>>> {
        let Some(extent) = extents.first() else { return Ok(vec![None; wanted.len()]) };
        let _lock = self.lock_stripe(stripe_id(volume, extents, stripe)).await?;
        if self.in_stripe(volume, extents, stripe).any(|extent| !extent.is_loaded() && !self.keeps_page(extent)) {
            // Nobody knows what counts in its parity.
            return Ok(vec![None; wanted.len()]);
        }
        let _pins = self.load_stripe(volume, extents, stripe).await?;
        let at = self.stripe_of(extent, stripe);
        let mut rows: Vec<_> =
            wanted.iter().map(|(row, _)| self.stripe_row(volume, extents, stripe, &at, *row)).collect();
        self.read_rows(&at, &mut rows, urgency, |facts| Some(others(facts, Slot::Column(column)))).await;
        let block = |(row, (_, expected)): (&StripeRow, &(usize, Checksum))| {
            let block = row.reconstructed(Slot::Column(column)).filter(|block| Checksum::of(block) == *expected);
            if block.is_none() {
                row.unless_refused()?;
            }
            Ok(block)
        };
        rows.iter().zip(wanted).map(block).collect()
    }
}
