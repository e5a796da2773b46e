//! Shapes of distributions, in numbers: pure.

/// Reads, writes and how many blocks were read and written so often.
type Frequencies = [[u64; 3]];

/// The most often counted apart: in classes that double.
const CLASSES: [&str; 12] =
    ["0", "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65-128", "129-256", "257-512", "513+"];

fn class(times: u64) -> usize {
    let class = if times == 0 { 0 } else { times.next_power_of_two().trailing_zeros() as usize + 1 };
    class.min(CLASSES.len() - 1)
}

/// Names of the classes, as an axis has them.
pub fn class_names_in(order: &str) -> Vec<&'static str> {
    if order == "falling" { CLASSES.iter().rev().copied().collect() } else { CLASSES.to_vec() }
}

/// All accesses.
pub fn accesses(frequencies: &Frequencies) -> u64 {
    frequencies.iter().map(of_class).sum()
}

fn of_class([reads, writes, blocks]: &[u64; 3]) -> u64 {
    (reads + writes) * blocks
}

/// The share of accesses to the blocks for which `counts` holds of reads and writes.
pub fn share_of_accesses(frequencies: &Frequencies, counts: impl Fn(u64, u64) -> bool) -> f64 {
    let some: u64 = frequencies.iter().filter(|[reads, writes, _]| counts(*reads, *writes)).map(of_class).sum();
    some as f64 / accesses(frequencies).max(1) as f64
}

/// Shares of accesses by class of reads and of writes; only classes that have some.
pub fn by_class(frequencies: &Frequencies) -> Vec<(&'static str, &'static str, f64)> {
    let mut shares = Vec::new();
    for (writes, writes_name) in CLASSES.iter().enumerate() {
        for (reads, reads_name) in CLASSES.iter().enumerate() {
            let share = share_of_accesses(frequencies, |r, w| class(r) == reads && class(w) == writes);
            if share > 0.0 {
                shares.push((*reads_name, *writes_name, share));
            }
        }
    }
    shares
}

/// The share of accesses to blocks that are both read and written.
pub fn read_and_written(frequencies: &Frequencies) -> f64 {
    share_of_accesses(frequencies, |reads, writes| reads > 0 && writes > 0)
}

/// The share of accesses to blocks that are written over four times.
pub fn often_written(frequencies: &Frequencies) -> f64 {
    share_of_accesses(frequencies, |_, writes| writes > 4)
}

/// How often the blocks that take the most accesses are read and written.
pub fn busiest(frequencies: &Frequencies) -> (u64, u64) {
    let busiest = frequencies.iter().max_by_key(|class| of_class(class));
    busiest.map_or((0, 0), |[reads, writes, _]| (*reads, *writes))
}

/// A part of a distribution: from a value to twice that value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rise {
    /// Where it begins.
    pub from: u64,
    /// The share in it.
    pub share: f64,
}

/// The doubling in which a distribution, given as values with the share at or below, rises the most.
pub fn steepest_doubling(distribution: &[(u64, f64)]) -> Rise {
    let rises = distribution.iter().map(|&(value, _)| {
        // The rise is to take this value in.
        let from = value.saturating_sub(1).max(1);
        Rise { from, share: share_before(distribution, from * 2) - share_before(distribution, from) }
    });
    rises.max_by(|one, other| one.share.total_cmp(&other.share)).unwrap_or(Rise { from: 0, share: 0.0 })
}

/// The share at or below a value.
pub fn share_before(distribution: &[(u64, f64)], value: u64) -> f64 {
    let below = distribution.partition_point(|(at, _)| *at <= value);
    below.checked_sub(1).map_or(0.0, |last| distribution[last].1)
}

/// The least value that has this share at or below it; the last where none has.
pub fn value_at(distribution: &[(u64, f64)], share: f64) -> u64 {
    let reached = distribution.iter().find(|(_, at)| *at >= share).or(distribution.last());
    reached.map_or(0, |(value, _)| *value)
}

/// How alike a series is to itself some time later: its highest autocorrelation after the first that is below zero; 0
/// to 1, and 0 where there is none.
pub fn periodicity(series: &[f64]) -> f64 {
    let mean = series.iter().sum::<f64>() / series.len().max(1) as f64;
    let off: Vec<f64> = series.iter().map(|value| value - mean).collect();
    let product = |lag: usize| off.iter().zip(&off[lag..]).map(|(one, later)| one * later).sum::<f64>();
    let variance = product(0);
    if variance <= 0.0 {
        return 0.0;
    }
    let correlations = (1..=series.len() / 2).map(|lag| product(lag) / variance);
    correlations.skip_while(|correlation| *correlation >= 0.0).fold(0.0, f64::max)
}
