//! The bare device: one preallocated file, past the page cache, written in order and read at random.

use crate::work::{Backend, Phase, Work, drop_caches, run_clients};
use anyhow::Result;
use kura_block::{Buf, BufMut, PAGE_BYTES};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub struct Device {
    file: File,
}

impl Device {
    pub fn new(folder: &Path, work: &Work) -> Result<Self> {
        let path = folder.join("device");
        let size_bytes = (slot_bytes(work) * work.count) as u64;
        kura_disk::create_sparse(&path, size_bytes)?;
        kura_disk::preallocate(&path, 0..size_bytes)?;
        let file = rustix::fs::open(&path, OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { file: file.into() })
    }
}

/// What an object takes: whole pages.
fn slot_bytes(work: &Work) -> usize {
    work.size_bytes.next_multiple_of(PAGE_BYTES)
}

impl Backend for Device {
    fn create(&mut self, work: &Work) -> Result<Phase> {
        let mut content = work.content(0);
        content.resize(slot_bytes(work), 0);
        let content = Buf::copy_of(&content);
        let slot = slot_bytes(work) as u64;
        run_clients(work, |object| {
            self.file.write_all_at(&content, object as u64 * slot)?;
            self.file.sync_data()?;
            Ok(())
        })
    }

    fn read(&mut self, work: &Work) -> Result<Phase> {
        drop_caches()?;
        run_clients(work, |nth| {
            let mut memory = BufMut::room(slot_bytes(work));
            self.file.read_exact_at(&mut memory, (work.shuffled(nth) * slot_bytes(work)) as u64)?;
            Ok(())
        })
    }
}
