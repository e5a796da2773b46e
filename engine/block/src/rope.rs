//! A sequence of buffers that stands for one run of bytes.

use crate::buf::{Buf, BufMut};
use smallvec::SmallVec;
use std::ops::Range;

/// Bytes gathered from several [`Buf`]s, in order: what a read returns and a write takes, so that no layer copies to
/// put pieces together.
#[derive(Debug, Default)]
pub struct Bufs {
    parts: SmallVec<[Buf; 1]>,
    len: usize,
}

impl Clone for Bufs {
    fn clone(&self) -> Self {
        // Most are of one part, and every layer that asks a device takes a clone.
        let parts = match self.parts.as_slice() {
            [only] => SmallVec::from_buf([only.clone()]),
            parts => parts.into(),
        };
        Self { parts, len: self.len }
    }
}

impl Bufs {
    /// No bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// `len` zero bytes, without memory of their own.
    pub fn zeroes(len: usize) -> Self {
        let mut bufs = Self::new();
        while bufs.len < len {
            let part = Buf::zeroes(len - bufs.len);
            bufs.len += part.len();
            bufs.parts.push(part);
        }
        bufs
    }

    /// True for bytes that [`Bufs::zeroes`] lends, which are zeroes without a look.
    pub fn is_lent_zeroes(&self) -> bool {
        self.parts.iter().all(Buf::is_lent_zeroes)
    }

    /// Adds `part` at the end; a part that continues the last one in memory is joined to it.
    pub fn push(&mut self, part: Buf) {
        if part.is_empty() {
            return;
        }
        self.len += part.len();
        match self.parts.last_mut() {
            Some(last) if last.continues_into(&part) => last.grow(part.len()),
            Some(last) if last.lends_with(&part) => last.lend_more(part.len()),
            _ => self.parts.push(part),
        }
    }

    /// Adds all of `other` at the end.
    pub fn append(&mut self, other: Bufs) {
        for part in other.parts {
            self.push(part);
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The parts, in order; none is empty.
    pub fn parts(&self) -> &[Buf] {
        &self.parts
    }

    /// The bytes at `range`, sharing the memory.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "slice {range:?} of {} bytes", self.len);
        if let [only] = self.parts.as_slice() {
            return only.slice(range).into();
        }
        let mut cut = Self::new();
        let mut at = 0;
        for part in &self.parts {
            let (from, to) = (range.start.max(at), range.end.min(at + part.len()));
            if from < to {
                cut.push(part.slice(from - at..to - at));
            }
            at += part.len();
        }
        cut
    }

    /// Copies all bytes into `out`, which must have this length.
    pub fn copy_to(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len, "the target of a copy has the source's length");
        let mut at = 0;
        for part in &self.parts {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    /// One buffer with all the bytes: the only part when there is one, else a copy.
    pub fn contiguous(&self) -> Buf {
        match self.parts.as_slice() {
            [only] => only.clone(),
            _ => {
                let mut out = BufMut::room(self.len);
                self.copy_to(&mut out);
                out.freeze()
            }
        }
    }
}

impl From<Buf> for Bufs {
    fn from(part: Buf) -> Self {
        Self::from_iter([part])
    }
}

impl FromIterator<Buf> for Bufs {
    fn from_iter<I: IntoIterator<Item = Buf>>(parts: I) -> Self {
        let mut bufs = Self::new();
        for part in parts {
            bufs.push(part);
        }
        bufs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slices_agree_with_a_plain_vector(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..6), cut in any::<(u16, u16)>()) {
            let plain: Vec<u8> = parts.concat();
            let mut bufs = Bufs::new();
            for part in &parts {
                bufs.push(Buf::copy_of(part));
            }
            let (a, b) = (cut.0 as usize % (plain.len() + 1), cut.1 as usize % (plain.len() + 1));
            let range = a.min(b)..a.max(b);
            prop_assert_eq!(&*bufs.slice(range.clone()).contiguous(), &plain[range]);
        }
    }

    #[test]
    fn neighbours_in_memory_become_one_part() {
        let buf = Buf::copy_of(&[7; 8192]);
        let mut bufs = Bufs::from(buf.slice(0..4096));
        bufs.push(buf.slice(4096..8192));
        assert_eq!(bufs.parts().len(), 1);
    }

    #[test]
    fn zeroes_take_no_memory_of_their_own() {
        let zeroes = Bufs::zeroes(1 << 20);
        assert_eq!(zeroes.len(), 1 << 20);
        assert!(zeroes.is_lent_zeroes() && zeroes.parts().iter().all(|part| part.iter().all(|&byte| byte == 0)));
        assert!(!Buf::copy_of(&[0; 4096]).is_lent_zeroes());
    }

    #[test]
    fn buffers_start_at_page_boundaries() {
        for len in [1, 4096, 5000, 1 << 20, 3 << 20] {
            assert_eq!(BufMut::room(len).as_ptr() as usize % crate::PAGE_BYTES, 0);
        }
    }
}
