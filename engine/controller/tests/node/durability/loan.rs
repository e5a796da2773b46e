//! What the hot area borrows of a pool with room, and returns.

use super::{Rig, block, check, create, fill, is_all, reads, write};
use futures::future::{Either, select};
use kura_block::{Block, DeviceId, Kind, Runtime};
use kura_controller::{Controller, HotSettings, Layout, Settings, SnapshotSpec, VolumeSpec, WhenFull};
use kura_sim::{FaultKind, FaultPlan, Outcome};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

const EXTENT: u64 = 64 << 10;

fn settings(borrows: bool) -> Settings {
    let hot = HotSettings { share_permille: 20, borrows, ..HotSettings::TODAY };
    Settings { write_buffer_bytes: 1 << 20, raid_width: Some(5), hot, ..Settings::default() }
}

fn rig(borrows: bool) -> Rig {
    Rig::new(5, 80, EXTENT, settings(borrows))
}

/// Writes each block of a volume once, neighbours at different times.
async fn scatter(device: &dyn Block, blocks: usize, byte: u8) {
    for at in 0..blocks {
        write(device, at * 1001 % blocks, byte).await.unwrap();
    }
}

fn hot_extents(controller: &Controller, extent_bytes: u64) -> u64 {
    controller.store().status().hot_limit_bytes / extent_bytes
}

/// Extents of a hot area that has returned all that it borrowed: as many on each of the five pairs of disks.
fn kept(share: u64, has_borrowed: bool) -> u64 {
    if has_borrowed { share.next_multiple_of(5) } else { share }
}

/// A volume with more blocks than the hot area's share has room for; the extents of the share.
async fn lent(controller: &Controller, runtime: &dyn Runtime, blocks: usize) -> (Rc<dyn Block>, u64) {
    let device = create(controller, "v", blocks, Layout::HotMirror).await;
    write(&*device, 0, 7).await.unwrap();
    runtime.sleep(Duration::from_secs(1)).await;
    let share = controller.store().status().hot_limit_bytes;
    scatter(&*device, blocks, 7).await;
    (device, share / controller.store().array().extent_bytes())
}

#[test]
fn it_borrows_while_clients_write_and_returns_when_they_are_quiet() {
    const BLOCKS: usize = 4096;
    for borrows in [true, false] {
        rig(borrows).run(async |controller, runtime| {
            let (device, share) = lent(controller, runtime, BLOCKS).await;
            let (most, array) = (hot_extents(controller, EXTENT), controller.store().status().array);
            let home = array.cooled_blocks + array.cold_blocks;
            assert!(share > 0 && if borrows { most > 2 * share } else { most == share }, "{most} of {share}");
            assert_eq!(borrows, home == 0, "{home} blocks went to their places");
            runtime.sleep(Duration::from_mins(1)).await;
            assert_eq!(hot_extents(controller, EXTENT), kept(share, borrows));
            assert!(is_all(&*device, BLOCKS, 7).await);
            check(controller).await;
        });
    }
}

#[test]
fn it_leaves_a_quarter_of_each_disk_to_others() {
    rig(true).run(async |controller, runtime| {
        let others = create(controller, "others", 1 << 20, Layout::Mirror).await;
        let all = fill(&*others).await;
        // With the share and the volume of which it is that is less than a quarter, and more than an eighth.
        others.discard(0, all as u64 * 22 / 100 * EXTENT).await.unwrap();
        runtime.sleep(Duration::from_secs(15)).await;
        let (device, share) = lent(controller, runtime, 4096).await;
        assert_eq!(hot_extents(controller, EXTENT), share);
        others.discard(0, all as u64 * 50 / 100 * EXTENT).await.unwrap();
        runtime.sleep(Duration::from_secs(15)).await;
        scatter(&*device, 4096, 8).await;
        assert!(hot_extents(controller, EXTENT) > share);
    });
}

/// How many mirrored extents of 64 KiB fit beside a volume that has borrowed, or has not; somebody may write to that meanwhile.
fn fit(rig: &Rig, blocks: usize, writes: bool) -> usize {
    let mut fit = 0;
    rig.run(async |controller, runtime| {
        let (device, share) = lent(controller, runtime, blocks).await;
        let has_borrowed = hot_extents(controller, rig.extent_bytes) > share;
        assert_eq!(has_borrowed, rig.settings.hot.borrows);
        let others = create(controller, "others", 1 << 20, Layout::Mirror).await;
        let writing = async {
            loop {
                scatter(&*device, blocks, 7).await;
                runtime.sleep(Duration::from_millis(1)).await;
            }
        };
        if writes {
            let (filling, writing) = (pin!(fill(&*others)), pin!(writing));
            let Either::Left((all, _)) = select(filling, writing).await;
            fit = all;
        } else {
            fit = fill(&*others).await;
        }
        assert_eq!(hot_extents(controller, rig.extent_bytes), kept(share, has_borrowed));
        for extent in 0..fit {
            assert!(reads(&*others, extent * 16, 1).await, "{extent}");
        }
        assert!(is_all(&*device, blocks, 7).await);
        check(controller).await;
    });
    fit
}

#[test]
fn nobody_is_refused_for_room_that_is_borrowed() {
    const BLOCKS: usize = 8192;
    for (extent_bytes, writes) in [(EXTENT, false), (EXTENT, true), (16 * EXTENT, true)] {
        let fit = |borrows| fit(&Rig::new(5, 80, extent_bytes, settings(borrows)), BLOCKS, writes);
        let (all, borrowing) = (fit(false), fit(true));
        assert!(borrowing + 32 >= all && all > 1000, "{borrowing} of {all} fit");
    }
}

/// A thick volume is made of what is borrowed before a snapshot goes for it.
#[test]
fn what_is_borrowed_goes_before_snapshots_do() {
    const BLOCKS: usize = 8192;
    let all = fit(&rig(false), BLOCKS, false);
    let rig = Rig::new(5, 80, EXTENT, Settings { when_full: WhenFull::DropOldest, ..settings(true) });
    rig.run(async |controller, runtime| {
        let old = create(controller, "old", 64, Layout::Mirror).await;
        write(&*old, 0, 1).await.unwrap();
        drop(old);
        let wanted = SnapshotSpec { of: "old".into(), name: "old@a".into(), read_only: true };
        controller.store().snapshot(&[wanted], 0).await.unwrap();
        let (_, share) = lent(controller, runtime, BLOCKS).await;
        let (name, size_bytes) = ("thick".to_owned(), (all as u64 - 20) * EXTENT);
        let spec = VolumeSpec { name, size_bytes, layout: Layout::Mirror, thick: true, read_only: false };
        controller.store().create(spec).await.unwrap();
        assert!(controller.store().status_by_name("old@a").is_ok());
        assert!(hot_extents(controller, EXTENT) < 2 * share);
    });
}

/// Where a disk fails, what lay there is elsewhere soon, whoever writes meanwhile, and the hot area takes no room for it that others want.
#[test]
fn a_disk_that_fails_is_rebuilt_beside_what_is_borrowed() {
    const BLOCKS: usize = 4096;
    let rig = Rig::new(5, 80, EXTENT, Settings { raid_width: Some(4), ..settings(true) });
    rig.run(async |controller, runtime| {
        let (device, share) = lent(controller, runtime, BLOCKS).await;
        let before = hot_extents(controller, EXTENT);
        assert!(before > 2 * share, "{before} of {share}");
        controller.store().fail_disk(DeviceId(4)).await.unwrap();
        let rebuilt = || controller.store().unwanted()[&DeviceId(4)].copies == 0;
        for _ in 0..100 {
            scatter(&*device, BLOCKS, 7).await;
            runtime.sleep(Duration::from_millis(50)).await;
            if rebuilt() {
                break;
            }
        }
        assert!(rebuilt(), "{:?}", controller.store().rebuild_stalled());
        let after = hot_extents(controller, EXTENT);
        assert!(after < 2 * before, "{before} extents were enough, and it has {after}");
        rig.disks[3].inject(FaultKind::Dead);
        assert!(is_all(&*device, BLOCKS, 7).await);
        runtime.sleep(Duration::from_mins(1)).await;
        check(controller).await;
    });
}

/// What one controller's hot area has borrowed is there for another one's volume.
#[test]
fn controllers_return_it_to_each_other() {
    let rig = rig(true);
    rig.format([8; 16], 2);
    let runtime: Rc<dyn Runtime> = rig.sim.runtime();
    rig.sim.block_on(async {
        let (node, all) = rig.start(&runtime).await;
        let (_, share) = lent(&all[0], &*runtime, 8192).await;
        let share = kept(share, true);
        let borrowed = hot_extents(&all[0], EXTENT) - share;
        assert!(borrowed > 100, "{borrowed}");
        // What is borrowed counts as free.
        let space = node.space().await.unwrap();
        assert_eq!((space.hot_bytes, space.borrowed_bytes), (2 * share * EXTENT, 2 * borrowed * EXTENT));
        let free = node.pool().await.unwrap().free_bytes / EXTENT / 2;
        let spec = |extents: u64| VolumeSpec {
            name: "thick".to_owned(),
            size_bytes: extents * EXTENT,
            layout: Layout::Mirror,
            thick: true,
            read_only: false,
        };
        let refused = node.create_volume(spec(free + 1)).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Full);
        let made = node.create_volume(spec(free - borrowed / 2)).await.unwrap();
        assert_eq!(made.controller, 1);
    });
}

#[test]
fn a_power_cut_anywhere_in_it_loses_nothing() {
    const BLOCKS: usize = 512;
    for crash in (1..).step_by(29) {
        let rig = Rig::new(4, 20, EXTENT, Settings { write_buffer_bytes: 256 << 10, ..settings(true) });
        rig.cut_power_at(crash);
        let (mut flushed, mut most) = (0, 0);
        let outcome = rig.run(async |controller, runtime| {
            let (device, share) = lent(controller, runtime, BLOCKS).await;
            device.flush().await.unwrap();
            flushed = 7;
            most = hot_extents(controller, EXTENT) - share;
            // Somebody wants the room,
            let others = create(controller, "others", 1 << 20, Layout::Mirror).await;
            fill(&*others).await;
            controller.store().delete("others").await.unwrap();
            runtime.sleep(Duration::from_secs(12)).await;
            // and nobody writes.
            scatter(&*device, BLOCKS, 8).await;
            device.flush().await.unwrap();
            flushed = 8;
            runtime.sleep(Duration::from_secs(5)).await;
        });
        rig.sim.set_plan(&FaultPlan::default());
        rig.run(async |controller, runtime| {
            if let Ok(device) = controller.open_volume("v") {
                for at in 0..BLOCKS {
                    let found = block(&*device, at).await;
                    let is_one = found.iter().all(|byte| *byte == found[0]);
                    assert!(is_one && found[0] >= flushed, "cut at {crash}: block {at} is {}", found[0]);
                }
            }
            runtime.sleep(Duration::from_secs(30)).await;
            check(controller).await;
        });
        if outcome == Outcome::Done(()) {
            assert!(crash > 1000 && most > 10, "{crash} operations, {most} extents");
            break;
        }
    }
}
