//! The faults of one medium: those still to come, and the state that those which struck have left.

use crate::content::Content;
use crate::fault::{FaultKind, Place, When};
use crate::model::{Io, IoKind};
use kura_block::PAGE_BYTES;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// What becomes of an operation that is being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Normal,
    Lost,
    Torn,
    /// It lands at this offset.
    Misdirected(u64),
    WriteError,
    ReadError,
    FlushError,
    /// The disk was dead already as it began.
    Dead,
}

impl Fate {
    /// What becomes of it when the disk dies meanwhile: a write may have happened, in part or whole.
    pub(crate) fn cut_short(self) -> Self {
        match self {
            Self::Normal | Self::Torn | Self::WriteError | Self::ReadError | Self::FlushError => Self::WriteError,
            Self::Lost | Self::Misdirected(_) | Self::Dead => self,
        }
    }
}

struct Armed {
    when: When,
    what: FaultKind,
    /// Operations seen that it can concern.
    seen: u64,
    /// Its time has come: it takes the next operation.
    due: bool,
    spent: bool,
}

/// Where a fault may look and what it may touch.
pub(crate) struct Scene<'a> {
    pub(crate) now_ns: u64,
    pub(crate) size_bytes: u64,
    pub(crate) sector_bytes: u64,
    pub(crate) content: Option<&'a mut Content>,
}

/// A fault that struck, and the bytes it concerns.
pub(crate) type Struck = (FaultKind, Range<u64>);

pub(crate) struct Trouble {
    rng: ChaCha8Rng,
    armed: Vec<Armed>,
    /// Of `armed`, those not spent.
    live: usize,
    pub(crate) dead: bool,
    slow_times: u32,
    slow_until_ns: u64,
    pub(crate) stalled_until_ns: u64,
    full_until_ns: u64,
    refuses_until_ns: u64,
    reads_fail_until_ns: u64,
    /// Flushes that have failed.
    pub(crate) lost_flushes: u32,
    unreadable: Vec<Range<u64>>,
}

fn until_ns(now_ns: u64, lasts: Duration) -> u64 {
    now_ns.saturating_add(u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX))
}

fn needs_operation(what: &FaultKind) -> bool {
    match what {
        FaultKind::LostWrite
        | FaultKind::TornWrite
        | FaultKind::MisdirectedWrite
        | FaultKind::WriteError
        | FaultKind::FlushError
        | FaultKind::ReadsFail { .. } => true,
        FaultKind::ReadError(place) | FaultKind::BitRot(place, _) => *place == Place::Request,
        FaultKind::Slow { .. }
        | FaultKind::Stall { .. }
        | FaultKind::Dead
        | FaultKind::Full { .. }
        | FaultKind::Refuses { .. } => false,
    }
}

fn can_concern(what: &FaultKind, io: IoKind) -> bool {
    match what {
        FaultKind::LostWrite | FaultKind::TornWrite | FaultKind::MisdirectedWrite | FaultKind::WriteError => {
            matches!(io, IoKind::Write | IoKind::WriteZeroes)
        }
        FaultKind::ReadError(Place::Request) | FaultKind::BitRot(Place::Request, _) | FaultKind::ReadsFail { .. } => {
            io == IoKind::Read
        }
        FaultKind::FlushError => io == IoKind::Flush,
        _ => true,
    }
}

impl Trouble {
    pub(crate) fn new(rng: ChaCha8Rng) -> Self {
        Self {
            rng,
            armed: Vec::new(),
            live: 0,
            dead: false,
            slow_times: 1,
            slow_until_ns: 0,
            stalled_until_ns: 0,
            full_until_ns: 0,
            refuses_until_ns: 0,
            reads_fail_until_ns: 0,
            lost_flushes: 0,
            unreadable: Vec::new(),
        }
    }

    /// Forgets what is still to come; what has struck stays.
    pub(crate) fn disarm(&mut self) {
        self.armed.clear();
        self.live = 0;
    }

    /// Adds a fault to come; returns its index for [`Trouble::time_has_come`].
    pub(crate) fn arm(&mut self, when: When, what: FaultKind) -> usize {
        self.armed.push(Armed { when, what, seen: 0, due: false, spent: false });
        self.live += 1;
        self.armed.len() - 1
    }

    /// The moment of a fault planned by time.
    pub(crate) fn time_has_come(&mut self, index: usize, scene: Scene<'_>) -> Option<Struck> {
        let armed = self.armed.get_mut(index).filter(|armed| !armed.spent)?;
        if needs_operation(&armed.what) {
            armed.due = true;
            return None;
        }
        armed.spent = true;
        self.live -= 1;
        let what = armed.what.clone();
        let mut fate = Fate::Normal;
        self.strike(what, None, scene, &mut fate)
    }

    /// Lets the faults that this operation meets strike, as its service begins.
    pub(crate) fn meet(&mut self, io: &Io, mut scene: Scene<'_>, struck: &mut Vec<Struck>) -> Fate {
        let fails = io.kind == IoKind::Read && scene.now_ns < self.reads_fail_until_ns;
        let mut fate = if fails { Fate::ReadError } else { Fate::Normal };
        if self.live == 0 {
            return fate;
        }
        for index in 0..self.armed.len() {
            let armed = &mut self.armed[index];
            if armed.spent || !can_concern(&armed.what, io.kind) {
                continue;
            }
            armed.seen += 1;
            let (strikes, once) = match armed.when {
                When::Op(nth) => (armed.seen == nth, true),
                When::After(_) => (armed.due, true),
                When::Chance(probability) => (self.rng.random_bool(probability.clamp(0.0, 1.0)), false),
            };
            if !strikes {
                continue;
            }
            if once {
                armed.spent = true;
                self.live -= 1;
            }
            let what = armed.what.clone();
            let scene = Scene { content: scene.content.as_deref_mut(), ..scene };
            struck.extend(self.strike(what, Some(io), scene, &mut fate));
        }
        fate
    }

    fn strike(&mut self, what: FaultKind, io: Option<&Io>, scene: Scene<'_>, fate: &mut Fate) -> Option<Struck> {
        let now_ns = scene.now_ns;
        let whole = 0..0;
        let request = io.map_or(whole.clone(), |io| io.offset_bytes..io.offset_bytes + io.len_bytes);
        let range = match &what {
            FaultKind::LostWrite => {
                *fate = Fate::Lost;
                request
            }
            FaultKind::TornWrite => {
                *fate = Fate::Torn;
                request
            }
            FaultKind::WriteError => {
                *fate = Fate::WriteError;
                request
            }
            FaultKind::FlushError => {
                *fate = Fate::FlushError;
                whole
            }
            FaultKind::MisdirectedWrite => {
                let len = request.end - request.start;
                let to = self.elsewhere(&request, &scene)?;
                *fate = Fate::Misdirected(to);
                to..to + len
            }
            FaultKind::ReadError(place) => {
                let range = self.place(place, request, &scene)?;
                self.unreadable.push(range.clone());
                range
            }
            FaultKind::ReadsFail { lasts } => {
                *fate = Fate::ReadError;
                self.reads_fail_until_ns = until_ns(now_ns, *lasts);
                request
            }
            FaultKind::BitRot(place, bits) => {
                let range = self.place(place, request, &scene)?;
                self.rot(&range, *bits, scene.content?);
                range
            }
            FaultKind::Slow { times, lasts } => {
                (self.slow_times, self.slow_until_ns) = (*times, until_ns(now_ns, *lasts));
                whole
            }
            FaultKind::Stall { lasts } => {
                self.stalled_until_ns = until_ns(now_ns, *lasts);
                whole
            }
            FaultKind::Dead => {
                self.dead = true;
                whole
            }
            FaultKind::Full { lasts } => {
                self.full_until_ns = until_ns(now_ns, *lasts);
                whole
            }
            FaultKind::Refuses { lasts } => {
                self.refuses_until_ns = until_ns(now_ns, *lasts);
                whole
            }
        };
        Some((what, range))
    }

    /// The bytes a place means; `None` where it means none.
    fn place(&mut self, place: &Place, request: Range<u64>, scene: &Scene<'_>) -> Option<Range<u64>> {
        let range = match place {
            Place::Request => request,
            Place::AnyPage => {
                let page = scene.content.as_ref()?.any_page(&mut self.rng)?;
                page * PAGE_BYTES as u64..(page + 1) * PAGE_BYTES as u64
            }
            Place::Range(range) => range.clone(),
        };
        let range = range.start..range.end.min(scene.size_bytes);
        (!range.is_empty()).then_some(range)
    }

    /// A place for a write to land wrongly: anywhere that fits, or on a page that holds something.
    fn elsewhere(&mut self, request: &Range<u64>, scene: &Scene<'_>) -> Option<u64> {
        let len = request.end - request.start;
        let sectors = (scene.size_bytes - len) / scene.sector_bytes;
        for _ in 0..16 {
            let held = scene.content.as_ref().and_then(|content| content.any_page(&mut self.rng));
            let to = match held.filter(|_| self.rng.random()) {
                Some(page) => (page * PAGE_BYTES as u64).min(sectors * scene.sector_bytes),
                None => self.rng.random_range(0..=sectors) * scene.sector_bytes,
            };
            if to != request.start {
                return Some(to);
            }
        }
        None
    }

    fn rot(&mut self, range: &Range<u64>, bits: u32, content: &mut Content) {
        let all = (range.end - range.start) * 8;
        let mut flipped = BTreeSet::new();
        while (flipped.len() as u64) < all.min(u64::from(bits)) {
            let bit = self.rng.random_range(0..all);
            if flipped.insert(bit) {
                content.flip(range.start + bit / 8, (bit % 8) as u32);
            }
        }
    }

    /// How many times as long an operation takes that begins now.
    pub(crate) fn slowness(&self, now_ns: u64) -> u32 {
        if now_ns < self.slow_until_ns { self.slow_times } else { 1 }
    }

    pub(crate) fn is_full(&self, now_ns: u64) -> bool {
        now_ns < self.full_until_ns
    }

    pub(crate) fn refuses(&self, now_ns: u64) -> bool {
        now_ns < self.refuses_until_ns
    }

    /// The first unreadable range that a read meets.
    pub(crate) fn unreadable(&self, offset: u64, len: u64) -> Option<&Range<u64>> {
        self.unreadable.iter().find(|range| range.start < offset + len && offset < range.end)
    }

    /// A write mends the sectors it covers.
    pub(crate) fn rewritten(&mut self, offset: u64, len: u64) {
        if self.unreadable.is_empty() {
            return;
        }
        let end = offset + len;
        let ranges = std::mem::take(&mut self.unreadable);
        for range in ranges {
            for part in [range.start..range.end.min(offset), range.start.max(end)..range.end] {
                if part.start < part.end {
                    self.unreadable.push(part);
                }
            }
        }
    }

    /// The disk works again, with what it holds; unreadable places stay unreadable.
    pub(crate) fn revive(&mut self) {
        self.dead = false;
        (self.slow_until_ns, self.stalled_until_ns) = (0, 0);
        (self.full_until_ns, self.refuses_until_ns, self.reads_fail_until_ns) = (0, 0, 0);
    }
}
