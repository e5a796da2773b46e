//! Reads and writes of extents that have a fast copy.

use super::FastCopy;
use crate::destage::{Destination, Flight};
use crate::extent::Extent;
use crate::store::Inner;
use crate::tables::VolumeState;
use kura_array::hot::MirrorId;
use kura_array::{Urgency, Verified};
use kura_block::{BLOCK_BYTES, Bufs, Checksum, Error, Result};
use std::ops::Range;
use std::rc::Rc;

/// Where blocks at rest are read from.
#[derive(Clone)]
pub(crate) enum Source {
    /// Their places on the volume's disks.
    Home,
    /// Slots of the hot area, from this one on.
    Hot(MirrorId),
    /// The fast copy of their extent.
    Fast(Rc<FastCopy>),
}

impl Source {
    /// True when both name the same bytes.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Home, Self::Home) => true,
            (Self::Hot(one), Self::Hot(other)) => one == other,
            (Self::Fast(one), Self::Fast(other)) => Rc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Inner {
    /// Where a block of an extent is read from, and how many of those after it, up to `end`, are read on from there.
    pub fn source_run(&self, volume: &VolumeState, extent: &Extent, at: u64, end: u64) -> (Source, u64) {
        let mut end = end;
        if let Some(copy) = extent.fast().filter(|copy| self.serves(copy)) {
            let valid = |block: &u64| copy.bits().valid.has(self.split(*block).1);
            let here = valid(&at);
            let run = (at..end).take_while(|block| valid(block) == here).count() as u64;
            if here {
                return (Source::Fast(copy), run);
            }
            end = at + run;
        }
        let (slot, run) = Self::hot_run(volume, at, end);
        (slot.map_or(Source::Home, Source::Hot), run)
    }

    /// True when one of some neighbouring blocks would be read from somewhere else by now.
    pub fn is_elsewhere(&self, volume: &VolumeState, extent: &Extent, blocks: Range<u64>, source: &Source) -> bool {
        let (now, run) = self.source_run(volume, extent, blocks.start, blocks.end);
        !now.is(source) || run < blocks.end - blocks.start
    }

    /// Reads blocks of an extent, one for each expected checksum, from where they lie.
    pub async fn read_source(
        &self,
        volume: &Rc<VolumeState>,
        extent: &Rc<Extent>,
        first: u64,
        checksums: &[Checksum],
        (source, urgency): (&Source, Urgency),
    ) -> Result<Verified> {
        let (_, inside) = self.split(first);
        match source {
            Source::Fast(copy) => match self.array.read(&copy.places, inside, checksums, urgency).await {
                Ok(read) => Ok(read),
                Err(error) => self.read_either(volume, extent, copy, first, (checksums, urgency)).await.ok_or(error),
            },
            Source::Hot(slot) => self.read_hot(*slot, checksums, urgency).await,
            Source::Home => self.read_home(volume, extent, first, checksums, urgency).await,
        }
    }

    /// Reads blocks of an extent from their places on the volume's disks.
    pub async fn read_home(
        &self,
        volume: &VolumeState,
        extent: &Rc<Extent>,
        first: u64,
        checksums: &[Checksum],
        urgency: Urgency,
    ) -> Result<Verified> {
        if volume.shape.parity {
            return self.read_stripes(volume, extent, first, checksums, urgency).await;
        }
        let (_, inside) = self.split(first);
        self.array.read(&extent.group.places(), inside, checksums, urgency).await
    }

    /// Reads each block where it is good: on the fast copy, or at home where that is not older.
    async fn read_either(
        &self,
        volume: &Rc<VolumeState>,
        extent: &Rc<Extent>,
        copy: &FastCopy,
        first: u64,
        (checksums, urgency): (&[Checksum], Urgency),
    ) -> Option<Verified> {
        let mut whole = Verified { data: Bufs::new(), damaged: Vec::new() };
        for (number, expected) in checksums.iter().enumerate() {
            let (block, expected) = (first + number as u64, std::slice::from_ref(expected));
            let (_, inside) = self.split(block);
            let read = match self.array.read(&copy.places, inside, expected, urgency).await {
                Ok(read) => read,
                Err(_) => self.read_below(volume, extent, block, expected, urgency).await.ok()?,
            };
            // Either way some copy of it is bad.
            whole.damaged.push(number);
            whole.data.append(read.data);
        }
        Some(whole)
    }

    /// Reads a block from under its fast copy; where that is newer, the checksum says so.
    pub async fn read_below(
        &self,
        volume: &VolumeState,
        extent: &Rc<Extent>,
        block: u64,
        expected: &[Checksum],
        urgency: Urgency,
    ) -> Result<Verified> {
        match volume.slot(block) {
            Some(slot) => self.read_hot(slot, expected, urgency).await,
            None => self.read_home(volume, extent, block, expected, urgency).await,
        }
    }

    /// Writes neighbouring blocks to the fast copy of their extent.
    pub async fn write_fast(&self, flight: &Flight, copy: &FastCopy) -> Result<()> {
        let Some((first, ..)) = flight.blocks.first() else { return Ok(()) };
        let (_, inside) = self.split(*first);
        let failures = self.array.write(&copy.places, inside, &flight.data, Urgency::Buffer).await;
        if let Some(full) = self.dismiss(failures).await {
            return Err(full);
        }
        if !self.serves(copy) {
            return Err(Error::device("the disks of a fast copy are out of service"));
        }
        self.change_copy(copy, |bits| {
            flight.blocks.iter().for_each(|(block, ..)| bits.landed(self.split(*block).1));
        });
        // What slots of the hot area have of them is older.
        self.leave_hot(&flight.volume, *first, *first + flight.blocks.len() as u64);
        Ok(())
    }

    /// Blocks have been written home: what the fast copies of their extents have is older. One on a single disk gets them
    /// too, so that it goes on serving reads.
    pub async fn came_home(&self, flight: &Flight) {
        let came = |at: usize, block: u64| match &flight.to {
            // One that was written again meanwhile has no slot, and its fast copy is newer still.
            Destination::Hot(slots) => flight.volume.slot(block) == Some(slots[at]),
            _ => true,
        };
        let blocks = flight.blocks.iter().enumerate().map(|(at, (block, ..))| (at, *block));
        let blocks: Vec<_> = blocks.filter(|(at, block)| came(*at, *block)).collect();
        let of_extents = blocks.chunk_by(|(_, one), (_, next)| self.index_of(*one) == self.index_of(*next));
        let fast = |mine: &[(usize, u64)]| flight.volume.extent(self.index_of(mine[0].1))?.fast();
        let copies: Vec<_> = of_extents.filter_map(|mine| Some((fast(mine)?, mine))).collect();
        for (copy, mine) in &copies {
            self.change_copy(copy, |bits| mine.iter().for_each(|(_, block)| bits.left(self.split(*block).1)));
        }
        for (copy, mine) in copies {
            if copy.places.len() == 1 && !copy.is_leaving() && self.is_wanted(&copy) {
                self.write_through(flight, &copy, mine).await;
            }
        }
    }

    /// Writes some blocks of a flight, each with its number there, to the fast copy of their extent.
    async fn write_through(&self, flight: &Flight, copy: &FastCopy, blocks: &[(usize, u64)]) {
        for run in blocks.chunk_by(|one, next| (one.0 + 1, one.1 + 1) == *next) {
            let ((at, first), count) = (run[0], run.len());
            let data = flight.data.slice(at * BLOCK_BYTES..(at + count) * BLOCK_BYTES);
            let (_, inside) = self.split(first);
            let failures = self.array.write(&copy.places, inside, &data, Urgency::Idle).await;
            let written = failures.is_empty() && self.serves(copy);
            // One that is only full, or went out of service, has them no more.
            let _ = self.dismiss(failures).await;
            if written {
                self.change_copy(copy, |bits| (inside..inside + count).for_each(|at| bits.copied(at)));
            }
        }
    }

    /// True when a block's home has an older version of it than its fast copy, or may have it after a power cut.
    pub fn is_stale(&self, volume: &VolumeState, block: u64) -> bool {
        let (index, inside) = self.split(block);
        volume.extent(index).is_some_and(|extent| extent.is_stale(inside))
    }

    /// Reads a block from the fast copy of its extent, where it lies there and is good.
    pub async fn read_above(&self, volume: &VolumeState, block: u64, expected: Checksum) -> Option<Bufs> {
        let (index, inside) = self.split(block);
        let copy = volume.extent(index)?.fast()?;
        let valid = copy.bits().valid.has(inside);
        let read =
            if valid { self.array.read(&copy.places, inside, &[expected], Urgency::Idle).await.ok() } else { None };
        read.map(|read| read.data)
    }
}
