//! The tables of a controller's volumes: folds of the journal, and the format of their checkpoint.
//!
//! ```text
//!  version u32  next volume u64  failed disks u16, (disk u16) each  leaving disks u16, (disk u16) each
//!  volumes u32, then each:
//!  volume u64, spec (as in records), extents u32, (index u32, born u64, places as in records) each
//! ```

use crate::extent::{Dirty, Extent};
use crate::record::{Spec, decode_places, encode_places};
use kura_array::PageOwner;
use kura_block::{DeviceId, Error, Reader, Result, Writer};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const VERSION: u32 = 2;

/// A volume's tables and its part of the write buffer.
pub(crate) struct VolumeState {
    pub id: u64,
    pub spec: RefCell<Spec>,
    /// Extents by number; `None` where nothing is allocated.
    pub map: RefCell<Vec<Option<Rc<Extent>>>>,
    /// Blocks not at their place yet, by number.
    pub dirty: RefCell<BTreeMap<u64, Dirty>>,
    pub deleted: Cell<bool>,
    pub opened: Cell<u32>,
}

impl VolumeState {
    pub fn new(id: u64, spec: Spec, extent_bytes: u64) -> Self {
        let extents = spec.size_bytes.div_ceil(extent_bytes) as usize;
        Self {
            id,
            spec: RefCell::new(spec),
            map: RefCell::new(vec![None; extents]),
            dirty: RefCell::default(),
            deleted: Cell::new(false),
            opened: Cell::new(0),
        }
    }

    pub fn extent(&self, index: u32) -> Option<Rc<Extent>> {
        self.map.borrow().get(index as usize)?.clone()
    }

    pub fn size_bytes(&self) -> u64 {
        self.spec.borrow().size_bytes
    }
}

/// Everything a controller must know again after a restart.
#[derive(Default)]
pub(crate) struct Tables {
    /// Number of the next volume made here.
    pub next_volume: u64,
    pub volumes: BTreeMap<u64, Rc<VolumeState>>,
    /// Disks out of service.
    pub failed: BTreeSet<DeviceId>,
    /// Disks that take nothing new and give what they hold to the others.
    pub leaving: BTreeSet<DeviceId>,
}

impl Tables {
    pub fn encode(&self) -> Vec<u8> {
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
            let map = volume.map.borrow();
            out.u32(map.iter().flatten().count() as u32);
            for extent in map.iter().flatten() {
                encode_places(&extent.places(), out.u32(extent.owner.index).u64(extent.owner.born));
            }
        }
        out.finish()
    }

    /// Reads tables written by [`Tables::encode`]; no bytes are the tables of a new controller.
    pub fn decode(bytes: &[u8], extent_bytes: u64) -> Result<Self> {
        let mut tables = Self::default();
        if bytes.is_empty() {
            return Ok(tables);
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
        for _ in 0..reader.u32()? {
            let id = reader.u64()?;
            let volume = VolumeState::new(id, Spec::decode(&mut reader)?, extent_bytes);
            for _ in 0..reader.u32()? {
                let (index, born) = (reader.u32()?, reader.u64()?);
                let places = decode_places(&mut reader)?;
                let owner = PageOwner { volume: id, index, born };
                let mut map = volume.map.borrow_mut();
                let slot = map.get_mut(index as usize).ok_or_else(|| {
                    Error::corrupt(format!("the tables map extent {index} beyond the end of volume {id}"))
                })?;
                *slot = Some(Rc::new(Extent::stored(owner, places)));
            }
            tables.volumes.insert(id, Rc::new(volume));
        }
        Ok(tables)
    }

    /// What does not hold: one line each.
    pub fn check(&self, disks: &BTreeMap<DeviceId, u32>) -> Vec<String> {
        let mut violations = Vec::new();
        let mut seen = BTreeMap::new();
        let mut names = BTreeSet::new();
        for volume in self.volumes.values() {
            let (id, spec) = (volume.id, volume.spec.borrow());
            if !names.insert(spec.name.clone()) {
                violations.push(format!("volume {id}: another volume is named {} too", spec.name));
            }
            for (index, extent) in volume.map.borrow().iter().enumerate() {
                let Some(extent) = extent else { continue };
                let at = format!("volume {} extent {index}", spec.name);
                let on: BTreeSet<_> = extent.places().iter().map(|place| place.device).collect();
                if on.len() != spec.layout.copies() {
                    violations.push(format!("{at}: copies lie on {} disks, not on {}", on.len(), spec.layout.copies()));
                }
                for place in &extent.places() {
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
                if entry.data.is_some() && block * crate::extent::DIRTY_BYTES >= spec.size_bytes {
                    violations
                        .push(format!("volume {}: block {block} in the write buffer is beyond the end", spec.name));
                }
            }
        }
        violations
    }
}
