//! Fast copies held against their rules, and against checksums.

use super::FastCopy;
use crate::check::Report;
use crate::extent::{Extent, Pins};
use crate::store::Inner;
use crate::tables::VolumeState;
use kura_array::{Class, Urgency};
use kura_block::{BLOCK_BYTES, Checksum};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Blocks read at once.
const RUN_BLOCKS: usize = 256;

impl Inner {
    /// What does not hold of the table of fast copies: one line each.
    pub fn check_copies(&self) -> Vec<String> {
        let mut violations = Vec::new();
        let copies = self.tier.copies();
        for copy in &copies {
            let at = format!("the fast copy of extent {} of volume {}", copy.owner.index, copy.owner.volume);
            if self.extent_of(copy).is_none() {
                violations.push(format!("{at}: the extent does not know it"));
            }
            let disks: BTreeSet<_> = copy.places.iter().map(|place| place.device).collect();
            if disks.len() != copy.places.len() {
                violations.push(format!("{at}: lies twice on a disk"));
            }
            for disk in disks.iter().filter_map(|disk| self.array.member(*disk)) {
                if disk.class != Class::Fast {
                    violations.push(format!("{at}: disk {} is not a fast one", disk.id.0));
                }
            }
            if !copy.bits().stale.are_among(&copy.bits().valid) {
                violations.push(format!("{at}: blocks are newer there that do not lie there"));
            }
        }
        let volumes = self.tables.borrow();
        let extents = volumes.volumes.values().map(|volume| {
            let extents = volume.mapped_from(0);
            extents.iter().filter(|extent| extent.fast().is_some()).count()
        });
        let known = extents.sum::<usize>();
        if known != copies.len() {
            violations.push(format!("there are {} fast copies, and extents know of {known}", copies.len()));
        }
        violations
    }

    /// Reads every place of the valid blocks of an extent's fast copy, and writes those again that have a bad one.
    pub async fn check_copy(&self, volume: &Rc<VolumeState>, extent: &Rc<Extent>, report: &mut Report) {
        let Some(copy) = extent.fast() else { return };
        let _pins = Pins::of([extent]);
        while !extent.is_loaded() {
            if self.load(extent).await.is_err() {
                // Who checks the extent itself says so.
                return;
            }
        }
        let mut at = 0;
        while at < self.array.extent_blocks() {
            let expected = self.settled_run(volume, extent, &copy, at);
            if expected.is_empty() {
                at += 1;
                continue;
            }
            report.blocks += expected.len() as u64;
            let found = self.array.verify(&copy.places, at, &expected).await;
            let blocks: BTreeSet<usize> = found.bad.iter().map(|bad| bad.block).collect();
            for bad in blocks {
                let (inside, expected) = (at + bad, expected[bad]);
                let still = extent.fast().is_some_and(|now| Rc::ptr_eq(&now, &copy))
                    && self.settled_run(volume, extent, &copy, inside).first() == Some(&expected);
                if !still {
                    continue;
                }
                found.bad.iter().filter(|one| one.block == bad).for_each(|one| self.array.confirm(one));
                self.mend_copy(volume, extent, &copy, (inside, expected), report).await;
            }
            at += expected.len();
        }
    }

    /// The checksums of the blocks from `at` on that lie on a copy and are not in the write buffer.
    fn settled_run(&self, volume: &VolumeState, extent: &Extent, copy: &FastCopy, at: usize) -> Vec<Checksum> {
        let blocks = self.array.extent_blocks();
        let first = u64::from(extent.owner.index) * blocks as u64;
        let (dirty, bits) = (volume.dirty.borrow(), copy.bits());
        let rests = |inside: &usize| bits.valid.has(*inside) && !dirty.contains_key(&(first + *inside as u64));
        let run = (at..blocks.min(at + RUN_BLOCKS)).take_while(rests);
        extent.with_page(|page| run.map_while(|inside| page.get(inside)).collect())
    }

    /// Writes a block again from whatever copy of it is good; says so where there is none.
    async fn mend_copy(
        &self,
        volume: &Rc<VolumeState>,
        extent: &Rc<Extent>,
        copy: &Rc<FastCopy>,
        (inside, expected): (usize, Checksum),
        report: &mut Report,
    ) {
        let block = u64::from(extent.owner.index) * self.array.extent_blocks() as u64 + inside as u64;
        let good = match self.array.read(&copy.places, inside, &[expected], Urgency::Idle).await {
            Ok(good) => Ok(good),
            Err(_) => self.read_below(volume, extent, block, &[expected], Urgency::Idle).await,
        };
        match good {
            Ok(good) => self.mend(volume, extent, block, (good.data.slice(0..BLOCK_BYTES), expected), report).await,
            Err(error) => {
                report.found(volume, "block", block, format!("no copy in the fast tier is good: {error}"));
            }
        }
    }
}
