//! A volume in memory, for tests and for measuring.

use kura_block::{Block, Buf, Bufs, Error, Geometry, Kind, Local, Result, Run, RunKind};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

const PAGE: u64 = 4096;

/// A sparse volume in memory, one page the unit of holes.
pub struct Memory {
    /// Its size: may change while it is served.
    pub size_bytes: Cell<u64>,
    bytes: RefCell<Vec<u8>>,
    /// Which pages were written.
    written: RefCell<Vec<bool>>,
    /// Every call takes so long.
    pub delay: Cell<Duration>,
    /// Every call fails so.
    pub failure: Cell<Option<Kind>>,
    /// Flushes, and writes with FUA.
    pub synced: Cell<u64>,
    /// Bytes of ranges whose runs were asked for.
    pub asked_bytes: Cell<u64>,
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
            bytes: RefCell::new(vec![0; size_bytes as usize]),
            written: RefCell::new(vec![false; size_bytes.div_ceil(PAGE) as usize]),
            delay: Cell::default(),
            failure: Cell::default(),
            synced: Cell::default(),
            asked_bytes: Cell::default(),
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

    /// The runs of pages at a range that are written, or not.
    fn split(&self, offset: u64, len: u64) -> Vec<(bool, Range<usize>)> {
        let written = self.written.borrow();
        let mut runs: Vec<(bool, Range<usize>)> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let next = end.min((at / PAGE + 1) * PAGE);
            let kind = written[(at / PAGE) as usize];
            match runs.last_mut() {
                Some((last, range)) if *last == kind => range.end = next as usize,
                _ => runs.push((kind, at as usize..next as usize)),
            }
            at = next;
        }
        runs
    }

    fn mark(&self, pages: Range<u64>, written: bool) {
        if !pages.is_empty() {
            self.written.borrow_mut()[pages.start as usize..pages.end as usize].fill(written);
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
            let bytes = self.bytes.borrow();
            let mut out = Bufs::new();
            for (written, range) in self.split(offset, len as u64) {
                out.append(if written { Buf::copy_of(&bytes[range]).into() } else { Bufs::zeroes(range.len()) });
            }
            Ok(out)
        })
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        Box::pin(async move {
            let _entered = self.enter(offset, data.len() as u64).await?;
            let end = offset + data.len() as u64;
            data.copy_to(&mut self.bytes.borrow_mut()[offset as usize..end as usize]);
            self.mark(offset / PAGE..end.div_ceil(PAGE), true);
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
            let end = offset + len;
            self.bytes.borrow_mut()[offset as usize..end as usize].fill(0);
            if keep {
                self.mark(offset / PAGE..end.div_ceil(PAGE), true);
            } else {
                self.mark(offset.div_ceil(PAGE)..end / PAGE, false);
            }
            Ok(())
        })
    }

    fn runs(&self, offset: u64, len: u64) -> Local<'_, Result<Vec<Run>>> {
        Box::pin(async move {
            let _entered = self.enter(offset, len).await?;
            self.asked_bytes.set(self.asked_bytes.get() + len);
            let run = |(written, range): (bool, Range<usize>)| Run {
                len_bytes: range.len() as u64,
                kind: if written { RunKind::Data } else { RunKind::Hole },
            };
            Ok(self.split(offset, len).into_iter().map(run).collect())
        })
    }
}
