//! What is done to the requests of a trace on their way into a replay.

use crate::error::{Complaint, TraceError};
use crate::fit::Fitter;
use crate::request::Request;

/// Adapters of requests, which come in order of time.
pub trait Adapt: Iterator<Item = Result<Request, TraceError>> + Sized {
    /// The requests that arrive from `from_ns` on, for `for_ns`; times then count from `from_ns`.
    fn window(self, from_ns: u64, for_ns: u64) -> Window<Self> {
        Window { requests: self, from_ns, until_ns: from_ns.saturating_add(for_ns), over: false }
    }

    /// The requests with `factor` times as many arrivals a second (0.5: half as many). Refused: a factor that is not a
    /// number above 0, and a request that comes after more than 292 years then.
    fn accelerated(self, factor: f64) -> Result<Accelerated<Self>, TraceError> {
        if factor.is_finite() && factor > 0.0 {
            return Ok(Accelerated { requests: self, factor, number: 0 });
        }
        Err(Complaint::new(format!("an acceleration of {factor}"), "give a number above 0").nowhere())
    }

    /// The requests at places that a volume has.
    fn fitted(self, fitter: Fitter) -> Fitted<Self> {
        Fitted { requests: self, fitter, number: 0, failed: false }
    }
}

impl<I: Iterator<Item = Result<Request, TraceError>>> Adapt for I {}

/// See [`Adapt::window`].
pub struct Window<I> {
    requests: I,
    from_ns: u64,
    until_ns: u64,
    over: bool,
}

impl<I: Adapt> Iterator for Window<I> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.over {
            match self.requests.next()? {
                Ok(request) if request.at_ns < self.from_ns => {}
                Ok(request) if request.at_ns < self.until_ns => {
                    return Some(Ok(Request { at_ns: request.at_ns - self.from_ns, ..request }));
                }
                Ok(_) => self.over = true,
                error => return Some(error),
            }
        }
        None
    }
}

/// See [`Adapt::accelerated`].
pub struct Accelerated<I> {
    requests: I,
    factor: f64,
    /// Requests so far.
    number: u64,
}

/// The latest time that is accelerated to: half of what can be told, so that what answers a request has time left.
const LATEST_NS: f64 = i64::MAX as f64;

impl<I: Adapt> Iterator for Accelerated<I> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.requests.next()?;
        self.number += 1;
        Some(next.and_then(|request| {
            // 2^53 ns (104 days) are exact to the nanosecond.
            let at_ns = request.at_ns as f64 / self.factor;
            if at_ns > LATEST_NS {
                let what = format!("with an acceleration of {:?} it comes after more than 292 years", self.factor);
                return Err(Complaint::new(what, "accelerate more").at_request(self.number));
            }
            Ok(Request { at_ns: at_ns as u64, ..request })
        }))
    }
}

/// See [`Adapt::fitted`].
pub struct Fitted<I> {
    requests: I,
    fitter: Fitter,
    /// Requests so far.
    number: u64,
    failed: bool,
}

impl<I: Adapt> Iterator for Fitted<I> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        self.number += 1;
        let next = self.requests.next()?;
        let fitted = next.and_then(|request| self.fitter.fit(request).map_err(|c| c.at_request(self.number)));
        self.failed = fitted.is_err();
        Some(fitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Op;

    fn at(times: &[u64]) -> impl Iterator<Item = Result<Request, TraceError>> {
        let request = |at_ns| Request { at_ns, op: Op::Read, offset_bytes: 0, len_bytes: 512, response_ns: 0 };
        times.iter().copied().map(move |at_ns| Ok(request(at_ns)))
    }

    fn times(requests: impl Adapt) -> Vec<u64> {
        requests.map(|request| request.expect("sound").at_ns).collect()
    }

    #[test]
    fn a_window_counts_from_its_begin() {
        assert_eq!(times(at(&[0, 10, 15, 20, 30]).window(10, 10)), [0, 5]);
        assert_eq!(times(at(&[0, 10, 30]).window(10, u64::MAX)), [0, 20]);
    }

    #[test]
    fn a_trace_is_not_stretched_beyond_what_can_be_told() {
        let mut slow = at(&[0, 10]).accelerated(1e-300).expect("allowed");
        assert!(slow.next().expect("a request").is_ok());
        let error = slow.next().expect("a request").expect_err("refused").to_string();
        assert!(
            error.starts_with("request 2: with an acceleration of 1e-300") && error.contains("292 years"),
            "{error}"
        );
    }

    #[test]
    fn acceleration_divides_times() {
        assert_eq!(times(at(&[0, 10, 30]).accelerated(2.0).expect("allowed")), [0, 5, 15]);
        assert_eq!(times(at(&[0, 10, 30]).accelerated(0.5).expect("allowed")), [0, 20, 60]);
        for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = at(&[]).accelerated(factor).err().expect("refused").to_string();
            assert!(error.ends_with("give a number above 0"), "{error}");
        }
    }
}
