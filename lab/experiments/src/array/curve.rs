//! A measure over the rate of arrivals, one curve an array: pure.

/// The measure at each rate, the lowest rate first; none where the array fell behind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve(pub Vec<(f64, Option<f64>)>);

impl Curve {
    /// What was measured, up to the first rate at which the array fell behind.
    pub fn kept_up(&self) -> impl Iterator<Item = (f64, f64)> {
        self.0.iter().map_while(|(rate, value)| Some((*rate, (*value)?)))
    }

    /// The highest rate at which the array kept up, with all lower ones; 0 where there is none.
    pub fn saturation(&self) -> f64 {
        self.kept_up().last().map_or(0.0, |(rate, _)| rate)
    }

    /// The rate at which the measure reaches `value`, between two rates in proportion; where it never does, the highest
    /// rate at which the array kept up.
    pub fn rate_at(&self, value: f64) -> f64 {
        let mut before = None;
        for (rate, here) in self.kept_up() {
            if here >= value {
                let (from, low): (f64, f64) = before.unwrap_or((0.0, 0.0));
                return from + (rate - from) * (value - low) / (here - low).max(f64::MIN_POSITIVE);
            }
            before = Some((rate, here));
        }
        self.saturation()
    }

    /// The measure at the highest rate measured that is not above `rate`; none where there is none.
    pub fn up_to(&self, rate: f64) -> Option<f64> {
        self.kept_up().take_while(|(here, _)| *here <= rate).last().map(|(_, value)| value)
    }

    /// Where both kept up: this over the other, at each rate.
    pub fn over<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = f64> + 'a {
        self.kept_up().zip(other.kept_up()).map(|((_, ours), (_, theirs))| ours / theirs)
    }

    /// The least of this over the other, at all rates at which this kept up: 0 where the other did not.
    pub fn least_over(&self, other: &Self) -> f64 {
        let other: Vec<(f64, f64)> = other.kept_up().collect();
        let ratio = |(nth, (_, ours)): (usize, (f64, f64))| other.get(nth).map_or(0.0, |(_, theirs)| ours / theirs);
        self.kept_up().enumerate().map(ratio).fold(f64::INFINITY, f64::min)
    }

    /// The deepest fall from one rate to the next, as a part of the higher one; 0 where it only rises.
    pub fn deepest_fall(&self) -> f64 {
        let points: Vec<(f64, f64)> = self.kept_up().collect();
        points.windows(2).map(|pair| 1.0 - pair[1].1 / pair[0].1).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_ends_where_the_array_falls_behind() {
        let curve = Curve(vec![(100.0, Some(10.0)), (200.0, Some(20.0)), (300.0, None), (400.0, Some(5.0))]);
        assert!((curve.saturation() - 200.0).abs() < 1e-9 && Curve::default().saturation() == 0.0);
        for (value, rate) in [(5.0, 50.0), (15.0, 150.0), (20.0, 200.0), (1000.0, 200.0)] {
            assert!((curve.rate_at(value) - rate).abs() < 1e-9, "{value}: {}", curve.rate_at(value));
        }
        assert_eq!([99.0, 100.0, 350.0].map(|rate| curve.up_to(rate)), [None, Some(10.0), Some(20.0)]);
        let other = Curve(vec![(100.0, Some(5.0)), (200.0, None)]);
        assert_eq!(curve.over(&other).collect::<Vec<_>>(), [2.0]);
        assert!(curve.least_over(&other) <= 0.0 && (other.least_over(&curve) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_fall_is_seen() {
        let curve = |values: [f64; 3]| Curve((1_u32..).zip(values).map(|(n, value)| (n.into(), Some(value))).collect());
        assert!(curve([10.0, 20.0, 30.0]).deepest_fall() <= 0.0);
        assert!((curve([10.0, 20.0, 15.0]).deepest_fall() - 0.25).abs() < 1e-9);
    }
}
