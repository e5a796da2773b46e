//! What is counted while requests are served.

use crate::summary::Response;
use hdrhistogram::Histogram;
use kura_block::Kind;
use std::collections::BTreeMap;

/// Response times of one kind of request, and what buckets do not have of them: the sum and the longest, to the nanosecond.
pub(crate) struct Times {
    histogram: Histogram<u64>,
    sum_ns: u128,
    max_ns: u64,
    bytes: u64,
}

impl Times {
    /// Nothing yet; three digits of each time are kept.
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are few enough"));
        Self { histogram, sum_ns: 0, max_ns: 0, bytes: 0 }
    }

    pub(crate) fn note(&mut self, response_ns: u64, bytes: u64) {
        // It grows with what it is given; nothing is beyond it.
        let _ = self.histogram.record(response_ns);
        self.sum_ns += u128::from(response_ns);
        self.max_ns = self.max_ns.max(response_ns);
        self.bytes += bytes;
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// `None` where there was no such request.
    pub(crate) fn response(&self) -> Option<Response> {
        let count = self.count();
        let at = |quantile| self.histogram.value_at_quantile(quantile).min(self.max_ns);
        (count > 0).then(|| Response {
            count,
            mean_ns: (self.sum_ns / u128::from(count)) as u64,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p95_ns: at(0.95),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.max_ns,
        })
    }
}

/// All that is counted.
pub(crate) struct Tally {
    pub(crate) reads: Times,
    pub(crate) writes: Times,
    /// Flushes and discards.
    pub(crate) others: Times,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) first_error: Option<String>,
    pub(crate) in_flight: u64,
    pub(crate) in_flight_max: u64,
    pub(crate) done: u64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            reads: Times::new(),
            writes: Times::new(),
            others: Times::new(),
            errors: BTreeMap::new(),
            first_error: None,
            in_flight: 0,
            in_flight_max: 0,
            done: 0,
        }
    }

    /// Counts from nothing; what is under way stays so.
    pub(crate) fn begin_window(&mut self) {
        let (in_flight, done) = (self.in_flight, self.done);
        *self = Self { in_flight, in_flight_max: in_flight, done, ..Self::new() };
    }

    /// The most under way is counted from now on.
    pub(crate) fn begin_counting(&mut self) {
        self.in_flight_max = self.in_flight;
    }

    pub(crate) fn begin(&mut self) {
        self.in_flight += 1;
        self.in_flight_max = self.in_flight_max.max(self.in_flight);
    }

    pub(crate) fn end(&mut self) {
        self.in_flight -= 1;
        self.done += 1;
    }

    pub(crate) fn failed(&mut self, error: &kura_block::Error) {
        *self.errors.entry(name(error.kind()).to_owned()).or_default() += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Retry => "retry",
        Kind::Full => "full",
        Kind::Fenced => "fenced",
        Kind::Corrupt => "corrupt",
        Kind::Device => "device",
        Kind::Invalid => "invalid",
        Kind::Missing => "missing",
        Kind::Exists => "exists",
        Kind::Busy => "busy",
        Kind::ReadOnly => "read_only",
    }
}
