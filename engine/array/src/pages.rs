//! Pages where they are kept: twice on each of their disks, written in turn.
//!
//! What must hold: an older version of a page is never taken for the newest. Every disk in service that keeps a page was given
//! each version of it, so that both turns tell the newest, whichever of them reads each, whatever the others do. Where one is read
//! nowhere, what a disk refuses to read may be newer than all that was read, and the caller hears of it.

use crate::array::{Array, Failure, Site};
use crate::fast::FastPage;
use crate::hot::HotPage;
use crate::layout::Place;
use crate::page::{Page, PageOwner};
use crate::plan::Plan;
use crate::queue::Urgency;
use futures::future::join_all;
use kura_block::{BLOCK_BYTES, Buf, DeviceId, Error};

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
    /// What was refused while no disk told all it has: there may be a newer version. Empty where there is none.
    pub refused: Vec<Refusal>,
    /// True when anything was read.
    pub reachable: bool,
}

impl Array {
    /// Writes the page of the extent `member` of a group wherever it is kept; returns the disks that refused.
    pub async fn write_page(&self, site: &Site, member: usize, owner: PageOwner, page: &Page) -> Vec<Failure> {
        let keepers: Vec<usize> = (0..site.places.len()).collect();
        self.write_page_at(site, &keepers, member, owner, page).await
    }

    /// As [`Array::write_page`], and only at those of the group's places that `keepers` lists.
    pub async fn write_page_at(
        &self,
        site: &Site,
        keepers: &[usize],
        member: usize,
        owner: PageOwner,
        page: &Page,
    ) -> Vec<Failure> {
        let bytes = page.encode(owner);
        let kept = site.shape.page_places(member).into_iter().filter(|(at, _)| keepers.contains(at));
        let writes = kept.map(|(at, shelf)| {
            let (place, bytes) = (site.places[at], bytes.clone());
            self.write_disk(place.device, bytes.into(), Urgency::Buffer, move |plan| {
                plan.page_at(place.extent, shelf, page.sequence)
            })
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
        let kept = site.shape.page_places(member);
        let slots = kept.iter().filter_map(|(at, shelf)| {
            let place = site.places[*at];
            let plan = self.member(place.device)?.plan;
            Some((
                place.device,
                [0, 1].map(|turn| plan.page_at(place.extent, *shelf, turn)),
                plan.page_bytes() as usize,
            ))
        });
        self.seek(slots.collect(), |bytes| Page::decode(bytes, owner, blocks), |page| page.sequence).await
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

    /// Where the pages beside places are kept, and how many bytes they have.
    fn side_slots(&self, places: &[Place], bytes: usize) -> Vec<(DeviceId, [u64; 2], usize)> {
        let working = self.working(places);
        let slots = working.map(|(member, place)| [0, 1].map(|turn| member.plan.side_page_at(place.extent, turn)));
        let disks = self.working(places).map(|(member, _)| member.id);
        disks.zip(slots).map(|(disk, slots)| (disk, slots, bytes)).collect()
    }

    async fn seek<P>(
        &self,
        kept: Vec<(DeviceId, [u64; 2], usize)>,
        decode: impl Fn(&Buf) -> Option<P>,
        sequence: impl Fn(&P) -> u64,
    ) -> Sought<P> {
        let mut sought = Sought { newest: None, refused: Vec::new(), reachable: false };
        let mut told = [false; 2];
        for (device, slots, bytes) in kept {
            for (turn, offset) in slots.into_iter().enumerate() {
                match self.read_disk(device, offset, bytes).await {
                    Ok(found) => {
                        sought.reachable = true;
                        told[turn] |= self.is_in_service(device);
                        let found = decode(&found.contiguous());
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
        if told == [true; 2] {
            sought.refused.clear();
        }
        sought
    }

    /// True when a disk reads what every disk of a pool has, one of its labels: what it refuses is a place, not everything.
    pub async fn answers(&self, device: DeviceId) -> bool {
        for label in [0, BLOCK_BYTES as u64] {
            if self.read_disk(device, label, BLOCK_BYTES).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// A block of a place that its disk refuses to read.
    pub fn refusal(&self, place: Place, block: usize, error: Error) -> Refusal {
        let plan = self.member(place.device).map(|member| member.plan);
        let offset = plan.map_or(0, |plan| plan.extent_at(place.extent) + (block * BLOCK_BYTES) as u64);
        Refusal { device: place.device, offset, error }
    }
}
