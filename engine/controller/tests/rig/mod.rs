//! What the tests of controllers begin with.

#![allow(clippy::unwrap_used, reason = "a test breaks by panicking")]

use kura_controller::{DiskClass, NewDisk, PoolSpec};
use kura_sim::{Sim, SimDisk};

/// Makes a pool of these disks, of which the first `fast` are fast.
pub fn format(sim: &Sim, disks: &[SimDisk], fast: usize, pool: &PoolSpec) {
    let new: Vec<_> = (disks.iter().enumerate())
        .map(|(id, disk)| NewDisk {
            path: disk.name().into(),
            device: disk.open(),
            class: if id < fast { DiskClass::Fast } else { DiskClass::Slow },
            uuid: [id as u8 + 1; 16],
        })
        .collect();
    sim.block_on(kura_controller::format(&new, pool)).unwrap();
}
