//! The tables of a controller's volumes: folds of the journal, and the format of their checkpoint.
//!
//! ```text
//!  version u32  next volume u64  failed disks u16, (disk u16) each  leaving disks u16, (disk u16) each
//!  volumes u32, then each:
//!  volume u64, spec and shape (as in records), groups u32, (index u32, born u64, places as in records) each,
//!  versions u8: 0 none; 1: pool volume u64, pvol u64 (0 none), epoch u32, last epoch u32,
//!    being rolled back to: svol u64 (0 none), since u32,
//!    snapshots u32, (epoch u32, svol u64, lsn u64, made u64) each,  holes u32, (group u32, birth u32) each
//!  hot extents u32, (born u64, places as in records) each
//!  fast copies u32, (volume u64, index u32, born u64, places as in records) each
//!  volumes with tier rules u32, (volume u64, rules as in records) each
//!  families that may come u32, (ticket u64, from u16, bytes u32, here u32, bytes of the image) each
//!  families that went u32, (to u16, ticket u64, LSN u64) each,  LSN of the last departure u64,
//!    drained u8
//! ```

use crate::extent::{Dirty, Extent, Group};
use crate::owner::Owners;
use crate::record::{Spec, decode_places, decode_shape, encode_places, encode_shape};
use crate::snapshot::{Branch, BranchFacts};
use crate::straight::Streams;
use crate::tier::{FastTier, HeatMap, Known, TierRules};
use crate::volumes::Volumes;
use kura_array::hot::{HotTable, MirrorId};
use kura_array::{Layout, PageOwner, Places, Shape};
use kura_block::{Checksum, DeviceId, Error, Reader, Result, Sparse, Writer};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// Of the tables, and of the pages that they name.
const VERSION: u32 = 8;

/// A volume's tables and its part of the write buffer.
pub(crate) struct VolumeState {
    pub id: u64,
    pub spec: RefCell<Spec>,
    pub shape: Shape,
    /// Extents by number, whole groups of them; nothing where nothing is allocated.
    map: RefCell<Sparse<Option<Rc<Extent>>>>,
    /// Of these, those that are allocated.
    mapped: Cell<u32>,
    /// Blocks that lie in the hot area, by number.
    pub hot: RefCell<BTreeMap<u64, HotPlace>>,
    /// Blocks not at their place yet, by number.
    pub dirty: RefCell<BTreeMap<u64, Dirty>>,
    /// What a volume with snapshots, or one that is a snapshot, has besides.
    pub branch: RefCell<Option<Rc<Branch>>>,
    /// Writes wait: several volumes are about to have snapshots of one instant.
    pub held: Cell<bool>,
    /// What the user says of its place in the tiers.
    pub tier: Cell<TierRules>,
    /// Requests of its regions.
    pub heat: HeatMap,
    /// The runs of regions with something allocated, of so many extents each, as they were when somebody asked; `None` when the
    /// map has changed since.
    mapped_runs: RefCell<Option<(u32, MappedRuns)>>,
    /// Where large writes to it go on.
    pub streams: RefCell<Streams>,
    /// What clients have asked of it here: a request counts once, and again for every 64 KiB.
    pub work: Cell<u64>,
    pub deleted: Cell<bool>,
    /// It is another controller's; here it counts as deleted.
    pub departed: Cell<bool>,
    /// How many are at work on its records, and would have to write some more.
    staying: Cell<u32>,
    /// How many want nothing of it to go to the hot area.
    pub kept_cold: Cell<u32>,
    pub opened: Cell<u32>,
    /// False until all is there that it has from the start: then it may go again, and nobody else has anything of it.
    pub is_made: Cell<bool>,
}

/// Runs of regions in which something is allocated.
pub(crate) type MappedRuns = Rc<[Range<u32>]>;

/// The runs of regions, which come in order, some of them more than once.
pub(crate) fn runs_of(regions: impl Iterator<Item = u32>) -> MappedRuns {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for region in regions {
        match runs.last_mut() {
            Some(last) if last.end > region => {}
            Some(last) if last.end == region => last.end += 1,
            _ => runs.push(region..region + 1),
        }
    }
    runs.into()
}

/// A volume that stays where it is.
pub(crate) struct Stay(Rc<VolumeState>);

impl Drop for Stay {
    fn drop(&mut self) {
        self.0.staying.set(self.0.staying.get() - 1);
    }
}

/// A volume that is being made.
pub(crate) struct Making(Rc<VolumeState>);

impl Drop for Making {
    fn drop(&mut self) {
        self.0.is_made.set(true);
    }
}

impl VolumeState {
    pub fn new(id: u64, spec: Spec, shape: Shape, extent_bytes: u64) -> Self {
        let volume = Self::unmapped(id, spec, shape);
        volume.fit_map(extent_bytes);
        volume
    }

    /// As [`VolumeState::new`], without a map: what a snapshot has of its own lies in slots, so that it costs the same for
    /// a volume of any size.
    pub fn unmapped(id: u64, spec: Spec, shape: Shape) -> Self {
        Self {
            id,
            spec: RefCell::new(spec),
            shape,
            map: RefCell::default(),
            mapped: Cell::new(0),
            hot: RefCell::default(),
            dirty: RefCell::default(),
            branch: RefCell::default(),
            held: Cell::new(false),
            tier: Cell::default(),
            heat: HeatMap::default(),
            mapped_runs: RefCell::default(),
            streams: RefCell::default(),
            work: Cell::new(0),
            deleted: Cell::new(false),
            staying: Cell::new(0),
            kept_cold: Cell::new(0),
            departed: Cell::new(false),
            opened: Cell::new(0),
            is_made: Cell::new(true),
        }
    }

    /// Extents that are allocated.
    pub fn mapped(&self) -> u32 {
        self.mapped.get()
    }

    /// Refuses what was begun when the volume had another size.
    pub fn check_still(&self, size_bytes: u64) -> Result<()> {
        if self.size_bytes() == size_bytes {
            return Ok(());
        }
        Err(Error::busy(format!("volume {}: its size is being changed: try again later", self.spec.borrow().name)))
    }

    /// Keeps the volume to itself until what this returns is dropped: others find it busy.
    pub fn make(self: &Rc<Self>) -> Making {
        self.is_made.set(false);
        Making(Rc::clone(self))
    }

    /// Keeps the volume with this controller as long as what this returns lives: more records of it are to come.
    pub fn stay(self: &Rc<Self>) -> Stay {
        self.staying.set(self.staying.get() + 1);
        Stay(Rc::clone(self))
    }

    pub fn stays(&self) -> bool {
        self.staying.get() > 0
    }

    /// Makes the map as long as the volume's size asks for.
    pub fn fit_map(&self, extent_bytes: u64) {
        if self.branch().is_some_and(|branch| branch.parent.is_some()) {
            // All it has of its own lies in slots.
            return;
        }
        let groups = self.size_bytes().div_ceil(extent_bytes * u64::from(self.shape.extents()));
        let extents = (groups * u64::from(self.shape.extents())) as u32;
        let mut map = self.map.borrow_mut();
        let cut_off = map.used(extents).filter(|(_, extent)| extent.is_some()).count() as u32;
        self.mapped.set(self.mapped.get() - cut_off);
        map.resize(extents);
        self.mapped_runs.take();
    }

    /// Extents that its size asks for, in whole groups; none where it has no map.
    pub fn extents(&self) -> u32 {
        self.map.borrow().len()
    }

    /// The extents that are allocated, in order, from `from` on.
    pub fn mapped_from(&self, from: u32) -> Vec<Rc<Extent>> {
        self.map.borrow().used(from).filter_map(|(_, extent)| extent.clone()).collect()
    }

    /// The first extent from `from` on that is allocated.
    pub fn next_mapped(&self, from: u32) -> Option<u32> {
        self.map.borrow().used(from).find(|(_, extent)| extent.is_some()).map(|(index, _)| index)
    }

    /// The runs of regions, each of so many extents, in which something is allocated, in order.
    pub fn mapped_runs(&self, region_extents: u32) -> MappedRuns {
        if let Some((of, runs)) = &*self.mapped_runs.borrow()
            && *of == region_extents
        {
            return Rc::clone(runs);
        }
        let map = self.map.borrow();
        let mapped = map.used(0).filter(|(_, extent)| extent.is_some());
        let runs = runs_of(mapped.map(|(index, _)| index / region_extents));
        *self.mapped_runs.borrow_mut() = Some((region_extents, Rc::clone(&runs)));
        runs
    }

    /// True when one of its extents is so.
    pub fn any_mapped(&self, mut is_so: impl FnMut(&Rc<Extent>) -> bool) -> bool {
        self.map.borrow().used(0).any(|(_, extent)| extent.as_ref().is_some_and(&mut is_so))
    }

    /// True where an extent could be and none is.
    pub fn lacks(&self, index: u32) -> bool {
        let map = self.map.borrow();
        index < map.len() && map.get(index).is_none_or(Option::is_none)
    }

    /// The first extent of the group of an extent.
    pub fn first_of(&self, index: u32) -> u32 {
        index / self.shape.extents() * self.shape.extents()
    }

    /// Puts a group of extents into the map, each made by `make`; an error when it lies beyond the volume's end.
    pub fn put_group(
        &self,
        first: u32,
        born: u64,
        places: Places,
        make: impl Fn(PageOwner, Rc<Group>) -> Extent,
    ) -> Result<Vec<Rc<Extent>>> {
        let group = Group::new(self.shape, places, (self.id, born));
        let extents = first..first.saturating_add(self.shape.extents());
        let owner = |index| PageOwner { volume: self.id, index, born };
        let made: Vec<_> = extents.clone().map(|index| Rc::new(make(owner(index), Rc::clone(&group)))).collect();
        self.mapped_runs.take();
        let mut map = self.map.borrow_mut();
        if extents.end > map.len() {
            return Err(Error::corrupt(format!("extent {first} is mapped beyond the end of volume {}", self.id)));
        }
        for (index, extent) in extents.zip(&made) {
            let before = map.get_mut(index).and_then(|slot| slot.replace(Rc::clone(extent)));
            self.mapped.set(self.mapped.get() + u32::from(before.is_none()));
        }
        Ok(made)
    }

    /// Takes the group of an extent out of the map; empty when there is none.
    pub fn take_group(&self, index: u32) -> Vec<Rc<Extent>> {
        let first = self.first_of(index);
        self.mapped_runs.take();
        let mut map = self.map.borrow_mut();
        let group = (first..first + self.shape.extents()).filter(|index| map.get(*index).is_some()).collect::<Vec<_>>();
        let taken: Vec<_> = group.into_iter().filter_map(|index| map.get_mut(index)?.take()).collect();
        self.mapped.set(self.mapped.get() - taken.len() as u32);
        taken
    }

    /// Takes all groups out of the map.
    pub fn take_groups(&self) -> Vec<Vec<Rc<Extent>>> {
        self.groups().iter().map(|first| self.take_group(first.owner.index)).collect()
    }

    /// The extents of the group of an extent.
    pub fn group_of(&self, index: u32) -> Vec<Rc<Extent>> {
        let (map, first) = (self.map.borrow(), self.first_of(index));
        (first..first + self.shape.extents()).filter_map(|index| map.get(index)?.clone()).collect()
    }

    /// The first extent of every group.
    pub fn groups(&self) -> Vec<Rc<Extent>> {
        self.groups_from(0)
    }

    /// The same from a group's first extent on.
    pub fn groups_from(&self, first: u32) -> Vec<Rc<Extent>> {
        let map = self.map.borrow();
        let firsts = map.used(first).filter(|(index, _)| index.is_multiple_of(self.shape.extents()));
        firsts.filter_map(|(_, extent)| extent.clone()).collect()
    }

    pub fn extent(&self, index: u32) -> Option<Rc<Extent>> {
        self.map.borrow().get(index)?.clone()
    }

    /// The slot of a block in the hot area, if it lies there.
    pub fn slot(&self, block: u64) -> Option<MirrorId> {
        self.hot.borrow().get(&block).map(|place| place.id)
    }

    /// What a volume with snapshots, or one that is a snapshot, has besides.
    pub fn branch(&self) -> Option<Rc<Branch>> {
        self.branch.borrow().clone()
    }

    /// Its number without its controller's.
    pub fn number(&self) -> u32 {
        (self.id >> 16) as u32
    }

    /// True for a PoolVOL.
    pub fn is_pool(&self) -> bool {
        self.spec.borrow().is_pool()
    }

    /// True for what nobody sees: PoolVOLs, and snapshots that are deleted but for a roll-back.
    pub fn is_hidden(&self) -> bool {
        self.spec.borrow().is_hidden()
    }

    /// True when blocks of it may lie in the hot area.
    pub fn has_hot_area(&self) -> bool {
        self.spec.borrow().layout == Layout::HotMirror
    }

    pub fn size_bytes(&self) -> u64 {
        self.spec.borrow().size_bytes
    }
}

/// Where a block lies in the hot area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HotPlace {
    pub id: MirrorId,
    /// What its cold place holds, where that is known: an earlier version, or the same.
    pub cold: Option<Checksum>,
}

/// Everything a controller must know again after a restart.
#[derive(Default)]
pub(crate) struct Tables {
    /// Number of the next volume made here.
    pub next_volume: u64,
    pub volumes: Volumes,
    /// Volumes that are being rolled back, or were just now.
    pub rolling: BTreeSet<u64>,
    /// Disks out of service.
    pub failed: BTreeSet<DeviceId>,
    /// Disks that take nothing new and give what they hold to the others.
    pub leaving: BTreeSet<DeviceId>,
}

/// Tables as they were written out, and what is yet to be looked up on the disks.
pub(crate) struct Decoded {
    pub tables: Tables,
    /// Hot extents: their births, and where they lie.
    pub hot: Vec<(u64, Places)>,
    pub copies: Vec<Known>,
    /// Families on their way.
    pub owners: Owners,
}

impl Tables {
    /// True when nothing is to stay on a disk.
    pub fn is_unwanted(&self, disk: DeviceId) -> bool {
        self.failed.contains(&disk) || self.leaving.contains(&disk)
    }

    pub fn encode(&self, hot: &HotTable, tier: &FastTier, owners: &Owners) -> Vec<u8> {
        let mut out = Writer::new();
        out.u32(VERSION).u64(self.next_volume);
        for disks in [&self.failed, &self.leaving] {
            out.u16(disks.len() as u16);
            for device in disks {
                out.u16(device.0);
            }
        }
        out.u32(self.volumes.len() as u32);
        for volume in self.volumes.values() {
            volume.spec.borrow().encode(out.u64(volume.id));
            encode_shape(volume.shape, &mut out);
            let groups = volume.groups();
            out.u32(groups.len() as u32);
            for extent in groups {
                encode_places(&extent.group.places(), out.u32(extent.owner.index).u64(extent.owner.born));
            }
            Branch::encode(volume.branch().as_deref(), &mut out);
        }
        out.u32(hot.extents().count() as u32);
        for (born, extent) in hot.extents() {
            encode_places(&extent.places, out.u64(born));
        }
        tier.encode(&mut out);
        let rules = || self.volumes.values().filter(|volume| volume.tier.get() != TierRules::default());
        out.u32(rules().count() as u32);
        for volume in rules() {
            volume.tier.get().encode(out.u64(volume.id));
        }
        owners.encode(&mut out);
        out.finish()
    }

    /// Reads tables written by [`Tables::encode`], and where the hot extents and fast copies lie; no bytes are the tables of a new
    /// controller.
    pub fn decode(bytes: &[u8], extent_bytes: u64) -> Result<Decoded> {
        let mut tables = Self::default();
        if bytes.is_empty() {
            return Ok(Decoded { tables, hot: Vec::new(), copies: Vec::new(), owners: Owners::default() });
        }
        let mut reader = Reader::new(bytes);
        let version = reader.u32()?;
        if version != VERSION {
            return Err(Error::invalid(format!(
                "the volume tables have format {version} and this kura reads {VERSION}: use the kura that wrote them"
            )));
        }
        tables.next_volume = reader.u64()?;
        for disks in [&mut tables.failed, &mut tables.leaving] {
            for _ in 0..reader.u16()? {
                disks.insert(DeviceId(reader.u16()?));
            }
        }
        let mut branches = Vec::new();
        for _ in 0..reader.u32()? {
            let id = reader.u64()?;
            let (spec, shape) = (Spec::decode(&mut reader)?, decode_shape(&mut reader)?);
            let volume = VolumeState::unmapped(id, spec, shape);
            let groups = reader.u32()?;
            if groups > 0 {
                volume.fit_map(extent_bytes);
            }
            for _ in 0..groups {
                let (first, born) = (reader.u32()?, reader.u64()?);
                volume.put_group(first, born, decode_places(&mut reader)?, Extent::stored)?;
            }
            let branch = BranchFacts::decode(&mut reader)?;
            if branch.as_ref().is_none_or(BranchFacts::has_home) {
                volume.fit_map(extent_bytes);
            }
            branches.extend(branch.map(|branch| (id, branch)));
            tables.volumes.insert(id, Rc::new(volume));
        }
        // A PVOL is older than its SVOL, whose number is higher.
        for (id, facts) in branches {
            tables.join(id, facts)?;
        }
        let hot = (0..reader.u32()?).map(|_| Ok((reader.u64()?, decode_places(&mut reader)?)));
        let hot = hot.collect::<Result<_>>()?;
        let copies = Known::decode_all(&mut reader)?;
        for _ in 0..reader.u32()? {
            let (id, rules) = (reader.u64()?, TierRules::decode(&mut reader)?);
            if let Some(volume) = tables.volumes.get(&id) {
                volume.tier.set(rules);
            }
        }
        let owners = Owners::decode(&mut reader)?;
        Ok(Decoded { tables, hot, copies, owners })
    }

    /// What does not hold: one line each.
    pub fn check(&self, disks: &BTreeMap<DeviceId, u32>, hot: &HotTable, tier: &FastTier) -> Vec<String> {
        let mut violations = self.check_hot(hot);
        violations.extend(self.check_versions());
        let mut seen = BTreeMap::new();
        for (born, extent) in hot.extents() {
            seen.extend(extent.places.iter().map(|place| (*place, format!("hot extent {born}"))));
        }
        for copy in tier.copies() {
            let name = format!("the fast copy of extent {} of volume {}", copy.owner.index, copy.owner.volume);
            for place in &copy.places {
                if let Some(other) = seen.insert(*place, name.clone()) {
                    violations.push(format!(
                        "{name}: extent {} of disk {} is also {other}'s",
                        place.extent.0, place.device.0
                    ));
                }
            }
        }
        let mut names = BTreeSet::new();
        for volume in self.volumes.values() {
            let (id, spec) = (volume.id, volume.spec.borrow());
            if !names.insert(spec.name.clone()) {
                violations.push(format!("volume {id}: another volume is named {} too", spec.name));
            }
            for extent in volume.groups() {
                let at = format!("volume {} extent {}", spec.name, extent.owner.index);
                let places = extent.group.places();
                let on: BTreeSet<_> = places.iter().map(|place| place.device).collect();
                if on.len() != volume.shape.width() {
                    violations.push(format!("{at}: lies on {} disks, not on {}", on.len(), volume.shape.width()));
                }
                for place in &places {
                    if disks.get(&place.device).is_none_or(|extents| place.extent.0 >= *extents) {
                        violations.push(format!("{at}: disk {} has no extent {}", place.device.0, place.extent.0));
                    }
                    if let Some(other) = seen.insert(*place, at.clone()) {
                        violations.push(format!(
                            "{at}: extent {} of disk {} is also {other}'s",
                            place.extent.0, place.device.0
                        ));
                    }
                }
            }
            for (block, entry) in volume.dirty.borrow().iter() {
                if entry.data.is_some() && block * kura_block::BLOCK_BYTES_U64 >= spec.size_bytes {
                    violations
                        .push(format!("volume {}: block {block} in the write buffer is beyond the end", spec.name));
                }
            }
        }
        violations
    }

    /// Every block in the hot area has one slot, which is its own, and every slot one block.
    fn check_hot(&self, hot: &HotTable) -> Vec<String> {
        let mut violations = Vec::new();
        let mut known = 0;
        for volume in self.volumes.values() {
            for (block, HotPlace { id, .. }) in volume.hot.borrow().iter() {
                known += 1;
                let owner = hot.owner(*id).filter(|owner| owner.volume == volume.id);
                if owner.is_none_or(|owner| owner.block != *block) {
                    violations.push(format!("volume {} block {block}: its slot {id:?} is {owner:?}'s", volume.id));
                }
            }
        }
        if known != hot.occupied() {
            violations.push(format!("the hot area has {} blocks, and volumes know of {known}", hot.occupied()));
        }
        violations
    }
}
