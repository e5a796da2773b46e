//! Schedules of snapshots: kept in the data directory, carried out by the server.

mod policy;

use crate::serve::data::DataDir;
use crate::serve::durable::Durable;
use kura_admin::{KeptSchedule, Replicas, SnapshotSchedule};
use kura_block::{Error, Kind, Result};
use kura_controller::{Node, SnapshotSpec, SvolStatus, VolumeInfo};
use policy::{Fact, Plan, plan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// How often schedules are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A schedule, and the number of its volume: another volume of the same name has not asked for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    volume_id: u64,
    schedule: SnapshotSchedule,
}

/// The schedules of a data directory, in `schedules.json`.
pub struct Schedules {
    kept: Durable<Vec<Kept>>,
    /// Why those could not be carried out that could not when they were looked at last, by volume and prefix.
    errors: Mutex<BTreeMap<(String, String), String>>,
}

impl Schedules {
    /// Those of the data directory; none where there is no file.
    pub fn open(data: &DataDir) -> anyhow::Result<Self> {
        let kept = Durable::open(data, "schedules.json", "add the schedules again")?;
        Ok(Self { kept, errors: Mutex::default() })
    }

    fn errors(&self) -> MutexGuard<'_, BTreeMap<(String, String), String>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers how it went with a schedule; each cause is logged once.
    fn note(&self, schedule: &SnapshotSchedule, done: Result<()>) {
        let SnapshotSchedule { volume, prefix, .. } = schedule;
        let Err(error) = done else {
            self.errors().remove(&place(schedule));
            return;
        };
        let text = error.to_string();
        if self.errors().insert(place(schedule), text.clone()).is_none_or(|before| before != text) {
            tracing::warn!(volume, prefix, error = text, "a snapshot schedule could not be carried out");
        }
    }

    /// Makes `change` durable, then true.
    fn change(&self, change: impl FnOnce(&mut Vec<Kept>) -> Result<()>) -> Result<()> {
        self.kept.change(|kept| {
            change(kept)?;
            kept.sort_by_key(|one| place(&one.schedule));
            Ok(())
        })
    }
}

impl kura_admin::Schedules for Schedules {
    fn list(&self) -> Vec<KeptSchedule> {
        let (kept, errors) = (self.kept.get(), self.errors());
        let listed = |Kept { schedule, .. }: &Kept| KeptSchedule {
            schedule: schedule.clone(),
            error: errors.get(&place(schedule)).cloned(),
        };
        kept.iter().map(listed).collect()
    }

    fn add(&self, volume_id: u64, schedule: SnapshotSchedule) -> Result<()> {
        self.change(|kept| {
            let SnapshotSchedule { volume, prefix, .. } = &schedule;
            let is_same = |one: &Kept| one.schedule.volume == *volume && one.schedule.prefix == *prefix;
            if kept.iter().any(|one| is_same(one) && one.volume_id == volume_id) {
                return Err(Error::exists(format!(
                    "volume {volume}: has a schedule {prefix} already: remove it first, or give another --prefix"
                )));
            }
            kept.retain(|one| !is_same(one));
            kept.push(Kept { volume_id, schedule });
            Ok(())
        })
    }

    fn check_remove(&self, volume: &str, prefix: &str) -> Result<()> {
        if self.kept.get().iter().any(|one| one.schedule.volume == volume && one.schedule.prefix == prefix) {
            return Ok(());
        }
        Err(Error::missing(format!(
            "volume {volume}: has no schedule {prefix}; `kura snapshot schedule list` lists them"
        )))
    }

    fn remove(&self, volume: &str, prefix: &str) -> Result<()> {
        self.check_remove(volume, prefix)?;
        self.change(|kept| {
            kept.retain(|one| one.schedule.volume != volume || one.schedule.prefix != prefix);
            Ok(())
        })?;
        self.errors().remove(&(volume.to_owned(), prefix.to_owned()));
        Ok(())
    }
}

/// What a schedule is told by: its volume's name and its prefix.
fn place(schedule: &SnapshotSchedule) -> (String, String) {
    (schedule.volume.clone(), schedule.prefix.clone())
}

/// Carries the schedules out until the server stops.
pub async fn carry_out(
    node: Node,
    schedules: Arc<Schedules>,
    replicas: Arc<dyn Replicas>,
    mut stopping: watch::Receiver<bool>,
) {
    let mut ticks = interval(LOOK);
    // After a look that took long, too, the controllers are let alone for a while.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = stopping.changed() => return,
            _ = ticks.tick() => {}
        }
        // What is given up here goes on with the controllers until they stop, and the next start does what is left of it.
        tokio::select! {
            _ = stopping.changed() => return,
            () = look(&node, &schedules, &*replicas) => {}
        }
    }
}

/// Does what the schedules ask for now. One look at the volumes tells which of them ask for anything.
async fn look(node: &Node, schedules: &Schedules, replicas: &dyn Replicas) {
    let all = schedules.kept.get().clone();
    if all.is_empty() {
        return;
    }
    let volumes = node.volumes().await;
    for kept in all {
        let is_idle = |volumes: &Vec<VolumeInfo>| wanted(&kept, volumes, now_unix_s()) == Some(Plan::default());
        let done = match &volumes {
            Ok(volumes) if is_idle(volumes) => Ok(()),
            _ => step(node, schedules, replicas, &kept).await,
        };
        schedules.note(&kept.schedule, done);
    }
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What a schedule asks for; none where its volume is not there.
fn wanted(kept: &Kept, volumes: &[VolumeInfo], now_unix_s: u64) -> Option<Plan> {
    let Kept { volume_id, schedule } = kept;
    let volume = volumes.iter().find(|info| info.id == *volume_id && info.spec.name == schedule.volume)?;
    let svols = volumes.iter().filter_map(|info| Some((info.svol.as_ref()?, info)));
    let mut snapshots: Vec<_> = svols.filter(|(svol, _)| svol.pvol == volume.spec.name).collect();
    snapshots.sort_by_key(|(svol, _)| svol.epoch);
    let fact = |(svol, info): &(&SvolStatus, &VolumeInfo)| Fact {
        name: info.spec.name.clone(),
        made_unix_s: svol.made_unix_s,
        in_use: info.open > 0 || info.snapshots > 0,
    };
    let facts: Vec<Fact> = snapshots.iter().map(fact).collect();
    Some(plan(schedule, &facts, now_unix_s))
}

/// Does what a schedule asks for now.
async fn step(node: &Node, schedules: &Schedules, replicas: &dyn Replicas, kept: &Kept) -> Result<()> {
    let schedule = &kept.schedule;
    let now = now_unix_s();
    let Some(Plan { delete, make, replaced }) = wanted(kept, &node.volumes().await?, now) else {
        // One whose controller has failed may be back after a restart: a move that was cut off leaves it with none.
        if node.controllers().await?.iter().any(|controller| controller.failure.is_some()) {
            return Err(Error::missing(format!("volume {}: no controller has it", schedule.volume)));
        }
        tracing::info!(volume = schedule.volume, prefix = schedule.prefix, "volume is gone, and its schedule with it");
        return schedules.change(|all| {
            all.retain(|one| one != kept);
            Ok(())
        });
    };
    // What keeps some from being deleted keeps no other from being made, nor the other way round.
    let mut deleted = delete_all(node, &delete).await;
    if let Some(name) = make {
        replicas.check_free(&schedule.volume).await?;
        let spec = SnapshotSpec { of: schedule.volume.clone(), name: name.clone(), read_only: true };
        let make = || node.snapshot(vec![spec.clone()], now);
        let mut made = make().await;
        let is_full = made.as_ref().is_err_and(|error| error.kind() == Kind::Full) && !replaced.is_empty();
        if made.is_ok() || is_full {
            deleted = deleted.and(delete_all(node, &replaced).await);
        }
        if is_full {
            made = make().await;
        }
        made?;
        tracing::info!(snapshot = name, "snapshot made by schedule");
    }
    deleted
}

/// Deletes snapshots; where some cannot be, why not the last of them.
async fn delete_all(node: &Node, names: &[String]) -> Result<()> {
    let mut deleted = Ok(());
    for name in names {
        match node.delete_volume(name, false).await {
            Ok(()) => tracing::info!(snapshot = name, "snapshot deleted by schedule"),
            Err(error) => deleted = Err(error),
        }
    }
    deleted
}
