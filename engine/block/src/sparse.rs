//! An array of which most is never used.

/// Elements of a piece.
const PIECE: usize = 512;

/// An array that takes memory by the pieces in which anything was ever put, and a pointer for each piece before the last of
/// them. Looking something up is as quick as in a vector.
#[derive(Clone, Debug)]
pub struct Sparse<T> {
    pieces: Vec<Option<Box<[T]>>>,
    len: u32,
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self { pieces: Vec::new(), len: 0 }
    }
}

impl<T: Clone + Default> Sparse<T> {
    /// How many elements it may have.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True when it has no room for anything.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes room for so many; those beyond are gone, and are the default when there is room for them again.
    pub fn resize(&mut self, len: u32) {
        let kept = len as usize;
        self.pieces.truncate(kept.div_ceil(PIECE));
        if kept < self.len as usize
            && let Some(Some(last)) = self.pieces.get_mut(kept / PIECE)
        {
            last[kept % PIECE..].fill(T::default());
        }
        self.len = len;
    }

    /// An element; `None` beyond the end, and where nothing was ever put near it.
    pub fn get(&self, at: u32) -> Option<&T> {
        let piece = self.pieces.get(at as usize / PIECE)?.as_deref()?;
        (at < self.len).then(|| &piece[at as usize % PIECE])
    }

    /// An element to be changed; `None` beyond the end.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        if at >= self.len {
            return None;
        }
        let (piece, inside) = (at as usize / PIECE, at as usize % PIECE);
        if piece >= self.pieces.len() {
            self.pieces.resize(piece + 1, None);
        }
        let piece = self.pieces[piece].get_or_insert_with(|| vec![T::default(); PIECE].into());
        Some(&mut piece[inside])
    }

    /// What was ever put, and what is beside it, from `from` on, with its place.
    pub fn used(&self, from: u32) -> impl Iterator<Item = (u32, &T)> {
        let (first, len) = (from as usize / PIECE, self.len as usize);
        let pieces = self.pieces.iter().enumerate().skip(first);
        let all = pieces.filter_map(|(at, piece)| Some((at * PIECE, piece.as_deref()?)));
        let each = all.flat_map(|(start, piece)| (start..).zip(piece));
        each.skip_while(move |(at, _)| *at < from as usize)
            .take_while(move |(at, _)| *at < len)
            .map(|(at, element)| (at as u32, element))
    }

    /// The same to be changed, from the first on.
    pub fn used_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.pieces.iter_mut().flatten().flat_map(|piece| piece.iter_mut())
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        let pieces = self.pieces.iter().flatten().count();
        self.pieces.capacity() * size_of::<Option<Box<[T]>>>() + pieces * PIECE * size_of::<T>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_memory_where_it_is_used() {
        let mut all: Sparse<u32> = Sparse::default();
        all.resize(u32::MAX);
        assert_eq!((all.get(7), all.memory_bytes()), (None, 0));
        for at in [3, 511, 512, 100_000_000] {
            *all.get_mut(at).unwrap() = at;
        }
        assert!(all.memory_bytes() < 4 << 20, "{}", all.memory_bytes());
        let there = |from| all.used(from).filter(|(_, put)| **put > 0).map(|(at, _)| at).collect::<Vec<_>>();
        assert_eq!(there(0), [3, 511, 512, 100_000_000]);
        assert_eq!(there(512), [512, 100_000_000]);
        assert_eq!(there(513), [100_000_000]);
        assert_eq!(all.get(4), Some(&0));
    }

    #[test]
    fn what_is_cut_off_is_gone() {
        let mut all: Sparse<u8> = Sparse::default();
        all.resize(2000);
        for at in 0..2000 {
            *all.get_mut(at).unwrap() = 1;
        }
        assert!(all.get_mut(2000).is_none() && all.get(2000).is_none());
        all.resize(700);
        assert!(all.get(700).is_none() && all.get_mut(700).is_none());
        assert_eq!(all.used(0).count(), 700);
        all.resize(2000);
        assert_eq!(all.used(0).map(|(_, put)| u32::from(*put)).sum::<u32>(), 700);
    }
}
