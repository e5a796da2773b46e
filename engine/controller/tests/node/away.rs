//! Disks that are away at a start, in virtual time.
//!
//! What must hold: a start that would give up what lies only on disks that are away is refused, and changes nothing for any
//! controller: the disks, brought back, have everything and are in service. Whoever insists gets what there is, and errors for
//! the rest, never wrong bytes.

use kura_block::{Block, Buf, Kind, Result, Runtime};
use kura_controller::{
    Check, Config, Controller, DiskState, JournalLimits, Layout, Node, PoolSpec, Settings, SharedPool, VolumeSpec,
};
use kura_shared::InProcess;
use kura_sim::{DiskSpec, Sim, SimDisk};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: usize = 96;
const FAST: usize = 2;
const SLOW: usize = 4;

fn formatted(sim: &Sim) -> Vec<SimDisk> {
    let disk = |at: usize| sim.disk(&format!("disk{at}"), DiskSpec::nvme(26 << 20));
    let disks: Vec<_> = (0..FAST + SLOW).map(disk).collect();
    let pool = PoolSpec {
        uuid: [9; 16],
        extent_bytes: 64 << 10,
        controllers: 2,
        journal_bytes: 5 << 20,
        floating_percent: 12,
    };
    crate::rig::format(sim, &disks, FAST, &pool);
    disks
}

/// Starts the node on `all` disks, of which those in `here` are found.
async fn start(
    all: &[SimDisk],
    here: &[SimDisk],
    runtime: &Rc<dyn Runtime>,
    degraded: bool,
) -> Result<(Node, Vec<Rc<Controller>>)> {
    let paths: Vec<String> = all.iter().map(|disk| disk.name().to_owned()).collect();
    let config = Config {
        settings: Settings { write_buffer_bytes: 256 << 10, pages: 8, raid_width: Some(3), ..Settings::default() },
        journal: JournalLimits { linger: Duration::from_millis(1), batch_bytes: 64 << 10, ..JournalLimits::default() },
        degraded,
        ..Config::default()
    };
    let shared: Arc<dyn SharedPool> = Arc::new(InProcess::new());
    Node::start(&paths, SimDisk::opener(here), runtime, &shared, config).await
}

/// Fills a volume of each controller, the second's with this layout and the first's mirrored, and cuts the power, with part of what was written in the logs and not at its place.
fn filled(sim: &Sim, disks: &[SimDisk], layout: Layout) {
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let (node, controllers) = start(disks, disks, &runtime, false).await.unwrap();
        for (controller, (name, layout)) in controllers.iter().zip([("a", Layout::Mirror), ("b", layout)]) {
            let size_bytes = (BLOCKS * BLOCK) as u64;
            let spec = VolumeSpec { name: name.into(), size_bytes, layout, thick: false, read_only: false };
            controller.store().create(spec).await.unwrap();
            let volume = controller.open_volume(name).unwrap();
            for block in 0..BLOCKS {
                write(&*volume, block).await.unwrap();
                if block == BLOCKS / 2 {
                    controller.store().checkpoint().await.unwrap();
                }
            }
            volume.flush().await.unwrap();
        }
        drop(node);
    });
    sim.crash();
}

fn content(block: usize) -> [u8; BLOCK] {
    [block as u8 + 1; BLOCK]
}

async fn write(volume: &dyn Block, block: usize) -> Result<()> {
    volume.write((block * BLOCK) as u64, Buf::copy_of(&content(block)).into(), false).await
}

/// Blocks of both volumes that can be read: each as it was written.
async fn readable(controllers: &[Rc<Controller>]) -> usize {
    let mut readable = 0;
    for (controller, name) in controllers.iter().zip(["a", "b"]) {
        let volume = controller.open_volume(name).unwrap();
        for block in 0..BLOCKS {
            match volume.read((block * BLOCK) as u64, BLOCK).await {
                Ok(found) => {
                    assert!(*found.contiguous() == content(block), "{name}: block {block} is another");
                    readable += 1;
                }
                Err(error) => assert!(matches!(error.kind(), Kind::Device | Kind::Corrupt), "{error}"),
            }
        }
    }
    readable
}

/// Starts without two of the slow disks, whichever they are. How many starts were refused.
fn refused(layout: Layout, away: usize) -> usize {
    let mut refused = 0;
    for first in 0..SLOW {
        let (sim, gone) = (Sim::new(3), [FAST + first, FAST + (first + 1) % SLOW]);
        let disks = formatted(&sim);
        filled(&sim, &disks, layout);
        let here = disks.iter().enumerate().filter(|(at, _)| !gone[..away].contains(at));
        let here: Vec<_> = here.map(|(_, disk)| disk.clone()).collect();
        let runtime: Rc<dyn Runtime> = sim.runtime();
        let why = sim.block_on(async {
            match start(&disks, &here, &runtime, false).await {
                Ok((_node, controllers)) => {
                    assert_eq!(readable(&controllers).await, 2 * BLOCKS, "{layout:?} without {:?}", &gone[..away]);
                    None
                }
                Err(error) => Some(error.to_string()),
            }
        });
        sim.crash();
        let Some(why) = why else { continue };
        assert!(why.contains("lie nowhere else") && why.contains("--degraded"), "{why}");
        refused += 1;
        let runtime: Rc<dyn Runtime> = sim.runtime();
        sim.block_on(async {
            let (node, controllers) = start(&disks, &disks, &runtime, false).await.unwrap();
            let found = node.pool().await.unwrap().disks;
            assert!(found.iter().all(|disk| disk.state == DiskState::Healthy), "{found:?}");
            assert_eq!(readable(&controllers).await, 2 * BLOCKS);
            let report = node.check(Check::Repair).await.unwrap();
            assert!(report.violations.is_empty(), "{:#?}", report.violations);
        });
        sim.crash();
        // What was given up once is not asked for again.
        for insists in [true, false] {
            let runtime: Rc<dyn Runtime> = sim.runtime();
            sim.block_on(async {
                let (_node, controllers) = start(&disks, &here, &runtime, insists).await.unwrap();
                let readable = readable(&controllers).await;
                assert!(readable < 2 * BLOCKS, "{layout:?} without {:?}: nothing was lost", &gone[..away]);
            });
            sim.crash();
        }
    }
    refused
}

#[test]
fn one_disk_is_done_without_where_there_is_another_copy() {
    for layout in [Layout::Mirror, Layout::Raid5, Layout::HotMirror, Layout::Floating] {
        assert_eq!(refused(layout, 1), 0, "{layout:?}");
    }
}

#[test]
fn the_only_copy_is_waited_for() {
    assert_eq!(refused(Layout::None, 1), SLOW);
    for layout in [Layout::Mirror, Layout::Raid5, Layout::HotMirror, Layout::Floating] {
        assert!(refused(layout, 2) > 0, "{layout:?}");
    }
}
