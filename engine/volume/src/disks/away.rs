//! What would be lost without some disks: those that are away when the pool starts, or one that somebody wants to fail.
//!
//! A disk that is away when the pool starts goes out of service for good: it will lack what is written from then on. What lies
//! on such disks only would be lost by the start alone, although it may be whole, on a shelf that is switched on a minute later.
//!
//! What must hold: this is decided before any controller of the pool has written anything. A start that is refused changes
//! nothing, and the same disks, brought back, have everything.

use crate::store::Inner;
use crate::tables::VolumeState;
use crate::tier::FastCopy;
use kura_array::{Place, Shape, Site};
use kura_block::{DeviceId, Error, Result};
use kura_snapshot::PoolTable;
use std::collections::BTreeSet;

/// Volumes that a message names.
const NAMED: usize = 3;
/// What a message says besides where a pool table is among what would be lost.
const TABLE: &str = " (the table of a volume's snapshots among it, without which that volume and they are lost)";

/// Extents that can be read with some disks, and not without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnlyCopies {
    disks: BTreeSet<DeviceId>,
    volumes: BTreeSet<String>,
    /// Extents, one copy counted.
    pub extents: u64,
    /// Some of them hold pages of a pool table: without them the next start gives up a volume and its snapshots.
    pub has_pool_table: bool,
    /// No other disk carries the journal.
    pub has_journal: bool,
}

impl Inner {
    /// Goes on without the disks that are away: refused, unless `degraded`, where something lies on them only.
    pub fn do_without_away(&self, degraded: bool) -> Result<()> {
        let only = self.only_away()?;
        if only.extents == 0 {
            return Ok(());
        }
        let (s, are) = if only.disks.len() > 1 { ("s", "are") } else { ("", "is") };
        let disks: Vec<_> = only.disks.iter().map(|disk| disk.0.to_string()).collect();
        let lies = only.tell(self.array.extent_bytes());
        let what = format!("disk{s} {} {are} away, and {lies} lie nowhere else", disks.join(", "));
        if degraded {
            tracing::error!(controller = self.id.0, "{what}: they are given up");
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{what}: bring the disks back, or start with --degraded to give up what only they have"
        )))
    }

    /// The disks of the pool that were not found.
    pub fn away(&self) -> BTreeSet<DeviceId> {
        let members = self.array.members();
        members.iter().filter(|member| member.is_away() && !member.is_gone()).map(|member| member.id).collect()
    }

    /// Those of them that are in service, and may come back.
    pub fn may_come_back(&self) -> BTreeSet<DeviceId> {
        self.away().difference(&self.tables.borrow().failed).copied().collect()
    }

    fn only_away(&self) -> Result<OnlyCopies> {
        let away = self.may_come_back();
        if away.is_empty() {
            return Ok(OnlyCopies::default());
        }
        self.only_on(&away, false)
    }

    /// What would be lost if this disk failed now.
    pub fn only_on_disk(&self, disk: DeviceId) -> Result<OnlyCopies> {
        if self.array.member(disk).is_none_or(|member| !member.works()) {
            return Ok(OnlyCopies::default());
        }
        let counts = |index: usize| self.journal().is_live(index) && !self.journal().is_joining(index);
        let carriers: BTreeSet<_> =
            self.journal_disks.borrow().iter().filter(|(index, _)| counts(**index)).map(|(_, disk)| *disk).collect();
        let only = self.only_on(&BTreeSet::from([disk]), true)?;
        Ok(OnlyCopies { has_journal: carriers == BTreeSet::from([disk]), ..only })
    }

    /// What lies on these disks and, of the others, on none that works. While the store serves it is known besides which
    /// of the hot extents and fast copies hold something that their homes do not.
    fn only_on(&self, gone: &BTreeSet<DeviceId>, serves: bool) -> Result<OnlyCopies> {
        let mut only = OnlyCopies::default();
        let tables = self.tables.borrow();
        let mut look = |site: &Site, volume: Option<&VolumeState>| {
            let works = |place: &Place| self.array.works(*place);
            let is_gone = |place: &Place| gone.contains(&place.device);
            if site.is_held(|place| works(place) && !is_gone(place))
                || !site.is_held(|place| works(place) || is_gone(place))
            {
                return false;
            }
            only.extents += u64::from(site.shape.extents());
            only.disks.extend(site.places.iter().map(|place| place.device).filter(|disk| gone.contains(disk)));
            let named = volume.filter(|volume| !volume.is_hidden());
            only.volumes.extend(named.map(|volume| volume.spec.borrow().name.clone()));
            true
        };
        // Families on their way are in the image that the new owner has, and perhaps nowhere else.
        let arriving = self.arriving()?;
        let volumes = || tables.volumes.values().chain(arriving.iter().flat_map(|came| came.volumes.values()));
        let mut has_pool_table = false;
        for volume in volumes() {
            for extent in volume.groups() {
                let lost = look(&extent.group.site(), Some(volume));
                let first = u64::from(extent.owner.index) * self.array.extent_blocks() as u64;
                let mut blocks = first..first + self.group_blocks(volume);
                has_pool_table |= lost && volume.is_pool() && blocks.any(PoolTable::is_page);
            }
        }
        let copies = |places| Site::fixed(Shape::MIRROR, places);
        for (_, extent) in self.hot.table.borrow().extents().filter(|(_, extent)| !serves || !extent.is_empty()) {
            look(&copies(extent.places.clone()), None);
        }
        // What is newer in a fast copy than at home was put there twice.
        let holds = |copy: &FastCopy| if serves { !copy.is_clean() } else { copy.places.len() > 1 };
        for copy in self.tier.copies().iter().filter(|copy| holds(copy)) {
            look(&copies(copy.places.clone()), tables.volumes.get(&copy.key().0).map(|volume| &**volume));
        }
        only.has_pool_table = has_pool_table;
        Ok(only)
    }
}

impl OnlyCopies {
    /// This and what another controller says of the same disks.
    pub fn join(mut self, other: Self) -> Self {
        self.disks.extend(other.disks);
        self.volumes.extend(other.volumes);
        self.extents += other.extents;
        self.has_pool_table |= other.has_pool_table;
        self.has_journal |= other.has_journal;
        self
    }

    /// How much it is, and of what.
    pub fn tell(&self, extent_bytes: u64) -> String {
        let mut named: Vec<_> = self.volumes.iter().take(NAMED).cloned().collect();
        if self.volumes.len() > NAMED {
            named.push(format!("{} more", self.volumes.len() - NAMED));
        }
        let of = if named.is_empty() { String::new() } else { format!(" of volumes {}", named.join(", ")) };
        let mib = (self.extents * extent_bytes).div_ceil(1 << 20);
        let table = if self.has_pool_table { TABLE } else { "" };
        format!("{mib} MiB{of}{table}")
    }
}
