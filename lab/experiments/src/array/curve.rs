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

    /// The highest rate at which this kept up, over the other's; none where the other was not seen to fall behind, for then its
    /// highest rate is not known.
    pub fn saturation_over(&self, other: &Self) -> Option<f64> {
        other.fell_behind().then(|| self.saturation() / other.saturation().max(1.0))
    }

    /// Whether a rate was tried at which the array fell behind.
    pub fn fell_behind(&self) -> bool {
        self.0.iter().any(|(_, value)| value.is_none())
    }

    /// The rate at which the measure reaches `value`, between two rates in proportion; none where it does not before the array
    /// falls behind, or the rates end.
    pub fn rate_at(&self, value: f64) -> Option<f64> {
        let mut before = (0.0, 0.0);
        for (rate, here) in self.kept_up() {
            if here >= value {
                let (from, low): (f64, f64) = before;
                return Some(from + (rate - from) * (value - low) / (here - low).max(f64::MIN_POSITIVE));
            }
            before = (rate, here);
        }
        None
    }

    /// The rate of this over the other's where both have an equal measure: `value`, or the highest that both reach. Not a number
    /// where one of them kept up with no rate.
    pub fn rate_over(&self, other: &Self, value: f64) -> f64 {
        let highest = |curve: &Self| curve.kept_up().map(|(_, value)| value).fold(0.0, f64::max);
        let equal = value.min(highest(self)).min(highest(other));
        self.rate_at(equal).zip(other.rate_at(equal)).map_or(f64::NAN, |(ours, theirs)| ours / theirs)
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

    /// The deepest fall from one rate to the next, as a part of the higher one; 0 where it only rises. Not a number where the array kept up
    /// with less than two rates, for then nothing can fall.
    pub fn deepest_fall(&self) -> f64 {
        let points: Vec<(f64, f64)> = self.kept_up().collect();
        let falls = points.windows(2).map(|pair| 1.0 - pair[1].1 / pair[0].1);
        if points.len() < 2 { f64::NAN } else { falls.fold(0.0, f64::max) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_ends_where_the_array_falls_behind() {
        let curve = Curve(vec![(100.0, Some(10.0)), (200.0, Some(20.0)), (300.0, None), (400.0, Some(5.0))]);
        assert!((curve.saturation() - 200.0).abs() < 1e-9 && Curve::default().saturation() == 0.0);
        for (value, rate) in [(5.0, 50.0), (15.0, 150.0), (20.0, 200.0)] {
            assert!((curve.rate_at(value).unwrap() - rate).abs() < 1e-9, "{value}: {:?}", curve.rate_at(value));
        }
        assert_eq!(curve.rate_at(20.1), None);
        assert_eq!([99.0, 100.0, 350.0].map(|rate| curve.up_to(rate)), [None, Some(10.0), Some(20.0)]);
        let other = Curve(vec![(100.0, Some(5.0)), (200.0, None)]);
        assert_eq!(curve.over(&other).collect::<Vec<_>>(), [2.0]);
        assert!(curve.least_over(&other) <= 0.0 && (other.least_over(&curve) - 0.5).abs() < 1e-9);
    }

    /// The last rate that was tried is nobody's highest, and a measure that one does not reach is not compared.
    #[test]
    fn the_end_of_the_rates_is_no_saturation() {
        let ours = Curve(vec![(100.0, Some(10.0)), (200.0, Some(50.0)), (300.0, None)]);
        let other = Curve(vec![(100.0, Some(10.0)), (200.0, Some(20.0)), (300.0, Some(30.0))]);
        assert_eq!(ours.saturation_over(&other), None);
        assert_eq!(other.saturation_over(&ours), Some(1.5));
        // Both reach 30 ms and one of them 60.
        assert!((ours.rate_over(&other, 60.0) - 0.5).abs() < 1e-9, "{}", ours.rate_over(&other, 60.0));
        assert!((ours.rate_over(&other, 20.0) - 125.0 / 200.0).abs() < 1e-9, "{}", ours.rate_over(&other, 20.0));
        assert!(ours.rate_over(&Curve(vec![(100.0, None)]), 60.0).is_nan());
    }

    #[test]
    fn a_fall_is_seen() {
        let curve = |values: [f64; 3]| Curve((1_u32..).zip(values).map(|(n, value)| (n.into(), Some(value))).collect());
        assert!(curve([10.0, 20.0, 30.0]).deepest_fall() <= 0.0);
        assert!((curve([10.0, 20.0, 15.0]).deepest_fall() - 0.25).abs() < 1e-9);
        // Of one rate, or none, nothing is known.
        let behind = |values: [Option<f64>; 2]| Curve((1_u32..).zip(values).map(|(n, it)| (n.into(), it)).collect());
        for values in [[Some(10.0), None], [None, Some(10.0)]] {
            assert!(behind(values).deepest_fall().is_nan(), "{values:?}");
        }
    }
}
