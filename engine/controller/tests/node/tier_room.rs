//! Who has how much room in the fast tier: copies, volumes that live on its disks, other controllers, what is nobody's any more.

use crate::tiered::{EXTENT, Rig, create, create_of, read, tier_by_worth, write};
use kura_block::{Block, DeviceId, Runtime};
use kura_controller::{Config, Controller, DiskClass, Layout, Node, PoolSpec, SharedPool, TierConfig, VolumeSpec};
use kura_shared::InProcess;
use kura_sim::{DiskSpec, Sim, SimDisk};
use kura_tier::{Settings as Policies, WorthSettings};
use kura_volume::{Pin, TierChange};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const FAST: [&str; 2] = ["fast0", "fast1"];
const SLOW: [&str; 3] = ["slow0", "slow1", "slow2"];

/// Runs a node on some of five disks, of which the fast ones have 40 MiB: its pool begins with these.
fn run(begins: &[&str], controllers: u16, work: impl AsyncFnOnce(Node, &dyn Runtime)) {
    let sim = Sim::new(4);
    let all: Vec<_> = FAST.iter().chain(&SLOW).collect();
    let size = |name: &str| if name < "s" { 40 << 20 } else { 64 << 20 };
    let disks: Vec<_> = all.iter().map(|name| sim.disk(name, DiskSpec::nvme(size(name)))).collect();
    let (uuid, journal_bytes) = ([9; 16], 5 << 20);
    let pool = PoolSpec { uuid, extent_bytes: EXTENT, controllers, journal_bytes, floating_percent: 0 };
    let here: Vec<_> = disks.iter().filter(|disk| begins.contains(&disk.name())).cloned().collect();
    let fast = begins.iter().filter(|name| FAST.contains(name)).count();
    crate::rig::format(&sim, &here, fast, &pool);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let shared: Arc<dyn SharedPool> = Arc::new(InProcess::new());
        let paths: Vec<_> = begins.iter().map(|name| (*name).to_owned()).collect();
        let opener = SimDisk::opener(&disks);
        let (node, ..) = Node::start(&paths, opener, &runtime, &shared, Config::default()).await.unwrap();
        work(node, &*runtime).await;
    });
}

async fn add(node: &Node, class: DiskClass, names: &[&str]) {
    for (name, number) in names.iter().zip(90..) {
        node.add_disk((*name).to_owned(), class, [number; 16]).await.unwrap();
    }
}

/// The default policy decides from here on.
async fn tier(node: &Node, single_disk: Option<&str>) {
    let settings = Policies::Worth(WorthSettings { region_bytes: EXTENT, ..WorthSettings::default() });
    let single_disk = single_disk.map(ToOwned::to_owned);
    node.set_tier(Some(TierConfig { settings, single_disk })).await.unwrap();
}

/// Does something where a volume is.
async fn at(node: &Node, name: &'static str, work: impl AsyncFnOnce(&Controller, &dyn Block) + Send + 'static) {
    let (door, _) = node.find(name).await.unwrap();
    let work = door.call(move |controller| {
        Box::pin(async move {
            let device = controller.open_volume(name).unwrap();
            work(&controller, &*device).await;
        })
    });
    work.await.unwrap();
}

/// Makes a volume, and writes all of it.
async fn fill(node: &Node, name: &'static str, mib: u64) {
    let size_bytes = mib << 20;
    let spec = VolumeSpec { name: name.into(), size_bytes, layout: Layout::Mirror, thick: false, read_only: false };
    node.create_volume(spec).await.unwrap();
    overwrite(node, name, 0..(mib << 8) as usize, 1).await;
}

async fn overwrite(node: &Node, name: &'static str, blocks: Range<usize>, byte: u8) {
    at(node, name, async move |controller, device| {
        write(device, blocks, byte).await;
        controller.store().checkpoint().await.unwrap();
    })
    .await;
}

/// A pool that began with fast disks alone: what its volumes hold there is no room for copies, and gains nothing by one.
#[test]
fn what_lives_on_fast_disks_takes_their_space() {
    run(&FAST, 1, async |node, runtime| {
        fill(&node, "old", 4).await;
        add(&node, DiskClass::Slow, &SLOW).await;
        fill(&node, "new", 4).await;
        tier(&node, None).await;
        let free = || async { node.tier().await.unwrap().free_bytes };
        let before = free().await;
        for name in ["old", "new"] {
            node.change_tier_rules(name, TierChange { pin: Some(Pin::Fast), ..TierChange::default() }).await.unwrap();
        }
        runtime.sleep(Duration::from_secs(10)).await;
        let tier = node.tier().await.unwrap();
        assert_eq!((tier.hindrance.clone(), tier.valid_bytes), (None, 4 << 20), "{tier:?}");
        assert_eq!(free().await, before - (4 << 20));
        let moves = node.tier_moves().await.unwrap();
        assert!(moves.iter().all(|one| one.volume == "new" && one.failed.is_none()), "{moves:?}");
        node.delete_volume("old", false).await.unwrap();
        runtime.sleep(Duration::from_secs(10)).await;
        assert_eq!(free().await, before, "its space is the tier's");
    });
}

/// What a volume of another controller has on fast disks, beyond that one's part of them, is no room for copies: the tier is full
/// without it, and follows what is used.
#[test]
fn what_another_controller_has_on_fast_disks_is_no_room() {
    run(&FAST, 2, async |node, runtime| {
        fill(&node, "old", 15).await;
        add(&node, DiskClass::Slow, &SLOW).await;
        fill(&node, "new", 16).await;
        let owners: Vec<_> = node.volumes().await.unwrap().iter().map(|volume| volume.controller).collect();
        assert_ne!(owners[0], owners[1]);
        tier(&node, None).await;
        // More than there is room for, then something else, often enough to count for more.
        for (blocks, passes) in [(0..2048, 10), (3584..4096, 40)] {
            for _ in 0..passes {
                let blocks = blocks.clone();
                at(&node, "new", async move |_, device| read(device, blocks, 1).await).await;
                runtime.sleep(Duration::from_secs(1)).await;
            }
            let tier = node.tier().await.unwrap();
            assert!(tier.valid_bytes > 2 << 20 && tier.total_bytes < 6 << 20, "{tier:?}");
        }
        let fast_reads = || async { node.tier().await.unwrap().hits.fast_reads };
        let before = fast_reads().await;
        at(&node, "new", async |_, device| read(device, 3584..4096, 1).await).await;
        assert_eq!(fast_reads().await - before, 512, "all of it is up");
        let moves = node.tier_moves().await.unwrap();
        assert!(moves.iter().all(|one| one.failed.is_none()), "{moves:?}");
    });
}

/// On one disk copies serve reads alone. With a second one they are made anew on both, and take writes.
#[test]
fn copies_on_one_disk_come_again_on_two() {
    run(&["fast0", "slow0", "slow1"], 1, async |node, runtime| {
        fill(&node, "v", 4).await;
        tier(&node, Some("fast0")).await;
        node.change_tier_rules("v", TierChange { pin: Some(Pin::Fast), ..TierChange::default() }).await.unwrap();
        runtime.sleep(Duration::from_secs(20)).await;
        overwrite(&node, "v", 0..512, 2).await;
        let tier = node.tier().await.unwrap();
        assert_eq!((tier.valid_bytes, tier.stale_bytes), (4 << 20, 0), "{tier:?}");
        add(&node, DiskClass::Fast, &["fast1"]).await;
        runtime.sleep(Duration::from_secs(20)).await;
        overwrite(&node, "v", 256..768, 3).await;
        let tier = node.tier().await.unwrap();
        assert_eq!((tier.valid_bytes, tier.stale_bytes), (4 << 20, 2 << 20), "{tier:?}");
        for (blocks, byte) in [(0..256, 2), (256..768, 3), (768..1024, 1)] {
            at(&node, "v", async move |_, device| read(device, blocks, byte).await).await;
        }
    });
}

/// A volume that ends within a group of extents keeps the copies of its own ones.
#[test]
fn what_a_volume_gave_up_in_a_group_takes_no_room() {
    let rig = Rig::new(24);
    rig.run(async |controller, runtime| {
        tier_by_worth(controller);
        let device = create_of(controller, "v", 1, Layout::Raid5).await;
        write(&*device, 0..256, 1).await;
        controller.store().checkpoint().await.unwrap();
        let pinned = TierChange { pin: Some(Pin::Fast), ..TierChange::default() };
        controller.store().change_tier_rules("v", pinned).await.unwrap();
        runtime.sleep(Duration::from_secs(20)).await;
        write(&*device, 0..256, 2).await;
        let up = || controller.store().tier().fast_bytes / EXTENT;
        let total = controller.store().tier().space.free;
        assert_eq!(up(), 16);
        // Groups are of three extents.
        controller.store().resize("v", 10 * EXTENT).await.unwrap();
        runtime.sleep(Duration::from_secs(20)).await;
        assert_eq!((up(), controller.store().tier().space.free), (10, total + 6));
        read(&*device, 0..160, 2).await;
    });
}

/// Whole groups are allocated: what the last one has beyond its volume's end is nobody's, and takes no room in the fast tier.
#[test]
fn what_is_pinned_ends_with_its_volume() {
    let rig = Rig::new(24);
    rig.run(async |controller, runtime| {
        let spec =
            VolumeSpec { name: "v".into(), size_bytes: EXTENT, layout: Layout::Raid5, thick: false, read_only: false };
        controller.store().create(spec).await.unwrap();
        let device = controller.open_volume("v").unwrap();
        tier_by_worth(controller);
        write(&*device, 0..1, 7).await;
        device.flush().await.unwrap();
        let in_fast = || controller.store().tier().fast_bytes;
        for (pin, wanted) in [(Pin::Fast, EXTENT), (Pin::Slow, 0)] {
            controller
                .store()
                .change_tier_rules("v", TierChange { pin: Some(pin), ..TierChange::default() })
                .await
                .unwrap();
            runtime.sleep(Duration::from_secs(20)).await;
            assert_eq!(in_fast(), wanted, "{pin:?}");
            let moves = controller.store().tier().moves;
            runtime.sleep(Duration::from_secs(20)).await;
            assert_eq!(controller.store().tier().moves, moves, "{pin:?}: it rests");
        }
        read(&*device, 0..1, 7).await;
    });
}

/// One slow disk is left of those that a mirror lies on: data goes to the fast disks too, and what they have of copies makes room for it.
#[test]
fn fast_disks_that_data_needs_take_no_copies() {
    let rig = Rig::new(24);
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", 16).await;
        write(&*device, 0..2048, 1).await;
        tier_by_worth(controller);
        let pinned = TierChange { pin: Some(Pin::Fast), ..TierChange::default() };
        controller.store().change_tier_rules("v", pinned).await.unwrap();
        runtime.sleep(Duration::from_secs(20)).await;
        write(&*device, 0..1024, 2).await;
        let tier = controller.store().tier();
        assert_eq!((tier.fast_bytes, tier.hindrance), (8 << 20, None));
        for leaves in 3..6 {
            controller.store().leave_disk(DeviceId(leaves)).await.unwrap();
        }
        runtime.sleep(Duration::from_mins(2)).await;
        let tier = controller.store().tier();
        assert!(tier.hindrance.as_ref().is_some_and(|why| why.contains("take data too")), "{tier:?}");
        let moves: u64 = controller.store().unwanted().values().map(|held| held.copies).sum();
        assert_eq!((tier.fast_bytes, moves), (0, 0));
        write(&*device, 2048..4096, 3).await;
        device.flush().await.unwrap();
        for (blocks, byte) in [(0..1024, 2), (1024..2048, 1), (2048..4096, 3)] {
            read(&*device, blocks, byte).await;
        }
    });
}
