//! The figures of traces whose answer is known.

use proptest::prelude::*;

use super::regions::RegionCounter;
use super::{Anatomy, DistanceShare, Frequency, GridCell, Scope};
use crate::{Op, Request};

const SECOND_NS: u64 = 1_000_000_000;
const PAGE: u64 = 4096;

fn request(at_ns: u64, op: Op, offset_bytes: u64, len_bytes: u32) -> Request {
    Request { at_ns, op, offset_bytes, len_bytes, response_ns: 0 }
}

fn anatomy(requests: &[Request]) -> Anatomy {
    Anatomy::of(requests.iter().copied().map(Ok), &Scope::default()).expect("nothing to refuse")
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found} instead of {expected}");
}

#[test]
fn counts_and_shares() {
    let mut answered = request(SECOND_NS, Op::Write, 512, 1024);
    answered.response_ns = 700;
    let found = anatomy(&[
        request(0, Op::Read, 0, 4096),
        answered,
        request(2 * SECOND_NS, Op::Write, 8192, 8192),
        request(2 * SECOND_NS, Op::Write, 100, 100),
        request(3 * SECOND_NS, Op::Discard, 1 << 40, 1 << 20),
        request(4 * SECOND_NS, Op::Flush, 0, 0),
    ]);
    assert_eq!((found.requests, found.reads, found.writes, found.discards, found.flushes), (6, 1, 3, 1, 1));
    assert_eq!((found.span_ns, found.read_bytes, found.written_bytes), (4 * SECOND_NS, 4096, 9316));
    near(found.read_share, 0.25);
    near(found.read_bytes_share, 4096.0 / 13412.0);
    near(found.aligned_512_share, 0.75);
    near(found.aligned_4096_share, 0.5);
    // A discard is only counted.
    assert_eq!((found.address_span_bytes, found.capacity_bytes), (16384, 16384));
    // The first page, and the third and fourth.
    assert_eq!((found.footprint_bytes, found.footprint_block_bytes), (3 * PAGE, PAGE));
    assert_eq!((found.responses, found.response_ns.unwrap().p50), (1, 700));
    let sizes = found.write_size_bytes.unwrap();
    assert_eq!((sizes.p50, sizes.p90, sizes.max), (1024, 8192, 8192));
    near(sizes.mean, 9316.0 / 3.0);
    near(found.read_size_bytes.unwrap().mean, 4096.0);
    near(found.interarrival_ns.unwrap().mean, 0.8e9);
}

#[test]
fn the_largest_is_told_to_the_digit() {
    let found = anatomy(&[request(0, Op::Read, 0, 1_000_001), request(1_234_567_891, Op::Read, 0, 512)]);
    let (gaps, sizes) = (found.interarrival_ns.unwrap(), found.read_size_bytes.unwrap());
    assert_eq!((gaps.max, sizes.max), (1_234_567_891, 1_000_001));
    assert!(gaps.p99 <= gaps.max && sizes.p99 <= sizes.max);
}

#[test]
fn of_nothing_there_is_nothing_to_tell() {
    let told = anatomy(&[request(0, Op::Write, 0, 4096)]).to_string();
    assert!(told.contains("write size     mean 4 KiB"), "{told}");
    for none in ["read size", "inter-arrival", "response"] {
        assert!(!told.contains(none), "{none} in\n{told}");
    }
}

#[test]
fn rates_find_the_busiest_slots() {
    let minute = 60 * SECOND_NS;
    let mut requests = Vec::new();
    // One a minute for an hour and 40 minutes; in three slots of ten minutes, 50 more at once.
    for index in 0..100 {
        requests.push(request(index * minute, Op::Read, 0, 512));
        if [15, 55, 99].contains(&index) {
            requests.extend((0..50).map(|_| request(index * minute, Op::Read, 0, 512)));
        }
    }
    let found = anatomy(&requests).rates;
    near(found.mean_per_s, 250.0 / (99.0 * 60.0));
    near(found.peak_second_per_s.unwrap(), 51.0);
    near(found.peak_minute_per_s.unwrap(), 51.0 / 60.0);
    near(found.busiest_three_10min_share.unwrap(), 180.0 / 250.0);
}

#[test]
fn random_arrivals_have_a_variation_of_one_and_regular_ones_of_none() {
    let regular: Vec<_> = (0..1000).map(|index| request(index * 2000, Op::Read, 0, 512)).collect();
    let found = anatomy(&regular);
    assert!(found.interarrival_cv < 1e-9 && found.interarrival_ns.unwrap().p50 == 2000);
    let mut at_ns = 0.0;
    let random: Vec<_> = (0..10_000u32)
        .map(|index| {
            // Every quantile of the exponential distribution once, in an order that does not matter here.
            at_ns += -1e6 * ((f64::from(index) + 0.5) / 10_000.0).ln();
            request(at_ns as u64, Op::Read, 0, 512)
        })
        .collect();
    let found = anatomy(&random).interarrival_cv;
    assert!((found - 1.0).abs() < 0.02, "{found}");
}

#[test]
fn concentration_is_by_region_of_the_capacity() {
    const GIB: u64 = 1 << 30;
    // 200 regions: 60 of 100 requests in one, 30 in the next, 10 far away.
    let to = |region: u64, count: u64| (0..count).map(move |_| request(0, Op::Read, region * GIB, 4096));
    let requests: Vec<_> = to(0, 60).chain(to(1, 30)).chain(to(199, 10)).collect();
    let scope = Scope { capacity_bytes: Some(200 * GIB), ..Scope::default() };
    let found = Anatomy::of(requests.into_iter().map(Ok), &scope).expect("nothing to refuse");
    let [coarse, fine] = found.concentration[..] else { panic!("two grains") };
    assert_eq!((coarse.region_bytes, coarse.regions, coarse.touched), (GIB, 200, 3));
    near(coarse.busiest_1_percent_share.unwrap(), 0.9);
    near(coarse.busiest_10_percent_share, 1.0);
    assert_eq!((fine.region_bytes, fine.regions, fine.touched), (1 << 20, 200 << 10, 3));
}

#[test]
fn many_regions_are_merged() {
    let mut regions = RegionCounter::with_most_regions(8);
    (0..64).for_each(|region| regions.take(region << 20));
    let fine = regions.end(64 << 20)[1];
    assert_eq!((fine.region_bytes, fine.regions, fine.touched), (8 << 20, 8, 8));
    near(fine.busiest_10_percent_share, 1.0 / 8.0);
}

#[test]
fn interleaved_streams_are_sequential() {
    let requests: Vec<_> =
        (0..40u64).map(|index| request(index, Op::Read, ((index % 4) << 30) + index / 4 * PAGE, 4096)).collect();
    near(anatomy(&requests).sequential_share, 36.0 / 40.0);
    // A write that follows a read is no stream.
    let mixed = [request(0, Op::Read, 0, 4096), request(1, Op::Write, PAGE, 4096)];
    near(anatomy(&mixed).sequential_share, 0.0);
}

#[test]
fn places_grow_with_the_trace_and_lose_nothing() {
    let days = 7 * 24 * 3600;
    let requests: Vec<_> =
        (0..1000u64).map(|index| request(index * days * SECOND_NS / 1000, Op::Read, index << 28, 512)).collect();
    let places = anatomy(&requests).places;
    let cells: Vec<GridCell> = places.cells().collect();
    assert_eq!(cells.iter().map(|cell| cell.reads + cell.writes).sum::<u64>(), 1000);
    assert!(cells.len() > 128 && cells.len() <= 512, "{} cells on the diagonal", cells.len());
    assert!(cells.iter().all(|cell| cell.at_ns / places.cell_ns < 256 && cell.offset_bytes / places.cell_bytes < 256));
    assert!(cells.last().is_some_and(|last| last.at_ns + places.cell_ns > requests[999].at_ns));
}

/// Reads and writes of single blocks.
fn accesses(list: &[(Op, u64)]) -> Vec<Request> {
    list.iter().enumerate().map(|(index, (op, block))| request(index as u64, *op, block * PAGE, 4096)).collect()
}

#[test]
fn blocks_by_frequency_and_the_distance_from_read_to_write() {
    let requests = accesses(&[
        (Op::Read, 1),
        (Op::Write, 1), // none between
        (Op::Read, 2),
        (Op::Read, 3),
        (Op::Write, 2), // one between
        (Op::Write, 1), // two between
        (Op::Write, 9), // never read
    ]);
    let found = anatomy(&requests);
    let frequency = |reads, writes, blocks| Frequency { reads, writes, blocks };
    assert_eq!(found.frequencies, [frequency(0, 1, 1), frequency(1, 0, 1), frequency(1, 1, 1), frequency(1, 2, 1)]);
    let distance = found.read_to_write;
    assert_eq!((distance.accesses, distance.writes, distance.writes_after_read), (7, 4, 3));
    let point = |reads_between, share| DistanceShare { reads_between, share };
    assert_eq!(distance.distances, [point(0, 1.0 / 3.0), point(1, 2.0 / 3.0), point(2, 1.0)]);
}

#[test]
fn blocks_are_told_of_the_first_accesses_only() {
    let requests = [request(0, Op::Read, 0, 8192), request(1, Op::Write, 0, 8192)];
    let scope = Scope { frequency_accesses: 3, distance_accesses: 2, block_bytes: 4096, capacity_bytes: None };
    let found = Anatomy::of(requests.into_iter().map(Ok), &scope).expect("nothing to refuse");
    let frequency = |reads, writes, blocks| Frequency { reads, writes, blocks };
    assert_eq!(found.frequencies, [frequency(1, 0, 1), frequency(1, 1, 1)]);
    assert_eq!((found.read_to_write.accesses, found.read_to_write.writes), (2, 0));
}

#[test]
fn the_report_is_short_and_the_fields_are_stable() {
    let found = anatomy(&accesses(&[(Op::Read, 1), (Op::Write, 1)]));
    let report = found.to_string();
    assert!((14..=22).contains(&report.lines().count()), "{report}");
    let json = serde_json::to_value(&found).expect("plain data");
    assert_eq!(json["read_share"], 0.5);
    assert_eq!(json["concentration"][0]["region_bytes"], 1 << 30);
    for (found, field) in [
        (&json["concentration"][0], "busiest_1_percent_share"),
        (&json["rates"], "peak_second_per_s"),
        (&json["rates"], "peak_minute_per_s"),
        (&json["rates"], "busiest_three_10min_share"),
    ] {
        assert!(found.get(field).is_none(), "{field} of so little misleads: {found}");
    }
    assert!(!report.contains("NaN") && !report.contains("peak") && !report.contains("1 %"), "{report}");
    assert_eq!(json["places"]["cells"][0]["offset_bytes"], 4096);
    assert_eq!(json["read_to_write"]["distances"][0]["reads_between"], 0);
}

proptest! {
    #[test]
    fn any_requests_have_an_anatomy(
        list in prop::collection::vec((any::<u64>(), 0..4usize, 0..1u64 << 62, 1..u32::MAX), 0..20),
    ) {
        let mut times: Vec<u64> = list.iter().map(|(at_ns, ..)| *at_ns).collect();
        times.sort_unstable();
        let requests = list.iter().zip(times).map(|((_, op, offset, len), at_ns)| {
            let op = [Op::Read, Op::Write, Op::Discard, Op::Flush][*op];
            let (offset, len) = if op == Op::Flush { (0, 0) } else { (*offset, *len) };
            Request { response_ns: at_ns, ..request(at_ns, op, offset, len) }
        });
        let scope = Scope { frequency_accesses: 1000, distance_accesses: 2000, ..Scope::default() };
        let found = Anatomy::of(requests.map(Ok), &scope).expect("nothing to refuse");
        prop_assert_eq!(found.requests, list.len() as u64);
        let sizes = [found.read_size_bytes, found.write_size_bytes];
        prop_assert!(sizes.iter().flatten().all(|sizes| found.footprint_bytes >= sizes.max));
        prop_assert!(found.to_string().lines().count() <= 22);
    }
}
