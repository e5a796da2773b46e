//! Places in order: in idle time blocks that were redirected go home, where they lie one behind the other again.
//!
//! ```text
//!               home of 7      slot 4             slot 9              in the log
//!               old version    free               present
//!   vacate      (same)         old version        present             data of slot 4 > pool entries: 4 is the old version's
//!   come home   present        old version        free                data of home > pool entries: 4 says what home has, 9 is free
//! ```
//!
//! Where no snapshot sees what home has, the present comes home at once. Where one does, that goes into a slot first, and
//! only where the blocks around lie scattered: it costs two writes a block, and gains nothing where they lie together.
//!
//! A deleted snapshot leaves homes behind that nobody sees, and which are room for nothing but their own blocks. Where the pool is
//! nearly full those come home at once, whatever clients do: each gives a slot back and takes none.
//!
//! What must hold:
//! 1. A home is written only when the log has what a snapshot sees there in a slot, and whose the slot is.
//! 2. A slot is given up behind the data that makes it superfluous; cut anywhere between two records, the log leaves each
//!    version where it was or where it goes.
//! 3. Nothing that was looked at has changed when the records are appended: from the last look on there is no await.
//! 4. No snapshot is given up for the room that this takes, and no client waits for it longer than for one step.
//! 5. A step ends, whatever clients write meanwhile: what does not stay as it was read is left for a later one.
//! 6. What home has of a version is older than every hole of its group: nothing comes home in a group with holes.

use super::change::Taken;
use super::tidy::Tidying;
use super::{Branch, PoolVol};
use crate::extent::{Extent, Pins};
use crate::store::Inner;
use crate::tables::VolumeState;
use crate::write::checksums_of;
use futures::future::try_join_all;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Bufs, Checksum, Kind, Result};
use kura_snapshot::{Entry, Epoch, Key, Location, Slot};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// How long the clients must be quiet before blocks are put in order while there are snapshots.
pub(super) const QUIET: Duration = Duration::from_millis(200);
/// Blocks put in order at once: what a sequential reader asks for at a time.
const WINDOW: u64 = 32;
/// Blocks looked at between two looks at what else goes on, which is short of a millisecond, and how long the next ones wait.
const LOOKS: u64 = 2048;
pub(super) const BREATH: Duration = Duration::from_millis(10);
/// Reads of what changes meanwhile, in one step. The second one is of the write buffer, as a rule, and waits for no disk.
const READS: u32 = 2;

/// How long a write in a full pool looks for what comes home.
const SOON: Duration = Duration::from_secs(1);
/// How long it counts what was found of the disks' room.
const ROOM_COUNTS: Duration = Duration::from_secs(1);
/// A disk with a smaller part of its extents free, one in so many, is nearly full.
const SCARCE: u32 = 32;

/// What came of putting places in order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Something lies where it belongs now: there may be more.
    Moved,
    /// The same, beside clients that are at work and gain nothing by it.
    Beside,
    /// Nothing was found so far.
    Looked,
    /// There is nothing to do now.
    Nothing,
}

/// What is put in order of a volume.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// All that lies scattered.
    All,
    /// What comes home without taking anything: it gives slots back.
    Freeing,
}

/// A look through a volume's versions, from the first block to the last, and again when there is news.
pub(super) struct Look {
    next: Cell<u64>,
    news: Cell<bool>,
    /// Something that was found stayed where it is.
    left: Cell<bool>,
    /// Something came home.
    moved: Cell<bool>,
}

impl Default for Look {
    fn default() -> Self {
        Self { next: Cell::new(0), news: Cell::new(true), left: Cell::new(false), moved: Cell::new(false) }
    }
}

impl Look {
    /// There may be something that the look under way, or the last one, has not seen.
    pub fn again(&self) {
        self.news.set(true);
    }

    fn is_due(&self) -> bool {
        self.next.get() > 0 || self.news.get() || self.left.get()
    }
}

impl Branch {
    /// What snapshots see has changed: blocks may come home that could not.
    pub fn look_again(&self) {
        self.disorder.again();
        self.free_homes.again();
    }

    fn look(&self, part: Part) -> &Look {
        match part {
            Part::All => &self.disorder,
            Part::Freeing => &self.free_homes,
        }
    }
}

/// A block whose present lies in a slot and can come home.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Homeless {
    present: Key,
    slot: Slot,
    /// What a snapshot sees at home: it goes to a slot first.
    seen: Option<Key>,
}

/// A block of a volume, or of a PoolVOL.
type Spot = (Rc<VolumeState>, u64);

impl Homeless {
    /// What must be read to bring it home.
    fn places(self, volume: &Rc<VolumeState>, pool: &Rc<VolumeState>) -> impl Iterator<Item = Spot> {
        let vacated = self.seen.map(|seen| (Rc::clone(volume), seen.block()));
        vacated.into_iter().chain([(Rc::clone(pool), self.slot.0)])
    }
}

/// What places held when they were read, by volume and block.
#[derive(Default)]
struct Held(BTreeMap<(u64, u64), (Bufs, Checksum)>);

impl Inner {
    /// True when some volume has blocks that may be brought home later.
    pub(super) fn families_wait(&self) -> bool {
        let tables = self.tables.borrow();
        let scattered =
            |volume: &Rc<VolumeState>| volume.branch().is_some_and(|branch| !branch.pvol.borrow().index.is_empty());
        !tables.rolling.is_empty() || tables.volumes.homes().values().any(scattered)
    }

    /// The volumes that are being rolled back.
    fn rolling(&self) -> Vec<Rc<VolumeState>> {
        let tables = &mut *self.tables.borrow_mut();
        let is_rolled =
            |volume: &Rc<VolumeState>| volume.branch().is_some_and(|branch| branch.pvol.borrow().rolled.is_some());
        tables.rolling.retain(|id| tables.volumes.get(id).is_some_and(is_rolled));
        let there = tables.rolling.iter().filter_map(|id| tables.volumes.get(id));
        there.filter(|volume| !volume.is_lost()).cloned().collect()
    }

    /// True when no client has asked for anything for a while.
    pub fn is_quiet(&self) -> bool {
        self.runtime.now().saturating_sub(self.last_write.get().max(self.last_read.get())) >= QUIET
    }

    /// The pool was full just now: what can be given back is given back at once.
    pub fn note_full(&self) {
        self.tidy.roomy_disks.set((0, self.runtime.now()));
        self.tidy.tidier.notify_one();
    }

    /// True when the pool has hardly another group for a volume.
    async fn is_scarce(&self, volume: &VolumeState) -> Result<bool> {
        let before = self.tidy.roomy_disks.get();
        let (now, (known, looked)) = (self.runtime.now(), before);
        if known == usize::MAX || now.saturating_sub(looked) >= ROOM_COUNTS {
            let mut roomy = 0;
            for device in self.disks_for(volume.shape.width()) {
                let extents = self.array.member(device).map_or(0, |member| member.plan.extents);
                roomy += usize::from(self.share.available(device).await? > extents / SCARCE);
            }
            // The pool may have been found full meanwhile.
            if self.tidy.roomy_disks.get() == before {
                self.tidy.roomy_disks.set((roomy, now));
            }
        }
        Ok(self.tidy.roomy_disks.get().0 < volume.shape.width())
    }

    /// Brings some blocks of one volume home.
    pub(super) async fn put_in_order(&self) -> Result<Progress> {
        let rolling = self.rolling();
        let (mut rolls, mut failed) = (false, None);
        for (volume, branch) in rolling.iter().filter_map(|volume| Some((volume, volume.branch()?))) {
            let done = self.go_on_rolling_back(volume, &branch).await;
            self.note_roll_back(volume, &branch, &done);
            match done {
                Ok(()) => rolls = true,
                // What comes home may be the room that it waits for, and what it cannot read holds nobody else up.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if rolls {
            return Ok(Progress::Moved);
        }
        let _one = self.tidy.turn.lock().await;
        let volumes: Vec<_> = self.tables.borrow().volumes.homes().values().cloned().collect();
        let mut progress = Progress::Nothing;
        for volume in volumes {
            let Some(branch) = volume.branch() else { continue };
            let part = if branch.pvol.borrow().pairs.is_empty() || self.is_quiet() { Part::All } else { Part::Freeing };
            if !branch.look(part).is_due() || part == Part::Freeing && !self.is_scarce(&volume).await? {
                continue;
            }
            match self.order_next(&volume, &branch, part).await {
                Ok(Progress::Moved) if part == Part::All && !self.is_quiet() => return Ok(Progress::Beside),
                Ok(Progress::Moved) => return Ok(Progress::Moved),
                Ok(Progress::Looked) => progress = Progress::Looked,
                Ok(_) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) if progress == Progress::Nothing => Err(error),
            _ => Ok(progress),
        }
    }

    /// Brings blocks home that a family's full PoolVOL has instead of room for a write; true when it may have some now. Where none are
    /// found soon, the look goes on in the background.
    pub(super) async fn free_slots(&self, pool_vol: &Rc<PoolVol>) -> bool {
        let until = self.runtime.now() + SOON;
        let volumes: Vec<_> = self.tables.borrow().volumes.homes().values().cloned().collect();
        for volume in volumes {
            let is_kin = |branch: &Rc<Branch>| Rc::ptr_eq(&branch.pool_vol, pool_vol);
            while let Some(branch) = volume.branch().filter(is_kin) {
                // A roll-back that begins meanwhile waits for what is held here.
                let can = branch.pvol.borrow().rolled.is_none() && branch.free_homes.is_due();
                if !can || self.runtime.now() >= until {
                    break;
                }
                let one = self.tidy.turn.lock().await;
                match self.order_next(&volume, &branch, Part::Freeing).await {
                    Ok(Progress::Moved) => return true,
                    // What cannot be now is tried again in the background.
                    Err(_) => break,
                    Ok(Progress::Nothing) if branch.free_homes.next.get() == 0 => break,
                    Ok(_) => {}
                }
                drop(one);
                self.runtime.sleep(BREATH / 10).await;
            }
        }
        false
    }

    /// Brings the next blocks of a volume home, if some are found soon.
    async fn order_next(&self, volume: &Rc<VolumeState>, branch: &Rc<Branch>, part: Part) -> Result<Progress> {
        let here = volume.branch().is_some_and(|now| Rc::ptr_eq(&now, branch));
        if !here || branch.pvol.borrow().rolled.is_some() {
            // The family has ended while this waited, or a roll-back has begun: there is another look when that is over.
            return Ok(Progress::Nothing);
        }
        let (look, plain) = (branch.look(part), branch.pvol.borrow().pairs.is_empty());
        let found = self.next_window(volume, branch, part);
        // Unless they come home, another look is to find them again: also when whoever waits for this leaves.
        let left = look.left.replace(look.left.get() || found.is_some());
        let moved = match &found {
            Some(blocks) => self.order_window(volume, branch, blocks.clone(), part).await?,
            None => false,
        };
        if moved {
            look.left.set(left);
            look.moved.set(true);
        }
        let passed = look.next.get() == 0;
        // Not where something has to wait: this would look at once whether it still has to.
        if passed && (look.moved.replace(false) || !look.left.get()) {
            if plain {
                self.tidy.add(Tidying::holes(volume));
            }
            self.tidy.add(Tidying::pool_vol(&branch.pool_vol));
        }
        Ok(match (moved, passed) {
            (true, _) => Progress::Moved,
            (false, false) if found.is_none() => Progress::Looked,
            _ => Progress::Nothing,
        })
    }

    /// The next blocks of a volume of which some are to be brought home, if any are found soon.
    fn next_window(&self, volume: &Rc<VolumeState>, branch: &Branch, part: Part) -> Option<Range<u64>> {
        let (look, end) = (branch.look(part), volume.size_bytes() / BLOCK_BYTES_U64);
        if look.next.get() == 0 {
            look.news.set(false);
            look.left.set(false);
        }
        let mut looked = 0;
        while looked < LOOKS {
            let first = branch.pvol.borrow().index.first_in(look.next.get(), end);
            let Some(first) = first else {
                // The next look begins at the first block again.
                look.next.set(0);
                return None;
            };
            let start = first / WINDOW * WINDOW;
            let window = start..end.min(start + WINDOW);
            look.next.set(if window.end == end { 0 } else { window.end });
            if !self.homeless(volume, branch, &window, part).is_empty() {
                return Some(window);
            }
            if window.end == end {
                return None;
            }
            looked += WINDOW;
        }
        None
    }

    /// What is to be brought home of a window.
    fn homeless(&self, volume: &Rc<VolumeState>, branch: &Branch, window: &Range<u64>, part: Part) -> Vec<Homeless> {
        let can = |block: u64| self.may_come_home(volume, branch, block);
        let mut found: Vec<_> = window.clone().filter_map(can).collect();
        if part == Part::Freeing {
            let has_home = |block: u64| volume.extent(self.index_of(block)).is_some();
            found.retain(|one| one.seen.is_none() && has_home(one.present.block()));
        } else if found.iter().any(|one| one.seen.is_some()) && !self.is_scattered(volume, window) {
            found.retain(|one| one.seen.is_none());
        }
        found
    }

    /// True when a sequential reader of the window has to go to more than one place.
    fn is_scattered(&self, volume: &Rc<VolumeState>, window: &Range<u64>) -> bool {
        self.locate(volume, window.start, window.end).1 < window.end - window.start
    }

    /// What there is to know of a block that can be brought home.
    fn may_come_home(&self, volume: &VolumeState, branch: &Branch, block: u64) -> Option<Homeless> {
        let pvol = branch.pvol.borrow();
        if pvol.rolled.is_some() {
            // What is listed is not what the volume is.
            return None;
        }
        let group = (block / self.group_blocks(volume)) as u32;
        let (present, Location::Slot(slot)) = pvol.index.find(block, Epoch::NOW)? else { return None };
        let born = volume.extent(self.index_of(block)).map_or(u64::MAX, |extent| extent.owner.born);
        let seen = pvol.seen_at_home(block, group, born);
        // What nobody sees any more is about to be listed no more.
        let listed_home = pvol.index.listed(block, block + 1).any(|(_, at)| at == Location::Home);
        // A snapshot looks for nothing in an extent that is younger than itself.
        let too_young = pvol.pairs.sees(present.birth(), pvol.pairs.latest_at(born)).is_some();
        let holed = pvol.index.hole(group, Epoch::NOW).is_some();
        let can = !holed && !too_young && (seen.is_some() || !listed_home);
        can.then_some(Homeless { present, slot, seen })
    }

    /// Writes blocks of a window to their homes and gives their slots up; false when that cannot be now. Blocks that clients
    /// change all the time are left for another look.
    async fn order_window(
        &self,
        volume: &Rc<VolumeState>,
        branch: &Rc<Branch>,
        window: Range<u64>,
        part: Part,
    ) -> Result<bool> {
        let pool = &branch.pool_vol.volume;
        let mut taken = Taken::of(&branch.pool_vol);
        let (mut held, mut reads) = (Held::default(), 0);
        loop {
            // What has been read is brought home whoever comes meanwhile, or a slow disk would read it in vain.
            let quiet = reads > 0 || part == Part::Freeing || branch.pvol.borrow().pairs.is_empty() || self.is_quiet();
            let here = volume.branch().is_some_and(|now| Rc::ptr_eq(&now, branch));
            if !quiet || !here || self.ready(volume).is_err() {
                return Ok(false);
            }
            let mut homeless = self.homeless(volume, branch, &window, part);
            if reads == READS {
                let found = homeless.len();
                homeless.retain(|one| one.places(volume, pool).all(|place| self.is_as_read(&held, &place)));
                if homeless.len() < found {
                    branch.look_again();
                }
            }
            if homeless.is_empty() {
                return Ok(false);
            }
            taken.fit(homeless.iter().filter(|one| one.seen.is_some()).count());
            self.fit_pool(&taken);
            let home = |one: &Homeless| (Rc::clone(volume), one.present.block());
            let in_slots = taken.slots.iter().flat_map(|slot| [slot.0, slot.page()]);
            let written: Vec<_> =
                homeless.iter().map(home).chain(in_slots.map(|block| (Rc::clone(pool), block))).collect();
            let unmapped = written.iter().find(|(state, block)| state.extent(self.index_of(*block)).is_none());
            if let Some((state, block)) = unmapped {
                // No snapshot is given up for this: whoever does that waits until nothing is tidied up.
                match self.map_into_free(state, self.index_of(*block)).await {
                    Err(error) if error.kind() == Kind::Full => return Ok(false),
                    mapped => mapped?,
                }
                continue;
            }
            if written.iter().any(|(state, block)| !self.has_place(state, *block)) {
                if self.take_others(volume, &homeless, &mut taken) {
                    continue;
                }
                return Ok(false);
            }
            let places: Vec<_> = homeless.iter().flat_map(|one| one.places(volume, pool)).collect();
            let extents = self.extents_of(written.iter().chain(&places).cloned());
            if !self.stage(&mut taken, &extents, places.len() as u64).await? {
                continue;
            }
            let unread: Vec<_> = places.into_iter().filter(|place| !self.is_as_read(&held, place)).collect();
            if !unread.is_empty() {
                self.read_places(unread, &mut held).await?;
                reads += 1;
                continue;
            }
            self.apply_order(volume, branch, &homeless, &mut taken, &held);
            self.count(|counts| counts.ordered_blocks += homeless.len() as u64);
            self.stir();
            return Ok(true);
        }
    }

    /// Takes other slots, where what keeps blocks from going home is only that some of those have no place; true when it has some.
    fn take_others(&self, volume: &VolumeState, homeless: &[Homeless], taken: &mut Taken) -> bool {
        let at_home = |one: &Homeless| self.has_place(volume, one.present.block());
        let first = homeless.first().map_or(0, |one| one.present.block());
        homeless.iter().all(at_home) && !self.have_places(taken) && self.take_elsewhere(volume, first, taken).is_ok()
    }

    pub(super) fn pinned(&self, places: impl Iterator<Item = Spot>) -> Pins {
        Pins::of(&self.extents_of(places))
    }

    fn extents_of(&self, places: impl Iterator<Item = Spot>) -> Vec<Rc<Extent>> {
        let mut extents: Vec<Rc<Extent>> = Vec::new();
        for extent in places.filter_map(|(state, block)| state.extent(self.index_of(block))) {
            if !extents.iter().any(|known| Rc::ptr_eq(known, &extent)) {
                extents.push(extent);
            }
        }
        extents
    }

    /// Reads blocks, those that lie together at once.
    async fn read_places(&self, mut places: Vec<Spot>, held: &mut Held) -> Result<()> {
        places.sort_by_key(|(state, block)| (state.id, *block));
        let runs: Vec<&[Spot]> = places.chunk_by(follows).collect();
        let reads = runs.iter().map(|run| self.read_blocks(&run[0].0, run[0].1, run[0].1 + run.len() as u64));
        for (run, data) in runs.iter().zip(try_join_all(reads).await?) {
            for (at, ((state, block), checksum)) in run.iter().zip(checksums_of(&data)).enumerate() {
                let bytes = data.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES);
                held.0.insert((state.id, *block), (bytes, checksum));
            }
        }
        Ok(())
    }

    /// True when a place holds what it held when it was read.
    fn is_as_read(&self, held: &Held, (state, block): &Spot) -> bool {
        let read = held.0.get(&(state.id, *block));
        read.is_some_and(|(_, read)| self.checksum(state, *block).is_none_or(|now| now == *read))
    }

    /// Appends what brings blocks home: nothing it rests on changes meanwhile, for there is no await.
    fn apply_order(
        &self,
        volume: &Rc<VolumeState>,
        branch: &Branch,
        homeless: &[Homeless],
        taken: &mut Taken,
        held: &Held,
    ) {
        let pool = &branch.pool_vol.volume;
        let owner = volume.number();
        let home = |one: Key| (Rc::clone(volume), one.block());
        let slots = std::mem::take(&mut taken.slots);
        let moves: Vec<(Key, Slot)> = homeless.iter().filter_map(|one| one.seen).zip(slots).collect();
        self.copy_blocks(held, moves.iter().map(|(seen, slot)| (home(*seen), (Rc::clone(pool), slot.0))).collect());
        let mut pvol = branch.pvol.borrow_mut();
        let mut entries = Vec::new();
        for (seen, slot) in &moves {
            entries.extend(branch.pool_vol.silence(&pvol, *seen));
            entries.push((*slot, Some(Entry { owner, key: *seen, home: Epoch::FIRST })));
            pvol.vacate(*seen, *slot);
        }
        self.put_entries(&branch.pool_vol, &entries);
        drop(pvol);
        let present = |one: &Homeless| ((Rc::clone(pool), one.slot.0), home(one.present));
        self.copy_blocks(held, homeless.iter().map(present).collect());
        let mut pvol = branch.pvol.borrow_mut();
        let mut entries = Vec::new();
        for one in homeless {
            // A younger version than any that is left says so: home has what was born then.
            if let Some((older, says)) = pvol.come_home(one.present) {
                entries.push((says, Some(Entry { owner, key: older, home: one.present.birth() })));
            }
            entries.push((one.slot, None));
        }
        drop(pvol);
        self.put_entries(&branch.pool_vol, &entries);
    }

    /// Writes blocks that were read to other places; those never written read as zeroes there.
    fn copy_blocks(&self, held: &Held, copies: Vec<(Spot, Spot)>) {
        let written = |(state, block): &Spot| self.checksum(state, *block).is_some();
        let copies: Vec<_> = copies.into_iter().map(|(from, to)| (written(&from), from, to)).collect();
        for run in copies.chunk_by(|one, next| follows(&one.2, &next.2) && one.0 == next.0) {
            let (written, _, (state, first)) = &run[0];
            if !written {
                self.clear_loaded(state, *first, first + run.len() as u64);
                continue;
            }
            let (mut data, mut checksums) = (Bufs::new(), SmallVec::<[Checksum; 32]>::new());
            for (_, (from, block), _) in run {
                let (bytes, checksum) = &held.0[&(from.id, *block)];
                data.append(bytes.clone());
                checksums.push(*checksum);
            }
            self.put_blocks(state, *first, &data, &checksums);
        }
    }
}

/// True when a block lies right behind another one.
fn follows(one: &Spot, next: &Spot) -> bool {
    Rc::ptr_eq(&one.0, &next.0) && one.1 + 1 == next.1
}
