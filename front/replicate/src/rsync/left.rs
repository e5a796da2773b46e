//! What is left at a target of workers that are gone.

use super::Rsync;
use crate::run::{Carry, Job};
use crate::tree::join;
use rustix::fs::{AtFlags, statat};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

impl Rsync {
    /// Removes what rsyncs that lost their power have left of these: `.NAME.` and six letters is a file that was not whole.
    pub(super) fn sweep<'j>(&self, carry: &Carry<'_>, jobs: impl Iterator<Item = &'j Job>) {
        let Some(root) = self.local_root() else { return };
        let mut begun: HashMap<&[u8], HashSet<&[u8]>> = HashMap::new();
        for job in jobs {
            let directory = &carry.changes.directories[job.directory].directory.path;
            begun.entry(directory).or_default().insert(&job.entry(carry.changes).name);
        }
        for (directory, names) in begun {
            let there = std::fs::read_dir(root.join(OsStr::from_bytes(directory)));
            for found in there.into_iter().flatten().flatten() {
                let name = found.file_name();
                let begun = name.as_bytes().strip_prefix(b".").and_then(|rest| rest.split_last_chunk::<7>());
                let is_left = begun.is_some_and(|(name, end)| end[0] == b'.' && names.contains(name));
                let path = join(directory, name.as_bytes());
                if is_left && statat(&carry.source.root, path.as_slice(), AtFlags::SYMLINK_NOFOLLOW).is_err() {
                    // It may be gone by itself; a later look at the target finds what is not.
                    let _ = std::fs::remove_file(found.path());
                }
            }
        }
    }
}
