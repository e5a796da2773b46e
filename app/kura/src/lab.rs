//! `kura lab`: the papers' experiments and any trace, on simulated disks, without a server.

mod bar;
mod forecast;
mod made;
mod node;
mod replay;
mod summary;

use crate::cli::{LabCommand, LabRun, loads};
use crate::misuse::Misuse;
use crate::show::{Out, print, table};
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use kura_experiments::{About, Listed, Options, Outcome, Report, Scale, Setting, Watch};
use std::io::{Write, stderr};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

/// Carries a command of the lab out.
pub fn lab(command: LabCommand, out: Out) -> Result<ExitCode> {
    // A fifth of a replay's time would go to memory that is given back and asked for again.
    kura_memory::keep_freed();
    match command {
        LabCommand::List => out.show(&kura_experiments::list(), |list| experiments(list))?,
        LabCommand::Loads => out.show(&loads_json(), |_| loads())?,
        LabCommand::Run(command) => run(command, out)?,
        LabCommand::Replay(command) => return replay::replay(&command, out),
        LabCommand::Report { out: folder } => {
            let report = kura_experiments::report(&folder)?;
            tell_left_out(&report, out);
            out.show(&report, |report| format!("the report is {}", report.page.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn experiments(list: &[About]) -> String {
    let row = |about: &About| vec![about.name.to_owned(), about.paper.to_owned(), about.shows.to_owned()];
    table(&["NAME", "PAPER", "WHAT IT SHOWS"], list.iter().map(row))
}

/// The generated loads, for programs.
fn loads_json() -> serde_json::Value {
    let loads = kura_load::list().into_iter().map(|load| {
        let parameters = load.parameters.iter().map(|parameter| {
            serde_json::json!({ "key": parameter.key, "default": parameter.value, "meaning": parameter.meaning })
        });
        serde_json::json!({ "name": load.name, "what": load.what, "parameters": parameters.collect::<Vec<_>>() })
    });
    loads.collect()
}

fn run(command: LabRun, out: Out) -> Result<()> {
    let experiments = kura_experiments::named(&command.names).map_err(|error| Misuse(error.to_string()))?;
    let scale = if command.full { Scale::Full } else { Scale::Quick };
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options {
        setting: Setting { scale, seed: command.seed, traces: command.trace, out: command.out },
        jobs: command.jobs.map_or_else(cores, usize::from),
        again: command.again,
    };
    let ran = run_and_show(&experiments, &options, out);
    // Also of those before the one that failed.
    let report = kura_experiments::report(&options.setting.out);
    ran?;
    let report = report?;
    tell_left_out(&report, out);
    if let Out::Text = out {
        print(&format!("the report is {}", report.page.display()))?;
    }
    Ok(())
}

fn run_and_show(experiments: &[&dyn Listed], options: &Options, out: Out) -> Result<()> {
    for outcome in kura_experiments::run(experiments, options, &Bar::new(out)?)? {
        let outcome = outcome?;
        // To people, what has no criteria says nothing that is not in the report.
        if !(matches!(out, Out::Text) && outcome.criteria.is_empty()) {
            out.show_line(&outcome, verdicts)?;
        }
    }
    Ok(())
}

/// Says what the report lacks, beside it; for programs it stands in the report.
fn tell_left_out(report: &Report, out: Out) {
    for why in report.left_out.iter().filter(|_| matches!(out, Out::Text)) {
        // The report is there all the same.
        let _ = writeln!(stderr(), "kura: not in the report: {why}");
    }
}

fn verdicts(outcome: &Outcome) -> String {
    let row = |it: &kura_experiments::Criterion| {
        vec![
            it.name.clone(),
            it.paper.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            it.ours.to_string(),
            it.bound.clone(),
            if it.holds { "holds" } else { "does not hold" }.to_owned(),
        ]
    };
    let table = table(&["CRITERION", "PAPER>", "OURS>", "BOUND", "VERDICT"], outcome.criteria.iter().map(row));
    let (holding, all) = (outcome.holding(), outcome.criteria.len());
    format!("{} ({}): {holding} of {all} criteria hold\n\n{table}", outcome.experiment, outcome.paper)
}

/// A bar a running experiment, with the time left, on standard error where that is a terminal.
struct Bar {
    style: ProgressStyle,
    is_quiet: bool,
    running: Mutex<ProgressBar>,
}

/// The bar counts thousandths of points, or of what is read before.
const STEPS: f64 = 1000.0;

impl Bar {
    fn new(out: Out) -> Result<Self> {
        let template = "{prefix} {wide_bar} {msg}, {elapsed} so far, {eta} left";
        let style = ProgressStyle::with_template(template)?;
        Ok(Self { style, is_quiet: matches!(out, Out::Quiet), running: Mutex::new(ProgressBar::hidden()) })
    }

    /// Another bar in place of the one that is drawn, if bars are drawn.
    fn replace(&self, running: &mut ProgressBar, experiment: &str, units: f64, says: String) {
        running.finish_and_clear();
        if !self.is_quiet {
            *running = ProgressBar::new((units * STEPS) as u64).with_style(self.style.clone());
            running.set_prefix(experiment.to_owned());
            running.set_message(says);
            running.enable_steady_tick(Duration::from_millis(500));
        }
    }

    fn with(&self, change: impl FnOnce(&mut ProgressBar)) {
        // A thread that panicked while it drew has spoilt nothing but the picture.
        change(&mut self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }
}

impl Watch for Bar {
    fn reads(&self, experiment: &str, fraction: f64) {
        self.with(|bar| {
            if bar.prefix() != experiment {
                self.replace(bar, experiment, 1.0, "reading what is given".to_owned());
            }
            bar.set_position((fraction * STEPS) as u64);
        });
    }

    fn begins(&self, experiment: &str, points: usize) {
        self.with(|bar| self.replace(bar, experiment, points as f64, format!("0/{points} points")));
    }

    fn is_at(&self, points: f64) {
        self.with(|bar| {
            let all = bar.length().unwrap_or(0) / STEPS as u64;
            bar.set_position((points * STEPS) as u64);
            bar.set_message(format!("{}/{all} points", points as u64));
        });
    }

    fn ends(&self) {
        self.with(|bar| bar.finish_and_clear());
    }
}
