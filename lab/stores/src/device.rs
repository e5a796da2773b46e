//! The bare device: past the page cache, written in order and read at random. No store can beat it by much.

use crate::image::Device;
use crate::work::{Backend, Content, Phase, Work, run_clients};
use anyhow::Result;
use kura_block::PAGE_BYTES;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;

pub struct Bare<'a> {
    work: Work,
    content: &'a Content,
    file: File,
}

impl<'a> Bare<'a> {
    pub fn new(device: &Device, work: Work, content: &'a Content) -> Result<Self> {
        let file = rustix::fs::open(&device.path, OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { work, content, file: file.into() })
    }

    /// Where an object lies: each takes whole pages.
    fn place(&self, object: usize) -> u64 {
        (object * self.work.size_bytes.next_multiple_of(PAGE_BYTES)) as u64
    }
}

impl Backend for Bare<'_> {
    fn create(&mut self, version: u64) -> Result<Phase> {
        run_clients(&self.work, self.content, |memory, object| {
            Content::stamp(memory, object, version);
            self.file.write_all_at(memory, self.place(object))?;
            self.file.sync_data()?;
            Ok(())
        })
    }

    fn read(&mut self, version: u64) -> Result<Phase> {
        run_clients(&self.work, self.content, |memory, nth| {
            let object = self.work.shuffled(nth);
            self.file.read_exact_at(memory, self.place(object))?;
            self.content.check(&memory[..self.work.size_bytes], 0, object, version)
        })
    }
}
