//! Little-endian fields, written and read one after another: what every on-disk format here is made of.

use crate::{Error, Result};

/// Appends fields to a byte vector.
#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

/// Takes fields from bytes; running out of bytes is `Corrupt`.
pub struct Reader<'a> {
    bytes: &'a [u8],
}

macro_rules! integers {
    ($($name:ident: $int:ty),* $(,)?) => {
        impl Writer {
            $(
                #[inline]
                #[doc = concat!("Appends a little-endian `", stringify!($int), "`.")]
                pub fn $name(&mut self, value: $int) -> &mut Self {
                    self.bytes.extend_from_slice(&value.to_le_bytes());
                    self
                }
            )*
        }
        impl Reader<'_> {
            $(
                #[inline]
                #[doc = concat!("Takes a little-endian `", stringify!($int), "`.")]
                pub fn $name(&mut self) -> Result<$int> {
                    self.array().map(<$int>::from_le_bytes)
                }
            )*
        }
    };
}

integers! { u8: u8, u16: u16, u32: u32, u64: u64 }

impl Writer {
    /// No bytes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// No bytes yet, with room for so many.
    pub fn with_room(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    /// Appends bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends text of at most 65,535 bytes behind its length as a `u16`.
    pub fn text(&mut self, text: &str) -> &mut Self {
        let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
        self.u16(len).bytes(&text.as_bytes()[..usize::from(len)])
    }

    /// Overwrites four bytes at `at` with a little-endian `u32`: for a checksum known last.
    pub fn patch_u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Appends zero bytes up to the next multiple of `align`.
    pub fn pad_to(&mut self, align: usize) -> &mut Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(align), 0);
        self
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True before the first field.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// All bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Takes `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) =
            self.bytes.split_at_checked(len).ok_or_else(|| Error::corrupt("a record ends before its last field"))?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Takes an array of bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.bytes(N).map(|taken| std::array::from_fn(|at| taken[at]))
    }

    /// Takes text written by [`Writer::text`].
    pub fn text(&mut self) -> Result<String> {
        let len = usize::from(self.u16()?);
        let bytes = self.bytes(len)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| Error::corrupt("a name in a record is not UTF-8"))
    }

    /// True when all bytes are taken.
    pub fn is_done(&self) -> bool {
        self.bytes.is_empty()
    }
}
