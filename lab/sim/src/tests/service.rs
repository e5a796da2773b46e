//! Service times against their formulas, and queues against queueing theory.

use crate::{Cache, DiskSpec, Io, Rotating, RotatingSpec, ServiceModel, Sim, Ssd, SsdSpec};
use futures::future::join_all;
use kura_block::{Block, Bufs, Runtime};
use rand::RngExt;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

#[track_caller]
fn assert_near(what: &str, measured: f64, expected: f64, part: f64) {
    assert!((measured - expected).abs() <= part * expected, "{what}: {measured} is not {expected} within {part}");
}

fn bare(spec: DiskSpec) -> DiskSpec {
    DiskSpec { cache: Cache::Off, keep_content: false, ..spec }
}

/// Mean and mean square of the seek time in ms between two cylinders drawn alike.
fn seek_moments(spec: &RotatingSpec) -> (f64, f64) {
    let cylinders = spec.cylinders as f64;
    (1..spec.cylinders).fold((0.0, 0.0), |(mean, square), distance| {
        let probability = 2.0 * (cylinders - distance as f64) / (cylinders * cylinders);
        let seek_ms = 2.867 + 0.0029 * distance as f64 + 0.13 * (distance as f64).sqrt();
        (mean + probability * seek_ms, square + probability * seek_ms * seek_ms)
    })
}

/// Response times in ms of single sectors read at random, one after the other, a random while apart.
fn random_reads(spec: RotatingSpec, count: usize) -> Vec<f64> {
    let sim = Sim::new(7);
    let block = sim.disk("d", bare(DiskSpec::rotating(spec))).open();
    let (runtime, mut rng) = (sim.runtime(), sim.rng("reads"));
    let sectors = spec.size_bytes() / u64::from(spec.sector_bytes);
    sim.block_on(async {
        let mut times = Vec::new();
        for _ in 0..count {
            runtime.sleep(Duration::from_nanos(rng.random_range(0..spec.revolution_ns))).await;
            let begin = runtime.now();
            let offset = rng.random_range(0..sectors) * u64::from(spec.sector_bytes);
            block.read(offset, spec.sector_bytes as usize).await.unwrap();
            times.push(runtime.now().saturating_sub(begin).as_secs_f64() * 1e3);
        }
        times
    })
}

#[test]
fn the_papers_disk_has_the_papers_size_and_seeks() {
    let spec = RotatingSpec::paper();
    assert_eq!(spec.size_bytes(), 4350 * 2 * 50 * 2048);
    assert_eq!(spec.size_bytes() >> 20, 849, "850 MB in the paper's megabytes");
    assert_eq!(spec.seek_ns(0), 0);
    assert_eq!(spec.seek_ns(1), 2_999_900);
    assert_eq!(spec.seek_ns(100), 4_457_000);
    assert_eq!(spec.seek_ns(4349), 24_052_203);
}

#[test]
fn random_reads_take_a_mean_seek_half_a_turn_and_a_sector() {
    for tracks_per_cylinder in [2, 3] {
        let spec = RotatingSpec { tracks_per_cylinder, ..RotatingSpec::paper() };
        let times = random_reads(spec, 40_000);
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let (seek_ms, _) = seek_moments(&spec);
        assert_near("random read", mean, seek_ms + 13.33 / 2.0 + 13.33 / 50.0, 0.01);
        let (least, most) =
            times.iter().fold((f64::MAX, 0.0_f64), |(least, most), time| (least.min(*time), most.max(*time)));
        assert!(least >= 13.33 / 50.0 && most < 24.053 + 13.33 + 0.267, "{least} {most}");
    }
}

#[test]
fn the_rotational_latency_is_even_over_the_turn() {
    let spec = RotatingSpec::paper();
    let mut disk = Rotating::new(spec);
    let mut rng = Sim::new(3).rng("angles");
    let mut counts = [0_u32; 10];
    let mut now_ns = 0;
    for _ in 0..20_000 {
        now_ns += rng.random_range(0..spec.revolution_ns);
        // One sector of the cylinder the heads are on: no seek, no head switch.
        let io = Io { kind: crate::IoKind::Read, offset_bytes: rng.random_range(0..50) * 2048, len_bytes: 2048 };
        let wait_ns = disk.service_ns(&io, now_ns) - 266_600;
        counts[(wait_ns * 10 / spec.revolution_ns) as usize] += 1;
        now_ns += wait_ns + 266_600;
    }
    assert!(counts.iter().all(|count| (1800..2200).contains(count)), "{counts:?}");
}

#[test]
fn reading_on_costs_a_skew_a_track_and_a_skew_a_cylinder() {
    let spec = RotatingSpec::paper();
    let (track_ns, sector_ns) = (13_330_000, 266_600);
    let read = |disk: &mut Rotating, first_track: u64, tracks: u64, start_ns| {
        let (offset_bytes, len_bytes) = (first_track * spec.track_bytes(), tracks * spec.track_bytes());
        disk.service_ns(&Io { kind: crate::IoKind::Read, offset_bytes, len_bytes }, start_ns)
    };
    let mut disk = Rotating::new(spec);
    assert_eq!(read(&mut disk, 0, 1, 0), track_ns);
    assert_eq!(read(&mut disk, 0, 2, 0), 2 * track_ns + 6 * sector_ns);
    // The seek of one cylinder takes 3.0 ms, the skew of 12 sectors 3.2 ms.
    let four_ns = 4 * track_ns + (6 + 12 + 6) * sector_ns;
    assert_eq!(read(&mut disk, 0, 4, 0), four_ns);
    // Track by track, each asked for when the one before it ends, is as fast as all at once.
    let mut disk = Rotating::new(spec);
    assert_eq!((0..4).fold(0, |now_ns, track| now_ns + read(&mut disk, track, 1, now_ns)), four_ns);
}

#[test]
fn a_cylinder_skew_below_the_seek_costs_a_turn() {
    let whole = Io { kind: crate::IoKind::Read, offset_bytes: 0, len_bytes: RotatingSpec::paper().track_bytes() * 4 };
    for (cylinder_skew, turns) in [(11, 5), (12, 4)] {
        let spec = RotatingSpec { cylinder_skew, ..RotatingSpec::paper() };
        assert_eq!(Rotating::new(spec).service_ns(&whole, 0), turns * 13_330_000 + (12 + cylinder_skew) * 266_600);
    }
}

#[test]
fn a_head_switch_longer_than_the_skew_costs_a_turn() {
    let whole = Io { kind: crate::IoKind::Read, offset_bytes: 0, len_bytes: RotatingSpec::paper().track_bytes() * 2 };
    for (head_switch_ns, turns) in [(1_599_600, 2), (1_599_601, 3)] {
        let spec = RotatingSpec { head_switch_ns, ..RotatingSpec::paper() };
        assert_eq!(Rotating::new(spec).service_ns(&whole, 0), turns * 13_330_000 + 6 * 266_600);
    }
}

#[test]
fn todays_disks_read_on_at_their_speed_and_seek_in_their_time() {
    for (spec, bytes_per_s, seek_ms) in
        [(RotatingSpec::hdd_7200(4 << 40), 176e6, 7.6), (RotatingSpec::hdd_10k(600 << 30), 117e6, 4.6)]
    {
        let mut disk = Rotating::new(spec);
        let len_bytes = spec.track_bytes() * spec.tracks_per_cylinder * 10;
        let whole = Io { kind: crate::IoKind::Read, offset_bytes: 0, len_bytes };
        assert_near("bytes/s", len_bytes as f64 / (disk.service_ns(&whole, 0) as f64 / 1e9), bytes_per_s, 0.03);
        let cylinders = spec.cylinders as f64;
        let mean_ms: f64 = (1..spec.cylinders)
            .map(|d| 2.0 * (cylinders - d as f64) / (cylinders * cylinders) * spec.seek_ns(d) as f64 / 1e6)
            .sum();
        assert_near("mean seek", mean_ms, seek_ms, 0.02);
        assert!(spec.size_bytes() >= 600 << 30);
    }
}

/// The fewer the cylinders, the longer is the seek to the next one: reading on takes no longer than where seeks take no time.
#[test]
fn a_small_disk_of_today_reads_on_without_a_lost_turn() {
    let whole_ns = |spec: RotatingSpec| {
        let len_bytes = spec.track_bytes() * spec.tracks_per_cylinder * spec.cylinders.min(20);
        Rotating::new(spec).service_ns(&Io { kind: crate::IoKind::Read, offset_bytes: 0, len_bytes }, 0)
    };
    for size_bytes in [64 << 20, 4 << 30, 4 << 40] {
        for spec in [RotatingSpec::hdd_7200(size_bytes), RotatingSpec::hdd_10k(size_bytes)] {
            let at_once = RotatingSpec { seek_fixed_ms: 0.0, seek_linear_ms: 0.0, seek_root_ms: 0.0, ..spec };
            assert_eq!(whole_ns(spec), whole_ns(at_once), "{} cylinders", spec.cylinders);
        }
    }
    assert_eq!([4 << 30, 4 << 40].map(|size_bytes| RotatingSpec::hdd_7200(size_bytes).cylinder_skew), [64, 48]);
    // Of a seek that is longer than a turn, what is beyond the turn.
    let two = RotatingSpec::hdd_10k(8 << 20);
    assert_eq!((two.cylinders, two.seek_ns(1) / two.revolution_ns, two.cylinder_skew), (2, 1, 5));
}

/// Takes always the same time, one operation after the other.
struct Server(u64);

impl ServiceModel for Server {
    fn service_ns(&mut self, _: &Io, _: u64) -> u64 {
        self.0
    }
}

/// Mean response in ms of single sectors read at random places, arriving by a Poisson process of so many a ms; and the
/// part of the time in which the disk was busy.
fn open_queue(spec: DiskSpec, arrivals_per_ms: f64, count: usize) -> (f64, f64) {
    let sim = Sim::new(11);
    let (sector, sectors) = (spec.sector_bytes as usize, spec.size_bytes / u64::from(spec.sector_bytes));
    let disk = sim.disk("d", bare(spec));
    let (block, runtime) = (disk.open(), sim.runtime());
    let (mut arrivals, mut places) = (sim.rng("arrivals"), sim.rng("places"));
    let total = Rc::new(RefCell::new((0.0, 0)));
    sim.block_on(async {
        for _ in 0..count {
            let apart_ms = -(1.0 - arrivals.random::<f64>()).ln() / arrivals_per_ms;
            runtime.sleep(Duration::from_nanos((apart_ms * 1e6) as u64)).await;
            let offset = places.random_range(0..sectors) * sector as u64;
            let (block, clock, total) = (Rc::clone(&block), Rc::clone(&runtime), Rc::clone(&total));
            runtime.spawn(Box::pin(async move {
                let begin = clock.now();
                block.read(offset, sector).await.unwrap();
                let mut total = total.borrow_mut();
                total.0 += clock.now().saturating_sub(begin).as_secs_f64() * 1e3;
                total.1 += 1;
            }));
        }
        runtime.sleep(Duration::from_secs(1)).await;
    });
    let (sum_ms, served) = *total.borrow();
    assert_eq!(served, count);
    (sum_ms / count as f64, disk.counters().busy_ns as f64 / sim.now().as_nanos() as f64)
}

#[test]
fn a_constant_server_queues_as_m_d_1() {
    for load in [0.3, 0.6, 0.8] {
        let spec = DiskSpec::new(1 << 20, Server(1_000_000));
        let (mean_ms, busy) = open_queue(spec, load, 200_000);
        assert_near("response", mean_ms, 1.0 + load / (2.0 * (1.0 - load)), 0.02);
        assert_near("busy", busy, load, 0.01);
    }
}

#[test]
fn the_papers_disk_queues_as_m_g_1() {
    let spec = RotatingSpec::paper();
    let (seek, seek_square) = seek_moments(&spec);
    let (turn, sector) = (13.33, 13.33 / 50.0);
    let service = seek + turn / 2.0 + sector;
    // Seek, latency and transfer are independent: the variances add.
    let square = (seek_square - seek * seek) + turn * turn / 12.0 + service * service;
    for load in [0.3, 0.6] {
        let rate = load / service;
        let (mean_ms, busy) = open_queue(DiskSpec::rotating(spec), rate, 100_000);
        assert_near("response", mean_ms, service + rate * square / (2.0 * (1.0 - load)), 0.03);
        assert_near("busy", busy, load, 0.02);
    }
}

/// Reads of `len` bytes, `depth` of them at all times; bytes a second.
fn ssd_speed(write: bool, len: usize, depth: usize) -> f64 {
    let sim = Sim::new(5);
    let block = sim.disk("d", bare(DiskSpec::new(1 << 30, Ssd::new(SsdSpec::nvme())))).open();
    sim.block_on(join_all((0..depth).map(|_| async {
        for _ in 0..200 {
            if write {
                block.write(0, Bufs::zeroes(len), false).await.unwrap();
            } else {
                block.read(0, len).await.unwrap();
            }
        }
    })));
    (200 * depth * len) as f64 / sim.now().as_secs_f64()
}

#[test]
fn an_ssd_is_bound_by_latency_then_by_channels_then_by_its_link() {
    let alone = 4096.0 / (80e-6 + 4096.0 / 3e9);
    assert_near("one read at a time", ssd_speed(false, 4096, 1), alone, 0.001);
    assert_near("eight", ssd_speed(false, 4096, 8), 8.0 * alone, 0.02);
    assert_near("more than channels", ssd_speed(false, 4096, 100), 32.0 * alone, 0.05);
    assert_near("large reads", ssd_speed(false, 1 << 20, 32), 3e9, 0.02);
    assert_near("large writes", ssd_speed(true, 1 << 20, 32), 1.5e9, 0.02);
}

#[test]
fn reads_and_writes_of_an_ssd_pass_different_links() {
    let mut ssd = Ssd::new(SsdSpec::nvme());
    let write = Io { kind: crate::IoKind::Write, offset_bytes: 0, len_bytes: 1_500_000_000 };
    let read = Io { kind: crate::IoKind::Read, offset_bytes: 0, len_bytes: 3_000 };
    assert_eq!(ssd.service_ns(&write, 0), 1_000_015_000);
    assert_eq!(ssd.service_ns(&read, 0), 81_000);
    assert_eq!(ssd.service_ns(&read, 0), 82_000);
}

#[test]
fn counters_tell_what_was_done_and_how_long_it_took() {
    let sim = Sim::new(1);
    let disk = sim.disk("d", DiskSpec::new(1 << 20, Server(1_000_000)));
    let block = disk.open();
    sim.block_on(async {
        futures::join!(
            async { block.read(0, 4096).await.unwrap() },
            async { block.write(0, Bufs::zeroes(8192), false).await.unwrap() },
            async { block.flush().await.unwrap() },
        );
    });
    let counters = disk.counters();
    assert_eq!((counters.reads, counters.writes, counters.flushes, counters.errors), (1, 1, 1, 0));
    assert_eq!((counters.read_bytes, counters.written_bytes), (4096, 8192));
    assert_eq!((counters.busy_ns, counters.service_ns, counters.wait_ns), (3_000_000, 3_000_000, 3_000_000));
    assert_eq!((counters.queue, counters.queue_max), (0, 3));
}

#[test]
fn jitter_moves_service_times_by_its_part_at_most() {
    let service_ns = |seed| {
        let sim = Sim::new(seed);
        let block = sim.disk("d", DiskSpec { jitter: 0.2, ..DiskSpec::new(1 << 20, Server(1_000_000)) }).open();
        sim.block_on(block.flush()).unwrap();
        sim.now().as_nanos()
    };
    let times: Vec<u128> = (0..200).map(service_ns).collect();
    let (least, most) = times.iter().fold((u128::MAX, 0), |(least, most), time| (least.min(*time), most.max(*time)));
    assert!((800_000..820_000).contains(&least) && (1_180_000..=1_200_000).contains(&most), "{least} {most}");
}
