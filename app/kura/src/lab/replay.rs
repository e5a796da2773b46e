//! `kura lab replay`: a trace, adapted, through a node of simulated disks.

use super::bar::{Bar, Pass};
use super::forecast::{self, FastTier};
use super::made::made_by;
use super::node::node;
use super::summary::text;
use crate::cli::{self, LabReplay};
use crate::config::{Config, Flags, Purpose};
use crate::misuse::Misuse;
use crate::new_file::NewFile;
use crate::show::{Out, print};
use anyhow::{Context, Result, bail};
use kura_controller::{DiskClass, Layout};
use kura_replay::{Ahead, NodeSpec, Options, Pace, Prefill, Summary, Survey};
use kura_tier::Settings;
use kura_trace::{Adapt, Anatomy, Fit, Fitter, Request, Scope, TraceError};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

type Requests = Box<dyn Iterator<Item = std::result::Result<Request, TraceError>> + Send>;

/// Replays a trace and shows what came of it.
pub fn replay(command: &LabReplay, out: Out) -> Result<ExitCode> {
    if command.policy.is_some() && command.seed.is_some() && command.load().is_none() {
        return Err(Misuse("--seed with --policy: nothing is random but a generated load".to_owned()).into());
    }
    if let Some(path) = &command.output {
        // A place that takes no file is told now, not after hours; who breaks off leaves nothing there.
        NewFile::create(path)?;
        keep_what_is_read(path, command)?;
    }
    let config = Config::load_for(Purpose::Lab, command.config.as_deref(), Flags::default())?;
    let spec = node(&config, &command.model)?;
    let source = Source::of(command, KNOWN)?;
    // Before anything that takes long, and in which the trace may be changed.
    let made_by = made_by(command)?;
    let (options, adapted) = adapt(command, &spec, &source)?;
    let bar = Bar::new(out)?;
    if let Some(name) = &command.policy {
        let decided = decided(name, command, &config, &spec, &adapted, &bar);
        bar.clear();
        let decided = decided?;
        tell(command, &Told { made_by, result: &decided }, || forecast::text(&decided), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (anatomy, summary) = play(command, &spec, &options, &adapted, &bar)?;
    let result = json!({ "trace": described(&anatomy)?, "replay": summary });
    let text = || format!("{anatomy}\n{}", text(&summary, config.pool.warn_at_percent.get_ref()));
    tell(command, &Told { made_by, result: &result }, text, out)?;
    Ok(if summary.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plays the trace on the node, and looks at it.
fn play(
    command: &LabReplay,
    spec: &NodeSpec,
    options: &Options,
    adapted: &Adapted<'_>,
    bar: &Bar,
) -> Result<(Anatomy, Summary)> {
    let requests = adapted.requests(Some((bar, "survey")))?;
    let survey = Survey::of(requests);
    bar.clear();
    let survey = survey.map_err(|error| error.of_trace(&command.trace))?;
    if survey.load.requests == 0 {
        bail!("{}: no request is left to replay: widen the window, or name another trace", command.trace);
    }
    // As an iolog of version 2 without waits: all at once, such a replay would measure the queue that it makes.
    if survey.load.requests > 1 && survey.load.span_ns == 0 && options.pace == Pace::Open {
        bail!("{}: no time passes in it: give --closed-loop N", command.trace);
    }
    // The report reads the trace on a thread of its own, beside the replay.
    let report = adapted.source.clone();
    let scope = Scope { capacity_bytes: adapted.capacity_bytes(), ..Scope::default() };
    let report = std::thread::spawn(move || Anatomy::of(report.requests(None)?, &scope));
    let requests = adapted.requests(None)?;
    let done = kura_replay::replay(spec, options, &survey, requests, &mut |progress| bar.show(progress));
    bar.clear();
    let summary = done.with_context(|| command.trace.clone())?;
    let Ok(anatomy) = report.join() else { bail!("{}: looking at the trace failed", command.trace) };
    Ok((anatomy?, summary))
}

/// Refuses a result in place of what it is the result of.
fn keep_what_is_read(output: &Path, command: &LabReplay) -> Result<()> {
    let Ok(there) = output.metadata() else { return Ok(()) };
    let is_it = |path: &Path| path.metadata().is_ok_and(|read| (read.dev(), read.ino()) == (there.dev(), there.ino()));
    let of_trace = kura_trace::files(Path::new(&command.trace));
    if of_trace.iter().chain(&command.config).any(|path| is_it(path)) {
        bail!("{}: is read by this command: name another file for the result", output.display());
    }
    Ok(())
}

/// How many disks take volumes' data: the slow ones, and where there are none, all.
fn data_disks(spec: &NodeSpec) -> usize {
    let slow_disks = spec.disks.iter().filter(|disk| disk.class == DiskClass::Slow).count();
    if slow_disks > 0 { slow_disks } else { spec.disks.len() }
}

/// How large the fast tier is that a policy decides about: as asked for, or that of disks which the configuration names.
fn fast_tier(command: &LabReplay, config: &Config, spec: &NodeSpec, settings: &Settings) -> Result<FastTier> {
    if let Some(size) = command.fast {
        return Ok(FastTier::Asked(size.0));
    }
    let has = |class| spec.disks.iter().any(|disk| disk.class == class);
    if config.pool.disks.is_empty() || !has(DiskClass::Fast) || !has(DiskClass::Slow) {
        return Ok(FastTier::Twelfth);
    }
    match spec.fast_bytes(settings.clone())? {
        (bytes, None) => Ok(FastTier::Configured(bytes)),
        (_, Some(hindrance)) => bail!("nothing would go up on this node: {hindrance}; or give a size by --fast"),
    }
}

/// What a tiering policy would have done with the trace.
fn decided(
    name: &str,
    command: &LabReplay,
    config: &Config,
    spec: &NodeSpec,
    adapted: &Adapted<'_>,
    bar: &Bar,
) -> Result<forecast::DryRun> {
    let named = Settings::named(name)?;
    let extent_bytes = config.pool.extent.get_ref().0;
    let configured = config.tier.config(extent_bytes).map_err(anyhow::Error::msg)?.map(|tier| tier.settings);
    // The parameters of another policy are none of this one's.
    let is_same = |settings: &Settings| std::mem::discriminant(settings) == std::mem::discriminant(&named);
    let settings = configured.filter(is_same).unwrap_or(named).for_extents(extent_bytes);
    let requests = |prefix| {
        let requests = adapted.requests(Some((bar, prefix)))?;
        anyhow::Ok(requests.map(|request| request.map_err(|error| error.of_trace(&command.trace))))
    };
    let mut extent = forecast::Extent { end_bytes: command.size.map_or(0, |size| size.0), furthest_request: None };
    for (number, request) in (1..).zip(requests("survey")?) {
        let end_bytes = request?.end_bytes();
        if end_bytes > extent.end_bytes {
            extent = forecast::Extent { end_bytes, furthest_request: Some(number) };
        }
    }
    if extent.end_bytes == 0 {
        bail!("{}: no request is left to decide about: widen the window, or name another trace", command.trace);
    }
    let fast = fast_tier(command, config, spec, &settings)?;
    let volume = forecast::Volume::new(&settings, fast, extent, data_disks(spec));
    let volume = volume.with_context(|| command.trace.clone())?;
    forecast::dry_run(settings, volume, requests("policy")?)
}

/// A result, and what made it.
#[derive(Serialize)]
struct Told<'a, T> {
    made_by: Value,
    #[serde(flatten)]
    result: &'a T,
}

/// Tells a result, and writes it to the file that was named.
fn tell(command: &LabReplay, result: &impl Serialize, text: impl FnOnce() -> String, out: Out) -> Result<()> {
    let result = serde_json::to_string_pretty(result)?;
    // Neither is to be lost because the other fails.
    let saved = command.output.as_deref().map_or(Ok(()), |path| save(path, &result));
    match out {
        Out::Json => print(&result)?,
        Out::Text => print(&text())?,
        Out::Quiet => {}
    }
    saved
}

/// The anatomy without what only figures are drawn of; the experiment trace-anatomy has that.
fn described(anatomy: &Anatomy) -> Result<Value> {
    let mut described = serde_json::to_value(anatomy)?;
    if let Value::Object(fields) = &mut described {
        fields.retain(|name, _| !["places", "frequencies", "read_to_write"].contains(&name.as_str()));
    }
    Ok(described)
}

fn save(path: &Path, result: &str) -> Result<()> {
    let mut file = NewFile::create(path)?;
    writeln!(file, "{result}").with_context(|| path.display().to_string())?;
    file.keep()
}

/// Where requests come from, and the window of them.
#[derive(Clone)]
struct Source {
    kind: Kind,
    from_ns: u64,
    for_ns: u64,
    /// All of them, once they have been read and are not too many: they are gone through several times.
    known: Arc<OnceLock<Requested>>,
    /// The most that are not too many.
    known_most: usize,
}

#[derive(Clone)]
enum Kind {
    Trace(std::path::PathBuf),
    Load(Box<kura_load::Spec>),
}

impl Source {
    fn of(command: &LabReplay, known_most: usize) -> Result<Self> {
        let kind = match command.load() {
            Some(load) => Kind::Load(Box::new(kura_load::Spec::with_seed(load, command.seed())?)),
            None => Kind::Trace(command.trace.clone().into()),
        };
        let (from_ns, for_ns) = command.window_ns();
        Ok(Self { kind, from_ns, for_ns: for_ns.unwrap_or(u64::MAX), known: Arc::default(), known_most })
    }

    /// The requests in the window, from their beginning, under a bar if it is a pass that has one.
    fn requests(&self, pass: Option<Pass>) -> std::result::Result<Requests, TraceError> {
        if self.known.get().is_some() {
            let known = Known { known: Arc::clone(&self.known), at: 0 };
            return Ok(match pass {
                Some(pass) => Box::new(pass.over(known, Known::progress)),
                None => Box::new(known),
            });
        }
        let all: Requests = match (&self.kind, pass) {
            (Kind::Trace(path), None) => Box::new(kura_trace::open(path)?),
            (Kind::Trace(path), Some(pass)) => Box::new(pass.over(kura_trace::open(path)?, |reader| {
                let (read_bytes, all_bytes) = reader.progress();
                read_bytes as f64 / all_bytes.max(1) as f64
            })),
            (Kind::Load(load), None) => Box::new(load.requests().map(Ok)),
            (Kind::Load(load), Some(pass)) => {
                Box::new(pass.over(load.requests(), kura_load::Requests::progress).map(Ok))
            }
        };
        let requests = match (self.from_ns, self.for_ns) {
            (0, u64::MAX) => all,
            (from_ns, for_ns) => Box::new(all.window(from_ns, for_ns)),
        };
        let requests = Ahead::of(requests).map_err(|error| TraceError::no_reader(&error))?;
        let (so_far, most) = (Some(Requested::default()), self.known_most);
        Ok(Box::new(Remember { requests, so_far, most, known: Arc::clone(&self.known) }))
    }
}

/// The most requests that are kept in memory, 40 MiB of them; of more, each pass reads the trace again.
const KNOWN: usize = 1 << 20;
/// Requests in one piece of memory, which so never moves as they become more.
const PIECE: usize = 1 << 13;

/// Requests in their order.
#[derive(Default)]
struct Requested(Vec<Vec<Request>>);

impl Requested {
    fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * PIECE + last.len())
    }

    fn push(&mut self, request: Request) {
        match self.0.last_mut() {
            Some(last) if last.len() < PIECE => last.push(request),
            _ => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(request);
                self.0.push(piece);
            }
        }
    }

    fn get(&self, at: usize) -> Option<&Request> {
        self.0.get(at / PIECE)?.get(at % PIECE)
    }
}

/// Requests as they are read for the first time. Once all have been, without an error, they are known.
struct Remember {
    requests: Ahead<std::result::Result<Request, TraceError>>,
    /// None when they are more than `most`.
    so_far: Option<Requested>,
    most: usize,
    known: Arc<OnceLock<Requested>>,
}

impl Iterator for Remember {
    type Item = std::result::Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.requests.next();
        match (&next, &mut self.so_far) {
            (Some(Ok(request)), Some(so_far)) if so_far.len() < self.most => so_far.push(*request),
            (None, Some(so_far)) => drop(self.known.set(std::mem::take(so_far))),
            _ => self.so_far = None,
        }
        next
    }
}

/// Requests that are known.
struct Known {
    known: Arc<OnceLock<Requested>>,
    at: usize,
}

impl Known {
    /// How many of them were taken, 0 to 1.
    fn progress(&self) -> f64 {
        self.at as f64 / self.known.get().map_or(1, Requested::len).max(1) as f64
    }
}

impl Iterator for Known {
    type Item = std::result::Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.at += 1;
        self.known.get()?.get(self.at - 1).copied().map(Ok)
    }
}

/// A source whose requests are made to fit.
struct Adapted<'a> {
    /// As the command names it.
    name: &'a str,
    source: &'a Source,
    accelerate: f64,
    fit: Fit,
    volume_bytes: Option<u64>,
}

impl Adapted<'_> {
    /// The size of the volume that the source's requests are of, before they are fitted, where that is known.
    fn capacity_bytes(&self) -> Option<u64> {
        let of_load = match &self.source.kind {
            Kind::Load(load) => Some(load.size_bytes()),
            Kind::Trace(_) => None,
        };
        self.volume_bytes.filter(|_| self.fit == Fit::None).or(of_load)
    }

    /// The requests, made to fit; `bar` tells how far they are read, and what for.
    fn requests(&self, bar: Option<(&Bar, &'static str)>) -> std::result::Result<Requests, TraceError> {
        let pass = |prefix| bar.map(|(bar, _)| Pass { bar: bar.clone(), prefix });
        let mut requests = self.source.requests(bar.and_then(|(_, prefix)| pass(prefix)))?;
        // Times are compared to the bit: untouched unless a factor was asked for.
        if self.accelerate.to_bits() != 1.0_f64.to_bits() {
            requests = Box::new(requests.accelerated(self.accelerate)?);
        }
        let Some(volume_bytes) = self.volume_bytes else { return Ok(requests) };
        let fitter = Fitter::new(self.fit, volume_bytes, || self.source.requests(pass("fit")));
        let fitter = fitter.map_err(|error| error.of_trace(self.name))?;
        Ok(Box::new(requests.fitted(fitter)))
    }
}

/// How the trace is replayed, and its requests made ready for that.
fn adapt<'a>(command: &'a LabReplay, spec: &NodeSpec, source: &'a Source) -> Result<(Options, Adapted<'a>)> {
    let layout: Layout = kura_admin::Layout::from(command.layout).into();
    let size_bytes = command.size.map(|size| size.0);
    let volume_bytes = match command.fit {
        Fit::None => size_bytes,
        Fit::Wrap | Fit::Scale => Some(size_bytes.map_or_else(|| spec.volume_bytes(layout), Ok)?),
        Fit::Compact => Some(size_bytes.unwrap_or(u64::MAX)),
    };
    let options = Options {
        seed: command.seed(),
        pace: command.closed_loop.map_or(Pace::Open, |depth| Pace::Closed { depth: depth as usize }),
        prefill: match command.prefill {
            cli::Prefill::None => Prefill::None,
            cli::Prefill::Read => Prefill::Read,
            cli::Prefill::All => Prefill::All,
        },
        size_bytes: volume_bytes.filter(|bytes| *bytes < u64::MAX),
        layout,
        // As the requests' own times.
        warm_ns: (command.warm.map_or(0, cli::ns) as f64 / command.accelerate) as u64,
        verify: command.verify,
        ..Options::default()
    };
    let LabReplay { accelerate, fit, ref trace, .. } = *command;
    Ok((options, Adapted { name: trace, source, accelerate, fit, volume_bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command, LabCommand};
    use clap::Parser;

    /// A replay that keeps no more than so many requests, and whether it kept them.
    fn played(args: &[&str], known_most: usize) -> Result<(Anatomy, Summary, bool)> {
        let line = [&["kura", "lab", "replay"], args].concat();
        let Command::Lab(LabCommand::Replay(command)) = Cli::try_parse_from(line).unwrap().command else { panic!() };
        let config = Config::load_for(Purpose::Lab, None, Flags::default()).unwrap();
        let spec = node(&config, &command.model).unwrap();
        let source = Source::of(&command, known_most).unwrap();
        let (options, adapted) = adapt(&command, &spec, &source).unwrap();
        let bar = Bar::new(Out::Quiet).unwrap();
        let (anatomy, summary) = play(&command, &spec, &options, &adapted, &bar)?;
        let kept = source.known.get();
        assert!(kept.is_none_or(|kept| kept.len() as u64 == summary.load.requests));
        Ok((anatomy, summary, kept.is_some()))
    }

    /// What such a replay tells.
    fn told(args: &[&str], known_most: usize) -> (Value, bool) {
        let (anatomy, summary, is_kept) = played(args, known_most).unwrap();
        (json!({ "trace": anatomy, "replay": summary }), is_kept)
    }

    /// An iolog of version 2 has no times; in closed loop none are needed, and one request is no burst.
    #[test]
    fn a_trace_in_which_no_time_passes_is_replayed_in_closed_loop_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.log");
        let path = path.to_str().unwrap();
        let replay = |requests: usize, args: &[&str]| {
            let lines: Vec<_> = (0..requests).map(|nth| format!("/dev/sdb write {} 4096\n", nth * 4096)).collect();
            std::fs::write(path, format!("fio version 2 iolog\n/dev/sdb add\n{}", lines.concat())).unwrap();
            played(&[&[path], args].concat(), KNOWN).map(|(_, summary, _)| summary.load.requests)
        };
        let error = replay(2, &[]).unwrap_err().to_string();
        assert_eq!(error, format!("{path}: no time passes in it: give --closed-loop N"));
        assert_eq!(replay(2, &["--closed-loop", "1"]).unwrap(), 2);
        assert_eq!(replay(1, &[]).unwrap(), 1);
    }

    #[test]
    fn fast_disks_alone_are_disks_of_data() {
        let config = Config::load_for(Purpose::Lab, None, Flags::default()).unwrap();
        let mut spec = node(&config, &[]).unwrap();
        let slow_disks = spec.disks.iter().filter(|disk| disk.class == DiskClass::Slow).count();
        assert!(slow_disks < spec.disks.len());
        assert_eq!(data_disks(&spec), slow_disks);
        spec.disks.iter_mut().for_each(|disk| disk.class = DiskClass::Fast);
        assert_eq!(data_disks(&spec), spec.disks.len());
    }

    #[test]
    fn requests_that_are_kept_are_those_that_are_read_again() {
        let load = "load:zipf,size=1G,rate=2000,requests=1000";
        let model = ["--model", "slow=nvme"];
        for (args, requests) in [
            (&[load][..], 1000),
            (&[load, "--fit", "scale", "--size", "64M", "--accelerate", "3"], 1000),
            (&[load, "--fit", "compact", "--closed-loop", "8"], 1000),
            (&["load:zipf,size=1G,rate=2000,arrivals=fixed,requests=1000", "--from", "100ms", "--for", "200ms"], 400),
            // More than one piece of memory.
            (&["load:sequential,size=1G,rate=20000,requests=20000", "--closed-loop", "64"], 20_000),
        ] {
            let args = [args, &model].concat();
            let (kept, is_kept) = told(&args, requests);
            assert!(is_kept && kept["replay"]["load"]["requests"] == requests, "{args:?}: {}", kept["replay"]["load"]);
            for most in [0, 1, requests - 1] {
                let (read, is_kept) = told(&args, most);
                assert!(!is_kept, "{args:?}: {most}");
                assert_eq!(read, kept, "{args:?}: {most}");
            }
        }
    }
}
