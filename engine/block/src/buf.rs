//! Aligned buffers: written once, then shared without copies.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes in a page: every buffer begins at a multiple of it in memory, as direct I/O wants.
pub const PAGE_BYTES: usize = 4096;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Page memory that goes back to this thread's free list when dropped, so that a served request costs no `mmap`.
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
        if memory.len().is_power_of_two()
            && self.bytes + bytes <= KEEP_BYTES
            && let Some(list) = self.lists.get_mut(memory.len().trailing_zeros() as usize)
        {
            self.bytes += bytes;
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
        let kept = FREE.with_borrow_mut(|free| free.take(class));
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

    /// The bytes, from now on shared and unchanging.
    pub fn freeze(self) -> Buf {
        let len = self.len;
        Buf { pages: Arc::new(self.pages), start: 0, len }
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
    pages: Arc<Pages>,
    start: usize,
    len: usize,
}

/// Bytes in the buffer that [`Buf::zeroes`] lends.
const ZEROES_BYTES: usize = 64 * 1024;

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
        ZEROES.with(|zeroes| Arc::ptr_eq(&zeroes.pages, &self.pages))
    }

    /// A buffer holding a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        BufMut::copy_of(bytes).freeze()
    }

    /// The part of this buffer at `range`, sharing its memory.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "slice {range:?} of a buffer of {} bytes", self.len);
        Self { pages: Arc::clone(&self.pages), start: self.start + range.start, len: range.end - range.start }
    }

    /// True when `next` continues this buffer in memory, so that both can be one piece of I/O.
    pub(crate) fn continues_into(&self, next: &Self) -> bool {
        Arc::ptr_eq(&self.pages, &next.pages) && self.start + self.len == next.start
    }

    /// This buffer grown over `next`, which must continue it.
    pub(crate) fn joined(&self, next: &Self) -> Self {
        assert!(self.continues_into(next), "only neighbours in one buffer can be joined");
        Self { pages: Arc::clone(&self.pages), start: self.start, len: self.len + next.len }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.pages.bytes()[self.start..self.start + self.len]
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
