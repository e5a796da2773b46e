//! A load by name.

use crate::arrivals::Bursts;
use crate::concentrations::Concentrations;
use crate::params::{Invalid, Parameter, Params, spell_out};
use crate::plain::Plain;
use crate::tpcc::Tpcc;
use kura_trace::Request;
use std::fmt;
use std::str::FromStr;

/// What a name begins with where a trace's path could stand instead.
pub const PREFIX: &str = "load:";

const YEAR_S: f64 = 365.0 * 86400.0;
/// The longest that a load may take: times are nanoseconds in 64 bits, 584 years, and arrivals at random take longer or
/// less long than they do on average.
const LONGEST_S: f64 = 300.0 * YEAR_S;

/// A load, told by a text as `zipf,theta=1.2,seconds=600,seed=7`: a name and parameters in any order, each with a
/// default. [`PREFIX`] before it is allowed. Two of the same text give the same requests.
#[derive(Clone, Debug)]
pub struct Spec {
    name: &'static str,
    parameters: Vec<Parameter>,
    kind: Kind,
    bounds: Bounds,
}

#[derive(Clone, Debug)]
enum Kind {
    Plain(Plain),
    Concentrations(Concentrations),
    Tpcc(Tpcc),
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    seed: u64,
    end_ns: u64,
    requests: u64,
    bursts: Option<Bursts>,
}

/// One load there is, for a help text.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub what: &'static str,
    /// What it can be told, with the defaults.
    pub parameters: Vec<Parameter>,
}

/// A way to make a load of parameters.
struct Maker {
    name: &'static str,
    what: &'static str,
    seconds: f64,
    make: fn(&mut Params) -> Result<Kind, Invalid>,
}

const MAKERS: &[Maker] = &[
    Maker {
        name: "uniform",
        what: "every block alike",
        seconds: 60.0,
        make: |params| Plain::uniform(params).map(Kind::Plain),
    },
    Maker {
        name: "zipf",
        what: "a few blocks draw most requests, by Zipf's law",
        seconds: 60.0,
        make: |params| Plain::zipf(params).map(Kind::Plain),
    },
    Maker {
        name: "sequential",
        what: "streams from block to block",
        seconds: 60.0,
        make: |params| Plain::sequential(params).map(Kind::Plain),
    },
    Maker {
        name: "concentrations",
        what: "shared files: most requests in 1 % of the capacity for minutes, then elsewhere",
        seconds: 3600.0,
        make: |params| Concentrations::general(params).map(Kind::Concentrations),
    },
    Maker {
        name: "src1_0-like",
        what: "concentrations with 11 % reads over 293 GiB for 100 min; generated, not the MSR Cambridge trace",
        seconds: 6000.0,
        make: |params| Concentrations::src1_0_like(params).map(Kind::Concentrations),
    },
    Maker {
        name: "src1_1-like",
        what: "concentrations with 99 % reads over 293 GiB for 120 min; generated, not the MSR Cambridge trace",
        seconds: 7200.0,
        make: |params| Concentrations::src1_1_like(params).map(Kind::Concentrations),
    },
    Maker {
        name: "tpcc-like",
        what: "disk accesses of a database under TPC-C's transactions, behind its buffer cache; generated",
        seconds: 3600.0,
        make: |params| Tpcc::from_params(params).map(Kind::Tpcc),
    },
];

impl FromStr for Spec {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::with_seed(text, 1)
    }
}

/// The text with every parameter spelt out, defaults too: what to keep beside a result.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", spell_out(self.name, &self.parameters))
    }
}

impl Spec {
    /// The load that `text` tells, with this seed where the text names none.
    pub fn with_seed(text: &str, seed: u64) -> Result<Self, Invalid> {
        let mut params = Params::split(text.strip_prefix(PREFIX).unwrap_or(text))?;
        let Some(maker) = MAKERS.iter().find(|maker| maker.name == params.load()) else {
            let names: Vec<&str> = MAKERS.iter().map(|maker| maker.name).collect();
            return Err(Invalid(format!("load:{}: no such load: there are {}", params.load(), names.join(", "))));
        };
        let kind = (maker.make)(&mut params)?;
        let bounds = Bounds::from_params(&mut params, maker.seconds, seed)?;
        Ok(Self { name: maker.name, parameters: params.finish()?, kind, bounds })
    }

    /// Bytes a device must have to take it.
    pub fn size_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Plain(plain) => plain.size_bytes(),
            Kind::Concentrations(concentrations) => concentrations.size_bytes(),
            Kind::Tpcc(tpcc) => tpcc.size_bytes(),
        }
    }

    /// Its requests, in order of time, from the first at 0.
    pub fn requests(&self) -> Requests {
        let seed = self.bounds.seed;
        let inner: Box<dyn Iterator<Item = Request> + Send> = match &self.kind {
            Kind::Plain(plain) => Box::new(plain.requests(seed)),
            Kind::Concentrations(concentrations) => Box::new(concentrations.requests(seed)),
            Kind::Tpcc(tpcc) => Box::new(tpcc.requests(seed)),
        };
        Requests { inner, bounds: self.bounds, taken: 0, at_ns: 0 }
    }
}

impl Bounds {
    fn from_params(params: &mut Params, seconds: f64, seed: u64) -> Result<Self, Invalid> {
        let requests = params.count("requests", 0, 0..=u64::MAX, "ends after as many; 0: when the seconds are over")?;
        // Who counts requests does not mean to be stopped by the clock.
        let seconds = if requests == 0 { seconds } else { 0.0 };
        let seconds = params.number("seconds", seconds, 0.0..=1e9, "ends after as many; 0: after the requests")?;
        if requests == 0 && seconds == 0.0 {
            return Err(Invalid(format!("load:{}: it never ends: give seconds or requests", params.load())));
        }
        let bursts = Bursts::from_params(params)?;
        let lasts_s = requests as f64 / params.rate_per_s * bursts.map_or(1.0, Bursts::longer);
        if seconds == 0.0 && lasts_s > LONGEST_S {
            let (load, rate) = (params.load(), params.rate_per_s);
            let years = lasts_s / YEAR_S;
            return Err(Invalid(format!(
                "load:{load}: {requests} requests at {rate} a second take {years:.0} years: give fewer, or a higher rate"
            )));
        }
        let seed = params.count("seed", seed, 0..=u64::MAX, "another seed, another course of the same load")?;
        let end_ns = if seconds == 0.0 { u64::MAX } else { (seconds * 1e9) as u64 };
        Ok(Self { seed, end_ns, requests: if requests == 0 { u64::MAX } else { requests }, bursts })
    }
}

/// The requests of a load.
pub struct Requests {
    inner: Box<dyn Iterator<Item = Request> + Send>,
    bounds: Bounds,
    taken: u64,
    /// When the last one arrived.
    at_ns: u64,
}

impl Requests {
    /// How much of the load has come, 0 to 1.
    pub fn progress(&self) -> f64 {
        let of = |done: u64, all: u64| done as f64 / all.max(1) as f64;
        of(self.taken, self.bounds.requests).max(of(self.at_ns, self.bounds.end_ns)).min(1.0)
    }
}

impl Iterator for Requests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        if self.taken == self.bounds.requests {
            return None;
        }
        self.taken += 1;
        let mut request = self.inner.next()?;
        if let Some(bursts) = self.bounds.bursts {
            request.at_ns = bursts.stretch(request.at_ns);
        }
        self.at_ns = request.at_ns;
        (request.at_ns < self.bounds.end_ns).then_some(request)
    }
}

/// Every load there is, with its parameters and defaults.
pub fn list() -> Vec<Entry> {
    let entry = |maker: &Maker| {
        let spec = maker.name.parse::<Spec>().ok()?;
        Some(Entry { name: maker.name, what: maker.what, parameters: spec.parameters })
    };
    MAKERS.iter().filter_map(entry).collect()
}
