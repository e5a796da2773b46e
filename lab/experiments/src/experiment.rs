//! What an experiment is.

use crate::findings::Findings;
use anyhow::Result;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// A table or figure of a paper, run again, or something the papers do not have.
///
/// It says which units of work it is made of ([`points`](Self::points)), does one of them ([`run`](Self::run)), and
/// judges them all ([`judge`](Self::judge)). The frame does the rest: points on all cores, each saved when it is done,
/// results as files, the report.
pub trait Experiment: Sync {
    /// What a point is made with; as JSON it is the part of the point's identity that the experiment knows, so it must
    /// tell all that the data depend on beside seed and scale.
    type Config: Serialize + Send + Sync;
    /// What a point comes to. It is saved as JSON and read back before it is judged: no NaN, no infinity.
    type Data: Serialize + DeserializeOwned;

    /// What it is.
    fn about(&self) -> About;

    /// The units of work at this scale, with the smallest things that can be done apart from each other. `progress` hears
    /// how much is read of the traces that were given.
    fn points(&self, setting: &Setting, progress: &Progress<'_>) -> Result<Vec<Point<Self::Config>>>;

    /// True for an experiment that measures this machine: its points are done one by one, since each would disturb the
    /// others, and come to other data each time.
    fn is_measured(&self) -> bool {
        false
    }

    /// Does one point. Pure: the same point and setting come to the same data, whatever runs beside it; unless the
    /// experiment [measures](Self::is_measured).
    fn run(&self, point: &Point<Self::Config>, setting: &Setting, progress: &Progress<'_>) -> Result<Self::Data>;

    /// Tables, figures and verdicts of all the points, in the order of [`points`](Self::points).
    fn judge(&self, setting: &Setting, results: &[(Point<Self::Config>, Self::Data)]) -> Result<Findings>;
}

/// What an experiment is about, for lists and titles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct About {
    /// Its name on the command line, and its folder's.
    pub name: &'static str,
    /// The paper and figure it runs again, or "beyond".
    pub paper: &'static str,
    /// What it shows, one sentence.
    pub shows: &'static str,
}

/// A named unit of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point<C> {
    /// Its own among the experiment's points, and the name of its file: letters, digits, `-` and `.`.
    pub name: String,
    /// What it is made with.
    pub config: C,
}

/// How much is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Every experiment within ten minutes on two cores, but for large traces.
    #[default]
    Quick,
    /// The papers' scale.
    Full,
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Quick => "quick",
            Self::Full => "full",
        })
    }
}

/// What the user asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// How much is done.
    pub scale: Scale,
    /// All that is random follows from it.
    pub seed: u64,
    /// Traces, for the experiments that take some.
    pub traces: Vec<PathBuf>,
    /// The report's folder; on its device is measured what is measured for real.
    pub out: PathBuf,
}

impl Setting {
    /// One of two values, by the scale.
    pub fn scaled<T>(&self, quick: T, full: T) -> T {
        match self.scale {
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }
}

/// Where a point says how far it is.
pub struct Progress<'a> {
    tell: &'a dyn Fn(f64),
}

impl<'a> Progress<'a> {
    /// Progress told to nobody.
    pub const UNTOLD: Progress<'static> = Progress { tell: &|_| {} };

    /// Progress told to `tell`.
    pub fn new(tell: &'a dyn Fn(f64)) -> Self {
        Self { tell }
    }

    /// `fraction` of the point is done, 0 to 1.
    pub fn at(&self, fraction: f64) {
        (self.tell)(fraction.clamp(0.0, 1.0));
    }

    /// Does a part of it, the one from `begin` to `end`, that tells its own progress from 0 to 1.
    pub fn part<T>(&self, begin: f64, end: f64, of: impl FnOnce(&Progress<'_>) -> T) -> T {
        of(&Progress::new(&|fraction| self.at(begin + (end - begin) * fraction)))
    }
}
