//! Control information that controllers share: what is free, and what is named.

use crate::{Local, Result};

/// A controller of the pool: 0 ... controllers - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerId(pub u16);

/// A device of the pool: its place in the label's table of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// An extent of a device, numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(pub u32);

/// A name and who owns what it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameEntry {
    /// The volume's name.
    pub name: String,
    /// The controller that owns it.
    pub owner: ControllerId,
}

/// What the controllers of a pool have in common beside what is free on its devices: which devices those are, and which
/// names are taken.
///
/// Nothing of it is recorded here: when a node starts, every controller recovers its tables and tells what it holds.
pub trait Shared {
    /// Free extents of `device` that nobody leased.
    fn free(&self, device: DeviceId) -> Local<'_, Result<u32>>;

    /// Tells that `device` has `extents` extents (a new device, or one that grew).
    fn add_device(&self, device: DeviceId, extents: u32) -> Local<'_, Result<()>>;

    /// Takes a name for `owner`; `Exists` when it is taken.
    fn take_name(&self, owner: ControllerId, name: &str) -> Local<'_, Result<()>>;

    /// A name that is taken is `to`'s from now on.
    fn pass_name(&self, to: ControllerId, name: &str) -> Local<'_, Result<()>>;

    /// Gives a name up.
    fn drop_name(&self, name: &str) -> Local<'_, Result<()>>;

    /// All names, sorted.
    fn names(&self) -> Local<'_, Result<Vec<NameEntry>>>;
}
