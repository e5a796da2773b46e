//! How far a run is, on standard error where that is a terminal.

use crate::show::Out;
use crate::size::Size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kura_replicate::{Phase, Progress};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the bar is drawn.
const TICK: Duration = Duration::from_millis(200);

/// Does `work` under a bar: files, bytes, each worker's rate, the time left.
pub fn during<T>(progress: &Progress, out: Out, work: impl FnOnce() -> T) -> T {
    let target = if matches!(out, Out::Quiet) { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(None, target);
    if bar.is_hidden() {
        return work();
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut before: Vec<u64> = Vec::new();
            let mut at = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                draw(&bar, progress, &mut before, at.elapsed().as_secs_f64());
                at = Instant::now();
                std::thread::park_timeout(TICK);
            }
            bar.finish_and_clear();
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

fn draw(bar: &ProgressBar, progress: &Progress, before: &mut Vec<u64>, seconds: f64) {
    let template = match progress.phase() {
        Phase::Scanning => "{spinner} scanning: {msg}, {elapsed}",
        Phase::Carrying => "{wide_bar} {msg}, {eta} left",
        Phase::Finishing => "{spinner} finishing: {msg}, {elapsed}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let counts: Vec<(u64, u64)> = progress.workers().iter().map(kura_replicate::Counter::get).collect();
    let (files, bytes) = counts.iter().fold((0, 0), |(files, bytes), (f, b)| (files + f, bytes + b));
    let (all_files, all_bytes) = progress.total();
    if progress.phase() == Phase::Scanning {
        bar.set_message(format!("{} entries", progress.scanned()));
    } else {
        let rate = |(index, (_, bytes)): (usize, &(u64, u64))| {
            let more = bytes.saturating_sub(before.get(index).copied().unwrap_or(0));
            format!("{}/s", Size((more as f64 / seconds.max(1e-3)) as u64))
        };
        let rates: Vec<String> = counts.iter().enumerate().map(rate).collect();
        let bytes = format!("{}/{}", Size(bytes), Size(all_bytes));
        bar.set_message(format!("{files}/{all_files} files, {bytes} [{}]", rates.join(" ")));
        // A file without bytes is work, too.
        bar.set_length(all_bytes + all_files * 4096);
    }
    bar.set_position(bytes + files * 4096);
    *before = counts.iter().map(|(_, bytes)| *bytes).collect();
}
