//! Making a pool on disks, and putting one together from the disks that are found.

use crate::Opener;
use futures::future::{join_all, try_join_all};
use kura_array::{Class, JournalPart, Label, LabelMember, Member, Plan, read_label, write_label};
use kura_block::{Amount, Block, DeviceId, Error, Result};
use kura_journal::{Identity, JournalCopy, Shape};
use kura_volume::JournalPlace;
use std::cmp::Reverse;
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
    /// Room beside each extent for layout `floating`, in percent of it: 0 to 100.
    pub floating_percent: u8,
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
    Label::check_members(disks.len())?;
    if spec.controllers == 0 {
        return Err(Error::invalid("a pool without controllers: give at least one"));
    }
    if spec.floating_percent > 100 {
        return Err(Error::invalid(format!("room to float of {} percent: give 0 to 100", spec.floating_percent)));
    }
    let spare_blocks = Plan::spare_of(spec.extent_bytes, spec.floating_percent);
    let (region_bytes, carriers) = (shape_for(disks, spec).region_bytes(), journal_disks(disks));
    let plan = |(id, disk): (usize, &DiskFacts<'_>)| {
        let controllers = if carriers.contains(&id) { spec.controllers } else { 0 };
        let journals_bytes = region_bytes * u64::from(controllers);
        let plan = Plan::of(disk.size_bytes, spec.extent_bytes, journals_bytes, spare_blocks)?;
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
    let bytes = disks.iter().fold(0_u64, |bytes, disk| bytes.saturating_add(disk.size_bytes));
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

/// The newest of the labels: of two that count as many changes, the one that most disks have. One that was away when the
/// pool changed has what it was to be.
pub(crate) fn newest<'a>(labels: impl Iterator<Item = &'a Label> + Clone) -> Option<&'a Label> {
    let alike = |label: &Label| {
        let same = |other: &&Label| other.generation == label.generation && other.members == label.members;
        labels.clone().filter(same).count()
    };
    labels.clone().min_by_key(|label| Reverse((label.generation, alike(label))))
}

/// True for the label of a disk that the pool has. Others were to join and did not, or have left.
pub(crate) fn is_member(newest: &Label, label: &Label) -> bool {
    let same = |member: &LabelMember| !member.gone && member.uuid == label.own().uuid;
    newest.pool == label.pool && newest.members.get(usize::from(label.id.0)).is_some_and(same)
}

/// Puts a pool together. Refuses disks of several pools, or named twice. A pool may lack disks, and what is none of it is
/// left alone: a disk without a label that can be read is away, where it is the pool's.
pub(crate) async fn assemble(found: Vec<Found>) -> Result<Assembled> {
    let mut why = Error::invalid("a pool without disks: give at least one");
    let mut labelled: Vec<(Label, Found)> = Vec::new();
    // At once: a disk that hangs takes as long as several that do.
    let read = join_all(found.iter().map(|(_, device)| read_label(&**device))).await;
    for (found, label) in found.into_iter().zip(read) {
        let path = &found.0;
        match label {
            Ok(Some(label)) if labelled.first().is_some_and(|(first, _)| first.pool != label.pool) => {
                return Err(Error::invalid(format!(
                    "{path}: belongs to another pool than the disks before it: name the disks of one pool"
                )));
            }
            Ok(Some(label)) => labelled.push((label, found)),
            Ok(None) => {
                let text = "no kura label: it is not a disk of a pool; make one with `kura pool create`";
                why = Error::invalid(format!("{path}: {text}"));
            }
            Err(error) => why = error.at(path),
        }
    }
    let label = newest(labelled.iter().map(|(label, _)| label)).cloned().ok_or(why)?;
    let mut members: BTreeMap<DeviceId, (Plan, Found)> = BTreeMap::new();
    for (own, found) in labelled.into_iter().filter(|(own, _)| is_member(&label, own)) {
        let path = found.0.clone();
        if let Some((_, (other, _))) = members.insert(own.id, (own.plan, found)) {
            return Err(Error::invalid(format!(
                "{path}: is the same disk of the pool as {other}: name each disk once"
            )));
        }
    }
    let mut assembled = Assembled { found: Vec::new(), plans: Vec::new(), label };
    for (id, member) in assembled.label.members.iter().enumerate() {
        let (plan, found) = members.remove(&DeviceId(id as u16)).unzip();
        assembled.plans.push(plan.unwrap_or(Plan { extents: member.extents, ..assembled.label.plan }));
        assembled.found.push(found);
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
                made.close();
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

#[cfg(test)]
mod tests {
    use super::*;
    use kura_sim::{DiskSpec, FaultKind, Place, Sim, SimDisk};

    /// Labels a disk as number `id` of a pool of the disks with these UUIDs.
    async fn label(disk: &SimDisk, id: u16, generation: u64, uuids: &[u8]) {
        let member =
            |uuid: &u8| LabelMember { uuid: [*uuid; 16], class: Class::Slow, journal: None, gone: false, extents: 16 };
        let label = Label {
            pool: [7; 16],
            generation,
            id: DeviceId(id),
            controllers: 1,
            plan: Plan::of(8 << 20, 64 << 10, 0, 0).unwrap(),
            journal: JournalPart { tables_bytes: 1 << 20, ring_bytes: 1 << 20 },
            members: uuids.iter().map(member).collect(),
        };
        write_label(&*disk.open(), &label).await.unwrap();
    }

    /// The disks of the pool that these make up, by their numbers.
    async fn found(disks: &[&SimDisk]) -> Result<Vec<Option<String>>> {
        let opened = disks.iter().map(|disk| (disk.name().to_owned(), disk.open() as Rc<dyn Block>));
        let pool = assemble(opened.collect()).await?;
        Ok(pool.found.into_iter().map(|found| Some(found?.0)).collect())
    }

    /// More bytes in all than are counted.
    #[test]
    fn the_largest_disks_there_can_be_make_a_pool() {
        let disk = |path| DiskFacts { path, class: Class::Slow, size_bytes: 4 << 60 };
        let (extent_bytes, journal_bytes) = (4 << 20, 64 << 20);
        let spec = PoolSpec { uuid: [1; 16], extent_bytes, controllers: 1, journal_bytes, floating_percent: 0 };
        check_fits(&["a", "b", "c", "d"].map(disk), &spec).unwrap();
    }

    #[test]
    fn more_disks_than_a_label_names_make_no_pool() {
        let disk = DiskFacts { path: "a", class: Class::Slow, size_bytes: 1 << 40 };
        let (extent_bytes, journal_bytes) = (4 << 20, 64 << 20);
        let spec = PoolSpec { uuid: [1; 16], extent_bytes, controllers: 1, journal_bytes, floating_percent: 0 };
        check_fits(&[disk; 128], &spec).unwrap();
        let refused = check_fits(&[disk; 129], &spec).unwrap_err();
        assert!(refused.kind() == kura_block::Kind::Full && refused.to_string().contains("128 disks"), "{refused}");
    }

    #[test]
    fn what_is_none_of_the_pool_is_left_alone() {
        let sim = Sim::new(1);
        let [a, b, p, q] = ["a", "b", "p", "q"].map(|name| sim.disk(name, DiskSpec::nvme(8 << 20)));
        let names = |names: &[&str]| names.iter().map(|name| Some((*name).to_owned())).collect::<Vec<_>>();
        sim.block_on(async {
            let none = found(&[&a, &b]).await.unwrap_err().to_string();
            assert!(none.contains("b: no kura label"), "{none}");
            label(&a, 0, 4, &[1, 2]).await;
            label(&b, 1, 4, &[1, 2]).await;
            assert_eq!(found(&[&p, &a, &b]).await.unwrap(), names(&["a", "b"]), "one without a label");
            p.inject(FaultKind::ReadError(Place::Range(0..8192)));
            assert_eq!(found(&[&p, &a, &b]).await.unwrap(), names(&["a", "b"]), "one that cannot be read");
            // It was to be the third, and the pool changed without it.
            for generation in [3, 4] {
                label(&p, 2, generation, &[1, 2, 3]).await;
                assert_eq!(found(&[&p, &a, &b]).await.unwrap(), names(&["a", "b"]));
            }
            for (disk, id) in [(&a, 0), (&b, 1), (&q, 2)] {
                label(disk, id, 5, &[1, 2, 4]).await;
            }
            assert_eq!(found(&[&p, &a, &b, &q]).await.unwrap(), names(&["a", "b", "q"]), "another one is the third");
            // Only the new disk's label was written before a crash.
            label(&p, 3, 6, &[1, 2, 4, 3]).await;
            assert_eq!(found(&[&a, &b, &q, &p]).await.unwrap(), names(&["a", "b", "q", "p"]));
            label(&p, 2, 6, &[1, 2, 4]).await;
            let twice = found(&[&a, &b, &q, &p]).await.unwrap_err().to_string();
            assert!(twice.contains("p: is the same disk of the pool as q"), "{twice}");
        });
    }
}
