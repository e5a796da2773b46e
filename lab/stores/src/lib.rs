//! Object stores beside each other, measured for real: what the paper's Figs. 2 and 3 are about.
//!
//! A [`Stage`] is an image on the device to be measured; each [`Side`] has it for itself in turn, creates objects of one
//! size durably and reads them back cold, by one client or several at a time, and compares what it reads:
//!
//! | side | what it is | an object is durable by |
//! | --- | --- | --- |
//! | [`Side::Kura`] | [`kura_object`] on the device, `O_DIRECT` | group commit |
//! | [`Side::BerkeleyDb`] | Berkeley DB 5.3 on ext4: a B-tree, a transaction an object | `DB_TXN_SYNC` |
//! | [`Side::Btrfs`], [`Side::Ext3`] | one file an object | `fsync` of the file |
//! | [`Side::Device`] | the device itself, written in order: what no store can beat by much | `fdatasync` |
//!
//! It wants root, and on Debian the packages btrfs-progs, e2fsprogs, mount, gcc and libdb5.3-dev.

mod bdb;
mod device;
mod files;
mod image;
mod index;
mod kura;
mod stage;
#[cfg(test)]
mod tests;
mod work;

pub use index::{Index, Many, index};
pub use stage::{Aged, Measured, Side, Stage};
pub use work::{Phase, STAMP_BYTES, Work};
