//! Recordings of volumes' requests, and their export as traces.

use crate::cli::{TraceCommand, TraceFormat};
use crate::misuse::Misuse;
use crate::new_file::{NewFile, unless_ended};
use crate::show::{self, Deed, Out};
use crate::size::Size;
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use kura_admin::{Client, NewRecording, RecordedOp, RecordedRequest, RecordedRequests};
use kura_trace::{Op, Request, TraceError, Written, write_blkparse, write_msr};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdout};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;

/// Carries out a command on recordings.
pub async fn trace(client: &Client, out: Out, command: TraceCommand) -> Result<()> {
    match command {
        TraceCommand::Record { volume, memory } => {
            let recording = client.record(&volume, NewRecording { memory_bytes: memory.0 }).await?;
            out.show(&recording, |recording| {
                format!("volume {volume} is being recorded, in {} of the server's memory", Size(recording.memory_bytes))
            })
        }
        TraceCommand::List => out.show(client.recordings().await?.as_slice(), show::recordings),
        TraceCommand::Stop { volume } => out.show(&client.stop_recording(&volume).await?, |recording| {
            format!("the recording of volume {volume} is stopped after {} requests", recording.requests)
        }),
        TraceCommand::Delete { volume, dry_run } => {
            // Nothing but that it is not there refuses it.
            let recording = client.recording(&volume).await?;
            if !dry_run {
                client.delete_recording(&volume).await?;
            }
            let (done, had) = if dry_run { ("would be", "holds") } else { ("is", "held") };
            out.show(&Deed { dry_run, of: recording }, |Deed { of: recording, .. }| {
                let kept = recording.requests - recording.overwritten;
                format!("the recording of volume {volume} {done} deleted; it {had} {kept} requests")
            })
        }
        TraceCommand::Export { volume, format, output: None } => {
            if matches!(out, Out::Json) {
                let text = "--json reports on the export, and a trace is not JSON: name a file for the trace with -o";
                return Err(Misuse(text.to_owned()).into());
            }
            // A terminal is not to be written to by two.
            let bar = bar(if stdout().is_terminal() { Out::Quiet } else { out })?;
            let is_gone = Arc::new(AtomicBool::new(false));
            let pipe = Pipe { to: stdout(), is_gone: Arc::clone(&is_gone) };
            match export(client, volume, format, pipe, &bar).await {
                // It wants no more.
                Err(_) if is_gone.load(Ordering::Relaxed) => Ok(()),
                exported => exported.map(|exported| exported.warn(out)),
            }
        }
        TraceCommand::Export { volume, format, output: Some(file) } => {
            let exported = unless_ended(to_file(client, volume, format, &file, &bar(out)?)).await?;
            exported.warn(out);
            out.show(&exported, |Exported { volume, requests, .. }| {
                format!("{requests} requests of volume {volume} are in {}", file.display())
            })
        }
    }
}

/// What an export came to.
#[derive(Serialize)]
struct Exported {
    volume: String,
    format: TraceFormat,
    /// Requests in the trace.
    requests: u64,
    /// Requests that the recording had overwritten.
    overwritten: u64,
    /// Requests that the format has no word for.
    left_out: u64,
}

impl Exported {
    /// Says what the trace lacks, beside it; programs have it in the answer.
    fn warn(&self, out: Out) {
        let Self { volume, overwritten, left_out, .. } = self;
        let tell = |what: String| {
            // Standard error may be closed; ignore that.
            let _ = if matches!(out, Out::Text) { writeln!(stderr(), "kura: {what}") } else { Ok(()) };
        };
        if *overwritten > 0 {
            let why = "newer ones overwrote them; `kura trace record --memory` makes room for more";
            tell(format!("the oldest {overwritten} requests of volume {volume} are lost: {why}"));
        }
        if *left_out > 0 {
            let why = "MSR traces have reads and writes only; --format blkparse has them";
            tell(format!("{left_out} flushes and discards are left out: {why}"));
        }
    }
}

/// Requests between two words of how far an export is.
const WORD: u64 = 1024;

/// A bar of requests, on standard error where that is a terminal.
fn bar(out: Out) -> Result<ProgressBar> {
    let bar = if matches!(out, Out::Quiet) { ProgressBar::hidden() } else { ProgressBar::no_length() };
    Ok(bar.with_style(ProgressStyle::with_template("export {wide_bar} {pos} of {len} requests, {eta} left")?))
}

/// Exports to a file, whole or not at all.
async fn to_file(
    client: &Client,
    volume: String,
    format: TraceFormat,
    file: &Path,
    bar: &ProgressBar,
) -> Result<Exported> {
    let new = NewFile::create(file)?;
    let exported = export(client, volume, format, new.writer()?, bar).await?;
    new.keep()?;
    Ok(exported)
}

/// Writes what there is of a recording to `to`.
async fn export(
    client: &Client,
    volume: String,
    format: TraceFormat,
    to: impl Write + Send + 'static,
    bar: &ProgressBar,
) -> Result<Exported> {
    let recording = client.recording(&volume).await?;
    bar.set_length(recording.requests - recording.overwritten);
    let mut recorded = client.recorded(&volume).await?;
    let first = recorded.next().await?;
    let first = first.with_context(|| format!("volume {volume}: no requests are recorded yet"))?;
    let begin = recording.started_at.0 + Duration::from_nanos(first.at_ns);
    // The writers take requests one after another and the client waits for them: each has a thread.
    let (sender, mut requests) = mpsc::channel(1024);
    let host = volume.clone();
    let writing = tokio::task::spawn_blocking(move || {
        let requests = std::iter::from_fn(|| requests.blocking_recv().map(Ok::<Request, TraceError>));
        match format {
            TraceFormat::Msr => write_msr(requests, &host, file_time(begin), to),
            TraceFormat::Blkparse => write_blkparse(requests, "kura", to),
        }
    });
    let overwritten = send(first, &mut recorded, sender, bar).await;
    bar.finish_and_clear();
    let written = writing.await.context("the trace could not be written")?;
    let (Written { requests, left_out }, overwritten) = (written?, overwritten?);
    Ok(Exported { volume, format, requests, overwritten, left_out })
}

/// Sends requests, the first at time 0, and returns how many are missing.
async fn send(
    first: RecordedRequest,
    recorded: &mut RecordedRequests,
    to: mpsc::Sender<Request>,
    bar: &ProgressBar,
) -> Result<u64, kura_admin::ClientError> {
    let (mut sent, mut seen, mut next) = (0, 0, Some(first));
    while let Some(request) = next {
        let RecordedRequest { number, at_ns, op, offset_bytes, len_bytes, response_ns } = request;
        let op = match op {
            RecordedOp::Read => Op::Read,
            RecordedOp::Write => Op::Write,
            RecordedOp::Discard => Op::Discard,
            RecordedOp::Flush => Op::Flush,
        };
        let request = Request { at_ns: at_ns - first.at_ns, op, offset_bytes, len_bytes, response_ns };
        if to.send(request).await.is_err() {
            // The writer has failed, and says why.
            break;
        }
        if sent % WORD == 0 {
            bar.set_position(sent);
        }
        (sent, seen) = (sent + 1, number + 1);
        next = recorded.next().await?;
    }
    Ok(seen - sent)
}

/// A time in ticks of 100 ns since the beginning of 1601.
fn file_time(time: SystemTime) -> u64 {
    const UNIX_EPOCH_TICKS: u128 = 116_444_736_000_000_000;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (UNIX_EPOCH_TICKS + since.as_nanos() / 100) as u64
}

/// An output whose reader may go away, which is told apart from what else may fail.
struct Pipe<W> {
    to: W,
    is_gone: Arc<AtomicBool>,
}

impl<W> Pipe<W> {
    fn heed<T>(&self, done: std::io::Result<T>) -> std::io::Result<T> {
        done.inspect_err(|error| {
            self.is_gone.fetch_or(error.kind() == ErrorKind::BrokenPipe, Ordering::Relaxed);
        })
    }
}

impl<W: Write> Write for Pipe<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.to.write(bytes);
        self.heed(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let flushed = self.to.flush();
        self.heed(flushed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_admin::Timestamp;

    #[test]
    fn times_of_day_are_file_times() {
        let at = |text: &str| file_time(humantime_time(text));
        assert_eq!(at("1970-01-01T00:00:00Z"), 116_444_736_000_000_000);
        assert_eq!(at("2007-02-22T17:07:52.301Z"), 128_166_376_723_010_000);
    }

    fn humantime_time(text: &str) -> SystemTime {
        let timestamp: Timestamp = serde_json::from_value(text.into()).expect("a time");
        timestamp.0
    }
}
