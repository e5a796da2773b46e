//! The numbers and fixed messages of the NBD protocol. Everything on the wire is big-endian.

use crate::export::{EXTENTS_LIMIT, Extent};
use kura_block::{Error, Kind};
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The server's first eight bytes.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Before every option, and in the server's greeting.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before every request of the transmission phase.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Before every chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// The longest string the protocol allows (an export's name, a query, an error's text), in bytes.
pub const STRING_BYTES: usize = 4096;
/// No block of an export is smaller, and so no extent that is told of it.
const EXTENT_LEAST_BYTES: usize = 512;

/// Flags of the handshake; the client's answer uses the same bits.
pub mod handshake_flag {
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options a client may send while it negotiates.
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    pub const ERR_TLS_REQD: u32 = 1 << 31 | 5;
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    pub const ERR_SHUTDOWN: u32 = 1 << 31 | 7;
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Types of facts about an export.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export tells that it can do.
pub mod transmission_flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Flags of a request.
pub mod command_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of chunks.
pub mod chunk {
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = 1 << 15 | 1;
    /// The flag of a reply's last chunk.
    pub const DONE: u16 = 1 << 0;
}

/// Status flags of the context `base:allocation`.
pub mod state {
    pub const HOLE: u32 = 1 << 0;
    pub const ZERO: u32 = 1 << 1;
}

/// Error values a reply may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    Perm = 1,
    Io = 5,
    Inval = 22,
    NoSpc = 28,
    Overflow = 75,
    NotSup = 95,
    Shutdown = 108,
}

impl From<&Error> for Errno {
    /// The protocol has no word for "try again": a client that is told `EIO` may retry, one that is told
    /// `ESHUTDOWN` must leave, and finds the new owner when it comes back.
    fn from(error: &Error) -> Self {
        match error.kind() {
            Kind::Full => Self::NoSpc,
            Kind::Invalid => Self::Inval,
            Kind::ReadOnly => Self::Perm,
            Kind::Fenced | Kind::Missing => Self::Shutdown,
            Kind::Retry | Kind::Corrupt | Kind::Device | Kind::Exists | Kind::Busy => Self::Io,
        }
    }
}

/// Commands of the transmission phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
    /// A number we do not know.
    Unknown(u16),
}

impl From<u16> for Command {
    fn from(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Unknown(other),
        }
    }
}

/// The server's greeting.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Greeting {
    pub magic: U64,
    pub option_magic: U64,
    pub flags: U16,
}

/// What comes before an option's data.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    pub magic: U64,
    pub option: U32,
    pub len: U32,
}

/// What comes before the data of a reply to an option.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionReplyHeader {
    pub magic: U64,
    pub option: U32,
    pub kind: U32,
    pub len: U32,
}

/// A request as it stands on the wire.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    pub magic: U32,
    pub flags: U16,
    pub command: U16,
    pub cookie: U64,
    pub offset: U64,
    pub len: U32,
}

/// Bytes of a [`RequestHeader`].
pub const REQUEST_BYTES: usize = size_of::<RequestHeader>();

/// A simple reply; the data of a successful read follows.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SimpleReply {
    pub magic: U32,
    pub error: U32,
    pub cookie: U64,
}

/// What comes before a chunk's payload of `len` bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChunkHeader {
    pub magic: U32,
    pub flags: U16,
    pub kind: U16,
    pub cookie: U64,
    pub len: U32,
}

/// A request of the transmission phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub command: Command,
    pub flags: u16,
    /// The client's name for this request, given back in the reply.
    pub cookie: u64,
    pub offset: u64,
    /// Length of the range in bytes; for a write also of the payload that follows.
    pub len: u32,
}

impl Request {
    /// The request at the beginning of `bytes`; `None` when its magic is wrong or bytes are missing.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, _) = RequestHeader::ref_from_prefix(bytes).ok()?;
        (header.magic == REQUEST_MAGIC).then(|| Self {
            command: Command::from(header.command.get()),
            flags: header.flags.get(),
            cookie: header.cookie.get(),
            offset: header.offset.get(),
            len: header.len.get(),
        })
    }

    /// Bytes that this request holds in memory while it is served, at most, where the session selected so many contexts: the data
    /// that it moves, or what is told of its range.
    pub fn held_bytes(&self, contexts: usize) -> usize {
        let len = self.len as usize;
        match self.command {
            Command::Read | Command::Write => len,
            Command::BlockStatus => contexts * size_of::<Extent>() * (len / EXTENT_LEAST_BYTES + 2).min(EXTENTS_LIMIT),
            _ => 0,
        }
    }

    /// True when every bit of `flag` is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag == flag
    }
}
