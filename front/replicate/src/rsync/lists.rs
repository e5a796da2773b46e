//! What is done beside the workers, each time by one rsync with a list: directories, and what the target has that the source has not.

use super::{Ending, Process, REPLACE, Rsync, changed_meanwhile, compared, complaint, slashed};
use crate::error::{CHANGED, Error, Failure, Result};
use crate::run::{Carry, Job, Node, lock};
use crate::tree::{Changed, Changes, is_within, open_directory, split};
use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::AsFd;

impl Rsync {
    /// All there is to carry, where that is little. What takes the place of a directory goes apart from directories: none of those is
    /// to be replaced by what has its name just now.
    pub(super) fn little(&self, carry: &Carry<'_>) -> Result<()> {
        let changes = carry.changes;
        let links = changes.links.keys().map(|&(directory, entry)| Job { directory, entry });
        let jobs: Vec<Job> = carry.plan.jobs.iter().copied().chain(links).collect();
        let carried: Vec<Vec<u8>> = jobs.iter().map(|job| job.path(changes)).collect();
        let how = compared(&carry.plan.jobs, changes);
        let directories = paths(changes, |changed| changed.has_new_meta);
        let replaced: HashSet<&[u8]> = changes.gone.iter().map(|path| &**path).collect();
        if carried.iter().any(|path| replaced.contains(&**path)) {
            self.list(carry, how.into_iter().chain([REPLACE]), carried.into_iter())?;
            self.list(carry, [], directories.clone().into_iter())?;
        } else {
            self.list(carry, how, directories.iter().cloned().chain(carried))?;
        }
        carry.fail(changed_meanwhile(carry, &jobs));
        fail_others(carry, &directories);
        Ok(())
    }

    /// Directories themselves, not what is in them.
    pub(super) fn directories(&self, carry: &Carry<'_>, which: impl Fn(&Changed) -> bool) -> Result<()> {
        let directories = paths(carry.changes, which);
        self.list(carry, [], directories.clone().into_iter())?;
        fail_others(carry, &directories);
        Ok(())
    }

    /// One rsync over a list of paths, in which the directories are not gone into; and one for the root itself, into which rsync
    /// goes wherever it is named.
    fn list<'o>(
        &self,
        carry: &Carry<'_>,
        how: impl IntoIterator<Item = &'o str>,
        paths: impl Iterator<Item = Vec<u8>>,
    ) -> Result<()> {
        let (root, inner): (Vec<_>, Vec<_>) = paths.partition(Vec::is_empty);
        let how: Vec<&str> = how.into_iter().collect();
        for (paths, except) in [(inner, None), (root, Some("--exclude=/*"))] {
            let failures = self.run_list(carry, &paths, |node| {
                let mut process = self.copying(carry, node.source.as_deref(), &["--dirs", "-HAXS"]);
                process.args(&how).args(except);
                process
            })?;
            carry.fail(failures);
        }
        Ok(())
    }

    /// Deletes what the source has no more. From this machine, which has seen that, and in a process of its own: one with
    /// another list, or on a node where the source is not mounted, would delete whatever it does not find just then. What has come
    /// back by now stays, and is told: nobody knows all that the target has of it.
    pub(super) fn delete(&self, carry: &Carry<'_>, gone: impl Iterator<Item = Vec<u8>>) -> Result<()> {
        let gone: Vec<_> = gone.collect();
        let how = ["--dirs", "-HAXS", "--no-implied-dirs", "--delete-missing-args", REPLACE];
        let mut failures = self.run_list(carry, &gone, |_| self.copying(carry, None, &how))?;
        let is_there = |path: &[u8]| statat(&carry.source.root, path, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        // It misses the directories that what is gone was in, too.
        let given: HashSet<&[u8]> = gone.iter().map(|path| &**path).collect();
        failures.retain(|failure| given.contains(&*failure.path) || is_there(&failure.path));
        let back = gone.iter().filter(|path| !carry.changes.names(path) && is_there(path));
        failures.extend(back.map(|path| Failure::new(path.clone(), CHANGED)));
        carry.fail(failures);
        Ok(())
    }

    /// One rsync over a list of paths; what failed of them.
    fn run_list(
        &self,
        carry: &Carry<'_>,
        paths: &[Vec<u8>],
        process: impl Fn(&Node) -> Process,
    ) -> Result<Vec<Failure>> {
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let counter = &carry.progress.workers()[0];
        let done = self.by_any(|node| {
            let process = process(node);
            let done =
                process.carry(&carry.source.path, paths, self.root(node), |_, _, sent_bytes| counter.sent(sent_bytes));
            let done = done.map_err(|cause| Error::target("rsync", cause))?;
            if done.ending() == Ending::Lost { Err(self.failed(&done)) } else { Ok(done) }
        })?;
        Ok(done.failures(&self.roots(carry), paths.iter().cloned()))
    }

    /// Deletes what is only at a target that cannot tell what it has. From this machine, which has seen what the source has:
    /// one where it is not mounted would delete everything. Not where files could not be carried, which may be gone with what was
    /// mounted there, nor where a directory could not be read, which may have moved.
    ///
    /// rsync looks at the source anew, and only tells what it would delete: what the scan saw is away for now, and stays.
    pub(super) fn delete_strangers(&self, carry: &Carry<'_>, has_failed: bool) -> Result<()> {
        if has_failed || !carry.source.is_in_place() {
            let cause = "what only the target has was not deleted, for something of the source was not there: the next run looks";
            carry.fail([Failure::new(".", cause)]);
            return Ok(());
        }
        let mut listed: HashSet<Vec<u8>> = HashSet::new();
        let done = self.by_any(|node| {
            let mut process = Process::on(None);
            process.args(["-rlDn", "--delete", REPLACE, "--existing", "--ignore-existing"]);
            process.args(["--exclude=/.kura-replica", "--out-format=%i|%n"]).args(self.except_copies());
            process.args([slashed(&carry.source.path)]).args([self.root(node)]);
            let done = process.run(&[], |line| {
                let deleted =
                    line.strip_prefix(b"*deleting").and_then(|rest| rest.trim_ascii_start().strip_prefix(b"|"));
                listed.extend(deleted.map(|path| complaint::unescaped(path.strip_suffix(b"/").unwrap_or(path))));
            });
            let done = done.map_err(|cause| Error::target("rsync", cause))?;
            if matches!(done.ending(), Ending::Lost | Ending::Broken) { Err(self.failed(&done)) } else { Ok(done) }
        })?;
        carry.fail(done.failures(&self.roots(carry), [b".".to_vec()]));
        let (away, strangers): (HashSet<_>, HashSet<_>) =
            listed.into_iter().partition(|path| carry.changes.names(path));
        carry.fail(outermost(&away).map(|path| Failure::new(path, CHANGED)));
        self.delete(carry, outermost(&strangers))
    }
}

/// Those of some paths that are in none of the others.
fn outermost(paths: &HashSet<Vec<u8>>) -> impl Iterator<Item = Vec<u8>> {
    paths.iter().filter(|path| !is_within(split(path).0, paths)).cloned()
}

fn paths(changes: &Changes, which: impl Fn(&Changed) -> bool) -> Vec<Vec<u8>> {
    changes.directories.iter().filter(|changed| which(changed)).map(|changed| changed.directory.path.clone()).collect()
}

/// Tells which of these are directories of the source no more. Where the target's had nothing in it, what has the name now may have
/// taken its place.
fn fail_others(carry: &Carry<'_>, directories: &[Vec<u8>]) {
    let is_other = |path: &&Vec<u8>| {
        let opened = open_directory(carry.source.root.as_fd(), path);
        matches!(opened, Err(Errno::LOOP | Errno::NOTDIR))
    };
    let others: Vec<_> = directories.iter().filter(is_other).collect();
    let mut failures = lock(&carry.failures);
    for path in others {
        if !failures.iter().any(|failure| failure.path == *path) {
            failures.push(Failure::new(path.clone(), CHANGED));
        }
    }
}
