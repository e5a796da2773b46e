//! Batches into the log: conditions, records, the index. One step without a wait, so that nothing comes between.

use crate::batch::{Changed, Condition, Durability, Put};
use crate::content::Held;
use crate::known::{Extent, Known, MARKER, UNVERSIONED};
use crate::log::Ticket;
use crate::log::record::{Draft, Set};
use crate::log::undo::Undo;
use crate::object::{Attributes, Partition, PartitionId, Row, Stat, Which, name_of, shown};
use crate::store::State;
use kura_block::{Bufs, Error, Result};
use std::collections::BTreeSet;

/// A change that needs no more reading.
pub(crate) enum Ready {
    Put { put: Put, join: Vec<(PartitionId, Vec<u8>)> },
    Remove { which: Which },
    Mark { modified_ms: u64, versioned: bool },
    Edit(Edit),
}

impl Ready {
    /// True when only where bytes lie changes.
    fn is_move(&self) -> bool {
        matches!(self, Self::Edit(edit) if edit.is_move)
    }
}

/// A version's new state.
pub(crate) struct Edit {
    /// The version as it was read, its revision and its place in the log among it, but for what changes.
    pub known: Known,
    pub attributes: Attributes,
    pub inline: Bufs,
    pub held: Option<Held>,
    /// The cleaner moves bytes: what the version is stays as it is, its revision too.
    pub is_move: bool,
}

/// A batch that needs no more reading.
pub(crate) struct Prepared {
    pub conditions: Vec<(PartitionId, Vec<u8>, Condition)>,
    pub changes: Vec<(PartitionId, Vec<u8>, Ready)>,
    pub durability: Durability,
}

impl Prepared {
    /// True when it only gives space back: it may use the last segments.
    pub fn only_removes(&self) -> bool {
        self.changes.iter().all(|(.., change)| matches!(change, Ready::Remove { .. }))
    }
}

/// Why a batch was not taken.
pub(crate) enum Refusal {
    /// What an edit was made from has changed: read it again.
    Stale,
    Error(Error),
}

/// What comes of a batch that may be refused.
pub(crate) type Taken<T> = std::result::Result<T, Refusal>;

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// What one change amounts to.
struct Planned {
    drafts: Vec<Draft>,
    before: Option<Stat>,
    /// True when the outcome shows what the last draft sets.
    shows: bool,
}

impl State {
    /// The newest version of a name, be it a marker.
    pub fn newest(&self, name: &[u8]) -> Result<Option<(Row, Known)>> {
        let found = self.index.seek(&Row::newest(name.to_vec()))?;
        Ok(found.filter(|(row, _)| row.name == name))
    }

    /// The version that is meant; markers too, but not for `Latest`.
    pub fn find(&self, name: &[u8], which: Which) -> Result<Option<(Row, Known)>> {
        match which {
            Which::Latest => Ok(self.newest(name)?.filter(|(_, known)| !known.is_marker())),
            Which::Version { number, modified_ms } => {
                let row = Row::new(name.to_vec(), number.0);
                let known = self.index.get(&row)?.filter(|known| known.modified_ms == modified_ms);
                Ok(known.map(|known| (row, known)))
            }
            Which::Unversioned => self.index.unversioned(name, None),
        }
    }

    /// True when no later version of the row's key exists.
    pub fn is_latest(&self, row: &Row) -> Result<bool> {
        Ok(self.newest(&row.name)?.is_some_and(|(newest, _)| newest == *row))
    }

    /// Takes a batch into the log and the index, whole, or not at all.
    pub fn submit(&mut self, batch: &mut Prepared, floor: usize) -> Taken<(Ticket, Vec<Changed>)> {
        self.alive()?;
        for (partition, key, condition) in &batch.conditions {
            self.hold(*partition, key, *condition)?;
        }
        let mut plans = Vec::with_capacity(batch.changes.len());
        let mut revision = self.log.next_revision;
        for (partition, key, ready) in &batch.changes {
            let plan = self.plan(*partition, key, ready, revision)?;
            revision += plan.drafts.len() as u64;
            plans.push(plan);
        }
        let first_revision = self.log.next_revision;
        let mut records = Vec::new();
        let mut bytes = 0;
        for draft in plans.iter_mut().flat_map(|plan| plan.drafts.iter_mut()) {
            let record = draft.encode(first_revision + records.len() as u64);
            bytes += record.len() + draft.set.as_ref().map_or(0, |set| set.inline.len());
            records.push(record);
        }
        if !records.is_empty() {
            self.log.reserve(&mut self.space, bytes, floor)?;
        }
        // From here on nothing may fail: the batch is taken.
        for (_, _, ready) in &mut batch.changes {
            let (put, edit) = match ready {
                Ready::Put { put, .. } => (put.content.held.take(), None),
                Ready::Edit(edit) => (None, edit.held.take()),
                Ready::Remove { .. } | Ready::Mark { .. } => (None, None),
            };
            for block in put.into_iter().chain(edit).flat_map(|mut held| held.hand_over()) {
                self.space.keep(block);
            }
        }
        let durable = batch.durability == Durability::Durable;
        let is_told = !durable && batch.changes.iter().any(|(_, _, ready)| !ready.is_move());
        let changed = self.apply(plans, records, durable)?;
        if let Some((_, memo)) = self.log.open_group() {
            memo.acknowledged |= is_told;
        }
        Ok((self.log.ticket(durable), changed))
    }

    /// Holds a condition against the store as it is.
    fn hold(&self, partition: PartitionId, key: &[u8], condition: Condition) -> Result<()> {
        if condition == Condition::Partition {
            return self.exists(partition);
        }
        let newest = self.find(&name_of(partition, key), Which::Latest)?.map(|(_, known)| known);
        let what = || format!("{partition}, key {}", shown(key));
        match (condition, newest) {
            (Condition::Absent, None) | (Condition::Present, Some(_)) => Ok(()),
            (Condition::Absent, Some(_)) => Err(Error::exists(format!("{}: exists already", what()))),
            (_, None) => Err(Error::missing(format!("{}: does not exist", what()))),
            (Condition::Version(version), Some(known)) if known.version == version.0 => Ok(()),
            (Condition::Revision(revision), Some(known)) if known.revision == revision => Ok(()),
            // Not `Retry`: the same batch will not do later either.
            (_, Some(_)) => Err(Error::exists(format!("{}: has changed since: read it again", what()))),
        }
    }

    fn exists(&self, partition: PartitionId) -> Result<()> {
        if partition == PartitionId::ROOT || self.partitions.contains_key(&partition.0) {
            return Ok(());
        }
        Err(Error::missing(format!("{partition} does not exist any more")))
    }

    fn plan(&self, partition: PartitionId, key: &[u8], ready: &Ready, revision: u64) -> Taken<Planned> {
        self.exists(partition)?;
        let name = name_of(partition, key);
        match ready {
            Ready::Put { put, join } => {
                let mut plan = Planned { drafts: Vec::new(), before: None, shows: true };
                let mut pieces = Vec::new();
                for (partition, key) in join {
                    let (row, part) = self.part(*partition, key)?;
                    pieces.extend(part.pieces);
                    plan.drafts.push(Draft { row, set: None });
                }
                pieces.extend_from_slice(&put.content.pieces);
                let size_bytes =
                    pieces.iter().try_fold(put.content.inline.len() as u64, |sum, piece| sum.checked_add(piece.len));
                if size_bytes.is_none_or(|size| size > i64::MAX.cast_unsigned()) {
                    let at = format!("{partition}, key {}", shown(key));
                    return Err(Error::invalid(format!("{at}: its parts are larger together than any object")).into());
                }
                // The version's number is its first revision.
                let version = revision + plan.drafts.len() as u64;
                let flags = if put.versioned { 0 } else { UNVERSIONED };
                let known = Known {
                    version,
                    revision: version,
                    flags,
                    modified_ms: put.modified_ms,
                    tag: put.tag.clone(),
                    pieces,
                    ..Known::default()
                };
                plan.before = self.replaced(&name, put.versioned)?;
                let set = Set { known, attributes: put.attributes.clone(), inline: put.content.inline.clone() };
                plan.drafts.push(Draft { row: Row::new(name, version), set: Some(set) });
                Ok(plan)
            }
            Ready::Mark { modified_ms, versioned } => {
                let flags = MARKER | if *versioned { 0 } else { UNVERSIONED };
                let known = Known { version: revision, revision, flags, modified_ms: *modified_ms, ..Known::default() };
                let before = self.replaced(&name, *versioned)?;
                let set = Set { known, attributes: Attributes::new(), inline: Bufs::new() };
                let drafts = vec![Draft { row: Row::new(name, revision), set: Some(set) }];
                Ok(Planned { drafts, before, shows: true })
            }
            Ready::Remove { which } => self.plan_removal(partition, &name, *which),
            Ready::Edit(edit) => {
                let row = Row::new(name, edit.known.version);
                let now = self.index.get(&row)?;
                // A version that was moved since has its revision still, and its extents elsewhere.
                let is_base = |now: &Known| now.revision == edit.known.revision && now.place == edit.known.place;
                let Some(now) = now.filter(is_base) else { return Err(Refusal::Stale) };
                let before = Some(now.stat(self.is_latest(&row)?));
                let revision = if edit.is_move { now.revision } else { revision };
                let known = Known { revision, ..edit.known.clone() };
                let set = Set { known, attributes: edit.attributes.clone(), inline: edit.inline.clone() };
                let drafts = vec![Draft { row, set: Some(set) }];
                Ok(Planned { drafts, before, shows: true })
            }
        }
    }

    fn plan_removal(&self, partition: PartitionId, name: &[u8], which: Which) -> Taken<Planned> {
        let found = if which == Which::Latest { self.newest(name)? } else { self.find(name, which)? };
        let mut plan = Planned { drafts: Vec::new(), before: None, shows: false };
        if let Some((row, known)) = found {
            if partition == PartitionId::ROOT {
                self.refuse_full_partition(known.version)?;
            }
            plan.before = Some(known.stat(self.is_latest(&row)?));
            plan.drafts.push(Draft { row, set: None });
        }
        Ok(plan)
    }

    fn refuse_full_partition(&self, number: u64) -> Result<()> {
        let partition = PartitionId(number);
        let first = self.index.seek(&Row::newest(name_of(partition, &[])))?;
        if first.is_some_and(|(row, _)| row.partition() == partition) {
            return Err(Error::busy(format!("{partition} has objects: remove them first")));
        }
        Ok(())
    }

    /// What a put or a marker replaces: the version put without `versioned`, or the one that was newest.
    fn replaced(&self, name: &[u8], versioned: bool) -> Result<Option<Stat>> {
        if versioned {
            return Ok(self.newest(name)?.map(|(_, known)| known.stat(false)));
        }
        Ok(self.index.unversioned(name, None)?.map(|(_, known)| known.stat(false)))
    }

    /// A part that a join takes over.
    fn part(&self, partition: PartitionId, key: &[u8]) -> Result<(Row, Known)> {
        let found = self.find(&name_of(partition, key), Which::Latest)?;
        let what = || format!("{partition}, key {}", shown(key));
        let (row, part) = found.ok_or_else(|| Error::missing(format!("{}: no such part", what())))?;
        if part.inline_bytes > 0 {
            let problem = "cannot be joined: put parts with what Store::upload_part gives";
            return Err(Error::invalid(format!("{} {problem}", what())));
        }
        Ok((row, part))
    }

    /// Appends the records to the log and makes the index agree.
    fn apply(&mut self, plans: Vec<Planned>, records: Vec<Vec<u8>>, durable: bool) -> Result<Vec<Changed>> {
        let mut records = records.into_iter();
        let mut changed = Vec::with_capacity(plans.len());
        let mut undo = Vec::with_capacity(records.len());
        let mut named = BTreeSet::new();
        for plan in plans {
            let mut now = None;
            for draft in plan.drafts {
                let record = records.next().unwrap_or_default();
                let Draft { row, set } = draft;
                if durable {
                    // Known only when the group is: the record goes to the open one.
                    self.log.hide(&row.name);
                }
                match set {
                    None => {
                        self.log.append(&record, &Bufs::new());
                        let before = self.index.edit(&row, None)?.map(|known| (row.clone(), known));
                        let mut partition = None;
                        if row.partition() == PartitionId::ROOT {
                            partition = self.partitions.remove(&row.version.0);
                        }
                        undo.push(Undo { row, now: None, before: before.into_iter().collect(), partition });
                    }
                    Some(set) => {
                        let place = self.log.append(&record, &set.inline);
                        let known = Known {
                            place,
                            record_bytes: record.len() as u32,
                            inline_bytes: set.inline.len() as u32,
                            ..set.known
                        };
                        named.extend(known.extents());
                        let partition = self.note_partition(&row, &known, &set.attributes);
                        let before = self.enter(&row, &known)?;
                        undo.push(Undo { row: row.clone(), now: Some(known.clone()), before, partition });
                        now = plan.shows.then_some((row, known));
                    }
                }
            }
            changed.push((now, plan.before));
        }
        self.bury(&undo, &named);
        if let Some((group, memo)) = self.log.open_group() {
            group.durable |= durable;
            group.names_extents |= !named.is_empty();
            memo.undo.push(undo);
        }
        let shown = changed.into_iter().map(|(now, before)| {
            let now = match now {
                Some((row, known)) => Some(known.stat(self.is_latest(&row)?)),
                None => None,
            };
            Ok(Changed { now, before })
        });
        shown.collect()
    }

    /// Enters a version into the index. What it replaced comes back: a version put without `versioned` replaces the one
    /// that was, of which there is one at most. Replay, for which there may be more, comes here too.
    pub fn enter(&mut self, row: &Row, known: &Known) -> Result<Vec<(Row, Known)>> {
        let edited = self.index.edit_beside(row, Some(known))?;
        let mut gone: Vec<_> = edited.found.map(|known| (row.clone(), known)).into_iter().collect();
        if known.is_unversioned() {
            // Mostly there is no other version, or only the one that is replaced: right behind.
            let other = match edited.sibling {
                Some((other, sibling)) if sibling.is_unversioned() => Some(other),
                None if edited.sees_behind => None,
                _ => self.index.unversioned(&row.name, Some(row))?.map(|(other, _)| other),
            };
            if let Some(other) = other {
                gone.extend(self.index.edit(&other, None)?.map(|known| (other, known)));
            }
        }
        if self.space.counts {
            self.space.add_record(known.place, known.log_bytes());
        }
        Ok(gone)
    }

    /// Gives up what the index does not name any more, but for the extents that `named` still are.
    fn bury(&mut self, undo: &[Undo], named: &BTreeSet<Extent>) {
        let sequence = self.log.last_sequence();
        for Undo { now, before, .. } in undo {
            for (_, known) in before {
                self.space.kill_record(known.place, known.log_bytes(), sequence);
                // A record that moved says what it said.
                if now.as_ref().is_none_or(|now| now.revision != known.revision) {
                    self.recent.forget_said(known.revision);
                }
                for extent in known.extents() {
                    if !named.contains(&extent) {
                        self.space.kill_extent(extent.block, extent.all_blocks(), sequence);
                        self.recent.forget(extent.block);
                    }
                }
            }
        }
    }

    /// The root partition's objects are the partitions: what was known of this one.
    pub fn note_partition(&mut self, row: &Row, known: &Known, attributes: &Attributes) -> Option<Partition> {
        if row.partition() != PartitionId::ROOT {
            return None;
        }
        let partition = Partition {
            id: PartitionId(known.version),
            name: row.key().to_vec(),
            attributes: attributes.clone(),
            unreadable: None,
            revision: known.revision,
            modified_ms: known.modified_ms,
        };
        self.partitions.insert(known.version, partition)
    }
}
