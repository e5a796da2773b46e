//! What is lost with more disks than a volume can do without, and what goes on beside it.

use super::{BLOCK, Rig, create, done_within, fill, reads, write};
use kura_block::{Block, DeviceId, Kind};
use kura_controller::{Controller, Layout, Settings, SnapshotSpec};
use kura_sim::{FaultKind, FaultPlan, Place};
use std::rc::Rc;
use std::time::Duration;

/// What was written lately to a volume that lies on one disk is lost with that: nothing waits for it, not the writes of others, nor the
/// rebuild.
#[test]
fn what_is_lost_with_its_disk_keeps_nothing_waiting() {
    let rig = Rig::new(4, 80, 64 << 10, Settings { write_buffer_bytes: 1 << 20, ..Settings::default() });
    rig.run(async |controller, runtime| {
        let pair = create(controller, "pair", 4096, Layout::Mirror).await;
        let lone = create(controller, "lone", 16, Layout::None).await;
        for at in 0..4096 {
            write(&*pair, at, 1).await.unwrap();
        }
        write(&*lone, 0, 2).await.unwrap();
        controller.store().checkpoint().await.unwrap();
        let holds =
            |disk: &DeviceId| controller.store().only_on_disk(*disk).unwrap().tell(BLOCK as u64).contains("lone");
        let on = (2..6).map(DeviceId).find(holds).expect("it lies somewhere");
        for at in 0..16 {
            write(&*lone, at, 3).await.unwrap();
        }
        rig.disks[usize::from(on.0)].inject(FaultKind::Dead);
        for turn in 2..6 {
            for at in 0..4096 {
                write(&*pair, at, turn).await.unwrap();
            }
        }
        controller.store().checkpoint().await.unwrap();
        let left = || controller.store().unwanted()[&on];
        for _ in 0..1000 {
            if left().copies == left().lost {
                break;
            }
            runtime.sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(left().copies, left().lost, "the rebuild goes on");
        for refused in [write(&*lone, 0, 4).await.unwrap_err(), lone.read(0, BLOCK).await.unwrap_err()] {
            assert_eq!(refused.kind(), Kind::Device, "{refused}");
        }
        lone.discard(0, 64 << 10).await.unwrap();
        write(&*lone, 0, 5).await.unwrap();
        controller.store().checkpoint().await.unwrap();
        assert!(reads(&*lone, 0, 5).await && reads(&*pair, 7, 5).await);
    });
}

/// Two disks of stripes are lost: what still has a place is written, and the rest refused, and both at once.
#[test]
fn what_has_a_place_is_written_beside_what_has_none() {
    for layout in [Layout::Raid5, Layout::HotMirror, Layout::Floating] {
        let rig = Rig::new(5, 80, 64 << 10, Settings { write_buffer_bytes: 1 << 20, ..Settings::default() });
        let mut written = Vec::new();
        rig.run(async |controller, _| {
            let device = create(controller, "v", 1024, layout).await;
            for turn in 1..3 {
                for at in 0..1024 {
                    write(&*device, at, turn).await.unwrap();
                }
                if turn == 1 {
                    controller.store().checkpoint().await.unwrap();
                }
            }
            rig.disks[3].inject(FaultKind::Dead);
            rig.disks[5].inject(FaultKind::Dead);
            controller.store().checkpoint().await.unwrap();
            for at in 0..1024 {
                match write(&*device, at, 3).await {
                    Ok(()) => written.push(at),
                    Err(error) => assert_eq!(error.kind(), Kind::Device, "{layout:?}: block {at}: {error}"),
                }
            }
            assert!((1..1024).contains(&written.len()), "{layout:?}: {} were written", written.len());
            controller.store().stop().await.unwrap();
        });
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            for at in written {
                assert!(reads(&*device, at, 3).await, "{layout:?}: block {at}");
            }
        });
    }
}

/// A volume `v`, written whole, with a snapshot `v@a` since.
async fn with_snapshot(controller: &Controller, blocks: usize, layout: Layout) -> Rc<dyn Block> {
    let device = create(controller, "v", blocks, layout).await;
    for at in 0..blocks {
        write(&*device, at, 1).await.unwrap();
    }
    let wanted = SnapshotSpec { of: "v".into(), name: "v@a".into(), read_only: true };
    controller.store().snapshot(&[wanted], 0).await.unwrap();
    device
}

/// Slots of a volume's snapshots are lost with their disk, and not the table: what lies in one is not written again, and the rest goes to
/// others.
#[test]
fn slots_without_a_place_are_left() {
    let rig = Rig::new(3, 80, 64 << 10, Settings { write_buffer_bytes: 1 << 20, ..Settings::default() });
    rig.run(async |controller, runtime| {
        let device = with_snapshot(controller, 64, Layout::None).await;
        for at in 0..64 {
            write(&*device, at, 2).await.unwrap();
        }
        controller.store().checkpoint().await.unwrap();
        let pool_table = |disk: &u16| controller.store().only_on_disk(DeviceId(*disk)).unwrap().has_pool_table;
        let on = (2..5).find(|disk| !pool_table(disk)).expect("it does not lie everywhere");
        rig.disks[usize::from(on)].inject(FaultKind::Dead);
        controller.store().fail_disk(DeviceId(on)).await.unwrap();
        let mut refused = 0;
        for at in 0..64 {
            let mut done = Ok(());
            assert!(done_within(async { done = write(&*device, at, 3).await }, runtime, Duration::from_mins(1)).await);
            refused += u32::from(done.is_err());
            assert!(
                done_within(device.discard((at * BLOCK) as u64, BLOCK as u64), runtime, Duration::from_mins(1)).await
            );
        }
        assert!((1..64).contains(&refused), "{refused} of 64 have no place");
        controller.store().checkpoint().await.unwrap();
    });
}

/// Slots are lost with their disk, not the table, and the pool is full: a write that finds neither slots enough with a place nor a new
/// group for them is refused, and nobody waits for it.
#[test]
fn a_write_that_finds_no_slots_with_a_place_ends() {
    let mut refused = 0;
    // The free slots are in the last group, which lies now here, now there.
    for (used, on) in [20, 36, 52, 68].into_iter().flat_map(|used| (2..5).map(move |on| (used, on))) {
        let rig = Rig::new(3, 16, 64 << 10, Settings::default());
        rig.run(async |controller, runtime| {
            let device = with_snapshot(controller, 80, Layout::None).await;
            for at in 0..used {
                write(&*device, at, 2).await.unwrap();
            }
            let filler = create(controller, "filler", 1 << 20, Layout::None).await;
            let mut at = 0;
            while write(&*filler, at, 1).await.is_ok() {
                at += 16;
            }
            controller.store().checkpoint().await.unwrap();
            if controller.store().only_on_disk(DeviceId(on)).unwrap().has_pool_table {
                return;
            }
            controller.store().fail_disk(DeviceId(on)).await.unwrap();
            let mut done = Ok(());
            let one = async { done = write(&*device, used, 3).await };
            assert!(done_within(one, runtime, Duration::from_mins(1)).await);
            refused += u32::from(done.is_err_and(|error| error.kind() == Kind::Full));
        });
    }
    assert!(refused > 0, "the free slots lay on no disk that failed");
}

/// Two disks fail of a pool with a volume of that layout and its snapshot, of which the table may have been lost. The node starts, again
/// and again; what reads at all reads as it was. Where the table is lost the volume and its snapshot say that they are, and can be
/// deleted. True where it is. With `cut`, no checkpoint was made, and the power goes at the n-th operation of the first start; with
/// `again` there is a second snapshot, made after the checkpoint, if one was.
fn lose_two(layout: Layout, gone: [u16; 2], cut: Option<u64>, again: bool) -> bool {
    let rig = Rig::new(5, 80, 64 << 10, Settings::default());
    let (mut is_lost, mut is_refused) = (false, false);
    let (newest, names) = if again { (3, &["v", "v@a", "v@b"][..]) } else { (2, &["v", "v@a"][..]) };
    rig.run(async |controller, _| {
        let device = with_snapshot(controller, 64, layout).await;
        for at in 0..64 {
            write(&*device, at, 2).await.unwrap();
        }
        // What went to the hot area goes to its place.
        for _ in 0..2 * u32::from(cut.is_none()) {
            controller.store().checkpoint().await.unwrap();
        }
        if again {
            let wanted = SnapshotSpec { of: "v".into(), name: "v@b".into(), read_only: true };
            controller.store().snapshot(&[wanted], 0).await.unwrap();
            for at in 0..64 {
                write(&*device, at, 3).await.unwrap();
            }
            device.flush().await.unwrap();
        }
        for disk in gone {
            controller.store().fail_disk(DeviceId(disk)).await.unwrap();
        }
        is_refused = write(&*device, 0, newest).await.is_err();
        let beside = create(controller, "other", 16, Layout::Mirror).await;
        write(&*beside, 3, 7).await.unwrap();
        beside.flush().await.unwrap();
        if cut.is_none() {
            controller.store().stop().await.unwrap();
        }
    });
    if let Some(operation) = cut {
        rig.cut_power_at(operation);
        rig.run(async |controller, _| controller.store().checkpoint().await);
    }
    let lost = |controller: &Controller| {
        let volumes = controller.store().volumes();
        volumes.into_iter().filter(|volume| volume.lost).map(|volume| volume.spec.name).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        // The power goes at the end.
        rig.run(async |controller, runtime| {
            let written = async { controller.store().checkpoint().await.unwrap() };
            assert!(done_within(written, runtime, Duration::from_mins(1)).await);
            let beside = controller.open_volume("other").unwrap();
            assert!(reads(&*beside, 3, 7).await);
            write(&*beside, 4, 8).await.unwrap();
            is_lost = !lost(controller).is_empty();
            if !is_lost {
                for (name, byte) in
                    [("v", newest), ("v@a", 1), ("v@b", 2)].into_iter().filter(|(name, _)| names.contains(name))
                {
                    let device = controller.open_volume(name).unwrap();
                    for at in 0..64 {
                        let read = device.read((at * BLOCK) as u64, BLOCK).await;
                        if let Ok(read) = read {
                            assert_eq!(read.contiguous()[..8], [byte; 8], "{layout:?} {gone:?} {cut:?}: {name} {at}");
                        }
                    }
                }
                return;
            }
            assert_eq!(lost(controller), names, "{layout:?}");
            assert!(is_refused, "{layout:?}: what the next start gives up is written");
            for name in names {
                let refused = controller.open_volume(name).err().expect("it is lost");
                assert_eq!(refused.kind(), Kind::Device, "{refused}");
            }
            let wanted = SnapshotSpec { of: "v".into(), name: "v@c".into(), read_only: true };
            assert_eq!(controller.store().snapshot(&[wanted], 0).await.unwrap_err().kind(), Kind::Device);
            let changed = controller.store().changed("v@a", "v", 0..u64::MAX).await;
            assert_eq!(changed.unwrap_err().kind(), Kind::Device, "nobody knows what is the same");
        });
    }
    // A first start that was shorter than that has left the power cut to later ones.
    rig.sim.set_plan(&FaultPlan::default());
    rig.run(async |controller, _| {
        for name in names.iter().rev() {
            controller.store().delete(name).await.unwrap();
        }
        let anew = create(controller, "v", 64, Layout::Mirror).await;
        write(&*anew, 0, 9).await.unwrap();
        controller.store().stop().await.unwrap();
    });
    rig.run(async |controller, _| {
        assert_eq!(lost(controller), [""; 0], "{layout:?} without {gone:?}, {cut:?}, {again}");
        let anew = controller.open_volume("v").unwrap();
        assert!(reads(&*anew, 0, 9).await);
    });
    is_lost
}

#[test]
fn a_family_without_its_table_is_lost_alone() {
    for layout in [Layout::None, Layout::Mirror, Layout::Raid5, Layout::HotMirror, Layout::Floating] {
        for (cut, again) in [(None, false), (None, true), (Some(40), false), (Some(150), true), (Some(400), false)] {
            let pairs = (2..7).flat_map(|one| (one + 1..7).map(move |other| [one, other]));
            let lost = pairs.map(|gone| lose_two(layout, gone, cut, again)).filter(|lost| *lost).count();
            assert!(cut.is_some() || (1..10).contains(&lost), "{layout:?}: lost by {lost} of 10 pairs");
        }
    }
}

/// A disk fails, and the other one of a group does not read a page of a volume's table of snapshots: it is whole in memory, and is written
/// again. The next start finds it.
#[test]
fn a_page_of_a_table_that_a_rebuild_does_not_read_is_written_again() {
    for layout in [Layout::Mirror, Layout::Raid5] {
        let rig = Rig::new(5, 80, 64 << 10, Settings::default());
        rig.run(async |controller, runtime| {
            let device = with_snapshot(controller, 64, layout).await;
            for at in 0..64 {
                write(&*device, at, 2).await.unwrap();
            }
            for _ in 0..2 {
                controller.store().checkpoint().await.unwrap();
            }
            let pages = |disk: u16| {
                let is_page = |at: &u64| rig.disks[usize::from(disk)].at_rest(*at, BLOCK).starts_with(b"KPTP");
                (0..80 << 20).step_by(BLOCK).filter(is_page).collect::<Vec<u64>>()
            };
            let on = (2..7).find(|disk| !pages(*disk).is_empty()).expect("it lies somewhere");
            for at in pages(on) {
                rig.disks[usize::from(on)].inject(FaultKind::ReadError(Place::Range(at..at + BLOCK as u64)));
            }
            let gone = (2..7).find(|disk| *disk != on && (layout == Layout::Raid5 || !pages(*disk).is_empty()));
            let gone = gone.expect("it lies twice");
            controller.store().fail_disk(DeviceId(gone)).await.unwrap();
            let rebuilt = async {
                while controller.store().unwanted().get(&DeviceId(gone)).is_some_and(|held| held.copies > 0) {
                    runtime.sleep(Duration::from_millis(100)).await;
                }
            };
            assert!(done_within(rebuilt, runtime, Duration::from_mins(5)).await, "{layout:?}: no end of the rebuild");
            controller.store().stop().await.unwrap();
        });
        rig.run(async |controller, _| {
            assert!(controller.store().volumes().iter().all(|volume| !volume.lost), "{layout:?}: given up");
            for (name, byte) in [("v", 2), ("v@a", 1)] {
                let device = controller.open_volume(name).unwrap();
                for at in 0..64 {
                    let read = device.read((at * BLOCK) as u64, BLOCK).await;
                    assert!(read.is_err() || read.unwrap().contiguous()[..8] == [byte; 8], "{layout:?}: {name} {at}");
                }
            }
        });
    }
}

/// Of enough disks one is full: a group that has a place on the disk that failed instead would be worth one failure less than it says.
#[test]
fn a_full_disk_is_no_reason_to_write_without_redundancy() {
    let settings = Settings { raid_width: Some(3), ..Settings::default() };
    let rig = Rig::new(4, 8, 64 << 10, settings);
    rig.run(async |controller, _| {
        controller.store().fail_disk(DeviceId(2)).await.unwrap();
        // One of the three that are left is full sooner than the others.
        let one = create(controller, "one", 16, Layout::None).await;
        write(&*one, 0, 1).await.unwrap();
        let device = create(controller, "groups", 8192, Layout::Raid5).await;
        assert!(fill(&*device).await > 100);
        device.flush().await.unwrap();
        for disk in (3..6).map(DeviceId) {
            let only = controller.store().only_on_disk(disk).unwrap().tell(64 << 10);
            assert!(!only.contains("groups"), "{only}");
        }
    });
}
