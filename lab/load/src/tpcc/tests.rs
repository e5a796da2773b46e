//! What Mogi and Kitsuregawa describe, measured on the requests.

use crate::tests::{read_share, take};
use kura_trace::{Op, Request};
use std::collections::BTreeMap;

use super::tables::Tables;

const ACCESSES: &str = "requests=1000000,seed=6";
const CACHE_PAGES: u64 = (56 << 20) / 2048;

fn without_checkpoints() -> Vec<Request> {
    take(&format!("tpcc-like,{ACCESSES}"))
}

fn with_checkpoints() -> Vec<Request> {
    take(&format!("tpcc-like,checkpoint=12,{ACCESSES}"))
}

fn page(request: &Request) -> u32 {
    (request.offset_bytes / 2048) as u32
}

#[test]
fn accesses_are_of_a_page() {
    assert!(without_checkpoints().iter().all(|request| request.len_bytes == 2048 && request.offset_bytes % 2048 == 0));
}

/// Fig. 2: History, Order and Order-Line, by far the largest part, draw few accesses, and these in narrow places.
#[test]
fn hot_and_cold_areas_are_apart() {
    let tables = Tables::new(14, 2048);
    let cold = [tables.history.range(), tables.order.range(), tables.order_line.range()];
    let is_cold = |page: u32| cold.iter().any(|range| range.contains(&page));
    let room: usize = cold.iter().map(ExactSizeIterator::len).sum();
    assert!(room as f64 / f64::from(tables.pages()) > 0.85);
    for requests in [without_checkpoints(), with_checkpoints()] {
        let (there, mut touched) = (requests.iter().filter(|request| is_cold(page(request))).count(), Vec::new());
        assert!((there as f64 / requests.len() as f64) < 0.30, "{there} of a million accesses in the cold area");
        touched.extend(requests.iter().map(page).filter(|page| is_cold(*page)));
        touched.sort_unstable();
        touched.dedup();
        assert!((touched.len() as f64 / room as f64) < 0.05, "{} of {room} pages there are touched", touched.len());
    }
}

/// Reads and writes of each page.
fn frequencies(requests: &[Request]) -> BTreeMap<u32, (u32, u32)> {
    let mut pages = BTreeMap::new();
    for request in requests {
        let (reads, writes): &mut (u32, u32) = pages.entry(page(request)).or_default();
        *if request.op == Op::Read { reads } else { writes } += 1;
    }
    pages
}

/// Fig. 3: of all classes of pages, that of one read and one write draws most accesses; many are read and written
/// several times; of indexes and items many are only read.
#[test]
fn most_pages_are_read_and_written_once_or_a_few_times() {
    let tables = Tables::new(14, 2048);
    let pages = frequencies(&without_checkpoints());
    let mut classes: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for (reads, writes) in pages.values() {
        *classes.entry((*reads, *writes)).or_default() += u64::from(reads + writes);
    }
    let largest = classes.iter().max_by_key(|(_, accesses)| **accesses).map(|(class, _)| *class);
    assert_eq!(largest, Some((1, 1)));
    let several = |(reads, writes): &(u32, u32)| (2..=20).contains(reads) && (2..=20).contains(writes);
    let several: u64 = classes.iter().filter(|(class, _)| several(class)).map(|(_, accesses)| accesses).sum();
    assert!(several > 200_000, "{several} accesses to pages read and written a few times");
    let only_read = |range: std::ops::Range<u32>| {
        let of: Vec<_> = pages.range(range).collect();
        of.iter().filter(|(_, (_, writes))| *writes == 0).count() as f64 / of.len() as f64
    };
    assert!(
        (only_read(tables.item.range()) - 1.0).abs() < 1e-9
            && (only_read(tables.customer_index.range()) - 1.0).abs() < 1e-9
    );
    assert!(only_read(tables.stock.range()) < 0.4, "{}", only_read(tables.stock.range()));
}

/// For every write, how many reads ago the same page was read, if it was.
fn distances(requests: &[Request]) -> Vec<u64> {
    let (mut reads, mut last_read) = (0, BTreeMap::new());
    let mut distances = Vec::new();
    for request in requests {
        if request.op == Op::Read {
            reads += 1;
            last_read.insert(page(request), reads);
        } else if let Some(read) = last_read.get(&page(request)) {
            distances.push(reads - read);
        }
    }
    distances.sort_unstable();
    distances
}

fn share_within(distances: &[u64], range: std::ops::Range<u64>) -> f64 {
    distances.iter().filter(|distance| range.contains(distance)).count() as f64 / distances.len() as f64
}

/// Fig. 4: a page that nobody asks for again leaves after one turn of the cache; checkpoints write many before.
#[test]
fn the_distance_from_read_to_write_is_a_turn_of_the_cache_unless_there_are_checkpoints() {
    let (without, with) = (distances(&without_checkpoints()[500_000..]), distances(&with_checkpoints()[500_000..]));
    // In reads a turn is less than the cache has pages: what is used again passes what waits.
    let turn = without[without.len() / 3];
    assert!((CACHE_PAGES / 2..CACHE_PAGES).contains(&turn), "{turn} of {CACHE_PAGES}");
    let rise = turn * 9 / 10..turn * 11 / 10;
    assert!(share_within(&without, 0..rise.start) < 0.02, "{}", share_within(&without, 0..rise.start));
    assert!(share_within(&without, rise.clone()) > 0.5, "{}", share_within(&without, rise));
    assert!(share_within(&with, 0..rise.start) > 0.2, "{}", share_within(&with, 0..rise.start));
}

/// Writes are even in time without checkpoints, and come in waves with them, which leave times without any.
#[test]
fn checkpoints_make_waves() {
    let by_minute = |requests: &[Request]| {
        let mut minutes = vec![(0u32, 0u32); 1 + (requests[requests.len() - 1].at_ns / 60_000_000_000) as usize];
        for request in requests {
            let (writes, all) = &mut minutes[(request.at_ns / 60_000_000_000) as usize];
            *writes += u32::from(request.op == Op::Write);
            *all += 1;
        }
        minutes.pop();
        minutes.iter().map(|(writes, all)| f64::from(*writes) / f64::from(*all)).collect::<Vec<f64>>()
    };
    let (without, with) = (by_minute(&without_checkpoints()), by_minute(&with_checkpoints()));
    assert!(without.iter().all(|share| (0.2..0.6).contains(share)), "{without:?}");
    assert!(
        with.iter().any(|share| *share > 0.7) && with.iter().filter(|share| **share < 0.1).count() > 10,
        "{with:?}"
    );
    // The waves are twelve minutes apart.
    let crests: Vec<usize> = (1..with.len()).filter(|minute| with[*minute] > 0.6 && with[minute - 1] <= 0.6).collect();
    assert!(crests.len() > 5 && crests.iter().all(|minute| minute % 12 <= 1), "{crests:?}");
}

/// Pages that would stay for ever are written by checkpoints only.
#[test]
fn what_is_always_in_use_is_written_by_checkpoints_only() {
    let tables = Tables::new(14, 2048);
    let written = |requests: &[Request]| {
        requests
            .iter()
            .filter(|request| request.op == Op::Write && tables.district.range().contains(&page(request)))
            .count()
    };
    assert_eq!(written(&without_checkpoints()), 0);
    assert!(written(&with_checkpoints()) > 20);
}

#[test]
fn a_larger_page_and_other_scales_hold_the_same() {
    for text in ["tpcc-like,warehouses=1,block=8K,cache=4M", "tpcc-like,warehouses=100,block=4K,cache=400M"] {
        let requests = take(&format!("{text},requests=200000"));
        assert!((0.5..0.8).contains(&read_share(&requests)), "{text} reads {}", read_share(&requests));
    }
}
