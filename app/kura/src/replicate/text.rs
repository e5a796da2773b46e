//! How replication's answers look to people.

use crate::show::table;
use crate::size::Size;
use kura_replicate::{Origin, Standing, Summary, Verified, Worker};
use std::fmt::Write;
use std::time::Duration;

/// A run's summary; of a dry run, the lists.
pub fn summary(summary: &Summary) -> String {
    let seconds = summary.seconds;
    let carried = format!("{} files, {}", summary.files, Size(summary.bytes));
    let rest = format!("{} to delete, {} unchanged", summary.deleted, summary.unchanged);
    if summary.dry_run && matches!(summary.source.clone().into(), Origin::Volume(_)) {
        return format!("would send about {}, before compression", Size(summary.bytes));
    }
    if summary.dry_run {
        let row = |(index, worker): (usize, &Worker)| {
            let took = format!("{:.2} s", worker.planned_s);
            vec![
                (index + 1).to_string(),
                worker.planned_files.to_string(),
                Size(worker.planned_bytes).to_string(),
                took,
            ]
        };
        if summary.workers.is_empty() {
            return format!("would carry {carried}, {rest}");
        }
        let lists = table(&["WORKER>", "FILES>", "BYTES>", "ABOUT>"], summary.workers.iter().enumerate().map(row));
        return format!(
            "would carry {carried}, {rest}\nlongest list over the mean: {:.2}\n\n{lists}",
            summary.imbalance
        );
    }
    let rate = Size((summary.bytes as f64 / seconds.max(1e-3)) as u64);
    if let Some(point) = &summary.point {
        let (all, sent) = (Size(summary.bytes), Size(summary.sent_bytes));
        return format!(
            "{all} looked at in {seconds:.2} s, {sent} sent: the copy is complete, and read as its snapshot {point}"
        );
    }
    let whole = if summary.is_complete { "the copy is complete" } else { "the copy is NOT complete" };
    let sent = Size(summary.sent_bytes);
    let (deleted, unchanged) = (summary.deleted, summary.unchanged);
    let mut text = format!(
        "{carried} in {seconds:.2} s ({rate}/s), {sent} sent, {deleted} deleted, {unchanged} unchanged: {whole}\n"
    );
    if summary.taken_over > 0 {
        let count = summary.taken_over;
        // Writing to a string does not fail.
        let _ =
            writeln!(text, "{count} have other owners or groups than at the source: who writes the copy is not root");
    }
    if summary.files > 0 && !summary.workers.is_empty() {
        let row = |(index, worker): (usize, &Worker)| {
            vec![(index + 1).to_string(), worker.files.to_string(), Size(worker.bytes).to_string()]
        };
        text.push('\n');
        text += &table(&["WORKER>", "FILES>", "BYTES>"], summary.workers.iter().enumerate().map(row));
    }
    text
}

/// What a comparison came to: all that differs, a line each.
pub fn verified(verified: &Verified) -> String {
    let Verified { files, bytes, seconds, differing } = verified;
    let what = if differing.is_empty() { "nothing differs".to_owned() } else { format!("{} differ", differing.len()) };
    let mut text = format!("{files} files, {} compared in {seconds:.2} s: {what}\n", Size(*bytes));
    for difference in differing {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}: {}", kura_replicate::escaped(&difference.path), difference.cause);
    }
    text
}

/// Jobs, a line each.
pub fn standings(standings: &[Standing]) -> String {
    if standings.is_empty() {
        return "no jobs: add one with `kura replicate add NAME SOURCE TARGET`".to_owned();
    }
    let header = ["NAME", "SOURCE", "TARGET", "EVERY>", "RPO>", "AGE>", "STATE", "FAILED>"];
    let row = |it: &Standing| {
        let time = |time: Option<Duration>| {
            time.map_or_else(|| "-".to_owned(), |time| humantime::format_duration(time).to_string())
        };
        let age = it.age_s.map(|seconds| Duration::from_secs(seconds as u64));
        let state = match (it.job.failed_over, &it.last) {
            _ if it.job.removing => "being removed",
            (true, _) => "failed over",
            (false, _) if it.is_late => "late",
            (false, None) => "never run",
            (false, Some(last)) if last.is_complete => "complete",
            (false, Some(_)) => "not complete",
        };
        let failed = it.last.as_ref().map_or_else(|| "-".to_owned(), |last| last.failed.to_string());
        let (source, target) = (it.job.source.to_string(), it.job.target.clone());
        vec![it.name.clone(), source, target, time(it.job.every), time(it.job.rpo), time(age), state.to_owned(), failed]
    };
    table(&header, standings.iter().map(row))
}
