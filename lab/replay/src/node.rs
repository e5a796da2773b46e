//! The node: what it is made of, and the pool and volume on simulated disks.

use crate::error::Error;
use crate::options::Options;
use kura_block::{Block, Runtime};
use kura_controller::{
    Config, Controller, DiskClass, HotSettings, Layout, NewDisk, PoolSpec, Saving, Settings, SharedPool, Sharing,
    TierConfig, TierSettings, VolumeSpec, WhenFull, format,
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
    /// Room beside each extent for layout `floating`, in percent of it.
    #[serde(default)]
    pub floating_percent: u8,
    /// What a controller may take, and how it works.
    #[serde(flatten, with = "SettingsNumbers")]
    pub settings: Settings,
    /// Seconds without an answer after which a disk counts as failed; 0 waits for ever.
    pub disk_timeout_s: u64,
    /// What decides about the fast tier, from when the volume is filled on; none is no tiering.
    pub tier: Option<NodeTier>,
    /// The disks, in order.
    pub disks: Vec<NodeDisk>,
}

/// What decides about a node's fast tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeTier {
    /// The policy and its parameters.
    pub settings: TierSettings,
    /// The name of the only fast disk, where it is to serve reads.
    pub single_disk: Option<String>,
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
#[serde(remote = "Settings")]
struct SettingsNumbers {
    write_buffer_bytes: u64,
    straight_blocks: usize,
    pages: usize,
    rebuild_bytes_per_s: u64,
    rebuild_width: usize,
    scatter: bool,
    disk_queue: usize,
    raid_width: Option<u8>,
    chunk_blocks: u16,
    #[serde(with = "HotNumbers")]
    hot: HotSettings,
    #[serde(with = "SavingName")]
    saving: Saving,
    #[serde(with = "WhenFullName")]
    when_full: WhenFull,
    #[serde(with = "SharingName")]
    sharing: Sharing,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Saving", rename_all = "kebab-case")]
enum SavingName {
    Copy,
    Redirect,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "WhenFull", rename_all = "kebab-case")]
enum WhenFullName {
    Refuse,
    DropOldest,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Sharing", rename_all = "kebab-case")]
enum SharingName {
    Aggregate,
    Message,
    AccessChange,
    Lease,
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
    borrows: bool,
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

    /// Bytes of the largest volume in a layout that any trace may fill: the mirrored area, where the layout has one, takes its
    /// share of the disks as blocks become hot.
    pub fn volume_bytes(&self, layout: Layout) -> Result<u64, Error> {
        let options = Options { layout, ..Options::default() };
        self.room_on(&self.start(&options, kura_block::BLOCK_BYTES as u64)?, layout)
    }

    /// The same of a node that runs.
    pub(crate) fn room_on(&self, node: &Node, layout: Layout) -> Result<u64, Error> {
        node.room_beside(if layout == Layout::HotMirror { self.hot_bytes(node)? } else { 0 })
    }

    /// The most that the mirrored areas take of the disks, both copies counted: at least an extent on each pair of disks.
    fn hot_bytes(&self, node: &Node) -> Result<u64, Error> {
        let pool = node.sim.block_on(node.controllers[0].pool())?;
        let HotSettings { share_permille, limit_bytes, .. } = self.settings.hot;
        let (share, controllers) = (u64::from(share_permille), u64::from(self.controllers));
        let share_bytes = (u128::from(pool.data_bytes) * u128::from(share) / 1000) as u64;
        let pairs = pool.disks.iter().filter(|disk| disk.takes_data).count() as u64;
        let most_bytes = share_bytes.min(limit_bytes.saturating_mul(2 * controllers));
        Ok(most_bytes.max(2 * pairs * controllers * pool.extent_bytes))
    }

    /// Bytes that the fast tier holds under these settings, and why nothing goes up there, where that is so.
    pub fn fast_bytes(&self, settings: TierSettings) -> Result<(u64, Option<String>), Error> {
        let options = Options { layout: Layout::None, ..Options::default() };
        let node = self.start(&options, kura_block::BLOCK_BYTES as u64)?;
        let single_disk = self.tier.as_ref().and_then(|tier| tier.single_disk.clone());
        let tier = node.sim.block_on(async {
            node.pool.set_tier(Some(TierConfig { settings, single_disk })).await?;
            node.pool.tier().await
        })?;
        Ok((tier.total_bytes, tier.hindrance))
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

    /// What decides about the fast tier.
    pub(crate) fn tier(&self) -> Option<TierConfig> {
        let NodeTier { settings, single_disk } = self.tier.clone()?;
        Some(TierConfig { settings, single_disk })
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
            floating_percent: self.floating_percent,
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
        let disk_timeout = Duration::from_secs(self.disk_timeout_s);
        let config = Config { settings: self.settings, disk_timeout, ..Config::default() };
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
        self.room_beside(0)
    }

    /// The same beside so many bytes that something else takes of the disks.
    fn room_beside(&self, other_bytes: u64) -> Result<u64, Error> {
        let pool = self.sim.block_on(self.controllers[0].pool())?;
        let (width, _) = self.controllers[0].store().status_by_name(NAME)?.shape.cost();
        let left_bytes = pool.data_bytes.saturating_sub(other_bytes);
        Ok(left_bytes / pool.extent_bytes / width * self.group_bytes()?)
    }

    /// Bytes that are allocated at once for the volume, by the first write to any of them.
    pub(crate) fn group_bytes(&self) -> Result<u64, Error> {
        let pool = self.sim.block_on(self.controllers[0].pool())?;
        let (_, columns) = self.controllers[0].store().status_by_name(NAME)?.shape.cost();
        Ok(columns * pool.extent_bytes)
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
