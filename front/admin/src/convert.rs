//! From the engine's words to the wire's, and back.

use crate::Snapshot;
use crate::resources::{
    CheckResult, Controller, ControllerArray, ControllerSharing, Disk, DiskClass, DiskState, DrainedController, Health,
    Layout, MovedVolume, NewVolume, Pool, RecordedOp, RecordedRequest, Recording, RecordingState, SnapshotStops,
    StayingVolume, StopsUpTo, Timestamp, Volume,
};
use kura_block::Amount;
use kura_controller as engine;
use std::time::{Duration, SystemTime};
use uuid::Uuid;

impl From<engine::Layout> for Layout {
    fn from(layout: engine::Layout) -> Self {
        match layout {
            engine::Layout::None => Self::None,
            engine::Layout::Mirror => Self::Mirror,
            engine::Layout::Raid5 => Self::Raid5,
            engine::Layout::HotMirror => Self::HotMirror,
            engine::Layout::Floating => Self::Floating,
        }
    }
}

impl From<Layout> for engine::Layout {
    fn from(layout: Layout) -> Self {
        match layout {
            Layout::None => Self::None,
            Layout::Mirror => Self::Mirror,
            Layout::Raid5 => Self::Raid5,
            Layout::HotMirror => Self::HotMirror,
            Layout::Floating => Self::Floating,
        }
    }
}

impl NewVolume {
    /// The volume that is asked for, in a pool whose layout is this one.
    pub(crate) fn into_spec(self, pools: engine::Layout) -> engine::VolumeSpec {
        let Self { name, size_bytes, layout, thick, read_only } = self;
        engine::VolumeSpec { name, size_bytes, layout: layout.map_or(pools, Into::into), thick, read_only }
    }
}

impl From<engine::Moved> for MovedVolume {
    fn from(moved: engine::Moved) -> Self {
        let engine::Moved { volume, from, waited } = moved;
        Self { volume: volume.into(), from, waited_us: waited.as_micros() as u64 }
    }
}

impl From<engine::Drained> for DrainedController {
    fn from(drained: engine::Drained) -> Self {
        let stays = drained.stays.into_iter().map(|(volume, why)| StayingVolume { volume, why: why.to_string() });
        Self { moved: drained.moved.into_iter().map(Into::into).collect(), stays: stays.collect() }
    }
}

impl From<engine::VolumeInfo> for Volume {
    fn from(info: engine::VolumeInfo) -> Self {
        let engine::VolumeSpec { name, size_bytes, layout, thick, read_only } = info.spec;
        Self {
            name,
            id: info.id,
            size_bytes,
            allocated_bytes: info.allocated_bytes,
            raw_bytes: info.raw_bytes,
            layout: layout.into(),
            thick,
            read_only,
            controller: info.controller,
            clients: info.open,
            snapshots: info.snapshots,
            lost: info.lost,
            doomed: info.doomed,
            // What only who keeps copies knows.
            follows: false,
            made_of: info.svol.map(|svol| svol.pvol),
        }
    }
}

impl Snapshot {
    /// What the wire has of a snapshot; none of a volume that is no snapshot.
    pub(crate) fn of(info: engine::VolumeInfo) -> Option<Self> {
        let engine::SvolStatus { pvol, epoch, made_unix_s, unique_bytes } = info.svol?;
        Some(Self {
            name: info.spec.name,
            volume: pvol,
            number: epoch,
            made_at: Timestamp(SystemTime::UNIX_EPOCH + Duration::from_secs(made_unix_s)),
            size_bytes: info.spec.size_bytes,
            unique_bytes,
            read_only: info.spec.read_only,
            snapshots: info.snapshots,
            lost: info.lost,
            doomed: info.doomed,
            controller: info.controller,
            clients: info.open,
        })
    }
}

impl From<engine::DiskClass> for DiskClass {
    fn from(class: engine::DiskClass) -> Self {
        match class {
            engine::DiskClass::Fast => Self::Fast,
            engine::DiskClass::Slow => Self::Slow,
        }
    }
}

impl From<DiskClass> for engine::DiskClass {
    fn from(class: DiskClass) -> Self {
        match class {
            DiskClass::Fast => Self::Fast,
            DiskClass::Slow => Self::Slow,
        }
    }
}

impl From<engine::DiskState> for DiskState {
    fn from(state: engine::DiskState) -> Self {
        match state {
            engine::DiskState::Healthy => Self::Healthy,
            engine::DiskState::Failed => Self::Failed,
            engine::DiskState::Missing => Self::Missing,
            engine::DiskState::Leaving => Self::Leaving,
        }
    }
}

impl From<engine::DiskInfo> for Disk {
    fn from(info: engine::DiskInfo) -> Self {
        Self {
            id: info.id,
            uuid: Uuid::from_bytes(info.uuid),
            path: info.path,
            class: info.class.into(),
            state: info.state.into(),
            takes_data: info.takes_data,
            size_bytes: info.size_bytes,
            data_bytes: info.data_bytes,
            free_bytes: info.free_bytes,
            unwanted_bytes: info.unwanted_bytes,
            lost_bytes: info.lost_bytes,
            stalled: info.stalled,
            journals: info.journals,
            journals_due: info.journals_due,
            only_journals: info.only_journals,
            io_errors: info.io_errors,
            checksum_errors: info.checksum_errors,
        }
    }
}

impl Pool {
    /// The pool, what takes its space, and the threshold of use that it has passed.
    pub fn new(info: engine::PoolInfo, space: engine::Space, passed_percent: Option<u8>) -> Self {
        let disks: Vec<Disk> = info.disks.into_iter().map(Disk::from).collect();
        let whole = disks.iter().all(|disk| disk.state == DiskState::Healthy && !disk.lacks_journals());
        Self {
            uuid: Uuid::from_bytes(info.uuid),
            health: if whole { Health::Healthy } else { Health::Degraded },
            extent_bytes: info.extent_bytes,
            data_bytes: info.data_bytes,
            free_bytes: info.free_bytes,
            volume_bytes: space.volume_bytes,
            hot_bytes: space.hot_bytes,
            borrowed_bytes: space.borrowed_bytes,
            snapshot_bytes: space.snapshot_bytes,
            passed_percent,
            disks,
        }
    }

    /// Raw bytes for volumes' data that somebody holds.
    pub fn used_bytes(&self) -> u64 {
        self.data_bytes.saturating_sub(self.free_bytes)
    }

    /// What is not well with its disks: one line each.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.disks.iter().filter_map(Disk::problem).collect()
    }
}

impl Controller {
    /// What its users must know.
    pub(crate) fn problem(&self) -> Option<String> {
        let why = self.failure.as_ref()?;
        Some(format!("controller {}: takes no writes: {why}; repair its disks, and restart the server", self.id))
    }
}

impl From<engine::ControllerInfo> for Controller {
    fn from(info: engine::ControllerInfo) -> Self {
        Self {
            id: info.id,
            volumes: info.volumes,
            drained: info.drained,
            failure: info.failure,
            journal_bytes: info.journal_bytes,
            journal_used_bytes: info.journal_used_bytes,
            dirty_bytes: info.dirty_bytes,
            dirty_limit_bytes: info.dirty_limit_bytes,
            replayed_entries: info.replayed_entries,
            replayed_bytes: info.replayed_bytes,
            reads: info.reads,
            writes: info.writes,
            read_bytes: info.read_bytes,
            written_bytes: info.written_bytes,
            straight_bytes: info.straight_bytes,
            array: ControllerArray {
                hot_blocks: info.array.hot_blocks,
                cooled_blocks: info.array.cooled_blocks,
                cold_blocks: info.array.cold_blocks,
            },
            ordered_blocks: info.ordered_blocks,
            sharing: ControllerSharing {
                method: info.method.to_string(),
                shared_accesses: info.sharing.shared_reads + info.sharing.shared_updates,
                messages: info.sharing.messages,
                drops: info.sharing.drops,
                local_hits: info.sharing.hits,
                carried: info.carried,
            },
            snapshot_stops: info.snapshot_stops.into(),
        }
    }
}

impl From<engine::Stops> for SnapshotStops {
    fn from(stops: engine::Stops) -> Self {
        let mut sum = 0;
        let up_to = engine::Stops::BOUNDS_US.into_iter().zip(stops.counts).map(|(us, count)| {
            sum += count;
            StopsUpTo { us, count: sum }
        });
        Self {
            up_to: up_to.collect(),
            count: stops.count(),
            longest_ns: stops.longest.as_nanos() as u64,
            total_ns: stops.total.as_nanos() as u64,
            records: stops.records,
        }
    }
}

impl From<engine::CheckReport> for CheckResult {
    fn from(report: engine::CheckReport) -> Self {
        let engine::CheckReport { dry_run, volumes, blocks, repaired, violations, .. } = report;
        Self { volumes, blocks, dry_run, repaired, violations }
    }
}

impl From<engine::RecordingInfo> for Recording {
    fn from(info: engine::RecordingInfo) -> Self {
        Self {
            volume: info.volume,
            state: if info.running { RecordingState::Recording } else { RecordingState::Stopped },
            started_at: Timestamp(SystemTime::UNIX_EPOCH + info.time_of_day),
            memory_bytes: info.memory_bytes,
            requests: info.requests,
            overwritten: info.overwritten,
        }
    }
}

impl RecordedRequest {
    /// Request `number` of a recording.
    pub(crate) fn new(number: u64, request: engine::RecordedRequest) -> Self {
        let engine::RecordedRequest { at_ns, offset_bytes, response_ns, len_bytes, op } = request;
        let op = match op {
            engine::RecordedOp::Read => RecordedOp::Read,
            engine::RecordedOp::Write => RecordedOp::Write,
            engine::RecordedOp::Discard => RecordedOp::Discard,
            engine::RecordedOp::Flush => RecordedOp::Flush,
        };
        Self { number, at_ns, op, offset_bytes, len_bytes, response_ns }
    }
}

impl Disk {
    /// Bytes of volumes' data on it.
    pub fn used_bytes(&self) -> u64 {
        self.data_bytes.saturating_sub(self.free_bytes)
    }

    /// What is left to do for a disk that is not healthy.
    fn left(&self) -> String {
        let Self { id, unwanted_bytes, lost_bytes, journals, journals_due, only_journals, .. } = self;
        if *only_journals > 0 {
            return "journals have their only copy on it: add a disk of its class, and do not pull this one until that one has them".to_owned();
        }
        if *lost_bytes > 0 {
            return format!("{} had their only copy on it", Amount(*lost_bytes));
        }
        match (unwanted_bytes, journals.max(journals_due)) {
            (0, 0) => format!("all it held is on other disks; `kura disk remove {id}` ends it"),
            (0, _) => "the journals have one copy less until a disk of its class is added".to_owned(),
            (bytes, _) => {
                let why = self.stalled.as_ref().map(|why| format!(", which waits: {why}")).unwrap_or_default();
                format!("{} on it have still to be copied to other disks{why}", Amount(*bytes))
            }
        }
    }

    /// True while it works and does not have all journals that it is to have.
    fn lacks_journals(&self) -> bool {
        self.state == DiskState::Healthy && self.journals < self.journals_due
    }

    fn problem(&self) -> Option<String> {
        let Self { id, path, .. } = self;
        match self.state {
            DiskState::Missing => Some(format!("disk {id} ({path}) is missing: {}", self.left())),
            DiskState::Failed => Some(format!("disk {id} ({path}) has failed: {}", self.left())),
            DiskState::Leaving => Some(format!("disk {id} ({path}) leaves the pool: {}", self.left())),
            DiskState::Healthy if self.lacks_journals() => {
                let (journals, due) = (self.journals, self.journals_due);
                let why = self.stalled.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                Some(format!("disk {id} ({path}) has {journals} of the {due} journals that it is to have{why}"))
            }
            DiskState::Healthy if self.checksum_errors > 0 => {
                Some(format!("disk {id} ({path}) returned {} blocks with wrong checksums", self.checksum_errors))
            }
            DiskState::Healthy if self.io_errors > 0 => {
                Some(format!("disk {id} ({path}) had {} I/O errors", self.io_errors))
            }
            DiskState::Healthy => None,
        }
    }
}
