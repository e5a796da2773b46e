//! Parity after a crash: made anew for the rows whose writes may have been torn apart.

use crate::record::ParityRow;
use crate::store::Inner;
use crate::stripe::{Slot, Stripe, StripeId};
use crate::tables::VolumeState;
use futures::{StreamExt, stream};
use kura_array::Place;
use kura_array::parity::{bits, xor};
use kura_block::{BLOCK_BYTES, Buf, Bufs, Result};
use kura_journal::Lsn;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Rows mended at once.
const WIDTH: usize = 32;

/// What the log says of rows that were on their way: the last word on each counts.
pub(crate) struct Resync {
    settled: Lsn,
    rows: BTreeMap<(StripeId, usize), Torn>,
}

/// A row that may be torn.
struct Torn {
    /// The group that it was of.
    born: u64,
    written: u32,
    rest: Option<Buf>,
}

impl Resync {
    /// Rows spoken of below `settled` were complete and durable at the last checkpoint.
    pub fn after(settled: Lsn) -> Self {
        Self { settled, rows: BTreeMap::new() }
    }
}

impl Inner {
    /// Replays that places of a stripe were written.
    pub async fn replay_parity(
        &self,
        volume: &Rc<VolumeState>,
        stripe: u64,
        born: u64,
        told: &[ParityRow],
        record: &kura_journal::Record,
        resync: &mut Resync,
    ) -> Result<()> {
        let shape = volume.shape;
        let index = (stripe * shape.stripe_blocks() / self.array.extent_blocks() as u64) as u32;
        if volume.extent(index).is_none_or(|extent| extent.owner.born != born) {
            return Ok(());
        }
        let mut data = 0;
        for told in told {
            let row = usize::from(told.row);
            let rest = told.rest.then(|| record.data.slice(data * BLOCK_BYTES..(data + 1) * BLOCK_BYTES).contiguous());
            data += usize::from(told.rest);
            for column in bits(told.written) {
                let block = shape.block_of(stripe, column, row);
                if let Some(extent) = self.replayed_extent(volume, block, record.lsn).await? {
                    self.put_in_parity(&[extent], block);
                }
            }
            if record.lsn >= resync.settled {
                let torn = Torn { born, written: told.written, rest };
                resync.rows.insert(((volume.id, stripe), row), torn);
            }
        }
        Ok(())
    }

    /// Makes parity agree again with what the written places hold, whatever that is: each of them has its data in the
    /// log. One that cannot be read is told from the log too, and means nothing until then.
    pub async fn resync(&self, resync: Resync) -> Result<()> {
        let blocks = self.array.extent_blocks() as u64;
        let rows = resync.rows.into_iter().filter_map(|((id, row), torn)| {
            let volume = self.tables.borrow().volumes.get(&id.0).cloned()?;
            let extent = volume.extent((id.1 * volume.shape.stripe_blocks() / blocks) as u32)?;
            self.touch(id, row, volume.shape.chunk_blocks.into(), torn.written);
            (extent.owner.born == torn.born).then(|| (self.stripe_of(&extent, id.1), row, torn))
        });
        let mut work = stream::iter(rows).map(|(at, row, torn)| self.resync_row(at, row, torn)).buffer_unordered(WIDTH);
        while let Some(done) = work.next().await {
            done?;
        }
        Ok(())
    }

    async fn resync_row(&self, at: Stripe, row: usize, torn: Torn) -> Result<()> {
        let mut found = Vec::new();
        for column in bits(torn.written) {
            let place = at.place(Slot::Column(column));
            match self.array.read_place(place, at.at(row), 1).await {
                Ok(block) => found.push(block.contiguous()),
                // It may be readable again tomorrow: then with what parity takes it for.
                Err(_) => self.overwrite(place, at.at(row), Bufs::zeroes(BLOCK_BYTES)).await?,
            }
        }
        let parity = xor(found.iter().chain(&torn.rest).map(|block| &**block));
        self.overwrite(at.place(Slot::Parity), at.at(row), parity.into()).await
    }

    async fn overwrite(&self, place: Place, first: usize, data: Bufs) -> Result<()> {
        let failure = self.array.write_place(place, first, data).await;
        self.heed(failure.into_iter().collect()).await
    }
}
