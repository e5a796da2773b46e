//! What is known of each copy, in `replicas.json` of the data directory.
//!
//! The file is written before what it speaks of changes: it says *unknown* before a copy goes back to a point, *under way*
//! before the first block of a transfer is written, and an offset only once all below it is durable.

use crate::serve::data::{DataDir, replace_file};
use anyhow::Context;
use kura_admin::{Replica, ReplicaState, ReplicaTransfer};
use kura_block::{Error, Result};
use kura_replicate::volume::Transfer;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a copy's volume has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// What the point has.
    Point(String),
    /// Below the offset what the transfer's end has, and above that or what its beginning has.
    UnderWay {
        /// From where to where.
        transfer: Transfer,
        /// In bytes.
        offset: u64,
    },
    /// Anything.
    Unknown,
}

/// A copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The volume's number: another one of the same name is no copy. None while it is being made.
    pub volume_id: Option<u64>,
    /// What it is.
    pub state: ReplicaState,
    /// What it is the copy of; none takes the first that comes.
    #[serde(default)]
    pub source: Option<String>,
    /// Its newest complete point.
    pub last: Option<String>,
    /// What the volume itself has.
    pub content: Content,
}

impl Record {
    /// The points that a copy cannot do without while it follows: what it would be if the source were gone now, and what it is about to
    /// be.
    fn needs(&self) -> impl Iterator<Item = &str> {
        let to = match &self.content {
            Content::UnderWay { transfer, .. } => Some(transfer.to.as_str()),
            Content::Point(_) | Content::Unknown => None,
        };
        let follows = self.state == ReplicaState::Following;
        self.last.as_deref().into_iter().chain(to).filter(move |_| follows)
    }

    /// As the wire has it.
    pub fn told(&self, volume: &str) -> Replica {
        let transfer = match &self.content {
            Content::UnderWay { transfer: Transfer { since, to }, offset } => {
                Some(ReplicaTransfer { since: since.clone(), to: to.clone(), offset_bytes: *offset })
            }
            Content::Point(_) | Content::Unknown => None,
        };
        let source = self.source.clone();
        Replica { volume: volume.to_owned(), state: self.state, source, point: self.last.clone(), transfer }
    }
}

/// The copies of a data directory, by volume.
#[derive(Clone)]
pub struct Records(Arc<Kept>);

struct Kept {
    file: PathBuf,
    /// Held for an instant: a controller's thread reads them, and all of its clients would wait with it.
    records: Mutex<BTreeMap<String, Record>>,
    /// Held by who changes them, for as long as the file is written.
    turn: Mutex<()>,
}

impl Records {
    /// Those of the data directory; none where there is no file.
    pub fn open(data: &DataDir) -> anyhow::Result<Self> {
        let file = data.join("replicas.json");
        let records = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("{}: correct it, or remove it and send all copies again", file.display()))?,
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).with_context(|| file.display().to_string()),
        };
        Ok(Self(Arc::new(Kept { file, records: Mutex::new(records), turn: Mutex::default() })))
    }

    /// All of them.
    pub fn all(&self) -> BTreeMap<String, Record> {
        self.0.lock().clone()
    }

    /// That of a volume.
    pub fn get(&self, volume: &str) -> Option<Record> {
        self.0.lock().get(volume).cloned()
    }

    /// The snapshots that copies cannot do without while they follow.
    pub fn needed(&self) -> BTreeSet<String> {
        let records = self.0.lock();
        let named = |(volume, record): (&String, &Record)| {
            record.needs().map(|point| format!("{volume}@{point}")).collect::<Vec<_>>()
        };
        records.iter().flat_map(named).collect()
    }

    /// Makes a record durable, then true; none removes it.
    pub async fn set(&self, volume: &str, record: Option<Record>) -> Result<()> {
        let (kept, volume) = (Arc::clone(&self.0), volume.to_owned());
        let set = tokio::task::spawn_blocking(move || kept.set(volume, record, replace_file));
        set.await.map_err(|error| Error::retry(format!("replicas.json: {error}")))?
    }
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        // A map is whole even if its holder panicked.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `replace` puts these bytes into the file, durably.
    fn set(
        &self,
        volume: String,
        record: Option<Record>,
        replace: impl FnOnce(&Path, &[u8]) -> std::io::Result<()>,
    ) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = self.lock().clone();
        match record {
            Some(record) => changed.insert(volume, record),
            None => changed.remove(&volume),
        };
        let failed =
            |error: std::io::Error| Error::device(format!("{}: cannot be written: {error}", self.file.display()));
        let text = serde_json::to_vec_pretty(&changed).map_err(|error| failed(error.into()))?;
        replace(&self.file, &text).map_err(failed)?;
        *self.lock() = changed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_copy_is_and_is_about_to_be_is_needed_while_it_follows() {
        let directory = tempfile::tempdir().unwrap();
        let data = DataDir::open(&directory.path().join("data")).unwrap();
        let records = Records::open(&data).unwrap();
        let transfer = Transfer { since: Some("a".into()), to: "b".into() };
        let following = Record {
            volume_id: Some(7),
            state: ReplicaState::Following,
            source: None,
            last: Some("a".into()),
            content: Content::UnderWay { transfer, offset: 4096 },
        };
        let needed = async |record: Record| {
            records.set("v", Some(record)).await.unwrap();
            assert_eq!(Records::open(&data).unwrap().needed(), records.needed(), "a restart knows the same");
            records.needed().into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(needed(following.clone()).await, "v@a v@b");
        assert_eq!(needed(Record { last: None, ..following.clone() }).await, "v@b");
        assert_eq!(needed(Record { content: Content::Unknown, ..following.clone() }).await, "v@a");
        assert_eq!(needed(Record { state: ReplicaState::Promoted, ..following }).await, "");
        records.set("v", None).await.unwrap();
        assert!(records.needed().is_empty());
    }

    #[test]
    fn nobody_who_reads_waits_for_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let data = DataDir::open(&directory.path().join("data")).unwrap();
        let Records(kept) = Records::open(&data).unwrap();
        let record = Record {
            volume_id: Some(7),
            state: ReplicaState::Following,
            source: None,
            last: None,
            content: Content::Unknown,
        };
        let is_known = || kept.records.try_lock().map(|records| records.contains_key("v")).ok();
        let mut meanwhile = None;
        let written = |_: &Path, _: &[u8]| {
            meanwhile = is_known();
            Ok(())
        };
        kept.set("v".into(), Some(record), written).unwrap();
        assert_eq!((meanwhile, is_known()), (Some(false), Some(true)), "read meanwhile, and true once it is durable");
        let full = |_: &Path, _: &[u8]| Err(ErrorKind::StorageFull.into());
        assert!(kept.set("v".into(), None, full).is_err() && is_known() == Some(true));
    }
}
