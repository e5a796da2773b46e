//! Finding and reading what a volume, or a snapshot, sees.

use super::{BLOCKS_LIMIT, Branch};
use crate::store::Inner;
use crate::tables::VolumeState;
use futures::future::join_all;
use kura_block::{BLOCK_BYTES_U64, Bufs, Error, Result, Run, RunKind};
use kura_snapshot::{Epoch, Key, Location, Pvol, Slot, Version};
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;

/// Places that a request reads at once where what it asks for lies scattered.
const PLACES_AT_ONCE: usize = 16;

/// Where a block lies.
#[derive(Clone)]
pub(crate) enum Place {
    /// A block of this volume itself: the one asked for, its PVOL, or the PoolVOL.
    At(Rc<VolumeState>, u64),
    /// Nowhere: it reads as zeroes.
    Zero,
}

impl Place {
    /// So many blocks from here on, each where it lies.
    pub(super) fn spots(&self, blocks: u64) -> impl Iterator<Item = (Rc<VolumeState>, u64)> {
        let at = match self {
            Self::At(state, first) => Some((Rc::clone(state), *first)),
            Self::Zero => None,
        };
        at.into_iter()
            .flat_map(move |(state, first)| (first..first + blocks).map(move |block| (Rc::clone(&state), block)))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::At(one, here), Self::At(another, there)) => Rc::ptr_eq(one, another) && here == there,
            (Self::Zero, Self::Zero) => true,
            _ => false,
        }
    }
}

impl Inner {
    /// Where a volume's block lies, and how many of the blocks after it, up to `end`, lie behind it there.
    pub fn locate(&self, volume: &Rc<VolumeState>, block: u64, end: u64) -> (Place, u64) {
        let (mut at, mut before, mut span) = (Rc::clone(volume), Epoch::NOW, end - block);
        let group_blocks = self.group_blocks(volume);
        loop {
            let Some(branch) = at.branch() else { return (Place::At(at, block), span) };
            let group = (block / group_blocks) as u32;
            span = span.min((u64::from(group) + 1) * group_blocks - block);
            let pvol = branch.pvol.borrow();
            let version = pvol.version(block, group, before);
            if let Some(rolled) = pvol.rolled.filter(|rolled| before > rolled.since)
                && pvol.birth_of(version, group, before) < rolled.since
                && let Some(svol) = self.tables.borrow().volumes.get(&rolled.svol).cloned()
            {
                span = pvol.index.first_in(block + 1, block + span).map_or(span, |next| next - block);
                drop(pvol);
                (at, before) = (svol, Epoch::NOW);
                continue;
            }
            if let Version::Listed(_, location) = version {
                let oldest =
                    pvol.rolled.filter(|rolled| before > rolled.since).map_or(Epoch::FIRST, |rolled| rolled.since);
                let Location::Slot(slot) = location else {
                    let run = self.at_home(&at, &branch, &pvol, block..block + span, before);
                    return (Place::At(Rc::clone(&at), block), run);
                };
                let oldest = oldest.max(pvol.index.hole(group, before).unwrap_or_default());
                let follows = |(key, at): &(Key, Location), ahead: u64| {
                    key.block() == block + ahead && *at == Location::Slot(Slot(slot.0 + ahead)) && key.birth() >= oldest
                };
                let seen = pvol.index.seen(block + 1, block + span, before);
                let run = 1 + seen.zip(1..).take_while(|(version, ahead)| follows(version, *ahead)).count() as u64;
                return (Place::At(Rc::clone(&branch.pool_vol.volume), slot.0), run);
            }
            let there = || before == Epoch::NOW || self.was_there(&at, block, &pvol, before);
            if version == Version::Base && branch.parent.is_none() && there() {
                let run = self.at_home(&at, &branch, &pvol, block..block + span, before);
                return (Place::At(Rc::clone(&at), block), run);
            }
            span = pvol.index.first_in(block + 1, block + span).map_or(span, |next| next - block);
            let Some((parent, epoch)) = branch.parent.clone().filter(|_| version != Version::Hole) else {
                return (Place::Zero, span);
            };
            drop(pvol);
            (at, before) = (parent, epoch);
        }
    }

    /// The first block from `block` on at which a volume, or what it was made of, has an extent, a version or a hole; `u64::MAX`
    /// where there is none: all before reads as zeroes.
    pub fn next_touched(&self, volume: &Rc<VolumeState>, block: u64) -> u64 {
        let (mut at, mut next) = (Rc::clone(volume), u64::MAX);
        loop {
            let branch = at.branch();
            if branch.as_ref().is_some_and(|branch| branch.pvol.borrow().rolled.is_some()) {
                // Part of it is another volume's.
                return block;
            }
            next = next.min(self.next_own(&at, block));
            let Some((parent, _)) = branch.and_then(|branch| branch.parent.clone()) else { return next };
            at = parent;
        }
    }

    /// The first block from `block` on at which a volume has an extent, a version or a hole of its own; `u64::MAX` where there is none.
    pub(super) fn next_own(&self, volume: &VolumeState, block: u64) -> u64 {
        let extent = volume.next_mapped(self.index_of(block));
        let extent = extent.map(|index| u64::from(index) * self.array.extent_blocks() as u64);
        let branch = volume.branch();
        let in_tables = branch.and_then(|branch| {
            let (index, group_blocks) = (&branch.pvol.borrow().index, self.group_blocks(volume));
            let holed = index.holed_from((block / group_blocks) as u32, 1).first().map(|group| u64::from(*group));
            let hole = holed.map(|group| group * group_blocks);
            index.first_in(block, BLOCKS_LIMIT.max(block)).into_iter().chain(hole).min()
        });
        extent.into_iter().chain(in_tables).min().map_or(u64::MAX, |next| next.max(block))
    }

    /// How many of a group's blocks from the first one on, which is at home, are seen at home.
    fn at_home(&self, volume: &VolumeState, branch: &Branch, pvol: &Pvol, blocks: Range<u64>, before: Epoch) -> u64 {
        let group = (blocks.start / self.group_blocks(volume)) as u32;
        let rolled = pvol.rolled.filter(|rolled| before > rolled.since);
        let hole = pvol.index.hole(group, before);
        let oldest = hole.unwrap_or_default().max(rolled.map_or(Epoch::FIRST, |rolled| rolled.since));
        // What is not listed is seen at home, or else it is not.
        let unlisted = branch.parent.is_none()
            && rolled.is_none()
            && hole.is_none()
            && (before == Epoch::NOW || self.was_there(volume, blocks.start, pvol, before));
        let mut end = blocks.start + 1;
        for (key, at) in pvol.index.seen(end, blocks.end, before) {
            if key.block() > end && !unlisted {
                return end - blocks.start;
            }
            if at != Location::Home || key.birth() < oldest {
                return key.block() - blocks.start;
            }
            end = key.block() + 1;
        }
        if unlisted { blocks.end - blocks.start } else { end - blocks.start }
    }

    /// True when a block's extent was there already when a snapshot was made.
    fn was_there(&self, volume: &VolumeState, block: u64, pvol: &Pvol, epoch: Epoch) -> bool {
        let extent = volume.extent(self.index_of(block));
        let made = pvol.pairs.get(epoch).map_or(0, |pair| pair.lsn);
        extent.is_some_and(|extent| extent.owner.born < made)
    }

    /// Reads whole blocks as a volume sees them.
    pub async fn read_seen(&self, volume: &Rc<VolumeState>, first: u64, end: u64) -> Result<Bufs> {
        let mut out = Bufs::new();
        let mut at = first;
        while at < end {
            if volume.deleted.get() {
                return Err(Error::missing(format!("volume {}: deleted", volume.spec.borrow().name)));
            }
            if volume.branch.borrow().is_none() {
                let rest = self.read_blocks(volume, at, end).await?;
                if volume.branch.borrow().is_none() {
                    out.append(rest);
                    return Ok(out);
                }
                continue;
            }
            let runs = self.runs_from(volume, at, end);
            let reads = join_all(runs.iter().map(|(place, run)| self.read_place(place, *run))).await;
            for ((place, run), read) in runs.into_iter().zip(reads) {
                // What lies elsewhere by now was, perhaps, given up and written over.
                if self.locate(volume, at, at + run) != (place, run) {
                    break;
                }
                out.append(read?);
                at += run;
            }
        }
        Ok(out)
    }

    /// Where the blocks of a range lie, from its start on: some places, which are read at once.
    fn runs_from(&self, volume: &Rc<VolumeState>, first: u64, end: u64) -> SmallVec<[(Place, u64); 2]> {
        let (mut runs, mut at) = (SmallVec::new(), first);
        while at < end && runs.len() < PLACES_AT_ONCE {
            let (place, run) = self.locate(volume, at, end);
            at += run;
            runs.push((place, run));
        }
        runs
    }

    async fn read_place(&self, place: &Place, run: u64) -> Result<Bufs> {
        match place {
            Place::Zero => Ok(Bufs::zeroes(Self::bytes_of(run) as usize)),
            Place::At(source, block) => self.read_blocks(source, *block, block + run).await,
        }
    }

    /// What lies at a range of bytes as a volume sees it, from its start on.
    pub async fn runs_seen(&self, volume: &Rc<VolumeState>, offset: u64, len: u64) -> Result<Vec<Run>> {
        let unit = BLOCK_BYTES_U64;
        let (mut at, end) = (offset, offset + len);
        let mut runs: Vec<Run> = Vec::new();
        while at < end && runs.len() < super::RUNS_LIMIT {
            let first = at / unit;
            // What a volume of its own has nowhere is a hole, and told as such below.
            let is_svol = volume.branch().is_some_and(|branch| branch.parent.is_some());
            let touched = if is_svol { self.next_touched(volume, first) } else { first };
            let untouched = end.min(touched.saturating_mul(unit));
            if untouched > at {
                let len_bytes = untouched - at;
                at = untouched;
                match runs.last_mut() {
                    Some(last) if last.kind == RunKind::Zero => last.len_bytes += len_bytes,
                    _ => runs.push(Run { len_bytes, kind: RunKind::Zero }),
                }
                continue;
            }
            let (place, run) = self.locate(volume, first, end.div_ceil(unit));
            let until = end.min((first + run) * unit);
            let found = match &place {
                Place::Zero => Ok(vec![Run { len_bytes: until - at, kind: RunKind::Zero }]),
                Place::At(source, block) => self.runs(source, block * unit + at % unit, until - at).await,
            };
            if self.locate(volume, first, first + run) != (place, run) {
                continue;
            }
            let found = found?;
            for found in found {
                at += found.len_bytes;
                match runs.last_mut() {
                    Some(last) if last.kind == found.kind => last.len_bytes += found.len_bytes,
                    _ => runs.push(found),
                }
            }
        }
        Ok(runs)
    }
}
