//! How often blocks are read and written, and how far a write is from the read before it: the features of a load that
//! hot mirroring lives on.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::{Scope, histogram, record, share};
use crate::request::{Op, Request};

/// A point of the curve is told when it lies this much above the one before.
const STEP: f64 = 0.005;

/// How many blocks were read and written so often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Frequency {
    /// How often each was read.
    pub reads: u32,
    /// How often each was written.
    pub writes: u32,
    /// How many blocks.
    pub blocks: u64,
}

/// How far a block's write is from the last read of that block, in read accesses to any block between the two. A
/// request of several blocks accesses each of them once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadToWrite {
    /// Block accesses looked at.
    pub accesses: u64,
    /// Writes among them.
    pub writes: u64,
    /// Writes whose block was read before.
    pub writes_after_read: u64,
    /// The distribution of the distance over these writes, rising.
    pub distances: Vec<DistanceShare>,
}

/// A point of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DistanceShare {
    /// Read accesses between read and write.
    pub reads_between: u64,
    /// The share of writes with so many or fewer.
    pub share: f64,
}

/// What is known of blocks while requests pass.
pub struct Heat {
    scope: Scope,
    accesses: u64,
    /// Of the accesses that the distance is of.
    reads: u64,
    writes: u64,
    blocks: HashMap<u64, Block, BuildHasherDefault<Spread>>,
    distances: Histogram<u64>,
}

/// Spreads the numbers of blocks: nobody makes a trace to have them meet, and they are looked up at every access.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

#[derive(Default)]
struct Block {
    reads: u32,
    writes: u32,
    /// The number of its last read, counted from 1; 0 if there was none.
    last_read: u64,
}

impl Heat {
    pub fn new(scope: &Scope) -> Heat {
        Heat { scope: *scope, accesses: 0, reads: 0, writes: 0, blocks: HashMap::default(), distances: histogram() }
    }

    /// A read or a write.
    pub fn take(&mut self, request: &Request) {
        let most = self.scope.frequency_accesses.max(self.scope.distance_accesses);
        let block_bytes = self.scope.block_bytes.max(1);
        let blocks = request.offset_bytes / block_bytes..=(request.end_bytes() - 1) / block_bytes;
        for number in blocks {
            if self.accesses >= most {
                return;
            }
            self.access(number, request.op);
            self.accesses += 1;
        }
    }

    fn access(&mut self, number: u64, op: Op) {
        let block = self.blocks.entry(number).or_default();
        if self.accesses < self.scope.frequency_accesses {
            let count = if op == Op::Read { &mut block.reads } else { &mut block.writes };
            *count += 1;
        }
        if self.accesses >= self.scope.distance_accesses {
            return;
        }
        if op == Op::Read {
            self.reads += 1;
            block.last_read = self.reads;
        } else {
            self.writes += 1;
            if block.last_read > 0 {
                record(&mut self.distances, self.reads - block.last_read);
            }
        }
    }

    pub fn end(self) -> (Vec<Frequency>, ReadToWrite) {
        let mut frequencies = BTreeMap::new();
        for block in self.blocks.values() {
            *frequencies.entry((block.reads, block.writes)).or_insert(0) += 1;
        }
        // Blocks that were only seen by the longer look at distances.
        frequencies.remove(&(0, 0));
        let frequencies = frequencies.into_iter();
        let frequencies = frequencies.map(|((reads, writes), blocks)| Frequency { reads, writes, blocks });
        let read_to_write = ReadToWrite {
            accesses: self.accesses.min(self.scope.distance_accesses),
            writes: self.writes,
            writes_after_read: self.distances.len(),
            distances: curve(&self.distances),
        };
        (frequencies.collect(), read_to_write)
    }
}

/// At most 200 points of the distribution and its last.
fn curve(distances: &Histogram<u64>) -> Vec<DistanceShare> {
    let all = distances.len();
    let (mut sum, mut told) = (0, 0.0);
    let mut points = Vec::new();
    for step in distances.iter_recorded() {
        sum += step.count_since_last_iteration();
        let reached = share(sum, all);
        if reached - told >= STEP || sum == all {
            let reads_between = distances.lowest_equivalent(step.value_iterated_to());
            points.push(DistanceShare { reads_between, share: reached });
            told = reached;
        }
    }
    points
}
