//! How far a run is, on standard error where that is a terminal.

use crate::show::Out;
use crate::size::Size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kura_replicate::{Phase, Progress};
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often the bar is drawn.
const TICK: Duration = Duration::from_millis(200);

/// Does `work` under a bar: files, bytes, each worker's rate, the time left.
pub fn during<T: Send>(progress: &Progress, out: Out, work: impl FnOnce() -> T + Send) -> T {
    let target = if matches!(out, Out::Quiet) { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(None, target);
    if bar.is_hidden() { work() } else { under(&bar, progress, work) }
}

fn under<T: Send>(bar: &ProgressBar, progress: &Progress, work: impl FnOnce() -> T + Send) -> T {
    // Gone with the work, whatever its end is.
    let (working, is_over) = channel::<()>();
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let _working = working;
            work()
        });
        let (mut before, mut at) = (Vec::new(), Instant::now());
        loop {
            draw(bar, progress, &mut before, at.elapsed().as_secs_f64());
            at = Instant::now();
            if is_over.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        bar.finish_and_clear();
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_ends_with_what_is_done_under_it() {
        let drawn = |work: fn() -> u8| under(&ProgressBar::hidden(), &Progress::default(), work);
        let began = Instant::now();
        assert_eq!(drawn(|| 7), 7);
        assert!(began.elapsed() < TICK);
        assert!(std::panic::catch_unwind(|| drawn(|| panic!("as it is to"))).is_err());
    }
}
