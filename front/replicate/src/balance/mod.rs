//! Who carries what: items in, work lists out. Pure, and the same for file trees and whatever else has a size.
//!
//! Three splits, after Matsui et al., *Performance Improvement of SONAS Asynchronous Replication by Load Balancing of
//! rsync Processes*:
//!
//! | split | is | lists |
//! | --- | --- | --- |
//! | [`by_count()`] | R1.1.1.2 | sorted by path, as many items in each |
//! | [`size_aware()`] | R1.3.1 | large items dealt in turn, then the small ones by count |
//! | [`balanced()`] | ours | longest first by a learned [`Cost`], a directory's small files together, huge files in ranges |
//!
//! A work list is made of groups, a group of units, a unit of pieces:
//!
//! ```text
//!   list of a worker   [ range of a huge file ][ range ][ directory a: unit, unit ][ directory b: unit ] ...
//!                         a group of one unit              a group                    longest first
//! ```
//!
//! A unit is what a worker is handed at once. A group is what one worker should do alone, because its items are in one
//! place, whose entry workers would otherwise hand to and fro. [`Dealer`] hands out at run time and, where the split
//! allows it, lets a worker without work take from the one with the most left.

mod balanced;
mod by_count;
mod cost;
mod dealer;
mod size_aware;
#[cfg(test)]
mod tests;

pub use balanced::{Balanced, balanced};
pub use by_count::by_count;
pub use cost::{Cost, Learned};
pub use dealer::Dealer;
pub use size_aware::{SizeAware, size_aware};

use serde::Serialize;
use std::collections::VecDeque;

/// Something to be carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// Its name; what is near in the order of paths is near at the target.
    pub path: &'a [u8],
    /// What has to be carried of it, in bytes.
    pub size_bytes: u64,
    /// Where it lies: items of one place share an entry that only one worker can change at a time, a directory's.
    pub place: u32,
}

/// Bytes of an item, by its index among the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// Which item.
    pub item: usize,
    /// Its first byte.
    pub offset_bytes: u64,
    /// How many bytes; a whole item's may be 0.
    pub length_bytes: u64,
}

impl Piece {
    /// All of an item.
    pub fn whole(item: usize, size_bytes: u64) -> Self {
        Self { item, offset_bytes: 0, length_bytes: size_bytes }
    }
}

/// What a worker is handed at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// In the order in which they are to be carried.
    pub pieces: Vec<Piece>,
    /// How long a worker should take, in seconds.
    pub cost_s: f64,
}

/// Units that one worker should do alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// In the order in which they are to be handed out; never empty while the group is in a list.
    pub units: VecDeque<Unit>,
    /// How long a worker should take for all of them, in seconds.
    pub cost_s: f64,
    /// Whether a worker has had one of its units.
    begun: bool,
}

impl Group {
    fn of(units: Vec<Unit>) -> Self {
        let cost_s = units.iter().map(|unit| unit.cost_s).sum();
        Self { units: units.into(), cost_s, begun: false }
    }
}

/// A work list a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Lists {
    /// In the order of the workers; a list may be empty.
    pub of_workers: Vec<VecDeque<Group>>,
    /// Whether a worker without work may take another's.
    pub may_steal: bool,
}

/// How much a list holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Load {
    /// Items whose first byte is in the list.
    pub items: u64,
    /// Bytes.
    pub bytes: u64,
    /// How long a worker should take, in seconds.
    pub cost_s: f64,
}

impl Lists {
    /// How much each list holds.
    pub fn loads(&self) -> Vec<Load> {
        let load = |list: &VecDeque<Group>| {
            let mut load = Load::default();
            for unit in list.iter().flat_map(|group| &group.units) {
                load.items += unit.pieces.iter().filter(|piece| piece.offset_bytes == 0).count() as u64;
                load.bytes += unit.pieces.iter().map(|piece| piece.length_bytes).sum::<u64>();
                load.cost_s += unit.cost_s;
            }
            load
        };
        self.of_workers.iter().map(load).collect()
    }

    /// All pieces of a worker's list, in order.
    pub fn pieces(&self, worker: usize) -> impl Iterator<Item = Piece> {
        self.of_workers[worker].iter().flat_map(|group| &group.units).flat_map(|unit| unit.pieces.iter().copied())
    }
}

/// The largest of some loads over their mean: 1 is perfect. 1 where there is nothing to carry.
pub fn imbalance(costs: impl IntoIterator<Item = f64>) -> f64 {
    let costs: Vec<f64> = costs.into_iter().collect();
    let (sum, most) = costs.iter().fold((0.0, 0.0_f64), |(sum, most), &cost| (sum + cost, most.max(cost)));
    if sum > 0.0 { most * costs.len() as f64 / sum } else { 1.0 }
}

/// Indices of items, sorted by path; items of one path keep their order.
fn by_path(items: &[Item<'_>], mut indices: Vec<usize>) -> Vec<usize> {
    indices.sort_by(|&one, &other| items[one].path.cmp(items[other].path).then(one.cmp(&other)));
    indices
}

/// A unit of whole items.
fn unit_of(items: &[Item<'_>], indices: &[usize], cost: &Cost) -> Unit {
    let pieces: Vec<Piece> = indices.iter().map(|&item| Piece::whole(item, items[item].size_bytes)).collect();
    let cost_s = pieces.iter().map(|piece| cost.of(1, piece.length_bytes)).sum();
    Unit { pieces, cost_s }
}

/// `indices` in as many runs as there are workers, which differ by one in length at most.
fn even_runs(indices: &[usize], workers: usize) -> impl Iterator<Item = &[usize]> {
    let (share, longer) = (indices.len() / workers, indices.len() % workers);
    (0..workers).map(move |worker| {
        let first = worker * share + worker.min(longer);
        &indices[first..first + share + usize::from(worker < longer)]
    })
}
