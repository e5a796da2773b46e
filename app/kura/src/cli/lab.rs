//! The lab's part of the command line, and what its help tells of generated loads.

use super::Layout;
use crate::size::Size;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use kura_controller::DiskClass;
use kura_sim::Model;
use kura_trace::Fit;
use std::fmt::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

const AFTER_RUN: &str = "Results are saved point by point: a run that was interrupted continues where it was. The command \
                         succeeds when the run finished, whatever the verdicts. `kura lab loads` lists generated loads.";

const AFTER_REPLAY: &str = "The node is the one that `kura serve` would make of the same configuration, its tiers included, \
                            except that it has one controller unless `pool.controllers` says more, and a model in place of each disk: nvme \
                            for fast, hdd-7200 for slow, unless the configuration or --model names another. The same \
                            command always gives the same result. `kura lab loads` lists generated loads.";

/// Commands of the lab; they need no server.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// List the experiments
    List,
    /// List the generated loads, with their parameters
    Loads,
    /// Run experiments: tables, figures and verdicts, and a page of them
    #[command(after_help = AFTER_RUN)]
    Run(LabRun),
    /// Replay a trace on a node of simulated disks, in virtual time
    #[command(after_help = AFTER_REPLAY)]
    Replay(Box<LabReplay>),
    /// Make a page of what was run: index.html, which needs no network and no server
    Report {
        /// The report's folder
        #[arg(long = "output", short, alias = "out", default_value = "lab-report", value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: PathBuf,
    },
}

/// Which experiments are run, and how.
#[derive(Debug, Args)]
pub struct LabRun {
    /// The experiments, as `kura lab list` names them
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Finish each experiment within ten minutes on two cores, but for large traces (the default)
    #[arg(long)]
    quick: bool,
    /// Do as much as the papers did
    #[arg(long, conflicts_with = "quick")]
    pub full: bool,
    /// Seed of everything random
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// A trace, or a generated load such as load:zipf,theta=1.2, for experiments that take some
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub trace: Vec<PathBuf>,
    /// The report's folder
    #[arg(long = "output", short, alias = "out", default_value = "lab-report", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// Points of an experiment to run at the same time [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
    /// Run points again that an earlier run saved
    #[arg(long)]
    pub again: bool,
}

/// What is replayed, and on what.
#[derive(Debug, Args)]
pub struct LabReplay {
    /// A trace (MSR Cambridge CSV, blkparse, blktrace or fio iolog; also gzip or zstd of it), or a generated load, such
    /// as load:zipf,rate=500,seconds=60
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub trace: String,
    /// The configuration of the node; a default one without it
    #[arg(long, env = "KURA_CONFIG", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// The model of all disks of a class: nvme, sata-ssd, hdd-7200, hdd-10k or mogi1996
    #[arg(long, value_name = "CLASS=MODEL")]
    pub model: Vec<ModelArg>,
    /// Let requests arrive this many times as fast
    #[arg(long, default_value_t = 1.0, value_name = "X", value_parser = acceleration)]
    pub accelerate: f64,
    /// Skip what comes before this time, such as 90s or 1h30m
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub from: Option<Duration>,
    /// Stop after this much of the trace
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub lasts: Option<Duration>,
    /// Do not count requests before this time, which warm the node up; it begins with what --from leaves
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub warm: Option<Duration>,
    /// Keep this many requests in flight and ignore their times
    #[arg(long, value_name = "DEPTH", conflicts_with = "accelerate", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub closed_loop: Option<u32>,
    /// Move addresses to fit the volume: none, wrap, scale, or compact
    #[arg(long, default_value_t = Fit::None, value_name = "HOW")]
    pub fit: Fit,
    /// Size of the volume [default: what the trace needs; with --fit wrap or scale, what the disks hold]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// How the volume's data is laid out on disks
    #[arg(long, value_enum, default_value_t = Layout::Mirror)]
    pub layout: Layout,
    /// What is written before the trace begins; reads of what never was written touch no disk
    #[arg(long, value_enum, default_value_t = Prefill::Read)]
    pub prefill: Prefill,
    /// Keep contents, check every read against what was written, and read all of it back at the end
    #[arg(long)]
    pub verify: bool,
    /// Replay nothing: tell what a tiering policy (worth, which is the default one, otf-ast or static) would move, why, and what
    /// the fast tier would serve; with its parameters from the configuration's [tier], where that names it
    #[arg(long, value_name = "NAME", value_parser = policy,
          conflicts_with_all = ["closed_loop", "verify", "model", "layout", "prefill", "warm"])]
    pub policy: Option<String>,
    /// Size of the policy's fast tier [default: what the configuration's fast disks hold; where it names no disks, a
    /// twelfth of the volume]
    #[arg(long, value_name = "SIZE", requires = "policy")]
    pub fast: Option<Size>,
    /// Seed of everything random [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Also write the result to a file, as JSON
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
}

impl LabReplay {
    /// The seed of everything random.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// The generated load that is replayed, where it is none from a file.
    pub fn load(&self) -> Option<&str> {
        self.trace.strip_prefix(kura_load::PREFIX)
    }

    /// Where the window of the trace begins and how long it is, in nanoseconds; `None`: to the trace's end.
    pub fn window_ns(&self) -> (u64, Option<u64>) {
        (self.from.map_or(0, ns), self.lasts.map(ns))
    }
}

/// Nanoseconds of what [`time`] took.
pub fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// A time of a trace.
fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if u64::try_from(time.as_nanos()).is_ok() {
        Ok(time)
    } else {
        Err("a trace lasts 584 years at most: give less".to_owned())
    }
}

fn acceleration(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor > 0.0);
    factor.ok_or_else(|| "give a number above 0".to_owned())
}

fn policy(name: &str) -> Result<String, String> {
    kura_tier::Settings::named(name).map_err(|error| error.to_string())?;
    Ok(name.to_owned())
}

/// What is written before a trace begins.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Prefill {
    /// Nothing
    None,
    /// What the trace reads
    Read,
    /// The whole volume
    All,
}

/// A model on the command line: `CLASS=MODEL`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelArg {
    /// The disks it is for.
    pub class: DiskClass,
    /// The model.
    pub model: Model,
}

impl FromStr for ModelArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (class, model) = text.split_once('=').ok_or("write CLASS=MODEL, as in slow=sata-ssd")?;
        let class = match class {
            "fast" => DiskClass::Fast,
            "slow" => DiskClass::Slow,
            _ => return Err(format!("no such class of disks: {class}; use fast or slow")),
        };
        Ok(Self { class, model: model.parse()? })
    }
}

/// Every generated load with its parameters and their defaults, then what each parameter means, once.
pub fn loads() -> String {
    let loads = kura_load::list();
    let mut text = "Generated loads, as load:NAME,KEY=VALUE,..., with their defaults:\n".to_owned();
    // Writing to a string does not fail.
    for load in &loads {
        let _ = writeln!(text, "  {}: {}", load.name, load.what);
        let defaults: Vec<String> =
            load.parameters.iter().map(|parameter| format!("{}={}", parameter.key, parameter.value)).collect();
        let _ = writeln!(text, "      {}", defaults.join(" "));
    }
    text.push_str("\nKeys of loads:\n");
    let mut told = Vec::new();
    for parameter in loads.iter().flat_map(|load| &load.parameters) {
        let line = format!("  {:<11} {}\n", parameter.key, parameter.meaning);
        if !told.contains(&line) {
            text.push_str(&line);
            told.push(line);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::loads;

    #[test]
    fn every_parameter_of_every_load_is_told() {
        let told = loads();
        for load in kura_load::list() {
            assert!(told.contains(&format!("{}: {}", load.name, load.what)), "no {}:\n{told}", load.name);
            for parameter in load.parameters {
                assert!(told.contains(parameter.meaning), "no {}:\n{told}", parameter.meaning);
            }
        }
    }
}
