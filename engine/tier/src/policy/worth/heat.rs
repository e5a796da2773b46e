//! How much I/O regions and their neighbourhoods drew lately: counts that halve with time.
//!
//! A count of n at time t is kept as `n * 2^((t - base) / half_life)`. What came earlier so weighs less without being
//! touched again, and the order of regions never changes but by new I/O.

use crate::Heat;
use kura_block::Sparse;

/// One of the counts that heat is kept as.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    /// Regions of a cell, as a power of two.
    pub shift: u32,
    /// In how many half-lives of the policy a count halves.
    pub half_lives: u32,
    /// What part of it is expected again.
    pub returns: f32,
}

/// The region itself and two sizes of neighbourhoods around it; and the region over a longer time, an hour if not set otherwise: some 30 %
/// of the concentrations come up where one was (the on-the-fly tiering paper's section 2.1), so that what was used hard is not at once colder than what is used a
/// little.
pub(super) const LEVELS: [Level; COUNT] = [
    Level { shift: 0, half_lives: 1, returns: 1.0 },
    Level { shift: 4, half_lives: 1, returns: 1.0 },
    Level { shift: 8, half_lives: 1, returns: 1.0 },
    Level { shift: 0, half_lives: 12, returns: 0.3 },
];
/// How many there are, and how many of them bring regions up: the last one only says what does not leave.
pub(super) const COUNT: usize = 4;
pub(super) const COMING: usize = 3;
/// Above this many half-lives since the base, all is scaled to a new one: the range of the numbers allows for twice that.
const MOST_HALVINGS: f64 = 48.0;

/// The heat of a volume.
#[derive(Clone, Debug, Default)]
pub(super) struct HeatMap {
    levels: [Counts; COUNT],
}

/// The counts of a level.
#[derive(Clone, Debug, Default)]
struct Counts {
    base_ns: u64,
    cells: Sparse<f32>,
}

/// A moment on the scale of a [`HeatMap`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// What a request of this moment counts, by level.
    weights: [f32; COUNT],
}

impl HeatMap {
    /// Room for so many regions; what is known stays.
    pub fn resize(&mut self, regions: u32) {
        for (counts, level) in self.levels.iter_mut().zip(LEVELS) {
            counts.cells.resize(regions.div_ceil(1 << level.shift));
        }
    }

    /// The scale at this moment.
    pub fn now(&mut self, now_ns: u64, half_life_ns: u64) -> Now {
        let mut weights = [1.0; COUNT];
        for ((weight, counts), level) in weights.iter_mut().zip(&mut self.levels).zip(LEVELS) {
            *weight = counts.weight(now_ns, half_life_ns.saturating_mul(level.half_lives.into()));
        }
        Now { weights }
    }

    /// Counts the I/O of an interval, in order of regions.
    pub fn add(&mut self, heat: &[Heat], now: Now) {
        for ((counts, level), weight) in self.levels.iter_mut().zip(LEVELS).zip(now.weights) {
            for of_cell in heat.chunk_by(|a, b| a.region >> level.shift == b.region >> level.shift) {
                let ios: u64 = of_cell.iter().map(|heat| u64::from(heat.total())).sum();
                if let Some(cell) = counts.cells.get_mut(of_cell[0].region >> level.shift) {
                    *cell += ios as f32 * weight;
                }
            }
        }
    }

    /// Requests that a region's cell of a level drew lately.
    pub fn drew(&self, level: usize, region: u32, now: Now) -> f32 {
        let cell = self.levels[level].cells.get(region >> LEVELS[level].shift).copied().unwrap_or(0.0);
        cell / now.weights[level]
    }

    /// What that says of the next ones: the same a region of the cell and a half-life of the policy, as far as it is expected again.
    pub fn density(&self, level: usize, region: u32, now: Now) -> f32 {
        let Level { shift, half_lives, returns } = LEVELS[level];
        self.drew(level, region, now) * returns / (half_lives << shift) as f32
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.levels.iter().map(|counts| counts.cells.memory_bytes()).sum()
    }
}

impl Counts {
    /// What a request of this moment counts.
    fn weight(&mut self, now_ns: u64, half_life_ns: u64) -> f32 {
        let halvings = now_ns.saturating_sub(self.base_ns) as f64 / half_life_ns as f64;
        if halvings <= MOST_HALVINGS {
            return halvings.exp2() as f32;
        }
        let scale = (-halvings).exp2() as f32;
        for cell in self.cells.used_mut() {
            *cell *= scale;
        }
        self.base_ns = now_ns;
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_NS: u64 = 60_000_000_000;

    fn heat(region: u32, reads: u32) -> Heat {
        Heat { region, reads, writes: 0 }
    }

    #[test]
    fn a_count_halves_in_a_half_life_and_is_spread_over_its_neighbourhood() {
        let mut map = HeatMap::default();
        map.resize(1000);
        let now = map.now(MINUTE_NS, MINUTE_NS);
        map.add(&[heat(3, 16), heat(17, 512)], now);
        let later = map.now(3 * MINUTE_NS, MINUTE_NS);
        for (level, region, density) in
            [(0, 3, 4.0), (0, 17, 128.0), (0, 4, 0.0), (1, 4, 0.25), (1, 20, 8.0), (2, 255, 0.515_625)]
        {
            assert!((map.density(level, region, later) - density).abs() < 1e-4, "level {level} region {region}");
        }
    }

    #[test]
    fn what_was_used_hard_an_hour_ago_outweighs_a_request_of_now_over_the_longer_time() {
        let mut map = HeatMap::default();
        map.resize(16);
        let then = map.now(MINUTE_NS, 5 * MINUTE_NS);
        map.add(&[heat(3, 1000)], then);
        let now = map.now(61 * MINUTE_NS, 5 * MINUTE_NS);
        map.add(&[heat(4, 1)], now);
        let of = |level, region| map.density(level, region, now);
        assert!(of(0, 3) < of(0, 4), "the short one: {} {}", of(0, 3), of(0, 4));
        assert!(of(3, 3) > 10.0 && of(3, 4) < 0.1, "the longer one: {} {}", of(3, 3), of(3, 4));
    }

    #[test]
    fn order_outlasts_days() {
        let mut map = HeatMap::default();
        map.resize(16);
        let mut last = None;
        for minute in 1..5_000_u64 {
            let now = map.now(minute * MINUTE_NS, MINUTE_NS);
            if minute == 4_900 || minute == 4_999 {
                map.add(&[heat((minute == 4_999).into(), 1)], now);
            }
            last = Some(now);
        }
        let (older, newer) = (map.density(0, 0, last.unwrap()), map.density(0, 1, last.unwrap()));
        assert!(0.0 < older && older < newer && (newer - 1.0).abs() < 1e-6, "{older} {newer}");
    }
}
