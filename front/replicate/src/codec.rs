//! Numbers and bytes, one after the other: how catalogues and messages are written.
//!
//! An unsigned number is little-endian base 128, seven bits a byte, the highest bit set in all but the last byte; a
//! signed one is folded first (0, -1, 1, -2 ...). Bytes follow their number.

use std::io::{Error, ErrorKind, Result};

/// Appends an unsigned number.
pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a signed number.
pub fn put_signed(out: &mut Vec<u8>, number: i64) {
    put(out, ((number << 1) ^ (number >> 63)).cast_unsigned());
}

/// Appends bytes, after how many they are.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what was put, in the same order. Whatever the bytes are, it gives an error and no panic.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// An unsigned number.
    pub fn number(&mut self) -> Result<u64> {
        let mut number = 0;
        for (index, &byte) in self.0.iter().enumerate().take(10) {
            if index == 9 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.0 = &self.0[index + 1..];
                return Ok(number);
            }
        }
        Err(broken())
    }

    /// An unsigned number that fits into less.
    pub fn small<N: TryFrom<u64>>(&mut self) -> Result<N> {
        N::try_from(self.number()?).map_err(|_| broken())
    }

    /// A signed number.
    pub fn signed(&mut self) -> Result<i64> {
        let folded = self.number()?;
        Ok((folded >> 1).cast_signed() ^ -(folded & 1).cast_signed())
    }

    /// Bytes, after how many they are.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let length: usize = self.small()?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(broken)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// A number of things to follow, each of at least one byte: never more than there can be.
    pub fn count(&mut self) -> Result<usize> {
        let count: usize = self.small()?;
        if count <= self.0.len() { Ok(count) } else { Err(broken()) }
    }

    /// True when nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What was read does not have its form.
pub fn broken() -> Error {
    Error::new(ErrorKind::InvalidData, "it is cut off or not in its form")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_put_is_read(numbers in prop::collection::vec((any::<u64>(), any::<i64>()), 0..20), bytes: Vec<u8>) {
            let mut out = Vec::new();
            for (number, signed) in &numbers {
                put(&mut out, *number);
                put_signed(&mut out, *signed);
            }
            put_bytes(&mut out, &bytes);
            let mut reader = Reader(&out);
            for (number, signed) in numbers {
                prop_assert_eq!((reader.number()?, reader.signed()?), (number, signed));
            }
            prop_assert_eq!(reader.bytes()?, &bytes[..]);
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_bytes_are_an_error_or_a_value(bytes: Vec<u8>) {
            let mut reader = Reader(&bytes);
            while reader.bytes().is_ok() && !reader.is_empty() {}
            let mut reader = Reader(&bytes);
            while reader.number().is_ok() {}
            prop_assert!(Reader(&bytes).count().is_err() || Reader(&bytes).count()? <= bytes.len());
        }
    }
}
