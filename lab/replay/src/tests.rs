//! Whole replays of small loads on small nodes.

use crate::pace::OpenLoop;
use crate::replay::drive;
use crate::run::Run;
use crate::{Error, NodeDisk, NodeSpec, Options, Pace, Prefill, Summary, Survey, replay};
use kura_controller::{DiskClass, Layout};
use kura_sim::{Constant, Fault, FaultKind, FaultPlan, Model, Place, RotatingSpec, When};
use kura_trace::{Op, Request};
use proptest::prelude::*;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn disk(name: &str, class: DiskClass, model: Model) -> NodeDisk {
    NodeDisk { name: name.to_owned(), class, size_bytes: 64 * MIB, model }
}

fn node(slow: Model) -> NodeSpec {
    NodeSpec {
        controllers: 1,
        extent_bytes: 256 << 10,
        journal_bytes: 16 * MIB,
        floating_percent: 0,
        settings: crate::Settings { write_buffer_bytes: 4 * MIB, ..crate::Settings::default() },
        disk_timeout_s: 0,
        tier: None,
        disks: vec![
            disk("fast0", DiskClass::Fast, Model::Nvme),
            disk("fast1", DiskClass::Fast, Model::Nvme),
            disk("slow0", DiskClass::Slow, slow),
            disk("slow1", DiskClass::Slow, slow),
        ],
    }
}

fn request(at_ns: u64, op: Op, offset_bytes: u64, len_bytes: u32) -> Request {
    Request { at_ns, op, offset_bytes, len_bytes, response_ns: 0 }
}

fn run(spec: &NodeSpec, options: &Options, requests: &[Request]) -> Result<Summary, Error> {
    let given = requests.to_vec();
    let survey = Survey::of(given.iter().map(|request| Ok::<_, Infallible>(*request))).unwrap();
    replay(spec, options, &survey, given.into_iter().map(Ok::<_, Infallible>), &mut |_| {})
}

/// Requests of all kinds, aligned and not, on 2 MiB, some at the same time.
fn requests() -> impl Strategy<Value = Vec<Request>> {
    let op = prop_oneof![4 => Just(Op::Write), 3 => Just(Op::Read), 1 => Just(Op::Discard), 1 => Just(Op::Flush)];
    let one = (op, 0_u64..3_000_000, 0_u64..2 * MIB, 1_u32..40_000, any::<bool>());
    prop::collection::vec(one, 1..150).prop_map(|drawn| {
        let mut at_ns = 0;
        let place = |(op, gap_ns, offset, len, aligned): (Op, u64, u64, u32, bool)| {
            at_ns += if gap_ns < 1_000_000 { 0 } else { gap_ns };
            match op {
                Op::Flush => request(at_ns, op, 0, 0),
                _ if aligned => request(at_ns, op, offset / 4096 * 4096, len.next_multiple_of(4096)),
                _ => request(at_ns, op, offset, len),
            }
        };
        drawn.into_iter().map(place).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_same_replay_twice_is_the_same_and_verify_changes_no_time(requests in requests(), depth in 0_usize..9) {
        let pace = if depth == 0 { Pace::Open } else { Pace::Closed { depth } };
        let options = Options { pace, ..Options::default() };
        let spec = node(Model::Hdd10k);
        let first = run(&spec, &options, &requests).unwrap();
        let again = run(&spec, &options, &requests).unwrap();
        prop_assert_eq!(serde_json::to_string(&first).unwrap(), serde_json::to_string(&again).unwrap());

        let checked = run(&spec, &Options { verify: true, ..options }, &requests).unwrap();
        prop_assert!(checked.is_good(), "{:?}", checked.verify);
        prop_assert_eq!(Summary { verify: None, ..checked }, first);
    }
}

#[test]
fn an_open_loop_waits_for_nobody() {
    // One disk, one operation at a time, 10 ms each; a read a millisecond.
    let slow = Model::Constant(Constant { service_ns: 10_000_000, channels: 1 });
    let spec = NodeSpec { disks: vec![disk("slow0", DiskClass::Slow, slow)], ..node(slow) };
    let options = Options { layout: Layout::None, ..Options::default() };
    let reads: Vec<Request> = (0..50).map(|at| request(at * 1_000_000, Op::Read, at * 8192, 4096)).collect();
    let summary = run(&spec, &options, &reads).unwrap();
    assert_eq!(summary.elapsed_ns, 500_000_000, "one after the other");
    // The nth, from 0, comes at n ms and is answered at 10 (n + 1) ms.
    let read = summary.read.unwrap();
    assert_eq!((read.count, read.mean_ns, read.max_ns), (50, 230_500_000, 451_000_000));
    assert!(read.p999_ns <= read.max_ns);
    assert_eq!(summary.in_flight_max, 46, "at 49 ms four are answered");
    assert_eq!((summary.disks[0].queue_max, summary.disks[0].reads), (46, 50));
}

#[test]
fn where_no_time_passes_there_is_no_rate() {
    let write = |at_ns| run(&node(Model::Nvme), &Options::default(), &[request(0, Op::Write, 0, 4096), at_ns]).unwrap();
    let at_once = write(request(0, Op::Write, 4096, 4096));
    assert_eq!((at_once.elapsed_ns, at_once.iops, at_once.written_bytes_per_s), (0, None, None));
    let apart = write(request(500_000_000, Op::Write, 4096, 4096));
    assert_eq!((apart.iops, apart.written_bytes_per_s, apart.read_bytes_per_s), (Some(4.0), Some(16384.0), Some(0.0)));
}

#[test]
fn a_closed_loop_keeps_its_depth() {
    let slow = Model::Constant(Constant { service_ns: 1_000_000, channels: 4 });
    let spec = NodeSpec { disks: vec![disk("slow0", DiskClass::Slow, slow)], ..node(slow) };
    // An hour between them that nobody waits.
    let reads: Vec<Request> = (0..80).map(|at| request(at * 3_600_000_000_000, Op::Read, at * 8192, 4096)).collect();
    for (depth, elapsed_ns) in [(1, 80_000_000), (4, 20_000_000), (8, 20_000_000)] {
        let options = Options { layout: Layout::None, pace: Pace::Closed { depth }, ..Options::default() };
        let summary = run(&spec, &options, &reads).unwrap();
        assert_eq!((summary.in_flight_max, summary.elapsed_ns), (depth as u64, elapsed_ns), "depth {depth}");
    }
}

/// Reads by a Poisson process on one server that takes the same time for each: the mean wait is known.
#[test]
fn reads_of_one_disk_queue_as_m_d_1() {
    let service_ns = 1_000_000_u64;
    let slow = Model::Constant(Constant { service_ns, channels: 1 });
    let spec = NodeSpec { disks: vec![disk("slow0", DiskClass::Slow, slow)], ..node(slow) };
    let options = Options { layout: Layout::None, ..Options::default() };
    for load in [0.3, 0.7] {
        let mut rng = kura_sim::Sim::new(5).rng("arrivals");
        let mut at_ns = 0.0;
        let mut arrive = || {
            let chance = f64::from(rand::Rng::next_u32(&mut rng)) / 2.0_f64.powi(32);
            at_ns -= (1.0 - chance).ln() * service_ns as f64 / load;
            at_ns as u64
        };
        let reads: Vec<Request> = (0..40_000).map(|at| request(arrive(), Op::Read, at % 4096 * 4096, 4096)).collect();
        let summary = run(&spec, &options, &reads).unwrap();
        let expected_ns = service_ns as f64 * (1.0 + load / (2.0 * (1.0 - load)));
        let mean_ns = summary.read.unwrap().mean_ns as f64;
        assert!((mean_ns / expected_ns - 1.0).abs() < 0.03, "load {load}: {mean_ns} ns, expected {expected_ns} ns");
        assert!((summary.disks[0].busy - load).abs() < 0.02, "load {load}: busy {}", summary.disks[0].busy);
    }
}

#[test]
fn prefill_decides_whether_reads_touch_a_disk() {
    let spec = node(Model::SataSsd);
    let read = [request(0, Op::Read, MIB, 8192)];
    let with =
        |prefill| run(&spec, &Options { prefill, size_bytes: Some(4 * MIB), ..Options::default() }, &read).unwrap();
    let reads = |summary: &Summary| summary.disks.iter().map(|disk| disk.reads).sum::<u64>();
    for (prefill, bytes, touched) in [(Prefill::None, 0, 0), (Prefill::Read, 8192, 1), (Prefill::All, 4 * MIB, 1)] {
        let summary = with(prefill);
        assert_eq!((summary.prefill_bytes, reads(&summary)), (bytes, touched), "{prefill:?}");
        assert_eq!(summary.read.unwrap().max_ns > 0, touched > 0, "{prefill:?}");
    }
}

#[test]
fn what_goes_beyond_the_volume_fails_and_is_told() {
    let options = Options { size_bytes: Some(MIB), ..Options::default() };
    let summary = run(&node(Model::Nvme), &options, &[request(0, Op::Write, MIB - 4096, 8192)]).unwrap();
    assert_eq!(summary.errors.get("invalid"), Some(&1));
    assert!(!summary.is_good() && summary.first_error.is_some());
}

#[test]
fn a_trace_that_does_not_fit_the_disks_is_refused() {
    let writes: Vec<Request> = (0..400).map(|at| request(at, Op::Write, at * MIB, 4096)).collect();
    let error = run(&node(Model::Nvme), &Options::default(), &writes).unwrap_err();
    assert!(matches!(error, Error::NoRoom { needed_bytes: 104_857_600, .. }), "{error}");
    assert!(error.to_string().contains("by model and size in pool.disks"), "{error}");
}

/// Whole groups are allocated, of which a block here and there touches many.
#[test]
fn a_sparse_trace_takes_room_for_all_that_comes_with_it() {
    let mut spec = node(Model::Nvme);
    spec.disks.extend((2..4).map(|number| disk(&format!("slow{number}"), DiskClass::Slow, Model::Nvme)));
    // On four disks a group lies on three, with parity on one of them.
    let group_bytes = 2 * spec.extent_bytes;
    let options = Options { layout: Layout::Raid5, ..Options::default() };
    let room_bytes = spec.room_bytes(options.layout).unwrap();
    let sparse = |groups| {
        let writes: Vec<Request> = (0..groups).map(|at| request(at, Op::Write, at * group_bytes, 8192)).collect();
        run(&spec, &options, &writes)
    };
    let most = room_bytes / group_bytes;
    assert!(sparse(most).unwrap().is_good());
    let error = sparse(most + 1).unwrap_err();
    let needed = room_bytes + group_bytes;
    assert!(matches!(error, Error::NoRoom { needed_bytes, .. } if needed_bytes == needed), "{error}");
}

/// What the mirrored area takes is no room for the rest: that is told before anything is written.
#[test]
fn a_trace_that_does_not_fit_beside_the_mirrored_area_is_refused() {
    let mut spec = node(Model::Nvme);
    spec.disks.extend((2..4).map(|number| disk(&format!("slow{number}"), DiskClass::Slow, Model::Nvme)));
    let layout = Layout::HotMirror;
    let most_bytes = spec.volume_bytes(layout).unwrap();
    assert!(most_bytes + MIB <= spec.room_bytes(layout).unwrap());
    let filled = |size_bytes| {
        let options = Options { layout, prefill: Prefill::All, size_bytes: Some(size_bytes), ..Options::default() };
        run(&spec, &options, &[request(0, Op::Read, 0, 4096)])
    };
    assert!(filled(most_bytes).unwrap().is_good());
    let error = filled(most_bytes + MIB).unwrap_err();
    assert!(matches!(error, Error::NoRoom { room_bytes, .. } if room_bytes == most_bytes), "{error}");
}

/// One disk, 10 ms a read: nothing is counted but what comes when it is warm.
#[test]
fn what_warms_up_is_replayed_and_not_counted() {
    let slow = Model::Constant(Constant { service_ns: 10_000_000, channels: 1 });
    let spec = NodeSpec { disks: vec![disk("slow0", DiskClass::Slow, slow)], ..node(slow) };
    let mut reads: Vec<Request> = (0..50).map(|at| request(at * 1_000_000, Op::Read, at * 8192, 4096)).collect();
    // While the last of these is read, and after a rest.
    reads.extend([495, 600].map(|ms| request(ms * 1_000_000, Op::Read, 0, 4096)));
    let warm = |warm_ms: u64, pace| {
        let options = Options { layout: Layout::None, pace, warm_ns: warm_ms * 1_000_000, ..Options::default() };
        run(&spec, &options, &reads)
    };
    let all = warm(0, Pace::Open).unwrap();
    let summary = warm(495, Pace::Open).unwrap();
    assert_eq!((summary.digest, summary.load.requests, all.warm_requests), (all.digest, 52, 0));
    let read = summary.read.unwrap();
    assert_eq!((summary.warm_requests, read.count, read.max_ns, read.mean_ns), (50, 2, 15_000_000, 12_500_000));
    assert_eq!((summary.elapsed_ns, summary.in_flight_max), (115_000_000, 2));
    // What was being served then is work of the disk and the controller still.
    assert_eq!((summary.disks[0].reads, summary.controllers[0].reads), (3, 3));
    let closed = warm(495, Pace::Closed { depth: 1 }).unwrap();
    assert_eq!((closed.warm_requests, closed.read.unwrap().count, closed.elapsed_ns), (50, 2, 20_000_000));
    let error = warm(601, Pace::Open).unwrap_err().to_string();
    assert!(error.contains("0.600 s into the trace, before it is warm at 0.601 s"), "{error}");
}

#[test]
fn a_wild_address_is_refused_before_anything_is_made() {
    for offset in [1 << 45, u64::MAX - 4096] {
        let requests = [0, offset, offset].map(|offset| request(0, Op::Read, offset, 4096));
        let error = run(&node(Model::Nvme), &Options::default(), &requests).unwrap_err();
        assert!(error.to_string().starts_with(&format!("request 2 reaches to byte {}", offset + 4096)), "{error}");
        let options = Options { size_bytes: Some(offset), ..Options::default() };
        let error = run(&node(Model::Nvme), &options, &requests).unwrap_err();
        assert!(error.to_string().starts_with("the volume asked for reaches to byte"), "{error}");
    }
}

#[test]
fn a_hopeless_overload_ends() {
    let spec = node(Model::Rotating(RotatingSpec { cylinders: 0, ..RotatingSpec::paper() }));
    let options = Options { in_flight_limit: 1000, ..Options::default() };
    let reads: Vec<Request> = (0..5000).map(|at| request(at * 1000, Op::Read, at * 4096, 4096)).collect();
    let error = run(&spec, &options, &reads).unwrap_err();
    assert!(matches!(error, Error::Overloaded { waiting: 1000, .. }), "{error}");
    assert!(error.to_string().contains("0.001 s into the trace"), "{error}");
}

#[test]
fn thousands_of_writers_that_wait_for_room_are_served_in_turn() {
    let options = Options { verify: true, ..Options::default() };
    let writes: Vec<Request> = (0..20_000).map(|at| request(0, Op::Write, at * 7919 % 4096 * 4096, 4096)).collect();
    let summary = run(&node(Model::SataSsd), &options, &writes).unwrap();
    assert!(summary.is_good(), "{:?}", summary.verify);
    assert!(summary.in_flight_max > 15_000, "{}", summary.in_flight_max);
}

/// Bits of the only copy rot while the trace runs.
#[test]
fn a_disk_that_loses_what_it_held_is_told() {
    let disks = vec![disk("fast0", DiskClass::Fast, Model::Nvme), disk("slow0", DiskClass::Slow, Model::SataSsd)];
    let spec = NodeSpec { disks, ..node(Model::SataSsd) };
    let options = Options { layout: Layout::None, verify: true, ..Options::default() };
    let mut requests: Vec<Request> = (0..256).map(|at| request(at, Op::Write, at * 4096, 4096)).collect();
    requests.push(request(10_000_000_000, Op::Read, 8 * MIB - 4096, 4096));
    let survey = Survey::of(requests.iter().map(|request| Ok::<_, Infallible>(*request))).unwrap();
    for (bits, is_good) in [(0, true), (1, false)] {
        let node = spec.start(&options, 8 * MIB).unwrap();
        let rot = |_| Fault {
            disk: "slow0".to_owned(),
            when: When::After(Duration::from_secs(5)),
            what: FaultKind::BitRot(Place::AnyPage, 1),
        };
        // Some of so many pages are data, whichever else hold something.
        node.sim.set_plan(&FaultPlan { faults: (0..bits * 20).map(rot).collect(), crashes: vec![] });
        let given = requests.clone().into_iter().map(Ok::<_, Infallible>);
        let summary = drive(&node, &spec, &options, &survey, given, &mut |_| {}).unwrap();
        assert_eq!(summary.is_good(), is_good, "{:?}", summary.verify);
    }
}

/// A mirror answers all from the other disk: that it did so without one is told, where nothing was written meanwhile too.
#[test]
fn a_disk_that_is_given_up_is_told() {
    let mut spec = NodeSpec { disk_timeout_s: 30, ..node(Model::SataSsd) };
    // What is written to new places has two disks without it.
    spec.disks.push(disk("slow2", DiskClass::Slow, Model::SataSsd));
    for (op, lasts_s, failed) in
        [(Op::Write, 5, vec![]), (Op::Write, 100, vec!["slow1".to_owned()]), (Op::Read, 100, vec!["slow1".to_owned()])]
    {
        // Two at a time: of one read alone the disk is asked that was asked before.
        let requests = (0..512).map(|at| request(at / 2 * 1_000_000_000, op, at * 4096, 4096));
        let requests: Vec<Request> = requests.collect();
        let survey = Survey::of(requests.iter().map(|request| Ok::<_, Infallible>(*request))).unwrap();
        let node = spec.start(&Options::default(), 8 * MIB).unwrap();
        let stall = Fault {
            disk: "slow1".to_owned(),
            when: When::After(Duration::from_secs(100)),
            what: FaultKind::Stall { lasts: Duration::from_secs(lasts_s) },
        };
        node.sim.set_plan(&FaultPlan { faults: vec![stall], crashes: vec![] });
        let given = requests.into_iter().map(Ok::<_, Infallible>);
        let summary = drive(&node, &spec, &Options::default(), &survey, given, &mut |_| {}).unwrap();
        assert_eq!((&summary.failed_disks, summary.errors.len()), (&failed, 0), "{op:?}, {lasts_s} s");
        assert_eq!(summary.is_good(), failed.is_empty(), "{op:?}, {lasts_s} s");
    }
}

#[test]
fn an_error_of_the_source_ends_the_replay() {
    #[derive(Debug, thiserror::Error)]
    #[error("trace.csv:3: no number")]
    struct Broken;
    let good = request(0, Op::Write, 0, 4096);
    let survey = Survey::of([Ok::<_, Infallible>(good)]).unwrap();
    let requests = vec![Ok(good), Err(Broken)];
    let done = replay(&node(Model::Nvme), &Options::default(), &survey, requests.into_iter(), &mut |_| {});
    assert_eq!(done.unwrap_err().to_string(), "trace.csv:3: no number");
}

/// A request that is issued late is timed from when it was due.
#[test]
fn a_late_request_has_waited() {
    let spec = node(Model::Nvme);
    let node = spec.start(&Options::default(), 4 * MIB).unwrap();
    let run = Run::new(Rc::clone(&node.volume), Rc::clone(&node.runtime), &Options::default());
    let requests = [0, 100_000_000].map(|at_ns| Ok::<_, Infallible>(request(at_ns, Op::Write, 0, 4096)));
    let mut load = OpenLoop::new(requests.into_iter(), 10);
    node.sim.block_on(async {
        load.play(&run, |_| false).await.unwrap();
        run.sleep(Duration::from_secs(1)).await;
        load.play(&run, |_| true).await.unwrap();
        run.finished().await;
    });
    let longest_ns = run.tally.borrow().writes.response().unwrap().max_ns;
    assert!((900_000_000..1_000_000_000).contains(&longest_ns), "{longest_ns} ns");
}

/// What is under way at the end of a window is answered in the next, and the trace goes on where it was.
#[test]
fn a_session_goes_on_from_window_to_window_and_over_a_rebuild() {
    let disks = vec![disk("fast0", DiskClass::Fast, Model::Nvme), disk("slow0", DiskClass::Slow, Model::SataSsd)];
    let slow = (1..3).map(|number| disk(&format!("slow{number}"), DiskClass::Slow, Model::SataSsd));
    let spec = NodeSpec { disks: disks.into_iter().chain(slow).collect(), ..node(Model::SataSsd) };
    let reads = (0..100_000).map(|at| Ok::<_, Infallible>(request(at * 100_000, Op::Read, at % 2048 * 4096, 4096)));
    let mut session = crate::Session::start(&spec, &Options::default(), 8 * MIB, reads).unwrap();
    let windows = [100, 50, 1].map(|requests| session.play(requests, |_| {}).unwrap());
    let counts = windows.each_ref().map(|window| window.read.map_or(0, |read| read.count) + window.errors);
    assert!(counts.iter().sum::<u64>() + windows[2].in_flight_max >= 151, "{counts:?}");
    assert_eq!(windows[1].elapsed_ns, 50 * 100_000, "one every 0.1 ms");
    assert!(windows[0].disks.iter().all(|disk| disk.writes == 0), "what fills the volume is not counted");

    let rebuild = session.play_rebuild(1, &disk("spare", DiskClass::Slow, Model::SataSsd)).unwrap();
    // While the disks of the pool change, too, requests are issued at their times.
    let answered = rebuild.read.unwrap().count;
    assert!(answered.abs_diff(rebuild.elapsed_ns / 100_000) <= 20, "{answered} in {} ns", rebuild.elapsed_ns);
    let spare = rebuild.disks.iter().find(|disk| disk.name == "spare").unwrap();
    assert!(!rebuild.trace_ended && rebuild.errors == 0, "{:?}", rebuild.first_error);
    assert!(spare.written_bytes >= 2 * MIB, "{} bytes on the spare", spare.written_bytes);
    let rest = session.play(u64::MAX, |_| {}).unwrap();
    assert!(rest.trace_ended && rest.errors == 0);
    assert!(rest.disks.iter().any(|disk| disk.name == "slow0" && disk.reads == 0), "the disk that failed is not read");
}

/// A policy with nothing to look at does not wake: a year without requests costs no more than a second.
#[test]
fn idle_time_costs_nothing_under_a_tiering_policy() {
    let day_ns = 86_400_000_000_000;
    for policy in ["worth", "otf-ast"] {
        let tier =
            crate::NodeTier { settings: kura_controller::TierSettings::named(policy).unwrap(), single_disk: None };
        let spec = NodeSpec { tier: Some(tier), disk_timeout_s: 30, ..node(Model::Hdd7200) };
        // What draws enough to come up, and again after each of some long rests.
        let reads = (0..4000_u64).map(|at| {
            let at_ns = at % 1000 * 50_000_000 + at / 1000 * 90 * day_ns;
            request(at_ns, Op::Read, at % 64 * 4096, 4096)
        });
        let reads: Vec<Request> = reads.collect();
        let begun = std::time::Instant::now();
        let summary = run(&spec, &Options::default(), &reads).unwrap();
        let tier = summary.tier.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "{policy}: {:?}", begun.elapsed());
        assert_eq!((tier.reads, summary.elapsed_ns / day_ns), (4000, 270), "{policy}");
        assert!(policy != "worth" || tier.fast_reads > 3000, "{policy}: {tier:?}");
    }
}
