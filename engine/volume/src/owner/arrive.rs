//! The new owner's part: the image of a family is kept, and then the family is here.

use super::depart::Untidy;
use super::{Arrival, Departure, OwnerRecord, PART_BYTES};
use crate::checkpoint::TABLES_FOR_VOLUMES;
use crate::record::Record;
use crate::snapshot::{PoolVol, Tidying};
use crate::store::{Inner, Store};
use crate::tables::{Tables, VolumeState};
use crate::write::checksums_of;
use kura_array::Place;
use kura_block::{BLOCK_BYTES, BufMut, Bufs, ControllerId, DeviceId, Error, ExtentId, Result};
use kura_journal::Lsn;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What a controller has for a family that may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub(super) u64);

/// What a family holds: extents by disk, and names.
type Holdings = (BTreeMap<DeviceId, Vec<ExtentId>>, Vec<String>);

impl Store {
    /// Keeps the image of a family that may come from another controller; durable when the future resolves.
    pub async fn expect(&self, from: ControllerId, image: &[u8]) -> Result<Ticket> {
        let inner = &self.inner;
        inner.journal().alive()?;
        let failed = Tables::decode(image, inner.array.extent_bytes())?.tables.failed;
        for device in failed {
            if !inner.tables.borrow().failed.contains(&device) {
                inner.fail_disk(device).await?;
            }
        }
        inner.room_in_tables(image.len() as u64, TABLES_FOR_VOLUMES)?;
        // It may have been here before.
        if inner.owners.borrow().last >= inner.journal().tail() {
            inner.pass_all().await?;
        }
        let mut ticket = 0;
        let kept = inner.keep_image(from, image, &mut ticket).await;
        if kept.is_err() {
            self.cancel(Ticket(ticket));
        }
        kept.map(|()| Ticket(ticket))
    }

    /// A family does not come.
    pub fn cancel(&self, ticket: Ticket) {
        let inner = &self.inner;
        if inner.owners.borrow_mut().arrivals.remove(&ticket.0).is_some() {
            inner.append(&Record::Owner(OwnerRecord::Cancelled { ticket: ticket.0 }));
        }
    }

    /// Families that may come: from whom, and the tickets.
    pub fn arrivals(&self) -> Vec<(ControllerId, Ticket)> {
        let owners = self.inner.owners.borrow();
        owners.arrivals.iter().map(|(ticket, arrival)| (ControllerId(arrival.from), Ticket(*ticket))).collect()
    }

    /// The family is here, and served from now on; durable after the next flush.
    pub async fn arrive(&self, ticket: Ticket, departure: Departure) -> Result<()> {
        let inner = &self.inner;
        let (from, came) = inner.expected(ticket)?;
        let (extents, names) = holdings(&came);
        for (device, extents) in extents {
            inner.share.adopt(Some(from), device, extents).await?;
        }
        for name in names {
            inner.share.names().await?.adopt(&name).await?;
        }
        inner.settle_in(ticket, departure.past, came);
        inner.take_over(departure);
        inner.stir_all();
        // What a thick volume lacks is this controller's to allocate.
        inner.runtime.spawn(Box::pin(Rc::clone(inner).fill_thick()));
        Ok(())
    }

    /// As [`Store::arrive`], at a start: the old owner has let it go before, when its log was at `past`.
    pub async fn arrive_late(&self, ticket: Ticket, past: Lsn) -> Result<()> {
        let inner = &self.inner;
        let (_, came) = inner.expected(ticket)?;
        let (extents, names) = holdings(&came);
        for (device, extents) in extents {
            inner.share.adopt(None, device, extents).await?;
        }
        for name in names {
            inner.share.names().await?.take(&name).await?;
        }
        let families = came.families();
        inner.settle_in(ticket, Lsn(past.0 + 1), came);
        for pool_vol in families {
            inner.load_family(&pool_vol, &[]).await?;
        }
        inner.commit_all().await
    }
}

/// What the members of a family hold.
fn holdings(came: &Tables) -> Holdings {
    let mut extents: BTreeMap<DeviceId, Vec<ExtentId>> = BTreeMap::new();
    let mut names = Vec::new();
    for volume in came.volumes.values() {
        if !volume.is_hidden() {
            names.push(volume.spec.borrow().name.clone());
        }
        for Place { device, extent } in volume.groups().iter().flat_map(|extent| extent.group.places()) {
            extents.entry(device).or_default().push(extent);
        }
    }
    (extents, names)
}

impl Inner {
    /// Writes an image to the log; `ticket` is set as soon as some of it may be there.
    async fn keep_image(&self, from: ControllerId, image: &[u8], ticket: &mut u64) -> Result<()> {
        let bytes = image.len() as u32;
        for part in image.chunks(PART_BYTES) {
            self.make_room(part.len() as u64).await?;
            let mut data = BufMut::room(part.len().next_multiple_of(BLOCK_BYTES));
            data[..part.len()].copy_from_slice(part);
            data[part.len()..].fill(0);
            let data = Bufs::from(data.freeze());
            let checksums = checksums_of(&data);
            let record = Record::Owner(OwnerRecord::Arriving { ticket: *ticket, from, bytes });
            let lsn = self.append_data(&record, &data, &checksums);
            let mut owners = self.owners.borrow_mut();
            if *ticket == 0 {
                *ticket = lsn.0;
                owners.arrivals.insert(*ticket, Arrival { from: from.0, bytes: bytes as usize, image: Vec::new() });
            }
            if let Some(arrival) = owners.arrivals.get_mut(ticket) {
                arrival.add(part);
            }
        }
        self.commit_all().await
    }

    fn expected(&self, ticket: Ticket) -> Result<(ControllerId, Tables)> {
        let arrival = self.owners.borrow().arrivals.get(&ticket.0).cloned();
        let arrival = arrival.ok_or_else(|| Error::invalid(format!("nothing is expected with ticket {}", ticket.0)))?;
        let came = Tables::decode(&arrival.image, self.array.extent_bytes())?.tables;
        Ok((ControllerId(arrival.from), came))
    }

    fn settle_in(&self, ticket: Ticket, past: Lsn, came: Tables) {
        self.journal().skip_to(past);
        self.append(&Record::Owner(OwnerRecord::Arrived { ticket: ticket.0 }));
        self.owners.borrow_mut().arrivals.remove(&ticket.0);
        self.take_in(came);
    }

    /// Takes what the old owner had in memory.
    fn take_over(&self, departure: Departure) {
        let Departure { versions, table, untidy, .. } = departure;
        let of = |id: u64| -> Option<Rc<VolumeState>> { self.tables.borrow().volumes.get(&id).cloned() };
        let mut pool_vol: Option<Rc<PoolVol>> = None;
        for (id, pvol) in versions {
            if let Some(branch) = of(id).and_then(|volume| volume.branch()) {
                branch.pvol.replace(pvol);
                pool_vol = Some(Rc::clone(&branch.pool_vol));
            }
        }
        if let (Some(pool_vol), Some(mut table)) = (&pool_vol, table) {
            table.put_back_taken();
            pool_vol.table.replace(table);
        }
        for what in untidy {
            match what {
                Untidy::Versions(id, keys) => {
                    if let Some(volume) = of(id) {
                        self.tidy.add(Tidying::Versions { volume, keys });
                    }
                }
                Untidy::Holes(id) => {
                    if let Some(volume) = of(id) {
                        self.tidy.add(Tidying::holes(&volume));
                    }
                }
                Untidy::Slots(slots) => {
                    if let Some(pool_vol) = &pool_vol {
                        self.tidy.add(Tidying::Slots { pool_vol: Rc::clone(pool_vol), slots });
                    }
                }
            }
        }
    }
}
