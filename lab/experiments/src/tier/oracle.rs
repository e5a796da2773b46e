//! The best placement in hindsight, of those that change where an interval begins.
//!
//! Of all ways to say, interval by interval, which regions lie on the fast tier, with no more of them at any time than
//! it has room for and no more moves up in all than were made, the best is sought. Moves take no time and happen at the
//! beginning of an interval. A policy whose moves end within an interval may have a little more: two regions can share a place
//! in it, one after the other. What is computed is an upper bound of the best: room and moves are given prices; at these
//! each region is best placed by itself, exactly; and whatever the prices, what all regions gain so, and the prices of
//! all room and all moves, is no less than the best. Prices are sought for which it is least.

use serde::{Deserialize, Serialize};

/// Rounds in the search for one price of all room and one of a move, and steps in the search for prices from there.
const ROUNDS: u32 = 2;
const STEPS: u32 = 80;
/// Halvings of a range of prices.
const HALVINGS: u32 = 24;

/// What there is to choose from.
pub struct Hindsight {
    /// By region, its intervals with I/O and how much, in order.
    regions: Vec<Vec<(u32, u32)>>,
    intervals: usize,
    total: u64,
}

/// The bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// The most of the requests that the fast tier could have served so, 0 to 1.
    pub share: f64,
    /// Moves up that were allowed, placements before the first request among them.
    pub moves: u64,
}

/// One region's best placement at given prices.
struct Best {
    gain: f64,
    /// Intervals from and to which it is on the fast tier.
    stays: Vec<(u32, u32)>,
}

impl Hindsight {
    /// From requests as (interval, region).
    pub fn of(requests: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut all = Self { regions: Vec::new(), intervals: 0, total: 0 };
        for (interval, region) in requests {
            all.total += 1;
            all.intervals = all.intervals.max(interval as usize + 1);
            if all.regions.len() <= region as usize {
                all.regions.resize_with(region as usize + 1, Vec::new);
            }
            let own = &mut all.regions[region as usize];
            match own.last_mut() {
                Some((last, count)) if *last == interval => *count += 1,
                _ => own.push((interval, 1)),
            }
        }
        all
    }

    /// The bound for so many regions of room and so many moves up; a region that begins there counts as one.
    pub fn bound(&self, room: u64, moves: u64) -> Bound {
        let mut least = self.total as f64;
        let mut try_prices = |prices: &[f64], price_of_move: f64| {
            let (gain, held, made) = self.at_prices(prices, price_of_move);
            let paid = prices.iter().sum::<f64>() * room as f64 + price_of_move * moves as f64;
            least = f64::min(least, gain + paid);
            let beyond = |used: f64, allowed: u64| ((used - allowed as f64) / allowed.max(1) as f64).clamp(-1.0, 1.0);
            (held.iter().map(|held| beyond(*held as f64, room)).collect::<Vec<_>>(), beyond(made as f64, moves))
        };
        // One price of all room, and one of a move, each in turn such that of neither more is used than there is.
        let highest = self.total as f64;
        let (mut price_of_room, mut price_of_move) = (0.0, 0.0);
        for _ in 0..ROUNDS {
            let prices = vec![price_of_room; self.intervals];
            price_of_move = clearing(highest, |price| try_prices(&prices, price).1);
            let all = |price| vec![price; self.intervals];
            price_of_room = clearing(highest, |price| try_prices(&all(price), price_of_move).0.iter().sum());
        }
        // From there each towards what is short, in smaller and smaller steps.
        let mut prices = vec![price_of_room; self.intervals];
        let step_of_move = price_of_move.max(highest / (10 * moves.max(1)) as f64);
        let step_of_room = price_of_room.max(highest / (10 * room.max(1) * self.intervals.max(1) as u64) as f64);
        for step in 0..STEPS {
            let size = 0.5 / f64::from(step + 1).sqrt();
            let (beyond_room, beyond_moves) = try_prices(&prices, price_of_move);
            price_of_move = f64::max(0.0, price_of_move + size * step_of_move * beyond_moves);
            for (price, beyond) in prices.iter_mut().zip(beyond_room) {
                *price = f64::max(0.0, *price + size * step_of_room * beyond);
            }
        }
        Bound { share: least / self.total.max(1) as f64, moves }
    }

    /// What all regions gain at these prices, how many lie on the fast tier in each interval, and the moves made.
    fn at_prices(&self, prices: &[f64], price_of_move: f64) -> (f64, Vec<i64>, u64) {
        let mut sums = vec![0.0; prices.len() + 1];
        for (at, price) in prices.iter().enumerate() {
            sums[at + 1] = sums[at] + price;
        }
        let (mut gain, mut changes, mut made) = (0.0, vec![0_i64; prices.len() + 1], 0);
        for region in self.regions.iter().filter(|region| !region.is_empty()) {
            let best = best(region, &sums, price_of_move);
            gain += best.gain;
            made += best.stays.len() as u64;
            for (from, to) in best.stays {
                changes[from as usize] += 1;
                changes[to as usize + 1] -= 1;
            }
        }
        let mut held = 0;
        let held = changes[..prices.len()].iter().map(|change| {
            held += change;
            held
        });
        (gain, held.collect(), made)
    }
}

/// The best placement of a region at given prices; `sums[t]` is the price of all intervals before t.
fn best(counts: &[(u32, u32)], sums: &[f64], price_of_move: f64) -> Best {
    // For each interval with I/O: whether being there then is best reached by staying since the one before it.
    let mut stayed = Vec::with_capacity(counts.len());
    // The most gained by now being off the fast tier, after which interval it left, and being on it.
    let (mut off, mut on) = (0.0, f64::NEG_INFINITY);
    let mut left_after = None;
    let mut came_from = Vec::with_capacity(counts.len());
    let mut before = 0;
    for (at, (interval, count)) in counts.iter().enumerate() {
        let held = on - (sums[*interval as usize] - sums[before as usize + usize::from(at > 0)]);
        let fresh = off - price_of_move;
        let gained = f64::from(*count) - (sums[*interval as usize + 1] - sums[*interval as usize]);
        stayed.push(held > fresh);
        came_from.push(left_after);
        on = f64::max(held, fresh) + gained;
        if on > off {
            (off, left_after) = (on, Some(at));
        }
        before = *interval;
    }
    let mut stays = Vec::new();
    while let Some(last) = left_after {
        let mut first = last;
        while stayed[first] && first > 0 {
            first -= 1;
        }
        stays.push((counts[first].0, counts[last].0));
        left_after = came_from[first];
    }
    Best { gain: off, stays }
}

/// The lowest price up to `highest`, nearly, at which no more is used than there is.
fn clearing(highest: f64, mut beyond: impl FnMut(f64) -> f64) -> f64 {
    if beyond(0.0) <= 0.0 {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, highest);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if beyond(middle) > 0.0 { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    /// All placements tried, where there are few: the bound is never below the best of them, and near it.
    #[test]
    fn it_bounds_the_best_of_all_placements() {
        let mut rng = kura_sim::ChaCha8Rng::seed_from_u64(3);
        let mut gaps = 0.0;
        for _ in 0..60 {
            let (regions, intervals) = (3_u32, 5_u32);
            let mut requests = Vec::new();
            for interval in 0..intervals {
                for region in 0..regions {
                    let count = if rng.random() { rng.random_range(0..9_u32) } else { 0 };
                    requests.extend((0..count).map(|_| (interval, region)));
                }
            }
            let (room, moves) = (rng.random_range(1..3_u64), rng.random_range(1..4_u64));
            let hits = |placement: u32| {
                let on = |interval: u32, region: u32| placement >> (interval * regions + region) & 1 == 1;
                let fits = (0..intervals)
                    .all(|interval| (0..regions).filter(|region| on(interval, *region)).count() as u64 <= room);
                let ups = (0..intervals).flat_map(|interval| (0..regions).map(move |region| (interval, region)));
                let ups = ups.filter(|(interval, region)| {
                    on(*interval, *region) && (*interval == 0 || !on(interval - 1, *region))
                });
                (fits && ups.count() as u64 <= moves)
                    .then(|| requests.iter().filter(|(interval, region)| on(*interval, *region)).count())
            };
            let best = (0..1 << (regions * intervals)).filter_map(hits).max().unwrap_or(0) as f64;
            let all = requests.len().max(1) as f64;
            let bound = Hindsight::of(requests.iter().copied()).bound(room, moves).share * all;
            assert!(bound + 1e-6 >= best, "bound {bound}, best {best}");
            gaps += (bound - best) / all;
        }
        assert!(gaps / 60.0 < 0.1, "the bound is {} of the requests above the best, on average", gaps / 60.0);
    }

    /// Regions that differ a thousandfold, and moves for a few of them.
    #[test]
    fn few_moves_bound_it_too() {
        let requests = (0..200_u32).flat_map(|interval| {
            (0..1_000_u32).flat_map(move |region| (0..1_000 / (region + 1)).map(move |_| (interval, region)))
        });
        let all = Hindsight::of(requests);
        let of_first = |regions: u32| (0..regions).map(|region| f64::from(1_000 / (region + 1) * 200)).sum::<f64>();
        for (room, moves) in [(10, 10), (500, 5), (5, 500), (1_000, 1)] {
            let best = of_first(room.min(moves)) / all.total as f64;
            let bound = all.bound(u64::from(room), u64::from(moves)).share;
            assert!(bound + 1e-6 >= best && bound < best * 1.02, "{room} of room, {moves} moves: {bound}, best {best}");
        }
    }
}
