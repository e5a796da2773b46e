//! Batches from outside: checked, prepared (what must be read or written first), submitted, waited for.

use crate::batch::{Batch, Change, Changed, Durability, Put};
use crate::content::Content;
use crate::housekeeping::Hope;
use crate::log::Ticket;
use crate::log::submit::{Edit, Prepared, Ready, Refusal, Taken};
use crate::object::{
    Attributes, KEY_LIMIT_BYTES, PartitionId, Stat, TAG_LIMIT_BYTES, Which, check_attributes, check_key, name_of, shown,
};
use crate::policy::{self, For};
use crate::recent::Said;
use crate::store::{Inner, Store};
use crate::upload::Upload;
use kura_block::{Bufs, Error, Kind, Result};
use std::collections::BTreeMap;
use std::rc::Rc;

impl Store {
    /// Commits a batch: all of its changes, or none and the reason why. Resolves when it is acknowledged as the batch's
    /// durability says; dropping the future leaves open whether it happens.
    ///
    /// Errors: `Exists`, `Missing` as the conditions say, the latter for a partition or a version that is to be changed as
    /// well; `Retry` where the device refuses for now, or the store is being closed; `Invalid` for keys, tags, attributes and
    /// batches that are too large; `Full`.
    pub async fn commit(&self, batch: Batch) -> Result<Vec<Changed>> {
        check(&batch)?;
        let Batch { conditions, changes, durability } = batch;
        let durability = durability.unwrap_or(self.inner.options.durability);
        let mut edits = Vec::new();
        let mut ready = Vec::with_capacity(changes.len());
        for (at, named) in changes.into_iter().enumerate() {
            let change = match named.change {
                Change::Put { mut put, join } => {
                    put.content = self.placed(put.content).await?;
                    Ready::Put { put, join }
                }
                Change::Remove { which } => Ready::Remove { which },
                Change::Mark { modified_ms, versioned } => Ready::Mark { modified_ms, versioned },
                Change::SetAttributes { which, changes } => {
                    let edit = self.with_attributes(named.partition, &named.key, which, &changes).await?;
                    edits.push((at, which, changes));
                    Ready::Edit(edit)
                }
            };
            ready.push((named.partition, named.key, change));
        }
        // Read again it is, mostly, what was put just now.
        let keeps = self.inner.recent.keeps() && durability == Durability::Durable;
        let said = |change: &Ready| match change {
            Ready::Put { put, .. } if keeps => {
                Some(Said { attributes: put.attributes.clone(), inline: put.content.inline.clone() })
            }
            _ => None,
        };
        let said: Vec<Option<Said>> = ready.iter().map(|(_, _, change)| said(change)).collect();
        if durability == Durability::Memory {
            self.inner.until(|state| state.log.backlog() < policy::BACKLOG_ENTRIES).await?;
        }
        let mut prepared = Prepared { conditions, changes: ready, durability };
        loop {
            match self.inner.submit(&mut prepared).await {
                Ok((ticket, changed)) => {
                    self.inner.acknowledged(&ticket).await?;
                    for (said, changed) in said.into_iter().zip(&changed) {
                        if let (Some(said), Some(now)) = (said, &changed.now) {
                            self.inner.recent.keep_said(now.revision, said);
                        }
                    }
                    return Ok(changed);
                }
                Err(Refusal::Error(error)) => return Err(error),
                Err(Refusal::Stale) => {
                    for (at, which, changes) in &edits {
                        let (partition, key, ready) = &mut prepared.changes[*at];
                        *ready = Ready::Edit(self.with_attributes(*partition, key, *which, changes).await?);
                    }
                }
            }
        }
    }

    /// Stores an object, whole, in place of what was put there without `versioned`.
    pub async fn put(&self, partition: PartitionId, key: &[u8], put: Put) -> Result<Stat> {
        let mut batch = Batch::new();
        batch.put(partition, key, put);
        let changed = self.commit(batch).await?;
        changed
            .into_iter()
            .next()
            .and_then(|changed| changed.now)
            .ok_or_else(|| Error::corrupt("a put shows no version"))
    }

    /// Removes a version for good; what it was, if it was.
    pub async fn remove(&self, partition: PartitionId, key: &[u8], which: Which) -> Result<Option<Stat>> {
        let mut batch = Batch::new();
        batch.remove(partition, key, which);
        Ok(self.commit(batch).await?.into_iter().next().and_then(|changed| changed.before))
    }

    /// Content as it is to lie: what is too large for the log goes to extents.
    async fn placed(&self, content: Content) -> Result<Content> {
        let limit = self.inner.inline_limit();
        if !content.pieces.is_empty() || content.inline.len() <= limit {
            return Ok(content);
        }
        let mut upload = Upload::new(&self.inner, true);
        upload.write(content.inline).await?;
        upload.finish().await
    }

    async fn with_attributes(
        &self,
        partition: PartitionId,
        key: &[u8],
        which: Which,
        changes: &[(String, Option<Vec<u8>>)],
    ) -> Result<Edit> {
        let read = self.inner.read_record(partition, key, which).await?;
        let mut attributes = read.attributes;
        for (name, value) in changes {
            match value {
                Some(value) => attributes.insert(name.clone(), value.clone()),
                None => attributes.remove(name),
            };
        }
        check_attributes(&attributes)?;
        Ok(Edit { known: read.known, attributes, inline: read.inline, held: None, is_move: false })
    }
}

impl Inner {
    /// Submits a batch, waiting for a checkpoint that is outrun, and for room where there is some to be gained.
    pub async fn submit(self: &Rc<Self>, batch: &mut Prepared) -> Taken<(Ticket, Vec<Changed>)> {
        self.until(|state| state.closing || !state.outruns_checkpoint()).await?;
        let mut hope = Hope::default();
        loop {
            let result = self.use_room(|state| {
                let floor = state.floor(if batch.only_removes() { For::Removals } else { For::Users });
                state.submit(batch, floor)
            });
            match result {
                Ok(done) => {
                    self.wake.notify_one();
                    self.look_after();
                    return Ok(done);
                }
                Err(Refusal::Error(error)) if error.kind() == Kind::Full => {
                    if !self.make_room(&mut hope).await {
                        return Err(Refusal::Error(error));
                    }
                }
                Err(Refusal::Error(error)) => {
                    // What it was held against may be on its way still: nobody hears of that before it is durable, and
                    // what is taken back refuses nothing.
                    let pending = self.state.borrow().log.last_pending();
                    let Some(ticket) = pending else { return Err(Refusal::Error(error)) };
                    match self.durable(&ticket).await {
                        Err(_) if ticket.fate.get().is_some() => {}
                        done => return Err(Refusal::Error(done.err().unwrap_or(error))),
                    }
                }
                Err(refusal @ Refusal::Stale) => return Err(refusal),
            }
        }
    }

    /// Content up to this many bytes lies behind its record.
    pub fn inline_limit(&self) -> usize {
        self.state.borrow().root.inline_limit_bytes as usize
    }
}

/// Refuses what is wrong with a batch before anything is done for it.
fn check(batch: &Batch) -> Result<()> {
    let mut named: BTreeMap<Vec<u8>, Option<Which>> = BTreeMap::new();
    let mut name = |partition: PartitionId, key: &[u8], removed: Option<Which>| {
        check_key(key)?;
        // Removals of different versions go together; all else wants the key for itself.
        let sole = match named.insert(name_of(partition, key), removed) {
            None => true,
            Some(Some(Which::Version { .. })) => matches!(removed, Some(Which::Version { .. })),
            Some(_) => false,
        };
        if sole { Ok(()) } else { Err(Error::invalid(format!("key {} is named twice in a batch", shown(key)))) }
    };
    for (_, key, _) in &batch.conditions {
        check_key(key)?;
    }
    for change in &batch.changes {
        let removed = if let Change::Remove { which } = &change.change { Some(*which) } else { None };
        name(change.partition, &change.key, removed)?;
        if let Change::Put { put, join } = &change.change {
            check_attributes(&put.attributes)?;
            if put.tag.len() > TAG_LIMIT_BYTES {
                return Err(Error::invalid(format!(
                    "a tag has at most {TAG_LIMIT_BYTES} bytes, not {}",
                    put.tag.len()
                )));
            }
            for (partition, key) in join {
                name(*partition, key, None)?;
            }
        }
    }
    debug_assert!(KEY_LIMIT_BYTES < usize::from(u16::MAX), "names fit their length field");
    Ok(())
}

/// What a record says, read back.
pub(crate) struct ReadRecord {
    pub known: crate::known::Known,
    pub attributes: Attributes,
    pub inline: Bufs,
}

impl Store {
    /// How changes are acknowledged whose batch does not say.
    pub fn durability(&self) -> Durability {
        self.inner.options.durability
    }
}
