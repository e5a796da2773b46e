//! Snapshots as tables: which version of a block a volume, or a snapshot of it, sees, and where it lies.
//!
//! ```text
//!   PVOL  block 7   home: written before snapshot 1     ◄── snapshot 1 sees it
//!                   slot 4: born at 1 ................. ◄── snapshots 2 and 3 see it
//!                   slot 9: born at 3 ................. ◄── the PVOL sees it
//! ```
//!
//! A volume with snapshots is a [`Pvol`]; a snapshot, or a clone, is a volume too, the [`Svol`], which begins as what its
//! PVOL was. They share a PoolVOL: a volume of slots of one block each, whose [`PoolTable`] says whose each slot is.
//!
//! Snapshots of a volume are numbered from 1: [`Epoch`]. A version of a block is known by its *birth*: the newest snapshot
//! there was when it was written. A snapshot sees the newest version born before it. So nothing that is stored changes
//! when a snapshot is made, and what a snapshot sees is one look into an ordered map, however many there are.
//!
//! [`method`] is how the controllers of a pool reach the control information that snapshots need, with shared memory below.
//!
//! What must hold:
//! 1. A slot has one owner, and every version that lies in a slot is in the index of the volume that owns it.
//! 2. A version is given up only when no snapshot and not the present sees it, and a younger version of it is known.
//! 3. What a home holds is named by its birth too where it is not the oldest version: the entry of the newest older slot of
//!    the block carries it, and the next older one from when that one goes.

mod index;
pub mod method;
mod pair;
mod pool;
mod pvol;

pub use index::{Epoch, IndexTable, Key, Location};
pub use pair::{Pair, PairTable};
pub use pool::{ENTRIES, Entry, PoolTable, Slot};
pub use pvol::{Pvol, Rolled, Svol, Verdict, Version};
