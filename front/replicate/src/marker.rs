//! The file at a target's root that says whose copy it is, of which moment, and whether it is whole.

use crate::error::GONE;
use crate::mounts::sync_all;
use crate::target::{leads_to, real};
use crate::tree::{MARKER, Time};
use rustix::fs::{FlockOperation, OFlags, flock, statfs};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use uuid::Uuid;

/// The most bytes of the file: what is longer is no marker.
const LONGEST: u64 = 64 << 10;

/// The length of a marker's text where it is written over another one: longer than any, but of a source whose path is nearly as long as
/// any can be and has letters that JSON escapes; that of such a one is a multiple.
const ONE_SIZE: usize = 8192;

/// Whether a copy can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is all of the source as it was at the recovery point.
    Complete,
    /// It is, but for what the last run's failure list names.
    Partial,
    /// A run is under way or was cut off: some files are newer than others.
    Unfinished,
    /// It was failed over to: it is nobody's copy any more.
    Released,
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The source's path, and the host it is on.
    pub source: String,
    /// The run that last changed the copy.
    pub run: Uuid,
    /// Whether the copy can be used.
    pub state: State,
    /// The moment of the source that the last complete run has carried, RFC 3339; none before the first one.
    pub recovery_point: Option<String>,
    /// Which start of the machine that has the files the run began in: after another one, what was not durable is not to be
    /// trusted. A run that goes over such a copy keeps the old one until it is done. Empty where nobody can say, and where something
    /// could not be made durable.
    #[serde(default)]
    pub boot: String,
    /// It was not made durable, nor what it speaks of: after another start that is not to be trusted either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub volatile: bool,
    /// Of a copy that was failed over to: it was not all of the source then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lacks: bool,
    /// When it was failed over to, by the clock of the file system that has it; put down as it is written there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Time>,
    /// Of a source: all work is back that was done in its copy, of this run, since that was failed over to. Where it is not complete,
    /// only such is not there as the source keeps of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back: Option<Uuid>,
}

impl Marker {
    /// Whether what is at the target may have lost contents: its machine may have started anew since the run that it is of.
    /// `boot` is the start that it is in now; empty where nobody can say: then what a run that has ended left there is trusted.
    pub fn is_suspect(&self, boot: &str) -> bool {
        match self.state {
            State::Unfinished => boot.is_empty() || self.boot != boot,
            State::Complete | State::Partial => self.volatile && self.boot != boot,
            State::Released => false,
        }
    }

    /// The marker in an open text; none where it is not one.
    pub fn of_text(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// The file's text.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The same, filled up, so that a copy's markers have one length: one that is written over another one has no rest of it behind
    /// it, wherever that is cut off.
    pub fn text_of_one_size(&self) -> String {
        let text = self.text();
        let more = text.len().next_multiple_of(ONE_SIZE) - text.len();
        text + &" ".repeat(more)
    }

    /// The marker of a copy in a directory of this machine.
    pub fn read(root: &Path) -> Result<Option<Self>> {
        Ok(Self::text_in(root)?.and_then(|text| Self::of_text(&text)))
    }

    /// Its text; none where there is no such file. A link of that name is not followed, nor a pipe waited for.
    pub fn text_in(root: &Path) -> Result<Option<Vec<u8>>> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(root.join(OsStr::from_bytes(MARKER)));
        let mut text = Vec::new();
        match file.and_then(|file| file.take(LONGEST).read_to_end(&mut text)) {
            Ok(_) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The nearest directory above one that is a copy itself: the next run of that would delete what is in it.
    pub fn above(root: &Path) -> Option<PathBuf> {
        let is_copy = |directory: &&Path| {
            let marker = directory.join(OsStr::from_bytes(MARKER)).symlink_metadata();
            marker.is_ok_and(|marker| marker.is_file())
        };
        real(root)?.ancestors().skip(1).find(is_copy).map(Path::to_owned)
    }

    /// Puts it at the root of a copy, which is open and is reached by a path. Durably: and before it all that the copy has, unless it
    /// says that this is unfinished.
    ///
    /// # Errors
    /// Of what could not be made durable the system tells only once, and has it in memory as if it were: the marker that is there says
    /// from then on that nothing is to be trusted.
    pub fn put(&self, root: impl AsFd, path: &Path, durably: bool) -> Result<()> {
        // The marker must not be there before what it speaks of.
        if durably && self.state != State::Unfinished {
            sync_all(root).inspect_err(|_| Self::doubt(path))?;
        }
        self.write(path, durably)
    }

    fn doubt(path: &Path) {
        if let Ok(Some(there)) = Self::read(path) {
            // A file system that takes no more of anything takes no run either.
            let _ = Self { boot: String::new(), volatile: true, ..there }.write(path, true);
        }
    }

    /// Puts it in its place; durably where that is asked for. Whole in any case: after a power cut it is this one or the one before.
    /// The directory keeps its time of modification.
    pub fn write(&self, root: &Path, durably: bool) -> Result<()> {
        let directory = File::open(root)?;
        let modified = directory.metadata()?.modified()?;
        let mut file = tempfile::Builder::new().prefix(".~kura~marker-").tempfile_in(root)?;
        let now = file.as_file().metadata()?;
        let now = Time { s: now.ctime(), ns: now.ctime_nsec() as u32 };
        let released = (self.state == State::Released).then(|| self.released.unwrap_or(now));
        file.write_all(Self { released, ..self.clone() }.text().as_bytes())?;
        file.as_file().sync_data()?;
        file.persist(root.join(OsStr::from_bytes(MARKER)))?;
        directory.set_modified(modified)?;
        if durably { directory.sync_all() } else { Ok(()) }
    }

    /// Takes it away. The directory keeps its time of modification.
    pub fn remove(root: &Path) -> Result<()> {
        let directory = File::open(root)?;
        let modified = directory.metadata()?.modified()?;
        std::fs::remove_file(root.join(OsStr::from_bytes(MARKER)))?;
        directory.set_modified(modified)
    }
}

/// Which start of this machine it is.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// File systems whose files are, or may be, on other machines: NFS, SMB, FUSE, Ceph, 9P, AFS, Lustre, GPFS, GFS2, OCFS2.
const ELSEWHERE: [u32; 11] = [
    0x6969,
    0xfe53_4d42,
    0xff53_4d42,
    0x6573_5546,
    0x00c3_6400,
    0x0102_1997,
    0x6b41_4653,
    0x0bd0_0bd0,
    0x4750_4653,
    0x0116_1970,
    0x7461_636f,
];

/// Which start it is of the machine that has a directory's files; empty where they may be on another one than this. What is not
/// there yet will be where the directory above it is.
pub fn boot_of(root: &Path) -> String {
    let system = real(root).and_then(|root| root.ancestors().find_map(|above| statfs(above).ok()));
    let is_here = system.is_some_and(|system| !ELSEWHERE.contains(&(system.f_type as u32)));
    if is_here { boot() } else { String::new() }
}

/// Why a run is refused.
pub const HELD: &str = "another run carries to it: wait for its end";

/// A copy's directory, taken for a run, and open: what is done to the copy is done to this one, whatever has its path by then.
#[derive(Debug)]
pub struct Held(File);

impl Held {
    /// A path by which this process reaches it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    /// It, opened once more.
    pub fn directory(&self) -> Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// # Errors
    /// The path leads to it no more: it is unmounted, or something is mounted over it.
    pub fn check(&self, path: &Path) -> Result<()> {
        if leads_to(path, &self.0) { Ok(()) } else { Err(Error::other(GONE)) }
    }

    /// Has processes that are started from now on hold it too: one that outlives this one keeps everybody else away for as long.
    pub fn inherited(self) -> Result<Self> {
        fcntl_setfd(&self.0, FdFlags::empty())?;
        Ok(self)
    }
}

impl Drop for Held {
    /// Lets go at once: a process that is just being started has the directory open for an instant, too.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Takes a copy's directory for a run, and makes one if that is said: nobody else has it until what is returned is dropped, if the
/// file system knows such locks. None where the directory is in another copy, which nobody may run to.
///
/// # Errors
/// Somebody has it, it is not there, or it cannot be made.
pub fn hold(root: &Path, makes: bool) -> Result<Option<Held>> {
    if Marker::above(root).is_some() {
        return Ok(None);
    }
    if makes {
        std::fs::create_dir_all(root)?;
    }
    let directory = match File::open(root) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Error::other(GONE)),
        directory => directory?,
    };
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(Error::other(HELD)),
        _ => Ok(Some(Held(directory))),
    }
}

/// A moment as RFC 3339.
pub fn rfc3339(moment: SystemTime) -> String {
    humantime::format_rfc3339_millis(moment).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, open};

    #[test]
    fn what_could_not_be_made_durable_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let marker = |state| Marker {
            source: "host:/tree".to_owned(),
            run: Uuid::new_v4(),
            state,
            recovery_point: None,
            boot: boot(),
            volatile: false,
            lacks: false,
            released: None,
            back: None,
        };
        for state in [State::Unfinished, State::Partial, State::Complete] {
            marker(state).put(File::open(path).unwrap(), path, true).unwrap();
            let there = || Marker::read(path).unwrap().unwrap();
            assert!(!there().is_suspect(&boot()));
            // What is open for nothing is not made durable by it.
            let nothing = open(path, OFlags::PATH, Mode::empty()).unwrap();
            assert!(marker(State::Complete).put(nothing, path, true).is_err());
            assert!(there().state == state && there().is_suspect(&boot()), "{:?}", there());
        }
    }
}
