//! What a path leads to.

use crate::errno::error;
use kura_block::{Error, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Whether storage is a file or a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// A regular file.
    File,
    /// A block device.
    BlockDevice,
}

/// What is known of a file or block device without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Size in bytes, a multiple of `logical_block_bytes` (what a file has beyond is left unused).
    pub size_bytes: u64,
    /// Offsets and lengths of requests are multiples of this.
    pub logical_block_bytes: u32,
    /// Memory of direct requests begins at multiples of this.
    pub memory_align_bytes: u32,
    /// True when seeks cost; for a file, of the device its file system lies on.
    pub rotational: bool,
    /// True when space can be given back.
    pub discards: bool,
    /// True when the device makes a single write durable without flushing all of its cache, or has no volatile cache.
    pub forces_unit_access: bool,
    /// True when its driver works on a core of this machine to read, as a loop device's does.
    pub is_read_on_a_core: bool,
    /// File or block device.
    pub kind: ProbeKind,
}

/// The smallest unit of requests, whatever the device says it could do.
const SECTOR_BYTES: u32 = 512;
/// `STATX_DIOALIGN` (Linux 6.1).
const DIO_ALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);

/// Finds out what `path` is. `Invalid` when it is neither a regular file nor a block device.
pub fn probe(path: impl AsRef<Path>) -> Result<Probe> {
    let path = path.as_ref();
    let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    let file = File::from(opened.map_err(|errno| error(path.display(), "cannot open", errno))?);
    probe_file(path, &file)
}

pub(crate) fn probe_file(path: &Path, file: &File) -> Result<Probe> {
    let failed = |errno| error(path.display(), "cannot probe", errno);
    let wanted = StatxFlags::BASIC_STATS | DIO_ALIGN;
    let stat = rustix::fs::statx(file.as_fd(), "", AtFlags::EMPTY_PATH, wanted).map_err(failed)?;
    let (kind, device, end) = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => (ProbeKind::File, (stat.stx_dev_major, stat.stx_dev_minor), stat.stx_size),
        FileType::BlockDevice => {
            let end = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(failed)?;
            (ProbeKind::BlockDevice, (stat.stx_rdev_major, stat.stx_rdev_minor), end)
        }
        _ => {
            let what = "neither a regular file nor a block device: check the path";
            return Err(Error::invalid(format!("{}: {what}", path.display())));
        }
    };
    let sector_bytes = match kind {
        ProbeKind::File => stat.stx_dio_offset_align,
        ProbeKind::BlockDevice => rustix::fs::ioctl_blksszget(file).map_err(failed)?,
    };
    let logical_block_bytes = sector_bytes.max(SECTOR_BYTES);
    let device = device_folder(device);
    let queue = Queue(device.join("queue"));
    Ok(Probe {
        size_bytes: end - end % u64::from(logical_block_bytes),
        logical_block_bytes,
        // A kernel that does not tell takes memory aligned as the file is.
        memory_align_bytes: if stat.stx_dio_mem_align > 0 { stat.stx_dio_mem_align } else { logical_block_bytes },
        rotational: queue.number("rotational") == Some(1),
        discards: kind == ProbeKind::File || queue.number("discard_max_bytes").is_some_and(|bytes| bytes > 0),
        forces_unit_access: queue.number("fua") == Some(1)
            || queue.text("write_cache").as_deref() == Some("write through"),
        is_read_on_a_core: device.join("loop").exists(),
        kind,
    })
}

/// Where the kernel tells of a block device; of a partition, of its disk. A file system without a device has no such place.
fn device_folder((major, minor): (u32, u32)) -> PathBuf {
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if device.join("partition").exists() { device.join("..") } else { device }
}

/// What the kernel tells of a block device's request queue.
struct Queue(PathBuf);

impl Queue {
    fn text(&self, name: &str) -> Option<String> {
        Some(std::fs::read_to_string(self.0.join(name)).ok()?.trim().to_owned())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}
