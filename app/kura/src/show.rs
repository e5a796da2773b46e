//! How answers look: tables for people, JSON for programs, nothing when quiet.

use crate::serve::greeting::reachable;
use crate::serve::space;
use crate::size::Size;
use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use kura_admin::{
    Acknowledge, CheckResult, Controller, Disk, DiskState, DrainedController, Health, Pool, Recording, RecordingState,
    Status, StayingVolume, Volume,
};
use serde::Serialize;
use std::io::{ErrorKind, Write, stdout};
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;

/// Where answers go.
#[derive(Clone, Copy)]
pub enum Out {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// Nowhere.
    Quiet,
}

impl Out {
    /// Shows `answer`, for people as `text` says it.
    pub fn show<T: Serialize + ?Sized>(self, answer: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        match self {
            Self::Text => print(&text(answer)),
            Self::Json => print(&serde_json::to_string_pretty(answer)?),
            Self::Quiet => Ok(()),
        }
    }

    /// Shows one answer of several, for programs an object on its line; false where the reader went away.
    pub fn show_line<T: Serialize>(self, answer: &T, text: impl FnOnce(&T) -> String) -> Result<bool> {
        match self {
            Self::Text => print_on(&text(answer)),
            Self::Json => print_on(&serde_json::to_string(answer)?),
            Self::Quiet => Ok(true),
        }
    }
}

/// What a command did or, in a dry run, would do.
#[derive(Serialize)]
pub struct Deed<T> {
    /// True when nothing was done.
    pub dry_run: bool,
    /// What it is about, as it is now; after a deletion, as it was.
    #[serde(flatten)]
    pub of: T,
}

/// Prints lines to standard output; a reader that went away wants no more.
pub fn print(text: &str) -> Result<()> {
    print_on(text).map(drop)
}

/// The same; false where the reader went away.
pub fn print_on(text: &str) -> Result<bool> {
    match writeln!(stdout().lock(), "{}", text.trim_end()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        done => Ok(done.map(|()| true)?),
    }
}

/// Resolves when the reader of standard output has gone, where that is a pipe: who has nothing to print does not see it.
pub async fn unread() {
    let pipe = stdout().as_fd().try_clone_to_owned().and_then(Sender::from_owned_fd_unchecked);
    match pipe {
        // An error is all that is asked for.
        Ok(pipe) => drop(pipe.ready(Interest::ERROR).await),
        Err(_) => std::future::pending().await,
    }
}

/// A table without lines: a row of names, then rows of values. Columns whose name ends in `>` are aligned right.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().map(|name| name.trim_end_matches('>')));
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if header[index].ends_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn size(bytes: u64) -> String {
    Size(bytes).to_string()
}

/// A part of a whole in per cent, rounded down.
fn percent(part: u64, whole: u64) -> String {
    format!("{}%", u128::from(part) * 100 / u128::from(whole.max(1)))
}

fn health(health: Health) -> &'static str {
    match health {
        Health::Healthy => "healthy",
        Health::Degraded => "degraded",
    }
}

/// What a list of volumes says where there are none.
pub const NO_VOLUMES: &str = "no volumes: make one with `kura volume create NAME --size 10G`";

/// Volumes, a line each.
pub fn volumes(volumes: &[Volume]) -> String {
    if volumes.is_empty() {
        return NO_VOLUMES.to_owned();
    }
    let header = [
        "NAME",
        "SIZE>",
        "ALLOCATED>",
        "RAW>",
        "LAYOUT",
        "SPACE",
        "ACCESS",
        "CONTROLLER>",
        "CLIENTS>",
        "SNAPSHOTS>",
        "CLONE OF",
    ];
    table(&header, volumes.iter().map(volume_row))
}

fn volume_row(volume: &Volume) -> Vec<String> {
    vec![
        volume.name.clone(),
        size(volume.size_bytes),
        size(volume.allocated_bytes),
        size(volume.raw_bytes),
        volume.layout.name().to_owned(),
        if volume.thick { "thick" } else { "thin" }.to_owned(),
        match access(volume.read_only, volume.lost, volume.doomed) {
            // Also where it could be written to.
            _ if volume.follows && !volume.lost && !volume.doomed => "copy".to_owned(),
            access => access,
        },
        volume.controller.to_string(),
        volume.clients.to_string(),
        volume.snapshots.to_string(),
        volume.made_of.clone().unwrap_or_default(),
    ]
}

/// What clients may do with a volume or snapshot.
pub fn access(read_only: bool, lost: bool, doomed: bool) -> String {
    let access = if lost {
        "lost"
    } else if doomed {
        "until restart"
    } else if read_only {
        "read-only"
    } else {
        "read-write"
    };
    access.to_owned()
}

/// Recordings, a line each.
pub fn recordings(recordings: &[Recording]) -> String {
    if recordings.is_empty() {
        return "no recordings: begin one with `kura trace record VOLUME`".to_owned();
    }
    let header = ["VOLUME", "STATE", "STARTED", "REQUESTS>", "OVERWRITTEN>", "MEMORY>"];
    table(&header, recordings.iter().map(recording_row))
}

fn recording_row(recording: &Recording) -> Vec<String> {
    let state = match recording.state {
        RecordingState::Recording => "recording",
        RecordingState::Stopped => "stopped",
    };
    vec![
        recording.volume.clone(),
        state.to_owned(),
        recording.started_at.to_string(),
        recording.requests.to_string(),
        recording.overwritten.to_string(),
        size(recording.memory_bytes),
    ]
}

/// Disks, a line each.
pub fn disks(disks: &[Disk]) -> String {
    let header = [
        "ID>",
        "CLASS",
        "STATE",
        "SIZE>",
        "DATA>",
        "FREE>",
        "TO MOVE>",
        "JOURNALS>",
        "ERRORS>",
        "CHECKSUM ERRORS>",
        "PATH",
    ];
    table(&header, disks.iter().map(disk_row))
}

fn disk_row(disk: &Disk) -> Vec<String> {
    let state = match disk.state {
        DiskState::Healthy => "healthy",
        DiskState::Failed => "failed",
        DiskState::Missing => "missing",
        DiskState::Leaving => "leaving",
    };
    vec![
        disk.id.to_string(),
        disk.class.name().to_owned(),
        state.to_owned(),
        size(disk.size_bytes),
        size(disk.data_bytes),
        size(disk.free_bytes),
        size(disk.unwanted_bytes),
        disk.journals.to_string(),
        disk.io_errors.to_string(),
        disk.checksum_errors.to_string(),
        disk.path.clone(),
    ]
}

/// The pool in a line.
fn pool_line(pool: &Pool) -> String {
    format!(
        "{}, {} raw, {} free, {} used; {} disks, extents of {}",
        health(pool.health),
        size(pool.data_bytes),
        size(pool.free_bytes),
        percent(pool.used_bytes(), pool.data_bytes),
        pool.disks.len(),
        size(pool.extent_bytes)
    )
}

/// The pool and its disks.
pub fn pool(pool: &Pool) -> String {
    let warning = space::warning(pool).map(|warning| format!("\n{warning}")).unwrap_or_default();
    format!("pool {}: {}{warning}\n\n{}", pool.uuid, pool_line(pool), disks(&pool.disks))
}

/// Controllers, a line each.
pub fn controllers(controllers: &[Controller]) -> String {
    let header = [
        "ID>",
        "VOLUMES>",
        "JOURNAL>",
        "USED>",
        "BUFFER>",
        "DIRTY>",
        "READS>",
        "WRITES>",
        "READ>",
        "WRITTEN>",
        "REPLAYED>",
    ];
    table(&header, controllers.iter().map(controller_row))
}

/// What sharing costs the controllers, for a thousand requests each, and what snapshots stopped.
pub fn controller_stats(controllers: &[Controller]) -> String {
    let header = [
        "ID>",
        "SHARING",
        "REQUESTS>",
        "SHARED ACCESSES/1000>",
        "MESSAGES/1000>",
        "DROPS/1000>",
        "LOCAL HITS/1000>",
        "CARRIED/1000>",
        "SNAPSHOT STOPS>",
        "LONGEST>",
    ];
    let row = |controller: &Controller| {
        let (sharing, stops) = (&controller.sharing, &controller.snapshot_stops);
        let requests = controller.reads + controller.writes;
        let of_requests = |count: u64| format!("{:.3}", count as f64 * 1000.0 / requests.max(1) as f64);
        vec![
            controller.id.to_string(),
            sharing.method.clone(),
            requests.to_string(),
            of_requests(sharing.shared_accesses),
            of_requests(sharing.messages),
            of_requests(sharing.drops),
            of_requests(sharing.local_hits),
            of_requests(sharing.carried),
            stops.count.to_string(),
            format!("{:.3} ms", stops.longest_ns as f64 / 1e6),
        ]
    };
    table(&header, controllers.iter().map(row))
}

/// What came of draining a controller, a line for each volume.
pub fn drained(drained: &DrainedController) -> Vec<String> {
    let moved = drained.moved.iter().map(|moved| {
        format!("volume {} has moved from controller {} to {}", moved.volume.name, moved.from, moved.volume.controller)
    });
    let why = |stays: &StayingVolume| {
        let named = format!("volume {}: ", stays.volume);
        stays.why.strip_prefix(&named).unwrap_or(&stays.why).to_owned()
    };
    let stays = drained.stays.iter().map(|stays| format!("volume {} stays: {}", stays.volume, why(stays)));
    moved.chain(stays).collect()
}

fn controller_row(controller: &Controller) -> Vec<String> {
    vec![
        format!("{}{}", controller.id, if controller.drained { " drained" } else { "" }),
        controller.volumes.to_string(),
        size(controller.journal_bytes),
        percent(controller.journal_used_bytes, controller.journal_bytes),
        size(controller.dirty_limit_bytes),
        percent(controller.dirty_bytes, controller.dirty_limit_bytes),
        controller.reads.to_string(),
        controller.writes.to_string(),
        size(controller.read_bytes),
        size(controller.written_bytes),
        size(controller.replayed_bytes),
    ]
}

/// The server at a glance.
pub fn status(status: &Status) -> String {
    let up = status.started_at.0.elapsed().unwrap_or_default();
    let mut lines = vec![
        format!("server  kura {}, up {}, data in {}", status.version, duration(up), status.data),
        format!("health  {}", health(status.health)),
    ];
    lines.extend(status.problems.iter().map(|problem| format!("        {problem}")));
    lines.push(format!("pool    {}", pool_line(&status.pool)));
    lines.extend(space::warning(&status.pool).map(|warning| format!("warning {warning}")));
    lines.extend(status.nbd.iter().map(|uri| format!("nbd     {}", reachable(uri))));
    let in_memory = status.s3_acknowledge == Some(Acknowledge::Memory);
    let how = if in_memory { ", acknowledges in memory: a crash may cost the newest changes" } else { "" };
    lines.extend(status.s3.iter().map(|url| format!("s3      {}{how}", reachable(url))));
    lines.extend(status.rest.iter().map(|url| format!("rest    {}/api/v1/", reachable(url))));
    lines.extend(status.rest.iter().map(|url| format!("console {}/", reachable(url))));
    lines.extend([String::new(), volumes(&status.volumes), controllers(&status.controllers)]);
    lines.join("\n")
}

/// What a check found.
pub fn check(result: &CheckResult) -> String {
    let CheckResult { volumes, blocks, dry_run, repaired, violations } = result;
    let repaired = match (repaired, dry_run) {
        (0, _) => String::new(),
        (_, true) => format!(", {repaired} to be repaired: `kura check` does so"),
        (_, false) => format!(", {repaired} repaired"),
    };
    let scope = format!("{volumes} volumes checked, {blocks} blocks verified{repaired}");
    match (violations.is_empty(), repaired.is_empty() || !dry_run) {
        (true, true) => scope + ": all is well",
        (true, false) => scope,
        (false, _) => format!("{scope}; problems:\n  {}", violations.join("\n  ")),
    }
}

/// A duration in its two largest units.
fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_names() {
        let text = table(&["NAME", "SIZE>"], [vec!["a".into(), "10G".into()], vec!["longer".into(), "1".into()]]);
        assert_eq!(text, "NAME    SIZE\na        10G\nlonger     1\n");
    }

    #[test]
    fn what_is_lost_now_or_soon_comes_before_what_may_be_done() {
        let told = |lost, doomed| [access(true, lost, doomed), access(false, lost, doomed)];
        assert_eq!(told(false, false), ["read-only", "read-write"]);
        assert_eq!(told(false, true), ["until restart"; 2]);
        assert_eq!(told(true, false), ["lost"; 2]);
    }

    #[test]
    fn durations_have_two_units() {
        let cases = [(5, "5s"), (65, "1m 5s"), (3700, "1h 1m"), (90_000, "1d 1h")];
        for (seconds, text) in cases {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }
}
