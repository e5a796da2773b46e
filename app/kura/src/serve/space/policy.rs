//! Which threshold the pool's use has passed. Pure.

/// How far below a threshold, in per cent of the pool, use must fall before it is no longer passed: what goes up and down by
/// a few extents does not warn over and over.
const BACK_PERCENT: u8 = 2;

/// The highest of the thresholds `at_percent` that `used_bytes` of `data_bytes` have passed, when `before` was it until now.
pub fn passed(at_percent: &[u8], before: Option<u8>, used_bytes: u64, data_bytes: u64) -> Option<u8> {
    let reached = |percent: u8| u128::from(used_bytes) * 100 >= u128::from(data_bytes) * u128::from(percent);
    let is_passed = |at: &u8| {
        let was = before.is_some_and(|before| *at <= before);
        data_bytes > 0 && reached(if was { at.saturating_sub(BACK_PERCENT) } else { *at })
    };
    at_percent.iter().copied().filter(is_passed).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is passed after each of these uses of a pool of 1000 bytes, one after the other.
    fn history(at_percent: &[u8], used: &[u64]) -> Vec<Option<u8>> {
        let mut before = None;
        let next = |used: &u64| {
            before = passed(at_percent, before, *used, 1000);
            before
        };
        used.iter().map(next).collect()
    }

    #[test]
    fn the_highest_counts_whether_reached_slowly_or_at_once() {
        assert_eq!(history(&[80, 95], &[799, 800, 949, 950, 1000]), [None, Some(80), Some(80), Some(95), Some(95)]);
        assert_eq!(history(&[80, 95], &[1000, 0]), [Some(95), None]);
    }

    #[test]
    fn a_threshold_stays_passed_until_use_is_well_below() {
        assert_eq!(
            history(&[80], &[800, 790, 780, 779, 790, 800]),
            [Some(80), Some(80), Some(80), None, None, Some(80)]
        );
        assert_eq!(history(&[80, 95], &[950, 930, 929, 949, 950]), [Some(95), Some(95), Some(80), Some(80), Some(95)]);
    }

    #[test]
    fn thresholds_that_lie_close_go_one_by_one() {
        assert_eq!(history(&[80, 81], &[810, 795, 785, 775]), [Some(81), Some(81), Some(80), None]);
    }

    #[test]
    fn no_threshold_and_no_space_never_warn() {
        assert_eq!(history(&[], &[1000]), [None]);
        assert_eq!(passed(&[80], None, 0, 0), None);
        assert_eq!(passed(&[100], None, u64::MAX - 1, u64::MAX), None);
    }
}
