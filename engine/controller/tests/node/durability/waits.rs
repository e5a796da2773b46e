//! What cannot be brought anywhere keeps nothing waiting that can.

use super::{BLOCK, Rig, check, create, done_within, reads, write};
use futures::future::{join_all, select};
use kura_block::{Block, DeviceId, Kind};
use kura_controller::{Controller, HotSettings, Layout, Saving, Settings, SnapshotSpec};
use kura_sim::{Discard, DiskSpec, FaultKind, FaultPlan, Place, Sim};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Where the one block of this content lies: the disk, and the byte there.
fn find(rig: &Rig, byte: u8) -> (u16, u64) {
    let is_here = |disk: usize, at: u64| rig.disks[disk].at_rest(at, BLOCK).iter().all(|found| *found == byte);
    let places = (2..rig.disks.len()).flat_map(|disk| (0..80 << 20).step_by(BLOCK).map(move |at| (disk, at)));
    let found = places.into_iter().find(|(disk, at)| is_here(*disk, *at));
    found.map(|(disk, at)| (disk as u16, at)).expect("it lies somewhere")
}

async fn checkpoints(controller: &Controller, runtime: &dyn kura_block::Runtime) -> bool {
    let mut done = Ok(());
    let work = async { done = controller.store().checkpoint().await };
    done_within(work, runtime, Duration::from_mins(2)).await && done.is_ok()
}

/// A volume of stripes of two columns, in chunks of four blocks. Blocks 0 and 4 are of one row: the disk of the first one fails, and
/// the place of the other one, on the disk that is given, does not read any more.
async fn lose_two_of_a_row(rig: &Rig, controller: &Controller, layout: Layout) -> (Rc<dyn Block>, u16) {
    let device = create(controller, "v", 32, layout).await;
    for at in 0..32 {
        write(&*device, at, 100 + at as u8).await.unwrap();
    }
    controller.store().checkpoint().await.unwrap();
    let ((dead, _), (bad, at)) = (find(rig, 100), find(rig, 104));
    rig.disks[usize::from(bad)].inject(FaultKind::ReadError(Place::Range(at..at + BLOCK as u64)));
    controller.store().fail_disk(DeviceId(dead)).await.unwrap();
    (device, dead)
}

/// Block 0 was written, and the others are as they were; true when block 4, which may be lost, is.
async fn is_lost_alone(device: &dyn Block) -> bool {
    assert!(reads(device, 0, 200).await);
    for at in (1..32).filter(|at| *at != 4) {
        assert!(reads(device, at, 100 + at as u8).await, "block {at}");
    }
    match device.read(4 * BLOCK as u64, BLOCK).await {
        Ok(read) => {
            assert!(read.contiguous().iter().all(|found| *found == 104));
            false
        }
        Err(lost) => {
            assert!(matches!(lost.kind(), Kind::Corrupt | Kind::Device), "{lost}");
            true
        }
    }
}

/// A disk is out of service, there is no other one to take its place, and a block beside what lay there is lost: what is written there
/// has parity for a place, and the lost block stays an error.
#[test]
fn a_bad_block_beside_a_failed_disk_keeps_no_write_waiting() {
    for layout in [Layout::Raid5, Layout::Floating] {
        let settings = Settings { write_buffer_bytes: 4 << 20, chunk_blocks: 4, ..Settings::default() };
        let rig = Rig::new(3, 80, 64 << 10, settings);
        rig.run(async |controller, runtime| {
            let beside = create(controller, "m", 4096, Layout::Mirror).await;
            let (device, _) = lose_two_of_a_row(&rig, controller, layout).await;
            write(&*device, 0, 200).await.unwrap();
            device.flush().await.unwrap();
            runtime.sleep(Duration::from_mins(3)).await;
            for turn in 0..3 {
                for at in 0..1024 {
                    write(&*beside, at, turn).await.unwrap();
                }
            }
            assert!(checkpoints(controller, runtime).await, "{layout:?}");
            assert!(is_lost_alone(&*device).await, "{layout:?}");
            write(&*device, 4, 204).await.unwrap();
            write(&*device, 8, 108).await.unwrap();
            assert!(checkpoints(controller, runtime).await, "{layout:?}");
            assert!(reads(&*device, 0, 200).await && reads(&*device, 4, 204).await, "{layout:?}");
        });
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            assert!(reads(&*device, 0, 200).await && reads(&*device, 4, 204).await && reads(&*device, 5, 105).await);
        });
    }
}

/// A snapshot's block cannot be copied before it is written over, for no disk reads it any more, or none has a place for what comes over
/// it: that goes elsewhere, and the snapshot's stays lost.
#[test]
fn what_cannot_be_copied_is_written_all_the_same() {
    for fails in [false, true] {
        let settings = Settings { saving: Saving::Copy, ..Settings::default() };
        let rig = Rig::new(4, 80, 64 << 10, settings);
        rig.run(async |controller, _| {
            let device = create(controller, "v", 16, Layout::None).await;
            for at in 0..16 {
                write(&*device, at, 100 + at as u8).await.unwrap();
            }
            let wanted = SnapshotSpec { of: "v".into(), name: "v@a".into(), read_only: true };
            controller.store().snapshot(&[wanted], 0).await.unwrap();
            controller.store().checkpoint().await.unwrap();
            let (bad, at) = find(&rig, 104);
            if fails {
                controller.store().fail_disk(DeviceId(bad)).await.unwrap();
            } else {
                rig.disks[usize::from(bad)].inject(FaultKind::ReadError(Place::Range(at..at + BLOCK as u64)));
            }
            write(&*device, 4, 204).await.unwrap();
            device.flush().await.unwrap();
        });
        rig.run(async |controller, _| {
            let (device, then) = (controller.open_volume("v").unwrap(), controller.open_volume("v@a").unwrap());
            assert!(reads(&*device, 4, 204).await && then.read(4 * BLOCK as u64, BLOCK).await.is_err());
            assert!(fails || reads(&*device, 5, 105).await && reads(&*then, 5, 105).await);
        });
    }
}

/// What was written over and over refusals is another block: one more refusal does not make it lost.
#[test]
fn refusals_are_forgotten_where_something_else_lies_since() {
    let rig = Rig::new(3, 80, 64 << 10, Settings { chunk_blocks: 4, ..Settings::default() });
    rig.run(async |controller, runtime| {
        let (device, _) = lose_two_of_a_row(&rig, controller, Layout::Raid5).await;
        write(&*device, 0, 200).await.unwrap();
        device.flush().await.unwrap();
        runtime.sleep(Duration::from_mins(3)).await;
        write(&*device, 4, 204).await.unwrap();
        assert!(checkpoints(controller, runtime).await);
        let (bad, at) = find(&rig, 204);
        rig.disks[usize::from(bad)].inject(FaultKind::ReadError(Place::Range(at..at + BLOCK as u64)));
        write(&*device, 0, 201).await.unwrap();
        device.flush().await.unwrap();
        for _ in 0..8 {
            runtime.sleep(Duration::from_secs(5)).await;
            let there = rig.disks[usize::from(bad)].at_rest(at, BLOCK);
            assert!(there.iter().all(|found| *found == 204), "what may read again was written over");
        }
        runtime.sleep(Duration::from_mins(3)).await;
        assert!(checkpoints(controller, runtime).await);
        assert!(reads(&*device, 0, 201).await);
    });
}

/// The power goes at any moment while that is written. It takes back what was written over the lost block, which may read again then.
#[test]
fn a_crash_beside_what_is_lost_costs_nothing_else() {
    for layout in [Layout::Raid5, Layout::Floating] {
        let (mut operation, mut goes_on, mut lost) = (1, true, 0);
        while goes_on {
            let rig = Rig::new(3, 80, 64 << 10, Settings { chunk_blocks: 4, ..Settings::default() });
            let outcome = rig.run(async |controller, runtime| {
                let (device, _) = lose_two_of_a_row(&rig, controller, layout).await;
                write(&*device, 0, 200).await.unwrap();
                device.flush().await.unwrap();
                // It was refused seven times.
                runtime.sleep(Duration::from_secs(65)).await;
                rig.cut_power_at(operation);
                runtime.sleep(Duration::from_secs(10)).await;
                checkpoints(controller, runtime).await;
            });
            goes_on = matches!(outcome, kura_sim::Outcome::Crashed) && operation < 400;
            rig.sim.set_plan(&FaultPlan::default());
            rig.run(async |controller, runtime| {
                runtime.sleep(Duration::from_mins(3)).await;
                assert!(checkpoints(controller, runtime).await, "{layout:?}: operation {operation}");
                lost += u32::from(is_lost_alone(&*controller.open_volume("v").unwrap()).await);
            });
            operation += 1 + operation / 20;
        }
        assert!(lost > 5, "{layout:?}: {lost}");
    }
}

/// There are disks to spare: what cannot land until its group has moved, and with it every checkpoint, keeps the rebuild from nothing,
/// though that begins with what is hot.
#[test]
fn a_flight_that_cannot_land_keeps_no_rebuild_waiting() {
    for hot in [false, true] {
        let rig = Rig::new(6, 80, 64 << 10, Settings { raid_width: Some(3), chunk_blocks: 4, ..Settings::default() });
        rig.run(async |controller, runtime| {
            let warm = create(controller, "h", 512, if hot { Layout::HotMirror } else { Layout::Raid5 }).await;
            write(&*warm, 0, 1).await.unwrap();
            runtime.sleep(Duration::from_secs(1)).await;
            for at in 0..512 {
                write(&*warm, at * 7 % 512, 1).await.unwrap();
            }
            controller.store().checkpoint().await.unwrap();
            assert_eq!(hot, controller.store().status().hot_bytes > 0);
            let (device, dead) = lose_two_of_a_row(&rig, controller, Layout::Raid5).await;
            write(&*device, 0, 200).await.unwrap();
            let moved = || controller.store().unwanted()[&DeviceId(dead)].copies == 0;
            for _ in 0..60 {
                if moved() {
                    break;
                }
                runtime.sleep(Duration::from_secs(5)).await;
            }
            assert!(moved(), "hot: {hot}: {:?}", controller.store().rebuild_stalled());
            assert!(checkpoints(controller, runtime).await, "hot: {hot}");
            assert!(reads(&*device, 0, 200).await && reads(&*warm, 7, 1).await);
        });
    }
}

/// A family whose table is lost has blocks in the hot area, on a disk that is out of service: what others have is rebuilt, and what is
/// left is told, and not tried without rest.
#[test]
fn a_lost_family_keeps_no_rebuild_waiting() {
    let mut lost_ones = 0;
    for gone in (2..7).flat_map(|one| (one + 1..7).map(move |other| [one, other])) {
        let hot = HotSettings { share_permille: 400, eager: false, ..HotSettings::TODAY };
        let rig = Rig::new(5, 80, 64 << 10, Settings { raid_width: Some(3), hot, ..Settings::default() });
        rig.run(async |controller, runtime| {
            let device = create(controller, "v", 256, Layout::HotMirror).await;
            write(&*device, 0, 1).await.unwrap();
            runtime.sleep(Duration::from_secs(1)).await;
            for at in 0..256 {
                write(&*device, at * 7 % 256, 1).await.unwrap();
            }
            let wanted = SnapshotSpec { of: "v".into(), name: "v@a".into(), read_only: true };
            controller.store().snapshot(&[wanted], 0).await.unwrap();
            for at in 0..64 {
                write(&*device, at, 2).await.unwrap();
            }
            let beside = create(controller, "beside", 512, Layout::Mirror).await;
            for at in 0..512 {
                write(&*beside, at, 3).await.unwrap();
            }
            controller.store().checkpoint().await.unwrap();
            // Both at once: nothing is brought elsewhere between.
            let both = gone.map(|disk| controller.store().fail_disk(DeviceId(disk)));
            futures::future::join_all(both).await;
        });
        rig.run(async |controller, runtime| {
            if !controller.store().volumes().iter().any(|volume| volume.lost) {
                return;
            }
            lost_ones += 1;
            runtime.sleep(Duration::from_secs(30)).await;
            let left = (2..7).filter(|disk| !gone.contains(disk));
            let left: Vec<_> =
                left.map(|disk| controller.store().only_on_disk(DeviceId(disk)).unwrap().tell(BLOCK as u64)).collect();
            assert!(left.iter().all(|tell| !tell.contains("beside")), "{left:?}");
            assert!(controller.store().status().hot_bytes > 0 && controller.store().rebuild_stalled().is_some());
            let before = rig.sim.operations();
            runtime.sleep(Duration::from_secs(10)).await;
            // The migrator tries what is cold a hundred times in a second.
            assert!(rig.sim.operations() - before < 20_000, "{} operations", rig.sim.operations() - before);
            controller.store().delete("v@a").await.unwrap();
            controller.store().delete("v").await.unwrap();
            runtime.sleep(Duration::from_secs(20)).await;
            assert!(controller.store().status().hot_bytes == 0 && controller.store().rebuild_stalled().is_none());
        });
    }
    assert!(lost_ones > 0);
}

/// Groups that no disk is left for keep those waiting in no way that could be moved.
#[test]
fn who_finds_no_place_keeps_no_other_waiting() {
    let rig = Rig::new(5, 80, 64 << 10, Settings { raid_width: Some(5), ..Settings::default() });
    rig.run(async |controller, runtime| {
        let wide = create(controller, "wide", 400 * 64, Layout::Raid5).await;
        for group in 0..400 {
            write(&*wide, group * 64, 1).await.unwrap();
        }
        let pair = create(controller, "pair", 512, Layout::Mirror).await;
        for at in 0..512 {
            write(&*pair, at, 2).await.unwrap();
        }
        controller.store().checkpoint().await.unwrap();
        controller.store().fail_disk(DeviceId(2)).await.unwrap();
        runtime.sleep(Duration::from_secs(20)).await;
        let only = (3..7).map(|disk| controller.store().only_on_disk(DeviceId(disk)).unwrap().tell(BLOCK as u64));
        assert!(only.into_iter().all(|tell| !tell.contains("pair")));
        let stalled = controller.store().rebuild_stalled().expect("the wide ones have no place");
        assert_eq!(stalled.kind(), Kind::Full, "{stalled}");
        let before = rig.sim.operations();
        runtime.sleep(Duration::from_secs(10)).await;
        assert!(rig.sim.operations() - before < 2000, "{} operations", rig.sim.operations() - before);
    });
}

/// Disks are full, the power goes, and they are full still: the controller starts, and reads what it has. What is torn is made whole
/// when they have room.
#[test]
fn full_disks_keep_nobody_from_starting() {
    let rig = Rig::new(4, 80, 64 << 10, Settings { raid_width: Some(3), chunk_blocks: 4, ..Settings::default() });
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", 64, Layout::Raid5).await;
        write(&*device, 0, 1).await.unwrap();
        controller.store().checkpoint().await.unwrap();
        for disk in &rig.disks[2..] {
            disk.inject(FaultKind::Full { lasts: Duration::from_mins(10) });
        }
        for at in 8..16 {
            write(&*device, at, 2).await.unwrap();
        }
        device.flush().await.unwrap();
        runtime.sleep(Duration::from_secs(5)).await;
    });
    for _ in 0..2 {
        rig.run(async |controller, runtime| {
            let device = controller.open_volume("v").unwrap();
            assert!(reads(&*device, 0, 1).await && reads(&*device, 8, 2).await);
            assert!(!checkpoints(controller, runtime).await, "rows are torn");
        });
    }
    rig.run(async |controller, runtime| {
        runtime.sleep(Duration::from_mins(15)).await;
        let device = controller.open_volume("v").unwrap();
        assert!(checkpoints(controller, runtime).await);
        assert_eq!(check(controller).await, 0);
        assert!(reads(&*device, 0, 1).await && reads(&*device, 8, 2).await && reads(&*device, 15, 2).await);
    });
}

/// With one disk of data left there is no pair for the hot area to grow on: what waited to go there keeps nobody else waiting.
#[test]
fn a_hot_area_without_a_pair_of_disks_keeps_no_write_waiting() {
    let settings = Settings { write_buffer_bytes: 1 << 20, ..Settings::default() };
    let rig = Rig::new(3, 80, 64 << 10, settings);
    rig.run(async |controller, runtime| {
        let beside = create(controller, "m", 4096, Layout::None).await;
        let device = create(controller, "v", 512, Layout::HotMirror).await;
        for at in 0..512 {
            write(&*device, at, 1).await.unwrap();
        }
        controller.store().checkpoint().await.unwrap();
        assert!(controller.store().status().hot_limit_bytes > 0);
        for at in 0..128 {
            write(&*device, at * 4, 2).await.unwrap();
        }
        for dead in [2, 3] {
            controller.store().fail_disk(DeviceId(dead)).await.unwrap();
        }
        let reading = async {
            loop {
                let _ = device.read(0, BLOCK).await;
                runtime.sleep(Duration::from_millis(50)).await;
            }
        };
        let writing = async {
            for turn in 0..4 {
                for at in 0..512 {
                    // What has no place left is refused.
                    let _ = write(&*device, at, 2 + turn).await;
                    let _ = write(&*beside, at, 2 + turn).await;
                }
                let _ = beside.flush().await;
            }
            let _ = controller.store().checkpoint().await;
        };
        let (writing, reading) = (pin!(writing), pin!(reading));
        let work = select(writing, reading);
        assert!(done_within(work, runtime, Duration::from_mins(5)).await);
    });
}

/// The disks have no space for what is to move, and some a while later: nobody has to tell the rebuild, and until then it says why.
#[test]
fn a_rebuild_that_found_disks_full_goes_on_by_itself() {
    let rig = Rig::new(3, 80, 64 << 10, Settings::default());
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", 16, Layout::Mirror).await;
        write(&*device, 0, 1).await.unwrap();
        controller.store().checkpoint().await.unwrap();
        let (dead, _) = find(&rig, 1);
        rig.disks[2..].iter().for_each(|disk| disk.inject(FaultKind::Full { lasts: Duration::from_secs(30) }));
        controller.store().fail_disk(DeviceId(dead)).await.unwrap();
        runtime.sleep(Duration::from_secs(20)).await;
        assert_eq!(controller.store().rebuild_stalled().map(|why| why.kind()), Some(Kind::Full));
        runtime.sleep(Duration::from_mins(1)).await;
        assert_eq!(controller.store().unwanted()[&DeviceId(dead)].copies, 0);
        assert!(controller.store().rebuild_stalled().is_none());
    });
}

/// A checkpoint that was wanted failed, since the disks were full for a moment: it is made when they are not, though nobody asks.
#[test]
fn a_checkpoint_that_is_wanted_is_tried_again() {
    let rig = Rig::new(2, 80, 64 << 10, Settings::default());
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", 64, Layout::Mirror).await;
        rig.disks[2..].iter().for_each(|disk| disk.inject(FaultKind::Full { lasts: Duration::from_secs(3) }));
        write(&*device, 0, 1).await.unwrap();
        device.flush().await.unwrap();
        // What the other copy of the journal has of the tables is all there is: it is to be written anew.
        controller.store().fail_disk(DeviceId(0)).await.unwrap();
        runtime.sleep(Duration::from_secs(2)).await;
        let used = || controller.store().status().journal_used_bytes;
        assert!(used() > BLOCK as u64, "the disks were full");
        runtime.sleep(Duration::from_secs(5)).await;
        assert!(used() < BLOCK as u64, "{}", used());
    });
}

/// A disk has no space for what was never written there: the other pairs of the hot area take what is written, and the blocks' own
/// places do.
#[test]
fn a_hot_area_with_a_full_disk_keeps_nothing_waiting() {
    let rig = Rig::new(4, 80, 64 << 10, Settings { write_buffer_bytes: 1 << 20, ..Settings::default() });
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", 512, Layout::HotMirror).await;
        // Both turns of every page are there.
        for turn in 0..4 {
            for at in (0..512 / 16).map(|at| at << 16) {
                let data = kura_block::Buf::copy_of(&vec![turn; 16 * BLOCK]);
                device.write(at, data.into(), false).await.unwrap();
            }
            controller.store().checkpoint().await.unwrap();
            runtime.sleep(Duration::from_secs(1)).await;
        }
        rig.disks[2].inject(FaultKind::Full { lasts: Duration::MAX });
        for turn in 4..8 {
            for at in 0..171 {
                write(&*device, at * 7 % 512, turn).await.unwrap();
            }
            assert!(checkpoints(controller, runtime).await, "turn {turn}");
        }
        for at in 0..171 {
            assert!(reads(&*device, at * 7 % 512, 7).await, "{at}");
        }
        assert_eq!(controller.store().failed_disks(), []);
    });
}

/// Clients read without a pause from disks that turn: what a checkpoint gives back does not wait behind all of them.
#[test]
fn what_is_given_back_waits_for_no_client() {
    let sim = Sim::new(7);
    let disk = |name: &str, rotational, ms| {
        let spec = DiskSpec::constant(64 << 20, Duration::from_millis(ms));
        sim.disk(name, DiskSpec { rotational, discard: Discard::Zeroes, ..spec })
    };
    let fast = ["fast0", "fast1"].map(|name| disk(name, false, 0));
    let disks: Vec<_> = fast.into_iter().chain(["slow0", "slow1"].map(|name| disk(name, true, 4))).collect();
    let settings = Settings { disk_queue: 1, ..Settings::default() };
    let rig = Rig { sim, disks, extent_bytes: 64 << 10, settings };
    rig.format([9; 16], 1);
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", 400 * 16, Layout::Mirror).await;
        for extent in 0..400 {
            write(&*device, extent * 16, 1).await.unwrap();
        }
        controller.store().checkpoint().await.unwrap();
        let work = async {
            device.discard(1 << 20, 384 << 16).await.unwrap();
            controller.store().checkpoint().await.unwrap();
            controller.store().checkpoint().await.unwrap();
        };
        let reading = join_all((0..8).map(|at| {
            let device = &device;
            async move {
                loop {
                    assert!(reads(&**device, at * 16, 1).await);
                }
            }
        }));
        let (work, reading) = (pin!(work), pin!(reading));
        assert!(done_within(select(work, reading), runtime, Duration::from_secs(20)).await);
    });
}

/// A limit holds whatever is new: a rest that the failure of another disk cut short had a rebuild be as fast as it could.
#[test]
fn a_rebuild_keeps_to_its_rate_while_more_disks_fail() {
    let settings = Settings { rebuild_bytes_per_s: 16 << 10, ..Settings::default() };
    let rig = Rig::new(12, 80, 64 << 10, settings);
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", 512, Layout::Mirror).await;
        for at in 0..512 {
            write(&*device, at, 1).await.unwrap();
        }
        controller.store().checkpoint().await.unwrap();
        let left = || controller.store().unwanted().values().map(|held| held.copies).sum::<u64>();
        let going = 2..=5;
        for disk in going.clone() {
            controller.store().leave_disk(DeviceId(disk)).await.unwrap();
        }
        let all = left();
        assert!(all >= 20, "{all} copies");
        for disk in going {
            runtime.sleep(Duration::from_millis(500)).await;
            controller.store().fail_disk(DeviceId(disk)).await.unwrap();
        }
        // An extent takes four seconds.
        runtime.sleep(Duration::from_secs(18)).await;
        let moved = all - left();
        assert!((3..=6).contains(&moved), "{moved} of {all} have moved in 20 s");
    });
}
