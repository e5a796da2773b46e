//! Which controller owns a volume, and how that changes.
//!
//! A volume moves with its family: its snapshots and clones, theirs, and the PoolVOL they share. Its data stays where it is, but
//! for what lies in the fast tier or in the hot area, which are its controller's: that goes to its own places before.
//!
//! ```text
//!   old owner                                   new owner
//!   at rest, tables of the family ── image ──>  arriving: the image, durable; nothing of it counts yet     = the ticket
//!   departed, with that ticket, durable         <- here ownership changes
//!   index and pool table, in memory ─────────>  numbers skipped, arrived
//!                                    <────────  durable
//!   departure forgotten
//! ```
//!
//! What must hold:
//! 1. One record says who the owner is, the old owner's *departed*: a crash before it is durable leaves the family there,
//!    one after it lets the new owner have it, whose ticket that record names.
//! 2. When *departed* is appended, the image says what the tables say, all the family's data and pages are at their places,
//!    durable, and the tail has passed every record of them: no replay of the old log reads or writes there.
//! 3. The new owner's records come after the old one's also by their numbers: births and stamps stay as they are.
//! 4. A family comes back only when the tail has passed its departure: no replay takes what was before for what is after.
//! 5. The old owner knows of a departure until the new owner's *arrived* is durable.

mod arrive;
mod depart;
mod down;
mod record;

pub use arrive::Ticket;
pub use depart::{Departing, Departure, Still};
pub use down::KeptCold;
pub(crate) use record::OwnerRecord;

use crate::record::Record;
use crate::store::{Inner, Store};
use crate::tables::{Tables, VolumeState};
use kura_array::hot::HotTable;
use kura_block::{BLOCK_BYTES, ControllerId, Error, Reader, Result, Writer};
use kura_journal::Lsn;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Families on their way, as one controller knows of them.
#[derive(Default)]
pub(crate) struct Owners {
    /// Families that may come, by ticket.
    arrivals: BTreeMap<u64, Arrival>,
    /// Families that went, until the new owner has them durably: to whom, with which ticket; and where the log was then.
    departures: BTreeMap<(u16, u64), Lsn>,
    /// The last departure.
    last: Lsn,
    /// The controller takes no volumes.
    drained: bool,
}

/// A family that may come.
#[derive(Clone)]
struct Arrival {
    from: u16,
    /// Bytes of the image.
    bytes: usize,
    /// As much of it as there is.
    image: Vec<u8>,
}

impl Arrival {
    fn add(&mut self, data: &[u8]) {
        let lacking = self.bytes.saturating_sub(self.image.len());
        self.image.extend_from_slice(&data[..lacking.min(data.len())]);
    }
}

impl Owners {
    pub fn encode(&self, out: &mut Writer) {
        out.u32(self.arrivals.len() as u32);
        for (ticket, arrival) in &self.arrivals {
            out.u64(*ticket).u16(arrival.from).u32(arrival.bytes as u32).u32(arrival.image.len() as u32);
            out.bytes(&arrival.image);
        }
        out.u32(self.departures.len() as u32);
        for ((to, ticket), lsn) in &self.departures {
            out.u16(*to).u64(*ticket).u64(lsn.0);
        }
        out.u64(self.last.0).u8(u8::from(self.drained));
    }

    pub fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let mut owners = Self::default();
        for _ in 0..reader.u32()? {
            let (ticket, from, bytes, here) = (reader.u64()?, reader.u16()?, reader.u32()?, reader.u32()?);
            let image = reader.bytes(here as usize)?.to_vec();
            owners.arrivals.insert(ticket, Arrival { from, bytes: bytes as usize, image });
        }
        for _ in 0..reader.u32()? {
            owners.departures.insert((reader.u16()?, reader.u64()?), Lsn(reader.u64()?));
        }
        owners.last = Lsn(reader.u64()?);
        // Tables of a kura that did not keep it end here.
        owners.drained = !reader.is_done() && reader.u8()? != 0;
        Ok(owners)
    }
}

impl Store {
    /// True when the controller is to take no volumes.
    pub fn is_drained(&self) -> bool {
        self.inner.owners.borrow().drained
    }

    /// Says whether the controller is to take volumes; durable when the future resolves.
    pub async fn set_drained(&self, drained: bool) -> Result<()> {
        let inner = &self.inner;
        inner.journal().alive()?;
        if inner.owners.borrow().drained != drained {
            inner.append(&Record::Owner(OwnerRecord::Drained { drained }));
            inner.owners.borrow_mut().drained = drained;
        }
        // Also what somebody else has just said.
        inner.commit_all().await
    }
}

impl Inner {
    /// A volume's family, with the PoolVOL: all that moves with it.
    fn kin(&self, volume: &Rc<VolumeState>) -> Vec<Rc<VolumeState>> {
        let Some(pool_vol) = volume.branch().map(|branch| Rc::clone(&branch.pool_vol)) else {
            return vec![Rc::clone(volume)];
        };
        let tables = self.tables.borrow();
        let is_kin = |one: &&Rc<VolumeState>| {
            Rc::ptr_eq(one, &pool_vol.volume)
                || one.branch().is_some_and(|branch| Rc::ptr_eq(&branch.pool_vol, &pool_vol))
        };
        tables.volumes.values().filter(is_kin).cloned().collect()
    }

    /// The image of a family: tables that have it and nothing else, but for the disks out of service, and the number that no volume
    /// had yet which may have slots there, living or gone.
    fn image(&self, kin: &[Rc<VolumeState>]) -> Vec<u8> {
        let tables = Tables {
            volumes: kin.iter().map(|volume| (volume.id, Rc::clone(volume))).collect(),
            failed: self.tables.borrow().failed.clone(),
            next_volume: self.tables.borrow().next_volume,
            ..Tables::default()
        };
        let hot = HotTable::new(self.id.0, self.settings.hot, self.array.extent_blocks());
        tables.encode(&hot, &crate::tier::FastTier::default(), &Owners::default())
    }

    /// Replays what happened to owners.
    pub fn replay_owner(&self, change: OwnerRecord, record: &kura_journal::Record) -> Result<()> {
        let mut owners = self.owners.borrow_mut();
        match change {
            OwnerRecord::Arriving { ticket: 0, from, bytes } => {
                let mut arrival = Arrival { from: from.0, bytes: bytes as usize, image: Vec::new() };
                arrival.add(&record.data.contiguous());
                owners.arrivals.insert(record.lsn.0, arrival);
            }
            OwnerRecord::Arriving { ticket, .. } => {
                if let Some(arrival) = owners.arrivals.get_mut(&ticket) {
                    arrival.add(&record.data.contiguous());
                }
            }
            OwnerRecord::Arrived { ticket } => {
                let Some(arrival) = owners.arrivals.remove(&ticket) else {
                    return Err(Error::corrupt(format!("a family arrived with ticket {ticket}, which nobody has")));
                };
                drop(owners);
                let came = Tables::decode(&arrival.image, self.array.extent_bytes())?.tables;
                self.take_in(came);
            }
            OwnerRecord::Cancelled { ticket } => {
                owners.arrivals.remove(&ticket);
            }
            OwnerRecord::Departed { volume, to, ticket } => {
                owners.departures.insert((to.0, ticket), record.lsn);
                owners.last = record.lsn;
                drop(owners);
                let state = self.tables.borrow().volumes.get(&volume).cloned();
                let state = state.ok_or_else(|| {
                    Error::corrupt(format!("the journal lets volume {volume} go, which does not exist"))
                })?;
                for member in self.kin(&state) {
                    self.drop_dirty(&member, 0, u64::MAX);
                    // What the replay has made of its pages must never come over those of the new owner.
                    self.dirty_pages.borrow_mut().retain(|extent| extent.owner.volume != member.id);
                    self.tables.borrow_mut().volumes.remove(member.id);
                }
            }
            OwnerRecord::Forgotten { to, ticket } => {
                owners.departures.remove(&(to.0, ticket));
            }
            OwnerRecord::Drained { drained } => owners.drained = drained,
        }
        Ok(())
    }

    /// The tables of families that may come, of which all is here.
    pub fn arriving(&self) -> Result<Vec<Tables>> {
        let owners = self.owners.borrow();
        let whole = owners.arrivals.values().filter(|arrival| arrival.image.len() == arrival.bytes);
        whole.map(|arrival| Ok(Tables::decode(&arrival.image, self.array.extent_bytes())?.tables)).collect()
    }

    /// Puts a family that came into the tables; what is made here from now on has higher numbers than its members, and than those
    /// that are gone: they may have slots yet.
    fn take_in(&self, came: Tables) {
        let tables = &mut *self.tables.borrow_mut();
        let highest = came.volumes.keys().map(|id| id >> 16).max().unwrap_or(0);
        tables.next_volume = tables.next_volume.max(highest).max(came.next_volume);
        tables.volumes.extend(came.volumes);
        tables.rolling.extend(came.rolling);
    }

    /// Moves the journal's tail past all that is appended so far.
    async fn pass_all(&self) -> Result<()> {
        let head = self.journal().next_lsn();
        for _ in 0..PASSES {
            self.commit_all().await?;
            self.checkpoint().await?;
            if self.journal().tail() >= head {
                return Ok(());
            }
        }
        Err(Error::busy("the journal's tail does not come forward: try again when less is written"))
    }
}

/// Checkpoints that are tried to move the tail to where the head was, and such moves until a family has nothing behind it.
const PASSES: u32 = 4;

/// Bytes of an image in one record.
const PART_BYTES: usize = 64 * BLOCK_BYTES;

/// A controller, and its ticket for what moves there.
type Destination = (ControllerId, Ticket);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_tables_say_nothing_of_a_drain() {
        let mut out = Writer::new();
        Owners { drained: true, last: Lsn(7), ..Owners::default() }.encode(&mut out);
        let bytes = out.finish();
        assert!(Owners::decode(&mut Reader::new(&bytes)).unwrap().drained);
        let older = Owners::decode(&mut Reader::new(&bytes[..bytes.len() - 1])).unwrap();
        assert!(!older.drained && older.last == Lsn(7));
    }
}
