//! Making a pool on disks, and putting one together from the disks that are found.

use crate::Opener;
use futures::future::{join_all, try_join_all};
use kura_array::{Class, JournalPart, Label, LabelMember, Member, Plan, read_label, write_label};
use kura_block::{Amount, Block, DeviceId, Error, Result};
use kura_journal::{Identity, JournalCopy, Shape};
use kura_volume::JournalPlace;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// A disk that joins a pool.
pub struct NewDisk {
    /// Where it is: for messages.
    pub path: String,
    /// The disk.
    pub device: Rc<dyn Block>,
    /// What it is used for.
    pub class: Class,
    /// A fresh UUID.
    pub uuid: [u8; 16],
}

/// What a pool's plan needs to know of a disk.
#[derive(Clone, Copy, Debug)]
pub struct DiskFacts<'a> {
    /// Where it is: for messages.
    pub path: &'a str,
    /// What it is used for.
    pub class: Class,
    /// Its size.
    pub size_bytes: u64,
}

impl NewDisk {
    fn facts(&self) -> DiskFacts<'_> {
        DiskFacts { path: &self.path, class: self.class, size_bytes: self.device.geometry().size_bytes }
    }
}

/// A pool to be made.
#[derive(Clone, Copy, Debug)]
pub struct PoolSpec {
    /// A fresh UUID.
    pub uuid: [u8; 16],
    /// Bytes in an extent: a power of two from 64 KiB to 64 MiB.
    pub extent_bytes: u64,
    /// Controllers; each has its own journal.
    pub controllers: u16,
    /// Bytes of each journal's ring.
    pub journal_bytes: u64,
}

/// The largest extent that a pool may have.
pub const EXTENT_MAX_BYTES: u64 = *Plan::EXTENT_RANGE_BYTES.end();
/// Copies of each journal at most.
pub(crate) const JOURNAL_COPIES: usize = 2;
/// The smallest area for a controller's tables.
const TABLES_MIN_BYTES: u64 = 1 << 20;
/// Bytes in the tables for an extent of a mirrored volume, doubled for a pool that grows.
const TABLES_EXTENT_BYTES: u64 = 2 * 25;

/// Where the journals of a pool will lie: ranges of bytes on `disks`, by their number. A caller whose disks are files
/// does well to fill them with zeroes first: a journal that must not wait for a file system's metadata is several times
/// as fast.
pub fn journal_ranges(disks: &[NewDisk], spec: &PoolSpec) -> Vec<(usize, Range<u64>)> {
    let disks: Vec<_> = disks.iter().map(NewDisk::facts).collect();
    let region_bytes = shape_for(&disks, spec).region_bytes();
    let range = Label::journal_at(0, region_bytes)..Label::journal_at(spec.controllers, region_bytes);
    journal_disks(&disks).into_iter().map(|disk| (disk, range.clone())).collect()
}

/// Refuses a pool that such disks cannot be made into: to be asked before anything is written.
pub fn check_fits(disks: &[DiskFacts<'_>], spec: &PoolSpec) -> Result<()> {
    plans(disks, spec).map(drop)
}

/// What is to lie where on each disk.
fn plans(disks: &[DiskFacts<'_>], spec: &PoolSpec) -> Result<Vec<Plan>> {
    if disks.is_empty() {
        return Err(Error::invalid("a pool without disks: give at least one"));
    }
    if spec.controllers == 0 {
        return Err(Error::invalid("a pool without controllers: give at least one"));
    }
    let (region_bytes, carriers) = (shape_for(disks, spec).region_bytes(), journal_disks(disks));
    let plan = |(id, disk): (usize, &DiskFacts<'_>)| {
        let controllers = if carriers.contains(&id) { spec.controllers } else { 0 };
        let plan = Plan::of(disk.size_bytes, spec.extent_bytes, region_bytes * u64::from(controllers))?;
        if plan.extents > 0 {
            return Ok(plan);
        }
        let DiskFacts { path, size_bytes, .. } = *disk;
        Err(Error::invalid(match controllers {
            0 => format!(
                "{path}: {} are too few for an extent of {}: give a larger disk",
                Amount(size_bytes),
                Amount(spec.extent_bytes)
            ),
            _ => format!(
                "{path}: {} have no room for an extent of {} beside the journals of {controllers} controllers, {} each: \
                 give a larger disk, fewer controllers or a smaller journal",
                Amount(size_bytes),
                Amount(spec.extent_bytes),
                Amount(region_bytes)
            ),
        }))
    };
    disks.iter().enumerate().map(plan).collect()
}

/// Makes a pool: everything on the disks is lost. The journals lie on the first two fast disks, or on the first two
/// where there is no fast one.
pub async fn format(disks: &[NewDisk], spec: &PoolSpec) -> Result<()> {
    let facts: Vec<_> = disks.iter().map(NewDisk::facts).collect();
    let (plans, shape, carriers) = (plans(&facts, spec)?, shape_for(&facts, spec), journal_disks(&facts));
    let members: Vec<_> = disks
        .iter()
        .enumerate()
        .map(|(id, disk)| LabelMember {
            uuid: disk.uuid,
            class: disk.class,
            journal: carriers.iter().position(|carrier| *carrier == id).map(|copy| copy as u8),
            gone: false,
            extents: plans[id].extents,
        })
        .collect();
    for controller in 0..spec.controllers {
        let at = Label::journal_at(controller, shape.region_bytes());
        let copies: Vec<_> =
            carriers.iter().map(|id| JournalCopy { device: Rc::clone(&disks[*id].device), offset: at }).collect();
        kura_journal::format(&copies, shape, Identity { pool: spec.uuid, controller }).await?;
    }
    let labels = disks.iter().zip(plans).enumerate().map(|(id, (disk, plan))| {
        let label = Label {
            pool: spec.uuid,
            generation: 1,
            id: DeviceId(id as u16),
            controllers: spec.controllers,
            plan,
            journal: JournalPart { tables_bytes: shape.tables_bytes, ring_bytes: shape.ring_bytes },
            members: members.clone(),
        };
        async move { write_label(&*disk.device, &label).await.map_err(|error| error.at(&disk.path)) }
    });
    try_join_all(labels).await?;
    Ok(())
}

fn shape_for(disks: &[DiskFacts<'_>], spec: &PoolSpec) -> Shape {
    let bytes: u64 = disks.iter().map(|disk| disk.size_bytes).sum();
    let tables_bytes = (bytes / spec.extent_bytes.max(1) * TABLES_EXTENT_BYTES).max(TABLES_MIN_BYTES);
    Shape { tables_bytes: tables_bytes.next_multiple_of(1 << 20), ring_bytes: spec.journal_bytes }
}

fn journal_disks(disks: &[DiskFacts<'_>]) -> Vec<usize> {
    let fast: Vec<_> = (0..disks.len()).filter(|id| disks[*id].class == Class::Fast).take(JOURNAL_COPIES).collect();
    if fast.is_empty() { (0..disks.len()).take(JOURNAL_COPIES).collect() } else { fast }
}

/// A disk as it was found: its path, and the device.
pub(crate) type Found = (String, Rc<dyn Block>);

/// A disk of a pool, as the pool's labels know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDisk {
    /// Its number.
    pub id: u16,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// What it is used for.
    pub class: Class,
    /// True when it carries journals.
    pub has_journals: bool,
    /// Where it was found; `None` when it is away.
    pub path: Option<String>,
}

/// A pool, as its labels tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPool {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// How often its membership has changed, counted from 1.
    pub generation: u64,
    /// Its controllers.
    pub controllers: u16,
    /// Its disks, by number; those that have left it are not among them.
    pub disks: Vec<FoundDisk>,
}

/// Finds out which pool the disks at `paths` make up, from their labels alone. Refuses disks of several pools, without a
/// label, or named twice; which disks are away the answer tells.
pub async fn survey(paths: &[String], opener: &Opener) -> Result<FoundPool> {
    let mut found = Vec::new();
    for path in paths {
        let device = opener(path)?;
        if read_label(&*device).await.map_err(|error| error.at(path))?.is_none() {
            return Err(Error::invalid(format!("{path}: no kura label: it is not a disk of a pool")));
        }
        found.push((path.clone(), device));
    }
    let Assembled { label, found, .. } = assemble(found).await?;
    let disks = label.members.iter().zip(found).enumerate().filter(|(_, (member, _))| !member.gone);
    let disks = disks.map(|(id, (member, found))| FoundDisk {
        id: id as u16,
        uuid: member.uuid,
        class: member.class,
        has_journals: member.journal.is_some(),
        path: found.map(|(path, _)| path),
    });
    let disks = disks.collect();
    Ok(FoundPool { uuid: label.pool, generation: label.generation, controllers: label.controllers, disks })
}

/// A pool put together from the disks that were found.
pub(crate) struct Assembled {
    /// The newest label.
    pub label: Label,
    /// Where each member was found, by id; `None` when it is away.
    pub found: Vec<Option<Found>>,
    /// What lies where on each member, by id.
    plans: Vec<Plan>,
}

/// Puts a pool together. Refuses disks without a label, of several pools, or named twice; a pool may lack disks.
pub(crate) async fn assemble(found: Vec<Found>) -> Result<Assembled> {
    let mut labels: BTreeMap<DeviceId, (Label, Found)> = BTreeMap::new();
    let mut newest: Option<Label> = None;
    let mut strangers = Vec::new();
    // At once: a disk that hangs takes as long as several that do.
    let labels_found = join_all(found.iter().map(|(_, device)| read_label(&**device))).await;
    for ((path, device), label) in found.into_iter().zip(labels_found) {
        let label = match label {
            Ok(Some(label)) => label,
            Ok(None) => {
                let why = "no kura label: it is not a disk of a pool; make one with `kura pool create`";
                strangers.push(Error::invalid(format!("{path}: {why}")));
                continue;
            }
            Err(error) => {
                strangers.push(error.at(&path));
                continue;
            }
        };
        if newest.as_ref().is_some_and(|newest| newest.pool != label.pool) {
            return Err(Error::invalid(format!(
                "{path}: belongs to another pool than the disks before it: name the disks of one pool"
            )));
        }
        if newest.as_ref().is_none_or(|newest| newest.generation < label.generation) {
            newest = Some(label.clone());
        }
        if let Some((_, (other, _))) = labels.insert(label.id, (label.clone(), (path.clone(), device))) {
            return Err(Error::invalid(format!(
                "{path}: is the same disk of the pool as {other}: name each disk once"
            )));
        }
    }
    // A disk without a readable label may be a damaged member, as long as one is away.
    if let Some(newest) = &newest {
        // A disk that left may still be there with its old label.
        let gone = |id: &DeviceId| newest.members.get(usize::from(id.0)).is_some_and(|member| member.gone);
        labels.retain(|id, _| !gone(id));
    }
    let expected = newest.as_ref().map_or(0, |newest| newest.members.iter().filter(|member| !member.gone).count());
    let away = expected.saturating_sub(labels.len());
    if strangers.len() > away {
        return Err(strangers.swap_remove(0));
    }
    let label = newest.ok_or_else(|| Error::invalid("a pool without disks: give at least one"))?;
    let mut assembled = Assembled { found: Vec::new(), plans: Vec::new(), label };
    for (id, member) in assembled.label.members.iter().enumerate() {
        let here = labels.remove(&DeviceId(id as u16)).filter(|(label, _)| label.own().uuid == member.uuid);
        let away = Plan { extents: member.extents, ..assembled.label.plan };
        assembled.plans.push(here.as_ref().map_or(away, |(label, _)| label.plan));
        assembled.found.push(here.map(|(_, found)| found));
    }
    if let Some((_, (path, _))) = labels.into_values().next() {
        return Err(Error::invalid(format!("{path}: was replaced in its pool: it is not a member any more")));
    }
    Ok(assembled)
}

impl Assembled {
    /// The members, by id.
    pub fn members(&self) -> Vec<Member> {
        let all = self.label.members.iter().zip(&self.plans).zip(&self.found).enumerate();
        all.map(|(id, ((member, plan), found))| {
            let device = found.as_ref().map(|(_, device)| Rc::clone(device));
            let made = Member::new(DeviceId(id as u16), member.class, *plan, device);
            if member.gone {
                made.let_go();
            }
            made
        })
        .collect()
    }

    /// Sizes of the journals' parts.
    pub fn shape(&self) -> Shape {
        Shape { tables_bytes: self.label.journal.tables_bytes, ring_bytes: self.label.journal.ring_bytes }
    }

    /// The copies of a controller's journal.
    pub fn journal(&self, controller: u16) -> Vec<JournalPlace> {
        let offset = Label::journal_at(controller, self.shape().region_bytes());
        let carriers = self.label.members.iter().enumerate();
        carriers
            .filter_map(|(id, member)| {
                let copy = self.found[id].as_ref().map(|(_, device)| JournalCopy { device: Rc::clone(device), offset });
                Some(JournalPlace { index: usize::from(member.journal?), disk: DeviceId(id as u16), copy })
            })
            .collect()
    }
}
