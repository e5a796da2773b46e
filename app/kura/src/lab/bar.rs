//! How far a replay is, on standard error where that is a terminal.

use crate::show::Out;
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use kura_replay::{Phase, Progress};

/// A bar with the time left.
#[derive(Clone)]
pub struct Bar(ProgressBar);

/// Requests between two words of how far they are read.
const WORD: u64 = 4096;
/// The bar counts thousandths of what is read.
const STEPS: u64 = 1000;

impl Bar {
    pub fn new(out: Out) -> Result<Self> {
        let bar = if matches!(out, Out::Quiet) { ProgressBar::hidden() } else { ProgressBar::no_length() };
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {msg}, {eta} left")?;
        Ok(Self(bar.with_style(style)))
    }

    /// A replay is so far.
    pub fn show(&self, progress: Progress) {
        let (prefix, unit) = match progress.phase {
            Phase::Prefill => ("prefill", "bytes"),
            Phase::Replay => ("replay", "requests"),
            Phase::ReadBack => ("read back", "bytes"),
        };
        let elapsed_s = progress.elapsed.as_secs_f64();
        let message = format!("{} of {} {unit}, virtual time {elapsed_s:.1} s", progress.done, progress.total);
        self.draw(prefix, (progress.done, progress.total), message);
    }

    pub fn clear(&self) {
        self.0.finish_and_clear();
    }

    fn draw(&self, prefix: &'static str, (done, total): (u64, u64), message: String) {
        if self.0.prefix() != prefix {
            self.0.set_prefix(prefix);
            self.0.reset();
        }
        self.0.set_length(total);
        self.0.set_message(message);
        self.0.set_position(done);
    }
}

/// A pass over requests, and what it is for.
pub struct Pass {
    pub bar: Bar,
    pub prefix: &'static str,
}

impl Pass {
    /// The same items; the bar tells how far they are, which `progress` knows, 0 to 1.
    pub fn over<I: Iterator>(self, mut items: I, progress: fn(&I) -> f64) -> impl Iterator<Item = I::Item> {
        let mut taken = 0;
        std::iter::from_fn(move || {
            if taken % WORD == 0 {
                let done = (progress(&items) * STEPS as f64) as u64;
                self.bar.draw(self.prefix, (done, STEPS), format!("{taken} requests"));
            }
            taken += 1;
            items.next()
        })
    }
}
