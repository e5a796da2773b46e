//! A file or block device as a [`Block`].

use crate::errno::{error, io_error};
use crate::ring::Ring;
use crate::runtime::this_ring;
use kura_block::{Block, BufMut, Bufs, Error, Geometry, Local, Result};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How to open a [`Disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// False refuses every write with `ReadOnly`.
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

/// A file or block device, used by one thread through that thread's ring. Any number may be open on one device.
pub struct Disk {
    ring: Rc<Ring>,
    file: Rc<File>,
    path: PathBuf,
    geometry: Geometry,
    writable: bool,
}

impl Disk {
    /// Opens `path` on the thread of the [`crate::run`] around this call.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref();
        let ring = this_ring()?;
        let file = open_file(path, options)?;
        let size_bytes = file.metadata().map_err(|e| io_error(path.display(), "cannot open", &e))?.len();
        let geometry =
            Geometry { size_bytes, align_bytes: 512, optimal_bytes: 4096, rotational: false, discards: true };
        Ok(Self { ring, file: Rc::new(file), path: path.to_owned(), geometry, writable: options.writable })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, what: &str, offset: u64, len: usize, errno: Errno) -> Error {
        error(self.path.display(), format_args!("{what} of {len} bytes at {offset}"), errno)
    }

    fn check_writable(&self) -> Result<()> {
        if self.writable {
            return Ok(());
        }
        Err(Error::read_only(format!("{}: opened for reading only", self.path.display())))
    }

    async fn read_all(&self, offset: u64, len: usize) -> Result<Bufs> {
        self.geometry.check(offset, len as u64)?;
        let mut memory = BufMut::room(len);
        let mut done = 0;
        while done < len {
            let result;
            (result, memory) = self.ring.read(&self.file, offset + done as u64, memory, done).await;
            match result {
                Ok(0) => return Err(self.failed("read", offset, len, Errno::NODATA)),
                Ok(count) => done = self.whole(done + count, len),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(self.failed("read", offset, len, errno)),
            }
        }
        Ok(memory.freeze().into())
    }

    async fn write_all(&self, offset: u64, data: Bufs, dsync: bool) -> Result<()> {
        self.check_writable()?;
        let len = data.len();
        self.geometry.check(offset, len as u64)?;
        let mut done = 0;
        while done < len {
            let rest = if done == 0 { data.clone() } else { data.slice(done..len) };
            match self.ring.write(&self.file, offset + done as u64, rest, dsync).await {
                Ok(0) => return Err(self.failed("write", offset, len, Errno::IO)),
                Ok(count) => done = self.whole(done + count, len),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(self.failed("write", offset, len, errno)),
            }
        }
        Ok(())
    }

    /// Where to go on after `done` of `len` bytes: a short transfer that ends within a sector repeats that sector.
    fn whole(&self, done: usize, len: usize) -> usize {
        if done == len { len } else { done - done % self.geometry.align_bytes as usize }
    }
}

impl Block for Disk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        Box::pin(self.read_all(offset, len))
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        Box::pin(self.write_all(offset, data, fua))
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        Box::pin(async {
            match self.ring.sync_data(&self.file).await {
                Ok(_) => Ok(()),
                Err(errno) => Err(error(self.path.display(), "flush", errno)),
            }
        })
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.check_writable()?;
            self.geometry.check(offset, len)?;
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match self.ring.fallocate(&self.file, mode.bits().cast_signed(), offset, len).await {
                Ok(_) => Ok(()),
                Err(errno) => Err(self.failed("discard", offset, len as usize, errno)),
            }
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, _keep: bool) -> Local<'_, Result<()>> {
        Box::pin(self.write_all(offset, Bufs::zeroes(len as usize), false))
    }
}

fn open_file(path: &Path, options: Options) -> Result<File> {
    let failed = |errno| error(path.display(), "cannot open", errno);
    let mut flags = OFlags::CLOEXEC | if options.writable { OFlags::RDWR } else { OFlags::RDONLY };
    if let Some(size_bytes) = options.create_bytes.filter(|_| !path.exists()) {
        let file = rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::from(0o600)).map_err(failed)?;
        rustix::fs::ftruncate(&file, size_bytes).map_err(failed)?;
    }
    if options.direct {
        match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(file) => return Ok(file.into()),
            Err(Errno::INVAL) => {
                tracing::warn!(path = %path.display(), "no direct I/O here: going through the page cache");
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    flags.remove(OFlags::DIRECT);
    Ok(rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?.into())
}
