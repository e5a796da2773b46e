//! R1.3.1 (section 3): large items are dealt by size, small ones stay with their neighbours.

use super::{Cost, Group, Item, Lists, by_path, even_runs, unit_of};
use serde::Serialize;

/// What the paper leaves to the administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SizeAware {
    /// T: an item of so many bytes or more is large.
    pub threshold_bytes: u64,
    /// A list of large items that holds so many bytes or more is closed, and its worker's next one is opened.
    pub cap_bytes: u64,
}

impl Default for SizeAware {
    /// The paper's threshold, 10 MB; it does not tell its cap.
    fn default() -> Self {
        Self { threshold_bytes: 10_000_000, cap_bytes: 10_000_000_000 }
    }
}

/// Large items dealt to the workers in turn from the top, in the order in which they come, then the small ones
/// [by count](super::by_count()). Each worker does its large lists first.
///
/// # Panics
/// Without workers.
pub fn size_aware(items: &[Item<'_>], workers: usize, how: SizeAware, cost: &Cost) -> Lists {
    let (large, small): (Vec<usize>, Vec<usize>) =
        (0..items.len()).partition(|&item| items[item].size_bytes >= how.threshold_bytes);
    let mut of_workers: Vec<Vec<Vec<usize>>> = vec![Vec::new(); workers];
    let mut open_bytes = vec![how.cap_bytes; workers];
    for (turn, item) in large.into_iter().enumerate() {
        let worker = turn % workers;
        if open_bytes[worker] >= how.cap_bytes || of_workers[worker].is_empty() {
            of_workers[worker].push(Vec::new());
            open_bytes[worker] = 0;
        }
        if let Some(open) = of_workers[worker].last_mut() {
            open.push(item);
        }
        open_bytes[worker] = open_bytes[worker].saturating_add(items[item].size_bytes);
    }
    for (lists, run) in of_workers.iter_mut().zip(even_runs(&by_path(items, small), workers)) {
        if !run.is_empty() {
            lists.push(run.to_vec());
        }
    }
    let list = |lists: Vec<Vec<usize>>| lists.iter().map(|list| Group::of(vec![unit_of(items, list, cost)])).collect();
    Lists { of_workers: of_workers.into_iter().map(list).collect(), may_steal: false }
}
