//! What there is to know of a load before it is replayed.

use crate::summary::LoadSummary;
use kura_block::BLOCK_BYTES;
use kura_trace::{BlockSet, Op, Request};
use std::ops::Range;

/// One pass over the requests: their number, where they end, what they read and write. In bounded memory.
#[derive(Clone, Debug)]
pub struct Survey {
    /// How many they are, and how much they move.
    pub load: LoadSummary,
    /// The first byte behind all requests.
    pub end_bytes: u64,
    /// The first request that ends there, counted from 1.
    pub furthest_request: u64,
    first_ns: Option<u64>,
    read: BlockSet,
    written: BlockSet,
}

impl Default for Survey {
    fn default() -> Self {
        Self {
            load: LoadSummary::default(),
            end_bytes: 0,
            furthest_request: 0,
            first_ns: None,
            read: BlockSet::new(BLOCK_BYTES as u64),
            written: BlockSet::new(BLOCK_BYTES as u64),
        }
    }
}

impl Survey {
    /// The survey of these requests, or the first error among them.
    pub fn of<E>(requests: impl IntoIterator<Item = Result<Request, E>>) -> Result<Self, E> {
        let mut survey = Self::default();
        for request in requests {
            survey.note(&request?);
        }
        Ok(survey)
    }

    /// Adds a request.
    pub fn note(&mut self, request: &Request) {
        let (bytes, range) = (u64::from(request.len_bytes), request.offset_bytes..request.end_bytes());
        self.load.requests += 1;
        let first_ns = *self.first_ns.get_or_insert(request.at_ns);
        self.load.span_ns = self.load.span_ns.max(request.at_ns.saturating_sub(first_ns));
        if range.end > self.end_bytes {
            (self.end_bytes, self.furthest_request) = (range.end, self.load.requests);
        }
        match request.op {
            Op::Read => {
                self.load.reads += 1;
                self.load.read_bytes += bytes;
                self.read.add(range);
            }
            Op::Write => {
                self.load.writes += 1;
                self.load.written_bytes += bytes;
                self.written.add(range);
            }
            Op::Discard => self.load.discards += 1,
            Op::Flush => self.load.flushes += 1,
        }
    }

    /// When the last request comes.
    pub(crate) fn last_ns(&self) -> u64 {
        self.first_ns.unwrap_or(0) + self.load.span_ns
    }

    /// What the requests read, as ranges of bytes.
    pub(crate) fn read_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.read.ranges()
    }

    /// Bytes of what is allocated, so many at once, for what the requests write, and, with `reads`, for what they read.
    pub(crate) fn groups_bytes(&self, group_bytes: u64, reads: bool) -> u64 {
        let mut touched = self.written.clone();
        if reads {
            self.read.ranges().for_each(|range| touched.add(range));
        }
        let (mut groups, mut counted) = (0, 0);
        for range in touched.ranges() {
            let end = range.end.div_ceil(group_bytes);
            groups += end.saturating_sub(counted.max(range.start / group_bytes));
            counted = end;
        }
        groups * group_bytes
    }
}
