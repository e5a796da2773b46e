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

    /// Makes the four bytes at `at`, zero until now, the CRC-32C of all bytes so far: [`is_sealed`] says whether they hold.
    pub fn seal(&mut self, at: usize) {
        seal(&mut self.bytes, at);
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

/// Makes the four bytes at `at`, whatever they are, the CRC-32C of `bytes` with zeroes there, as [`Writer::seal`] does.
pub fn seal(bytes: &mut [u8], at: usize) {
    let sum = crc_without(bytes, at);
    bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

/// The CRC-32C of bytes that have four zeroes at `at`.
fn crc_without(bytes: &[u8], at: usize) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&bytes[..at]), &[0; 4]), &bytes[at + 4..])
}

/// True when `bytes` agree with the checksum that [`Writer::seal`] left at `at`.
pub fn is_sealed(bytes: &[u8], at: usize) -> bool {
    let stored = bytes.get(at..).and_then(|stored| Reader::new(stored).u32().ok());
    stored.is_some_and(|stored| stored == crc_without(bytes, at))
}

fn too_short() -> Error {
    Error::corrupt("a record ends before its last field")
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Takes `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or_else(too_short)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Takes an array of bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or_else(too_short)?;
        self.bytes = rest;
        Ok(*taken)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_breaks_with_every_bit() {
        let mut out = Writer::new();
        out.u32(0x1234).u32(0).u64(9).pad_to(32).seal(4);
        let mut bytes = out.finish();
        assert!(is_sealed(&bytes, 4));
        let mut zeroed = bytes.clone();
        zeroed[4..8].fill(0);
        assert_eq!(bytes[4..8], crc32c::crc32c(&zeroed).to_le_bytes());
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_sealed(&bytes, 4), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!((0..8).all(|len| !is_sealed(&bytes[..len], 4)), "there is no room for a seal");
    }
}
