//! Moving concentrations: the load of shared file storage.
//!
//! A small part of the capacity draws most of the requests for minutes to tens of minutes; then the concentration
//! moves. While it lasts it creeps: what is asked for is a narrow window, which slides through neighbours that
//! were quiet before.
//!
//! ```text
//!  place                                 |-- window -->            one life of 10 min in the median
//!    |.....................|#############~~~~~~~~~~~~~|.........|  span: 6 GiB on average
//!    0                                                        size
//! ```
//!
//! The figures are those reported for half a year of a Samba server: 81 % of the requests in 1 % of the capacity, 83 %
//! of concentrations last 3 min or more and half of them 10 min or more, 70 % come up somewhere new, spans of 6 GB on
//! average and 90 % of them within 12 GB. Not reported, and so choices of ours: the rates, the size of a request, how
//! often a place is asked for again, and that spans and lives follow log-normal laws.

use crate::arrivals::{Arrivals, Clock};
use crate::chance::{self, coin, stride};
use crate::params::{Invalid, Params};
use kura_trace::{Op, Request};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use std::collections::VecDeque;

/// Log-normal: the 17th percentile at 3 min and the median at 10 min.
const LIFE_MEDIAN_S: f64 = 600.0;
const LIFE_SIGMA: f64 = 1.2618;
/// Tens of minutes are not hours.
const LIFE_MOST_S: f64 = 3600.0;
/// Log-normal: the 90th percentile at twice the mean.
const SPAN_SIGMA: f64 = 0.7754;
/// A run of neighbouring requests ends at multiples of this.
const RUN_BYTES: u64 = 1 << 20;
/// A place that is asked for again is one of this many last ones of its concentration.
const RECENT: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) struct Concentrations {
    size_bytes: u64,
    block_bytes: u64,
    reads: f64,
    share: f64,
    at_once: u64,
    window_bytes: u64,
    span_bytes: u64,
    returning: f64,
    again: f64,
    arrivals: Arrivals,
}

impl Concentrations {
    pub(crate) fn general(params: &mut Params) -> Result<Self, Invalid> {
        Self::from_params(params, 0.5, 0.2)
    }

    /// 11 % reads; places are seldom asked for again (an LRU cache of 8 % of the capacity hit 7 % of the real one).
    pub(crate) fn src1_0_like(params: &mut Params) -> Result<Self, Invalid> {
        Self::from_params(params, 0.11, 0.05)
    }

    /// 99 % reads; places are often asked for again (such a cache hit 37 % of the real one).
    pub(crate) fn src1_1_like(params: &mut Params) -> Result<Self, Invalid> {
        Self::from_params(params, 0.99, 0.40)
    }

    fn from_params(params: &mut Params, reads: f64, again: f64) -> Result<Self, Invalid> {
        let share = 0.0..=1.0;
        let size_bytes = params.size("size", 293 << 30, (1 << 30)..=(1 << 50), "bytes of the range they fall in")?;
        let block_bytes = params.size("block", 8 << 10, 512..=RUN_BYTES, "bytes of a request")?;
        let reads = params.number("reads", reads, share.clone(), "share of reads")?;
        let span = (6 << 30).min(size_bytes / 32);
        // Under 1 %: room for the creeping within the minute in which one counts.
        let window = params.number("window", 0.006, 1e-4..=0.5, "their windows together, as a share of the size")?;
        Ok(Self {
            size_bytes,
            block_bytes,
            reads,
            share: params.number("share", 0.81, share.clone(), "share of requests that go to the concentrations")?,
            at_once: params.count("at_once", 1, 1..=64, "concentrations at any time")?,
            window_bytes: (window * size_bytes as f64) as u64,
            span_bytes: params.size(
                "span",
                span,
                RUN_BYTES..=size_bytes / 32,
                "bytes one creeps through, on average",
            )?,
            returning: params.number("returning", 0.3, share.clone(), "share that comes up where one was of late")?,
            again: params.number(
                "again",
                again,
                share,
                "share of a concentration's requests for a place of just now",
            )?,
            arrivals: Arrivals::from_params(params, 200.0)?,
        })
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(crate) fn requests(&self, seed: u64) -> impl Iterator<Item = Request> + Send + use<> {
        let mut schedule = Schedule::new(self, chance::stream(seed, "concentrations"));
        let spots = (0..self.at_once).map(|_| schedule.next(0)).collect();
        Moving {
            clock: self.arrivals.clock(seed),
            ops: chance::stream(seed, "operations"),
            places: chance::stream(seed, "places"),
            load: self.clone(),
            schedule,
            spots,
        }
    }
}

/// Decides where concentrations come up, how far they reach and how long they last.
struct Schedule {
    size_bytes: u64,
    window_runs: u64,
    span_bytes: u64,
    returning: f64,
    rng: ChaCha8Rng,
    /// Beginnings and spans of the last ones: as many as cover a quarter of the range, so that there is a new place.
    past: VecDeque<(u64, u64)>,
    remembered: usize,
}

impl Schedule {
    fn new(load: &Concentrations, rng: ChaCha8Rng) -> Self {
        Self {
            size_bytes: load.size_bytes,
            window_runs: (load.window_bytes / load.at_once / RUN_BYTES).max(1),
            span_bytes: load.span_bytes,
            returning: load.returning,
            rng,
            past: VecDeque::new(),
            remembered: (load.size_bytes / 4 / load.span_bytes) as usize,
        }
    }

    fn next(&mut self, now_ns: u64) -> Spot {
        let mean = self.span_bytes as f64;
        let spread = self.log_normal(SPAN_SIGMA) * (-SPAN_SIGMA * SPAN_SIGMA / 2.0).exp();
        let span = ((mean * spread) as u64).clamp(RUN_BYTES, self.size_bytes / 4);
        let life_s = (LIFE_MEDIAN_S * self.log_normal(LIFE_SIGMA)).clamp(1.0, LIFE_MOST_S);
        let start = self.place(span);
        let runs = self.window_runs.min(span / RUN_BYTES);
        if self.past.len() == self.remembered {
            self.past.pop_front();
        }
        self.past.push_back((start, span));
        Spot {
            start,
            creep_runs: span / RUN_BYTES - runs,
            runs,
            stride: stride(runs),
            began_ns: now_ns,
            life_ns: (life_s * 1e9) as u64,
            visit: self.rng.random_range(0..runs),
            next: 0,
            run_end: 0,
            recent: Vec::with_capacity(RECENT),
            oldest: 0,
        }
    }

    fn place(&mut self, span: u64) -> u64 {
        let last = self.size_bytes - span;
        if !self.past.is_empty() && coin(&mut self.rng, self.returning) {
            return self.past[self.rng.random_range(0..self.past.len())].0.min(last);
        }
        let is_new =
            |start: u64| self.past.iter().all(|(other, span_)| start + span <= *other || other + span_ <= start);
        // There is room for most spans; the rare one that is too long for it comes up in the middle.
        let mut draws = (0..64).map(|_| self.rng.random_range(0..=last));
        draws.find(|start| is_new(*start)).unwrap_or(last / 2) / RUN_BYTES * RUN_BYTES
    }

    fn log_normal(&mut self, sigma: f64) -> f64 {
        let normal: f64 = StandardNormal.sample(&mut self.rng);
        (sigma * normal).exp()
    }
}

/// A concentration while it lasts.
struct Spot {
    start: u64,
    /// Runs in its window, and by how many the window creeps in its life.
    runs: u64,
    creep_runs: u64,
    began_ns: u64,
    life_ns: u64,
    visit: u64,
    stride: u64,
    /// The present run of neighbouring requests.
    next: u64,
    run_end: u64,
    /// The last places, a ring.
    recent: Vec<u64>,
    oldest: usize,
}

impl Spot {
    fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.began_ns + self.life_ns
    }

    /// A place of just now.
    fn again(&self, rng: &mut ChaCha8Rng) -> Option<u64> {
        (!self.recent.is_empty()).then(|| self.recent[rng.random_range(0..self.recent.len())])
    }

    /// The next place of the run, or the first of a run elsewhere in the window.
    fn onwards(&mut self, now_ns: u64, block_bytes: u64) -> u64 {
        if self.next + block_bytes > self.run_end {
            // The window is a ring on which the creeping replaces the last run by a new first one: going round it, one
            // is slow to come by the same place again.
            self.visit = (self.visit + self.stride) % self.runs;
            let crept = ((now_ns - self.began_ns) as f64 / self.life_ns as f64 * self.creep_runs as f64) as u64;
            let ahead = (self.visit + self.runs - crept % self.runs) % self.runs;
            self.next = self.start + (crept + ahead) * RUN_BYTES;
            self.run_end = self.next + RUN_BYTES;
        }
        let place = self.next;
        self.next += block_bytes;
        if self.recent.len() < RECENT {
            self.recent.push(place);
        } else {
            self.recent[self.oldest] = place;
            self.oldest = (self.oldest + 1) % RECENT;
        }
        place
    }
}

struct Moving {
    load: Concentrations,
    clock: Clock,
    ops: ChaCha8Rng,
    places: ChaCha8Rng,
    schedule: Schedule,
    spots: Vec<Spot>,
}

impl Moving {
    fn place(&mut self, now_ns: u64) -> u64 {
        let block_bytes = self.load.block_bytes;
        if !coin(&mut self.places, self.load.share) {
            return self.places.random_range(0..self.load.size_bytes / block_bytes) * block_bytes;
        }
        let spot = &mut self.spots[self.places.random_range(0..self.load.at_once as usize)];
        if spot.is_over(now_ns) {
            *spot = self.schedule.next(now_ns);
        }
        let again = coin(&mut self.places, self.load.again);
        let place = if again { spot.again(&mut self.places) } else { None };
        place.unwrap_or_else(|| spot.onwards(now_ns, block_bytes)).min(self.load.size_bytes - block_bytes)
    }
}

impl Iterator for Moving {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let at_ns = self.clock.tick();
        Some(Request {
            at_ns,
            op: if coin(&mut self.ops, self.load.reads) { Op::Read } else { Op::Write },
            offset_bytes: self.place(at_ns),
            len_bytes: self.load.block_bytes as u32,
            response_ns: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{read_share, take};
    use kura_trace::Request;
    use std::collections::{BTreeMap, HashSet};

    const GIB: u64 = 1 << 30;

    /// Counts by region of a GiB, minute by minute.
    fn minutes(requests: &[Request]) -> Vec<BTreeMap<u64, u64>> {
        let mut minutes = Vec::new();
        for request in requests {
            let minute = (request.at_ns / 60_000_000_000) as usize;
            minutes.resize_with(minutes.len().max(minute + 1), BTreeMap::new);
            *minutes[minute].entry(request.offset_bytes / GIB).or_default() += 1;
        }
        minutes
    }

    #[test]
    fn presets_read_and_last_as_the_paper_says() {
        for (name, reads, seconds) in [("src1_0-like", 0.11, 6000), ("src1_1-like", 0.99, 7200)] {
            let requests = take(name);
            assert!((read_share(&requests) - reads).abs() < 0.005, "{name} reads {}", read_share(&requests));
            let last = requests[requests.len() - 1];
            assert!(last.at_ns.abs_diff(seconds * 1_000_000_000) < 1_000_000_000);
            let furthest = requests.iter().map(Request::end_bytes).max().unwrap();
            assert!(furthest <= 293 * GIB && furthest > 290 * GIB);
        }
    }

    #[test]
    fn in_any_minute_a_hundredth_of_the_capacity_draws_four_fifths() {
        for name in ["src1_0-like", "src1_1-like"] {
            // 1 % of 293 regions: the three most asked for.
            let shares: Vec<f64> = minutes(&take(name))
                .iter()
                .map(|regions| {
                    let mut counts: Vec<u64> = regions.values().copied().collect();
                    counts.sort_unstable_by(|a, b| b.cmp(a));
                    counts.iter().take(3).sum::<u64>() as f64 / counts.iter().sum::<u64>() as f64
                })
                .collect();
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            assert!((0.78..0.85).contains(&mean), "{name}: {mean}");
        }
    }

    /// A concentration as it shows in requests.
    struct Seen {
        start: u64,
        end: u64,
        life_s: f64,
    }

    /// The concentrations of a load that consists of nothing else, one at a time: a new one is where a request is
    /// more than a window away from the last one's window.
    fn seen(text: &str) -> Vec<Seen> {
        let window = (0.006 * 293.0 * GIB as f64) as u64;
        let mut seen: Vec<Seen> = Vec::new();
        let mut began = 0;
        let mut front = 0u64;
        for request in take(text) {
            let (at, place) = (request.at_ns, request.offset_bytes);
            let goes_on = !seen.is_empty() && place + window + (64 << 20) > front && place < front + window;
            if goes_on {
                let last = seen.last_mut().unwrap();
                *last =
                    Seen { start: last.start.min(place), end: last.end.max(place), life_s: (at - began) as f64 / 1e9 };
                front = front.max(place);
            } else {
                seen.push(Seen { start: place, end: place, life_s: 0.0 });
                (began, front) = (at, place);
            }
        }
        seen
    }

    #[test]
    fn concentrations_last_reach_and_move_as_told() {
        // Some hundred days with few requests, none of which is the neighbour of the one before.
        let seen = seen("src1_0-like,share=1,again=0,block=1M,rate=2,seconds=5000000,seed=2");
        let of = |property: &dyn Fn(&Seen) -> bool| {
            seen.iter().filter(|one| property(one)).count() as f64 / seen.len() as f64
        };
        assert!(seen.len() > 3000, "{} concentrations", seen.len());
        let (short, long) = (of(&|one| one.life_s >= 180.0), of(&|one| one.life_s >= 600.0));
        assert!((short - 0.83).abs() < 0.03, "{short} last three minutes");
        assert!((long - 0.50).abs() < 0.03, "{long} last ten minutes");
        let mean_gib =
            seen.iter().map(|one| (one.end - one.start) as f64).sum::<f64>() / GIB as f64 / seen.len() as f64;
        assert!((mean_gib - 6.0).abs() < 0.5, "they span {mean_gib} GiB");
        let within = of(&|one| one.end - one.start <= 12 * GIB);
        assert!((within - 0.90).abs() < 0.02, "{within} span 12 GiB at most");
        // Nowhere near where any of the last twelve was.
        let overlaps = |one: &Seen, other: &Seen| one.start < other.end && other.start < one.end;
        let new = seen.windows(13).filter(|last| last[..12].iter().all(|other| !overlaps(&last[12], other))).count();
        let new = new as f64 / (seen.len() - 12) as f64;
        assert!((new - 0.70).abs() < 0.03, "{new} come up somewhere new");
    }

    #[test]
    fn places_are_asked_for_again_as_told() {
        for (name, told) in [("src1_0-like", 0.05), ("src1_1-like", 0.40)] {
            let mut before = HashSet::new();
            let requests = take(&format!("{name},share=1"));
            let again = requests.iter().filter(|request| !before.insert(request.offset_bytes)).count();
            let again = again as f64 / requests.len() as f64;
            // Besides, a concentration may come by the same place in its own time.
            assert!(again > told - 0.01 && again < told + 0.15, "{name}: {again} asked for again");
        }
    }
}
