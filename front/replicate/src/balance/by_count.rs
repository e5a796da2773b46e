//! R1.1.1.2 (section 2.4): sorted by path, as many items in each list.

use super::{Cost, Group, Item, Lists, by_path, even_runs, unit_of};

/// Lists of as many items each, of the items sorted by path, so that neighbours stay together.
///
/// # Panics
/// Without workers.
pub fn by_count(items: &[Item<'_>], workers: usize, cost: &Cost) -> Lists {
    let sorted = by_path(items, (0..items.len()).collect());
    let list = |run: &[usize]| match run {
        [] => [].into(),
        run => [Group::of(vec![unit_of(items, run, cost)])].into(),
    };
    Lists { of_workers: even_runs(&sorted, workers).map(list).collect(), may_steal: false }
}
