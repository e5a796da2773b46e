//! How a run is done.

use super::Carrier;
use crate::balance::{Cost, SizeAware};
use crate::error::{Error, Result};
use crate::marker::{Marker, State};
use crate::target::Target;
use crate::tree::Catalogue;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Who carries what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// R1.1.1.2: as many files in each list.
    ByCount,
    /// R1.3.1: large files in turn, then small ones by count.
    SizeAware,
    /// Longest first by what was learned, huge files in parts, and who is done takes from others.
    #[default]
    Balanced,
}

/// What the workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum With {
    /// kura at both ends.
    Kura,
    /// rsync processes.
    Rsync,
}

/// A machine that has the source mounted, and the one it sends to: `SOURCE[=TARGET]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Node {
    /// What ssh is told; none for this machine, written `local`.
    pub source: Option<String>,
    /// In place of the host that the target names.
    pub target: Option<String>,
}

impl FromStr for Node {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (source, target) = text.split_once('=').map_or((text, None), |(source, target)| (source, Some(target)));
        if source.is_empty()
            || source.starts_with('-')
            || target.is_some_and(|host| host.is_empty() || host.starts_with('-'))
        {
            return Err("write HOST, HOST=TARGETHOST, local or local=TARGETHOST".to_owned());
        }
        Ok(Self { source: (source != "local").then(|| source.to_owned()), target: target.map(str::to_owned) })
    }
}

impl TryFrom<String> for Node {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<Node> for String {
    fn from(node: Node) -> Self {
        let source = node.source.unwrap_or_else(|| "local".to_owned());
        node.target.map_or(source.clone(), |target| format!("{source}={target}"))
    }
}

/// How a run is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Options {
    /// What the workers are; none: rsync where only rsync can reach the target.
    pub with: Option<With>,
    /// Who carries what.
    pub split: Split,
    /// T of the split by size, in bytes.
    pub threshold_bytes: u64,
    /// The cap of its lists of large files, in bytes.
    pub cap_bytes: u64,
    /// Workers on each node.
    pub workers: usize,
    /// Machines that work, rsync on each; none: this one.
    pub nodes: Vec<Node>,
    /// Bytes a second that all workers may send together.
    pub bandwidth: Option<u64>,
    /// Whether a run ends when its target would survive a power cut, or earlier.
    pub durable: bool,
    /// Whether large files are changed where they are, not beside.
    pub in_place: bool,
    /// Points that a volume's target keeps.
    pub keep: u32,
    /// Where the target's token is, in a file.
    pub target_token_file: Option<PathBuf>,
    /// The authority to trust with `https` targets, a PEM file.
    pub target_ca: Option<PathBuf>,
    /// Where the access key for a bucket at the target is, in a file like `~/.aws/credentials`.
    pub target_credentials: Option<PathBuf>,
    /// The region of a bucket at the target.
    pub target_region: Option<String>,
    /// Whether what is not encrypted may go to another machine.
    pub allow_plain: bool,
    /// An end on whose connection nothing moves for so long is given up.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Compare with what the target has, not with what the last run left there.
    #[serde(skip)]
    pub recheck: bool,
    /// Take a target that holds something else.
    #[serde(skip)]
    pub adopt: bool,
    /// Empty the copy of a source that is empty.
    #[serde(skip)]
    pub allow_empty: bool,
    /// Only say what would be carried by whom.
    #[serde(skip)]
    pub dry_run: bool,
}

impl Default for Options {
    fn default() -> Self {
        let SizeAware { threshold_bytes, cap_bytes } = SizeAware::default();
        Self {
            with: None,
            split: Split::default(),
            threshold_bytes,
            cap_bytes,
            workers: 4,
            nodes: Vec::new(),
            bandwidth: None,
            durable: true,
            in_place: false,
            keep: 3,
            target_token_file: None,
            target_ca: None,
            target_credentials: None,
            target_region: None,
            allow_plain: false,
            timeout: Duration::from_mins(1),
            recheck: false,
            adopt: false,
            allow_empty: false,
            dry_run: false,
        }
    }
}

/// The most nodes, and workers on each: the paper's.
const MOST: (usize, usize) = (30, 10);

impl Options {
    /// All workers of all nodes.
    pub fn all_workers(&self) -> usize {
        self.workers * self.nodes.len().max(1)
    }

    /// What carries to this target.
    pub fn with(&self, target: &Target) -> With {
        self.with.unwrap_or(if matches!(target, Target::Rsync(_)) || !self.nodes.is_empty() {
            With::Rsync
        } else {
            With::Kura
        })
    }

    /// Whether a tree can be carried to a target like that.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self, target: &Target) -> Result<()> {
        let usage = |text: &str| Err(Error::Usage(text.to_owned()));
        let with = self.with(target);
        if self.workers == 0 || self.workers > MOST.1 || self.nodes.len() > MOST.0 {
            return usage("up to 10 workers on each of up to 30 nodes can work");
        }
        match (with, target) {
            (With::Kura, Target::Rsync(_)) => {
                usage("kura reaches a directory, kura://HOST:PORT/PATH or ssh://HOST/PATH")
            }
            (With::Rsync, Target::Tcp { .. } | Target::Ssh { .. }) => {
                usage("rsync reaches a directory, HOST:PATH or rsync://HOST/MODULE/PATH")
            }
            (With::Kura, _) if !self.nodes.is_empty() => usage("nodes work with rsync only"),
            (_, Target::Kura { .. } | Target::Bucket(_)) => {
                usage("a tree goes to a directory, kura://HOST:PORT/PATH, ssh://HOST/PATH or what rsync reaches")
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn carrier(&self, target: &Target) -> Box<dyn Carrier> {
        match self.with(target) {
            With::Rsync => Box::new(crate::rsync::Rsync::new(target, self)),
            With::Kura => Box::new(crate::kura::Kura::new(target, self)),
        }
    }

    /// What carrying costs a worker, which is no faster than its part of the bandwidth.
    pub(crate) fn held(&self, cost: Cost) -> Cost {
        let least_s = self.bandwidth.map_or(0.0, |bytes_per_s| self.all_workers() as f64 / bytes_per_s.max(1) as f64);
        Cost { byte_s: cost.byte_s.max(least_s), ..cost }
    }

    /// Whether the catalogue says what the target has.
    pub(crate) fn trusts(&self, catalogue: &Catalogue, marker: Option<&Marker>) -> bool {
        let is_left =
            |marker: &Marker| marker.run == catalogue.run() && matches!(marker.state, State::Complete | State::Partial);
        !self.recheck && marker.is_some_and(is_left)
    }
}
