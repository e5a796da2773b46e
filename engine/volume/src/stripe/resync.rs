//! Parity after a crash: made anew for the rows whose writes may have been torn apart.

use crate::extent::Extent;
use crate::record::{ParityRow, Rest};
use crate::store::Inner;
use crate::stripe::{Slot, Stripe, StripeId, Word};
use crate::tables::VolumeState;
use futures::future::join_all;
use futures::{StreamExt, stream};
use kura_array::parity::{bits, xor};
use kura_array::{Berth, Urgency};
use kura_block::{BLOCK_BYTES, Buf, Bufs, Error, Kind, Result};
use kura_journal::Lsn;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Stripes mended at once.
const WIDTH: usize = 32;

/// What the log says of rows that were on their way: the last word on each counts.
pub(crate) struct Resync {
    settled: Lsn,
    rows: BTreeMap<(StripeId, usize), Torn>,
}

/// A row that may be torn.
struct Torn {
    word: Word,
    lsn: Lsn,
    /// The XOR of the columns that were not written; `None` when nobody knows.
    rest: Option<Buf>,
}

/// A stripe of which rows may be torn.
struct TornStripe {
    id: StripeId,
    /// Its group: held, so that its space is not given back meanwhile.
    extents: Vec<Rc<Extent>>,
    rows: Vec<(usize, Torn)>,
}

/// What a record says of a stripe.
pub(crate) struct Told<'a> {
    pub stripe: u64,
    /// The group it was of.
    pub born: u64,
    pub rows: &'a [ParityRow],
    pub record: &'a kura_journal::Record,
}

impl Resync {
    /// Rows spoken of below `settled` were complete and durable at the last checkpoint.
    pub fn after(settled: Lsn) -> Self {
        Self { settled, rows: BTreeMap::new() }
    }

    /// All rows spoken of before this record were complete and durable.
    pub fn settle(&mut self, lsn: Lsn) {
        self.settled = self.settled.max(lsn);
        self.rows.clear();
    }

    /// All rows of a group were complete and durable when one of its places moved.
    pub fn moved(&mut self, volume: u64, born: u64) {
        self.rows.retain(|((of, group, _), _), _| (*of, *group) != (volume, born));
    }
}

impl Inner {
    /// Replays that places of a stripe were written.
    pub async fn replay_parity(&self, volume: &Rc<VolumeState>, told: Told<'_>, resync: &mut Resync) -> Result<()> {
        let Told { stripe, born, rows, record } = told;
        let shape = volume.shape;
        let index = self.index_of(stripe * shape.stripe_blocks());
        if volume.extent(index).is_none_or(|extent| extent.owner.born != born) {
            return Ok(());
        }
        let (mut data, mut checksums) = (record.data.clone(), record.checksums.iter());
        for told in rows {
            let row = usize::from(told.row);
            let checksum = if told.rest == Rest::Given { checksums.next().copied() } else { None };
            let rest = match told.rest {
                Rest::None => Some(Bufs::zeroes(BLOCK_BYTES).contiguous()),
                Rest::Unknown => None,
                Rest::Given => {
                    let given = data.slice(0..BLOCK_BYTES).contiguous();
                    data = data.slice(BLOCK_BYTES..data.len());
                    Some(given)
                }
            };
            for column in bits(told.written) {
                let block = shape.block_of(stripe, column, row);
                if let Some(extent) = self.replayed_extent(volume, block, record.lsn).await? {
                    // Although it may say so already: a page found now may lie on one disk only, and not durably.
                    let was_clean = extent.make_dirty();
                    self.page_changed(&extent, was_clean);
                    self.put_in_parity(&[extent], block);
                }
            }
            if record.lsn >= resync.settled {
                let word = Word { written: told.written, rest: (told.rest, checksum) };
                resync.rows.insert(((volume.id, born, stripe), row), Torn { word, lsn: record.lsn, rest });
            }
        }
        Ok(())
    }

    /// Makes parity agree again with what the written places hold, whatever that is: each of them has its data in the
    /// log, or in the hot area. One that cannot be read means nothing until it is written again.
    pub async fn resync(self: &Rc<Self>, resync: Resync) -> Result<()> {
        let mut stripes: BTreeMap<StripeId, TornStripe> = BTreeMap::new();
        for ((id, row), torn) in resync.rows {
            let (volume, born, stripe) = id;
            let Some(volume) = self.tables.borrow().volumes.get(&volume).cloned() else { continue };
            let index = self.index_of(stripe * volume.shape.stripe_blocks());
            if volume.extent(index).is_none_or(|extent| extent.owner.born != born) {
                continue;
            }
            self.stripes.announce(id, row, torn.word, torn.lsn);
            let torn_one = || TornStripe { id, extents: volume.group_of(index), rows: Vec::new() };
            stripes.entry(id).or_insert_with(torn_one).rows.push((row, torn));
        }
        let mut work = stream::iter(stripes.into_values()).map(|torn| self.resync_stripe(torn)).buffer_unordered(WIDTH);
        let mut all = Ok(());
        while let Some(done) = work.next().await {
            all = all.and(done);
        }
        all
    }

    /// Makes the torn rows of a stripe whole. Where a disk is full that goes on by itself, for all others can be served; until it has
    /// come to its end the stripe counts as one on its way: who needs it comes again, and no checkpoint calls it at rest.
    async fn resync_stripe(self: &Rc<Self>, torn: TornStripe) -> Result<()> {
        match self.resync_rows(&torn).await {
            Err(full) if full.kind() == Kind::Full => {
                self.stripes.take(torn.id);
                let inner = Rc::clone(self);
                self.runtime.spawn(Box::pin(async move { inner.resync_with_room(&torn, full).await }));
                Ok(())
            }
            done => done,
        }
    }

    async fn resync_with_room(&self, torn: &TornStripe, mut full: Error) {
        let _flying = self.on_its_way(torn.id, 0);
        while self.wait_for_room(torn.id, full).await.is_ok() {
            full = match self.resync_rows(torn).await {
                Ok(()) => return self.found_room(),
                // Or the journal has failed, and with it all of the store.
                Err(error) => error,
            };
        }
    }

    async fn resync_rows(&self, torn: &TornStripe) -> Result<()> {
        let Some(extent) = torn.extents.first() else { return Ok(()) };
        let (.., stripe) = torn.id;
        let at = &self.stripe_of(extent, stripe);
        let rows = torn.rows.iter().map(|(row, torn)| self.resync_row(at, *row, torn));
        join_all(rows).await.into_iter().collect()
    }

    async fn resync_row(&self, at: &Stripe, row: usize, torn: &Torn) -> Result<()> {
        let Some(rest) = &torn.rest else { return Ok(()) };
        let mut found = Vec::new();
        for column in bits(torn.word.written) {
            let berth = at.berth(Slot::Column(column));
            match self.array.read_place(&berth, at.at(row), 1, Urgency::Client).await {
                Ok(block) => found.push(block.contiguous()),
                // It may be readable again tomorrow: then with what parity takes it for.
                Err(_) => self.overwrite(&berth, at.at(row), Bufs::zeroes(BLOCK_BYTES)).await?,
            }
        }
        let parity = xor(found.iter().chain([rest]).map(|block| &**block));
        self.overwrite(&at.berth(Slot::Parity), at.at(row), parity.into()).await
    }

    async fn overwrite(&self, berth: &Berth, first: usize, data: Bufs) -> Result<()> {
        let failure = self.array.write_place(berth, first, data, Urgency::Client).await;
        self.heed(failure).await
    }
}
