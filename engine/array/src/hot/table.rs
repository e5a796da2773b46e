//! The management table: mirror ID to block, state and Age; and the tracks of each pair that can be written.

use crate::hot::page::HotPage;
use crate::hot::settings::HotSettings;
use crate::layout::Places;
use kura_block::{DeviceId, Reader, Result, Writer};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A slot of the hot area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MirrorId {
    /// The hot extent, by the LSN of the record that put it there.
    pub born: u64,
    /// The slot in it.
    pub slot: u16,
}

/// The block that lies in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The volume.
    pub volume: u64,
    /// The block of the volume.
    pub block: u64,
}

const BLOCK_BITS: u32 = 38;

impl Owner {
    /// Bytes of an owner, or of none, in pages and records.
    pub const BYTES: usize = 10;
    /// The highest number of a volume (its id without the controller's) that can be told.
    pub const NUMBERS_LIMIT: u64 = (1 << (u64::BITS - BLOCK_BITS)) - 2;

    /// Writes an owner, or that there is none.
    pub fn encode(owner: Option<Self>, out: &mut Writer) {
        let stored = owner.map_or(0, |owner| ((owner.volume >> 16) + 1) << BLOCK_BITS | owner.block);
        out.u64(stored).u16(owner.map_or(0, |owner| owner.volume as u16));
    }

    /// Reads what [`Owner::encode`] wrote.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Option<Self>> {
        let (stored, controller) = (reader.u64()?, u64::from(reader.u16()?));
        let number = (stored >> BLOCK_BITS).checked_sub(1);
        Ok(number.map(|number| Self { volume: number << 16 | controller, block: stored & ((1 << BLOCK_BITS) - 1) }))
    }
}

/// Two disks that mirror each other in a part of the hot area.
pub type Pair = (DeviceId, DeviceId);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// Being written: nobody's yet.
    Filling,
    /// A block's.
    Hot,
    /// A block's, which lies at its cold place too since.
    Cooled,
    /// Given up, and read again by a replay of the log as it is now: free when the log's tail has reached this.
    GivenUp { until: u64 },
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    state: State,
    age: u8,
    owner: Option<Owner>,
}

/// An extent of the hot area.
#[derive(Clone, Debug)]
pub struct HotExtent {
    /// Its two places.
    pub places: Places,
    /// Of its page on the disks.
    pub sequence: u64,
    /// The page differs from the one on the disks.
    pub dirty: bool,
    /// It is to be empty, for one of its disks fails or leaves, or the pool wants it: nothing new goes there.
    pub leaving: bool,
    slots: Vec<Slot>,
    /// Slots that are not free.
    used: usize,
}

impl HotExtent {
    /// The disks it lies on.
    pub fn pair(&self) -> Pair {
        (self.places[0].device, self.places[1].device)
    }

    fn free_in(&self, track: usize, settings: &HotSettings) -> usize {
        self.track(track, settings).filter(|slot| self.slots[*slot].state == State::Free).count()
    }

    fn track(&self, track: usize, settings: &HotSettings) -> std::ops::Range<usize> {
        let first = track * usize::from(settings.track_slots);
        first..self.slots.len().min(first + usize::from(settings.track_slots))
    }

    fn tracks(&self, settings: &HotSettings) -> usize {
        self.slots.len().div_ceil(settings.track_slots.into())
    }

    /// Who has its slots.
    pub fn owners(&self) -> Vec<Option<Owner>> {
        self.slots.iter().map(|slot| slot.owner).collect()
    }

    fn page(&self, controller: u16, born: u64) -> HotPage {
        HotPage { controller, born, sequence: self.sequence, slots: self.owners() }
    }

    /// True when no slot is anybody's, or may be read by a replay.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

/// A track of the hot area.
type Track = (u64, usize);

#[derive(Clone, Debug, Default)]
struct PairState {
    extents: usize,
    /// Tracks with room for a batch.
    writable: BTreeSet<Track>,
    /// These, and those that have it when the log's tail has moved on.
    coming: BTreeSet<Track>,
    /// Where aging and the search for cold blocks go on.
    aging: Track,
    looking: Track,
}

/// The management table of a controller's hot area.
#[derive(Clone, Debug)]
pub struct HotTable {
    controller: u16,
    settings: HotSettings,
    slots: usize,
    extents: BTreeMap<u64, HotExtent>,
    pairs: BTreeMap<Pair, PairState>,
    /// Slots given up, in the order of the LSN that the log's tail must reach.
    given_up: VecDeque<(u64, MirrorId)>,
}

impl HotTable {
    /// An empty hot area of a controller, whose extents have `slots` slots.
    pub fn new(controller: u16, settings: HotSettings, slots: usize) -> Self {
        Self {
            controller,
            settings,
            slots,
            extents: BTreeMap::new(),
            pairs: BTreeMap::new(),
            given_up: VecDeque::new(),
        }
    }

    /// How it is used.
    pub fn settings(&self) -> HotSettings {
        self.settings
    }

    /// Takes an extent into the hot area, with the owners its page names.
    pub fn add(&mut self, born: u64, places: Places, sequence: u64, owners: Option<Vec<Option<Owner>>>) {
        let owners = owners.unwrap_or_else(|| vec![None; self.slots]);
        assert_eq!((owners.len(), places.len()), (self.slots, 2), "a hot extent is mirrored");
        let slot = |owner: Option<Owner>| Slot {
            state: if owner.is_some() { State::Hot } else { State::Free },
            age: 0,
            owner,
        };
        let slots: Vec<_> = owners.into_iter().map(slot).collect();
        let used = slots.iter().filter(|slot| slot.state != State::Free).count();
        let extent = HotExtent { places, sequence, dirty: true, leaving: false, slots, used };
        self.pairs.entry(extent.pair()).or_default().extents += 1;
        self.extents.insert(born, extent);
        self.index(born);
    }

    /// Notes which tracks of an extent are writable.
    fn index(&mut self, born: u64) {
        let Some(extent) = self.extents.get(&born) else { return };
        let tracks = 0..extent.tracks(&self.settings);
        for track in tracks {
            self.index_track((born, track));
        }
    }

    fn index_track(&mut self, track: Track) {
        let Some(extent) = self.extents.get(&track.0) else { return };
        let pair = self.pairs.entry(extent.pair()).or_default();
        let batch = usize::from(self.settings.batch);
        let free = extent.free_in(track.1, &self.settings);
        let leaves = |slot: &usize| matches!(extent.slots[*slot].state, State::Cooled | State::GivenUp { .. });
        let leaving = extent.track(track.1, &self.settings).filter(leaves).count();
        let mut note = |tracks: fn(&mut PairState) -> &mut BTreeSet<Track>, room: usize| {
            if room >= batch && !extent.leaving { tracks(pair).insert(track) } else { tracks(pair).remove(&track) }
        };
        note(|pair| &mut pair.writable, free);
        note(|pair| &mut pair.coming, free + leaving);
    }

    /// Takes an extent out of the hot area; it must be empty.
    pub fn remove(&mut self, born: u64) -> Option<HotExtent> {
        let extent = self.extents.remove(&born)?;
        if let Some(pair) = self.pairs.get_mut(&extent.pair()) {
            pair.extents -= 1;
            pair.writable.retain(|track| track.0 != born);
            pair.coming.retain(|track| track.0 != born);
        }
        Some(extent)
    }

    /// Its extents, by birth.
    pub fn extents(&self) -> impl Iterator<Item = (u64, &HotExtent)> {
        self.extents.iter().map(|(born, extent)| (*born, extent))
    }

    /// An extent.
    pub fn extent(&self, born: u64) -> Option<&HotExtent> {
        self.extents.get(&born)
    }

    /// How many it has.
    pub fn count(&self) -> usize {
        self.extents.len()
    }

    /// Nothing new goes to an extent any more; or again, where it is not to be emptied after all.
    pub fn leave(&mut self, born: u64, leaving: bool) {
        if let Some(extent) = self.extents.get_mut(&born) {
            extent.leaving = leaving;
        }
        self.index(born);
    }

    /// Its extents that are not being emptied, those with the fewest slots in use first, but for as many of each pair as it `keeps`.
    pub fn emptiest(&self, keeps: impl Fn(Pair) -> usize) -> Vec<u64> {
        let stay = self.extents.iter().filter(|(_, extent)| !extent.leaving);
        let mut all: Vec<_> = stay.map(|(born, extent)| (extent.used, *born, extent.pair())).collect();
        // The fullest ones stay.
        all.sort_unstable_by(|one, other| other.cmp(one));
        let mut kept: BTreeMap<Pair, usize> = BTreeMap::new();
        all.retain(|(.., pair)| {
            let kept = kept.entry(*pair).or_default();
            *kept += 1;
            *kept > keeps(*pair)
        });
        all.into_iter().rev().map(|(_, born, _)| born).collect()
    }

    /// The pairs that can take a batch, and how many writable tracks each has.
    pub fn writable(&self) -> impl Iterator<Item = (Pair, u32)> {
        self.pairs.iter().map(|(pair, state)| (*pair, state.writable.len() as u32)).filter(|(_, tracks)| *tracks > 0)
    }

    /// Tracks of a pair that can take a batch when the log's tail has moved on.
    pub fn coming(&self, pair: Pair) -> u32 {
        self.pairs.get(&pair).map_or(0, |state| state.coming.len() as u32)
    }

    /// True when a pair has few writable tracks, a quarter of what is enough, and gets more when the log's tail moves on.
    pub fn wants_tail(&self) -> bool {
        let wants = |(pair, state): (&Pair, &PairState)| {
            let enough = self.settings.enough(self.tracks_of(*pair) as u32) as usize;
            state.writable.len() < state.coming.len() && state.writable.len() * 4 <= enough
        };
        self.pairs.iter().any(wants)
    }

    /// Extents a pair has.
    pub fn extents_of(&self, pair: Pair) -> usize {
        self.pairs.get(&pair).map_or(0, |state| state.extents)
    }

    /// Takes free slots of one track of a pair for so many blocks, at most a batch; they are nobody's until
    /// [`HotTable::fill`] or [`HotTable::empty`].
    pub fn take(&mut self, pair: Pair, blocks: usize) -> Vec<MirrorId> {
        let Some(track) = self.pairs.get(&pair).and_then(|state| state.writable.first().copied()) else {
            return Vec::new();
        };
        let Some(extent) = self.extents.get_mut(&track.0) else { return Vec::new() };
        let free = extent.track(track.1, &self.settings).filter(|slot| extent.slots[*slot].state == State::Free);
        let taken: Vec<_> = free.take(blocks.min(self.settings.batch.into())).collect();
        for slot in &taken {
            extent.slots[*slot].state = State::Filling;
        }
        extent.used += taken.len();
        self.index_track(track);
        taken.into_iter().map(|slot| MirrorId { born: track.0, slot: slot as u16 }).collect()
    }

    /// A slot is a block's from now on.
    pub fn fill(&mut self, id: MirrorId, owner: Owner) {
        self.change(id, Slot { state: State::Hot, age: 0, owner: Some(owner) });
    }

    /// A slot that was taken is free again: nothing was written there that counts.
    pub fn empty(&mut self, id: MirrorId) {
        self.change(id, Slot::default());
    }

    /// A block has been written to its cold place too: it is not looked for again.
    pub fn cool(&mut self, id: MirrorId) {
        if let Some(extent) = self.extents.get_mut(&id.born) {
            extent.slots[usize::from(id.slot)].state = State::Cooled;
            self.index_track((id.born, usize::from(id.slot / self.settings.track_slots)));
        }
    }

    /// True where a slot's block lies at its cold place too.
    pub fn is_cooled(&self, id: MirrorId) -> bool {
        let extent = self.extents.get(&id.born);
        extent.is_some_and(|extent| matches!(extent.slots[usize::from(id.slot)].state, State::Cooled))
    }

    /// A slot is nobody's from now on, and free when the log's tail has reached `until`.
    pub fn give_up(&mut self, id: MirrorId, until: u64) {
        self.change(id, Slot { state: State::GivenUp { until }, ..Slot::default() });
        self.given_up.push_back((until, id));
    }

    /// A slot is nobody's from now on, and free at the next [`HotTable::tail_moved`], wherever the tail is: its block lies
    /// durably elsewhere, and a replay needs nothing of what the slot holds.
    pub fn give_up_at_rest(&mut self, id: MirrorId) {
        self.change(id, Slot { state: State::GivenUp { until: 0 }, ..Slot::default() });
        self.given_up.push_front((0, id));
    }

    fn change(&mut self, id: MirrorId, to: Slot) {
        let Some(extent) = self.extents.get_mut(&id.born) else { return };
        extent.dirty |= extent.slots[usize::from(id.slot)].owner != to.owner;
        let before = std::mem::replace(&mut extent.slots[usize::from(id.slot)], to);
        extent.used += usize::from(to.state != State::Free);
        extent.used -= usize::from(before.state != State::Free);
        self.index_track((id.born, usize::from(id.slot / self.settings.track_slots)));
    }

    /// The log's tail has moved, and all that was in the log before it moved is durable: slots given up before it are
    /// free. One that was somebody's since, as in a replay of slots that came back at rest, is not, and one given up
    /// again waits for that.
    pub fn tail_moved(&mut self, tail: u64) {
        while let Some((until, id)) = self.given_up.pop_front_if(|(until, _)| *until <= tail) {
            let slot = self.extents.get(&id.born).and_then(|extent| extent.slots.get(usize::from(id.slot)));
            if slot.is_some_and(|slot| slot.state == State::GivenUp { until }) {
                self.empty(id);
            }
        }
    }

    /// Slots that wait for the log's tail.
    pub fn given_up(&self) -> usize {
        self.given_up.len()
    }

    /// A block was used.
    pub fn touch(&mut self, id: MirrorId) {
        if let Some(extent) = self.extents.get_mut(&id.born) {
            extent.slots[usize::from(id.slot)].age = 0;
        }
    }

    /// The block of a slot.
    pub fn owner(&self, id: MirrorId) -> Option<Owner> {
        let slot = self.extents.get(&id.born)?.slots.get(usize::from(id.slot))?;
        slot.owner
    }

    /// True for a block of at least this Age that lies in the hot area only.
    pub fn is_cold(&self, id: MirrorId, age: u8) -> bool {
        let slot = self.extents.get(&id.born).map(|extent| extent.slots[usize::from(id.slot)]);
        slot.is_some_and(|slot| slot.state == State::Hot && slot.age >= age)
    }

    /// The track of a pair after another one, around.
    fn next_track(&self, pair: Pair, after: Track) -> Option<Track> {
        let here = self.extents.get(&after.0).filter(|extent| extent.pair() == pair);
        if here.is_some_and(|extent| after.1 + 1 < extent.tracks(&self.settings)) {
            return Some((after.0, after.1 + 1));
        }
        let of_pair = |extent: &(&u64, &HotExtent)| extent.1.pair() == pair;
        let later = self.extents.range(after.0 + 1..).find(of_pair);
        later.or_else(|| self.extents.iter().find(of_pair)).map(|(born, _)| (*born, 0))
    }

    /// A batch was written to a pair: the blocks of its next tracks age by one.
    pub fn grow_old(&mut self, pair: Pair) {
        for _ in 0..self.settings.aged_tracks {
            let Some(at) = self.pairs.get(&pair).map(|state| state.aging) else { return };
            let Some(next) = self.next_track(pair, at) else { return };
            if let Some(state) = self.pairs.get_mut(&pair) {
                state.aging = next;
            }
            if let Some(extent) = self.extents.get_mut(&next.0) {
                for slot in extent.track(next.1, &self.settings) {
                    extent.slots[slot].age = extent.slots[slot].age.saturating_add(1);
                }
            }
        }
    }

    /// The oldest blocks of the next track of a pair that is not writable and has a batch of cold ones; looks at `most`
    /// tracks. With `any`, blocks of any Age do.
    pub fn cold(&mut self, pair: Pair, most: usize, any: bool) -> Vec<MirrorId> {
        let batch = usize::from(self.settings.batch);
        let cold_age = if any { 0 } else { self.settings.cold_age };
        for _ in 0..most {
            let Some(at) = self.pairs.get(&pair).map(|state| state.looking) else { break };
            let Some(track) = self.next_track(pair, at) else { break };
            if let Some(state) = self.pairs.get_mut(&pair) {
                state.looking = track;
            }
            let Some(extent) = self.extents.get(&track.0) else { break };
            let hot = |slot: &usize| extent.slots[*slot].state == State::Hot && extent.slots[*slot].age >= cold_age;
            let mut cold: Vec<_> = extent.track(track.1, &self.settings).filter(hot).collect();
            if extent.free_in(track.1, &self.settings) >= batch || cold.len() < batch && !any || cold.is_empty() {
                continue;
            }
            cold.sort_by_key(|slot| Reverse(extent.slots[*slot].age));
            cold.truncate(batch);
            return cold.into_iter().map(|slot| MirrorId { born: track.0, slot: slot as u16 }).collect();
        }
        Vec::new()
    }

    /// Tracks of a pair.
    pub fn tracks_of(&self, pair: Pair) -> usize {
        self.extents_of(pair) * self.slots.div_ceil(self.settings.track_slots.into())
    }

    /// Pairs with extents.
    pub fn pairs(&self) -> Vec<Pair> {
        self.pairs.iter().filter(|(_, state)| state.extents > 0).map(|(pair, _)| *pair).collect()
    }

    /// The pages that differ from those on the disks, clean from here on.
    pub fn take_dirty(&mut self) -> Vec<(u64, Places, HotPage)> {
        let mut pages = Vec::new();
        for (born, extent) in self.extents.iter_mut().filter(|(_, extent)| extent.dirty) {
            extent.dirty = false;
            extent.sequence += 1;
            pages.push((*born, extent.places.clone(), extent.page(self.controller, *born)));
        }
        pages
    }

    /// The places and the page of an extent, which were written out when they were taken last; `None` where they must be again.
    pub fn page(&self, born: u64) -> Option<(Places, HotPage)> {
        let extent = self.extents.get(&born).filter(|extent| !extent.dirty)?;
        Some((extent.places.clone(), extent.page(self.controller, born)))
    }

    /// A page that was taken did not get to the disks: the next one goes where it was to go, for the other place has the one that counts.
    pub fn not_written(&mut self, born: u64) {
        if let Some(extent) = self.extents.get_mut(&born) {
            extent.dirty = true;
            extent.sequence += 1;
        }
    }

    /// Slots that have a block.
    pub fn occupied(&self) -> usize {
        let hot = |extent: &HotExtent| extent.slots.iter().filter(|slot| slot.owner.is_some()).count();
        self.extents.values().map(hot).sum()
    }
}
