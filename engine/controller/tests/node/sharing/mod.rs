//! What it costs controllers to share a pool, method by method, in virtual time.
//!
//! The node is the one that serves, on simulated disks; a request takes its controller's processor a while, and shared memory
//! takes time. What must hold: under `lease` controllers do not get in each other's way; each method reaches for shared memory
//! and sends messages as often as it promises; and a pool is used to the last extent by whoever needs it.

mod slow;

use kura_block::{Block, Buf, Kind, Runtime};
use kura_controller::{
    Config, Controller, DiskClass, JournalLimits, Layout, NewDisk, Node, PoolSpec, Settings, SharedPool, Sharing,
    SharingCounters, VolumeSpec, format,
};
use kura_shared::InProcess;
use kura_sim::{DiskSpec, Sim, SimDisk};
use slow::SlowPool;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const EXTENT: u64 = 64 << 10;
const BLOCK: usize = 4096;
/// Processor time of a request.
const REQUEST: Duration = Duration::from_micros(100);
/// Requests of each controller; each tenth writes where nothing was yet.
const REQUESTS: u64 = 1000;
const NEW: u64 = REQUESTS / 10;
/// Disks of a volume: each new extent is one of each.
const COPIES: u64 = 2;

fn formatted(sim: &Sim, controllers: u16, disk_bytes: u64) -> Vec<SimDisk> {
    let disks: Vec<_> = (0..2).map(|at| sim.disk(&format!("disk{at}"), DiskSpec::nvme(disk_bytes))).collect();
    let new = |(id, disk): (usize, &SimDisk)| NewDisk {
        path: disk.name().into(),
        device: disk.open(),
        class: DiskClass::Slow,
        uuid: [id as u8 + 1; 16],
    };
    let new: Vec<_> = disks.iter().enumerate().map(new).collect();
    let pool =
        PoolSpec { uuid: [9; 16], extent_bytes: EXTENT, controllers, journal_bytes: 8 << 20, floating_percent: 0 };
    sim.block_on(format(&new, &pool)).unwrap();
    disks
}

async fn started(
    disks: &[SimDisk],
    runtime: &Rc<dyn Runtime>,
    (shared, sharing): (Arc<dyn SharedPool>, Sharing),
) -> (Node, Vec<Rc<Controller>>) {
    let paths: Vec<String> = disks.iter().map(|disk| disk.name().to_owned()).collect();
    let config = Config {
        settings: Settings { sharing, ..Settings::default() },
        journal: JournalLimits { linger: Duration::from_millis(1), batch_bytes: 64 << 10, ..JournalLimits::default() },
        ..Config::default()
    };
    Node::start(&paths, SimDisk::opener(disks), runtime, &shared, config).await.unwrap()
}

async fn made(controller: &Controller, name: &str, size_bytes: u64) -> Rc<dyn Block> {
    let spec = VolumeSpec { name: name.into(), size_bytes, layout: Layout::Mirror, thick: false, read_only: false };
    controller.store().create(spec).await.unwrap();
    controller.open_volume(name).unwrap()
}

async fn write(device: &dyn Block, at: u64) -> kura_block::Result<()> {
    device.write(at, Buf::copy_of(&[7; BLOCK]).into(), false).await
}

/// What a run came to.
struct Ran {
    /// Requests a second of all controllers.
    per_s: f64,
    /// Of each controller while it did its requests.
    counters: Vec<SharingCounters>,
}

impl Ran {
    fn accesses(&self) -> u64 {
        self.counters.iter().map(|one| one.shared_reads + one.shared_updates).sum()
    }

    fn messages(&self) -> u64 {
        self.counters.iter().map(|one| one.messages).sum()
    }

    fn drops(&self) -> u64 {
        self.counters.iter().map(|one| one.drops).sum()
    }
}

/// Each controller's client has one request at a time under way.
fn ran(sharing: Sharing, controllers: u16) -> Ran {
    let sim = Sim::new(1);
    let disks = formatted(&sim, controllers, 20 << 30);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        #[allow(clippy::arc_with_non_send_sync, reason = "all controllers of a simulation are on one thread")]
        let shared = Arc::new(SlowPool::new(&runtime));
        let (_node, all) = started(&disks, &runtime, (shared, sharing)).await;
        let mut devices = Vec::new();
        for controller in &all {
            devices.push(made(controller, &format!("v{}", controller.id().0), (NEW + 1) * EXTENT).await);
            // What a controller does once, such as taking its part of the pool.
            write(&**devices.last().unwrap(), NEW * EXTENT).await.unwrap();
        }
        let before: Vec<_> = all.iter().map(|controller| controller.info().sharing).collect();
        let begun = runtime.now();
        let clients = devices.iter().map(|device| async {
            for request in 0..REQUESTS {
                runtime.sleep(REQUEST).await;
                write(&**device, request / 10 * EXTENT).await.unwrap();
            }
        });
        futures::future::join_all(clients).await;
        let took = runtime.now().saturating_sub(begun).as_secs_f64();
        let counters = all.iter().zip(before).map(|(controller, before)| controller.info().sharing - before).collect();
        Ran { per_s: (u64::from(controllers) * REQUESTS) as f64 / took, counters }
    })
}

#[test]
fn speed_grows_with_controllers_under_lease() {
    let alone = ran(Sharing::Lease, 1).per_s;
    for controllers in [2, 4, 8] {
        let part = ran(Sharing::Lease, controllers).per_s / f64::from(controllers) / alone;
        println!("lease, {controllers} controllers: {part:.4} of one's speed each");
        assert!(part >= 1.0 / 1.05, "{controllers} controllers: {part}");
    }
    // What it is to be better than.
    let part = |sharing| ran(sharing, 8).per_s / 8.0 / alone;
    let (access_change, message) = (part(Sharing::AccessChange), part(Sharing::Message));
    println!("8 controllers: access-change {access_change:.4}, message {message:.4}");
    assert!(access_change < 0.9 && message < access_change, "{access_change}, {message}");
}

#[test]
fn each_method_costs_what_it_promises() {
    for controllers in [1, 2, 4] {
        let others = u64::from(controllers) - 1;
        let taken = u64::from(controllers) * NEW * COPIES;
        for sharing in [Sharing::Aggregate, Sharing::Message, Sharing::AccessChange, Sharing::Lease] {
            let ran = ran(sharing, controllers);
            let thousand = u64::from(controllers) * REQUESTS / 1000;
            let (accesses, messages, drops) = (ran.accesses(), ran.messages(), ran.drops());
            println!(
                "{sharing}, {controllers} controllers, a thousand requests: {} accesses, {} messages, {} drops",
                accesses / thousand,
                messages / thousand,
                drops / thousand
            );
            let context = format!("{sharing}, {controllers} controllers: {:?}", ran.counters);
            match sharing {
                Sharing::Aggregate => assert_eq!((accesses, messages, drops), (0, 0, 0), "{context}"),
                Sharing::Message => {
                    assert_eq!(messages, taken * others, "{context}");
                    // A claim and an index entry each, and a look at how much there is.
                    assert!(accesses >= 3 * taken, "{context}");
                    assert_eq!(drops > 0, others > 0, "{context}");
                }
                Sharing::AccessChange => {
                    assert_eq!((accesses, messages, drops), (3 * taken, 0, 0), "{context}");
                }
                Sharing::Lease => {
                    assert_eq!((messages, drops), (0, 0), "{context}");
                    assert!(accesses * 8 <= 3 * taken, "{context}");
                }
            }
            // Each request is looked up in its controller's own tables.
            assert!(ran.counters.iter().all(|one| one.hits >= REQUESTS), "{context}");
        }
    }
}

/// The first controller takes a batch and needs little of it; the second one gets the rest.
#[test]
fn a_shared_pool_is_used_to_the_last_extent() {
    for sharing in [Sharing::Lease, Sharing::AccessChange, Sharing::Message, Sharing::Aggregate] {
        let sim = Sim::new(2);
        let disks = formatted(&sim, 2, 1 << 30);
        let runtime: Rc<dyn Runtime> = sim.runtime();
        sim.block_on(async {
            let shared = Arc::new(InProcess::new());
            let (node, all) = started(&disks, &runtime, (shared, sharing)).await;
            let extents = node.pool().await.unwrap().free_bytes / EXTENT / COPIES;
            let (small, large) = (made(&all[0], "a", EXTENT).await, made(&all[1], "b", 2 << 30).await);
            write(&*small, 0).await.unwrap();
            let mut mine = 0;
            loop {
                match write(&*large, mine * EXTENT).await {
                    Ok(()) => mine += 1,
                    Err(error) => break assert_eq!(error.kind(), Kind::Full, "{sharing}: {error}"),
                }
            }
            let expected = if sharing == Sharing::Aggregate { extents / 2 } else { extents - 1 };
            assert_eq!(mine, expected, "{sharing}");
        });
    }
}
