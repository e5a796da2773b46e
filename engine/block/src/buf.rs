//! Aligned buffers: written once, then shared without copies.

use crossbeam_queue::SegQueue;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes in a page: every buffer begins at a multiple of it in memory, as direct I/O wants.
pub const PAGE_BYTES: usize = 4096;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Page memory that goes back to this thread's free list when dropped, so that a served request costs no `mmap` and no
/// clearing.
struct Pages(Box<[Page]>);

/// Classes are powers of two of pages: 4 KiB ... 1 MiB. Larger memory goes straight back to the allocator.
const CLASSES: usize = 9;
/// What one thread's free list may keep, in bytes.
const KEEP_BYTES: usize = 4 << 20;

/// A thread's free list, by class.
struct Free {
    lists: [Vec<Box<[Page]>>; CLASSES],
    bytes: usize,
}

impl Free {
    fn take(&mut self, class: usize) -> Option<Box<[Page]>> {
        let memory = self.lists.get_mut(class)?.pop()?;
        self.bytes -= memory.len() * PAGE_BYTES;
        Some(memory)
    }

    fn put(&mut self, memory: Box<[Page]>) {
        let bytes = memory.len() * PAGE_BYTES;
        let class = memory.len().trailing_zeros() as usize;
        if !memory.len().is_power_of_two() || class >= CLASSES {
            return;
        }
        if self.bytes + bytes > KEEP_BYTES {
            SPARE.put(class, memory);
        } else if let Some(list) = self.lists.get_mut(class) {
            self.bytes += bytes;
            list.push(memory);
        }
    }
}

/// What threads have freed beyond that, by class: a controller reads into memory that a door's thread frees when it is
/// sent.
struct Spare {
    lists: [SegQueue<Box<[Page]>>; CLASSES],
    bytes: AtomicUsize,
}

/// What may lie there, in bytes.
const SPARE_BYTES: usize = 16 << 20;

static SPARE: Spare = Spare { lists: [const { SegQueue::new() }; CLASSES], bytes: AtomicUsize::new(0) };

impl Spare {
    fn take(&self, class: usize) -> Option<Box<[Page]>> {
        let memory = self.lists.get(class)?.pop()?;
        self.bytes.fetch_sub(memory.len() * PAGE_BYTES, Ordering::Relaxed);
        Some(memory)
    }

    fn put(&self, class: usize, memory: Box<[Page]>) {
        let bytes = memory.len() * PAGE_BYTES;
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > SPARE_BYTES {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        } else if let Some(list) = self.lists.get(class) {
            list.push(memory);
        }
    }
}

thread_local! {
    static FREE: RefCell<Free> = const { RefCell::new(Free { lists: [const { Vec::new() }; CLASSES], bytes: 0 }) };
}

impl Pages {
    /// Room for `bytes`, its content unspecified (zeroes or an earlier buffer's bytes).
    fn room(bytes: usize) -> Self {
        let pages = bytes.div_ceil(PAGE_BYTES).max(1).next_power_of_two();
        let class = pages.trailing_zeros() as usize;
        let kept = FREE.with_borrow_mut(|free| free.take(class)).or_else(|| SPARE.take(class));
        Self(kept.unwrap_or_else(|| Self::fresh(pages)))
    }

    fn zeroed(bytes: usize) -> Self {
        Self(Self::fresh(bytes.div_ceil(PAGE_BYTES).max(1)))
    }

    fn fresh(pages: usize) -> Box<[Page]> {
        match <[Page]>::new_box_zeroed_with_elems(pages) {
            Ok(memory) => memory,
            Err(zerocopy::AllocError) => std::alloc::handle_alloc_error(std::alloc::Layout::new::<Page>()),
        }
    }

    fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.0);
        // At thread exit the list may be gone already: then the memory just goes back to the allocator.
        let _ = FREE.try_with(|free| free.borrow_mut().put(memory));
    }
}

/// An aligned buffer being filled; [`BufMut::freeze`] makes it shareable.
pub struct BufMut {
    pages: Pages,
    len: usize,
}

impl BufMut {
    /// A buffer of `len` bytes whose content is unspecified: fill all of it before you freeze it.
    pub fn room(len: usize) -> Self {
        Self { pages: Pages::room(len), len }
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self { pages: Pages::zeroed(len), len }
    }

    /// A buffer holding a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::room(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// A buffer holding `parts` one after the other, and zeroes up to the next multiple of `align`.
    pub fn padded(parts: &[&[u8]], align: usize) -> Self {
        let mut buf = Self::room(parts.iter().map(|part| part.len()).sum::<usize>().next_multiple_of(align));
        let mut rest = &mut *buf;
        for part in parts {
            let (here, after) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = after;
        }
        rest.fill(0);
        buf
    }

    /// The bytes, from now on shared and unchanging.
    pub fn freeze(self) -> Buf {
        let len = self.len;
        Buf { memory: Arc::new(Frozen { pages: self.pages, sums: OnceLock::new() }), start: 0, len }
    }

    /// Shortens the buffer to `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.pages.bytes()[..self.len]
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.pages.bytes_mut()[..len]
    }
}

/// Shared, unchanging bytes in aligned memory; a clone or a slice is a reference count.
#[derive(Clone)]
pub struct Buf {
    memory: Arc<Frozen>,
    start: usize,
    len: usize,
}

/// Memory that changes no more, and what was found of it.
struct Frozen {
    pages: Pages,
    /// The stored form of each page's checksum, zero where nobody asked for it yet. Layers above each other hold the same
    /// bytes against checksums of their own.
    sums: OnceLock<Box<[AtomicU32]>>,
}

/// Buffers of fewer pages are summed again: they would gain less than their list of sums costs.
const SUMMED_PAGES: usize = 8;

/// Bytes in the buffer that [`Buf::zeroes`] lends.
const ZEROES_BYTES: usize = 1 << 20;

thread_local! {
    static ZEROES: Buf = BufMut::zeroed(ZEROES_BYTES).freeze();
}

impl Buf {
    /// Up to `len` zero bytes without memory of their own (one shared buffer a thread); may be shorter than asked.
    pub(crate) fn zeroes(len: usize) -> Self {
        ZEROES.with(|zeroes| zeroes.slice(0..len.min(ZEROES_BYTES)))
    }

    /// True for bytes of the buffer that [`crate::Bufs::zeroes`] lends, which are zeroes without a look.
    pub fn is_lent_zeroes(&self) -> bool {
        ZEROES.with(|zeroes| Arc::ptr_eq(&zeroes.memory, &self.memory))
    }

    /// What is kept for as long as this buffer is, in bytes: all that it is a part of.
    pub fn memory_bytes(&self) -> usize {
        self.memory.pages.bytes().len()
    }

    /// A buffer holding a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        BufMut::copy_of(bytes).freeze()
    }

    /// Where the checksums of this buffer's pages are kept, one a whole page; none where it does not begin at a page of
    /// its memory, or is small.
    pub(crate) fn sums(&self) -> Option<&[AtomicU32]> {
        let pages = self.memory.pages.0.len();
        if pages < SUMMED_PAGES || !self.start.is_multiple_of(PAGE_BYTES) {
            return None;
        }
        let sums = self.memory.sums.get_or_init(|| (0..pages).map(|_| AtomicU32::new(0)).collect());
        let first = self.start / PAGE_BYTES;
        sums.get(first..first + self.len / PAGE_BYTES)
    }

    /// The part of this buffer at `range`, sharing its memory.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "slice {range:?} of a buffer of {} bytes", self.len);
        Self { memory: Arc::clone(&self.memory), start: self.start + range.start, len: range.end - range.start }
    }

    /// True when `next` continues this buffer in memory, so that both can be one piece of I/O.
    pub(crate) fn continues_into(&self, next: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &next.memory) && self.start + self.len == next.start
    }

    /// True when this and `next` are zeroes that were lent, and so many are there to lend at once.
    pub(crate) fn lends_with(&self, next: &Self) -> bool {
        self.len + next.len <= ZEROES_BYTES && Arc::ptr_eq(&self.memory, &next.memory) && self.is_lent_zeroes()
    }

    /// Takes in `len` zeroes more, which the caller has seen to be lent with these.
    pub(crate) fn lend_more(&mut self, len: usize) {
        (self.start, self.len) = (0, self.len + len);
    }

    /// Takes in the `len` bytes that follow in its memory, which the caller has seen in a buffer that continues this one.
    pub(crate) fn grow(&mut self, len: usize) {
        self.len += len;
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory.pages.bytes()[self.start..self.start + self.len]
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

impl std::fmt::Debug for BufMut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufMut({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "what threads have in common is what is tested")]
    fn memory_that_another_thread_freed_is_used_again() {
        let fill = || {
            let more_than_it_keeps = (0..8).map(|_| {
                let mut memory = BufMut::room(1 << 20);
                memory[1 << 19] = 7;
                memory
            });
            drop(more_than_it_keeps.collect::<Vec<_>>());
        };
        // Other tests may take it first.
        let is_used_again = (0..100).any(|_| {
            std::thread::scope(|scope| scope.spawn(fill).join()).unwrap();
            BufMut::room(1 << 20)[1 << 19] == 7
        });
        assert!(is_used_again);
    }

    #[test]
    fn what_threads_have_freed_is_bounded() {
        let spare = Spare { lists: [const { SegQueue::new() }; CLASSES], bytes: AtomicUsize::new(0) };
        let class = CLASSES - 1;
        for _ in 0..(SPARE_BYTES >> 20) + 3 {
            spare.put(class, Pages::fresh(1 << class));
        }
        assert_eq!(spare.bytes.load(Ordering::Relaxed), SPARE_BYTES);
        assert!((0..SPARE_BYTES >> 20).all(|_| spare.take(class).is_some()));
        assert!(spare.take(class).is_none() && spare.take(CLASSES).is_none());
        assert_eq!(spare.bytes.load(Ordering::Relaxed), 0);
    }
}
