//! The node: what it is made of, and the pool and volume on simulated disks.

use crate::error::Error;
use crate::options::Options;
use kura_block::{Block, Runtime};
use kura_controller::{
    Config, Controller, DiskClass, HotSettings, Layout, NewDisk, PoolSpec, Settings, SharedPool, VolumeSpec, format,
};
use kura_shared::InProcess;
use kura_sim::{Cache, DiskSpec, Model, Sim, SimDisk};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What a node is made of. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Controllers, each with its journal; the first owns the volume.
    pub controllers: u16,
    /// Of an extent: a power of two from 64 KiB to 64 MiB.
    pub extent_bytes: u64,
    /// Of each controller's journal.
    pub journal_bytes: u64,
    /// The most a controller keeps in memory of writes that are not at their place.
    pub write_buffer_bytes: u64,
    /// Requests that a disk which turns is given at once, in the order of who waits for them: 0 gives it all that is asked.
    pub disk_queue: usize,
    /// Groups of extents that a rebuild moves at once.
    pub rebuild_width: usize,
    /// The most disks of a group with parity; none is what the engine takes of itself.
    pub raid_width: Option<u8>,
    /// How the mirrored hot area is used.
    #[serde(with = "HotNumbers")]
    pub hot: HotSettings,
    /// The disks, in order.
    pub disks: Vec<NodeDisk>,
}

/// A disk of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeDisk {
    /// Its name, which no other disk has.
    pub name: String,
    /// What it is used for.
    #[serde(with = "ClassName")]
    pub class: DiskClass,
    /// Its size.
    pub size_bytes: u64,
    /// How it behaves.
    pub model: Model,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "DiskClass", rename_all = "lowercase")]
enum ClassName {
    Fast,
    Slow,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "HotSettings")]
struct HotNumbers {
    share_permille: u16,
    limit_bytes: u64,
    track_slots: u16,
    batch: u16,
    aged_tracks: u16,
    cold_age: u8,
    enough_tracks: u32,
    eager: bool,
    by_stripe: bool,
}

/// Disks of a node, to which more may come.
type Disks = Rc<RefCell<Vec<SimDisk>>>;

/// A node that runs.
pub(crate) struct Node {
    pub(crate) sim: Sim,
    pub(crate) runtime: Rc<dyn Runtime>,
    /// Where the controllers look for disks.
    pub(crate) disks: Disks,
    pub(crate) controllers: Vec<Rc<Controller>>,
    /// The controllers as one node, which may change the pool's members.
    pub(crate) pool: kura_controller::Node,
    pub(crate) volume: Rc<dyn Block>,
    pub(crate) volume_bytes: u64,
}

/// The volume's name.
const NAME: &str = "replay";
/// How often it is looked whether the node is quiet.
const LOOK: Duration = Duration::from_millis(100);

impl NodeSpec {
    /// Bytes of data that the disks hold in a layout.
    pub fn room_bytes(&self, layout: Layout) -> Result<u64, Error> {
        let options = Options { layout, ..Options::default() };
        self.start(&options, kura_block::BLOCK_BYTES as u64)?.room_bytes()
    }

    /// Makes the pool, starts its controllers, and makes a volume of `volume_bytes`.
    pub(crate) fn start(&self, options: &Options, volume_bytes: u64) -> Result<Node, Error> {
        let sim = Sim::new(options.seed);
        sim.set_limit(Duration::MAX);
        let disks: Disks = Rc::new(RefCell::new(self.disks.iter().map(|disk| disk.of(&sim)).collect()));
        let runtime: Rc<dyn Runtime> = sim.runtime();
        let (controllers, pool, volume) = sim.block_on(async {
            let new = self.new_disks(&disks.borrow());
            self.format(&new).await?;
            let (pool, controllers) = self.open(&disks, &runtime).await?;
            let Some(owner) = controllers.first() else {
                return Err(kura_block::Error::invalid("a pool without controllers: give at least one"));
            };
            let (name, layout) = (NAME.to_owned(), options.layout);
            let spec = VolumeSpec { name, size_bytes: volume_bytes, layout, thick: false, read_only: false };
            owner.store().create(spec).await?;
            let volume = owner.open_volume(NAME)?;
            Ok((controllers, pool, volume))
        })?;
        Ok(Node { sim, runtime, disks, controllers, pool, volume, volume_bytes })
    }

    fn new_disks(&self, disks: &[SimDisk]) -> Vec<NewDisk> {
        let new = self.disks.iter().zip(disks).enumerate().map(|(number, (spec, disk))| NewDisk {
            path: spec.name.clone(),
            device: disk.open(),
            class: spec.class,
            uuid: (number as u128 + 1).to_be_bytes(),
        });
        new.collect()
    }

    async fn format(&self, new: &[NewDisk]) -> kura_block::Result<()> {
        let pool = PoolSpec {
            uuid: [0xa5; 16],
            extent_bytes: self.extent_bytes,
            controllers: self.controllers,
            journal_bytes: self.journal_bytes,
        };
        format(new, &pool).await
    }

    /// The controllers, and they as one node: from here on they keep their hot areas, and rebuild.
    async fn open(
        &self,
        disks: &Disks,
        runtime: &Rc<dyn Runtime>,
    ) -> kura_block::Result<(kura_controller::Node, Vec<Rc<Controller>>)> {
        let paths: Vec<String> = disks.borrow().iter().map(|disk| disk.name().to_owned()).collect();
        let settings = Settings {
            write_buffer_bytes: self.write_buffer_bytes,
            disk_queue: self.disk_queue,
            rebuild_width: self.rebuild_width,
            raid_width: self.raid_width,
            hot: self.hot,
            ..Settings::default()
        };
        let config = Config { settings, ..Config::default() };
        let shared: Arc<dyn SharedPool> = Arc::new(InProcess::new());
        let disks = Rc::clone(disks);
        let opener = move |path: &str| SimDisk::opener(&disks.borrow())(path);
        kura_controller::Node::start(&paths, opener, runtime, &shared, config).await
    }
}

impl NodeDisk {
    /// The disk in a world. Nothing cuts the power here: what a volatile cache would lose need not be kept apart.
    fn of(&self, sim: &Sim) -> SimDisk {
        sim.disk(&self.name, DiskSpec { cache: Cache::Off, ..self.model.disk(self.size_bytes) })
    }
}

impl Node {
    /// Puts a disk where the controllers find it.
    pub(crate) fn insert(&self, disk: &NodeDisk) {
        self.disks.borrow_mut().push(disk.of(&self.sim));
    }

    /// Bytes of data that the disks hold in the volume's layout.
    pub(crate) fn room_bytes(&self) -> Result<u64, Error> {
        let pool = self.sim.block_on(self.controllers[0].pool())?;
        let (width, columns) = self.controllers[0].store().status_by_name(NAME)?.shape.cost();
        Ok(pool.data_bytes / pool.extent_bytes / width * columns * pool.extent_bytes)
    }

    /// Waits until everything written is at its place and the disks rest.
    pub(crate) async fn settle(&self) -> kura_block::Result<()> {
        loop {
            self.volume.flush().await?;
            let buffered = self.controllers.iter().any(|controller| controller.store().status().dirty_bytes > 0);
            if !buffered && self.disks.borrow().iter().all(|disk| disk.counters().queue == 0) {
                return Ok(());
            }
            self.runtime.sleep(LOOK).await;
        }
    }
}
