//! Whole stripes that pass the journal by.

use super::{BLOCK, REGION, Rig, at};
use kura_controller::Layout;
use kura_sim::FaultKind;
use std::time::Duration;

/// A write that begins and ends in the midst of stripes has whole ones between.
#[test]
fn whole_stripes_of_a_write_go_straight() {
    let rig = Rig::new(3, 0, Layout::Raid5);
    rig.run(async |controller, _| {
        let device = rig.create(controller).await;
        rig.put(&*device, 3, 2 * REGION + 2, 1).await.unwrap();
        rig.flush(&*device).await.unwrap();
        // All but one block of the first stripe and one of the last.
        assert_eq!(controller.info().straight_bytes as usize / BLOCK, 2 * REGION);
        rig.check(controller, "whole").await;
    });
    rig.run(async |controller, _| rig.check(controller, "again").await);
}

/// Stripes are on their way to a disk that hangs, or is full, when their blocks are trimmed or written over, a checkpoint is made, and
/// another block of theirs is written; then the power goes, and a disk dies.
#[test]
fn stripes_on_their_way_are_whole_whatever_becomes_of_their_blocks() {
    let mut straight = 0;
    let lasts = Duration::from_millis(1500);
    for layout in [Layout::Raid5, Layout::HotMirror] {
        for fault in [FaultKind::Stall { lasts }, FaultKind::Full { lasts }] {
            for (byte, late) in [(0, false), (0, true), (3, false), (3, true)] {
                for dead in 0..4 {
                    let what = format!("{layout:?}, {fault:?}, then {byte}, late: {late}, without disk {dead}");
                    let rig = Rig::new(4, 0, layout);
                    rig.run(async |controller, runtime| {
                        let device = rig.create(controller).await;
                        rig.put(&*device, at(0), REGION, 1).await.unwrap();
                        rig.put(&*device, at(4) + 1, 1, 1).await.unwrap();
                        rig.flush(&*device).await.unwrap();
                        // The journal's disks are the first two.
                        rig.disks[2].inject(fault.clone());
                        for region in 1..4 {
                            rig.put(&*device, at(region), REGION, 2).await.unwrap();
                        }
                        // The journal has waited for them long enough, and has their data itself.
                        rig.flush(&*device).await.unwrap();
                        straight += controller.info().straight_bytes;
                        for region in 1..4 {
                            rig.put(&*device, at(region), REGION, byte).await.unwrap();
                        }
                        rig.flush(&*device).await.unwrap();
                        let checkpoint = controller.store().checkpoint();
                        let writes = async {
                            if late {
                                runtime.sleep(2 * lasts).await;
                            }
                            for region in 1..4 {
                                rig.put(&*device, at(region) + 5, 1, 4).await.unwrap();
                            }
                            rig.flush(&*device).await.unwrap();
                            runtime.sleep(lasts / 2).await;
                        };
                        // One that meets a full disk fails.
                        let _ = futures::future::join(checkpoint, writes).await.0;
                    });
                    rig.run(async |controller, runtime| {
                        rig.disks[dead].inject(FaultKind::Dead);
                        rig.compare(controller, &what).await;
                        runtime.sleep(Duration::from_secs(5)).await;
                        rig.compare(controller, &format!("{what}, later")).await;
                    });
                }
            }
        }
    }
    assert!(straight > 0, "some went straight");
}
