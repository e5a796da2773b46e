//! Writing and clearing blocks of a volume that has snapshots, or is one.

use super::locate::Place;
use super::{Branch, PoolVol, Saving};
use crate::extent::{Extent, Pins};
use crate::record::Record;
use crate::snapshot::VersionRecord;
use crate::store::Inner;
use crate::tables::VolumeState;
use crate::write::{Edges, Seen};
use kura_block::{BLOCK_BYTES, Bufs, Checksum, Error, Kind, Result};
use kura_snapshot::{Entry, Epoch, Key, Location, Pvol, Slot, Version};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Blocks freed or taken that one record names at most.
pub(super) const RECORD_ENTRIES: usize = 1000;

/// What happens to blocks, which are whole.
pub(crate) enum Change<'a> {
    /// They get these bytes.
    Write { data: &'a Bufs, checksums: &'a [Checksum] },
    /// They read as zeroes.
    Clear,
}

/// How a block is changed.
enum How {
    /// It is as it should be.
    Stays,
    /// Where it lies.
    InPlace(Rc<VolumeState>, u64),
    /// In a slot, as a version born then.
    Redirect(Epoch),
    /// At home, once the version that is there, born then, is in a slot.
    Copy(Epoch),
}

/// What a change holds while it waits: slots that are nobody's yet, free again when dropped, and pages.
pub(super) struct Taken {
    pool_vol: Rc<PoolVol>,
    pub slots: Vec<Slot>,
    pub pins: Pins,
}

impl Taken {
    pub fn of(pool_vol: &Rc<PoolVol>) -> Self {
        Self { pool_vol: Rc::clone(pool_vol), slots: Vec::new(), pins: Pins::of([]) }
    }

    pub fn fit(&mut self, count: usize) {
        let mut table = self.pool_vol.table.borrow_mut();
        if count < self.slots.len() {
            table.put_back(&self.slots.split_off(count));
        } else {
            let more = table.take(count - self.slots.len());
            self.slots.extend(more);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.pool_vol.table.borrow_mut().put_back(&self.slots);
    }
}

/// What versions were that are copied, by block, and their bytes; none of one that no disk gives any more.
type Olds = BTreeMap<u64, Option<(Seen, Bufs)>>;

impl Inner {
    /// Changes blocks; buffered when the future resolves. False when the volume's branch or the edges are not what they
    /// were: nothing is changed then.
    pub async fn change(
        &self,
        volume: &Rc<VolumeState>,
        branch: &Rc<Branch>,
        blocks: Range<u64>,
        change: &Change<'_>,
        edges: &Edges,
    ) -> Result<bool> {
        let mut taken = Taken::of(&branch.pool_vol);
        let mut old = Olds::new();
        loop {
            if !self.may_change(volume, branch)? {
                return Ok(false);
            }
            volume.check_blocks(blocks.end)?;
            let plan = self.plan(volume, branch, blocks.clone(), matches!(change, Change::Clear), &old);
            let slots = plan.iter().filter(|how| matches!(how, How::Redirect(_) | How::Copy(_))).count();
            taken.fit(slots);
            self.fit_pool(&taken);
            let written = Self::written(volume, blocks.start, &plan, &taken);
            let unmapped = |(state, block): &&(Rc<VolumeState>, u64)| state.extent(self.index_of(*block)).is_none();
            if let Some((state, block)) = written.iter().find(unmapped) {
                let (state, index) = (Rc::clone(state), self.index_of(*block));
                match self.map_into_free(&state, index).await {
                    Err(full) if full.kind() == Kind::Full => self.make_do((&state, index), &mut taken, full).await?,
                    mapped => mapped?,
                }
                continue;
            }
            if !self.have_places(&taken) {
                self.take_elsewhere(volume, blocks.start, &mut taken)?;
                continue;
            }
            self.refuse_lost(volume, change, (blocks.start, &plan))?;
            let read = edges.places().filter_map(|place| match place {
                Place::At(state, block) => state.extent(self.index_of(*block)),
                Place::Zero => None,
            });
            let extents: Vec<_> =
                written.iter().filter_map(|(state, block)| state.extent(self.index_of(*block))).chain(read).collect();
            if !self.stage(&mut taken, &extents, 2 * (blocks.end - blocks.start)).await? {
                continue;
            }
            if volume.held.get() {
                self.released(volume).await;
                continue;
            }
            if !self.holds(volume, edges) {
                return Ok(false);
            }
            if self.read_old(volume, blocks.start, &plan, &mut old).await? {
                continue;
            }
            self.apply(volume, branch, blocks.start, change, (&plan, &mut taken, &old));
            self.client_wrote();
            return Ok(true);
        }
    }

    /// Refuses what cannot be changed now; false where the volume's branch is another one.
    pub(super) fn may_change(&self, volume: &Rc<VolumeState>, branch: &Rc<Branch>) -> Result<bool> {
        self.ready(volume)?;
        Self::refuse_rolled_to(volume, branch)?;
        self.refuse_doomed(volume, &branch.pool_vol)?;
        Ok(volume.branch().is_some_and(|now| Rc::ptr_eq(&now, branch)))
    }

    /// Loads what is written to or read, and waits until so many blocks have room; false where it took its time: what was looked at
    /// may be something else.
    pub(super) async fn stage(&self, taken: &mut Taken, extents: &[Rc<Extent>], blocks: u64) -> Result<bool> {
        // What was pinned for the last look stays so until this one is.
        taken.pins = Pins::of(extents);
        if let Some(unloaded) = taken.pins.extents().iter().find(|extent| !extent.is_loaded()) {
            self.load(unloaded).await?;
            return Ok(false);
        }
        let bytes = Self::bytes_of(blocks);
        let has_room = self.has_room(bytes);
        if !has_room {
            self.make_room(bytes).await?;
        }
        Ok(has_room)
    }

    fn plan(
        &self,
        volume: &Rc<VolumeState>,
        branch: &Branch,
        blocks: Range<u64>,
        clears: bool,
        old: &Olds,
    ) -> Vec<How> {
        let (pvol, group_blocks) = (branch.pvol.borrow(), self.group_blocks(volume));
        let (latest, rolled) = (pvol.era(), pvol.rolled.is_some());
        let copies = self.settings.saving == Saving::Copy && !rolled;
        // What cannot be read, or has no place for what comes over it, stays where it is.
        let can = |block: u64| self.has_place(volume, block) && old.get(&block).is_none_or(Option::is_some);
        let save = |block: u64, born: Epoch| if copies && can(block) { How::Copy(born) } else { How::Redirect(latest) };
        let how = |block: u64| {
            let group = (block / group_blocks) as u32;
            match pvol.version(block, group, Epoch::NOW) {
                Version::Listed(key, Location::Slot(slot)) if key.birth() >= latest => {
                    How::InPlace(Rc::clone(&branch.pool_vol.volume), slot.0)
                }
                Version::Listed(_, Location::Slot(_)) => How::Redirect(latest),
                Version::Listed(key, Location::Home) if key.birth() >= latest => How::InPlace(Rc::clone(volume), block),
                Version::Listed(key, Location::Home) => save(block, key.birth()),
                Version::Hole if clears && !rolled => How::Stays,
                Version::Hole => How::Redirect(latest.max(pvol.index.hole(group, Epoch::NOW).unwrap_or_default())),
                Version::Base if branch.parent.is_some() || rolled => How::Redirect(latest),
                Version::Base => match volume.extent(self.index_of(block)) {
                    None if clears => How::Stays,
                    None => How::InPlace(Rc::clone(volume), block),
                    Some(extent) => match pvol.pairs.latest_at(extent.owner.born) {
                        born if born >= latest => How::InPlace(Rc::clone(volume), block),
                        born => save(block, born),
                    },
                },
            }
        };
        blocks.map(how).collect()
    }

    /// Refuses a write of which a block has no place; zeroes need none.
    fn refuse_lost(&self, volume: &VolumeState, change: &Change<'_>, (first, plan): (u64, &[How])) -> Result<()> {
        let is_lost = |(how, _): &(&How, u64)| matches!(how, How::InPlace(state, at) if !self.has_place(state, *at));
        match (change, plan.iter().zip(first..).find(is_lost)) {
            (Change::Write { .. }, Some((_, block))) => Err(self.no_place(volume, block)),
            _ => Ok(()),
        }
    }

    /// True where all slots taken, and their pages, have places.
    pub(super) fn have_places(&self, taken: &Taken) -> bool {
        let pool = &taken.pool_vol.volume;
        taken.slots.iter().flat_map(|slot| [slot.0, slot.page()]).all(|block| self.has_place(pool, block))
    }

    /// Takes other slots for those of which some have no place any more.
    pub(super) fn take_elsewhere(&self, volume: &VolumeState, block: u64, taken: &mut Taken) -> Result<()> {
        let (pool, wanted) = (Rc::clone(&taken.pool_vol.volume), taken.slots.len());
        taken.fit(0);
        taken.slots = taken.pool_vol.table.borrow_mut().take_fitting(wanted, |block| self.has_place(&pool, block));
        if taken.slots.len() == wanted { Ok(()) } else { Err(self.no_place(volume, block)) }
    }

    /// The pool has no group for a write to a volume, or for the slots taken: others do that lie where the PoolVOL has groups, some of
    /// which may have to be freed; else a snapshot goes where that is the policy, or the write is refused.
    async fn make_do(&self, (state, index): (&Rc<VolumeState>, u32), taken: &mut Taken, full: Error) -> Result<()> {
        let (pool, wanted) = (Rc::clone(&taken.pool_vol.volume), taken.slots.len());
        self.note_full();
        // What is held here cannot be given back to the pool.
        taken.pins = Pins::of([]);
        let fits = |block: u64| pool.extent(self.index_of(block)).is_some() && self.has_place(&pool, block);
        while Rc::ptr_eq(state, &pool) {
            taken.fit(0);
            taken.slots = taken.pool_vol.table.borrow_mut().take_where(wanted, fits);
            if taken.slots.len() == wanted {
                return Ok(());
            }
            // What deleted snapshots leave behind may be what is missing: looked at again after each part of it, for once a
            // group has nothing in use it goes back to the pool.
            if !self.tidy_next().await? && !self.free_slots(&taken.pool_vol).await {
                break;
            }
        }
        if state.deleted.get() {
            // Who asked looks again whether there is still something to write to.
            return Ok(());
        }
        self.drop_oldest_or(state, index, full).await
    }

    /// Makes the PoolVOL so large that it has these slots.
    pub(super) fn fit_pool(&self, taken: &Taken) {
        let pool = &taken.pool_vol.volume;
        let Some(last) = taken.slots.iter().max() else { return };
        let group_bytes = Self::bytes_of(self.group_blocks(pool));
        let wanted = Self::bytes_of(last.0 + 1).next_multiple_of(group_bytes);
        if wanted > pool.size_bytes() {
            self.set_size(pool, wanted);
        }
    }

    /// The blocks that are written when the plan is carried out: their extents and pages must be there.
    fn written(volume: &Rc<VolumeState>, first: u64, plan: &[How], taken: &Taken) -> Vec<(Rc<VolumeState>, u64)> {
        let pool = &taken.pool_vol.volume;
        let places = plan.iter().zip(first..).filter_map(|(how, block)| match how {
            How::InPlace(state, at) => Some((Rc::clone(state), *at)),
            How::Copy(_) => Some((Rc::clone(volume), block)),
            How::Stays | How::Redirect(_) => None,
        });
        let slots = taken.slots.iter().flat_map(|slot| [slot.0, slot.page()].map(|block| (Rc::clone(pool), block)));
        places.chain(slots).collect()
    }

    /// The extent of a block, if its page must be loaded first.
    pub fn unloaded(&self, volume: &VolumeState, block: u64) -> Option<Rc<Extent>> {
        volume.extent(self.index_of(block)).filter(|extent| !extent.is_loaded())
    }

    /// Reads one version that is to be copied and was not read as it is now; false when there is none.
    async fn read_old(&self, volume: &Rc<VolumeState>, first: u64, plan: &[How], old: &mut Olds) -> Result<bool> {
        let is_read = |block: u64| {
            old.get(&block).and_then(Option::as_ref).is_some_and(|(seen, _)| *seen == self.seen(volume, block))
        };
        let copied = plan.iter().zip(first..).filter(|(how, _)| matches!(how, How::Copy(_)));
        let Some(block) = copied.map(|(_, block)| block).find(|block| !is_read(*block)) else { return Ok(false) };
        let seen = self.seen(volume, block);
        match self.read_blocks(volume, block, block + 1).await {
            Err(lost) if matches!(lost.kind(), Kind::Corrupt | Kind::Device) => drop(old.insert(block, None)),
            read => {
                let read = read?;
                if seen.is(&read) {
                    old.insert(block, Some((seen, read)));
                }
            }
        }
        Ok(true)
    }

    /// Carries a plan out; nothing it rests on changes before that, for there is no await.
    fn apply(
        &self,
        volume: &Rc<VolumeState>,
        branch: &Branch,
        first: u64,
        change: &Change<'_>,
        (plan, taken, old): (&[How], &mut Taken, &Olds),
    ) {
        let pool = &branch.pool_vol.volume;
        let mut slots = std::mem::take(&mut taken.slots).into_iter();
        let (mut entries, mut runs) = (Vec::new(), Vec::<Changed>::new());
        let mut pvol = branch.pvol.borrow_mut();
        let mut unseen = Vec::new();
        for (at, how) in plan.iter().enumerate() {
            let block = first + at as u64;
            let owned = |birth, home| Some(Entry { owner: volume.number(), key: Key::new(block, birth), home });
            let (state, place) = match how {
                How::Stays => continue,
                How::InPlace(state, place) => (Rc::clone(state), *place),
                How::Redirect(birth) => {
                    let Some(slot) = slots.next() else { continue };
                    entries.push((slot, owned(*birth, Epoch::FIRST)));
                    branch.disorder.again();
                    if branch.parent.is_none() && pvol.index.is_empty() {
                        // Who puts blocks in order sleeps while no volume has any that lie elsewhere.
                        self.tidy.tidier.notify_one();
                    }
                    unseen.extend(pvol.write(Key::new(block, *birth), Location::Slot(slot)));
                    (Rc::clone(pool), slot.0)
                }
                How::Copy(born) => {
                    let (Some(slot), Some(Some((_, data)))) = (slots.next(), old.get(&block)) else { continue };
                    let latest = pvol.pairs.latest();
                    self.put_blocks(pool, slot.0, data, &[Checksum::of(&data.contiguous())]);
                    // What home had is in this slot now, which alone says what it has.
                    let silent = branch.pool_vol.silence(&pvol, Key::new(block, *born));
                    let says = silent.into_iter().chain([(slot, owned(*born, latest))]);
                    self.put_entries(&branch.pool_vol, &says.collect::<Vec<_>>());
                    pvol.save(Key::new(block, *born), slot, latest);
                    (Rc::clone(volume), block)
                }
            };
            match runs.last_mut() {
                Some(run)
                    if Rc::ptr_eq(&run.state, &state)
                        && run.place + run.count as u64 == place
                        && run.at + run.count == at =>
                {
                    run.count += 1;
                }
                _ => runs.push(Changed { state, place, at, count: 1 }),
            }
        }
        drop(pvol);
        for run in runs {
            match change {
                Change::Write { data, checksums } => {
                    let bytes = data.slice(run.at * BLOCK_BYTES..(run.at + run.count) * BLOCK_BYTES);
                    self.put_blocks(&run.state, run.place, &bytes, &checksums[run.at..run.at + run.count]);
                }
                Change::Clear => self.clear_loaded(&run.state, run.place, run.place + run.count as u64),
            }
        }
        self.put_entries(&branch.pool_vol, &entries);
        self.tidy.add_versions(volume, unseen);
    }

    /// Says whose slots are, in the table and the log.
    pub fn put_entries(&self, pool_vol: &PoolVol, entries: &[(Slot, Option<Entry>)]) {
        for part in entries.chunks(RECORD_ENTRIES) {
            self.append(&Record::Versions(VersionRecord::PoolEntries {
                pool: pool_vol.volume.id,
                entries: part.to_vec(),
            }));
            let mut table = pool_vol.table.borrow_mut();
            let before = table.dirty().len();
            for (slot, entry) in part {
                table.put(*slot, *entry);
            }
            self.dirty_pool_pages.set(self.dirty_pool_pages.get() + (table.dirty().len() - before) as u64);
        }
    }
}

/// Blocks that are changed where they lie, or in slots.
struct Changed {
    state: Rc<VolumeState>,
    place: u64,
    /// Among the blocks of the change.
    at: usize,
    count: usize,
}

/// The newest birth that a version of a block of `group` may have now.
pub(super) fn birth_now(pvol: &Pvol, group: u32) -> Epoch {
    pvol.era().max(pvol.index.hole(group, Epoch::NOW).unwrap_or_default())
}
