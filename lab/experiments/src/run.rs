//! Experiments done: one after another, the points of each on all cores, each saved when it is done.

use crate::experiment::{About, Progress, Setting};
use crate::files;
use crate::machine::{COMMIT, Machine};
use crate::outcome::Outcome;
use crate::plan::{Listed, Plan};
use crate::saved::Identity;
use anyhow::{Context, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed, scale, traces and the report's folder.
    pub setting: Setting,
    /// Points done at the same time.
    pub jobs: usize,
    /// Do also what is saved.
    pub again: bool,
}

/// Who watches a run. Called from every thread.
pub trait Watch: Sync {
    /// Before anything begins: so much, 0 to 1, is read of the traces that an experiment was given. Not called where there
    /// are none.
    fn reads(&self, experiment: &str, fraction: f64);

    /// An experiment of so many points begins.
    fn begins(&self, experiment: &str, points: usize);

    /// So many of its points are done; a point that is half done counts half.
    fn is_at(&self, points: f64);

    /// Its results are written.
    fn ends(&self);
}

/// Does the experiments, one each time the next is asked for, and writes the results of each. The first point that fails
/// should end the run; what is done by then is saved.
pub fn run<'a>(
    experiments: &[&'a dyn Listed],
    options: &'a Options,
    watch: &'a dyn Watch,
) -> Result<impl Iterator<Item = Result<Outcome>> + use<'a>> {
    // What cannot begin is told before what takes long; and so is a folder that takes no file.
    files::probe(&options.setting.out)?;
    let tasks = experiments.iter().map(|experiment| Task::new(*experiment, options, watch));
    let tasks = tasks.collect::<Result<Vec<_>>>()?;
    Ok(tasks.into_iter().map(Task::run))
}

/// An experiment to be done.
struct Task<'a> {
    about: About,
    options: &'a Options,
    plan: Box<dyn Plan + 'a>,
    /// Points done at the same time.
    jobs: usize,
    /// This machine, where it is what is measured.
    machine: Option<Machine>,
    watch: &'a dyn Watch,
    /// How far each point is, 0 to 1.
    fractions: Mutex<Vec<f64>>,
}

impl<'a> Task<'a> {
    fn new(experiment: &'a dyn Listed, options: &'a Options, watch: &'a dyn Watch) -> Result<Self> {
        let about = experiment.about();
        let reads = |fraction| watch.reads(about.name, fraction);
        let plan = experiment.plan(&options.setting, &Progress::new(&reads)).with_context(|| about.name)?;
        let fractions = Mutex::new(vec![0.0; plan.points()]);
        let machine = experiment.is_measured().then(Machine::this);
        let most = if machine.is_some() { 1 } else { plan.points().max(1) };
        Ok(Self { about, options, plan, jobs: options.jobs.clamp(1, most), machine, watch, fractions })
    }

    fn run(self) -> Result<Outcome> {
        self.watch.begins(self.about.name, self.plan.points());
        let data = self.points()?;
        let Self { about, options, plan, watch, .. } = self;
        let named = (0..plan.points()).map(|point| Ok((plan.name(point).to_owned(), plan.config(point)?)));
        let configuration = named.collect::<Result<_>>()?;
        let findings = plan.judge(&data).with_context(|| about.name)?;
        let outcome = Outcome::write(about, &options.setting, configuration, findings)?;
        watch.ends();
        Ok(outcome)
    }

    /// The data of all points, by as many threads as there are jobs.
    fn points(&self) -> Result<Vec<String>> {
        let points = self.plan.points();
        let done: Vec<Mutex<Option<Result<String>>>> = (0..points).map(|_| Mutex::new(None)).collect();
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || {
            while !failed.load(Ordering::Relaxed)
                && let point = next.fetch_add(1, Ordering::Relaxed)
                && point < points
            {
                let data = self.point(point);
                failed.fetch_or(data.is_err(), Ordering::Relaxed);
                *lock(&done[point]) = Some(data);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(work);
            }
        });
        // Points are begun in order: what was not begun comes after the one that failed.
        done.into_iter().map_while(|data| data.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// The data of a point: those saved, or done now and saved.
    fn point(&self, point: usize) -> Result<String> {
        let Options { setting: Setting { seed, scale, out, .. }, again, .. } = self.options;
        let name = self.plan.name(point);
        let identity = Identity {
            experiment: self.about.name.to_owned(),
            point: name.to_owned(),
            seed: *seed,
            scale: *scale,
            config: self.plan.config(point)?,
            commit: COMMIT.to_owned(),
            machine: self.machine.clone(),
        };
        let saved = if *again { None } else { identity.load(out) };
        let data = match saved.filter(|data| self.plan.reads(data).is_ok()) {
            Some(data) => data,
            None => {
                let tell = |fraction| self.is_at(point, fraction);
                let data = self.plan.run(point, &Progress::new(&tell));
                let data = data.with_context(|| format!("{}, point {name}", self.about.name))?;
                identity.save(out, &data)?;
                data
            }
        };
        self.is_at(point, 1.0);
        Ok(data)
    }

    fn is_at(&self, point: usize, fraction: f64) {
        let mut fractions = lock(&self.fractions);
        fractions[point] = fraction;
        self.watch.is_at(fractions.iter().sum());
    }
}

/// A thread that panicked ends the run anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
