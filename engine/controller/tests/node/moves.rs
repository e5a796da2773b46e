//! Volumes that move on and on between three controllers on simulated disks.
//!
//! What must hold: what a client has open stays open wherever its volume goes, idle or not, and is that volume and no other;
//! a controller that let a volume go has nothing to do with it any more, also when it starts anew.

use crate::told::Told;
use kura_block::{Block, Buf, Kind, Runtime};
use kura_controller::{
    Check, Config, Controller, JournalLimits, Layout, Node, PoolSpec, Settings, SnapshotSpec, VolumeSpec,
};
use kura_sim::{CrashPoint, DiskSpec, FaultPlan, Outcome, Sim, SimDisk};
use kura_tier::{Pace, Tier};
use std::cell::Cell;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

const CONTROLLERS: u16 = 3;
const BLOCK: usize = 4096;

/// A node that runs.
type Running = (Node, Vec<Rc<Controller>>);

fn formatted(sim: &Sim) -> Vec<SimDisk> {
    formatted_with(sim, DiskSpec::nvme)
}

/// Two fast disks, and three slow ones that are like this.
fn formatted_with(sim: &Sim, slow: impl Fn(u64) -> DiskSpec) -> Vec<SimDisk> {
    let disk =
        |at: usize| sim.disk(&format!("disk{at}"), if at < 2 { DiskSpec::nvme(26 << 20) } else { slow(30 << 20) });
    let disks: Vec<_> = (0..5).map(disk).collect();
    let pool = PoolSpec {
        uuid: [9; 16],
        extent_bytes: 64 << 10,
        controllers: CONTROLLERS,
        journal_bytes: 5 << 20,
        floating_percent: 12,
    };
    crate::rig::format(sim, &disks, 2, &pool);
    disks
}

async fn started(disks: &[SimDisk], runtime: &Rc<dyn Runtime>) -> Running {
    let config = Config {
        settings: Settings { write_buffer_bytes: 4 << 20, pages: 64, raid_width: Some(3), ..Settings::default() },
        journal: JournalLimits { linger: Duration::from_millis(1), batch_bytes: 64 << 10, ..JournalLimits::default() },
        ..Config::default()
    };
    crate::alone::all(disks, runtime, config).await
}

fn volume(name: &str, blocks: usize, layout: Layout) -> VolumeSpec {
    VolumeSpec { name: name.into(), size_bytes: (blocks * BLOCK) as u64, layout, thick: false, read_only: false }
}

async fn write(device: &dyn Block, block: usize, byte: u8) {
    device.write((block * BLOCK) as u64, Buf::copy_of(&[byte; BLOCK]).into(), false).await.unwrap();
}

async fn reads(device: &dyn Block, block: usize, byte: u8) {
    let found = device.read((block * BLOCK) as u64, BLOCK).await.unwrap().contiguous();
    assert!(found.iter().all(|one| *one == byte), "{} instead of {byte}", found[0]);
}

#[test]
fn a_client_has_its_volume_wherever_it_goes() {
    let sim = Sim::new(1);
    let disks = formatted(&sim);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let (node, controllers) = started(&disks, &runtime).await;
        controllers[0].store().create(volume("v", 64, Layout::Mirror)).await.unwrap();
        // One that asks for something wherever the volume is, and one that is idle nearly always.
        let (busy, idle) = (controllers[0].open_volume("v").unwrap(), controllers[0].open_volume("v").unwrap());
        write(&*busy, 9, 99).await;
        for (at, to) in [1, 2, 0, 1, 0, 2, 1, 2].into_iter().enumerate() {
            let at = at as u8 + 1;
            write(&*busy, 3, at).await;
            let going = async {
                for _ in 0..20 {
                    write(&*busy, 4, at).await;
                    reads(&*busy, 4, at).await;
                    reads(&*busy, 9, 99).await;
                }
            };
            let (moved, ()) = futures::future::join(node.move_volume("v", to), going).await;
            let there = moved.unwrap().volume;
            assert_eq!(there.controller, to);
            assert!(there.open >= 2, "{} have it open", there.open);
            reads(&*busy, 3, at).await;
            if to == 2 {
                reads(&*idle, 4, at).await;
            }
        }
        // It is that volume, not one of its name.
        controllers[2].store().delete("v").await.unwrap();
        controllers[2].store().create(volume("v", 64, Layout::Mirror)).await.unwrap();
        for client in [&busy, &idle] {
            assert_eq!(client.read(0, BLOCK).await.unwrap_err().kind(), Kind::Missing);
        }
    });
}

/// Asks until so many polls have found no answer, and leaves.
async fn asks(device: &dyn Block, polls: usize) {
    let (mut read, mut left) = (device.read(0, BLOCK), polls);
    std::future::poll_fn(|context| {
        left -= 1;
        if read.as_mut().poll(context).is_ready() || left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn a_client_that_leaves_on_the_way_to_its_volume_has_nothing_open() {
    for polls in 1..6 {
        let sim = Sim::new(1);
        let disks = formatted(&sim);
        let runtime: Rc<dyn Runtime> = sim.runtime();
        sim.block_on(async {
            let (node, controllers) = started(&disks, &runtime).await;
            controllers[0].store().create(volume("v", 64, Layout::Mirror)).await.unwrap();
            let client = controllers[0].open_volume("v").unwrap();
            write(&*client, 0, 7).await;
            // In a task of its own, so that who asks is not polled for that.
            let (mover, is_moving) = (node.clone(), Rc::new(Cell::new(true)));
            let still = Rc::clone(&is_moving);
            runtime.spawn(Box::pin(async move {
                mover.move_volume("v", 1).await.unwrap();
                still.set(false);
            }));
            while is_moving.get() {
                asks(&*client, polls).await;
                runtime.sleep(Duration::from_micros(1)).await;
            }
            reads(&*client, 0, 7).await;
            drop(client);
            runtime.sleep(Duration::from_millis(1)).await;
            assert_eq!(node.find("v").await.unwrap().1.open, 0, "{polls} polls");
        });
    }
}

#[test]
fn snapshots_do_not_count_where_a_volume_is_made() {
    let sim = Sim::new(1);
    let disks = formatted(&sim);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let (node, _) = started(&disks, &runtime).await;
        let create = async |name: &str| node.create_volume(volume(name, 64, Layout::Mirror)).await.unwrap().controller;
        let first = create("v").await;
        for number in 0..10 {
            let wanted = SnapshotSpec { of: "v".into(), name: format!("v@{number}"), read_only: true };
            node.snapshot(vec![wanted], number).await.unwrap();
        }
        create("w").await;
        create("x").await;
        assert_eq!(create("y").await, first);
    });
}

#[test]
fn what_is_asked_of_a_volume_that_comes_and_goes_is_answered() {
    let sim = Sim::new(2);
    let disks = formatted(&sim);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let (node, controllers) = started(&disks, &runtime).await;
        controllers[0].store().create(volume("v", 64, Layout::Mirror)).await.unwrap();
        let wanted = SnapshotSpec { of: "v".into(), name: "v@a".into(), read_only: true };
        node.snapshot(vec![wanted], 1).await.unwrap();
        for to in [1, 0, 1, 2, 0] {
            node.move_volume("v", to).await.unwrap();
            for asked in &controllers[..2] {
                asked.changed("v@a", "v", 0..u64::MAX).await.unwrap();
                let refused = asked.changed("v@never", "v", 0..u64::MAX).await.unwrap_err();
                assert_eq!(refused.kind(), Kind::Missing, "{refused}");
            }
        }
    });
}

#[test]
fn what_changed_is_told_while_the_volume_moves() {
    const BLOCKS: usize = 2048;
    let sim = Sim::new(3);
    let disks = formatted(&sim);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let (node, controllers) = started(&disks, &runtime).await;
        controllers[0].store().create(volume("v", BLOCKS, Layout::Mirror)).await.unwrap();
        let wanted = SnapshotSpec { of: "v".into(), name: "v@a".into(), read_only: true };
        node.snapshot(vec![wanted], 1).await.unwrap();
        // More extents than have their pages in memory.
        let client = controllers[0].open_volume("v").unwrap();
        for block in (0..BLOCKS).step_by(2) {
            write(&*client, block, 1).await;
        }
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            let is_moving = Cell::new(true);
            let moving = async {
                node.move_volume("v", to).await.unwrap();
                is_moving.set(false);
            };
            let asking = async {
                while is_moving.get() {
                    for first in (0..BLOCKS).step_by(256) {
                        let within = (first * BLOCK) as u64..((first + 256) * BLOCK) as u64;
                        let told = controllers[from].changed("v@a", "v", within.clone()).await.unwrap();
                        let ranges: Vec<_> = within.step_by(2 * BLOCK).map(|at| at..at + BLOCK as u64).collect();
                        assert_eq!((told.ranges, told.next_offset), (ranges, None));
                    }
                }
            };
            futures::future::join(moving, asking).await;
        }
    });
}

#[test]
fn a_volume_with_a_hot_area_goes_cold_and_is_hot_again_where_it_went() {
    let sim = Sim::new(4);
    let disks = formatted(&sim);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    let hot_bytes = |controllers: &[Rc<Controller>], at: u16| controllers[usize::from(at)].store().status().hot_bytes;
    sim.block_on(async {
        let (node, controllers) = started(&disks, &runtime).await;
        // Of one number, but for their controllers', and with blocks of the same numbers in one hot area in turn.
        for (at, name) in ["v", "w"].into_iter().enumerate() {
            controllers[at].store().create(volume(name, 256, Layout::HotMirror)).await.unwrap();
        }
        let both = ["v", "w"].map(|name| controllers[usize::from(name == "w")].open_volume(name).unwrap());
        for (turn, to) in [1, 2, 0, 1].into_iter().enumerate() {
            let turn = turn as u8 + 1;
            for block in 0..200 {
                write(&*both[0], block * 7 % 256, turn).await;
                write(&*both[1], block * 7 % 256, 100 + turn).await;
            }
            let from = node.find("v").await.unwrap().1.controller;
            controllers[usize::from(from)].store().checkpoint().await.unwrap();
            let before = hot_bytes(&controllers, from);
            assert!(before > 0, "turn {turn}: nothing is hot");
            let going = async {
                for block in 0..40 {
                    write(&*both[0], block * 5 % 256, turn).await;
                    reads(&*both[0], block * 5 % 256, turn).await;
                }
            };
            let (moved, ()) = futures::future::join(node.move_volume("v", to), going).await;
            moved.unwrap();
            assert!(hot_bytes(&controllers, from) < before, "turn {turn}: it left something hot");
            for controller in &controllers {
                let report = controller.store().check(Check::Repair).await.unwrap();
                assert!(report.violations.is_empty(), "turn {turn}: {:#?}", report.violations);
            }
        }
        for block in 0..200 {
            write(&*both[0], block * 7 % 256, 50).await;
            write(&*both[1], block * 7 % 256, 60).await;
        }
        both[0].flush().await.unwrap();
        both[1].flush().await.unwrap();
    });
    sim.crash();
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let (_node, controllers) = started(&disks, &runtime).await;
        for (name, byte) in [("v", 50), ("w", 60)] {
            let device = controllers[1].open_volume(name).unwrap();
            for block in 0..200 {
                reads(&*device, block * 7 % 256, byte).await;
            }
        }
        let report = controllers[1].store().check(Check::Repair).await.unwrap();
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
    });
}

#[test]
fn a_volume_with_parity_leaves_nothing_in_the_old_journal() {
    [Layout::Raid5, Layout::Floating].into_iter().for_each(leaves_nothing);
}

fn leaves_nothing(layout: Layout) {
    let sim = Sim::new(3);
    let disks = formatted(&sim);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let (node, controllers) = started(&disks, &runtime).await;
        controllers[0].store().create(volume("v", 512, layout)).await.unwrap();
        let device = controllers[0].open_volume("v").unwrap();
        let going = async {
            for block in 0..512 {
                write(&*device, block * 37 % 512, 7).await;
            }
        };
        let (moved, ()) = futures::future::join(node.move_volume("v", 1), going).await;
        assert_eq!(moved.unwrap().volume.controller, 1);
        drop(device);
        // Its places are another one's.
        controllers[1].store().delete("v").await.unwrap();
        runtime.sleep(Duration::from_secs(3)).await;
        let other = volume("w", 6 * 256, Layout::Mirror);
        controllers[1].store().create(other).await.unwrap();
        let device = controllers[1].open_volume("w").unwrap();
        for block in 0..6 * 256 {
            write(&*device, block, 8).await;
        }
        device.flush().await.unwrap();
    });
    sim.crash();
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let (node, controllers) = started(&disks, &runtime).await;
        let device = controllers[1].open_volume("w").unwrap();
        for block in 0..6 * 256 {
            reads(&*device, block, 8).await;
        }
        let report = node.check(Check::Repair).await.unwrap();
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
    });
}

/// A floating volume comes and goes: each controller reads where its rows lie from the disks, however well it knew that before.
#[test]
fn floating_rows_are_found_wherever_their_volume_goes() {
    let sim = Sim::new(8);
    let disks = formatted(&sim);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let (node, controllers) = started(&disks, &runtime).await;
        controllers[0].store().create(volume("v", 256, Layout::Floating)).await.unwrap();
        let device = controllers[0].open_volume("v").unwrap();
        for (turn, to) in [1, 0, 2, 1, 0].into_iter().enumerate() {
            let turn = turn as u8 + 1;
            for block in 0..256 {
                write(&*device, block * 37 % 256, turn).await;
            }
            node.move_volume("v", to).await.unwrap();
            for block in 0..256 {
                reads(&*device, block, turn).await;
            }
            // Rows that lie elsewhere from now on.
            for block in (0..256).step_by(3) {
                write(&*device, block, turn).await;
            }
            let report = node.check(Check::Repair).await.unwrap();
            assert!(report.violations.is_empty() && report.repaired == 0, "turn {turn}: {report:#?}");
        }
        device.flush().await.unwrap();
    });
    sim.crash();
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let (node, controllers) = started(&disks, &runtime).await;
        let device = controllers[0].open_volume("v").unwrap();
        for block in 0..256 {
            reads(&*device, block, 5).await;
        }
        let report = node.check(Check::Repair).await.unwrap();
        assert!(report.violations.is_empty() && report.repaired == 0, "{report:#?}");
    });
}

#[test]
fn what_lies_in_the_fast_tier_comes_down_before_a_move_however_long_it_takes() {
    let sim = Sim::new(6);
    let disks = formatted_with(&sim, |bytes| DiskSpec::constant(bytes, Duration::from_millis(20)));
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let (node, controllers) = started(&disks, &runtime).await;
        for controller in &controllers {
            Told::new(Tier::Fast, Pace::default()).decide_for(controller, 64 << 10);
        }
        let blocks = 512;
        controllers[0].store().create(volume("v", blocks, Layout::Mirror)).await.unwrap();
        let device = controllers[0].open_volume("v").unwrap();
        for turn in 1..=2 {
            for block in 0..blocks {
                write(&*device, block, turn).await;
            }
            controllers[0].store().checkpoint().await.unwrap();
            runtime.sleep(Duration::from_secs(5)).await;
        }
        let up = controllers[0].store().tier().stale_bytes;
        assert!(up > (blocks * BLOCK / 2) as u64, "{up} bytes of it are newer in the fast tier");
        let begun = runtime.now();
        assert_eq!(node.move_volume("v", 1).await.unwrap().volume.controller, 1);
        let took = runtime.now().saturating_sub(begun);
        assert!(took > Duration::from_millis(200), "it had to be written home, and that took {took:?}");
        assert_eq!(controllers[0].store().tier().valid_bytes, 0);
        for block in 0..blocks {
            reads(&*device, block, 2).await;
        }
        let report = node.check(Check::Repair).await.unwrap();
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
    });
}

/// How far a controller that is drained and resumed has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    ToNothing,
    Between,
    ToDrained,
    ToResumed,
}

#[test]
fn a_drain_and_its_end_are_remembered_at_every_crash_point() {
    let run = |crash: Option<u64>| {
        let sim = Sim::new(5);
        let disks = formatted(&sim);
        let crashes = crash.map(CrashPoint::Op).into_iter().collect();
        sim.set_plan(&FaultPlan { crashes, ..FaultPlan::default() });
        let (before, came) = (sim.operations(), Cell::new(Came::ToNothing));
        let runtime: Rc<dyn Runtime> = sim.runtime();
        let outcome = sim.run_until_crash_or(async {
            let (node, controllers) = started(&disks, &runtime).await;
            controllers[1].store().create(volume("v", 64, Layout::Mirror)).await.unwrap();
            came.set(Came::Between);
            assert_eq!(node.drain(1).await.unwrap().moved.len(), 1);
            came.set(Came::ToDrained);
            // It is in the tables then, and not in the log any more.
            controllers[1].store().checkpoint().await.unwrap();
            came.set(Came::Between);
            node.resume(1).await.unwrap();
            came.set(Came::ToResumed);
            controllers[1].store().checkpoint().await.unwrap();
        });
        let operations = sim.operations() - before;
        sim.set_plan(&FaultPlan::default());
        if outcome == Outcome::Done(()) {
            sim.crash();
        }
        let runtime: Rc<dyn Runtime> = sim.runtime();
        sim.block_on(async {
            let (node, controllers) = started(&disks, &runtime).await;
            let drained = controllers.iter().map(|controller| controller.store().is_drained()).collect::<Vec<_>>();
            let expected = match came.get() {
                Came::ToNothing | Came::ToResumed => Some(false),
                Came::ToDrained => Some(true),
                Came::Between => None,
            };
            assert!(!drained[0] && !drained[2], "crash at {crash:?}");
            assert!(expected.is_none_or(|expected| drained[1] == expected), "crash at {crash:?}: {:?}", came.get());
            let report = node.check(Check::Tables).await.unwrap();
            assert!(report.violations.is_empty(), "crash at {crash:?}: {:#?}", report.violations);
        });
        operations
    };
    for crash in 1..=run(None) {
        run(Some(crash));
    }
}
