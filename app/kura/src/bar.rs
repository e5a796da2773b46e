//! How far work is, on standard error where that is a terminal; gone when the work is over.

use crate::show::Out;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kura_admin::{Job, JobUnit};
use std::pin::pin;
use std::time::{Duration, Instant};

/// How often a spinner turns.
const TURN: Duration = Duration::from_millis(100);
/// What is over sooner needs no word; and programs get a word so often.
const WORD: Duration = Duration::from_secs(1);

const UNKNOWN: &str = "{spinner} {msg}, {elapsed}";
const BYTES: &str = "{msg} {wide_bar} {bytes}/{total_bytes}, {eta} left";
const VOLUMES: &str = "{msg} {wide_bar} {pos}/{len} volumes, {eta} left";
const TIME: &str = "{msg} {wide_bar} {eta} left";

/// A bar with the time left; a spinner where nobody knows.
pub struct Bar(ProgressBar);

impl Bar {
    fn new(out: Out, what: impl Into<String>, template: &str) -> Self {
        let target =
            if matches!(out, Out::Quiet) { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = Self(ProgressBar::with_draw_target(None, target).with_message(what.into()));
        bar.look(template);
        bar
    }

    fn look(&self, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style);
        }
    }

    /// Of work that nobody knows the extent of.
    pub fn spinner(out: Out, what: impl Into<String>) -> Self {
        let bar = Self::new(out, what, UNKNOWN);
        bar.0.enable_steady_tick(TURN);
        bar
    }

    /// Of so many bytes, if that is known.
    pub fn bytes(out: Out, what: impl Into<String>, total: Option<u64>) -> Self {
        let bar = Self::new(out, what, if total.is_some() { BYTES } else { "{spinner} {msg}, {bytes}, {elapsed}" });
        if let Some(total) = total {
            bar.0.set_length(total);
        }
        bar
    }

    /// Of so many things as there turn out to be.
    pub fn count(out: Out, what: impl Into<String>) -> Self {
        Self::new(out, what, "{spinner} {msg}, {pos}, {elapsed}")
    }

    /// Of what takes so long.
    pub fn time(out: Out, what: impl Into<String>, takes: Duration) -> Self {
        let bar = Self::new(out, what, TIME);
        bar.0.set_length(takes.as_millis() as u64);
        bar
    }

    /// What it says beside the bar.
    pub fn say(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }

    /// So much more is done.
    pub fn advance(&self, by: u64) {
        self.0.inc(by);
    }

    /// The bar moves by itself, by the clock, while `work` is done.
    pub async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let (mut work, began, before) = (pin!(work), Instant::now(), self.0.position());
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep(TURN) => self.0.set_position(before + began.elapsed().as_millis() as u64),
            }
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Does `work`, with a spinner beside it once that takes long.
pub async fn patiently<T>(out: Out, what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Ok(done) = tokio::time::timeout(WORD, &mut work).await {
        return done;
    }
    let _spinner = Bar::spinner(out, what);
    work.await
}

/// A job at the server, shown as a bar, and to programs as a line now and then: the job as it is then.
pub struct JobBar {
    bar: Bar,
    words: Option<Instant>,
}

impl JobBar {
    pub fn new(out: Out, job: &Job) -> Self {
        let words = matches!(out, Out::Json).then(Instant::now);
        // Programs read lines, not bars, also on a terminal.
        Self { bar: Bar::spinner(if words.is_some() { Out::Quiet } else { out }, job.to_string()), words }
    }

    /// The job is so far.
    pub fn show(&mut self, job: &Job) {
        if let Some(last) = self.words.as_mut().filter(|last| last.elapsed() >= WORD) {
            *last = Instant::now();
            let line = serde_json::to_string(job).unwrap_or_default();
            // Standard error may be closed; ignore that.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), (line + "\n").as_bytes());
        }
        let Self { bar, .. } = self;
        let waits = job.waits.as_ref().map(|why| format!(" waits: {why}")).unwrap_or_default();
        bar.say(format!("{job}{waits}"));
        if job.total > 0 {
            bar.look(if job.unit == JobUnit::Bytes { BYTES } else { VOLUMES });
            bar.0.set_length(job.total);
            bar.0.set_position(job.done);
        }
    }
}
