//! When requests arrive.

use crate::chance;
use crate::params::{Invalid, Params};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::Exp1;

/// How requests follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrivals {
    rate_per_s: f64,
    poisson: bool,
}

impl Arrivals {
    pub(crate) fn from_params(params: &mut Params, rate_per_s: f64) -> Result<Self, Invalid> {
        params.rate_per_s = params.number("rate", rate_per_s, 1e-3..=1e9, "requests a second, on average")?;
        Ok(Self {
            rate_per_s: params.rate_per_s,
            poisson: params.choice("arrivals", "poisson", &["poisson", "fixed"], "independent, or evenly spaced")?
                == "poisson",
        })
    }

    pub(crate) fn clock(self, seed: u64) -> Clock {
        Clock { arrivals: self, rng: chance::stream(seed, "arrivals"), next_ns: 0, rest_ns: 0.0 }
    }
}

/// Tells the time of one arrival after the other. The first is at 0.
pub(crate) struct Clock {
    arrivals: Arrivals,
    rng: ChaCha8Rng,
    next_ns: u64,
    /// The part of a nanosecond by which the next one is later: rates hold over years.
    rest_ns: f64,
}

impl Clock {
    pub(crate) fn tick(&mut self) -> u64 {
        self.tick_at(1.0)
    }

    /// The next arrival, after which the one that follows comes `pace` times as soon as usual.
    pub(crate) fn tick_at(&mut self, pace: f64) -> u64 {
        let now = self.next_ns;
        let gaps: f64 = if self.arrivals.poisson { self.rng.sample(Exp1) } else { 1.0 };
        let gap_ns = gaps * 1e9 / (self.arrivals.rate_per_s * pace) + self.rest_ns;
        self.next_ns = self.next_ns.saturating_add(gap_ns as u64);
        self.rest_ns = gap_ns.fract();
        now
    }
}

/// Arrivals only in the first `on` of every `on + off`: while it is off, the load's own time stands still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bursts {
    on_ns: u64,
    off_ns: u64,
}

impl Bursts {
    pub(crate) fn from_params(params: &mut Params) -> Result<Option<Self>, Invalid> {
        if params.is_given("on") && !params.is_given("off") {
            let load = params.load();
            return Err(Invalid(format!("load:{load}: on= without off= makes no bursts: give off=, or leave on= out")));
        }
        let seconds = 1e-6..=1e6;
        let on_s = params.number("on", 1.0, seconds, "bursts: seconds in which requests arrive")?;
        let off_s =
            params.number("off", 0.0, 0.0..=1e6, "bursts: seconds after each in which none does; 0: no bursts")?;
        let (on_ns, off_ns) = ((on_s * 1e9) as u64, (off_s * 1e9) as u64);
        Ok((off_ns > 0).then_some(Self { on_ns, off_ns }))
    }

    /// When a request of the load arrives that would have arrived at `at_ns` without bursts.
    pub(crate) fn stretch(self, at_ns: u64) -> u64 {
        at_ns.saturating_add((at_ns / self.on_ns).saturating_mul(self.off_ns))
    }

    /// How many times as long a load takes with them.
    pub(crate) fn longer(self) -> f64 {
        1.0 + self.off_ns as f64 / self.on_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::take;

    #[test]
    fn poisson_arrivals_are_independent_at_their_rate() {
        let requests = take("uniform,rate=2000,requests=200001,seed=5");
        let gaps: Vec<f64> = requests.windows(2).map(|pair| (pair[1].at_ns - pair[0].at_ns) as f64 / 1e9).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((mean * 2000.0 - 1.0).abs() < 0.01, "mean gap {mean} s");
        // Of an exponential law: a deviation as large as the mean, and 1/e of the gaps longer than it.
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "deviation {}", variance.sqrt() / mean);
        let longer = gaps.iter().filter(|gap| **gap > mean).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1.0f64).exp()).abs() < 0.01, "{longer} are longer than the mean");
        // Neighbouring gaps know nothing of each other.
        let product = gaps.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum::<f64>();
        assert!((product / variance / gaps.len() as f64).abs() < 0.02);
    }

    #[test]
    fn fixed_arrivals_keep_their_distance() {
        let requests = take("uniform,rate=3,arrivals=fixed,requests=100000");
        for (index, request) in requests.iter().enumerate() {
            let exact = index as f64 * 1e9 / 3.0;
            assert!((request.at_ns as f64 - exact).abs() < 2.0, "request {index} at {} ns", request.at_ns);
        }
    }

    #[test]
    fn bursts_leave_gaps_and_change_nothing_else() {
        let steady = take("zipf,rate=1000,requests=20000,seed=9");
        let bursts = take("zipf,rate=1000,requests=20000,seed=9,on=0.5,off=2");
        assert!(bursts.iter().all(|request| request.at_ns % 2_500_000_000 < 500_000_000));
        let in_burst = bursts.iter().filter(|request| request.at_ns < 500_000_000).count();
        assert!((400..600).contains(&in_burst), "{in_burst} in the first half second at 1000 a second");
        for (one, other) in steady.iter().zip(&bursts) {
            assert_eq!((one.op, one.offset_bytes, one.len_bytes), (other.op, other.offset_bytes, other.len_bytes));
        }
        assert!(bursts.is_sorted_by_key(|request| request.at_ns));
    }
}
