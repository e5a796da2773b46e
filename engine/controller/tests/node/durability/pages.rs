//! Pages of checksums, of the hot area and of fast copies that rot, or that a disk does not read.

use super::{BLOCK, Rig, all_hot, block, check, create, hot_rig, reads, write, write_afloat};
use kura_block::{DeviceId, Kind, Runtime};
use kura_controller::{Check, Controller, Layout, Settings};
use kura_sim::{FaultKind, FaultPlan, Place};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a disk of [`hot_rig`] and [`rig`].
const DISK: u64 = 80 << 20;
/// Blocks written in these tests.
const BLOCKS: usize = 256;

fn rig() -> Rig {
    Rig::new(5, DISK >> 20, 64 << 10, Settings { raid_width: Some(4), ..Settings::default() })
}

/// Where the pages on a disk are, of these kinds.
fn pages(rig: &Rig, disk: usize, kinds: &[&[u8; 4]]) -> Vec<Place> {
    let is_page = |at: &u64| {
        let found = rig.disks[disk].at_rest(*at, BLOCK);
        kinds.iter().any(|kind| found.starts_with(*kind))
    };
    (0..DISK).step_by(BLOCK).filter(is_page).map(|at| Place::Range(at..at + BLOCK as u64)).collect()
}

/// Where the page of checksums with the highest number on a disk is.
fn newest_page(rig: &Rig, disk: usize) -> Place {
    let sequence = |page: &Place| {
        let Place::Range(at) = page else { unreachable!() };
        u64::from_le_bytes(rig.disks[disk].at_rest(at.start + 32, 8)[..].try_into().unwrap())
    };
    pages(rig, disk, &[b"KuPC"]).into_iter().max_by_key(sequence).unwrap()
}

/// Writes every second block and then all, with a checkpoint after each: both turns of every page are used, and one of them tells.
async fn fill(controller: &Controller, layout: Layout) {
    let device = create(controller, "v", BLOCKS, layout).await;
    for turn in 1..3 {
        for at in 0..BLOCKS {
            if at % 2 < turn {
                write(&*device, at, turn as u8).await.unwrap();
            }
        }
        controller.store().checkpoint().await.unwrap();
    }
}

/// Waits until the write buffer is empty.
async fn at_rest(controller: &Controller, runtime: &dyn Runtime) {
    while controller.info().dirty_bytes > 0 {
        runtime.sleep(Duration::from_millis(10)).await;
    }
}

/// The pages of a disk rot, or are refused: a check says so, and one check writes them again. Then another disk fails, and what only
/// these pages told is there.
#[test]
fn a_check_mends_pages() {
    for (layout, rots) in
        [Layout::Mirror, Layout::Raid5].into_iter().flat_map(|layout| [(layout, true), (layout, false)])
    {
        let rig = rig();
        rig.run(async |controller, _| {
            fill(controller, layout).await;
            controller.store().stop().await.unwrap();
        });
        let bad = pages(&rig, 2, &[b"KuPC"]);
        assert!(bad.len() > 1, "{layout:?}");
        for at in bad {
            rig.disks[2].inject(if rots { FaultKind::BitRot(at, 3) } else { FaultKind::ReadError(at) });
        }
        rig.run(async |controller, _| {
            let found = controller.store().check(Check::Verify).await.unwrap();
            assert!(found.violations.is_empty() && found.repaired > 0, "{layout:?} {rots}: {found:?}");
            assert_eq!(check(controller).await, found.repaired, "{layout:?} {rots}");
            assert_eq!(check(controller).await, 0, "{layout:?} {rots}: something was left to the next check");
            controller.store().stop().await.unwrap();
        });
        rig.disks[3].inject(FaultKind::Dead);
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            for at in 0..BLOCKS {
                assert!(reads(&*device, at, 2).await, "{layout:?} {rots}: block {at}");
            }
        });
    }
}

/// A disk fails while pages are written, and is back after a power cut, with older ones: those are not taken for the newest where
/// the other disk refuses its own.
#[test]
fn a_disk_that_missed_a_page_does_not_tell_it() {
    for after in (0..2000).step_by(50).map(Duration::from_micros) {
        let rig = Rig::new(2, DISK >> 20, 64 << 10, Settings::default());
        rig.run(async |controller, runtime| {
            let device = create(controller, "v", BLOCKS, Layout::Mirror).await;
            for (at, byte) in [(3, 3), (2, 2)] {
                write(&*device, at, byte).await.unwrap();
                if at == 3 {
                    controller.store().checkpoint().await.unwrap();
                }
            }
            at_rest(controller, runtime).await;
            rig.disks[2].inject(FaultKind::WriteError);
            // What a restart looks at first is the page, for this: it comes while the checkpoint is made.
            let clear = async {
                runtime.sleep(after).await;
                device.discard(3 * BLOCK as u64, BLOCK as u64).await.unwrap();
                device.flush().await
            };
            let (made, cleared) = futures::join!(controller.store().checkpoint(), clear);
            made.and(cleared).unwrap();
            assert_eq!(controller.store().failed_disks(), [DeviceId(2)]);
        });
        // A write that is refused may have come to anything.
        rig.disks[2].inject(FaultKind::BitRot(newest_page(&rig, 2), 3));
        rig.disks[3].inject(FaultKind::ReadError(newest_page(&rig, 3)));
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            let read = device.read(2 * BLOCK as u64, BLOCK).await;
            assert!(read.is_err(), "{after:?}: it reads as {}", read.unwrap().contiguous()[0]);
        });
    }
}

/// The power goes while a page is written, and goes again while the next one is: whichever of its disks is lost then, the other one
/// has it.
#[test]
fn power_that_goes_twice_costs_no_page() {
    const WRITTEN: usize = 3;
    let cuts =
        (0..16).flat_map(|seed| (5..11).flat_map(move |first| (10..24).map(move |second| (seed, first, second))));
    for (seed, first, second) in cuts {
        for lost in [2, 3] {
            // A page of so large an extent has several sectors.
            let rig = Rig::seeded(seed, 2, DISK >> 20, 1 << 20, Settings::default());
            rig.run(async |controller, runtime| {
                let device = create(controller, "v", BLOCKS, Layout::Mirror).await;
                for turn in 1..3 {
                    for at in (0..WRITTEN).map(|at| at * 100 + usize::from(turn)) {
                        write(&*device, at, turn).await.unwrap();
                    }
                    at_rest(controller, runtime).await;
                    if turn == 2 {
                        rig.cut_power_at(first);
                    }
                    let _ = controller.store().checkpoint().await;
                }
            });
            rig.sim.set_plan(&FaultPlan::default());
            rig.run(async |controller, _| {
                rig.cut_power_at(second);
                let _ = controller.store().checkpoint().await;
            });
            rig.sim.set_plan(&FaultPlan::default());
            rig.disks[lost].inject(FaultKind::Dead);
            rig.run(async |controller, _| {
                let device = controller.open_volume("v").unwrap();
                for at in 0..WRITTEN {
                    for turn in 1..3 {
                        let at = at * 100 + usize::from(turn);
                        assert!(reads(&*device, at, turn).await, "{seed} {first} {second} {lost}: block {at}");
                    }
                }
            });
        }
    }
}

/// One disk has lost a page's newest version, which is to be written there again, and neither reads for a while: whose volume it is stays
/// where that is known.
#[test]
fn a_volume_stays_until_its_pages_are_on_all_of_their_disks() {
    let rig = Rig::new(2, DISK >> 20, 64 << 10, Settings::default());
    rig.format([8; 16], 2);
    let runtime: Rc<dyn Runtime> = rig.sim.runtime();
    rig.sim.block_on(async {
        let (_node, all) = rig.start(&runtime).await;
        fill(&all[0], Layout::Mirror).await;
        let device = all[0].open_volume("v").unwrap();
        // Each of its pages is read when the journal is.
        for at in (0..BLOCKS).step_by(16) {
            write(&*device, at, 3).await.unwrap();
        }
        device.flush().await.unwrap();
    });
    rig.sim.crash();
    rig.disks[2].inject(FaultKind::BitRot(newest_page(&rig, 2), 3));
    let runtime: Rc<dyn Runtime> = rig.sim.runtime();
    rig.sim.block_on(async {
        let (node, all) = rig.start(&runtime).await;
        for disk in &rig.disks[2..] {
            disk.inject(FaultKind::ReadsFail { lasts: Duration::from_secs(1) });
        }
        let refused = node.move_volume("v", 1).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Busy, "{refused}");
        runtime.sleep(Duration::from_secs(2)).await;
        node.move_volume("v", 1).await.unwrap();
        let device = all[1].open_volume("v").unwrap();
        assert!(reads(&*device, 0, 3).await && reads(&*device, 1, 2).await);
    });
}

/// A pool is made of the disks of another one, in the same steps: what that one had left on them says nothing.
#[test]
fn nothing_is_left_of_an_earlier_pool() {
    for layout in [Layout::None, Layout::Mirror, Layout::Raid5, Layout::HotMirror, Layout::Floating] {
        let rig = rig();
        rig.run(async |controller, _| fill(controller, layout).await);
        rig.format([8; 16], 1);
        rig.run(async |controller, _| {
            let device = create(controller, "v", BLOCKS, layout).await;
            write(&*device, 1, 7).await.unwrap();
            controller.store().checkpoint().await.unwrap();
        });
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            for at in 0..BLOCKS {
                assert_eq!(block(&*device, at).await[0], if at == 1 { 7 } else { 0 }, "{layout:?}: block {at}");
            }
            assert_eq!(check(controller).await, 0, "{layout:?}");
        });
    }
}

/// The maps of floating rows rot on a disk, or are refused, while they are in memory: a check writes them again. Then another disk
/// fails, and what only these maps told is there.
#[test]
fn a_check_mends_maps() {
    for rots in [true, false] {
        let rig = rig();
        let other = Cell::new(0);
        rig.run(async |controller, runtime| {
            let device = create(controller, "v", BLOCKS, Layout::Floating).await;
            for byte in 1..4 {
                write_afloat(controller, runtime, &*device, byte).await;
                controller.store().checkpoint().await.unwrap();
            }
            let (rotten, bad) = (2..7)
                .map(|disk| (disk, pages(&rig, disk, &[b"KuFM"])))
                .max_by_key(|(_, maps)| maps.len())
                .expect("there are disks");
            assert!(bad.len() > 1, "no row floated");
            other.set(if rotten == 3 { 2 } else { 3 });
            for at in bad {
                rig.disks[rotten].inject(if rots { FaultKind::BitRot(at, 3) } else { FaultKind::ReadError(at) });
            }
            let found = controller.store().check(Check::Verify).await.unwrap();
            assert!(found.violations.is_empty() && found.repaired > 0, "{rots}: {found:?}");
            assert_eq!(check(controller).await, found.repaired, "{rots}");
            assert_eq!(check(controller).await, 0, "{rots}: something was left to the next check");
        });
        rig.disks[other.get()].inject(FaultKind::Dead);
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            for at in 0..3 {
                assert!(reads(&*device, at, 3).await, "{rots}: block {at}");
            }
        });
    }
}

async fn emptied(controller: &Controller, runtime: &dyn Runtime, disk: DeviceId) -> bool {
    for _ in 0..1000 {
        if controller.store().unwanted().get(&disk).is_none_or(|held| held.copies == 0) {
            return true;
        }
        runtime.sleep(Duration::from_millis(100)).await;
    }
    false
}

/// All pages are rotten, on every disk. What the log has is there, the rest reads as an error, and what is written is there again;
/// a disk can leave.
#[test]
fn rotten_pages_are_lost_and_nothing_waits_for_them() {
    for layout in [Layout::None, Layout::Mirror, Layout::Raid5] {
        let rig = rig();
        rig.run(async |controller, _| {
            fill(controller, layout).await;
            let device = controller.open_volume("v").unwrap();
            write(&*device, 5, 3).await.unwrap();
            device.flush().await.unwrap();
        });
        for disk in 2..7 {
            for at in pages(&rig, disk, &[b"KuPC"]) {
                rig.disks[disk].inject(FaultKind::BitRot(at, 3));
            }
        }
        rig.run(async |controller, runtime| {
            let device = controller.open_volume("v").unwrap();
            assert!(reads(&*device, 5, 3).await, "{layout:?}");
            for at in (0..BLOCKS).filter(|at| *at != 5) {
                assert!(device.read((at * BLOCK) as u64, BLOCK).await.is_err(), "{layout:?}: block {at}");
            }
            for at in 0..BLOCKS / 2 {
                write(&*device, at, 4).await.unwrap();
            }
            controller.store().leave_disk(DeviceId(2)).await.unwrap();
            assert!(emptied(controller, runtime, DeviceId(2)).await, "{layout:?}: the disk does not become empty");
            controller.store().stop().await.unwrap();
        });
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            for at in 0..BLOCKS / 2 {
                assert_eq!(block(&*device, at).await, [4; BLOCK], "{layout:?}: block {at}");
            }
            assert!(device.read((BLOCKS / 2 * BLOCK) as u64, BLOCK).await.is_err(), "{layout:?}");
        });
    }
}

/// The hot area leaves a failed disk no faster than it may.
#[test]
fn the_hot_area_is_rebuilt_at_the_rate_that_is_set() {
    let took = |rebuild_bytes_per_s: u64| {
        let mut rig = hot_rig();
        rig.settings.rebuild_bytes_per_s = rebuild_bytes_per_s;
        let mut took = Duration::ZERO;
        rig.run(async |controller, runtime| {
            all_hot(controller, runtime).await;
            let begun = runtime.now();
            controller.store().fail_disk(DeviceId(2)).await.unwrap();
            assert!(emptied(controller, runtime, DeviceId(2)).await);
            took = runtime.now().saturating_sub(begun);
        });
        took
    };
    let (free, limited) = (took(0), took(256 << 10));
    assert!(limited > free + Duration::from_secs(5), "{free:?} {limited:?}");
}
