//! Making a pool on disks, and putting one together from the disks that are found.

use futures::future::try_join_all;
use kura_array::{Class, JournalPart, Label, LabelMember, Member, Plan, read_label, write_label};
use kura_block::{Block, DeviceId, Error, Result};
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
    let region_bytes = shape_for(disks, spec).region_bytes();
    let range = Label::journal_at(0, region_bytes)..Label::journal_at(spec.controllers, region_bytes);
    journal_disks(disks).into_iter().map(|disk| (disk, range.clone())).collect()
}

/// Makes a pool: everything on the disks is lost. The journals lie on the first two fast disks, or on the first two
/// where there is no fast one.
pub async fn format(disks: &[NewDisk], spec: &PoolSpec) -> Result<()> {
    if disks.is_empty() {
        return Err(Error::invalid("a pool without disks: give at least one"));
    }
    if spec.controllers == 0 {
        return Err(Error::invalid("a pool without controllers: give at least one"));
    }
    let shape = shape_for(disks, spec);
    let carriers = journal_disks(disks);
    let mut plans = Vec::new();
    for (id, disk) in disks.iter().enumerate() {
        let journals = if carriers.contains(&id) { shape.region_bytes() * u64::from(spec.controllers) } else { 0 };
        let plan = Plan::of(disk.device.geometry().size_bytes, spec.extent_bytes, journals)?;
        if plan.extents == 0 {
            let bytes = disk.device.geometry().size_bytes;
            return Err(Error::invalid(format!(
                "{}: {bytes} bytes leave no extent of {} beside {journals} bytes of journals: give a larger disk, smaller \
                 extents or a smaller journal",
                disk.path, spec.extent_bytes
            )));
        }
        plans.push(plan);
    }
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

fn shape_for(disks: &[NewDisk], spec: &PoolSpec) -> Shape {
    let bytes: u64 = disks.iter().map(|disk| disk.device.geometry().size_bytes).sum();
    let tables_bytes = (bytes / spec.extent_bytes.max(1) * TABLES_EXTENT_BYTES).max(TABLES_MIN_BYTES);
    Shape { tables_bytes: tables_bytes.next_multiple_of(1 << 20), ring_bytes: spec.journal_bytes }
}

fn journal_disks(disks: &[NewDisk]) -> Vec<usize> {
    let fast: Vec<_> = (0..disks.len()).filter(|id| disks[*id].class == Class::Fast).take(JOURNAL_COPIES).collect();
    if fast.is_empty() { (0..disks.len()).take(JOURNAL_COPIES).collect() } else { fast }
}

/// A disk as it was found: its path, and the device.
pub(crate) type Found = (String, Rc<dyn Block>);

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
    for (path, device) in found {
        let label = match read_label(&*device).await {
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
