//! Disks that neither answer nor fail, or take nothing more, in virtual time.
//!
//! What must hold: nobody waits for such a disk longer than it is said, it goes out of service, and nothing is lost or wrong.

use futures::future::join_all;
use kura_block::{Buf, DeviceId, Kind, Runtime};
use kura_controller::{Config, Controller, JournalLimits, Layout, PoolSpec, Settings, VolumeSpec};
use kura_sim::{DiskSpec, FaultKind, Sim, SimDisk};
use std::rc::Rc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const BYTES: usize = 1 << 20;

fn disks(sim: &Sim) -> Vec<SimDisk> {
    let sizes = [("fast0", 18), ("fast1", 18), ("slow0", 8), ("slow1", 8), ("slow2", 8), ("slow3", 8)];
    let disks: Vec<_> = sizes.map(|(name, mib)| sim.disk(name, DiskSpec::nvme(mib << 20))).into();
    let pool = PoolSpec {
        uuid: [9; 16],
        extent_bytes: 64 << 10,
        controllers: 1,
        journal_bytes: 5 << 20,
        floating_percent: 12,
    };
    crate::rig::format(sim, &disks, 2, &pool);
    disks
}

async fn open(disks: &[SimDisk], runtime: &Rc<dyn Runtime>) -> Rc<Controller> {
    let config = Config {
        settings: Settings { write_buffer_bytes: 256 << 10, pages: 8, ..Settings::default() },
        journal: JournalLimits { linger: Duration::from_millis(1), batch_bytes: 64 << 10, ..JournalLimits::default() },
        disk_timeout: LIMIT,
        ..Config::default()
    };
    crate::alone::open(disks, runtime, config).await
}

fn content(turn: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at / 4096 * 7 + at % 251 + turn * 13) as u8).collect()
}

/// Writes, has a disk stall for ever, writes again and reads; how long the longest of these took, and which disks are
/// out of service in the end.
fn stalled(layout: Layout, stalls: usize) -> (Duration, Vec<DeviceId>) {
    let sim = Sim::new(7);
    let disks = disks(&sim);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let controller = open(&disks, &runtime).await;
        let (name, size_bytes) = ("v".to_owned(), BYTES as u64);
        controller
            .store()
            .create(VolumeSpec { name, size_bytes, layout, thick: false, read_only: false })
            .await
            .unwrap();
        let volume = controller.open_volume("v").unwrap();
        volume.write(0, Buf::copy_of(&content(0)).into(), true).await.unwrap();
        controller.store().checkpoint().await.unwrap();
        disks[stalls].inject(FaultKind::Stall { lasts: Duration::MAX });
        let mut longest = Duration::ZERO;
        for turn in 1..4 {
            let begun = runtime.now();
            volume.write(0, Buf::copy_of(&content(turn)).into(), true).await.unwrap();
            longest = longest.max(runtime.now().saturating_sub(begun));
            let begun = runtime.now();
            let read = volume.read(0, BYTES).await.unwrap();
            assert!(*read.contiguous() == *content(turn), "{layout:?}, turn {turn}");
            longest = longest.max(runtime.now().saturating_sub(begun));
        }
        controller.store().checkpoint().await.unwrap();
        let read = volume.read(0, BYTES).await.unwrap();
        assert!(*read.contiguous() == *content(3), "{layout:?}, from the disks");
        (longest, controller.store().failed_disks())
    })
}

#[test]
fn a_disk_that_does_not_answer_goes_out_of_service() {
    for layout in [Layout::Mirror, Layout::Raid5, Layout::HotMirror, Layout::Floating] {
        for stalls in [0, 3] {
            let (longest, failed) = stalled(layout, stalls);
            assert_eq!(failed, [DeviceId(stalls as u16)], "{layout:?}");
            assert!((LIMIT..2 * LIMIT).contains(&longest), "{layout:?}: {longest:?} on disk {stalls}");
        }
    }
}

/// A disk is out of service, so that reads are told from the others of their rows; and another volume waits for disks that are
/// full. Readers of one row wait for each other, and for nothing else.
#[test]
fn reads_that_are_told_from_others_do_not_wait_for_full_disks() {
    let sim = Sim::new(7);
    let disks = disks(&sim);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let controller = open(&disks, &runtime).await;
        let create = async |name: &str, layout| {
            let (name, size_bytes) = (name.to_owned(), BYTES as u64);
            let spec = VolumeSpec { name: name.clone(), size_bytes, layout, thick: false, read_only: false };
            controller.store().create(spec).await.unwrap();
            controller.open_volume(&name).unwrap()
        };
        let (v, w) = (create("v", Layout::Raid5).await, create("w", Layout::Mirror).await);
        v.write(0, Buf::copy_of(&content(0)).into(), true).await.unwrap();
        controller.store().checkpoint().await.unwrap();
        disks[2..].iter().for_each(|disk| disk.inject(FaultKind::Full { lasts: Duration::MAX }));
        controller.store().fail_disk(DeviceId(2)).await.unwrap();
        w.write(0, Buf::copy_of(&content(1)[..64 << 10]).into(), true).await.unwrap();
        runtime.sleep(Duration::from_secs(2)).await;
        let refused = controller.store().checkpoint().await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Full, "{refused}");
        for _ in 0..3 {
            let reads = (0..BYTES).step_by(4096).map(|at| v.read(at as u64, 4096));
            for (block, read) in join_all(reads).await.into_iter().enumerate() {
                let read = read.unwrap_or_else(|error| panic!("block {block}: {error}"));
                assert!(*read.contiguous() == content(0)[block * 4096..(block + 1) * 4096], "block {block}");
            }
        }
    });
}
