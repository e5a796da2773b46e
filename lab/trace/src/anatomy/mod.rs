//! What a trace is like: one pass over its requests, in bounded memory.
//!
//! Bounds: 64 MiB for the footprint, about as much for a million regions, about 40 bytes for each block among the
//! first million accesses, and a few MiB. Where a trace would need more, blocks and regions double in size, and the
//! result says how large they are.

mod display;
mod grid;
mod heat;
mod rates;
mod regions;
#[cfg(test)]
mod tests;

use hdrhistogram::Histogram;
use serde::Serialize;

pub use grid::{Grid, GridCell};
pub use heat::{DistanceShare, Frequency, ReadToWrite};
pub use rates::Rates;
pub use regions::Concentration;

use crate::blocks::BlockSet;
use crate::error::TraceError;
use crate::request::{Op, Request};
use heat::Heat;
use rates::RateCounter;
use regions::RegionCounter;

/// What the footprint counts in, unless it grows beyond its bound.
const FOOTPRINT_BLOCK_BYTES: u64 = 4096;
/// A request is sequential when it begins where one of so many of its kind before it ended.
const STREAMS: usize = 32;

/// What is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// The size of the volume that was recorded; `None`: up to the highest address seen.
    pub capacity_bytes: Option<u64>,
    /// Bytes of a block in what is told of blocks (2048 in the paper on hot mirroring). At least 1.
    pub block_bytes: u64,
    /// How many block accesses [`Anatomy::frequencies`] is of.
    pub frequency_accesses: u64,
    /// How many block accesses [`Anatomy::read_to_write`] is of.
    pub distance_accesses: u64,
}

impl Default for Scope {
    /// Blocks of 4 KiB, and as many accesses as in the paper on hot mirroring.
    fn default() -> Scope {
        Scope { capacity_bytes: None, block_bytes: 4096, frequency_accesses: 1_000_000, distance_accesses: 500_000 }
    }
}

/// What a trace is like. Shares are from 0 to 1, and 0 where there is nothing to share. What a trace is too short or
/// too small for is not a number, and left out of JSON and of the report. Unless said otherwise, figures
/// are of reads and writes; discards and flushes are only counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Anatomy {
    /// All requests.
    pub requests: u64,
    /// Requests that read.
    pub reads: u64,
    /// Requests that write.
    pub writes: u64,
    /// Requests that give space back.
    pub discards: u64,
    /// Requests that make what is written durable.
    pub flushes: u64,
    /// From the first arrival to the last, of all requests.
    pub span_ns: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads among the requests.
    pub read_share: f64,
    /// Bytes read among the bytes.
    pub read_bytes_share: f64,
    /// How many arrive, in the mean and at peaks.
    pub rates: Rates,
    /// Times from one arrival to the next, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interarrival_ns: Option<Percentiles>,
    /// Their standard deviation over their mean: 1 for random arrivals, above it for bursts.
    pub interarrival_cv: f64,
    /// Sizes of reads, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_size_bytes: Option<Percentiles>,
    /// Sizes of writes, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_size_bytes: Option<Percentiles>,
    /// Requests that begin and end at multiples of 512 bytes.
    pub aligned_512_share: f64,
    /// Requests that begin and end at multiples of 4096 bytes.
    pub aligned_4096_share: f64,
    /// Requests that begin where one of the 32 of their kind before them ended.
    pub sequential_share: f64,
    /// The end of the highest request.
    pub address_span_bytes: u64,
    /// The size of the volume: as given, and at least the address span.
    pub capacity_bytes: u64,
    /// Bytes that were read or written at least once, in whole blocks of [`Anatomy::footprint_block_bytes`].
    pub footprint_bytes: u64,
    /// What the footprint is counted in: 4096 unless the trace touches very much.
    pub footprint_block_bytes: u64,
    /// How few regions of the volume most requests go to: by regions of 1 GiB, and of 1 MiB.
    pub concentration: Vec<Concentration>,
    /// Response times where they were recorded, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_ns: Option<Percentiles>,
    /// Requests whose response time was recorded.
    pub responses: u64,
    /// Where requests go over time (hot mirroring paper, Fig. 2).
    pub places: Grid,
    /// Blocks by how often they were read and written in the first accesses (Fig. 3).
    pub frequencies: Vec<Frequency>,
    /// How far a block's write is from its read in the first accesses (Fig. 4).
    pub read_to_write: ReadToWrite,
}

/// Of values: the mean and the largest exact, the others exact up to 2048 and within 0.1 % above.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// The mean.
    pub mean: f64,
    /// Half are at or below.
    pub p50: u64,
    /// 90 % are at or below.
    pub p90: u64,
    /// 99 % are at or below.
    pub p99: u64,
    /// The largest.
    pub max: u64,
}

/// Values, and their sum and the largest of them to the digit, which buckets do not have.
struct Values {
    buckets: Histogram<u64>,
    sum: u128,
    max: u64,
}

impl Values {
    fn new() -> Values {
        Values { buckets: histogram(), sum: 0, max: 0 }
    }

    fn take(&mut self, value: u64) {
        record(&mut self.buckets, value);
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    fn mean(&self) -> f64 {
        if self.buckets.is_empty() { 0.0 } else { self.sum as f64 / self.buckets.len() as f64 }
    }

    /// None of nothing.
    fn percentiles(&self) -> Option<Percentiles> {
        let buckets = &self.buckets;
        // The lower end of a bucket is the very value for sizes, which are round.
        let at = |quantile| buckets.lowest_equivalent(buckets.value_at_quantile(quantile));
        let told = || Percentiles { mean: self.mean(), p50: at(0.5), p90: at(0.9), p99: at(0.99), max: self.max };
        (!buckets.is_empty()).then(told)
    }
}

impl Anatomy {
    /// What these requests, which come in order of time, are like. Refused: what the requests' source refuses.
    pub fn of(
        requests: impl IntoIterator<Item = Result<Request, TraceError>>,
        scope: &Scope,
    ) -> Result<Anatomy, TraceError> {
        let mut pass = Pass::new(scope);
        for request in requests {
            pass.take(&request?);
        }
        Ok(pass.end(scope))
    }
}

/// A part of a whole; 0 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Values from 0 on, to a thousandth.
fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

fn record(values: &mut Histogram<u64>, value: u64) {
    values.record(value).expect("the histogram grows as needed");
}

/// What is kept while requests pass.
struct Pass {
    counts: [u64; 4],
    bytes: [u64; 2],
    first_ns: Option<u64>,
    last_ns: u64,
    rates: RateCounter,
    gaps: Values,
    sizes: [Values; 2],
    responses: Values,
    aligned: [u64; 2],
    sequential: u64,
    /// Where the last requests of a kind ended, each in its turn.
    ends: [[u64; STREAMS]; 2],
    highest: u64,
    footprint: BlockSet,
    regions: RegionCounter,
    places: Grid,
    heat: Heat,
}

impl Pass {
    fn new(scope: &Scope) -> Pass {
        Pass {
            counts: [0; 4],
            bytes: [0; 2],
            first_ns: None,
            last_ns: 0,
            rates: RateCounter::default(),
            gaps: Values::new(),
            sizes: [Values::new(), Values::new()],
            responses: Values::new(),
            aligned: [0; 2],
            sequential: 0,
            // Nothing begins there.
            ends: [[u64::MAX; STREAMS]; 2],
            highest: 0,
            footprint: BlockSet::new(FOOTPRINT_BLOCK_BYTES),
            regions: RegionCounter::default(),
            places: Grid::default(),
            heat: Heat::new(scope),
        }
    }

    fn take(&mut self, request: &Request) {
        self.counts[request.op as usize] += 1;
        self.rates.take(request.at_ns);
        match self.first_ns {
            Some(_) => self.gaps.take(request.at_ns.saturating_sub(self.last_ns)),
            None => self.first_ns = Some(request.at_ns),
        }
        self.last_ns = request.at_ns;
        if request.response_ns > 0 {
            self.responses.take(request.response_ns);
        }
        let kind = match request.op {
            Op::Read => 0,
            Op::Write => 1,
            Op::Discard | Op::Flush => return,
        };
        self.place(request, kind);
    }

    /// A read (kind 0) or a write (kind 1).
    fn place(&mut self, request: &Request, kind: usize) {
        let (begin, end) = (request.offset_bytes, request.end_bytes());
        self.bytes[kind] += u64::from(request.len_bytes);
        self.sizes[kind].take(u64::from(request.len_bytes));
        for (count, unit) in self.aligned.iter_mut().zip([512, 4096]) {
            *count += u64::from(begin % unit == 0 && end % unit == 0);
        }
        let turn = (self.counts[request.op as usize] % STREAMS as u64) as usize;
        self.sequential += u64::from(self.ends[kind].contains(&begin));
        self.ends[kind][turn] = end;
        self.highest = self.highest.max(end);
        self.footprint.add(begin..end);
        self.regions.take(begin);
        self.places.take(request.at_ns, begin, kind);
        self.heat.take(request);
    }

    fn end(self, scope: &Scope) -> Anatomy {
        let [reads, writes, discards, flushes] = self.counts;
        let [read_bytes, written_bytes] = self.bytes;
        let span_ns = self.last_ns - self.first_ns.unwrap_or(self.last_ns);
        let requests = self.counts.iter().sum();
        let placed = reads + writes;
        let capacity_bytes = scope.capacity_bytes.unwrap_or(0).max(self.highest);
        let gap_ns = self.gaps.mean();
        let (frequencies, read_to_write) = self.heat.end();
        Anatomy {
            requests,
            reads,
            writes,
            discards,
            flushes,
            span_ns,
            read_bytes,
            written_bytes,
            read_share: share(reads, placed),
            read_bytes_share: share(read_bytes, read_bytes + written_bytes),
            rates: self.rates.end(requests, span_ns),
            interarrival_ns: self.gaps.percentiles(),
            interarrival_cv: if gap_ns > 0.0 { self.gaps.buckets.stdev() / gap_ns } else { 0.0 },
            read_size_bytes: self.sizes[0].percentiles(),
            write_size_bytes: self.sizes[1].percentiles(),
            aligned_512_share: share(self.aligned[0], placed),
            aligned_4096_share: share(self.aligned[1], placed),
            sequential_share: share(self.sequential, placed),
            address_span_bytes: self.highest,
            capacity_bytes,
            footprint_bytes: self.footprint.bytes(),
            footprint_block_bytes: self.footprint.block_bytes(),
            concentration: self.regions.end(capacity_bytes),
            response_ns: self.responses.percentiles(),
            responses: self.responses.buckets.len(),
            places: self.places,
            frequencies,
            read_to_write,
        }
    }
}
