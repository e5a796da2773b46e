//! Ours: longest first, a directory's small files together, huge files in ranges.

use super::{Cost, Group, Item, Lists, Piece, Unit};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// How [`balanced()`] cuts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balanced {
    /// Whether several workers may carry parts of one item.
    pub may_cut: bool,
    /// The least bytes of a part, and what parts begin at multiples of.
    pub least_part_bytes: u64,
    /// Units a worker that everything is cut into, where items are small enough.
    pub units: u32,
}

impl Default for Balanced {
    fn default() -> Self {
        Self { may_cut: true, least_part_bytes: 8 << 20, units: 64 }
    }
}

/// Lists of the same cost, each with the longest first.
///
/// - An item that costs more than a unit is a group of its own, or, where it may be cut, each of its parts is.
/// - The small items of a place are a group, cut into units. A place that costs more than a worker's share becomes as
///   many groups as it costs shares: one huge directory does not keep all other workers idle.
/// - Groups go, the most expensive first, to the worker that has the least.
///
/// # Panics
/// Without workers.
pub fn balanced(items: &[Item<'_>], workers: usize, how: Balanced, cost: &Cost) -> Lists {
    assert!(workers > 0, "lists for no workers");
    let total_s: f64 = items.iter().map(|item| cost.of(1, item.size_bytes)).sum();
    let share_s = total_s / workers as f64;
    let unit_s = share_s / f64::from(how.units.max(1));
    let part_bytes = match unit_s / cost.byte_s {
        // Bytes may be dear: a part has some all the same.
        bytes if bytes < u64::MAX as f64 => {
            (bytes as u64).max(1).checked_next_multiple_of(how.least_part_bytes.max(1)).unwrap_or(u64::MAX)
        }
        _ => u64::MAX,
    };

    let mut groups: Vec<Group> = Vec::new();
    let mut small: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        if cost.of(1, item.size_bytes) < unit_s {
            small.entry(item.place).or_default().push(index);
        } else if how.may_cut && item.size_bytes > part_bytes {
            groups.extend(parts(index, item.size_bytes, part_bytes, cost));
        } else {
            groups.push(whole(index, item.size_bytes, cost));
        }
    }
    for place in small.values() {
        groups.extend(places(items, place, unit_s, share_s, cost));
    }
    Lists { of_workers: longest_first(groups, workers), may_steal: true }
}

fn whole(item: usize, size_bytes: u64, cost: &Cost) -> Group {
    Group::of(vec![Unit { pieces: vec![Piece::whole(item, size_bytes)], cost_s: cost.of(1, size_bytes) }])
}

/// The parts of an item, a group each. The first one pays for the file.
fn parts(item: usize, size_bytes: u64, part_bytes: u64, cost: &Cost) -> impl Iterator<Item = Group> {
    (0..size_bytes.div_ceil(part_bytes)).map(move |part| {
        let offset_bytes = part * part_bytes;
        let length_bytes = part_bytes.min(size_bytes - offset_bytes);
        let cost_s = cost.of(u64::from(part == 0), length_bytes);
        Group::of(vec![Unit { pieces: vec![Piece { item, offset_bytes, length_bytes }], cost_s }])
    })
}

/// The groups of a place's small items: one, unless it costs more than a worker's share.
fn places(items: &[Item<'_>], place: &[usize], unit_s: f64, share_s: f64, cost: &Cost) -> Vec<Group> {
    let mut units: Vec<Unit> = Vec::new();
    for &item in place {
        let (piece, cost_s) = (Piece::whole(item, items[item].size_bytes), cost.of(1, items[item].size_bytes));
        match units.last_mut() {
            Some(unit) if unit.cost_s + cost_s <= unit_s => {
                unit.pieces.push(piece);
                unit.cost_s += cost_s;
            }
            _ => units.push(Unit { pieces: vec![piece], cost_s }),
        }
    }
    let place_s: f64 = units.iter().map(|unit| unit.cost_s).sum();
    let shares = (place_s / share_s).ceil().max(1.0) as usize;
    units.chunks(units.len().div_ceil(shares)).map(|units| Group::of(units.to_vec())).collect()
}

/// Each group, the most expensive first, to the worker that has the least so far.
fn longest_first(mut groups: Vec<Group>, workers: usize) -> Vec<std::collections::VecDeque<Group>> {
    // Stable: equal groups keep the order of their items.
    groups.sort_by(|one, other| other.cost_s.total_cmp(&one.cost_s));
    let mut lists = vec![std::collections::VecDeque::new(); workers];
    // Costs are no integers, and a heap wants an order: nanoseconds.
    let mut least: BinaryHeap<Reverse<(u64, usize)>> = (0..workers).map(|worker| Reverse((0, worker))).collect();
    for group in groups {
        if let Some(Reverse((load_ns, worker))) = least.pop() {
            least.push(Reverse((load_ns.saturating_add((group.cost_s * 1e9) as u64), worker)));
            lists[worker].push_back(group);
        }
    }
    lists
}
