//! Where a job keeps what its next run wants to know.
//!
//! ```text
//!   DIR/lock            held by the run that is under way
//!   DIR/catalogue       the tree as the last run left it at the target
//!   DIR/last.json       the last run's summary
//!   DIR/recovery-point  the moment that the copy is of, RFC 3339
//!   DIR/costs.json      what carrying was learned to cost
//!   DIR/objects        of a bucket: what is known of the objects at the target (`bucket`), and DIR/uploads
//!   DIR/failures.jsonl  what the last run did not carry, an object a line: path, cause
//! ```

use super::Summary;
use super::record::again;
use crate::balance::Learned;
use crate::error::{Error, Failure, Result};
use crate::tree::Catalogue;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::NamedTempFile;
use uuid::Uuid;

/// How often a lock is tried once more, and how long is waited between.
const LOOKS: u32 = 5;
const LOOK: Duration = Duration::from_millis(2);

/// A job's folder, which this process holds.
#[derive(Debug)]
pub struct Place {
    folder: PathBuf,
    /// Of the folder, and of the target where it is known.
    locks: Vec<File>,
}

impl Drop for Place {
    /// Lets go at once: a process that is just being started has the files open for an instant, too.
    fn drop(&mut self) {
        for lock in &self.locks {
            let _ = flock(lock, FlockOperation::Unlock);
        }
    }
}

impl Place {
    /// Takes the folder, which is made if there is none.
    pub fn take(folder: &Path) -> Result<Self> {
        let lock = locked(&folder.join("lock"), "another run of it is under way: wait for its end")?;
        Ok(Self { folder: folder.to_owned(), locks: vec![lock] })
    }

    /// The same for a target, which whoever names it has this file of.
    pub(crate) fn with(mut self, target: &Path) -> Result<Self> {
        self.locks.push(locked(target, "another run to this target is under way: wait for its end")?);
        Ok(self)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The list of what was not carried.
    pub fn failures(&self) -> PathBuf {
        Self::failures_in(&self.folder)
    }

    /// The same, of a folder that nobody needs to hold.
    pub fn failures_in(folder: &Path) -> PathBuf {
        folder.join("failures.jsonl")
    }

    pub(crate) fn catalogue(&self) -> Option<Catalogue> {
        Catalogue::read(&self.folder.join("catalogue"))
    }

    pub(crate) fn learned(&self) -> Learned {
        let text = std::fs::read(self.folder.join("costs.json")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    pub(crate) fn keep(&self, run: Uuid, records: Vec<&[u8]>) -> Result<()> {
        let path = self.folder.join("catalogue");
        Catalogue::write(&path, run, records).map_err(|cause| Error::state(&path, cause))
    }

    /// Has the next run carry what a comparison found to differ, though times and sizes say nothing of it. Where there is no
    /// catalogue, that run asks the target for those.
    ///
    /// # Errors
    /// The catalogue cannot be written.
    pub fn distrust(&self, differing: &[Failure]) -> Result<()> {
        let Some(catalogue) = self.catalogue().filter(|_| !differing.is_empty()) else { return Ok(()) };
        let records = again(&catalogue, differing);
        self.keep(catalogue.run(), records.iter().map(Vec::as_slice).collect())
    }

    pub(crate) fn end(&self, summary: &Summary, learned: &Learned) -> Result<()> {
        self.write("costs.json", learned)?;
        self.note(summary)
    }

    /// Forgets the moment that the copy is of, unless it has one: another copy had, before it was adopted.
    pub(crate) fn keep_point(&self, has_one: bool) -> Result<()> {
        let path = self.folder.join("recovery-point");
        if has_one {
            return Ok(());
        }
        match std::fs::remove_file(&path) {
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(Error::state(&path, cause)),
            _ => Ok(()),
        }
    }

    /// Keeps what a run came to, and, of one that is complete, the moment that the copy is of.
    pub fn note(&self, summary: &Summary) -> Result<()> {
        self.write("last.json", summary)?;
        if summary.is_complete {
            self.replace("recovery-point", |file| file.write_all(summary.started_at.as_bytes()))?;
        }
        let path = self.failures();
        let written = (|| {
            let mut file = std::io::BufWriter::new(File::create(&path)?);
            for failure in &summary.failures {
                serde_json::to_writer(&mut file, failure)?;
                file.write_all(b"\n")?;
            }
            file.flush()
        })();
        written.map_err(|cause| Error::state(&path, cause))
    }

    fn write(&self, name: &str, value: &impl Serialize) -> Result<()> {
        self.replace(name, |file| Ok(serde_json::to_writer_pretty(file, value)?))
    }

    /// Writes a file anew; after a power cut it is whole, this one or the one before.
    fn replace(&self, name: &str, write: impl FnOnce(&mut NamedTempFile) -> std::io::Result<()>) -> Result<()> {
        let path = self.folder.join(name);
        let written = NamedTempFile::new_in(&self.folder).and_then(|mut file| {
            write(&mut file)?;
            file.as_file().sync_data()?;
            Ok(file.persist(&path).map(drop)?)
        });
        written.map_err(|cause| Error::state(&path, cause))
    }
}

/// A file, which nobody else holds meanwhile.
fn locked(path: &Path, otherwise: &str) -> Result<File> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let open = || File::options().create(true).truncate(false).write(true).open(path);
    // Who only looks whether it is held has it for an instant, and who had it may have removed it.
    for looks in 0..=LOOKS {
        if looks > 0 {
            std::thread::sleep(LOOK);
        }
        let lock = std::fs::create_dir_all(folder).and_then(|()| open()).map_err(|cause| Error::state(path, cause))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_at(&lock, path) => return Ok(lock),
            Ok(()) | Err(Errno::WOULDBLOCK) => {}
            Err(cause) => return Err(Error::state(path, cause.into())),
        }
    }
    Err(Error::Usage(otherwise.to_owned()))
}

/// True when this is the file there: another one's lock keeps nobody out.
fn is_at(file: &File, path: &Path) -> bool {
    let (open, there) = (file.metadata(), std::fs::metadata(path));
    open.is_ok_and(|open| there.is_ok_and(|there| (open.dev(), open.ino()) == (there.dev(), there.ino())))
}

/// Whether somebody holds this file, which need not be there.
pub(crate) fn is_held(path: &Path) -> bool {
    let Ok(lock) = File::options().write(true).open(path) else { return false };
    let held = flock(&lock, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
    let _ = flock(&lock, FlockOperation::Unlock);
    held
}

/// The summary of a job's last run; none before the first.
pub fn last(folder: &Path) -> Option<Summary> {
    serde_json::from_slice(&std::fs::read(folder.join("last.json")).ok()?).ok()
}
