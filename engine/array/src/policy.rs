//! Which disks: decisions from facts, no I/O.

use crate::hot::Pair;
use kura_block::DeviceId;

/// A disk that could take a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The disk.
    pub device: DeviceId,
    /// Free extents on it, as far as is known here.
    pub free: u32,
    /// Extents taken from it here since the start.
    pub taken: u32,
}

/// Chooses distinct disks for `copies` copies of a new extent: those with most free, by eighths of the emptiest one (what
/// others have leased and do not use yet is no reason to avoid a disk), and among these the one least taken from, so
/// that disks fill evenly. `None` when fewer than `copies` disks have room.
pub fn choose_disks(copies: usize, candidates: &[Candidate]) -> Option<Vec<DeviceId>> {
    let mut open: Vec<_> = candidates.iter().filter(|candidate| candidate.free > 0).collect();
    let most = open.iter().map(|candidate| u64::from(candidate.free)).max().unwrap_or(1);
    let eighths = |candidate: &Candidate| (u64::from(candidate.free) * 8).div_ceil(most);
    open.sort_by_key(|candidate| (std::cmp::Reverse(eighths(candidate)), candidate.taken, candidate.device));
    (open.len() >= copies).then(|| open[..copies].iter().map(|candidate| candidate.device).collect())
}

/// Chooses which of several copies to read: the shortest queue, then the one nearest to the last place asked for on its
/// disk; among equals neighbouring megabytes alternate, so that a sequential read uses all disks. `queues` has one entry a
/// copy, its queue and its distance in bytes, `None` for one that cannot be read.
pub fn choose_copy(queues: &[Option<(u32, u64)>], offset: u64) -> Option<usize> {
    let first = (offset >> 20) as usize;
    (0..queues.len())
        .map(|turn| (first + turn) % queues.len())
        .filter_map(|copy| queues[copy].map(|queue| (queue, copy)))
        .min_by_key(|(queue, _)| *queue)
        .map(|(_, copy)| copy)
}

/// Chooses the pair of disks that takes a batch of the hot area: the one with the least to do, and of these the one with
/// most writable tracks. A fact is a pair, the requests it has to do, and its writable tracks.
pub fn choose_pair(facts: &[(Pair, u32, u32)]) -> Option<Pair> {
    let best = facts.iter().min_by_key(|(pair, queue, tracks)| (*queue, std::cmp::Reverse(*tracks), *pair));
    best.map(|(pair, ..)| *pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_disks_take_the_copies() {
        let disks = [(0, 5, 0), (1, 9, 3), (2, 9, 1), (3, 0, 0)];
        let disks = disks.map(|(id, free, taken)| Candidate { device: DeviceId(id), free, taken });
        assert_eq!(choose_disks(2, &disks), Some(vec![DeviceId(2), DeviceId(1)]));
        assert_eq!(choose_disks(3, &disks), Some(vec![DeviceId(2), DeviceId(1), DeviceId(0)]));
        assert_eq!(choose_disks(4, &disks), None);
        let leased = [(0, 936, 1), (1, 1000, 2)];
        let leased = leased.map(|(id, free, taken)| Candidate { device: DeviceId(id), free, taken });
        assert_eq!(choose_disks(1, &leased), Some(vec![DeviceId(0)]), "what others have leased is not avoided");
    }

    #[test]
    fn the_idle_pair_takes_a_batch() {
        let pair = |first| (DeviceId(first), DeviceId(first + 1));
        assert_eq!(choose_pair(&[]), None);
        assert_eq!(choose_pair(&[(pair(0), 2, 9), (pair(1), 0, 1)]), Some(pair(1)));
        assert_eq!(choose_pair(&[(pair(0), 1, 3), (pair(1), 1, 9), (pair(2), 1, 9)]), Some(pair(1)));
    }

    #[test]
    fn the_shorter_queue_is_read_and_a_lost_copy_never() {
        assert_eq!(choose_copy(&[Some((3, 0)), Some((1, 9))], 0), Some(1));
        assert_eq!(choose_copy(&[Some((1, 9)), Some((1, 5))], 0), Some(1));
        assert_eq!(choose_copy(&[Some((1, 0)), Some((1, 0))], 0), Some(0));
        assert_eq!(choose_copy(&[Some((1, 0)), Some((1, 0))], 1 << 20), Some(1));
        assert_eq!(choose_copy(&[None, Some((7, 0))], 0), Some(1));
        assert_eq!(choose_copy(&[None, None], 0), None);
    }
}
