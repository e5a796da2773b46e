//! How many requests arrive.

use serde::Serialize;

use super::share;

const SECOND_NS: u64 = 1_000_000_000;
const MINUTE_NS: u64 = 60 * SECOND_NS;

/// How many requests arrive, in the mean and at peaks. Slots of time are counted from the trace's first request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Requests a second over the whole span.
    pub mean_per_s: f64,
    /// Requests in the busiest second; none if the span is shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_second_per_s: Option<f64>,
    /// Requests a second in the busiest minute; none if the span is shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_minute_per_s: Option<f64>,
    /// The share of all requests that arrive in the busiest three slots of ten minutes; none if the span is
    /// shorter than three of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busiest_three_10min_share: Option<f64>,
}

/// Counts arrivals, which come in order of time.
pub struct RateCounter {
    second: Slots,
    minute: Slots,
    ten_minutes: Slots,
}

impl Default for RateCounter {
    fn default() -> RateCounter {
        RateCounter {
            second: Slots::new(SECOND_NS),
            minute: Slots::new(MINUTE_NS),
            ten_minutes: Slots::new(10 * MINUTE_NS),
        }
    }
}

impl RateCounter {
    pub fn take(&mut self, at_ns: u64) {
        for slots in [&mut self.second, &mut self.minute, &mut self.ten_minutes] {
            slots.take(at_ns);
        }
    }

    pub fn end(mut self, requests: u64, span_ns: u64) -> Rates {
        let span_s = span_ns as f64 / SECOND_NS as f64;
        let within = |slots_ns: u64, rate: f64| (span_ns >= slots_ns).then_some(rate);
        Rates {
            mean_per_s: if span_ns == 0 { 0.0 } else { requests as f64 / span_s },
            peak_second_per_s: within(SECOND_NS, self.second.busiest()[0] as f64),
            peak_minute_per_s: within(MINUTE_NS, self.minute.busiest()[0] as f64 / 60.0),
            busiest_three_10min_share: within(30 * MINUTE_NS, share(self.ten_minutes.busiest().iter().sum(), requests)),
        }
    }
}

/// Slots of equal length, one after the other.
struct Slots {
    len_ns: u64,
    slot: u64,
    count: u64,
    /// The most that slots before had, falling.
    most: [u64; 3],
}

impl Slots {
    fn new(len_ns: u64) -> Slots {
        Slots { len_ns, slot: 0, count: 0, most: [0; 3] }
    }

    fn take(&mut self, at_ns: u64) {
        let slot = at_ns / self.len_ns;
        if slot != self.slot {
            self.close();
            self.slot = slot;
        }
        self.count += 1;
    }

    fn close(&mut self) {
        let rank = self.most.partition_point(|most| *most >= self.count);
        if rank < self.most.len() {
            self.most[rank..].rotate_right(1);
            self.most[rank] = self.count;
        }
        self.count = 0;
    }

    /// The three slots with most, falling.
    fn busiest(&mut self) -> [u64; 3] {
        self.close();
        self.most
    }
}
