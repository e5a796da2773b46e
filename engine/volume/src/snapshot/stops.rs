//! How long writes stood still while snapshots were made.

use std::time::Duration;

/// Stops since the start: one each time that snapshots of this controller's volumes were made at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// Stops by length: each as long as one of [`Stops::BOUNDS_US`] at most and longer than the one before; the last ones are
    /// longer than all of them.
    pub counts: [u64; Self::BOUNDS_US.len() + 1],
    /// All of them, one after the other.
    pub total: Duration,
    /// The longest one.
    pub longest: Duration,
    /// Records of the journal that the snapshots are: what a stop has to do, whatever the volume's size.
    pub records: u64,
}

impl Stops {
    /// Lengths in microseconds.
    pub const BOUNDS_US: [u64; 10] = [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 10_000];

    /// Stops in all.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) fn add(&mut self, stop: Duration) {
        let at = Self::BOUNDS_US.partition_point(|bound| Duration::from_micros(*bound) < stop);
        self.counts[at] += 1;
        self.total += stop;
        self.longest = self.longest.max(stop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_counted_by_its_length() {
        let mut stops = Stops::default();
        for us in [0, 5, 6, 10_000, 10_001] {
            stops.add(Duration::from_micros(us));
        }
        assert_eq!(stops.counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((stops.count(), stops.longest.as_micros(), stops.total.as_micros()), (5, 10_001, 20_012));
    }
}
