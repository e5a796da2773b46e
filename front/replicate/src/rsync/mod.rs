//! Workers that are rsync processes, on this machine and others: the paper's system.
//!
//! A unit of work is one rsync that is given its list on standard input. Directories come first, so that no two processes
//! make the same one; deletions and the times of directories come last. Far away each rsync takes a dozen round trips, so that
//! none is started for nothing: to a target that has nothing yet, workers make directories on their way, and there is nothing to
//! delete.

mod complaint;
mod left;
mod lists;
mod look;
mod process;

use crate::error::{CHANGED, Error, Failure, Result};
use crate::marker::{Held, Marker, hold};
use crate::run::{Carrier, Carry, Facts, Job, Node, Options, Source, Verified, lock};
use crate::target::Target;
use crate::tree::{self, Catalogue, Changed, Changes, Kind, MARKER, Need, Scan, open_directory, scan, split};
use complaint::Ending;
use look::except;
use process::{Done, Process};
use rustix::fs::{AtFlags, Mode, OFlags, statat};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// What a new process must be worth, in seconds of work, and in times of what it takes to start one.
const LEAST_S: f64 = 0.5;
const LEAST_STARTS: f64 = 4.0;
/// Has rsync compare contents where sizes and times are the same.
const COMPARE: &str = "--ignore-times";
/// Has what is no directory take the place of one, and of all it holds. Only for what the scan saw: by now a directory may be away.
const REPLACE: &str = "--force";
/// What it takes to start one over ssh, in seconds, where nobody has seen it yet.
const SSH_S: f64 = 0.5;

pub(crate) struct Rsync {
    target: Target,
    nodes: Vec<Node>,
    /// KiB a second for each process.
    bandwidth_kib: Option<u64>,
    in_place: bool,
    /// Directories of the target that are copies of their own.
    copies: OnceLock<Vec<Vec<u8>>>,
    held: OnceLock<Option<Held>>,
    /// The target had nothing.
    was_empty: OnceLock<bool>,
    /// How long a process took that carried next to nothing, in seconds; none where it goes nowhere.
    start_s: OnceLock<f64>,
}

impl Rsync {
    pub fn new(target: &Target, options: &Options) -> Self {
        let local = Node { source: None, target: None };
        let nodes = if options.nodes.is_empty() { vec![local] } else { options.nodes.clone() };
        let target = match target {
            Target::Local(path) => Target::Local(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
            target => target.clone(),
        };
        let bandwidth_kib = options.bandwidth.map(|bytes| (bytes / 1024 / options.all_workers() as u64).max(1));
        Self {
            target,
            nodes,
            bandwidth_kib,
            in_place: options.in_place,
            copies: OnceLock::new(),
            held: OnceLock::new(),
            was_empty: OnceLock::new(),
            start_s: OnceLock::new(),
        }
    }

    /// The target as rsync is told it, with a slash at its end.
    fn root(&self, node: &Node) -> OsString {
        let text = match (&self.target, &node.target) {
            (Target::Local(path), _) => return [path.as_os_str(), OsStr::new("/")].concat_os(),
            (Target::Rsync(text), None) => text.clone(),
            (Target::Rsync(text), Some(host)) => with_host(text, host),
            (target, _) => target.to_string(),
        };
        format!("{text}/").into()
    }

    /// An rsync with the options of every transfer.
    fn copying(&self, carry: &Carry<'_>, node: Option<&str>, more: &[&str]) -> Process {
        let mut process = Process::on(node);
        // Links, permissions, times, owners, devices. Times are compared to the nanosecond: by itself rsync passes over a file
        // that was written twice within a second and kept its size.
        process.args(["-lptgoD", "--modify-window=-1", "--numeric-ids"]);
        process.args(more);
        process.args(self.except_copies());
        if carry.is_suspect {
            process.args([COMPARE]);
        }
        if let Some(kib) = self.bandwidth_kib {
            process.args([format!("--bwlimit={kib}")]);
        }
        process
    }

    /// Options that keep what is a copy of its own as it is.
    fn except_copies(&self) -> impl Iterator<Item = OsString> {
        self.copies.get().into_iter().flatten().map(|copy| except(copy))
    }

    fn local_root(&self) -> Option<&Path> {
        if let Target::Local(path) = &self.target { Some(path) } else { None }
    }

    /// How long a process on a node takes that carries nothing, in seconds.
    fn start_s(&self, node: &Node) -> f64 {
        let to_node_s = if node.source.is_some() { SSH_S } else { 0.0 };
        to_node_s + self.start_s.get().copied().unwrap_or_default()
    }

    /// What one must be worth, in seconds of work.
    fn least_s(&self, node: &Node) -> f64 {
        LEAST_S.max(LEAST_STARTS * self.start_s(node))
    }

    /// Does something by the first node that can: any may be gone by now.
    fn by_any<T>(&self, mut work: impl FnMut(&Node) -> Result<T>) -> Result<T> {
        let mut done = work(&self.nodes[0]);
        for node in &self.nodes[1..] {
            if done.is_ok() {
                break;
            }
            done = work(node);
        }
        done
    }

    /// Marks a directory of this machine, if it is still the one that is held.
    fn mark_here(&self, root: &Path, marker: &Marker, durably: bool) -> std::io::Result<()> {
        let held = self.held.get().and_then(Option::as_ref);
        held.map_or(Ok(()), |held| held.check(root))?;
        // That of before the run is told what could not be written in it.
        let directory = held.map_or_else(|| open(root), Held::directory)?;
        marker.put(directory, &held.map_or_else(|| root.to_owned(), Held::path), durably)
    }

    fn failed(&self, done: &Done) -> Error {
        Error::target(self.target.to_string(), done.why())
    }
}

/// A worker whose node is gone, or its way to the target.
struct Lost {
    why: String,
    /// What it was at.
    jobs: Vec<Job>,
}

trait ConcatOs {
    fn concat_os(&self) -> OsString;
}

impl ConcatOs for [&OsStr; 2] {
    fn concat_os(&self) -> OsString {
        let mut text = self[0].to_owned();
        text.push(self[1]);
        text
    }
}

/// A target with another host: `[USER@]HOST:PATH` or `rsync://[USER@]HOST[:PORT]/MODULE`.
fn with_host(target: &str, host: &str) -> String {
    let (scheme, rest) = target.split_once("://").map_or(("", target), |(_, rest)| ("rsync://", rest));
    let end = rest.find(if scheme.is_empty() { ':' } else { '/' }).unwrap_or(rest.len());
    let (old, path) = rest.split_at(end);
    let user =
        old.split_once('@').filter(|_| !host.contains('@')).map_or(String::new(), |(user, _)| format!("{user}@"));
    let port = if scheme.is_empty() || host.contains(':') { None } else { old.split_once(':') };
    let port = port.map_or(String::new(), |(_, port)| format!(":{port}"));
    format!("{scheme}{user}{host}{port}{path}")
}

impl Carrier for Rsync {
    fn hold(&self, makes: bool) -> Result<()> {
        let Some(root) = self.local_root() else { return Ok(()) };
        let held = hold(root, makes).and_then(|held| held.map(Held::inherited).transpose());
        let held = held.map_err(|error| Error::target(self.target.to_string(), error))?;
        let _ = self.held.set(held);
        Ok(())
    }

    fn facts(&self, is_first: bool) -> Result<Facts> {
        match self.local_root() {
            Some(root) => Facts::of_directory(root).map_err(|error| Error::target(self.target.to_string(), error)),
            // Far away, each look takes several round trips.
            None if is_first => std::thread::scope(|scope| {
                // What goes wrong is told when it is asked for.
                scope.spawn(|| self.is_empty_there().is_ok());
                self.facts_there()
            }),
            None => self.facts_there(),
        }
    }

    fn is_empty(&self) -> Result<bool> {
        if let Some(root) = self.local_root() {
            return tree::is_empty(root).map_err(|error| Error::target(self.target.to_string(), error));
        }
        self.is_empty_there()
    }

    fn tree(&self) -> Result<Option<(Catalogue, Vec<Failure>)>> {
        let Some(root) = self.local_root() else { return Ok(None) };
        tree::told_at(root).map(Some).map_err(|error| Error::target(self.target.to_string(), error))
    }

    fn cuts(&self) -> bool {
        false
    }

    fn mark(&self, marker: &Marker, durably: bool) -> Result<()> {
        if let Some(root) = self.local_root() {
            return self
                .mark_here(root, marker, durably)
                .map_err(|error| Error::target(self.target.to_string(), error));
        }
        let folder = tempfile::tempdir().map_err(|cause| Error::state(Path::new("a temporary folder"), cause))?;
        let path = folder.path().join(OsStr::from_bytes(MARKER));
        std::fs::write(&path, marker.text_of_one_size()).map_err(|cause| Error::state(&path, cause))?;
        self.by_any(|node| {
            let mut process = Process::on(None);
            // In place: the directory keeps its time of modification. Two that are written within a second look alike.
            process.args(["--mkpath", "--inplace", COMPARE]).args([path.as_os_str()]).args([self.root(node)]);
            let done = process.run(&[], |_| {}).map_err(|cause| Error::target("rsync", cause))?;
            if done.ending() == Ending::Well { Ok(()) } else { Err(self.failed(&done)) }
        })
    }

    fn sweep(&self) -> Result<()> {
        Ok(())
    }

    fn verify(&self, source: &Source, _: usize) -> Result<Verified> {
        let mut process = Process::on(None);
        process.args(["-aHAXSn", "--numeric-ids", "--checksum", "--delete", "--exclude=/.kura-replica"]);
        process.args(["--out-format=%i|%l|%n"]).args([slashed(&source.path)]).args([self.root(&self.nodes[0])]);
        let mut differing = Vec::new();
        let done = process.run(&[], |line| {
            let mut fields = line.splitn(3, |byte| *byte == b'|');
            if let (Some(what), Some(_), Some(path)) = (fields.next(), fields.next(), fields.next()) {
                let how = format!("rsync would change it: {}", String::from_utf8_lossy(what).trim());
                differing.push(Failure::new(complaint::unescaped(path), how));
            }
        });
        let done = done.map_err(|cause| Error::target("rsync", cause))?;
        if matches!(done.ending(), Ending::Lost | Ending::Broken) {
            return Err(self.failed(&done));
        }
        differing.extend(done.failures(std::slice::from_ref(&source.path), [b".".to_vec()]));
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let (sizes, _) = scan(source.root.as_fd(), Scan { threads, attributes: false, opens: false }, |directory| {
            let files = directory.entries.iter().filter(|entry| entry.kind == Kind::File);
            Some(files.fold((0, 0), |(files, bytes), file| (files + 1, bytes + file.size_bytes)))
        });
        let (files, bytes) = sizes.into_iter().fold((0, 0), |(files, bytes), (f, b)| (files + f, bytes + b));
        Ok(Verified { files, bytes, seconds: 0.0, differing })
    }

    fn carry(&self, carry: &Carry<'_>) -> Result<()> {
        let changes = carry.changes;
        let gone = changes.gone_entries().chain(changes.gone.iter().cloned());
        let copies = self.copies_within(carry)?;
        let _ = self.copies.set(copies);
        let failed_before = lock(&carry.failures).len();
        if carry.is_known && carry.plan.cost_s() < self.least_s(&self.nodes[0]) {
            // Little to do is one list: starting a second rsync takes as long as all of it. What is gone goes first, so that
            // its directories have their times afterwards.
            let began = Instant::now();
            self.delete(carry, gone)?;
            self.little(carry)?;
            carry.progress.workers()[0].add(carry.plan.files(), carry.plan.bytes());
            carry.progress.workers()[0].worked(began.elapsed());
            return Ok(());
        }
        let made = if carry.was_empty { made_on_the_way(carry) } else { HashSet::new() };
        let is_left = |changed: &Changed| !made.contains(&*changed.directory.path);
        self.directories(carry, |changed| changed.is_new && is_left(changed))?;
        self.work(carry)?;
        carry.progress.finish();
        if carry.is_known {
            self.delete(carry, gone)?;
        } else if !carry.was_empty {
            let has_failed = carry.has_unread || lock(&carry.failures).len() > failed_before;
            self.delete_strangers(carry, has_failed)?;
        }
        // Whoever could not carry everything may not have come to its directories.
        let has_failed = !lock(&carry.failures).is_empty();
        self.directories(carry, |changed| changed.has_new_meta && (has_failed || is_left(changed)))
    }
}

/// Directories that workers make on their way to what they carry, and whose times and permissions they set at their end, the last
/// one last: where there is nothing yet, nothing but they is at work in them. A worker that finds one there does not mind. None
/// where a directory has attributes, which may be lists that what comes into it inherits.
fn made_on_the_way<'c>(carry: &Carry<'c>) -> HashSet<&'c [u8]> {
    let changes = carry.changes;
    let mut made = HashSet::new();
    if changes.directories.iter().any(|changed| changed.directory.has_attributes) {
        return made;
    }
    let links = changes.links.keys().map(|&(directory, entry)| Job { directory, entry });
    for job in carry.plan.jobs.iter().copied().chain(links) {
        let mut path: &[u8] = &changes.directories[job.directory].directory.path;
        while made.insert(path) && !path.is_empty() {
            path = split(path).0;
        }
    }
    made
}

impl Rsync {
    /// All workers, until nothing is left to be handed out.
    fn work(&self, carry: &Carry<'_>) -> Result<()> {
        let mut links = Links::new();
        carry.changes.links.iter().for_each(|(link, first)| links.entry(*first).or_default().push(*link));
        let workers = carry.options.all_workers();
        let working = AtomicUsize::new(workers);
        let lost = std::thread::scope(|scope| {
            let links = &links;
            let working = &working;
            let threads: Vec<_> =
                (0..workers).map(|worker| scope.spawn(move || self.worker(worker, carry, links, working))).collect();
            threads
                .into_iter()
                .filter_map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect::<Vec<Lost>>()
        });
        self.sweep(carry, lost.iter().flat_map(|lost| &lost.jobs));
        let why = lost.first().map_or("no worker came to it", |lost| &lost.why);
        if lost.len() == workers {
            return Err(Error::target(self.target.to_string(), why));
        }
        carry.fail_rest(why);
        Ok(())
    }

    /// One worker: one rsync after the other. What it leaves to others, where its node or the target went.
    fn worker(&self, worker: usize, carry: &Carry<'_>, links: &Links, working: &AtomicUsize) -> Option<Lost> {
        let node = &self.nodes[worker % self.nodes.len()];
        let least_s = self.least_s(node);
        loop {
            let units = lock(&carry.dealer).take(worker, least_s);
            if units.is_empty() {
                // Whose node dies may still give something back.
                working.fetch_sub(1, Relaxed);
                while working.load(Relaxed) > 0 && !lock(&carry.dealer).has_any(worker) {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                if !lock(&carry.dealer).has_any(worker) {
                    return None;
                }
                working.fetch_add(1, Relaxed);
                continue;
            }
            let jobs: Vec<Job> =
                units.iter().flat_map(|unit| &unit.pieces).map(|piece| carry.plan.jobs[piece.item]).collect();
            let began = Instant::now();
            let done = match self.transfer(worker, node, &jobs, carry, links) {
                Ok(done) if done.ending() != Ending::Lost => done,
                lost => {
                    let mut dealer = lock(&carry.dealer);
                    for unit in units {
                        dealer.give_back(worker, unit);
                    }
                    drop(dealer);
                    working.fetch_sub(1, Relaxed);
                    let why = lost.map_or_else(|cause| format!("rsync: {cause}"), |done| done.why());
                    return Some(Lost { why, jobs });
                }
            };
            let names = names(&jobs, links);
            carry.fail(done.failures(&self.roots(carry), names.iter().map(|name| name.path(carry.changes))));
            carry.fail(changed_meanwhile(carry, &names));
            carry.progress.workers()[worker].worked(began.elapsed());
            let bytes = jobs.iter().map(|job| job.bytes(carry.changes)).sum();
            let start_s = self.start_s(node);
            let carried_s = began.elapsed().as_secs_f64() - start_s;
            if carried_s > start_s {
                lock(&carry.learned).add(jobs.len() as u64, bytes, carried_s);
            }
        }
    }

    fn transfer(
        &self,
        worker: usize,
        node: &Node,
        jobs: &[Job],
        carry: &Carry<'_>,
        links: &Links,
    ) -> std::io::Result<Done> {
        let names = names(jobs, links);
        let paths: Vec<_> = names.iter().map(|name| name.path(carry.changes)).collect();
        let is_shared = jobs.iter().any(|job| job.need(carry.changes) == Need::SHARED);
        let in_place: &[&str] = if self.in_place && !is_shared { &["--inplace", "--no-W"] } else { &[] };
        let mut process = self.copying(carry, node.source.as_deref(), in_place);
        process.args([REPLACE]);
        process.args(compared(jobs, carry.changes));
        process.args(extras(jobs, &names, carry));
        let counter = &carry.progress.workers()[worker];
        let (mut files, mut bytes) = (0, 0);
        let done = process.carry(&carry.source.path, &paths, self.root(node), |is_file, size_bytes, sent_bytes| {
            counter.sent(sent_bytes);
            if is_file && files < jobs.len() as u64 {
                (files, bytes) = (files + 1, bytes + size_bytes);
                counter.add(1, size_bytes);
            }
        })?;
        if done.ending() != Ending::Lost {
            // What was the same at the target already was not told.
            let all: u64 = jobs.iter().map(|job| job.bytes(carry.changes)).sum();
            counter.add(jobs.len() as u64 - files, all.saturating_sub(bytes));
        }
        Ok(done)
    }

    /// What paths in complaints begin with.
    fn roots(&self, carry: &Carry<'_>) -> Vec<PathBuf> {
        let target = match &self.target {
            Target::Local(path) => path.clone(),
            Target::Rsync(text) if !text.contains("://") => {
                text.split_once(':').map_or_else(PathBuf::new, |(_, path)| path.into())
            }
            _ => PathBuf::new(),
        };
        vec![carry.source.path.clone(), target]
    }
}

/// For each file, the names that become links to it.
type Links = HashMap<(usize, usize), Vec<(usize, usize)>>;

/// What a worker is given, with all links to it: rsync keeps the hard links that one list has all names of.
fn names(jobs: &[Job], links: &Links) -> Vec<Job> {
    let linked = |job: &Job| links.get(&(job.directory, job.entry)).into_iter().flatten();
    let named = |job: &Job| linked(job).map(|&(directory, entry)| Job { directory, entry });
    jobs.iter().flat_map(|job| [*job].into_iter().chain(named(job))).collect()
}

/// The option that compares contents, where sizes and times say nothing of some file.
fn compared(jobs: &[Job], changes: &Changes) -> Option<&'static str> {
    let is_alike = |job: &Job| matches!(job.need(changes), Need::Contents { is_alike: true, .. });
    jobs.iter().any(is_alike).then_some(COMPARE)
}

/// Options that only some files need, and that cost something for all: hard links, holes, attributes. A file has those of whichever
/// directory it is made in until they are set.
fn extras(jobs: &[Job], names: &[Job], carry: &Carry<'_>) -> Vec<&'static str> {
    let changes = carry.changes;
    let has_attributes =
        |name: &Job| name.entry(changes).has_attributes || changes.directories[name.directory].directory.has_attributes;
    let are_plain = jobs.iter().all(|job| job.need(changes) == Need::NEW) && !names.iter().any(has_attributes);
    let mut extras = Vec::new();
    extras.extend((names.len() > jobs.len()).then_some("--hard-links"));
    extras.extend(jobs.iter().any(|job| job.entry(changes).is_sparse).then_some("--sparse"));
    if !carry.knows_attributes || !are_plain {
        extras.extend(["--acls", "--xattrs"]);
    }
    extras
}

/// Files that are not any more what the scan found: rsync does not notice what changes while it reads, so that what it carried
/// may be of two versions. What has vanished was carried before, or rsync has said so. Where a directory has become a link, it has
/// carried what that leads to.
fn changed_meanwhile<'c>(carry: &'c Carry<'_>, jobs: &'c [Job]) -> impl Iterator<Item = Failure> + 'c {
    let mut open: Option<(usize, rustix::io::Result<OwnedFd>)> = None;
    let has_changed = move |job: &&Job| {
        let entry = job.entry(carry.changes);
        if open.as_ref().is_none_or(|(at, _)| *at != job.directory) {
            let path = &carry.changes.directories[job.directory].directory.path;
            open = Some((job.directory, open_directory(carry.source.root.as_fd(), path)));
        }
        let stat = |directory| statat(directory, OsStr::from_bytes(&entry.name), AtFlags::SYMLINK_NOFOLLOW);
        match &open {
            Some((_, Ok(directory))) => {
                entry.kind == Kind::File && stat(directory).is_ok_and(|stat| !entry.is_still(&stat))
            }
            Some((_, Err(error))) => matches!(*error, Errno::LOOP | Errno::NOTDIR),
            None => false,
        }
    };
    jobs.iter().filter(has_changed).map(|job| Failure::new(job.path(carry.changes), CHANGED))
}

fn slashed(path: &Path) -> OsString {
    [path.as_os_str(), OsStr::new("/")].concat_os()
}

fn open(root: &Path) -> std::io::Result<OwnedFd> {
    Ok(rustix::fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}
