//! Checking: the tables against their rules, the disks against their checksums.

use crate::extent::{Extent, Pins};
use crate::store::{Inner, Store};
use crate::tables::VolumeState;
use kura_array::Urgency;
use kura_block::{BLOCK_BYTES, Bufs, Checksum, Error, Progress, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// What a check does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Holds the tables against their rules, and reads no data.
    Tables,
    /// Also reads every copy of every written block, and of every page.
    Verify,
    /// Also writes those again that have a bad copy and a good one.
    Repair,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// True when nothing is repaired: `repaired` counts what could be.
    pub dry_run: bool,
    /// Volumes looked at.
    pub volumes: u64,
    /// Blocks whose copies were all read.
    pub blocks: u64,
    /// Blocks, and copies of pages, written again from a good copy.
    pub repaired: u64,
    /// What does not hold: one line each, and one for neighbours of which the same is to be said.
    pub violations: Vec<String>,
    /// The last of these of each kind, which may go on: by volume, and by what is said of blocks, stripes or extents.
    runs: BTreeMap<(u64, &'static str, String), (usize, Range<u64>)>,
    /// What has no line, since there are so many.
    untold: u64,
}

/// Lines that a report has of blocks, pages and the like at most: with two disks lost there may be millions of them.
const LINES: usize = 1000;

impl Report {
    /// This and what another controller found.
    #[must_use]
    pub fn join(mut self, other: Self) -> Self {
        self.volumes += other.volumes;
        self.blocks += other.blocks;
        self.repaired += other.repaired;
        self.violations.extend(other.violations);
        self
    }

    /// One of a volume's blocks, stripes or extents is not as it should be.
    pub(crate) fn found(&mut self, volume: &VolumeState, what: &'static str, number: u64, why: String) {
        let name = volume.spec.borrow().name.clone();
        let kind = (volume.id, what, why);
        match self.runs.get_mut(&kind) {
            Some((_, run)) if run.end == number + 1 => {}
            Some((line, run)) if run.end == number => {
                run.end += 1;
                self.violations[*line] = format!("volume {name} {what}s {} to {number}: {}", run.start, kind.2);
            }
            _ => {
                let line = self.violations.len();
                if self.note(format!("volume {name} {what} {number}: {}", kind.2)) {
                    self.runs.insert(kind, (line, number..number + 1));
                }
            }
        }
    }

    /// Something is not as it should be of which there may be many; true when it has a line.
    pub(crate) fn note(&mut self, line: String) -> bool {
        let fits = self.violations.len() < LINES;
        if fits {
            self.violations.push(line);
        } else {
            self.untold += 1;
        }
        fits
    }

    /// A block has a bad copy that stays as it is.
    pub(crate) fn not_mended(&mut self, volume: &VolumeState, block: u64, error: &Error) {
        self.found(volume, "block", block, format!("a copy is bad and stays so: {error}: run `kura check` again"));
    }
}

/// Blocks read at once.
const RUN_BLOCKS: usize = 256;

impl Store {
    /// Holds the tables against their rules, and the disks against their checksums, as far as is asked.
    pub async fn check(&self, check: Check) -> Result<Report> {
        self.check_along(check, &Progress::default()).await
    }

    /// The same, while `progress` is told of the bytes of volumes; where it is cancelled, what is left is not looked at.
    pub async fn check_along(&self, check: Check, progress: &Progress) -> Result<Report> {
        let inner = &self.inner;
        let disks = inner.array.members().iter().map(|member| (member.id, member.plan.extents)).collect();
        let volumes: Vec<_> = inner.tables.borrow().volumes.values().cloned().collect();
        let mut violations = inner.tables.borrow().check(&disks, &inner.hot.table.borrow(), &inner.tier);
        violations.extend(inner.check_copies());
        violations.extend(volumes.iter().filter_map(|volume| Some(volume.check_family().err()?.to_string())));
        let mut report = Report { volumes: volumes.len() as u64, violations, ..Report::default() };
        report.dry_run = check != Check::Repair;
        if check != Check::Tables {
            let extents: u64 = volumes.iter().map(|volume| u64::from(volume.mapped())).sum();
            progress.expect(extents * inner.array.extent_bytes());
            // What could not be brought to its place hides nothing else that is wrong.
            let stuck = inner.checkpoint().await.err();
            for volume in volumes {
                inner.check_volume(&volume, &mut report, progress).await;
            }
            inner.check_hot_pages(&mut report, progress).await;
            if report.untold > 0 {
                let (id, untold) = (inner.id.0, report.untold);
                report.violations.push(format!("controller {id}: {untold} more are bad or lost that are not listed"));
            }
            if progress.is_cancelled() {
                return Ok(report);
            }
            if check == Check::Repair {
                // They are read at a start only, and may have rotted on a disk; here they are whole.
                inner.changes.want_whole();
            }
            if inner.is_stopping() {
                report.violations.push(format!(
                    "controller {}: the server is stopping, and not all was checked: run `kura check` again",
                    inner.id.0
                ));
            }
            let stuck = stuck.or(inner.checkpoint().await.err());
            report.violations.extend(stuck.map(|error| {
                format!("controller {}: what was written last cannot be brought to its place: {error}", inner.id.0)
            }));
        }
        Ok(report)
    }
}

impl Inner {
    async fn check_volume(&self, volume: &Rc<VolumeState>, report: &mut Report, progress: &Progress) {
        let mut lost_blocks = 0;
        let mut from = 0;
        while let Some(index) = volume.next_mapped(from) {
            from = index + 1;
            if self.is_stopping() || progress.is_cancelled() {
                break;
            }
            progress.advance(self.array.extent_bytes());
            // What is being looked at is not tidied away meanwhile.
            let _still = self.tidy.turn.lock().await;
            let Some(extent) = volume.extent(index) else { continue };
            if !extent.is_loaded()
                && let Err(error) = self.load(&extent).await
            {
                report.found(volume, "extent", index.into(), error.to_string());
                continue;
            }
            self.check_page(volume, &extent, report).await;
            self.check_hot(volume, &extent, report).await;
            self.check_copy(volume, &extent, report).await;
            if volume.shape.parity {
                if extent.member() == 0 {
                    self.check_maps(volume, &extent.group, report).await;
                    self.check_stripes(volume, &volume.group_of(index), report).await;
                }
                continue;
            }
            let mut at = 0;
            while at < self.array.extent_blocks() {
                at = self.check_run(volume, index, at, report, &mut lost_blocks).await;
            }
        }
        if lost_blocks > 0 {
            let name = volume.spec.borrow().name.clone();
            report.violations.push(format!(
                "volume {name}: {lost_blocks} blocks of {BLOCK_BYTES} bytes have their only copy on disks that are out of service"
            ));
        }
    }

    /// Checks the written blocks from `at` on, up to the next unwritten one; returns where to go on.
    async fn check_run(
        &self,
        volume: &Rc<VolumeState>,
        index: u32,
        at: usize,
        report: &mut Report,
        lost_blocks: &mut u64,
    ) -> usize {
        let blocks = self.array.extent_blocks();
        let Some(extent) = volume.extent(index) else { return blocks };
        // What is found to be bad is held against the page again before it is written.
        let _pins = Pins::of([&extent]);
        while !extent.is_loaded() {
            if self.load(&extent).await.is_err() {
                return blocks;
            }
        }
        let first = u64::from(index) * blocks as u64 + at as u64;
        let expected: Vec<Checksum> = {
            // What is in the write buffer lies there when it has left it, which may be when its copies have been read.
            let dirty = volume.dirty.borrow();
            let at_home =
                |block: &usize| !extent.is_stale(*block) && !dirty.contains_key(&(first + (block - at) as u64));
            let run = (at..blocks).take_while(at_home).take(RUN_BLOCKS);
            extent.with_page(|page| run.map_while(|block| page.get(block)).collect())
        };
        if expected.is_empty() {
            return at + 1;
        }
        let found = self.array.verify(&extent.group.places(), at, &expected).await;
        report.blocks += expected.len() as u64;
        if !extent.group.places().iter().any(|place| self.array.works(*place)) {
            for (block, checksum) in (first..).zip(&expected) {
                *lost_blocks += u64::from(self.read_above(volume, block, *checksum).await.is_none());
            }
        }
        for copy in found.bad {
            let bad = copy.block;
            let block = first + bad as u64;
            let unchanged = volume.extent(index).is_some_and(|now| Rc::ptr_eq(&now, &extent))
                && extent.is_loaded()
                && extent.with_page(|page| page.get(at + bad) == Some(expected[bad]))
                && !volume.dirty.borrow().contains_key(&block);
            if !unchanged {
                continue;
            }
            self.array.confirm(&copy);
            let above = if found.lost[bad] { self.read_above(volume, block, expected[bad]).await } else { None };
            if let Some(good) = above {
                self.mend(volume, &extent, block, (good, expected[bad]), report).await;
            } else if found.lost[bad] {
                if !report.dry_run {
                    self.write_table_again(volume.id, block..block + 1);
                }
                report.found(volume, "block", block, format!("bad on disk {} and no copy is good", copy.disk.0));
            } else {
                let good = self.array.read(&extent.group.places(), at + bad, &expected[bad..=bad], Urgency::Idle).await;
                match good.map(|good| good.data.slice(0..BLOCK_BYTES)) {
                    Ok(good) => self.mend(volume, &extent, block, (good, expected[bad]), report).await,
                    Err(error) => report.not_mended(volume, block, &error),
                }
            }
        }
        at + expected.len()
    }

    /// Writes a block again of which a copy is bad and these bytes are good, as soon as there is room for that. The caller
    /// has pinned the extent's page.
    pub async fn mend(
        &self,
        volume: &Rc<VolumeState>,
        extent: &Rc<Extent>,
        block: u64,
        (data, checksum): (Bufs, Checksum),
        report: &mut Report,
    ) {
        while !report.dry_run && !self.repair(volume, extent, block, data.clone(), checksum) {
            if self.overtaken(volume, extent, block, &[checksum]) {
                // Whoever wrote or cleared it since has mended it.
                return;
            }
            let room = match self.ready(volume) {
                Ok(()) => self.make_room(Self::bytes_of(1)).await,
                refused => refused,
            };
            if let Err(error) = room {
                return report.not_mended(volume, block, &error);
            }
        }
        report.repaired += 1;
    }
}
