//! Which disks: decisions from facts, no I/O.

use crate::hot::Pair;
use kura_block::DeviceId;
use std::cmp::Reverse;
use std::hash::{DefaultHasher, Hash, Hasher};

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
/// that disks fill evenly. Of equals, every turn has another order where they scatter: then each disk shares groups with all
/// others, and what it held is rebuilt from all of them. `None` when fewer than `copies` disks have room.
pub fn choose_disks(copies: usize, candidates: &[Candidate], scatter: bool) -> Option<Vec<DeviceId>> {
    let mut open: Vec<_> = candidates.iter().filter(|candidate| candidate.free > 0).collect();
    let most = open.iter().map(|candidate| u64::from(candidate.free)).max().unwrap_or(1);
    let eighths = |candidate: &Candidate| (u64::from(candidate.free) * 8).div_ceil(most);
    let order = |candidate: &Candidate| if scatter { shuffled(candidate) } else { 0 };
    open.sort_by_cached_key(|candidate| {
        (Reverse(eighths(candidate)), candidate.taken, order(candidate), candidate.device)
    });
    (open.len() >= copies).then(|| open[..copies].iter().map(|candidate| candidate.device).collect())
}

/// A disk's place among those from which as much was taken.
fn shuffled(candidate: &Candidate) -> u64 {
    let mut hasher = DefaultHasher::new();
    (candidate.taken, candidate.device.0).hash(&mut hasher);
    hasher.finish()
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
    let best = facts.iter().min_by_key(|(pair, queue, tracks)| (*queue, Reverse(*tracks), *pair));
    best.map(|(pair, ..)| *pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_disks_take_the_copies() {
        let disks = [(0, 5, 0), (1, 9, 3), (2, 9, 1), (3, 0, 0)];
        let disks = disks.map(|(id, free, taken)| Candidate { device: DeviceId(id), free, taken });
        assert_eq!(choose_disks(2, &disks, true), Some(vec![DeviceId(2), DeviceId(1)]));
        assert_eq!(choose_disks(3, &disks, true), Some(vec![DeviceId(2), DeviceId(1), DeviceId(0)]));
        assert_eq!(choose_disks(4, &disks, true), None);
        let leased = [(0, 936, 1), (1, 1000, 2)];
        let leased = leased.map(|(id, free, taken)| Candidate { device: DeviceId(id), free, taken });
        assert_eq!(choose_disks(1, &leased, true), Some(vec![DeviceId(0)]), "what others have leased is not avoided");
    }

    /// How many groups each of 18 disks shares with each other, of 3400 of five disks; all of them are equally full then.
    fn shared(scatter: bool) -> [[u32; 18]; 18] {
        let mut disks =
            std::array::from_fn::<_, 18, _>(|id| Candidate { device: DeviceId(id as u16), free: 1 << 20, taken: 0 });
        let mut shared = [[0; 18]; 18];
        for _ in 0..3400 {
            let group = choose_disks(5, &disks, scatter).unwrap();
            for one in &group {
                disks[usize::from(one.0)].taken += 1;
                for other in &group {
                    shared[usize::from(one.0)][usize::from(other.0)] += 1;
                }
            }
        }
        let taken = disks.map(|disk| disk.taken);
        assert!(taken.iter().max().unwrap() - taken.iter().min().unwrap() <= 1, "{taken:?}");
        shared
    }

    #[test]
    fn a_disk_shares_groups_with_all_others_alike_or_with_its_neighbours() {
        let (scattered, together) = (shared(true), shared(false));
        // Every disk has 17,000 / 18 extents, each with four others: 222 with each of the 17.
        for (one, other) in (0..18).flat_map(|one| (0..one).map(move |other| (one, other))) {
            assert!((150..300).contains(&scattered[one][other]), "{one} and {other}: {}", scattered[one][other]);
            let far = (5..=13).contains(&(one - other));
            assert!(!far || together[one][other] == 0, "{one} and {other}: {}", together[one][other]);
        }
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
