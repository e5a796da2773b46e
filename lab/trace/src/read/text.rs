//! Fields of lines of text.

use crate::error::{Complaint, excerpt};

/// A decimal number; `what` names the field for the complaint.
pub fn number(field: &[u8], what: &str) -> Result<u64, Complaint> {
    decimal(field).ok_or_else(|| {
        let shown = excerpt(field);
        Complaint::new(format!("{what} is '{shown}', not a whole number below 2^64"), "mend or remove the line")
    })
}

/// A decimal number that fits, from digits and nothing else.
pub fn decimal(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for byte in field {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// The fields of a line that blanks separate.
pub fn fields(line: &[u8]) -> Fields<'_> {
    Fields { rest: line }
}

/// See [`fields`].
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let begin = self.rest.iter().position(|byte| !is_blank(byte))?;
        let rest = &self.rest[begin..];
        let end = rest.iter().position(is_blank).unwrap_or(rest.len());
        self.rest = &rest[end..];
        Some(&rest[..end])
    }
}
