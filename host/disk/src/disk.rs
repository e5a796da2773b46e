//! A file or block device as a [`Block`].

use crate::errno::{error, io_error};
use crate::file::{self, ZEROES_BYTES, create_sparse, discard_device};
use crate::linger::Wait;
use crate::meters::Meters;
use crate::probe::{Probe, ProbeKind, probe, probe_file};
use crate::ring::{Asked, Ring};
use crate::runtime::this_ring;
use kura_block::{Block, BufMut, Bufs, Error, Geometry, Local, PAGE_BYTES, Result};
use rustix::fs::{AtFlags, FallocateFlags, StatxFlags};
use rustix::io::Errno;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How to open a [`Disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// False refuses every change with `ReadOnly`.
    pub writable: bool,
    /// True passes the page cache by (`O_DIRECT`); where the file system cannot, a warning is logged.
    pub direct: bool,
    /// Makes a sparse file of this many bytes where the path names nothing.
    pub create_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { writable: true, direct: true, create_bytes: None }
    }
}

/// What became of a write and of the flush behind it.
#[derive(Debug, PartialEq, Eq)]
enum Durable {
    Done,
    NotWritten(Errno),
    /// It is not tried again: the kernel may have forgotten what it could not write.
    NotFlushed(Errno),
    /// The write fell short, or one of them was interrupted: once more, step by step.
    Again,
}

impl Durable {
    /// Of `len` bytes. A flush that did not come to be is `CANCELED`.
    fn of(written: rustix::io::Result<usize>, synced: rustix::io::Result<usize>, len: usize) -> Self {
        match (written, synced) {
            (_, Err(errno)) if errno != Errno::CANCELED && errno != Errno::INTR => Self::NotFlushed(errno),
            (Ok(count), Ok(_)) if count == len => Self::Done,
            (Err(errno), _) if errno != Errno::INTR => Self::NotWritten(errno),
            _ => Self::Again,
        }
    }
}

/// A file or block device, used by one thread through that thread's ring. Any number may be open on one device.
///
/// - Offsets and lengths are multiples of the device's logical sector.
/// - A write ends in the device; with `fua`, or after a flush, on its medium. A device that is a file checks then that
///   the file is still there, since what is written to a deleted file is lost.
/// - `write_zeroes` with `keep` leaves space that the file system must mark as written at the next write there, as
///   [`crate::preallocate`] explains.
pub struct Disk {
    ring: Rc<Ring>,
    file: Rc<Asked>,
    path: PathBuf,
    geometry: Geometry,
    probe: Probe,
    writable: bool,
    meters: Meters,
}

impl Disk {
    /// Opens `path` on the thread of the [`crate::run`] around this call. It takes no lock: see [`crate::Lock`].
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref();
        let ring = this_ring()?;
        if let Some(size_bytes) = options.create_bytes.filter(|_| !path.exists()) {
            create_sparse(path, size_bytes)?;
        }
        // Waits for nobody, as opening a pipe would.
        probe(path)?;
        let file = file::open(path, options)?;
        let probe = probe_file(path, &file)?;
        let geometry = Geometry {
            size_bytes: probe.size_bytes,
            align_bytes: probe.logical_block_bytes,
            optimal_bytes: probe.logical_block_bytes.max(PAGE_BYTES as u32),
            rotational: probe.rotational,
            discards: probe.discards,
        };
        let (file, writable) = (Rc::new(Asked::from(file)), options.writable);
        Ok(Self { ring, file, path: path.to_owned(), geometry, probe, writable, meters: Meters::of(path) })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn read_all(&self, offset: u64, len: usize) -> Result<Bufs> {
        let mut memory = BufMut::room(len);
        let mut done = 0;
        let wait = if self.probe.is_read_on_a_core { Wait::Sleep } else { Wait::Look };
        while done < len {
            let result;
            (result, memory) = self.ring.read(&self.file, offset + done as u64, memory, done, wait).await;
            match result {
                Ok(count) => match self.go_on(done + count, len) {
                    // It ends here, perhaps within a sector.
                    next if next == done => return Err(self.shrunk(offset + (done + count) as u64)),
                    next => done = next,
                },
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("read", offset, len as u64, errno)),
            }
        }
        Ok(memory.freeze().into())
    }

    async fn write_all(&self, offset: u64, data: Bufs, durable: bool) -> Result<()> {
        if durable && !self.probe.forces_unit_access {
            return self.write_and_sync(offset, data).await;
        }
        self.write_some(offset, data, durable).await
    }

    /// A durable write on a device that only knows flushes. `RWF_DSYNC` would end in the same flush, but on a kernel
    /// thread that waits its turn behind all others: on a busy machine a tenth as fast.
    async fn write_and_sync(&self, offset: u64, data: Bufs) -> Result<()> {
        let data = self.aligned(data);
        let (written, synced) = self.ring.write_and_sync(&self.file, offset, data.clone()).await;
        match Durable::of(written, synced, data.len()) {
            Durable::Done => self.still_there(),
            Durable::NotWritten(errno) => Err(self.failed("write", offset, data.len() as u64, errno)),
            Durable::NotFlushed(errno) => Err(self.not_flushed(errno)),
            Durable::Again => {
                self.write_some(offset, data, false).await?;
                self.sync().await
            }
        }
    }

    async fn write_some(&self, offset: u64, data: Bufs, durable: bool) -> Result<()> {
        let len = data.len();
        let data = self.aligned(data);
        let mut done = 0;
        while done < len {
            let rest = if done == 0 { data.clone() } else { data.slice(done..len) };
            match self.ring.write(&self.file, offset + done as u64, rest, durable).await {
                Ok(count) => match self.go_on(done + count, len) {
                    next if next == done => return Err(self.failed("write", offset, len as u64, Errno::IO)),
                    next => done = next,
                },
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("write", offset, len as u64, errno)),
            }
        }
        if durable { self.still_there() } else { Ok(()) }
    }

    async fn sync(&self) -> Result<()> {
        self.ring.sync_data(&self.file).await.map_err(|errno| self.not_flushed(errno))?;
        self.still_there()
    }

    /// Whatever the number, what a flush could not write may be lost: there is no asking again.
    fn not_flushed(&self, errno: Errno) -> Error {
        Error::device(error(self.path.display(), "flush", errno).to_string())
    }

    async fn discard_all(&self, offset: u64, len: u64) -> Result<()> {
        let mut result = self.fallocate(FallocateFlags::PUNCH_HOLE, offset, len).await;
        if result == Err(Errno::OPNOTSUPP) && self.probe.kind == ProbeKind::BlockDevice {
            // A device that cannot discard *and* promise zeroes may still discard. Only a blocking call asks for that.
            let file = self.file.try_clone().map_err(|e| io_error(self.path.display(), "discard", &e))?;
            let discard = tokio::task::spawn_blocking(move || discard_device(&file, offset, len));
            result = discard.await.unwrap_or(Err(Errno::CANCELED));
        }
        match result {
            // What cannot be given back stays: that is all a discard asks for.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(self.failed("discard", offset, len, errno)),
        }
    }

    async fn zero_all(&self, offset: u64, len: u64, keep: bool) -> Result<()> {
        let how = if keep { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
        match self.fallocate(how, offset, len).await {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP) => {
                let mut at = offset;
                while at < offset + len {
                    let count = (offset + len - at).min(ZEROES_BYTES as u64);
                    self.write_all(at, Bufs::zeroes(count as usize), false).await?;
                    at += count;
                }
                Ok(())
            }
            Err(errno) => Err(self.failed("write of zeroes", offset, len, errno)),
        }
    }

    async fn fallocate(&self, how: FallocateFlags, offset: u64, len: u64) -> rustix::io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let mode = (how | FallocateFlags::KEEP_SIZE).bits().cast_signed();
        loop {
            match self.ring.fallocate(&self.file, mode, offset, len).await {
                Err(Errno::INTR) => {}
                result => return result.map(|_| ()),
            }
        }
    }

    /// Where to go on when `done` of `len` bytes are transferred: a transfer that ended within a sector repeats it.
    fn go_on(&self, done: usize, len: usize) -> usize {
        if done == len { len } else { done - done % self.geometry.align_bytes as usize }
    }

    /// `data` as the device can take it: a copy, where a part's place or length in memory would not do.
    fn aligned(&self, data: Bufs) -> Bufs {
        let (place, length) = (self.probe.memory_align_bytes as usize, self.probe.logical_block_bytes as usize);
        let fits =
            |part: &kura_block::Buf| part.as_ptr().addr().is_multiple_of(place) && part.len().is_multiple_of(length);
        if data.parts().iter().all(fits) {
            return data;
        }
        let mut copy = BufMut::room(data.len());
        data.copy_to(&mut copy);
        copy.freeze().into()
    }

    /// Refuses to call something durable in a file that is gone.
    fn still_there(&self) -> Result<()> {
        if self.probe.kind == ProbeKind::BlockDevice {
            return Ok(());
        }
        // Not `fstat`: a file whose times were asked for gets new ones with its next write, which the next flush would
        // have to make durable. Nor is whoever has a file system elsewhere asked, on whom this thread would wait.
        let wanted = StatxFlags::NLINK | StatxFlags::SIZE;
        let stat = rustix::fs::statx(&**self.file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, wanted);
        let stat = stat.map_err(|errno| error(self.path.display(), "cannot look at it", errno))?;
        if stat.stx_nlink == 0 {
            let what = "the file was deleted while in use: what was written is lost, replace the device";
            return Err(Error::device(format!("{}: {what}", self.path.display())));
        }
        if stat.stx_size < self.geometry.size_bytes { Err(self.shrunk(stat.stx_size)) } else { Ok(()) }
    }

    fn shrunk(&self, end: u64) -> Error {
        let (path, size_bytes) = (self.path.display(), self.geometry.size_bytes);
        Error::device(format!("{path}: ends at {end} but had {size_bytes} bytes when opened: replace the device"))
    }

    fn failed(&self, what: &str, offset: u64, len: u64, errno: Errno) -> Error {
        // Beyond a device's end there is no space, or no sense, says the kernel; one that was pulled out ends at 0.
        if matches!(errno, Errno::NOSPC | Errno::INVAL)
            && let Ok(end) = (&**self.file).seek(SeekFrom::End(0))
            && end < self.geometry.size_bytes
        {
            return self.shrunk(end);
        }
        error(self.path.display(), format_args!("{what} of {len} bytes at {offset}"), errno)
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry.check(offset, len).map_err(|error| error.at(self.path.display()))
    }

    fn check_change(&self, offset: u64, len: u64) -> Result<()> {
        if !self.writable {
            return Err(Error::read_only(format!("{}: opened for reading only", self.path.display())));
        }
        self.check(offset, len)
    }
}

impl Block for Disk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        Box::pin(async move {
            self.check(offset, len as u64)?;
            self.meters.read.count(len as u64, self.read_all(offset, len)).await
        })
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        Box::pin(async move {
            let len = data.len() as u64;
            self.check_change(offset, len)?;
            self.meters.write.count(len, self.write_all(offset, data, fua)).await
        })
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        Box::pin(self.meters.flush.count(0, self.sync()))
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.check_change(offset, len)?;
            self.meters.discard.count(len, self.discard_all(offset, len)).await
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.check_change(offset, len)?;
            self.meters.write.count(len, self.zero_all(offset, len, keep)).await
        })
    }
}

#[cfg(test)]
mod tests;
