//! Streams of large writes over what is there, which go to another place that becomes their extent's: whatever happens meanwhile.

use super::{BLOCK, REGION, REGIONS, Rig, at, power_cut_anywhere, whatever_a_disk_does};
use kura_block::{Block, Buf, DeviceId, Kind, Result, Runtime};
use kura_controller::{Controller, Layout, SnapshotSpec, VolumeSpec};
use kura_sim::{CrashPoint, FaultKind, FaultPlan, Place};
use std::time::Duration;

/// Blocks of one write of a stream.
const PIECE: usize = 4;

impl Rig {
    /// A stream over these blocks.
    async fn stream(&self, device: &dyn Block, blocks: std::ops::Range<usize>, byte: u8) -> Result<()> {
        for first in blocks.step_by(PIECE) {
            self.put(device, first, PIECE, byte).await?;
        }
        Ok(())
    }

    /// A volume of which every block holds something, at its place.
    async fn fill(&self, controller: &Controller) -> Result<std::rc::Rc<dyn Block>> {
        let device = self.create(controller).await;
        self.stream(&*device, 0..at(REGIONS), 1).await?;
        self.flush(&*device).await?;
        controller.store().checkpoint().await?;
        Ok(device)
    }

    /// All that a stream over what is there may meet.
    async fn over(&self, controller: &Controller, device: &dyn Block, runtime: &dyn Runtime) -> Result<()> {
        // A flush in the midst of an extent, and none at the end of one.
        self.stream(device, 0..at(1) + 8, 2).await?;
        self.flush(device).await?;
        self.stream(device, at(1) + 8..at(3), 2).await?;
        // Something small, before the stream comes there and after.
        self.put(device, at(3) + 9, 1, 3).await?;
        self.stream(device, at(3)..at(3) + 12, 4).await?;
        self.put(device, at(3) + 2, 1, 5).await?;
        self.stream(device, at(3) + 12..at(4), 4).await?;
        self.flush(device).await?;
        // Trimmed in part, and as a whole.
        self.stream(device, at(4)..at(4) + 8, 6).await?;
        self.put(device, at(4) + 4, 4, 0).await?;
        self.stream(device, at(4) + 8..at(5) + 12, 6).await?;
        self.put(device, at(5), REGION, 0).await?;
        self.stream(device, at(5) + 12..at(6) + 8, 6).await?;
        // It stops.
        runtime.sleep(Duration::from_secs(3)).await;
        self.stream(device, at(6) + 8..at(7) + 8, 6).await?;
        controller.store().checkpoint().await?;
        self.stream(device, at(7) + 8..at(8) + 8, 6).await?;
        let snapshot = [SnapshotSpec { of: "v".into(), name: "v@s".into(), read_only: true }];
        controller.store().snapshot(&snapshot, 1).await?;
        self.stream(device, at(8) + 8..at(REGIONS), 7).await?;
        self.flush(device).await?;
        controller.store().delete("v@s").await?;
        runtime.sleep(Duration::from_secs(2)).await;
        self.stream(device, 0..at(4) + 4, 8).await?;
        self.flush(device).await?;
        self.stream(device, 0..at(2) + 12, 9).await
    }
}

#[test]
fn a_power_cut_anywhere_loses_nothing_that_was_flushed() {
    for layout in [Layout::None, Layout::Mirror] {
        let ends = power_cut_anywhere(layout, async |rig, controller, runtime| {
            let device = rig.fill(controller).await.unwrap();
            rig.over(controller, &*device, runtime).await.unwrap();
        });
        assert!(ends > 200, "{layout:?}: it ends after {ends} operations");
    }
}

/// The power goes again while what the first cut has left is brought home.
#[test]
fn a_second_power_cut_loses_nothing_either() {
    for crash in (100..700).step_by(13) {
        for again in 1..40 {
            let rig = Rig::new(2, 0, Layout::Mirror);
            rig.sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(crash)], ..FaultPlan::default() });
            rig.run(async |controller, runtime| {
                let device = rig.fill(controller).await.unwrap();
                rig.over(controller, &*device, runtime).await.unwrap();
            });
            rig.sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(again * 3)], ..FaultPlan::default() });
            let ended = rig.run(async |controller, _| controller.store().checkpoint().await.unwrap());
            rig.sim.set_plan(&FaultPlan::default());
            rig.run(async |controller, _| rig.check(controller, &format!("{crash}, then {again}")).await);
            if ended {
                break;
            }
        }
    }
}

#[test]
fn whatever_a_disk_does_nothing_is_lost() {
    let begin = async |rig: &Rig, controller: &Controller| rig.fill(controller).await.unwrap();
    whatever_a_disk_does(Layout::Mirror, (160, 3), begin, async |rig, controller, device, runtime| {
        rig.over(controller, device, runtime).await
    });
}

/// What the disks wrote for a stream over the whole volume, for each byte of it.
fn written_for_a_stream(disks: usize, fast: usize, layout: Layout, leaves_free: usize) -> f64 {
    let rig = Rig::new(disks, fast, layout);
    let written = |rig: &Rig| rig.disks.iter().map(|disk| disk.counters().written_bytes).sum::<u64>();
    let mut amplification = 0.0;
    rig.run(async |controller, runtime| {
        let device = rig.fill(controller).await.unwrap();
        let others = fill_pool(controller, layout, leaves_free).await;
        runtime.sleep(Duration::from_secs(3)).await;
        let before = written(&rig);
        for byte in 2..5 {
            rig.stream(&*device, 0..at(REGIONS), byte).await.unwrap();
            rig.flush(&*device).await.unwrap();
            controller.store().checkpoint().await.unwrap();
        }
        runtime.sleep(Duration::from_secs(5)).await;
        amplification = (written(&rig) - before) as f64 / (3 * at(REGIONS) * BLOCK) as f64;
        rig.check(controller, "written over").await;
        drop(others);
    });
    rig.run(async |controller, _| rig.check(controller, "again").await);
    amplification
}

/// A volume that takes all of the pool but so many extents.
async fn fill_pool(controller: &Controller, layout: Layout, leaves_free: usize) -> Option<std::rc::Rc<dyn Block>> {
    if leaves_free == usize::MAX {
        return None;
    }
    let spec = |bytes| VolumeSpec { name: "w".into(), size_bytes: bytes, layout, thick: true, read_only: false };
    let extent = (REGION * BLOCK) as u64;
    let refused = |extents: u64| async move { controller.store().create(spec(extents * extent)).await.is_err() };
    // As large as it gets.
    let mut extents = 2_000;
    while refused(extents).await {
        extents -= 1;
        assert!(extents > 0, "the pool is full");
    }
    controller.store().delete("w").await.unwrap();
    controller.store().checkpoint().await.unwrap();
    controller.store().create(spec((extents - leaves_free as u64) * extent)).await.unwrap();
    Some(controller.open_volume("w").unwrap())
}

#[test]
fn each_byte_of_a_stream_is_written_once() {
    let once = written_for_a_stream(1, 0, Layout::None, usize::MAX);
    assert!((1.0..1.6).contains(&once), "{once} bytes for each, its share of entries and pages among them");
    let mirrored = written_for_a_stream(2, 0, Layout::Mirror, usize::MAX);
    assert!((2.0..3.2).contains(&mirrored), "{mirrored}");
    let journaled = written_for_a_stream(4, 2, Layout::None, usize::MAX);
    assert!(journaled > 2.9, "{journaled}: to both copies of a faster journal, and home");
}

#[test]
fn a_full_pool_takes_streams_through_the_journal() {
    let full = written_for_a_stream(1, 0, Layout::None, 0);
    assert!(full > 1.9, "{full}: there is no other place");
    let nearly = written_for_a_stream(1, 0, Layout::None, 2);
    assert!(nearly > 1.9, "{nearly}: others may need it");
    let some = written_for_a_stream(1, 0, Layout::None, 14);
    assert!((1.0..1.9).contains(&some), "{some}");
}

/// What successors hold of a pool does not refuse others what they need.
#[test]
fn a_stream_keeps_nobody_from_the_last_free_extent() {
    let free_extents = |streams: bool| {
        let rig = Rig::new(1, 0, Layout::None);
        let mut taken = 0;
        rig.run(async |controller, _| {
            let device = rig.fill(controller).await.unwrap();
            if streams {
                rig.stream(&*device, 0..at(1) + 8, 2).await.unwrap();
            }
            let others = fill_pool(controller, Layout::None, 0).await.unwrap();
            taken = others.geometry().size_bytes;
            rig.stream(&*device, at(1) + 8..at(3), 2).await.unwrap();
            rig.flush(&*device).await.unwrap();
            rig.check(controller, "full").await;
        });
        rig.run(async |controller, _| rig.check(controller, "again").await);
        taken
    };
    assert_eq!(free_extents(true), free_extents(false));
}

/// Others write to whatever is free, while and after a stream has been given up, and after a restart.
#[test]
fn nobody_is_given_a_place_that_the_log_still_needs() {
    async fn take(controller: &Controller, name: &str, extents: usize) {
        let size_bytes = (at(extents) * BLOCK) as u64;
        let spec = VolumeSpec { name: name.into(), size_bytes, layout: Layout::None, thick: false, read_only: false };
        controller.store().create(spec).await.unwrap();
        let device = controller.open_volume(name).unwrap();
        for extent in 0..extents {
            let data = Buf::copy_of(&vec![0xAA; REGION * BLOCK]);
            match device.write((at(extent) * BLOCK) as u64, data.into(), false).await {
                Err(error) if error.kind() == Kind::Full => break,
                written => written.unwrap(),
            }
        }
        device.flush().await.unwrap();
    }
    for delay in 0..60 {
        let rig = Rig::new(1, 0, Layout::None);
        rig.run(async |controller, runtime| {
            let device = rig.fill(controller).await.unwrap();
            let stream = async {
                runtime.sleep(Duration::from_micros(delay * 5)).await;
                rig.stream(&*device, 0..8, 2).await.unwrap();
                rig.put(&*device, 1, 1, 3).await.unwrap();
                rig.stream(&*device, at(1)..at(2) + 8, 2).await.unwrap();
            };
            futures::future::join(controller.store().checkpoint(), stream).await.0.unwrap();
            rig.flush(&*device).await.unwrap();
            take(controller, "x", REGIONS).await;
            rig.compare(controller, &format!("{delay}")).await;
        });
        rig.run(async |controller, _| {
            take(controller, "y", 10 + 4 * delay as usize).await;
        });
        rig.run(async |controller, _| rig.check(controller, &format!("{delay}: and again")).await);
    }
}

/// A disk dies while the only write that there is goes ahead of an extent, which is rebuilt then.
#[test]
fn a_rebuild_does_not_wait_for_ever_for_a_stream_that_has_stopped() {
    for delay in 0..80 {
        let rig = Rig::new(4, 0, Layout::Mirror);
        rig.run(async |controller, runtime| {
            let device = rig.create(controller).await;
            rig.stream(&*device, 0..at(1), 1).await.unwrap();
            rig.flush(&*device).await.unwrap();
            controller.store().checkpoint().await.unwrap();
            let dies = async {
                runtime.sleep(Duration::from_micros(delay * 3)).await;
                rig.disks[2].inject(FaultKind::Dead);
            };
            futures::future::join(rig.stream(&*device, 0..12, 2), dies).await.0.unwrap();
            let late = std::pin::pin!(runtime.sleep(Duration::from_mins(2)));
            let stopped = std::pin::pin!(async {
                runtime.sleep(Duration::from_secs(30)).await;
                rig.flush(&*device).await.unwrap();
                controller.store().stop().await
            });
            let ended = futures::future::select(stopped, late).await;
            assert!(matches!(ended, futures::future::Either::Left((Ok(()), _))), "{delay}: it does not end");
        });
        rig.run(async |controller, _| rig.check(controller, &format!("{delay}")).await);
    }
}

/// A start without a disk that has what a stream wrote last is refused; whoever insists has the rest.
#[test]
fn a_disk_that_is_away_takes_no_more_with_it_than_it_had() {
    for end in [at(REGIONS), at(REGIONS) - 8] {
        let rig = Rig::new(4, 0, Layout::None);
        rig.run(async |controller, _| {
            let device = rig.fill(controller).await.unwrap();
            rig.stream(&*device, 0..end, 2).await.unwrap();
            rig.flush(&*device).await.unwrap();
        });
        // The journal's disks are the first two.
        let here = &rig.disks[..3];
        let runtime: std::rc::Rc<dyn Runtime> = rig.sim.runtime();
        let start = async |degraded| crate::alone::start((&rig.disks, here), &runtime, rig.config(degraded)).await;
        rig.sim.block_on(async {
            let refused = start(false).await.err().unwrap().to_string();
            assert!(refused.contains("--degraded"), "{refused}");
            let controller = start(true).await.unwrap();
            let lost = rig.lost(&controller).await.len();
            let there = at(REGIONS) - lost;
            assert!(lost >= 2 * REGION && there >= 4 * REGION, "{end}: {lost} are lost, {there} are there");
        });
    }
}

#[test]
fn a_stream_over_an_extent_that_moves_is_where_that_moved_to() {
    for delay in 0..60 {
        let rig = Rig::new(4, 0, Layout::None);
        rig.run(async |controller, runtime| {
            let device = rig.fill(controller).await.unwrap();
            let leaving = async {
                runtime.sleep(Duration::from_micros(delay * 40)).await;
                controller.store().leave_disk(DeviceId(3)).await
            };
            let writes = async {
                for byte in 2..4 {
                    rig.stream(&*device, 0..at(REGIONS), byte).await.unwrap();
                }
                rig.flush(&*device).await.unwrap();
            };
            futures::future::join(leaving, writes).await.0.unwrap();
            let mut waited = 0;
            while controller.store().unwanted()[&DeviceId(3)].copies > 0 {
                runtime.sleep(Duration::from_millis(100)).await;
                waited += 1;
                assert!(waited < 100, "{delay}: it is never empty");
            }
            rig.disks[3].inject(FaultKind::Dead);
            rig.compare(controller, &format!("{delay}: moved")).await;
        });
        // What the log says of places on the disk that is gone is not needed any more.
        rig.run(async |controller, _| rig.check(controller, &format!("{delay}: again")).await);
    }
}

/// What lies in a successor is nowhere else but in memory when the power goes.
#[test]
fn what_rots_where_the_log_says_it_lies_is_lost_and_nothing_else() {
    for rots in [true, false] {
        let rig = Rig::new(1, 0, Layout::None);
        let (ahead, bad) = (at(2) + 4, at(2) + 6);
        let mut place = 0;
        rig.run(async |controller, _| {
            let device = rig.fill(controller).await.unwrap();
            rig.stream(&*device, 0..ahead, 2).await.unwrap();
            rig.stream(&*device, ahead..ahead + 4, 3).await.unwrap();
            rig.flush(&*device).await.unwrap();
            let lies_at = |at: &u64| rig.disks[0].at_rest(*at, BLOCK).iter().all(|byte| *byte == 3);
            let found: Vec<u64> = (0..32 << 20).step_by(BLOCK).filter(lies_at).collect();
            assert_eq!(found.len(), 4, "the log has none of it: {found:?}");
            place = found[2];
        });
        let bytes = Place::Range(place..place + BLOCK as u64);
        rig.disks[0].inject(if rots { FaultKind::BitRot(bytes, 3) } else { FaultKind::ReadError(bytes) });
        let mut lost = Vec::new();
        rig.run(async |controller, _| {
            lost = rig.lost(controller).await;
            let device = controller.open_volume("v").unwrap();
            rig.put(&*device, bad, 1, 4).await.unwrap();
            rig.flush(&*device).await.unwrap();
            rig.check(controller, "written again").await;
        });
        assert_eq!(lost, [bad]);
    }
}
