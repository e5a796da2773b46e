//! What the volume lies on: disks as RAID0, and one solid-state device beside them.

use futures::future::join_all;
use kura_block::{Block, Bufs};
use kura_sim::{DiskSpec, Model, Sim, SimBlock, SimDisk};
use std::ops::Range;
use std::rc::Rc;

/// Bytes of a stripe unit.
const UNIT_BYTES: u64 = 64 << 10;
/// A sector of the disks, which requests are rounded to.
const SECTOR_BYTES: u64 = 4096;
/// Disks of the paper's evaluation: four of 10,000 revolutions a minute and 450 GB.
const DISKS: u64 = 4;
const DISK_BYTES: u64 = 450_000_000_000;

/// Reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// The devices.
pub struct Devices {
    slow: Vec<(SimDisk, Rc<SimBlock>)>,
    fast: (SimDisk, Rc<SimBlock>),
}

/// What the slow devices have done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Nanoseconds in which they were busy, summed.
    pub busy_ns: u64,
    /// Nanoseconds that operations have spent on each device, waiting and in service.
    pub present_ns: [u64; DISKS as usize],
}

impl Devices {
    /// The paper's devices. A solid-state device takes as long wherever it is asked, so that it has a place for every
    /// byte of the volume; how much of it is used is the driver's concern.
    pub fn new(sim: &Sim, volume_bytes: u64) -> Self {
        let quiet = |spec: DiskSpec| DiskSpec { keep_content: false, ..spec };
        let size_bytes = DISK_BYTES.max(volume_bytes / DISKS + UNIT_BYTES);
        let open = |disk: SimDisk| {
            let block = disk.open();
            (disk, block)
        };
        let slow = (0..DISKS).map(|n| open(sim.disk(&format!("slow{n}"), quiet(Model::Hdd10k.disk(size_bytes)))));
        let slow = slow.collect();
        let fast = open(sim.disk("fast", quiet(Model::SataSsd.disk(volume_bytes + UNIT_BYTES))));
        Self { slow, fast }
    }

    /// Disks.
    pub fn disks(&self) -> u64 {
        self.slow.len() as u64
    }

    /// Reads or writes a range of the volume on the disks: of each at most one piece, for neighbouring stripes are
    /// neighbours there.
    pub async fn slow(&self, way: Way, range: Range<u64>) {
        let range = sectors(range);
        let pieces = (0..DISKS).filter_map(|disk| Some((disk as usize, piece(disk, &range)?)));
        join_all(pieces.map(|(disk, piece)| one(&self.slow[disk].1, way, piece))).await;
    }

    /// Reads or writes a range of the volume on the solid-state device.
    pub async fn fast(&self, way: Way, range: Range<u64>) {
        one(&self.fast.1, way, sectors(range)).await;
    }

    /// What the disks have done so far.
    pub fn work(&self) -> Work {
        let mut work = Work::default();
        for (present_ns, (disk, _)) in work.present_ns.iter_mut().zip(&self.slow) {
            let counters = disk.counters();
            work.busy_ns += counters.busy_ns;
            *present_ns = counters.wait_ns + counters.service_ns;
        }
        work
    }
}

async fn one(device: &SimBlock, way: Way, range: Range<u64>) {
    let len = (range.end - range.start) as usize;
    let done = match way {
        Way::Read => device.read(range.start, len).await.map(drop),
        Way::Write => device.write(range.start, Bufs::zeroes(len), false).await,
    };
    // Ranges are sectors of the device and no faults are planned: a failure is a mistake of the driver's.
    done.unwrap_or_else(|error| panic!("a modelled device refuses {way:?} of {range:?}: {error}"));
}

fn sectors(range: Range<u64>) -> Range<u64> {
    range.start / SECTOR_BYTES * SECTOR_BYTES..range.end.next_multiple_of(SECTOR_BYTES)
}

/// What of a range lies on a disk, by the disk's own addresses.
fn piece(disk: u64, range: &Range<u64>) -> Option<Range<u64>> {
    let stripe_bytes = UNIT_BYTES * DISKS;
    // Bytes of this disk before an address of the volume.
    let before = |at: u64| {
        let within = (at % stripe_bytes).saturating_sub(disk * UNIT_BYTES).min(UNIT_BYTES);
        at / stripe_bytes * UNIT_BYTES + within
    };
    let piece = before(range.start)..before(range.end);
    (!piece.is_empty()).then_some(piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_all_of_a_range() {
        for range in [0..4096, 60 << 10..70 << 10, 0..1 << 20, 300 << 10..(1 << 20) + 512] {
            let pieces: Vec<_> = (0..DISKS).filter_map(|disk| piece(disk, &range)).collect();
            let bytes: u64 = pieces.iter().map(|piece| piece.end - piece.start).sum();
            assert_eq!(bytes, range.end - range.start, "{range:?}: {pieces:?}");
        }
        assert_eq!(piece(1, &(64 << 10..128 << 10)), Some(0..64 << 10));
        assert_eq!(piece(0, &(256 << 10..264 << 10)), Some(64 << 10..72 << 10));
    }
}
