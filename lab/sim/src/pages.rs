//! Bytes of a medium, kept only where something was written.

use kura_block::{Buf, BufMut, Bufs, PAGE_BYTES};
use std::collections::BTreeMap;
use std::ops::Range;
use xxhash_rust::xxh3::Xxh3;

const PAGE: u64 = PAGE_BYTES as u64;

/// What an operation puts at a place.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// These bytes.
    Data(Bufs),
    /// So many zero bytes.
    Zeroes(u64),
}

impl Change {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Zeroes(len) => *len,
        }
    }

    /// True when a layer on top of another holds every page of it; of zeroes only those where something else was.
    pub(crate) fn shows(&self) -> bool {
        match self {
            Self::Data(data) => !data.parts().iter().any(Buf::is_lent_zeroes),
            Self::Zeroes(_) => false,
        }
    }

    /// The part at `range` of the change.
    pub(crate) fn slice(&self, range: Range<u64>) -> Self {
        match self {
            Self::Data(data) => Self::Data(data.slice(range.start as usize..range.end as usize)),
            Self::Zeroes(_) => Self::Zeroes(range.end - range.start),
        }
    }
}

/// 4 KiB pages by number; an absent page is zeroes. Whole pages share the memory they were written from, and zeroes,
/// however they were written, take none: what a long replay writes is zeroes.
#[derive(Default)]
pub(crate) struct Pages(BTreeMap<u64, Page>);

/// The bytes of a page.
pub(crate) enum Page {
    Whole(Buf),
    /// Its first bytes, no more than [`SHORT_BYTES`]; the rest is zeroes. A journal's entries are mostly such.
    Short(Box<[u8]>),
}

/// More of a page than this is shared, not copied.
const SHORT_BYTES: usize = PAGE_BYTES / 4;

impl Page {
    /// What a page's bytes take at rest; `None` for zeroes.
    fn at_rest(bytes: Buf) -> Option<Self> {
        match used_bytes(&bytes) {
            0 => None,
            used @ ..=SHORT_BYTES => Some(Self::Short(bytes[..used].into())),
            _ => Some(Self::Whole(bytes)),
        }
    }

    fn whole(&self) -> Buf {
        match self {
            Self::Whole(bytes) => bytes.clone(),
            Self::Short(_) => self.copy().freeze(),
        }
    }

    fn copy(&self) -> BufMut {
        match self {
            Self::Whole(bytes) => BufMut::copy_of(bytes),
            Self::Short(first) => BufMut::padded(&[first], PAGE_BYTES),
        }
    }
}

/// Bytes of a line: looked at at once.
const LINE_BYTES: usize = 256;
const ZEROES: [u8; LINE_BYTES] = [0; LINE_BYTES];

/// Bytes up to the last line with one that is not zero.
fn used_bytes(bytes: &[u8]) -> usize {
    let mut lines = bytes.chunks(LINE_BYTES);
    let last = lines.rposition(|line| *line != ZEROES[..line.len()]);
    last.map_or(0, |last| (last + 1) * LINE_BYTES)
}

/// The numbers of the pages that the byte range touches.
pub(crate) fn page_numbers(offset: u64, len: u64) -> Range<u64> {
    offset / PAGE..(offset + len).div_ceil(PAGE)
}

fn zero_page() -> Buf {
    Bufs::zeroes(PAGE_BYTES).contiguous()
}

impl Pages {
    fn get(&self, page: u64) -> Option<&Page> {
        self.0.get(&page)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Numbers of the pages present at `range`.
    pub(crate) fn present(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        self.0.range(range).map(|(page, _)| *page)
    }

    /// The number of the `nth` page present, from 0.
    pub(crate) fn nth(&self, nth: usize) -> Option<u64> {
        self.0.keys().nth(nth).copied()
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.0.retain(|page, _| keep(*page));
    }

    /// Puts `change` at `offset`. Pages are completed from `below` where this layer has none, so that a layer on top
    /// of another holds whole pages.
    pub(crate) fn put(&mut self, below: Option<&Pages>, offset: u64, change: &Change) {
        match change {
            Change::Data(data) => {
                let mut at = offset;
                for part in data.parts() {
                    self.put_bytes(below, at, part);
                    at += part.len() as u64;
                }
            }
            Change::Zeroes(len) => self.put_zeroes(below, offset, *len),
        }
    }

    fn put_bytes(&mut self, below: Option<&Pages>, offset: u64, bytes: &Buf) {
        if bytes.is_lent_zeroes() {
            return self.put_zeroes(below, offset, bytes.len() as u64);
        }
        for chunk in chunks(offset, bytes.len() as u64) {
            let piece = bytes.slice(chunk.from..chunk.from + chunk.len);
            if chunk.len < PAGE_BYTES {
                self.patch(below, chunk, &piece);
            } else if below.is_some() {
                // A layer on top of another shows every page written to it.
                self.0.insert(chunk.page, Page::Whole(piece));
            } else if let Some(page) = Page::at_rest(piece) {
                self.0.insert(chunk.page, page);
            } else {
                self.0.remove(&chunk.page);
            }
        }
    }

    fn put_zeroes(&mut self, below: Option<&Pages>, offset: u64, len: u64) {
        let end = offset + len;
        let whole = offset.div_ceil(PAGE)..end / PAGE;
        let touched = page_numbers(offset, len);
        for page in [touched.start, touched.end.saturating_sub(1)] {
            let (from, to) = (offset.max(page * PAGE), end.min((page + 1) * PAGE));
            let known = || self.get(page).is_some() || below.is_some_and(|below| below.get(page).is_some());
            if from < to && !whole.contains(&page) && known() {
                let chunk = Chunk { page, within: (from - page * PAGE) as usize, from: 0, len: (to - from) as usize };
                self.patch(below, chunk, &Bufs::zeroes(chunk.len).contiguous());
            }
        }
        if whole.is_empty() {
            return;
        }
        let mut present: Vec<u64> = self.present(whole.clone()).collect();
        match below {
            None => {
                for page in present {
                    self.0.remove(&page);
                }
            }
            Some(below) => {
                present.extend(below.present(whole));
                self.0.extend(present.into_iter().map(|page| (page, Page::Whole(zero_page()))));
            }
        }
    }

    fn patch(&mut self, below: Option<&Pages>, chunk: Chunk, bytes: &[u8]) {
        let old = self.get(chunk.page).or_else(|| below.and_then(|below| below.get(chunk.page)));
        let mut page = old.map_or_else(|| BufMut::zeroed(PAGE_BYTES), Page::copy);
        page[chunk.within..chunk.within + chunk.len].copy_from_slice(bytes);
        self.0.insert(chunk.page, Page::Whole(page.freeze()));
    }

    /// Inverts the bit `bit` of the byte at `offset`.
    pub(crate) fn flip(&mut self, offset: u64, bit: u32) {
        let (page, within) = (offset / PAGE, (offset % PAGE) as usize);
        let old = self.get(page).map_or(0, |old| old.whole()[within]);
        self.patch(None, Chunk { page, within, from: 0, len: 1 }, &[old ^ (1 << bit)]);
    }

    /// The bytes at the range, seen through `above` where it has the page.
    pub(crate) fn read(&self, above: &Pages, offset: u64, len: usize) -> Bufs {
        let mut bytes = Bufs::new();
        let pages = page_numbers(offset, len as u64);
        if self.present(pages.clone()).chain(above.present(pages)).next().is_none() {
            return Bufs::zeroes(len);
        }
        let mut zeroes = 0;
        for chunk in chunks(offset, len as u64) {
            let page = if above.is_empty() { None } else { above.get(chunk.page) };
            match page.or_else(|| self.get(chunk.page)) {
                Some(page) => {
                    bytes.append(Bufs::zeroes(std::mem::take(&mut zeroes)));
                    bytes.push(page.whole().slice(chunk.within..chunk.within + chunk.len));
                }
                None => zeroes += chunk.len,
            }
        }
        bytes.append(Bufs::zeroes(zeroes));
        bytes
    }

    /// A hash of the contents; a page of zeroes counts as absent.
    pub(crate) fn digest(&self) -> u64 {
        let mut hash = Xxh3::new();
        for (number, page) in &self.0 {
            let bytes = page.whole();
            if used_bytes(&bytes) > 0 {
                hash.update(&number.to_le_bytes());
                hash.update(&bytes);
            }
        }
        hash.digest()
    }
}

/// The part of a byte range in one page.
#[derive(Clone, Copy)]
struct Chunk {
    page: u64,
    /// Where it begins in the page.
    within: usize,
    /// Where it begins in the range.
    from: usize,
    len: usize,
}

fn chunks(offset: u64, len: u64) -> impl Iterator<Item = Chunk> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let page = at / PAGE;
        let to = end.min((page + 1) * PAGE);
        let chunk =
            Chunk { page, within: (at - page * PAGE) as usize, from: (at - offset) as usize, len: (to - at) as usize };
        at = to;
        Some(chunk)
    })
}
