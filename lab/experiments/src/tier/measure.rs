//! What is measured of a driver while it serves.

use kura_trace::Request;
use serde::{Deserialize, Serialize};

/// Nanoseconds of a minute.
pub const MINUTE_NS: u64 = 60_000_000_000;
/// Points of a distribution of responses, a decade: 10 us to 1 s, as the paper draws them.
const A_DECADE: i32 = 10;
const LEAST_US: f64 = 10.0;
const DECADES: i32 = 5;
/// The paper's second mean leaves out what took longer.
const SHORT_NS: u64 = 100_000_000;

/// How a request was served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// By the fast tier, for what it asks lies there.
    pub fast: bool,
    /// By the temporary buffer.
    pub buffer: bool,
    /// The slow tier was waited for.
    pub slow: bool,
    /// A write to what was dirty already.
    pub dirty_hit: bool,
}

/// A minute of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Minute {
    /// Requests that arrived in it.
    pub requests: u64,
    /// Of these, served by the fast tier.
    pub fast: u64,
    /// Of these, those for which the slow tier was not waited for.
    pub not_slow: u64,
    /// Their responses, summed, in milliseconds.
    pub response_ms: f64,
    /// Bytes on the fast tier at its end.
    pub placed_bytes: u64,
}

impl Minute {
    /// Several of them, one after the other, as one.
    pub fn sum(minutes: &[Self]) -> Self {
        minutes.iter().fold(Self::default(), |sum, minute| Self {
            requests: sum.requests + minute.requests,
            fast: sum.fast + minute.fast,
            not_slow: sum.not_slow + minute.not_slow,
            response_ms: sum.response_ms + minute.response_ms,
            placed_bytes: minute.placed_bytes,
        })
    }
}

/// Counts of a run.
#[derive(Default)]
pub struct Tally {
    begun_ns: u64,
    responses_ns: Vec<u64>,
    minutes: Vec<Minute>,
    fast: u64,
    buffer: u64,
    slow: u64,
    dirty_hits: u64,
}

/// What a run comes to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Requests.
    pub requests: u64,
    /// The part of them that the fast tier served, for what they ask lies there.
    pub fast: f64,
    /// The part that the temporary buffer served.
    pub buffer: f64,
    /// The part for which the slow tier was not waited for.
    pub not_slow: f64,
    /// The part that are writes to what was dirty already.
    pub dirty_hits: f64,
    /// Responses in milliseconds.
    pub mean_ms: f64,
    /// See `mean_ms`.
    pub p50_ms: f64,
    /// See `mean_ms`.
    pub p95_ms: f64,
    /// See `mean_ms`.
    pub p99_ms: f64,
    /// Their mean without those above 100 ms.
    pub mean_to_100_ms: f64,
    /// Their mean in the first 20 minutes.
    pub mean_20_min_ms: f64,
    /// Microseconds, and the part of the responses that are no longer.
    pub cdf: Vec<(f64, f64)>,
    /// Minute by minute.
    pub minutes: Vec<Minute>,
    /// Bytes moved to the fast tier, and to the slow one.
    pub up_bytes: u64,
    /// See `up_bytes`.
    pub down_bytes: u64,
    /// The part of the time in which the disks were busy, mean over them.
    pub disks_busy: f64,
}

impl Tally {
    /// Counts for a run that begins now.
    pub fn new(begun_ns: u64) -> Self {
        Self { begun_ns, ..Self::default() }
    }

    fn minute(&mut self, at_ns: u64) -> &mut Minute {
        let index = (at_ns.saturating_sub(self.begun_ns) / MINUTE_NS) as usize;
        if self.minutes.len() <= index {
            self.minutes.resize_with(index + 1, Minute::default);
        }
        &mut self.minutes[index]
    }

    /// A request that arrived at `at_ns` was answered after `response_ns`.
    pub fn note(&mut self, at_ns: u64, served: Served, response_ns: u64) {
        let minute = self.minute(at_ns);
        minute.requests += 1;
        minute.fast += u64::from(served.fast);
        minute.not_slow += u64::from(!served.slow);
        minute.response_ms += response_ns as f64 / 1e6;
        self.responses_ns.push(response_ns);
        self.fast += u64::from(served.fast);
        self.buffer += u64::from(served.buffer);
        self.slow += u64::from(served.slow);
        self.dirty_hits += u64::from(served.dirty_hit);
    }

    /// What lies on the fast tier now.
    pub fn placed(&mut self, at_ns: u64, placed_bytes: u64) {
        self.minute(at_ns).placed_bytes = placed_bytes;
    }

    /// All of it. What moved, and how busy the disks were, is to be filled in.
    pub fn end(mut self) -> Measured {
        self.responses_ns.sort_unstable();
        let all = &self.responses_ns;
        let part = |count: u64| count as f64 / all.len().max(1) as f64;
        let mean = |times: &[u64]| times.iter().map(|ns| *ns as f64).sum::<f64>() / 1e6 / times.len().max(1) as f64;
        let at = |p: f64| {
            all.get(((all.len() as f64 * p).ceil() as usize).saturating_sub(1)).map_or(0.0, |ns| *ns as f64 / 1e6)
        };
        let cdf = (0..=A_DECADE * DECADES).map(|step| {
            let us = LEAST_US * 10_f64.powf(f64::from(step) / f64::from(A_DECADE));
            (us, part(all.partition_point(|ns| *ns as f64 <= us * 1e3) as u64))
        });
        let first = &self.minutes[..self.minutes.len().min(20)];
        let first_requests = first.iter().map(|minute| minute.requests).sum::<u64>().max(1);
        Measured {
            requests: all.len() as u64,
            fast: part(self.fast),
            buffer: part(self.buffer),
            not_slow: 1.0 - part(self.slow),
            dirty_hits: part(self.dirty_hits),
            mean_ms: mean(all),
            p50_ms: at(0.5),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
            mean_to_100_ms: mean(&all[..all.partition_point(|ns| *ns <= SHORT_NS)]),
            mean_20_min_ms: first.iter().map(|minute| minute.response_ms).sum::<f64>() / first_requests as f64,
            cdf: cdf.collect(),
            minutes: self.minutes,
            ..Measured::default()
        }
    }
}

/// The bytes of the volume that a request covers.
pub fn covered(request: &Request) -> std::ops::Range<u64> {
    request.offset_bytes..request.end_bytes()
}
