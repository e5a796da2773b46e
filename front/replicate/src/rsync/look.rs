//! What is asked of a target before anything is carried: whose copy it is, and whether there are others in it or above.

use super::process::Process;
use super::{Ending, Rsync, complaint, slashed};
use crate::error::{COPY, Error, Failure, Result};
use crate::marker::Marker;
use crate::run::{Carry, Facts};
use crate::tree::{MARKER, join, split};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Instant;

impl Rsync {
    /// Facts of a target that only rsync reaches: its marker and those of all directories above it, in one look. It tells nothing of
    /// the machine.
    pub(super) fn facts_there(&self) -> Result<Facts> {
        let folder = tempfile::tempdir().map_err(|cause| Error::state(Path::new("a temporary folder"), cause))?;
        let root = self.root(&self.nodes[0]).into_vec();
        let (base, path) = base_and_path(&root);
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
        let above = |count: usize| parts[..count].join(&b'/');
        let markers: Vec<Vec<u8>> = (0..=parts.len()).map(|count| join(&above(count), MARKER)).collect();
        let mut process = Process::on(None);
        process.args(["--from0", "--files-from=-", "--no-implied-dirs"]).args([OsStr::from_bytes(base)]);
        process.args([slashed(folder.path())]);
        let began = Instant::now();
        let done = process.run(&markers, |_| {}).map_err(|cause| Error::target("rsync", cause))?;
        let _ = self.start_s.set(began.elapsed().as_secs_f64());
        if done.ending() == Ending::Lost {
            return Err(self.failed(&done));
        }
        let copied = |count: usize| folder.path().join(OsStr::from_bytes(&above(count)));
        let marker =
            Marker::read(&copied(parts.len())).map_err(|error| Error::target(self.target.to_string(), error))?;
        let is_copy = |count: &usize| copied(*count).join(OsStr::from_bytes(MARKER)).is_file();
        let name = |count| String::from_utf8_lossy(&[base, &above(count)].concat()).into_owned();
        Ok(Facts { marker, above: (0..parts.len()).rev().find(is_copy).map(name), ..Facts::default() })
    }

    /// Whether a target that only rsync reaches has nothing, which is asked once.
    pub(super) fn is_empty_there(&self) -> Result<bool> {
        if let Some(was_empty) = self.was_empty.get() {
            return Ok(*was_empty);
        }
        let mut process = Process::on(None);
        process.args(["--list-only", "--dirs"]).args([self.root(&self.nodes[0])]);
        let mut listed = 0;
        let done = process.run(&[], |_| listed += 1).map_err(|cause| Error::target("rsync", cause))?;
        let is_empty = match done.ending() {
            // Its own line is the only one of a target that has nothing.
            Ending::Well => listed <= 1,
            // One that is not there yet has nothing; of one that cannot be read it is not known.
            Ending::Partial if done.why().contains("No such file or directory") => true,
            _ => return Err(self.failed(&done)),
        };
        Ok(*self.was_empty.get_or_init(|| is_empty))
    }

    /// Directories of the target that are copies of their own, where this run would delete what the source does not have.
    /// They are told.
    pub(super) fn copies_within(&self, carry: &Carry<'_>) -> Result<Vec<Vec<u8>>> {
        let changes = carry.changes;
        let looked_at = if carry.is_known { changes.gone.clone() } else { vec![Vec::new()] };
        if looked_at.is_empty() || carry.was_empty {
            return Ok(Vec::new());
        }
        let nowhere = tempfile::tempdir().map_err(|cause| Error::state(Path::new("a temporary folder"), cause))?;
        let only_markers = ["--include=*/", "--include=.kura-replica", "--exclude=*"];
        let mut process = Process::on(None);
        process.args(["-rn", "--from0", "--files-from=-", "--ignore-missing-args", "--out-format=%n"]);
        process.args(only_markers).args([self.root(&self.nodes[0])]).args([slashed(nowhere.path())]);
        let mut copies = Vec::new();
        let done = process.run(&looked_at, |line| {
            let path = complaint::unescaped(line.strip_prefix(b"./").unwrap_or(line));
            let (directory, name) = split(&path);
            // The source may have one, too: then that is what was carried.
            if name == MARKER && !directory.is_empty() && !changes.names(&path) {
                copies.push(directory.to_vec());
            }
        });
        let done = done.map_err(|cause| Error::target("rsync", cause))?;
        if matches!(done.ending(), Ending::Lost | Ending::Broken) {
            return Err(self.failed(&done));
        }
        carry.fail(copies.iter().map(|path| Failure::new(path.clone(), COPY)));
        Ok(copies)
    }
}

/// A target as rsync is told it, cut where a path begins of which each part is a directory: after the root, the module, the home
/// directory. One with `..` in it is not cut.
fn base_and_path(root: &[u8]) -> (&[u8], &[u8]) {
    let find = |text: &[u8], byte| text.iter().position(|it| *it == byte).unwrap_or(text.len());
    let after = |at: usize| (at + 1).min(root.len());
    let at = if let Some(rest) = root.strip_prefix(b"rsync://") {
        let host = 8 + find(rest, b'/');
        let module = after(host);
        after(module + find(&root[module..], b'/'))
    } else {
        let path = after(find(root, b':'));
        match root.get(path) {
            // A module, or somebody's home.
            Some(b':' | b'~') => after(path + find(&root[path..], b'/')),
            Some(b'/') => path + 1,
            _ => path,
        }
    };
    let (base, path) = root.split_at(at);
    if path.split(|byte| *byte == b'/').any(|part| part == b"..") { (root, b"") } else { (base, path) }
}

/// What keeps rsync from a directory at the target, as an option.
pub(super) fn except(directory: &[u8]) -> OsString {
    let is_wild = |byte: &u8| b"*?[".contains(byte);
    // Only where there is something to escape does a backslash escape.
    let escapes = directory.iter().any(is_wild);
    let mut option = b"--exclude=/".to_vec();
    for byte in directory {
        if escapes && (is_wild(byte) || *byte == b'\\') {
            option.push(b'\\');
        }
        option.push(*byte);
    }
    OsString::from_vec(option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_cut_where_its_directories_begin() {
        let cases = [
            ("rsync://h:873/m/a/b/", "rsync://h:873/m/", "a/b/"),
            ("rsync://h/m/", "rsync://h/m/", ""),
            ("h::m/a/", "h::m/", "a/"),
            ("h:/a/b/", "h:/", "a/b/"),
            ("h:a/b/", "h:", "a/b/"),
            ("h:~me/a/", "h:~me/", "a/"),
            ("h:/a/../b/", "h:/a/../b/", ""),
        ];
        for (root, base, path) in cases {
            assert_eq!(base_and_path(root.as_bytes()), (base.as_bytes(), path.as_bytes()), "{root}");
        }
    }

    #[test]
    fn a_pattern_means_the_name_itself() {
        assert_eq!(except(b"a\\b"), r"--exclude=/a\b");
        assert_eq!(except(b"a\\b*[c]"), r"--exclude=/a\\b\*\[c]");
    }
}
