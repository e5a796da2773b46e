//! Reads that disks refuse, and what counts as lost.
//!
//! A disk that refuses to read a place may read it a moment later: a cable, a controller that resets, a drive that needs another
//! try. What must hold: nothing is taken for lost because of one refusal. A block, or a page, whose other copies are lost counts
//! as lost too when its disk, which reads its label meanwhile, has refused it again and again over time; or when the disk is out
//! of service. Until then what needs it fails and is tried again: a move is put aside, and the old place stays what it is.
//!
//! What counts as lost stays an error for who reads it: the checksum of what was there is kept.

use crate::store::Inner;
use crate::tables::VolumeState;
use kura_array::{Berth, Place, Refusal, Urgency};
use kura_block::{BLOCK_BYTES, Buf, Checksum, DeviceId, Error, Kind, Result};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// Refusals after which a place counts as lost.
pub(crate) const TIMES: u32 = 8;
/// Refusals count that are so far apart at least.
pub(crate) const APART: Duration = Duration::from_secs(10);
/// Refusals are forgotten after so long without another one: that a disk had trouble long ago says nothing of now.
const FORGOTTEN: Duration = Duration::from_hours(1);
/// Places that are remembered; none beyond them counts as lost.
const PLACES: usize = 1 << 20;
/// Groups that are put aside at most; those beyond are tried more slowly.
const ASIDE: usize = 64;

/// What became of a read of a block.
pub(crate) enum Read {
    Found(Buf),
    /// The disk refuses for now.
    Refused(Error),
    /// The disk is out of service, or has refused too often.
    Lost,
}

impl Read {
    /// The block, unless it is lost or bad; an error where it was refused.
    pub fn good(self, expected: Checksum) -> Result<Option<Buf>> {
        match self {
            Self::Found(block) => Ok(Some(block).filter(|block| Checksum::of(block) == expected)),
            Self::Refused(error) => Err(error),
            Self::Lost => Ok(None),
        }
    }
}

/// What a rebuild moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Moved {
    /// A group, by its volume and its first extent.
    Group(u64, u32),
    /// An extent of the hot area, by its birth.
    Hot(u64),
}

/// A place that was refused.
struct Tally {
    times: u32,
    last: Duration,
}

/// What disks refused to read.
#[derive(Default)]
pub(crate) struct Refused {
    /// By disk and bytes on it.
    places: RefCell<BTreeMap<(DeviceId, u64), Tally>>,
    /// Moves that wait, until when, and why.
    aside: RefCell<BTreeMap<Moved, (Duration, Error)>>,
}

impl Refused {
    /// Counts a refusal; true when there have been so many that the place counts as lost.
    fn count(&self, refusal: &Refusal, now: Duration) -> bool {
        let mut places = self.places.borrow_mut();
        let key = (refusal.device, refusal.offset);
        if places.len() >= PLACES && !places.contains_key(&key) {
            places.retain(|_, tally| tally.last + FORGOTTEN > now);
            if places.len() >= PLACES {
                return false;
            }
        }
        let tally = places.entry(key).or_insert(Tally { times: 0, last: now });
        if now.saturating_sub(tally.last) >= FORGOTTEN {
            tally.times = 0;
        }
        if tally.times == 0 || now.saturating_sub(tally.last) >= APART {
            *tally = Tally { times: tally.times + 1, last: now };
        }
        tally.times >= TIMES
    }

    /// Forgets the refusals of blocks that were read, or written since: what was refused does not lie there any more.
    fn answered(&self, blocks: impl Iterator<Item = (DeviceId, u64)>) {
        let mut places = self.places.borrow_mut();
        if places.is_empty() {
            return;
        }
        for place in blocks {
            places.remove(&place);
        }
    }

    /// Puts a move aside for a while; false where too many are.
    pub fn put_aside(&self, moved: Moved, error: Error, now: Duration) -> bool {
        let mut aside = self.aside.borrow_mut();
        let groups = || aside.keys().filter(|moved| matches!(moved, Moved::Group(..))).count();
        let room = matches!(moved, Moved::Hot(_)) || aside.contains_key(&moved) || groups() < ASIDE;
        if room {
            aside.insert(moved, (now + APART, error));
        }
        room
    }

    /// A move is done, or there is nothing to move any more.
    pub fn forget(&self, moved: Moved) {
        self.aside.borrow_mut().remove(&moved);
    }

    /// Forgets the moves that are not to be done any more.
    pub fn keep(&self, wanted: impl Fn(&Moved) -> bool) {
        self.aside.borrow_mut().retain(|moved, _| wanted(moved));
    }

    /// True when a move is put aside.
    pub fn rests(&self, moved: Moved, now: Duration) -> bool {
        self.aside.borrow().get(&moved).is_some_and(|(until, _)| *until > now)
    }

    /// When the first of the moves put aside is tried again.
    pub fn next_try(&self) -> Option<Duration> {
        self.aside.borrow().values().map(|(until, _)| *until).min()
    }

    /// Why moves are put aside, if any are: one line.
    pub fn why_aside(&self) -> Option<Error> {
        let aside = self.aside.borrow();
        let (_, error) = aside.values().next()?;
        let others = match aside.len() - 1 {
            0 => String::new(),
            others => format!(", and {others} more like it"),
        };
        Some(Error::new(error.kind(), format!("{error}{others}")))
    }
}

/// A refusal as who waits for the place hears of it.
fn refused(refusal: &Refusal, answers: bool) -> Error {
    let Refusal { device: DeviceId(disk), offset, error } = refusal;
    let remedy = if answers {
        "it is asked again, and counts as lost when it goes on refusing for minutes"
    } else {
        "nor does it read its label: bring it back, or give it up with `kura disk fail`"
    };
    Error::device(format!("disk {disk} refuses to read what lies at byte {offset}: {error}: {remedy}"))
}

impl Inner {
    /// Weighs refusals of which each hides what nobody else has: `None` when all of them count as lost, and otherwise why not.
    pub async fn weigh(&self, refusals: &[Refusal]) -> Option<Error> {
        let mut waits = None;
        for refusal in refusals {
            // Of a disk that reads nothing at all, nothing is known to be lost; nor of one that is full, and has no room for a map that is read.
            let answers = self.array.answers(refusal.device).await;
            let counts = answers && refusal.error.kind() != Kind::Full;
            let lost = counts && self.refused.count(refusal, self.runtime.now());
            if !lost && self.array.is_in_service(refusal.device) {
                waits = Some(refused(refusal, answers));
            }
        }
        waits
    }

    /// Neighbouring blocks of a place were written.
    pub fn wrote(&self, berth: &Berth, first: usize, blocks: usize) {
        self.refused.answered((first..first + blocks).filter_map(|block| self.array.lies_at(berth, block)));
    }

    /// Reads neighbouring blocks of a place, each by itself where the disk refuses them all; nothing is verified.
    pub async fn read_each(&self, berth: &Berth, first: usize, blocks: usize, urgency: Urgency) -> Vec<Read> {
        let error = match self.array.read_place(berth, first, blocks, urgency).await {
            Ok(data) => {
                let read = (first..first + blocks).filter_map(|block| self.array.lies_at(berth, block));
                self.refused.answered(read.chain(self.array.map_lies_at(berth)));
                let block = |at: usize| data.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES).contiguous();
                return (0..blocks).map(|at| Read::Found(block(at))).collect();
            }
            Err(error) => error,
        };
        if !self.array.works(berth.place) {
            return (0..blocks).map(|_| Read::Lost).collect();
        }
        let known = self.array.lies_at(berth, first);
        if known.is_some() && blocks > 1 {
            let mut read = Vec::new();
            for at in first..first + blocks {
                read.extend(Box::pin(self.read_each(berth, at, 1, urgency)).await);
            }
            return read;
        }
        // Where it is not known what lies where, the map was refused, and with it all of them.
        let Some((device, offset)) = known.or_else(|| self.array.map_lies_at(berth)) else {
            return (0..blocks).map(|_| Read::Lost).collect();
        };
        let waits = self.weigh(&[Refusal { device, offset, error }]).await;
        (0..blocks).map(|_| waits.clone().map_or(Read::Lost, Read::Refused)).collect()
    }

    /// Reads a block of which perhaps no copy is good: `None` when each is lost or bad. An error while one of them is refused.
    pub async fn last_copy(&self, places: &[Place], at: usize, expected: Checksum) -> Result<Option<Buf>> {
        let mut refused = None;
        for place in places {
            for read in self.read_each(&Berth::from(*place), at, 1, Urgency::Idle).await {
                match read.good(expected) {
                    Ok(Some(block)) => return Ok(Some(block)),
                    Ok(None) => {}
                    Err(error) => refused = Some(error),
                }
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Notes how a move ended; what it fails with unless it is put aside.
    pub fn note_move<T>(&self, moved: Moved, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(done) => {
                self.refused.forget(moved);
                Ok(Some(done))
            }
            Err(error)
                if error.kind() == Kind::Device
                    && self.journal().alive().is_ok()
                    && self.refused.put_aside(moved, error.clone(), self.runtime.now()) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Forgets the moves put aside for which there is no need any more, or no hope.
    pub fn review_aside(&self, unwanted: impl Fn(DeviceId) -> bool) {
        let group_is = |volume: &VolumeState, index: u32| {
            volume.extent(index).is_some_and(|extent| {
                let site = extent.group.site();
                self.array.holds(&site) && site.places.iter().any(|place| unwanted(place.device))
            })
        };
        let tables = self.tables.borrow();
        self.refused.keep(|moved| match moved {
            Moved::Group(volume, index) => tables.volumes.get(volume).is_some_and(|volume| group_is(volume, *index)),
            Moved::Hot(born) => {
                self.hot.places_of(*born).is_some_and(|places| places.iter().any(|place| unwanted(place.device)))
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_lost_by_refusals_over_minutes_and_not_by_old_ones() {
        let refusal = Refusal { device: DeviceId(3), offset: 4096, error: Error::device("no") };
        let refused = Refused::default();
        let mut now = Duration::from_secs(1);
        let count = |now: &mut Duration, after: Duration| {
            *now += after;
            refused.count(&refusal, *now)
        };
        // Asked in haste it counts once.
        assert!((0..100).all(|_| !count(&mut now, Duration::from_millis(1))));
        assert!((2..TIMES).all(|_| !count(&mut now, APART)));
        // A month later nothing is left of that.
        let month = Duration::from_hours(30 * 24);
        assert!(!count(&mut now, month));
        assert!((2..TIMES).all(|_| !count(&mut now, APART)));
        assert!(count(&mut now, APART), "often enough, and lately");
        refused.answered([(DeviceId(3), 0), (DeviceId(3), 4096)].into_iter());
        assert!(!count(&mut now, APART), "it was read meanwhile");
    }
}
