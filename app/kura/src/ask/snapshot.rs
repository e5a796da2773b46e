//! `kura snapshot`: asking a server for snapshots.

use crate::cli::{ScheduleCommand, SnapshotCommand};
use crate::show::{Deed, Out, access, table};
use crate::size::Size;
use anyhow::Result;
use kura_admin::{
    ByteRange, Client, ClientError, KeptSchedule, NewClone, NewSnapshots, Snapshot, SnapshotSchedule, Volume,
};
use serde::Serialize;
use std::time::Duration;

/// Carries a command out at the server and shows the answer.
pub async fn snapshot(client: &Client, out: Out, command: SnapshotCommand) -> Result<()> {
    match command {
        SnapshotCommand::Create { names, read_only } => {
            let made = client.create_snapshots(&NewSnapshots { names, read_only }).await?;
            out.show(made.as_slice(), |made| lines(made, "created"))
        }
        SnapshotCommand::List { volume } => out.show(client.snapshots(volume.as_deref()).await?.as_slice(), snapshots),
        SnapshotCommand::Delete { names, force, dry_run } => delete(client, out, &names, force, dry_run).await,
        SnapshotCommand::Rollback { name, force, dry_run } => {
            let volume = if dry_run {
                client.trial().roll_back(&name, force).await?;
                let of = client.snapshot(&name).await?.volume;
                client.volume(&of).await?
            } else {
                client.roll_back(&name, force).await?
            };
            out.show(&Deed { dry_run, of: volume }, |Deed { of: Volume { name: volume, .. }, .. }| {
                if dry_run {
                    format!("would roll volume {volume} back to {name}: what was written since would be lost")
                } else {
                    format!("rolled volume {volume} back to {name}")
                }
            })
        }
        SnapshotCommand::Clone { name, clone } => {
            let volume = client.clone_snapshot(&name, NewClone { name: clone }).await?;
            out.show(&volume, |volume| format!("created volume {} of {}", volume.name, Size(volume.size_bytes)))
        }
        SnapshotCommand::Diff { earlier, later } => out.show(&diff(client, earlier, later).await?, changes),
        SnapshotCommand::Schedule(command) => schedule_of(client, out, command).await,
    }
}

/// Deletes one after the other; what is deleted is told even where the next one cannot be.
async fn delete(client: &Client, out: Out, names: &[String], force: bool, dry_run: bool) -> Result<()> {
    let mut deleted = Vec::new();
    let mut failed = Ok(());
    for name in names {
        let one = async {
            let snapshot = client.snapshot(name).await?;
            if dry_run {
                client.trial().delete_snapshot(name, force).await?;
            } else {
                client.delete_snapshot(name, force).await?;
            }
            Ok::<_, ClientError>(Deed { dry_run, of: snapshot })
        };
        match one.await {
            Ok(snapshot) => deleted.push(snapshot),
            Err(error) => {
                failed = Err(error);
                break;
            }
        }
    }
    if !deleted.is_empty() {
        out.show(deleted.as_slice(), |deleted| {
            let done = if dry_run { "would delete" } else { "deleted" };
            lines(deleted.iter().map(|deed| &deed.of), done)
        })?;
    }
    Ok(failed?)
}

fn lines<'a>(snapshots: impl IntoIterator<Item = &'a Snapshot>, done: &str) -> String {
    let line = |snapshot: &Snapshot| format!("{done} snapshot {} of {}", snapshot.name, Size(snapshot.size_bytes));
    snapshots.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Snapshots, a line each.
fn snapshots(snapshots: &[Snapshot]) -> String {
    if snapshots.is_empty() {
        return "no snapshots: make one with `kura snapshot create VOLUME@NAME`".to_owned();
    }
    let row = |snapshot: &Snapshot| {
        vec![
            snapshot.name.clone(),
            snapshot.number.to_string(),
            humantime::format_rfc3339_seconds(snapshot.made_at.0).to_string(),
            Size(snapshot.size_bytes).to_string(),
            Size(snapshot.unique_bytes).to_string(),
            access(snapshot.read_only, snapshot.lost, snapshot.doomed),
            snapshot.snapshots.to_string(),
            snapshot.clients.to_string(),
        ]
    };
    let header = ["NAME", "NUMBER>", "MADE", "SIZE>", "UNIQUE>", "ACCESS", "CLONES>", "CLIENTS>"];
    table(&header, snapshots.iter().map(row))
}

/// Where two snapshots differ.
#[derive(Serialize)]
struct Diff {
    earlier: String,
    later: String,
    changed_bytes: u64,
    ranges: Vec<ByteRange>,
}

async fn diff(client: &Client, earlier: String, later: String) -> Result<Diff> {
    let mut ranges: Vec<ByteRange> = Vec::new();
    let mut offset = Some(0);
    while let Some(at) = offset {
        let page = client.changes(&earlier, &later, at).await?;
        for range in page.ranges {
            match ranges.last_mut() {
                // A page may end within a range.
                Some(last) if last.offset_bytes + last.size_bytes == range.offset_bytes => {
                    last.size_bytes += range.size_bytes;
                }
                _ => ranges.push(range),
            }
        }
        offset = page.next_offset_bytes;
    }
    let changed_bytes = ranges.iter().map(|range| range.size_bytes).sum();
    Ok(Diff { earlier, later, changed_bytes, ranges })
}

fn changes(diff: &Diff) -> String {
    let Diff { earlier, later, changed_bytes, ranges } = diff;
    if ranges.is_empty() {
        return format!("{later} is what {earlier} is");
    }
    let row = |range: &ByteRange| vec![range.offset_bytes.to_string(), range.size_bytes.to_string()];
    let rows = table(&["OFFSET>", "BYTES>"], ranges.iter().map(row));
    format!("{rows}{} in {} ranges", Size(*changed_bytes), ranges.len())
}

async fn schedule_of(client: &Client, out: Out, command: ScheduleCommand) -> Result<()> {
    match command {
        ScheduleCommand::Add { volume, every, keep, prefix } => {
            let new = SnapshotSchedule { volume, prefix, every_s: every.as_secs(), keep };
            let kept = client.add_snapshot_schedule(&new).await?;
            out.show(&kept, |kept| {
                let every = every_text(kept);
                format!("volume {} gets a snapshot every {every}; {} are kept", kept.volume, kept.keep)
            })
        }
        ScheduleCommand::List => out.show(client.snapshot_schedules().await?.as_slice(), schedules),
        ScheduleCommand::Remove { volume, prefix, dry_run } => {
            if dry_run {
                client.trial().remove_snapshot_schedule(&volume, &prefix).await?;
            } else {
                client.remove_snapshot_schedule(&volume, &prefix).await?;
            }
            let done = if dry_run { "would be" } else { "is" };
            out.show(&serde_json::json!({ "volume": volume, "prefix": prefix, "dry_run": dry_run }), |_| {
                format!("the schedule {prefix} of volume {volume} {done} removed; its snapshots stay")
            })
        }
    }
}

/// Schedules, a line each.
fn schedules(schedules: &[KeptSchedule]) -> String {
    if schedules.is_empty() {
        return "no schedules: add one with `kura snapshot schedule add VOLUME --every 1h --keep 24`".to_owned();
    }
    let row = |KeptSchedule { schedule, error }: &KeptSchedule| {
        let SnapshotSchedule { volume, prefix, keep, .. } = schedule;
        let why = error.clone().unwrap_or_default();
        vec![volume.clone(), prefix.clone(), every_text(schedule), keep.to_string(), why]
    };
    table(&["VOLUME", "PREFIX", "EVERY>", "KEEP>", "FAILS"], schedules.iter().map(row))
}

fn every_text(schedule: &SnapshotSchedule) -> String {
    humantime::format_duration(Duration::from_secs(schedule.every_s)).to_string()
}
