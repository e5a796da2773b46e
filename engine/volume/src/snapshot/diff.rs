//! What changed between two snapshots of a volume, or between one and the volume.

use super::locate::Place;
use super::order::BREATH;
use crate::store::{Inner, Store};
use crate::tables::VolumeState;
use kura_block::{BLOCK_BYTES_U64, Error, Result, RunKind};
use std::ops::Range;
use std::rc::Rc;

/// Ranges in one answer.
const RANGES: usize = 4096;
/// Runs of blocks looked at for one answer, and between two looks at what else goes on: some are a millisecond.
const STEPS: usize = 16384;
const STEPS_AT_ONCE: usize = 1024;

/// Where two snapshots differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Ranges of bytes, in order.
    pub ranges: Vec<Range<u64>>,
    /// Where to ask for the rest of what was asked for, if there is more.
    pub next_offset: Option<u64>,
}

impl Store {
    /// In which blocks of a range of bytes `later` differs from `earlier`.
    /// Blocks that were written with what they had are among them.
    pub async fn changed(&self, earlier: &str, later: &str, within: Range<u64>) -> Result<Changes> {
        let inner = &self.inner;
        let (one, other) = (inner.find(earlier)?, inner.find(later)?);
        one.check_there()?;
        other.check_there()?;
        if !Rc::ptr_eq(&VolumeState::root(&one), &VolumeState::root(&other)) || one.branch.borrow().is_none() {
            return Err(Error::invalid(format!(
                "{earlier} and {later}: give two snapshots of one volume, or one and the volume"
            )));
        }
        let unit = BLOCK_BYTES_U64;
        let (first, end) = (within.start / unit, other.size_bytes().min(within.end).div_ceil(unit));
        let common = end.min(one.size_bytes() / unit);
        let (mut at, mut steps, mut rested) = (first, 0, 0);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut add = |first: u64, end: u64| match ranges.last_mut() {
            Some(last) if last.end == first * unit => last.end = end * unit,
            _ => ranges.push(first * unit..end * unit),
        };
        let mut found = 0;
        while at < common && found < RANGES && steps < STEPS {
            if steps - rested >= STEPS_AT_ONCE {
                // Clients have their turn.
                rested = steps;
                inner.runtime.sleep(BREATH / 10).await;
            }
            let touched = inner.next_touched(&one, at).min(inner.next_touched(&other, at));
            if touched > at {
                at = touched.min(common);
                continue;
            }
            let both = |end: u64| {
                let (here, run) = inner.locate(&one, at, end);
                let (there, alike) = inner.locate(&other, at, at + run);
                (here, there, run.min(alike))
            };
            let (here, there, run) = both(common);
            steps += 1 + run as usize / 16;
            if here != there {
                let written = inner.written_in(&here, &there, run).await;
                if both(at + run) != (here, there, run) {
                    // It lies elsewhere by now.
                    continue;
                }
                for written in written? {
                    add(at + written.start, at + written.end);
                    found += 1;
                }
            }
            at += run;
        }
        if one.deleted.get() || other.deleted.get() {
            return Err(Error::retry(format!(
                "{earlier} and {later}: one was deleted, or moved, meanwhile: ask again"
            )));
        }
        if at < common {
            return Ok(Changes { ranges, next_offset: Some(at * unit) });
        }
        let first = first.max(common);
        if first < end {
            add(first, end);
        }
        Ok(Changes { ranges, next_offset: None })
    }
}

impl VolumeState {
    /// The volume that it is made of in the end: itself, unless it is a snapshot or clone.
    fn root(volume: &Rc<Self>) -> Rc<Self> {
        let mut root = Rc::clone(volume);
        while let Some((parent, _)) = root.branch().and_then(|branch| branch.parent.clone()) {
            root = parent;
        }
        root
    }
}

impl Inner {
    /// Of blocks that lie in two places, those that may differ: all, but for what reads as zeroes in both.
    async fn written_in(&self, one: &Place, other: &Place, count: u64) -> Result<Vec<Range<u64>>> {
        let unit = BLOCK_BYTES_U64;
        let (mut at, mut ranges) = (0, Vec::new());
        let ((Place::Zero, Place::At(state, first)) | (Place::At(state, first), Place::Zero)) = (one, other) else {
            ranges.push(0..count);
            return Ok(ranges);
        };
        while at < count {
            for run in self.runs(state, (first + at) * unit, (count - at) * unit).await? {
                let end = at + run.len_bytes / unit;
                if run.kind == RunKind::Data {
                    ranges.push(at..end);
                }
                at = end;
            }
        }
        Ok(ranges)
    }
}
