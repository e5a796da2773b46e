//! One file an object: what a file system does by itself.

use crate::work::{Backend, Phase, Work, drop_caches, run_clients, sync_folder};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

pub struct Files {
    folder: PathBuf,
}

impl Files {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn path(&self, object: usize) -> PathBuf {
        self.folder.join(format!("{object:08}"))
    }
}

impl Backend for Files {
    fn create(&mut self, work: &Work) -> Result<Phase> {
        let content = work.content(0);
        let phase = run_clients(work, |object| {
            // As programs do that must not lose the old object: another name first, then the right one. A first create
            // needs no other name: `fsync` of a new file makes its name durable on the file systems measured here.
            let path = self.path(object);
            let exists = path.exists();
            let written = if exists { path.with_extension("new") } else { path.clone() };
            let mut file = File::create(&written).with_context(|| written.display().to_string())?;
            file.write_all(&content)?;
            file.sync_all()?;
            if exists {
                std::fs::rename(&written, &path)?;
                sync_folder(&self.folder)?;
            }
            Ok(())
        })?;
        sync_folder(&self.folder)?;
        Ok(phase)
    }

    fn read(&mut self, work: &Work) -> Result<Phase> {
        drop_caches()?;
        run_clients(work, |nth| {
            let path = self.path(work.shuffled(nth));
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            ensure!(bytes.len() == work.size_bytes, "{}: {} bytes were read", path.display(), bytes.len());
            Ok(())
        })
    }
}
