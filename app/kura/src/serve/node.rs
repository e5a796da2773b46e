//! Composes a node: makes its pool once, and runs a thread for each of its controllers.
//!
//! ```text
//!   thread 0: runtime, ring, disks ── Controller 0 ── Door 0 ─┐
//!   thread 1: runtime, ring, disks ── Controller 1 ── Door 1 ─┴── Node ──> the doors in front
//! ```

use crate::config;
use crate::serve::data::DataDir;
use crate::serve::disks::{Book, Planned, Usable};
use crate::serve::modelled::{Modelled, Pace};
use anyhow::{Context, Result, ensure};
use kura_block::{Block, ControllerId, Runtime};
use kura_controller::{
    Config, Controller, DiskClass, DiskFacts, Door, FoundDisks, NewDisk, Node, Opener, PoolSpec, Recovered, Replayed,
    Settings, check_fits, door, journal_ranges, survey,
};
use kura_disk::{Disk, Options};
use kura_shared::InProcess;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf, absolute};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use uuid::Uuid;

/// The most controllers a pool gets unasked: each takes room for its journal on the fast disks, and of more than a few
/// only those gain who have as many busy volumes (docs/decisions/2026-11-23-controllers-unasked.md has the numbers).
const CONTROLLERS: usize = 4;

/// What a new pool is made as; it keeps this for ever.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Controllers; one a core, up to a few, unless it is said.
    pub controllers: Option<u16>,
    /// Bytes in an extent.
    pub extent_bytes: u64,
    /// Bytes of each controller's journal.
    pub journal_bytes: u64,
    /// Room beside each extent for layout `floating`, in percent of it.
    pub floating_percent: u8,
}

impl Shape {
    /// The pool it asks for, on a machine of so many cores.
    fn spec(self, cores: usize) -> PoolSpec {
        PoolSpec {
            uuid: *Uuid::new_v4().as_bytes(),
            extent_bytes: self.extent_bytes,
            controllers: self.controllers.unwrap_or(cores.min(CONTROLLERS) as u16),
            journal_bytes: self.journal_bytes,
            floating_percent: self.floating_percent,
        }
    }
}

impl From<&config::Pool> for Shape {
    fn from(pool: &config::Pool) -> Self {
        Self {
            controllers: pool.controllers.as_ref().map(|controllers| *controllers.get_ref()),
            extent_bytes: pool.extent.get_ref().0,
            journal_bytes: pool.journal.get_ref().0,
            floating_percent: *pool.floating_percent.get_ref(),
        }
    }
}

/// A node whose controllers run.
pub struct Running {
    /// The node.
    pub node: Node,
    /// What its controllers read again when they started.
    pub replayed: Replayed,
    threads: Vec<JoinHandle<()>>,
}

/// Makes the pool of `data` of these disks, and the sparse files among them, and notes in `book` where they are. Disks that
/// are not blank are taken only with `force`, or where an earlier try in `data` left them. What cannot become a pool is
/// refused before anything is written.
pub fn make_pool(planned: &[Planned], shape: Shape, force: bool, data: &DataDir, book: &Book) -> Result<()> {
    let (members, spec) = members(planned, shape, force, &DataDir::begun(data.path())?)?;
    data.begin(Uuid::from_bytes(spec.uuid))?;
    members.iter().try_for_each(|member| member.usable.make())?;
    kura_disk::run(|_| async {
        let mut disks = Vec::new();
        for NewMember { uuid, path, class, .. } in &members {
            disks.push(NewDisk { path: path.clone(), device: open(path)?, class: *class, uuid: *uuid.as_bytes() });
        }
        fill_journals(&disks, &spec)?;
        kura_controller::format(&disks, &spec).await
    })??;
    let paths = members.into_iter().map(|member| (member.uuid, member.path));
    Ok(book.note(paths)?)
}

/// Refuses what [`make_pool`] refuses before it writes anything; `data` is the data directory, if there is one already.
pub fn check_pool(planned: &[Planned], shape: Shape, force: bool, data: &Path) -> Result<()> {
    members(planned, shape, force, &DataDir::begun(data)?).map(drop)
}

/// A disk that a pool is to be made of.
struct NewMember {
    /// Goes into its label.
    uuid: Uuid,
    /// Absolute.
    path: String,
    class: DiskClass,
    /// What is there, or is to be made there.
    usable: Usable,
}

/// The disks of a pool, which fits them. What pools hold that were only begun may go.
fn members(
    planned: &[Planned],
    shape: Shape,
    force: bool,
    begun: &BTreeSet<Uuid>,
) -> Result<(Vec<NewMember>, PoolSpec)> {
    let mut members: Vec<NewMember> = Vec::new();
    let mut seen = BTreeSet::new();
    for disk in planned {
        let usable = Usable::find(&disk.path, disk.size, force || is_of(&disk.path, begun))?;
        // Two names of one file are one disk.
        let real = usable.path.canonicalize().unwrap_or_else(|_| usable.path.clone());
        ensure!(seen.insert(real), "{} is named twice: name each disk once", usable.path.display());
        let path = usable.path.to_str().with_context(|| format!("{}: not UTF-8", usable.path.display()))?.to_owned();
        members.push(NewMember { uuid: Uuid::new_v4(), path, class: disk.class, usable });
    }
    let spec = shape.spec(cores());
    let facts = members.iter().map(|NewMember { path, class, usable, .. }| DiskFacts {
        path,
        class: *class,
        size_bytes: usable.size_bytes,
    });
    check_fits(&facts.collect::<Vec<_>>(), &spec)?;
    Ok((members, spec))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Refuses a shape that such disks have no room for. Where the size of one is not known, something else is to be said of it.
pub fn check_shape(planned: &[Planned], shape: Shape) -> kura_block::Result<()> {
    let size_of = |disk: &Planned| {
        let there = || kura_disk::probe(&disk.path).ok().map(|probe| probe.size_bytes);
        Some((disk.path.display().to_string(), disk.class, disk.size.map(|size| size.0).or_else(there)?))
    };
    let Some(disks) = planned.iter().map(size_of).collect::<Option<Vec<_>>>() else { return Ok(()) };
    let facts =
        disks.iter().map(|(path, class, size_bytes)| DiskFacts { path, class: *class, size_bytes: *size_bytes });
    check_fits(&facts.collect::<Vec<_>>(), &shape.spec(cores()))
}

/// True for a disk whose label names one of these pools.
fn is_of(path: &Path, pools: &BTreeSet<Uuid>) -> bool {
    let Some(named) = path.to_str().filter(|_| !pools.is_empty() && path.exists()) else { return false };
    let opener: Opener = Box::new(open_to_read);
    let found = kura_disk::run(async |_| survey(&[named.to_owned()], &opener).await);
    // What cannot be read is looked at as any disk is.
    found.flatten().is_ok_and(|pool| pools.contains(&Uuid::from_bytes(pool.uuid)))
}

/// Opens a disk that is not to be changed.
pub fn open_to_read(path: &str) -> kura_block::Result<Rc<dyn Block>> {
    Ok(Rc::new(Disk::open(path, Options { writable: false, ..Options::default() })?))
}

/// Fills the files in which journals will lie with zeroes there: a write to a block that the file system has given
/// already changes no metadata, and is durable several times sooner.
fn fill_journals(disks: &[NewDisk], spec: &PoolSpec) -> kura_block::Result<()> {
    let mut ranges = journal_ranges(disks, spec);
    ranges.retain(|(disk, _)| Path::new(&disks[*disk].path).is_file());
    std::thread::scope(|scope| {
        // All at work before the first is waited for.
        let fills: Vec<_> = ranges
            .into_iter()
            .map(|(disk, range)| {
                let path = disks[disk].path.clone();
                scope.spawn(move || kura_disk::preallocate(path, range))
            })
            .collect();
        let failed = || Err(kura_block::Error::device("filling a file panicked"));
        fills.into_iter().try_for_each(|fill| fill.join().unwrap_or_else(|_| failed()))
    })
}

fn open(path: &str) -> kura_block::Result<Rc<dyn Block>> {
    Ok(Rc::new(Disk::open(path, Options::default())?))
}

/// How slow disks are that have a model, by path.
pub type Models = BTreeMap<PathBuf, Arc<Pace>>;

/// Opens disks, each as slow as its model where it has one.
fn opener(models: Arc<Models>, runtime: Rc<dyn Runtime>) -> Opener {
    Box::new(move |path| {
        let disk = open(path)?;
        Ok(match models.get(Path::new(path)) {
            Some(pace) => Rc::new(Modelled::new(disk, Arc::clone(pace), Rc::clone(&runtime))),
            None => disk,
        })
    })
}

impl Running {
    /// Runs the controllers of the pool on those of the disks at `paths` that `book` can hold, of which some are as slow as a model.
    /// None serves before all have recovered, and nothing is written where `fits` refuses the pool's extents, whose bytes it is told. A
    /// full pool spares the snapshots that are named.
    pub fn start(
        paths: Vec<String>,
        book: &Book,
        models: Models,
        config: Config,
        spared: &BTreeSet<String>,
        fits: impl FnOnce(u64) -> Result<()>,
    ) -> Result<Self> {
        let sight = kura_disk::run(async |runtime| {
            let runtime: Rc<dyn Runtime> = runtime;
            Controller::look(&paths, Box::new(open_to_read), &runtime, config.disk_timeout).await
        })??;
        fits(sight.extent_bytes)?;
        let paths = book.hold(paths, &sight.members)?;
        let count = sight.controllers;
        let models = Arc::new(models);
        let shared = Arc::new(InProcess::new());
        let (recovered, all_recovered) = mpsc::channel();
        let (opened, answers) = mpsc::channel();
        let mut threads = Vec::new();
        for id in 0..count {
            let (paths, models, shared) = (paths.clone(), Arc::clone(&models), Arc::clone(&shared));
            let told = Told { recovered: recovered.clone(), opened: opened.clone() };
            let thread = std::thread::Builder::new().name(format!("controller-{id}"));
            threads.push(thread.spawn(move || control(ControllerId(id), (&paths, models), shared, config, told))?);
        }
        drop((recovered, opened));
        let all = usize::from(count);
        let (mut recovered, mut refused) = (Vec::new(), BTreeSet::new());
        for answer in all_recovered.iter().take(all) {
            match answer {
                Ok(one) => recovered.push(one),
                Err(error) => drop(refused.insert(error.to_string())),
            }
        }
        // What one controller misses says nothing of the others.
        ensure!(refused.is_empty(), "{}", Vec::from_iter(refused).join("; "));
        ensure!(recovered.len() == all, "a controller ended before it had recovered");
        let (disks, begin): (Vec<_>, Vec<_>) = recovered.into_iter().unzip();
        Recovered::check_same_disks(&disks)?;
        for may_begin in begin {
            // One that is gone tells why below.
            let _ = may_begin.send(());
        }
        let mut doors = answers.iter().take(all).collect::<kura_block::Result<Vec<Opened>>>()?;
        ensure!(doors.len() == all, "a controller ended before it was open");
        doors.sort_by_key(|opened| opened.id.0);
        let replayed = doors.iter().fold(Replayed::default(), |sum, opened| Replayed {
            entries: sum.entries + opened.replayed.entries,
            bytes: sum.bytes + opened.replayed.bytes,
        });
        let node = Node::new(doors.into_iter().map(|opened| opened.door).collect());
        kura_disk::run(async |_| {
            node.spare(spared).await?;
            node.begin().await
        })??;
        Ok(Self { node, replayed, threads })
    }

    /// Ends the threads; the node must have been stopped, and all its clones be gone.
    pub fn join(self) {
        drop(self.node);
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a controller's thread panicked");
            }
        }
    }
}

/// What a controller that opened says.
struct Opened {
    id: ControllerId,
    door: Door,
    replayed: Replayed,
}

/// What controllers tell while they start.
struct Told {
    /// One has recovered with these disks: it begins when it is told to, and ends when nobody will.
    recovered: mpsc::Sender<kura_block::Result<(FoundDisks, oneshot::Sender<()>)>>,
    /// One has begun.
    opened: mpsc::Sender<kura_block::Result<Opened>>,
}

/// A controller's thread, until its doors are gone.
fn control(
    id: ControllerId,
    (paths, models): (&[String], Arc<Models>),
    shared: Arc<InProcess>,
    config: Config,
    told: Told,
) {
    // Each is dropped with its one message: a thread that panics must not be waited for.
    let (recovered, opened) = (Cell::new(Some(told.recovered)), Cell::new(Some(told.opened)));
    let ended = kura_disk::run(async |runtime| {
        let runtime: Rc<dyn Runtime> = runtime;
        let found =
            Controller::recover(id, paths, opener(models, Rc::clone(&runtime)), runtime, shared, config).await?;
        let (may_begin, begins) = oneshot::channel();
        if let Some(recovered) = recovered.take() {
            let _ = recovered.send(Ok((found.disks(), may_begin)));
        }
        if begins.await.is_err() {
            return Ok(());
        }
        let controller = found.begin().await?;
        let (door, inbox) = door();
        if let Some(opened) = opened.take() {
            // A start that failed elsewhere no longer listens: the door is dropped, and this thread ends.
            let _ = opened.send(Ok(Opened { id, door, replayed: controller.replayed() }));
        }
        inbox.serve(controller).await;
        Ok(())
    });
    if let Err(error) = ended.flatten() {
        let _ = recovered.take().map(|recovered| recovered.send(Err(error.clone())));
        let _ = opened.take().map(|opened| opened.send(Err(error)));
    }
}

/// The models that configured disks are as slow as.
pub fn models(disks: &[config::Disk]) -> Models {
    let pace = |disk: &config::Disk| Some(Arc::new(Pace::new(*disk.model.as_ref()?.get_ref())));
    let model = |disk: &config::Disk| Some((absolute(disk.path()?).ok()?, pace(disk)?));
    disks.iter().filter_map(model).collect()
}

/// What the controllers may take.
pub fn limits(pool: &config::Pool, degraded: bool) -> Config {
    let settings = Settings {
        write_buffer_bytes: pool.write_buffer.get_ref().0,
        rebuild_bytes_per_s: pool.rebuild_rate.0,
        saving: pool.saving.into(),
        when_full: pool.when_full.into(),
        sharing: pool.sharing.into(),
        rebuild_width: *pool.rebuild_width.get_ref(),
        scatter: pool.scatter,
        raid_width: pool.raid_width.as_ref().map(|width| *width.get_ref()),
        disk_queue: *pool.disk_queue.get_ref(),
        hot: pool.hot.settings(),
        ..Settings::default()
    };
    let disk_timeout = Duration::from_secs(*pool.disk_timeout_s.get_ref());
    Config { settings, degraded, disk_timeout, ..Config::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::serve::disks::default_disks;
    use crate::size::Size;

    #[test]
    fn a_pool_that_was_only_begun_is_begun_again() {
        let parent = tempfile::tempdir().unwrap();
        let shape = Shape { controllers: Some(1), extent_bytes: 1 << 20, journal_bytes: 17 << 20, floating_percent: 0 };
        let disk =
            |name: &str| Planned { path: parent.path().join(name), class: DiskClass::Slow, size: Some(Size(32 << 20)) };
        let planned = ["a", "b"].map(disk);
        let made = |data: &DataDir| make_pool(&planned, shape, false, data, &Book::new(data));
        // It is cut off after the labels, before anybody could use it; and once more.
        let path = parent.path().join("data");
        for _ in 0..2 {
            made(&DataDir::open(&path).unwrap()).unwrap();
            check_pool(&planned, shape, false, &path).unwrap();
        }
        // Elsewhere they are another's.
        let other = DataDir::open(&parent.path().join("other")).unwrap();
        let refused = made(&other).unwrap_err().to_string();
        assert!(refused.contains("carries a kura label"), "{refused}");
        // A disk among them that is another pool's stays as it is.
        let stranger = ["c"].map(disk);
        make_pool(&stranger, shape, false, &other, &Book::new(&other)).unwrap();
        let label = std::fs::read(&stranger[0].path).unwrap();
        let mixed: Vec<Planned> = planned.iter().chain(&stranger).cloned().collect();
        let data = DataDir::open(&path).unwrap();
        let refused = make_pool(&mixed, shape, false, &data, &Book::new(&data)).unwrap_err().to_string();
        assert!(refused.contains("/c: carries a kura label"), "{refused}");
        assert!(std::fs::read(&stranger[0].path).unwrap() == label);
        // One that is whole is not made again.
        let mut data = data;
        made(&data).unwrap();
        data.finish().unwrap();
        let refused = made(&data).unwrap_err().to_string();
        assert!(refused.contains("carries a kura label"), "{refused}");
    }

    #[test]
    fn the_default_pool_fits_its_disks_on_any_machine() {
        let disks: Vec<_> = default_disks().collect();
        let facts: Vec<_> =
            disks.iter().map(|(path, class, size)| DiskFacts { path, class: *class, size_bytes: size.0 }).collect();
        let shape = Shape::from(&Config::default().pool);
        for (cores, controllers) in [(1, 1), (2, 2), (8, 4), (64, 4), (1 << 20, 4)] {
            let spec = shape.spec(cores);
            assert_eq!(spec.controllers, controllers);
            check_fits(&facts, &spec).unwrap();
        }
        for controllers in [8, 64] {
            let refused = check_fits(&facts, &Shape { controllers: Some(controllers), ..shape }.spec(2)).unwrap_err();
            let said = refused.to_string();
            assert!(
                said.contains(&format!("journals of {controllers} controllers")) && said.contains("fewer"),
                "{said}"
            );
        }
    }
}
