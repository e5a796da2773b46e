//! Control information that controllers share: what is free, and what is named.

use crate::{Local, Result};
use std::rc::Rc;

/// A controller of the pool: 0 ... controllers - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerId(pub u16);

/// A device of the pool: its place in the label's table of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// An extent of a device, numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(pub u32);

/// What the controllers of a pool have in common beside what is free on its devices: which devices those are, and which
/// names are taken.
///
/// Nothing of it is recorded here: when a node starts, every controller recovers its tables and tells what it holds.
pub trait Shared {
    /// Free extents of `device` that nobody leased.
    fn free(&self, device: DeviceId) -> Local<'_, Result<u32>>;

    /// Tells that `device` has `extents` extents (a new device, or one that grew). It says what the device's label says and
    /// can only add, whoever tells it and how late: it takes no way of a controller.
    fn add_device(&self, device: DeviceId, extents: u32) -> Local<'_, Result<()>>;

    /// The way of a controller that starts to the names. One that it had before is refused from now on.
    fn names(&self, me: ControllerId) -> Local<'_, Result<Rc<dyn Names>>>;
}

/// One controller's way to the names of a pool: volumes and snapshots, of which each name is owned by one controller.
///
/// A way that a later one of the same controller has replaced is refused by every call, and changes nothing: `Fenced`.
pub trait Names {
    /// Takes a name; `Exists` when it is taken.
    fn take(&self, name: &str) -> Local<'_, Result<()>>;

    /// A name that is taken is this controller's from now on; `Missing` when it is not taken.
    fn adopt(&self, name: &str) -> Local<'_, Result<()>>;

    /// Gives a name up; `Missing` when it is not this controller's.
    fn release(&self, name: &str) -> Local<'_, Result<()>>;
}
