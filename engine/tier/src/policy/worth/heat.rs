//! How much I/O regions and their neighbourhoods drew lately: counts that halve with time.
//!
//! A count of n at time t is kept as `n * 2^((t - base) / half_life)`. What came earlier so weighs less without being
//! touched again, and the order of regions never changes but by new I/O.

use crate::Heat;
use kura_block::Sparse;

/// Regions of a cell at each level, as powers of two: the region itself, and two sizes of neighbourhoods around it.
pub(super) const SHIFTS: [u32; LEVELS] = [0, 4, 8];
/// Levels.
pub(super) const LEVELS: usize = 3;
/// Above this many half-lives since the base, all is scaled to a new one: the range of the numbers allows for twice that.
const MOST_HALVINGS: f64 = 48.0;

/// The heat of a volume.
#[derive(Clone, Debug, Default)]
pub(super) struct HeatMap {
    base_ns: u64,
    levels: [Sparse<f32>; LEVELS],
}

/// A moment on the scale of a [`HeatMap`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// What a request of this moment counts.
    weight: f32,
}

impl HeatMap {
    /// Room for so many regions; what is known stays.
    pub fn resize(&mut self, regions: u32) {
        for (cells, shift) in self.levels.iter_mut().zip(SHIFTS) {
            cells.resize(regions.div_ceil(1 << shift));
        }
    }

    /// The scale at this moment.
    pub fn now(&mut self, now_ns: u64, half_life_ns: u64) -> Now {
        let halvings = now_ns.saturating_sub(self.base_ns) as f64 / half_life_ns as f64;
        if halvings <= MOST_HALVINGS {
            return Now { weight: halvings.exp2() as f32 };
        }
        let scale = (-halvings).exp2() as f32;
        for cells in &mut self.levels {
            for cell in cells.used_mut() {
                *cell *= scale;
            }
        }
        self.base_ns = now_ns;
        Now { weight: 1.0 }
    }

    /// Counts the I/O of an interval, in order of regions.
    pub fn add(&mut self, heat: &[Heat], now: Now) {
        for (cells, shift) in self.levels.iter_mut().zip(SHIFTS) {
            for of_cell in heat.chunk_by(|a, b| a.region >> shift == b.region >> shift) {
                let ios: u64 = of_cell.iter().map(|heat| u64::from(heat.total())).sum();
                if let Some(cell) = cells.get_mut(of_cell[0].region >> shift) {
                    *cell += ios as f32 * now.weight;
                }
            }
        }
    }

    /// Requests lately a region, by the region's own cell of a level.
    pub fn density(&self, level: usize, region: u32, now: Now) -> f32 {
        let (cells, shift) = (&self.levels[level], SHIFTS[level]);
        let cell = cells.get(region >> shift).copied().unwrap_or(0.0);
        cell / now.weight / (1_u32 << shift) as f32
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.levels.iter().map(Sparse::memory_bytes).sum()
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
