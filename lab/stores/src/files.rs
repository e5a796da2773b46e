//! One file an object: what a file system does by itself.

use crate::image::{Device, Mounted};
use crate::work::{Backend, Content, Phase, Work, run_clients};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

pub struct Files<'a> {
    work: Work,
    content: &'a Content,
    device: &'a Device,
    kind: &'static str,
}

impl<'a> Files<'a> {
    /// On a new file system of this kind.
    pub fn new(device: &'a Device, kind: &'static str, work: Work, content: &'a Content) -> Result<Self> {
        device.make(kind)?;
        Ok(Self { work, content, device, kind })
    }
}

/// Makes durable all that the file system holds.
fn sync(mounted: &Mounted) -> Result<()> {
    rustix::fs::syncfs(File::open(&mounted.path)?).with_context(|| mounted.path.display().to_string())
}

fn name(object: usize) -> String {
    format!("{object:08}")
}

impl Backend for Files<'_> {
    fn create(&mut self, version: u64) -> Result<Phase> {
        let mounted = self.device.mount(self.kind)?;
        let folder: &Path = &mounted.path;
        let phase = run_clients(&self.work, self.content, |memory, object| {
            // `fsync` of a new file makes its name durable on the file systems measured here.
            let path = folder.join(name(object));
            let mut file = File::create_new(&path).with_context(|| path.display().to_string())?;
            Content::stamp(memory, object, version);
            file.write_all(&memory[..self.work.size_bytes])?;
            file.sync_all()?;
            Ok(())
        })?;
        sync(&mounted)?;
        Ok(phase)
    }

    fn read(&mut self, version: u64) -> Result<Phase> {
        let mounted = self.device.mount(self.kind)?;
        let folder: &Path = &mounted.path;
        run_clients(&self.work, self.content, |memory, nth| {
            let object = self.work.shuffled(nth);
            let path = folder.join(name(object));
            let mut file = File::open(&path).with_context(|| path.display().to_string())?;
            let memory = &mut memory[..self.work.size_bytes];
            file.read_exact(memory)?;
            ensure!(file.read(&mut [0])? == 0, "object {object} has grown");
            self.content.check(memory, 0, object, version)
        })
    }
}
