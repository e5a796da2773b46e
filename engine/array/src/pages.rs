//! Pages where they are kept: twice on each of their disks, written in turn.
//!
//! What must hold: an older version of a page is never taken for the newest. Every disk in service that keeps a page was given
//! each version of it, so that both turns tell the newest, whichever of them reads each, whatever the others do. Where one is read
//! nowhere, what a disk refuses to read may be newer than all that was read, and the caller hears of it. (A turn that reads and has no
//! good version counts as never written, which it is after the first version and after a rebuild; were it rotten, and the other
//! disk refused it at the same time, the version before would be taken.)

use crate::array::{Array, Failure, Site};
use crate::fast::FastPage;
use crate::floating::Berth;
use crate::hot::HotPage;
use crate::layout::Place;
use crate::page::{Page, PageOwner};
use crate::plan::Plan;
use crate::queue::Urgency;
use futures::future::join_all;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Buf, DeviceId, Error};
use std::rc::Rc;

/// A read that a disk in service refused.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The disk.
    pub device: DeviceId,
    /// Where on it, in bytes.
    pub offset: u64,
    /// Why.
    pub error: Error,
}

/// What the disks that keep a page have of it.
#[derive(Debug)]
pub struct Sought<P> {
    /// The newest version of those that were read.
    pub newest: Option<P>,
    /// What was refused, where a turn was read nowhere or nothing was good: there may be a newer version. Empty where there is none.
    pub refused: Vec<Refusal>,
    /// True when disks in service read both turns, whatever they have.
    pub told: bool,
    /// True when anything was read.
    pub reachable: bool,
    /// True when a disk in service was read and does not have the newest version: a crash came between, or it rotted.
    pub uneven: bool,
}

impl<P> Sought<P> {
    /// True when all was read, and nothing of it is a page of this owner.
    pub fn is_rotten(&self) -> bool {
        self.reachable && self.newest.is_none() && self.refused.is_empty()
    }

    /// True when nothing speaks for there being a page at all.
    pub fn is_blank(&self) -> bool {
        self.told && self.newest.is_none()
    }
}

/// Where a page is kept: the disk, its two turns in bytes on it, and how long it is.
pub(crate) type Kept = (DeviceId, [u64; 2], usize);

/// Where a page as it is now is not, and ought to be.
pub struct Lacking {
    /// In bytes: where it ought to be, and the other turn's places.
    at: [Vec<(DeviceId, u64)>; 2],
    page: Buf,
}

impl Lacking {
    /// The disks, one for each place.
    pub fn disks(&self) -> impl Iterator<Item = DeviceId> {
        self.at.iter().flatten().map(|(disk, _)| *disk)
    }
}

impl Array {
    /// Writes the page of the extent `member` of a group wherever it is kept; returns the disks that refused.
    pub async fn write_page(&self, site: &Site, member: usize, owner: PageOwner, page: &Page) -> Vec<Failure> {
        let bytes = page.encode(owner);
        let writes = site.shape.page_places(member).into_iter().map(|(at, shelf)| {
            let place = site.places[at];
            let at = move |plan: &Plan| plan.page_at(place.extent, shelf, page.sequence);
            self.write_disk(place.device, bytes.clone().into(), Urgency::Buffer, at)
        });
        join_all(writes).await.into_iter().flatten().collect()
    }

    /// Writes the pages of a group's extents, by their number in it, that are kept at the place `to` of it, to which one has moved: in both
    /// turns, for what an earlier time of the group has left in the other one may be newer, and says nothing any more. They lie on
    /// end there. Returns the disk, if it refused.
    pub async fn move_pages(&self, site: &Site, to: usize, pages: &[(usize, PageOwner, Rc<Page>)]) -> Vec<Failure> {
        let place = site.places[to];
        let Some(member) = self.member(place.device) else { return Vec::new() };
        let mut slots = Vec::new();
        for (number, owner, page) in pages {
            let bytes = page.encode(*owner);
            let shelves = site.shape.page_places(*number).into_iter().filter(|(at, _)| *at == to);
            for (_, shelf) in shelves {
                slots.extend([0, 1].map(|turn| (member.plan.page_at(place.extent, shelf, turn), bytes.clone())));
            }
        }
        slots.sort_unstable_by_key(|(offset, _)| *offset);
        let runs = slots.chunk_by(|(offset, bytes), (next, _)| offset + bytes.len() as u64 == *next);
        let writes = runs.map(|run| {
            let data = run.iter().map(|(_, bytes)| bytes.clone()).collect();
            self.write_disk(place.device, data, Urgency::Buffer, |_| run[0].0)
        });
        join_all(writes).await.into_iter().flatten().collect()
    }

    /// Writes a hot extent's page beside both copies; returns the disks that refused.
    pub async fn write_hot_page(&self, places: &[Place], page: &HotPage) -> Vec<Failure> {
        let at = |plan: &Plan, place: Place| plan.side_page_at(place.extent, page.sequence);
        self.write_copies(places, page.encode().into(), Urgency::Buffer, at).await
    }

    /// Looks for the page of the extent `member` of a group.
    pub async fn read_page(&self, site: &Site, member: usize, owner: PageOwner) -> Sought<Page> {
        let blocks = self.extent_blocks();
        let kept = self.page_slots(site, member);
        self.seek(kept, |bytes| Page::decode(bytes, owner, blocks), |page| page.sequence).await
    }

    /// Where the page of the extent `member` of a group is not as it is now; `None` when every disk in service that keeps it has
    /// it. The caller knows that it was written out and is not being written.
    pub async fn page_lacks(&self, site: &Site, member: usize, owner: PageOwner, page: &Page) -> Option<Lacking> {
        let is_now = |bytes: &Buf| Page::decode(bytes, owner, self.extent_blocks()).as_ref() == Some(page);
        self.lacks(self.page_slots(site, member), page.sequence, is_now, || page.encode(owner)).await
    }

    /// As [`Array::page_lacks`], of a hot extent's page.
    pub async fn hot_page_lacks(&self, places: &[Place], page: &HotPage) -> Option<Lacking> {
        let (slots, owner) = (self.extent_blocks(), (page.controller, page.born));
        let is_now = |bytes: &Buf| HotPage::decode(bytes, owner, slots).as_ref() == Some(page);
        self.lacks(self.side_slots(places, HotPage::bytes(slots)), page.sequence, is_now, || page.encode()).await
    }

    /// As [`Array::page_lacks`], of a fast copy's page.
    pub async fn fast_page_lacks(&self, places: &[Place], page: &FastPage) -> Option<Lacking> {
        let blocks = self.extent_blocks();
        let is_now = |bytes: &Buf| FastPage::decode(bytes, page.owner, blocks).as_ref() == Some(page);
        self.lacks(self.side_slots(places, FastPage::bytes(blocks)), page.sequence, is_now, || page.encode(blocks))
            .await
    }

    /// Writes a page where it is lacking, one turn of a disk after the other: a power cut between leaves one of them. Returns the disks
    /// that refused.
    pub async fn write_lacking(&self, lacking: &Lacking) -> Vec<Failure> {
        let write = |(disk, offset): &(DeviceId, u64)| {
            let offset = *offset;
            self.write_disk(*disk, lacking.page.clone().into(), Urgency::Buffer, move |_| offset)
        };
        let [now, other] = &lacking.at;
        let mut failures: Vec<Failure> = join_all(now.iter().map(write)).await.into_iter().flatten().collect();
        let disks: Vec<_> = now.iter().map(|(disk, _)| *disk).collect();
        if !other.is_empty() && !disks.is_empty() {
            failures.extend(self.flush_disks(&disks).await);
        }
        let refused: Vec<_> = failures.iter().map(|failure| failure.device).collect();
        let other = other.iter().filter(|(disk, _)| !refused.contains(disk));
        failures.extend(join_all(other.map(write)).await.into_iter().flatten());
        failures
    }

    /// Of the two turns one must have the page as it is now. The other one must be read, whatever is there: else nobody could tell
    /// which of them is the newest. No checkpoint is made meanwhile, or one waits for it.
    pub(crate) async fn lacks(
        &self,
        kept: Vec<Kept>,
        sequence: u64,
        is_now: impl Fn(&Buf) -> bool,
        encode: impl Fn() -> Buf,
    ) -> Option<Lacking> {
        let mut at = [Vec::new(), Vec::new()];
        for (device, slots, bytes) in kept {
            for (turn, offset) in (0..).zip(slots) {
                let has = match self.read_disk(device, offset, bytes, Urgency::Buffer).await {
                    Ok(found) => turn != sequence % 2 || is_now(&found.contiguous()),
                    Err(_) => false,
                };
                if !has && self.is_in_service(device) {
                    at[usize::from(turn != sequence % 2)].push((device, offset));
                }
            }
        }
        at.iter().any(|at| !at.is_empty()).then(|| Lacking { at, page: encode() })
    }

    /// Looks for the page of a controller's hot extent born then.
    pub async fn read_hot_page(&self, places: &[Place], (controller, born): (u16, u64)) -> Sought<HotPage> {
        let slots = self.extent_blocks();
        let kept = self.side_slots(places, HotPage::bytes(slots));
        self.seek(kept, |bytes| HotPage::decode(bytes, (controller, born), slots), |page| page.sequence).await
    }

    /// Looks for the page of a fast copy.
    pub async fn read_fast_page(&self, places: &[Place], owner: PageOwner) -> Sought<FastPage> {
        let blocks = self.extent_blocks();
        let kept = self.side_slots(places, FastPage::bytes(blocks));
        self.seek(kept, |bytes| FastPage::decode(bytes, owner, blocks), |page| page.sequence).await
    }

    /// Where the page of the extent `member` of a group is kept.
    fn page_slots(&self, site: &Site, member: usize) -> Vec<Kept> {
        let slots = site.shape.page_places(member).into_iter().filter_map(|(at, shelf)| {
            let place = site.places[at];
            let plan = self.member(place.device)?.plan;
            Some((place.device, [0, 1].map(|turn| plan.page_at(place.extent, shelf, turn)), plan.page_bytes() as usize))
        });
        slots.collect()
    }

    /// Where the pages beside places are kept, and how many bytes they have.
    fn side_slots(&self, places: &[Place], bytes: usize) -> Vec<Kept> {
        let slots = |plan: &Plan, place: Place| [0, 1].map(|turn| plan.side_page_at(place.extent, turn));
        self.working(places).map(|(member, place)| (member.id, slots(&member.plan, place), bytes)).collect()
    }

    async fn seek<P>(
        &self,
        kept: Vec<Kept>,
        decode: impl Fn(&Buf) -> Option<P>,
        sequence: impl Fn(&P) -> u64,
    ) -> Sought<P> {
        let mut sought = Sought { newest: None, refused: Vec::new(), told: false, reachable: false, uneven: false };
        let (mut told, mut versions) = ([false; 2], Vec::new());
        for (device, slots, bytes) in kept {
            for (turn, offset) in slots.into_iter().enumerate() {
                match self.read_disk(device, offset, bytes, Urgency::Client).await {
                    Ok(found) => {
                        sought.reachable = true;
                        let found = decode(&found.contiguous());
                        if self.is_in_service(device) {
                            told[turn] = true;
                            versions.push((turn, found.as_ref().map(&sequence)));
                        }
                        sought.newest = sought.newest.into_iter().chain(found).max_by_key(&sequence);
                    }
                    Err(error) if self.is_in_service(device) => {
                        sought.refused.push(Refusal { device, offset, error });
                    }
                    // It may lack versions that were written without it.
                    Err(_) => {}
                }
            }
        }
        sought.told = told == [true; 2];
        if let Some(newest) = sought.newest.as_ref().map(&sequence) {
            let is_behind = |(turn, has): (usize, Option<u64>)| turn as u64 == newest % 2 && has != Some(newest);
            sought.uneven = versions.into_iter().any(is_behind);
        }
        // Where nothing is good, what was refused may be.
        if sought.told && sought.newest.is_some() {
            sought.refused.clear();
        }
        sought
    }

    /// True when a disk reads what every disk of a pool has, one of its labels: what it refuses is a place, not everything.
    pub async fn answers(&self, device: DeviceId) -> bool {
        for label in [0, BLOCK_BYTES_U64] {
            if self.read_disk(device, label, BLOCK_BYTES, Urgency::Client).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// The disk and the byte on it where a block of a place lies; `None` where a map tells that, and is not in memory.
    pub fn lies_at(&self, berth: &Berth, block: usize) -> Option<(DeviceId, u64)> {
        let Place { device, extent } = berth.place;
        let begin = self.member(device)?.plan.extent_at(extent);
        Some((device, begin + (berth.position(block)? * BLOCK_BYTES) as u64))
    }

    /// The same of the map, of a place whose rows float.
    pub fn map_lies_at(&self, berth: &Berth) -> Option<(DeviceId, u64)> {
        let Place { device, extent } = berth.place;
        let plan = self.member(device).filter(|_| berth.floats())?.plan;
        Some((device, plan.map_at(extent, 0, 0)))
    }
}
