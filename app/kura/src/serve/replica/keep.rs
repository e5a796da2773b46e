//! The copies of this node: transfers come in, points are made, and one lets them go.
//!
//! Whoever asks sees to it that what was begun here comes to its end: a write that goes on after its turn would be in the
//! next one's way.

use super::record::{Content, Record, Records};
use crate::serve::data::DataDir;
use kura_admin::{Follow, NewTransfer, Replica, ReplicaState};
use kura_block::{Block, Buf, Bufs, Clients, Error, Kind, Result, RunKind};
use kura_controller::{Controller, Node, SnapshotSpec, VolumeInfo, VolumeSpec};
use kura_replicate::volume::{Extent, Frame, Transfer};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::RwLock;
use tokio::time::{Instant, sleep};

/// Bytes of one write.
const WRITE_BYTES: u64 = 1 << 20;
/// Until a volume that is being rolled back can be had, this long, and looked at this often.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);

/// The copies of a node.
pub struct Copies {
    node: Node,
    records: Records,
    desks: Mutex<BTreeMap<String, Arc<Desk>>>,
    /// What a full pool was told last to spare, if it was; held by who tells it.
    spared: tokio::sync::Mutex<Option<BTreeSet<String>>>,
    /// Nothing is waited for any more.
    is_stopping: AtomicBool,
}

/// One copy's work: frames share the turn, whatever changes what the copy is has it alone.
#[derive(Default)]
struct Desk {
    turn: RwLock<()>,
    /// Nobody new gets in while it is found out whether the volume can become a copy.
    is_closing: AtomicBool,
    /// Pieces that are durable above the record's offset: where each begins and ends.
    ahead: tokio::sync::Mutex<BTreeMap<u64, u64>>,
}

impl Copies {
    /// The copies of a data directory.
    pub fn open(data: &DataDir, node: Node) -> anyhow::Result<Self> {
        let records = Records::open(data)?;
        Ok(Self {
            node,
            records,
            desks: Mutex::default(),
            spared: tokio::sync::Mutex::default(),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Whoever waits for a volume gives up: the server stops.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
    }

    fn patience(&self) -> Patience<'_> {
        Patience { until: Instant::now() + PATIENCE, is_stopping: &self.is_stopping }
    }

    fn desks(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Desk>>> {
        // A map is whole even if its holder panicked.
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn desk(&self, volume: &str) -> Arc<Desk> {
        Arc::clone(self.desks().entry(volume.to_owned()).or_default())
    }

    async fn find(&self, name: &str) -> Result<Option<VolumeInfo>> {
        match self.node.find(name).await {
            Ok((_, info)) => Ok(Some(info)),
            Err(error) if error.kind() == Kind::Missing => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A copy's record and its volume. A record that speaks of a volume that is gone is none.
    async fn copy(&self, volume: &str) -> Result<(Record, VolumeInfo)> {
        let no_copy = || Error::missing(format!("volume {volume}: is not a copy of another one"));
        let record = self.records.get(volume).ok_or_else(no_copy)?;
        let info = self.find(volume).await?.ok_or_else(no_copy)?;
        if record.volume_id == Some(info.id) { Ok((record, info)) } else { Err(no_copy()) }
    }

    async fn note(&self, volume: &str, record: &Record) -> Result<()> {
        self.records.set(volume, Some(record.clone())).await?;
        // A full pool refuses writes rather than drop what copies cannot do without.
        let mut spared = self.spared.lock().await;
        let needed = self.records.needed();
        if spared.as_ref() != Some(&needed) {
            self.node.spare(&needed).await?;
            *spared = Some(needed);
        }
        Ok(())
    }

    /// Makes the volume of a copy, and its record before it: a crash between leaves nothing that is nobody's.
    async fn make(&self, volume: &str, new: &NewTransfer) -> Result<(Record, VolumeInfo)> {
        let record = Record {
            volume_id: None,
            state: ReplicaState::Following,
            source: new.source.clone(),
            last: None,
            content: Content::Unknown,
        };
        let before = self.records.get(volume);
        let was_begun = before.as_ref().is_some_and(|record| record.volume_id.is_none());
        let info = match self.find(volume).await? {
            Some(info) if was_begun && info.allocated_bytes == 0 => info,
            Some(_) => {
                return Err(Error::exists(format!(
                    "volume {volume}: exists and is no copy of this source: name another one, or say --adopt to lose what it \
                     has"
                )));
            }
            None => {
                self.note(volume, &record).await?;
                let layout = self.node.pool().await?.own_layout();
                let (name, size_bytes) = (volume.to_owned(), new.size_bytes);
                let spec = VolumeSpec { name, size_bytes, layout, thick: false, read_only: false };
                let made = self.node.create_volume(spec).await;
                if made.is_err() {
                    self.records.set(volume, before).await?;
                }
                made?
            }
        };
        let record = Record { volume_id: Some(info.id), ..record };
        self.note(volume, &record).await?;
        Ok((record, info))
    }

    async fn resize(&self, volume: &str, size_bytes: u64) -> Result<()> {
        let patience = self.patience();
        while let Err(error) = self.node.resize_volume(volume, size_bytes, true).await {
            patience.after(error).await?;
        }
        Ok(())
    }

    /// Makes the volume what it was at a point. One that grew since stays as large, with zeroes beyond the point's end: a
    /// volume with snapshots does not shrink.
    async fn go_back(&self, volume: &str, record: &mut Record, point: &str) -> Result<()> {
        let name = format!("{volume}@{point}");
        let size_bytes = match self.find(&name).await? {
            Some(info) => info.spec.size_bytes,
            None => {
                let text = "is gone: the next run sends everything";
                return Err(Error::missing(format!("snapshot {name}: {text}")));
            }
        };
        record.content = Content::Unknown;
        self.note(volume, record).await?;
        let patience = self.patience();
        if self.find(volume).await?.is_some_and(|info| info.spec.size_bytes < size_bytes) {
            self.resize(volume, size_bytes).await?;
        }
        while let Err(error) = self.node.roll_back(&name, false).await {
            patience.after(error).await?;
        }
        // The recovery point never becomes older while a newer one is here.
        let has_newer = match &record.last {
            Some(last) => self.find(&format!("{volume}@{last}")).await?.is_some(),
            None => false,
        };
        if !has_newer {
            record.last = Some(point.to_owned());
        }
        record.content = Content::Point(point.to_owned());
        self.note(volume, record).await
    }
}

/// Waits until a volume is no longer being rolled back by what came before.
struct Patience<'a> {
    until: Instant,
    is_stopping: &'a AtomicBool,
}

impl Patience<'_> {
    /// Waits a little, where that may help; else it is an error.
    async fn after(&self, error: Error) -> Result<()> {
        if error.kind() != Kind::Busy || Instant::now() > self.until || self.is_stopping.load(Ordering::SeqCst) {
            return Err(error);
        }
        sleep(LOOK).await;
        Ok(())
    }
}

fn following(volume: &str, record: &Record) -> Result<()> {
    match record.state {
        ReplicaState::Following => Ok(()),
        // Waiting does not help.
        ReplicaState::Promoted => Err(Error::invalid(format!(
            "volume {volume}: was failed over, and may hold newer work: `kura replicate failback` brings it back"
        ))),
    }
}

impl Copies {
    /// All, by volume.
    pub async fn list(&self) -> Result<Vec<Replica>> {
        let volumes: BTreeMap<u64, String> =
            self.node.volumes().await?.into_iter().map(|info| (info.id, info.spec.name)).collect();
        let is_there = |record: &Record| record.volume_id.is_some_and(|id| volumes.contains_key(&id));
        let all = self.records.all().into_iter().filter(|(_, record)| is_there(record));
        Ok(all.map(|(volume, record)| record.told(&volume)).collect())
    }

    /// Makes a volume a copy, to be written by transfers only.
    pub async fn follow(&self, volume: &str, how: Follow) -> Result<Replica> {
        let desk = self.desk(volume);
        let _turn = desk.turn.write().await;
        // First the door is closed, then one looks who is in: whoever opens the volume asks once more after that.
        desk.is_closing.store(true, Ordering::SeqCst);
        let followed = self.follow_closed(volume, how).await;
        desk.is_closing.store(false, Ordering::SeqCst);
        followed
    }

    async fn follow_closed(&self, volume: &str, how: Follow) -> Result<Replica> {
        let Some(info) = self.find(volume).await?.filter(|_| !volume.contains('@')) else {
            return Err(Error::missing(format!("volume {volume}: no such volume")));
        };
        if info.open > 0 {
            let text = format!("volume {volume}: {}: unmount it and disconnect them", Clients(info.open));
            return Err(Error::busy(text));
        }
        if let Some(point) = &how.point {
            let point = format!("{volume}@{point}");
            if self.find(&point).await?.is_none() {
                return Err(Error::missing(format!("snapshot {point}: no such snapshot")));
            }
            if how.unchanged && self.has_changed(&point, volume).await? {
                let text = format!("volume {volume}: was written to after {point} was made: do it again to keep that");
                return Err(Error::busy(text));
            }
        }
        let record = Record {
            volume_id: Some(info.id),
            state: ReplicaState::Following,
            source: how.source,
            last: how.point,
            content: Content::Unknown,
        };
        self.note(volume, &record).await?;
        tracing::info!(volume, point = record.last, "volume is a copy from now on");
        Ok(record.told(volume))
    }

    async fn has_changed(&self, point: &str, volume: &str) -> Result<bool> {
        let mut offset = 0;
        loop {
            let changes = self.node.changed(point, volume, offset).await?;
            match changes.next_offset {
                _ if !changes.ranges.is_empty() => return Ok(true),
                None => return Ok(false),
                Some(next) => offset = next,
            }
        }
    }

    /// Begins a transfer, or goes on with it.
    pub async fn begin(&self, volume: &str, new: NewTransfer) -> Result<Replica> {
        let desk = self.desk(volume);
        let _turn = desk.turn.write().await;
        let (mut record, info) = match self.copy(volume).await {
            Err(error) if error.kind() == Kind::Missing => self.make(volume, &new).await?,
            found => found?,
        };
        following(volume, &record)?;
        let NewTransfer { since, to, size_bytes, source } = new;
        match (&record.source, &source) {
            (Some(known), Some(source)) if known != source => {
                let text = "is the copy of another source: name another one, or say --adopt to lose what it has";
                return Err(Error::exists(format!("volume {volume}: {text}")));
            }
            (None, Some(_)) => {
                record.source = source;
                self.note(volume, &record).await?;
            }
            _ => {}
        }
        let wanted = Transfer { since, to };
        match &record.content {
            Content::UnderWay { transfer, .. } if *transfer == wanted => {
                // The point was made, and a crash came before that was noted.
                if self.find(&format!("{volume}@{}", wanted.to)).await?.is_some() {
                    record.last = Some(wanted.to.clone());
                    record.content = Content::Point(wanted.to);
                    self.note(volume, &record).await?;
                }
                return Ok(record.told(volume));
            }
            Content::Point(point) if *point == wanted.to => return Ok(record.told(volume)),
            Content::Point(point) if wanted.since.as_ref() == Some(point) => {}
            // It was here before, whatever came over it since.
            _ if self.find(&format!("{volume}@{}", wanted.to)).await?.is_some() => {
                self.go_back(volume, &mut record, &wanted.to).await?;
                return Ok(record.told(volume));
            }
            _ => {
                if let Some(since) = &wanted.since {
                    self.go_back(volume, &mut record, since).await?;
                }
            }
        }
        if self.find(volume).await?.unwrap_or(info).spec.size_bytes != size_bytes {
            record.content = Content::Unknown;
            self.note(volume, &record).await?;
            self.resize(volume, size_bytes).await?;
        }
        desk.ahead.lock().await.clear();
        record.content = Content::UnderWay { transfer: wanted, offset: 0 };
        self.note(volume, &record).await?;
        Ok(record.told(volume))
    }

    /// Puts a frame of the transfer into its place, durably.
    pub async fn apply(&self, volume: &str, frame: Frame) -> Result<()> {
        let desk = self.desk(volume);
        let _turn = desk.turn.read().await;
        let (record, info) = self.copy(volume).await?;
        following(volume, &record)?;
        let of_frame =
            Transfer { since: Some(frame.since.clone()).filter(|name| !name.is_empty()), to: frame.to.clone() };
        match &record.content {
            Content::UnderWay { transfer, offset } if *transfer == of_frame => {
                if frame.next <= *offset {
                    return Ok(());
                }
            }
            // It came late: what it has is there.
            Content::Point(point) if *point == of_frame.to => return Ok(()),
            _ => {
                return Err(Error::invalid(format!("volume {volume}: no transfer to {} is under way", of_frame.to)));
            }
        }
        if frame.next > info.spec.size_bytes {
            return Err(Error::invalid(format!("volume {volume}: a frame ends at {}, beyond its end", frame.next)));
        }
        let (offset, next) = (frame.offset, frame.next);
        let (door, _) = self.node.find(volume).await?;
        let name = volume.to_owned();
        door.call(move |controller| Box::pin(write(controller, name, frame))).await??;
        // Durable: from here on it counts.
        let mut ahead = desk.ahead.lock().await;
        let end = ahead.entry(offset).or_default();
        *end = next.max(*end);
        let Some(mut record) = self.records.get(volume) else { return Ok(()) };
        if let Content::UnderWay { offset, .. } = &mut record.content {
            let before = *offset;
            *offset = passed(&mut ahead, before);
            if *offset > before {
                self.note(volume, &record).await?;
            }
        }
        Ok(())
    }

    /// Makes the point that the transfer was to.
    pub async fn complete(&self, volume: &str, to: &str) -> Result<Replica> {
        let desk = self.desk(volume);
        let _turn = desk.turn.write().await;
        let (mut record, info) = self.copy(volume).await?;
        following(volume, &record)?;
        match &record.content {
            Content::Point(point) if point == to => return Ok(record.told(volume)),
            Content::UnderWay { transfer, offset } if transfer.to == to && *offset == info.spec.size_bytes => {}
            _ => return Err(Error::invalid(format!("volume {volume}: blocks of {to} are missing"))),
        }
        let name = format!("{volume}@{to}");
        if self.find(&name).await?.is_none() {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
            let spec = SnapshotSpec { of: volume.to_owned(), name, read_only: true };
            let patience = self.patience();
            while let Err(error) = self.node.snapshot(vec![spec.clone()], now).await {
                patience.after(error).await?;
            }
        }
        record.last = Some(to.to_owned());
        record.content = Content::Point(to.to_owned());
        self.note(volume, &record).await?;
        Ok(record.told(volume))
    }

    /// Lets the copy go, as it was at its newest complete point; one that was let go before stays what it is.
    pub async fn promote(&self, volume: &str) -> Result<Replica> {
        let desk = self.desk(volume);
        let _turn = desk.turn.write().await;
        let (mut record, _) = self.copy(volume).await?;
        if record.state == ReplicaState::Promoted {
            return Ok(record.told(volume));
        }
        let Some(last) = record.last.clone() else {
            return Err(Error::invalid(format!(
                "volume {volume}: has no complete point yet: there is nothing to work with"
            )));
        };
        if record.content != Content::Point(last.clone()) {
            self.go_back(volume, &mut record, &last).await?;
        }
        record.state = ReplicaState::Promoted;
        self.note(volume, &record).await?;
        tracing::info!(volume, point = last, "copy is a volume like any other from now on");
        Ok(record.told(volume))
    }

    /// `Busy` where the volume is a copy that follows its source.
    pub async fn check_free(&self, volume: &str) -> Result<()> {
        if self.desks().get(volume).is_some_and(|desk| desk.is_closing.load(Ordering::SeqCst)) {
            return Err(Error::busy(format!("volume {volume}: is about to become a copy")));
        }
        let follows = |record: &Record| record.state == ReplicaState::Following;
        let Some(record) = self.records.get(volume).filter(follows) else { return Ok(()) };
        match self.find(volume).await? {
            Some(info) if record.volume_id == Some(info.id) => {
                let read = record.last.map_or_else(String::new, |last| format!("read {volume}@{last}, or "));
                Err(Error::busy(format!(
                    "volume {volume}: is a copy that follows its source: {read}release it with `kura replicate failover \
                     volume:{volume}`"
                )))
            }
            _ => Ok(()),
        }
    }

    /// True for a volume that is a copy and follows its source.
    pub fn follows(&self, volume: &str, id: u64) -> bool {
        let is_it = |record: Record| record.volume_id == Some(id) && record.state == ReplicaState::Following;
        self.records.get(volume).is_some_and(is_it)
    }

    /// `Busy` where the volume or snapshot is a copy that follows its source, or a point that such a copy cannot do without.
    pub async fn check_unneeded(&self, name: &str) -> Result<()> {
        let point = name.rsplit_once('@').filter(|_| self.records.needed().contains(name));
        let volume = point.map_or(name, |(volume, _)| volume);
        let Err(error) = self.check_free(volume).await else { return Ok(()) };
        Err(Error::busy(match point {
            Some(_) => format!(
                "snapshot {name}: is what copy {volume} is if its source is lost: --force deletes it all the same"
            ),
            None => format!("{error}; --force deletes it all the same"),
        }))
    }
}

/// How far all is there from an offset on, with the pieces ahead; those that this passes are gone. Pieces of a run that was cut off
/// may begin and end elsewhere than those of the next.
fn passed(ahead: &mut BTreeMap<u64, u64>, mut offset: u64) -> u64 {
    while let Some(piece) = ahead.first_entry().filter(|piece| *piece.key() <= offset) {
        offset = offset.max(piece.remove());
    }
    offset
}

/// Puts a frame into its place; durable when the future resolves.
async fn write(controller: Rc<Controller>, name: String, frame: Frame) -> Result<()> {
    let volume = controller.open_volume(&name)?;
    let mut data = &frame.data[..];
    for Extent { offset, len, is_data } in frame.extents {
        let mut at = offset;
        if !is_data {
            clear(&*volume, offset, len).await?;
        }
        while is_data && at < offset + len {
            let (piece, rest) = data.split_at(WRITE_BYTES.min(offset + len - at) as usize);
            volume.write(at, Bufs::from(Buf::copy_of(piece)), false).await?;
            (at, data) = (at + piece.len() as u64, rest);
        }
    }
    volume.flush().await
}

/// Makes a range read as zeroes, where it does not.
async fn clear(volume: &dyn Block, offset: u64, len: u64) -> Result<()> {
    let (mut at, end) = (offset, offset + len);
    while at < end {
        for run in volume.runs(at, end - at).await? {
            if run.kind == RunKind::Data {
                volume.write_zeroes(at, run.len_bytes, false).await?;
            }
            at += run.len_bytes;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_two_runs_lead_on_wherever_they_begin() {
        let ahead = &mut BTreeMap::from([(20, 30), (32, 40)]);
        assert_eq!((passed(ahead, 10), ahead.len()), (10, 2), "10 to 20 are missing");
        assert_eq!((passed(ahead, 22), ahead.len()), (30, 1));
        ahead.extend([(12, 24), (24, 32)]);
        assert_eq!((passed(ahead, 30), ahead.len()), (40, 0));
    }

    #[tokio::test]
    async fn a_server_that_stops_waits_for_no_volume() {
        let is_stopping = AtomicBool::new(false);
        let patience = Patience { until: Instant::now() + PATIENCE, is_stopping: &is_stopping };
        assert!(patience.after(Error::busy("rolling back")).await.is_ok());
        assert_eq!(patience.after(Error::missing("gone")).await.unwrap_err().kind(), Kind::Missing);
        is_stopping.store(true, Ordering::SeqCst);
        assert_eq!(patience.after(Error::busy("rolling back")).await.unwrap_err().kind(), Kind::Busy);
    }
}
