//! When and how hard to empty the write buffer, and how fast to rebuild: decisions from facts, no I/O.

use kura_array::hot::HotSettings;
use std::time::Duration;

/// The write buffer and the journal as they stand.
#[derive(Clone, Copy, Debug)]
pub struct Pressure {
    /// Bytes in the write buffer.
    pub dirty_bytes: u64,
    /// The most it takes.
    pub limit_bytes: u64,
    /// A checkpoint waits for the buffer.
    pub urgent: bool,
    /// No write has come for a while.
    pub idle: bool,
}

/// Writes to the disks at once when nothing holds back.
const WIDTH: u64 = 32;
/// Writes at once while the clients are quiet.
const IDLE_WIDTH: u64 = 4;

/// How many writes to the disks may be under way at once. Below a quarter full the buffer only gathers (a block written
/// again costs nothing, and neighbours join), unless nobody writes; from there the width grows with what is dirty.
pub fn destage_width(now: Pressure) -> usize {
    let low = now.limit_bytes / 4;
    let width = if now.urgent {
        WIDTH
    } else if now.dirty_bytes <= low {
        if now.idle { IDLE_WIDTH } else { 0 }
    } else {
        (IDLE_WIDTH + (now.dirty_bytes - low) * 2 * WIDTH / now.limit_bytes.max(1)).min(WIDTH)
    };
    width as usize
}

/// True when the journal should be made shorter: half its ring is used, or too many checksum pages wait to be written.
pub fn checkpoint_due(used_bytes: u64, ring_bytes: u64, dirty_pages: usize, page_limit: usize) -> bool {
    used_bytes >= ring_bytes / 2 || dirty_pages >= page_limit / 2
}

/// How many groups fit that lie on `width` disks each, where disks have so many `free` extents: each group takes one of each of
/// its disks.
pub fn groups_that_fit(width: usize, free: &[u64]) -> u64 {
    // So many fit where the disks, of each at most that many, have enough for all.
    let fits = |groups: u64| {
        free.iter().map(|free| u128::from(*free.min(&groups))).sum::<u128>() >= u128::from(groups) * width as u128
    };
    let (mut least, mut most) = (0, free.iter().sum::<u64>() / width.max(1) as u64);
    while least < most {
        let middle = most - (most - least) / 2;
        if fits(middle) { least = middle } else { most = middle - 1 }
    }
    least
}

/// How long a rebuild rests after it moved `bytes` in `took`: not at all while nobody uses the volumes, as long as the
/// move took while somebody does, and in any case so long that it keeps to `limit_bytes_per_s` (0: no limit).
pub fn rebuild_rest(took: Duration, bytes: u64, busy: bool, limit_bytes_per_s: u64) -> Duration {
    let fair = if busy { took } else { Duration::ZERO };
    let paced = match limit_bytes_per_s {
        0 => Duration::ZERO,
        limit => {
            Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(limit)) as u64).saturating_sub(took)
        }
    };
    fair.max(paced)
}

/// Mirrored extents that a controller's hot area may have, whose part of the disks is so many extents: its share of them, half
/// for each copy, and what its table may take of memory.
pub fn hot_extents(disk_extents: u64, extent_bytes: u64, settings: &HotSettings) -> u64 {
    let share = disk_extents * u64::from(settings.share_permille) / 1000 / 2;
    share.min(hot_extents_most(extent_bytes, settings) as u64)
}

/// Mirrored extents that a controller's hot area never has more of, but for one on each pair of disks: its table lies in memory.
pub fn hot_extents_most(extent_bytes: u64, settings: &HotSettings) -> usize {
    (settings.limit_bytes / extent_bytes.max(1)) as usize
}

/// True where the hot area may have more than its share on a disk with so many free extents of `all`: others find more than a
/// quarter of it free.
pub fn is_plenty(free: u32, all: u32) -> bool {
    free > all / 4
}

/// True where the hot area returns what it has beyond its share on a disk: less than an eighth of it is left for others.
pub fn is_scarce(free: u32, all: u32) -> bool {
    free < all.div_ceil(8)
}

/// Whether cold blocks of a pair of disks go to their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// There is room enough.
    Rest,
    /// When the disks have nothing else to do.
    Later,
    /// Now.
    Now {
        /// There is hardly room: what else the disks have to do does not go first.
        urgent: bool,
        /// There is none: whatever the blocks' Age.
        any: bool,
    },
}

/// Decides on a pair with `writable` tracks: with `enough` of them it rests; with few it migrates beside whatever goes on;
/// else only while its disks are `idle`. When the hot area `returns` what it has beyond its share, all blocks go, as long as the
/// disks are idle.
pub fn migration(writable: u32, enough: u32, idle: bool, returns: bool) -> Migration {
    if returns {
        if idle { Migration::Now { urgent: false, any: true } } else { Migration::Later }
    } else if writable >= enough {
        Migration::Rest
    } else if writable <= enough / 8 {
        Migration::Now { urgent: true, any: writable == 0 }
    } else if idle {
        Migration::Now { urgent: false, any: false }
    } else {
        Migration::Later
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_grows_with_what_is_dirty() {
        let at = |dirty_bytes, urgent, idle| destage_width(Pressure { dirty_bytes, limit_bytes: 1000, urgent, idle });
        assert_eq!(at(200, false, false), 0);
        assert_eq!(at(200, false, true), 4);
        assert_eq!(at(1, true, false), 32);
        assert!(at(300, false, false) < at(500, false, false));
        assert_eq!(at(1000, false, false), 32);
    }

    #[test]
    fn a_rebuild_gives_way_and_keeps_to_its_limit() {
        let rest = |took, busy, limit| rebuild_rest(Duration::from_millis(took), 4_000_000, busy, limit).as_millis();
        assert_eq!(rest(50, false, 0), 0);
        assert_eq!(rest(50, true, 0), 50);
        assert_eq!(rest(50, false, 40_000_000), 50, "100 ms for 4 MB");
        assert_eq!(rest(150, false, 40_000_000), 0, "slower than its limit already");
        assert_eq!(rest(10, true, 40_000_000), 90);
    }

    #[test]
    fn the_hot_area_has_its_share_and_not_all_memory() {
        let extents = |disk_gib: u64| hot_extents(disk_gib << 8, 4 << 20, &HotSettings::TODAY);
        assert_eq!(extents(24), 307, "a twentieth is held twice");
        assert_eq!((extents(80), extents(81), extents(60_000)), (1024, 1024, 1024), "4 GiB");
    }

    #[test]
    fn the_hot_area_borrows_what_is_plenty_and_returns_what_is_scarce() {
        for (free, plenty, scarce) in [(26, true, false), (25, false, false), (13, false, false), (12, false, true)] {
            assert_eq!((is_plenty(free, 100), is_scarce(free, 100)), (plenty, scarce), "{free}");
        }
        assert!(is_scarce(0, 3) && !is_scarce(1, 3) && is_plenty(1, 3), "a small disk");
    }

    #[test]
    fn groups_fit_as_their_disks_allow() {
        for (width, free, groups) in [
            (1, &[3, 4][..], 7),
            (2, &[3, 4], 3),
            (2, &[10, 1, 1], 2),
            (3, &[4, 4, 4, 4], 5),
            (3, &[4, 4], 0),
            (2, &[], 0),
        ] {
            assert_eq!(groups_that_fit(width, free), groups, "{width} {free:?}");
        }
    }

    #[test]
    fn cold_blocks_go_when_room_is_wanted() {
        let at = |writable, idle| migration(writable, 80, idle, false);
        assert_eq!(at(80, true), Migration::Rest);
        assert_eq!(at(79, false), Migration::Later);
        assert_eq!(at(79, true), Migration::Now { urgent: false, any: false });
        assert_eq!(at(10, false), Migration::Now { urgent: true, any: false });
        assert_eq!(at(0, false), Migration::Now { urgent: true, any: true });
        assert_eq!(migration(80, 80, true, true), Migration::Now { urgent: false, any: true }, "it returns");
        assert_eq!(migration(80, 80, false, true), Migration::Later, "not while somebody uses the disks");
    }
}
