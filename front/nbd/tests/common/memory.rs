//! A volume in memory, for tests and for measuring.

use kura_block::{Block, Buf, BufMut, Bufs, Error, Geometry, Kind, Local, Result, Run, RunKind};
use std::cell::{Cell, RefCell};
use std::time::Duration;

const PAGE: u64 = 4096;

/// A sparse volume in memory. Whole pages are kept as they were written, without a copy.
pub struct Memory {
    /// Its size: may change while it is served.
    pub size_bytes: Cell<u64>,
    pages: RefCell<Vec<Option<Buf>>>,
    /// Every call takes so long.
    pub delay: Cell<Duration>,
    /// Every call fails so.
    pub failure: Cell<Option<Kind>>,
    /// Flushes, and writes with FUA.
    pub synced: Cell<u64>,
    /// Calls that were begun and neither ended nor were dropped.
    pub in_flight: Cell<u64>,
}

struct InFlight<'a>(&'a Cell<u64>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Memory {
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes: Cell::new(size_bytes),
            pages: RefCell::new(vec![None; size_bytes.div_ceil(PAGE) as usize]),
            delay: Cell::default(),
            failure: Cell::default(),
            synced: Cell::default(),
            in_flight: Cell::default(),
        }
    }

    async fn enter(&self, offset: u64, len: u64) -> Result<InFlight<'_>> {
        self.in_flight.set(self.in_flight.get() + 1);
        let entered = InFlight(&self.in_flight);
        if !self.delay.get().is_zero() {
            tokio::time::sleep(self.delay.get()).await;
        }
        if let Some(kind) = self.failure.get() {
            return Err(Error::new(kind, format!("memory volume, {offset}+{len}: made to fail")));
        }
        self.geometry().check(offset, len)?;
        Ok(entered)
    }

    /// The parts of a range: the page, and the range within it.
    fn split(offset: u64, len: u64) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
        let end = offset + len;
        (offset / PAGE..end.div_ceil(PAGE)).map(move |page| {
            let (from, to) = (offset.max(page * PAGE), end.min((page + 1) * PAGE));
            (page as usize, (from - page * PAGE) as usize..(to - page * PAGE) as usize)
        })
    }

    fn erase(&self, offset: u64, len: u64) {
        let mut pages = self.pages.borrow_mut();
        for (page, range) in Self::split(offset, len) {
            if range.len() as u64 == PAGE {
                pages[page] = None;
            } else if let Some(old) = &pages[page] {
                let mut new = BufMut::copy_of(old);
                new[range].fill(0);
                pages[page] = Some(new.freeze());
            }
        }
    }
}

impl Block for Memory {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes.get(),
            align_bytes: 1,
            optimal_bytes: PAGE as u32,
            rotational: false,
            discards: true,
        }
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        Box::pin(async move {
            let _entered = self.enter(offset, len as u64).await?;
            let pages = self.pages.borrow();
            let mut out = Bufs::new();
            let mut hole = 0;
            for (page, range) in Self::split(offset, len as u64) {
                match &pages[page] {
                    None => hole += range.len(),
                    Some(data) => {
                        out.append(Bufs::zeroes(std::mem::take(&mut hole)));
                        out.push(data.slice(range));
                    }
                }
            }
            out.append(Bufs::zeroes(hole));
            Ok(out)
        })
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        Box::pin(async move {
            let _entered = self.enter(offset, data.len() as u64).await?;
            let mut pages = self.pages.borrow_mut();
            let mut at = 0;
            for (page, range) in Self::split(offset, data.len() as u64) {
                let piece = data.slice(at..at + range.len());
                at += range.len();
                pages[page] = Some(if piece.len() as u64 == PAGE {
                    piece.contiguous()
                } else {
                    let mut new = match &pages[page] {
                        Some(old) => BufMut::copy_of(old),
                        None => BufMut::zeroed(PAGE as usize),
                    };
                    piece.copy_to(&mut new[range]);
                    new.freeze()
                });
            }
            self.synced.set(self.synced.get() + u64::from(fua));
            Ok(())
        })
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        Box::pin(async move {
            let _entered = self.enter(0, 0).await?;
            self.synced.set(self.synced.get() + 1);
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        self.write_zeroes(offset, len, false)
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Local<'_, Result<()>> {
        Box::pin(async move {
            let _entered = self.enter(offset, len).await?;
            self.erase(offset, len);
            if keep {
                let mut pages = self.pages.borrow_mut();
                for (page, _) in Self::split(offset, len) {
                    pages[page].get_or_insert_with(|| BufMut::zeroed(PAGE as usize).freeze());
                }
            }
            Ok(())
        })
    }

    fn runs(&self, offset: u64, len: u64) -> Local<'_, Result<Vec<Run>>> {
        Box::pin(async move {
            let _entered = self.enter(offset, len).await?;
            let pages = self.pages.borrow();
            let run = |(page, range): (usize, std::ops::Range<usize>)| Run {
                len_bytes: range.len() as u64,
                kind: if pages[page].is_some() { RunKind::Data } else { RunKind::Hole },
            };
            Ok(Self::split(offset, len).map(run).collect())
        })
    }
}
