//! What cannot be brought anywhere keeps nothing waiting that can.

use super::{BLOCK, Rig, check, create, done_within, reads, write};
use kura_block::{Block, DeviceId, Kind};
use kura_controller::{Controller, HotSettings, Layout, Settings, SnapshotSpec};
use kura_sim::{FaultKind, FaultPlan, Place};
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
