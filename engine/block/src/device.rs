//! The trait every layer, comparator and test double implements.

use crate::{Bufs, Local, Result};

/// What a block device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes; a multiple of `align_bytes`.
    pub size_bytes: u64,
    /// Offsets and lengths must be multiples of this many bytes (1 for a volume, the logical sector for a device).
    pub align_bytes: u32,
    /// Requests of multiples of this many bytes are served best.
    pub optimal_bytes: u32,
    /// True when seeks cost (a disk that turns).
    pub rotational: bool,
    /// True when [`Block::discard`] gives space back.
    pub discards: bool,
}

/// What lies at a range of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// Nothing is allocated; reads as zeroes.
    Hole,
    /// Space is allocated but holds nothing yet; reads as zeroes.
    Zero,
    /// Written data.
    Data,
}

/// A run of bytes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Length in bytes, above zero.
    pub len_bytes: u64,
    /// What lies there.
    pub kind: RunKind,
}

/// A block device: of hardware, of a file, of a simulation, or of the layer below.
///
/// What must hold of every implementation:
/// - A write without FUA may be acknowledged while it is volatile. It survives a crash once a later [`Block::flush`]
///   has succeeded, or at once with `fua`.
/// - A crash leaves each aligned unit of an unflushed write old or new, never mixed, on media that keep their word;
///   simulated media break it on request.
/// - Two calls in flight over the same bytes have no order; a call issued after another's future resolved comes after it.
/// - A dropped future may still take effect; memory in use by a device stays alive until the device lets go of it.
/// - Ranges that are not aligned or that leave the device are an error of kind `Invalid`, never a panic.
pub trait Block {
    /// What this device is like; the size may grow between calls.
    fn geometry(&self) -> Geometry;

    /// Reads `len` bytes at `offset`.
    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>>;

    /// Writes `data` at `offset`; with `fua` the future resolves when these bytes would survive a crash.
    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>>;

    /// Resolves when every write acknowledged before this call would survive a crash.
    fn flush(&self) -> Local<'_, Result<()>>;

    /// Gives the space of the range back where the device can; what it reads there afterwards is unspecified.
    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>>;

    /// Makes the range read as zeroes; with `keep` the space stays allocated.
    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Local<'_, Result<()>>;

    /// What lies at the range, as runs that cover it from its start (possibly not to its end). A device that does not
    /// know says data.
    fn runs(&self, offset: u64, len: u64) -> Local<'_, Result<Vec<Run>>> {
        let _ = offset;
        Box::pin(std::future::ready(Ok(vec![Run { len_bytes: len, kind: RunKind::Data }])))
    }
}

impl Geometry {
    /// Refuses a range that is not aligned or leaves the device.
    pub fn check(&self, offset: u64, len: u64) -> Result<()> {
        let align = u64::from(self.align_bytes);
        if !offset.is_multiple_of(align) || !len.is_multiple_of(align) {
            return Err(crate::Error::invalid(format!("range {offset}+{len} is not a multiple of {align} bytes")));
        }
        if offset.checked_add(len).is_none_or(|end| end > self.size_bytes) {
            return Err(crate::Error::invalid(format!(
                "range {offset}+{len} leaves the device of {} bytes",
                self.size_bytes
            )));
        }
        Ok(())
    }
}
