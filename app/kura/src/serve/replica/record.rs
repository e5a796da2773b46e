//! What is known of each copy, in `replicas.json` of the data directory.
//!
//! The file is written before what it speaks of changes: it says *unknown* before a copy goes back to a point, *under way*
//! before the first block of a transfer is written, and an offset only once all below it is durable.

use crate::serve::data::DataDir;
use crate::serve::durable::Durable;
use kura_admin::{Replica, ReplicaState, ReplicaTransfer};
use kura_block::{Error, Result};
use kura_replicate::volume::Transfer;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
pub struct Records(Arc<Durable<BTreeMap<String, Record>>>);

impl Records {
    /// Those of the data directory; none where there is no file.
    pub fn open(data: &DataDir) -> anyhow::Result<Self> {
        Ok(Self(Arc::new(Durable::open(data, "replicas.json", "send all copies again")?)))
    }

    /// All of them.
    pub fn all(&self) -> BTreeMap<String, Record> {
        self.0.get().clone()
    }

    /// That of a volume.
    pub fn get(&self, volume: &str) -> Option<Record> {
        self.0.get().get(volume).cloned()
    }

    /// The snapshots that copies cannot do without while they follow.
    pub fn needed(&self) -> BTreeSet<String> {
        let records = self.0.get();
        let named = |(volume, record): (&String, &Record)| {
            record.needs().map(|point| format!("{volume}@{point}")).collect::<Vec<_>>()
        };
        records.iter().flat_map(named).collect()
    }

    /// Makes a record durable, then true; none removes it.
    pub async fn set(&self, volume: &str, record: Option<Record>) -> Result<()> {
        let (kept, volume) = (Arc::clone(&self.0), volume.to_owned());
        let change = move |records: &mut BTreeMap<String, Record>| {
            match record {
                Some(record) => records.insert(volume, record),
                None => records.remove(&volume),
            };
            Ok(())
        };
        let set = tokio::task::spawn_blocking(move || kept.change(change));
        set.await.map_err(|error| Error::retry(format!("replicas.json: {error}")))?
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
}
