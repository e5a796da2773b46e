//! What a checkpoint costs, and who waits for what it gives back.

use futures::future::join3;
use kura_block::{Block, Buf, Runtime};
use kura_controller::{Config, Controller, JournalLimits, Layout, PoolSpec, VolumeSpec};
use kura_sim::{DiskSpec, Io, IoKind, ServiceModel, Sim, SimDisk};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const BLOCK: usize = 4096;
const EXTENT_BYTES: u64 = 64 << 10;

/// A disk that takes its time over discards, and none away from anything else.
struct Trims;

impl ServiceModel for Trims {
    fn channels(&self) -> usize {
        usize::MAX
    }

    fn service_ns(&mut self, io: &Io, _: u64) -> u64 {
        if io.kind == IoKind::Discard { 200_000_000 } else { 50_000 }
    }
}

/// Opens the controller of a new pool of such disks, does `work`, and stops it.
fn run(work: impl AsyncFnOnce(&Controller, &[SimDisk], &dyn Runtime)) {
    let sim = Sim::new(7);
    let sizes = [("fast0", 24), ("fast1", 24), ("slow0", 48), ("slow1", 48), ("slow2", 48)];
    let disks: Vec<_> = sizes.map(|(name, mib)| sim.disk(name, DiskSpec::new(mib << 20, Trims))).into();
    let pool = PoolSpec {
        uuid: [9; 16],
        extent_bytes: EXTENT_BYTES,
        controllers: 1,
        journal_bytes: 8 << 20,
        floating_percent: 0,
    };
    crate::rig::format(&sim, &disks, 2, &pool);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let journal = JournalLimits { linger: Duration::from_millis(1), ..JournalLimits::default() };
        let controller = crate::alone::open(&disks, &runtime, Config { journal, ..Config::default() }).await;
        work(&controller, &disks, &*runtime).await;
        let begun = runtime.now();
        controller.store().stop().await.unwrap();
        let took = runtime.now().saturating_sub(begun);
        assert!(took < Duration::from_secs(2), "the stop took {took:?}");
        assert_eq!(controller.store().status().journal_used_bytes, 0);
    });
}

async fn create(controller: &Controller, name: &str, extents: u64, thick: bool) -> Rc<dyn Block> {
    let (name, size_bytes) = (name.to_owned(), extents * EXTENT_BYTES);
    let spec = VolumeSpec { name: name.clone(), size_bytes, layout: Layout::Mirror, thick, read_only: false };
    controller.store().create(spec).await.unwrap();
    controller.open_volume(&name).unwrap()
}

/// The entry in which the head lies when a checkpoint begins is still being filled: the tail stops where that one begins, and nothing
/// is gained by asking again.
#[test]
fn a_checkpoint_beside_writers_is_made_once() {
    run(async |controller, disks, runtime| {
        let device = create(controller, "v", 16, false).await;
        let write = |block: usize, durable: bool| {
            device.write((block * BLOCK) as u64, Buf::copy_of(&[1; BLOCK]).into(), durable)
        };
        write(0, true).await.unwrap();
        write(16, true).await.unwrap();
        controller.store().checkpoint().await.unwrap();
        let flushes = async || {
            let before = disks[2].counters().flushes;
            controller.store().checkpoint().await.unwrap();
            disks[2].counters().flushes - before
        };
        write(0, true).await.unwrap();
        let alone = flushes().await;
        let over = Cell::new(false);
        // One entry after another, and while each is written the next one is being filled.
        let writer = async |durable: bool| {
            while !over.get() {
                write(16 * usize::from(durable), durable).await.unwrap();
                runtime.sleep(Duration::from_micros(7)).await;
            }
        };
        let checkpoint = async {
            runtime.sleep(Duration::from_millis(5)).await;
            let beside = flushes().await;
            over.set(true);
            beside
        };
        let (.., beside) = join3(writer(true), writer(false), checkpoint).await;
        assert_eq!(beside, alone);
    });
}

/// A volume is deleted, and its disks take their time over it. Who needs no room does not notice, and who does waits for it.
#[test]
fn only_who_wants_room_waits_for_disks_that_discard() {
    const EXTENTS: u64 = 500;
    run(async |controller, _, runtime| {
        let device = create(controller, "v", 128, true).await;
        let free = async || controller.pool().await.unwrap().free_bytes;
        let before = free().await;
        create(controller, "large", EXTENTS, true).await;
        for again in ["large", "larger"] {
            controller.store().delete(again).await.unwrap();
            // The next checkpoint has begun to give it back.
            runtime.sleep(Duration::from_millis(1500)).await;
            assert!(free().await < before, "it is not free yet");
            let begun = runtime.now();
            for block in 0..2048 {
                device.write((block * BLOCK) as u64, Buf::copy_of(&[1; BLOCK]).into(), false).await.unwrap();
                if block % 256 == 0 {
                    device.flush().await.unwrap();
                }
            }
            let took = runtime.now().saturating_sub(begun);
            assert!(took < Duration::from_secs(2), "writes that are more than the journal took {took:?}");
            assert!(free().await < before, "it is not free yet");
            create(controller, "larger", EXTENTS, true).await;
        }
        controller.store().delete("larger").await.unwrap();
        controller.store().checkpoint().await.unwrap();
        assert_eq!(free().await, before);
        create(controller, "larger", EXTENTS, true).await;
        controller.store().delete("larger").await.unwrap();
    });
}
