//! What can be served, as the server learns it from whoever owns the volumes.

use crate::protocol::transmission_flag as flag;
use kura_block::{Geometry, Local, Result};
use std::future::Future;

/// An export: a volume as a client sees it when it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name; at most 4096 bytes.
    pub name: String,
    /// One line for people; may be empty.
    pub description: String,
    /// True refuses writes.
    pub read_only: bool,
    /// Size, alignment and what it is like. A connection keeps the size it began with.
    pub geometry: Geometry,
}

/// The exports of a server. Asked while clients negotiate, from any thread; never during transmission.
pub trait Exports: Send + Sync + 'static {
    /// All exports, in the order they are listed.
    fn list(&self) -> impl Future<Output = Result<Vec<Export>>> + Send;

    /// The export of this name; an error of kind `Missing` when there is none.
    fn find(&self, name: &str) -> impl Future<Output = Result<Export>> + Send;

    /// Metadata contexts that the export offers beside `base:allocation`, in the order they are listed: names such as
    /// `NAMESPACE:LEAF`, which [`Contexts`] knows again. None unless an implementation says more.
    fn contexts(&self, _export: &str) -> impl Future<Output = Result<Vec<String>>> + Send {
        async { Ok(Vec::new()) }
    }

    /// The export a client means that gives no name: the only one, unless an implementation knows better.
    fn default_export(&self) -> impl Future<Output = Result<Export>> + Send {
        async { only(self.list().await?) }
    }
}

/// The only one of these exports; an error of kind `Missing` where there are more or none.
pub fn only(mut exports: Vec<Export>) -> Result<Export> {
    match (exports.pop(), exports.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(_), false) => {
            Err(kura_block::Error::missing("there is no default export: name one of those that the server lists"))
        }
        (None, _) => Err(kura_block::Error::missing("there is no default export: the server has no volume")),
    }
}

/// A stretch of an export with one status in a metadata context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How long it is, in bytes.
    pub len_bytes: u64,
    /// What the context says of it: bits of the context's own.
    pub flags: u32,
}

/// Extents of a context that one reply tells at most; the client asks again for the rest.
pub const EXTENTS_LIMIT: usize = 8192;

/// Tells what the contexts of [`Exports::contexts`] say of the volume that is served, on the thread that owns it.
pub trait Contexts {
    /// What `context` says of `len` bytes from `offset` on: extents from there on, at least one where `len` is not zero.
    /// They may end before the range does, and are cut behind [`EXTENTS_LIMIT`]: the client asks again.
    fn status<'a>(&'a self, context: &'a str, offset: u64, len: u64) -> Local<'a, Result<Vec<Extent>>>;
}

/// A volume of which nothing but `base:allocation` is told.
impl Contexts for () {
    fn status<'a>(&'a self, context: &'a str, _offset: u64, _len: u64) -> Local<'a, Result<Vec<Extent>>> {
        Box::pin(std::future::ready(Err(kura_block::Error::invalid(format!("{context}: no such context here")))))
    }
}

/// Sizes in bytes that a client is asked to keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    pub minimum: u32,
    pub preferred: u32,
    pub maximum_payload: u32,
}

/// The protocol's default, and what is preferred of a volume that says less.
const PREFERRED_BYTES: u32 = 4096;
/// The protocol allows no larger minimum.
const MINIMUM_LIMIT_BYTES: u32 = 1 << 16;

impl Export {
    /// The transmission flags of this export; `structured` says whether structured replies were negotiated.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if self.geometry.rotational {
            flags |= flag::ROTATIONAL;
        }
        if structured {
            flags |= flag::SEND_DF;
        }
        flags
    }

    /// The block sizes to tell a client, powers of two as the protocol wants; `payload_bytes` is the server's limit.
    pub(crate) fn block_sizes(&self, payload_bytes: u32) -> BlockSizes {
        let minimum = self.geometry.align_bytes.clamp(1, MINIMUM_LIMIT_BYTES).next_power_of_two();
        let optimal = self.geometry.optimal_bytes.clamp(PREFERRED_BYTES, payload_bytes.max(PREFERRED_BYTES));
        // Rounded down: a preference above the largest payload would contradict itself.
        let preferred = (1 << optimal.ilog2()).max(minimum);
        BlockSizes { minimum, preferred, maximum_payload: payload_bytes.max(preferred) }
    }
}
