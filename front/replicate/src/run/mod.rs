//! A run: the source is scanned, what has changed is split into lists, workers carry them, and the target is marked
//! whole.
//!
//! ```text
//!   marker ──> scan against the catalogue ──> changes ──> lists ──> workers ──> links, deletions, times ──> marker, catalogue
//!   whose copy   (or the target's own tree)               balance    carry                                  durably
//! ```
//!
//! What must hold: the catalogue is written after the target is durable and marked with the same run, so that a run cut off
//! anywhere leaves a catalogue whose run is not the marker's, and the next one asks the target what it has.

mod failover;
mod options;
mod place;
mod plan;
mod record;
mod summary;
mod verify;

pub use failover::{failback, failover};
pub use options::{Node, Options, Split, With};
pub use place::{Place, last};
pub use summary::{Summary, Worker};
pub use verify::{Verified, verify};

pub(crate) use place::is_held;
pub(crate) use plan::{Job, Plan};
pub(crate) use verify::{Of, Summed, compare};

use crate::balance::{Dealer, Learned};
use crate::error::{Error, Failure, GONE, Result, STAYS, escaped};
use crate::marker::{Marker, State, boot_of, rfc3339};
use crate::origin::Origin;
use crate::progress::Progress;
use crate::target::{Target, identities, leads_to, owner, real};
use crate::tree::{By, Catalogue, Changes, Directory, Known, MARKER, Scan, Seen, Time, Unread, scan, scan_again};
use record::{Done, TICK};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};
use uuid::Uuid;

/// The tree that is copied.
pub(crate) struct Source {
    /// Absolute.
    pub path: PathBuf,
    /// Its root, open.
    pub root: OwnedFd,
    /// Of one that is a copy which was failed over to, its marker: work that was done in it is brought back.
    released: Option<Marker>,
}

impl Source {
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |cause: std::io::Error| Error::Source { path: path.to_owned(), cause };
        let absolute = path.canonicalize().map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&absolute, flags, Mode::empty()).map_err(|cause| failed(cause.into()))?;
        let released = released(&absolute).map_err(failed)?;
        Ok(Self { path: absolute, root, released })
    }

    /// Since when work was done in it, where it lacked something then.
    fn worked_since(&self) -> Option<Time> {
        self.released.as_ref().filter(|marker| marker.lacks).and_then(|marker| marker.released)
    }

    /// Whether its path still leads to it: it may have been unmounted since.
    pub fn is_in_place(&self) -> bool {
        leads_to(&self.path, &self.root)
    }

    /// As a marker names it.
    fn name(&self) -> String {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        format!("{host}:{}", self.path.display())
    }
}

/// The marker of a copy that was failed over to, and when; none of what is anything else.
fn released(root: &Path) -> std::io::Result<Option<Marker>> {
    let marker = match Marker::read(root) {
        // What has its name is the tree's own, and no file.
        Err(cause) if matches!(Errno::from_io_error(&cause), Some(Errno::ISDIR | Errno::LOOP)) => None,
        marker => marker?,
    };
    let Some(marker) = marker.filter(|marker| marker.state == State::Released) else { return Ok(None) };
    // One that came by rsync does not say when.
    let written = || root.join(OsStr::from_bytes(MARKER)).symlink_metadata();
    let written = || written().map(|it| Time { s: it.ctime(), ns: it.ctime_nsec() as u32 });
    let released = Some(marker.released.map_or_else(written, Ok)?);
    Ok(Some(Marker { released, ..marker }))
}

/// Everything that is carried, and who is told how it went.
pub(crate) struct Carry<'a> {
    pub source: &'a Source,
    pub changes: &'a Changes,
    pub plan: &'a Plan,
    pub options: &'a Options,
    pub progress: &'a Progress,
    /// All that the target has is known: what is to be deleted is in the changes.
    pub is_known: bool,
    /// Entries say whether they have extended attributes.
    pub knows_attributes: bool,
    /// Sizes and times of files there may be those of contents that were lost.
    pub is_suspect: bool,
    /// Some directory of the source could not be read: what only the target has may have come from there.
    pub has_unread: bool,
    /// The target had nothing when the run began.
    pub was_empty: bool,
    /// The run before has not carried all, or it is not known: there may be files that are not whole.
    pub sweeps: bool,
    pub dealer: Mutex<Dealer>,
    pub learned: Mutex<Learned>,
    pub failures: Mutex<Vec<Failure>>,
}

impl Carry<'_> {
    pub fn fail(&self, failures: impl IntoIterator<Item = Failure>) {
        lock(&self.failures).extend(failures);
    }

    /// What nobody was left to carry.
    pub fn fail_rest(&self, why: &str) {
        let rest = lock(&self.dealer).rest();
        let jobs = rest.iter().flat_map(|unit| &unit.pieces).map(|piece| self.plan.jobs[piece.item]);
        self.fail(jobs.map(|job| Failure::new(job.path(self.changes), why)));
    }
}

/// What a target says of itself.
#[derive(Default)]
pub(crate) struct Facts {
    /// None where it is no copy.
    pub marker: Option<Marker>,
    /// The nearest directory above it that is a copy itself, as far as can be seen.
    pub above: Option<String>,
    /// Which start it is of the machine that has its files; empty where nobody can say.
    pub boot: String,
    /// Which directory it is, and which are above it, as [`identities`] tells them; nothing where it does not say.
    pub lies_in: Vec<(u64, u64)>,
    /// Whose all files become that are written there; none where they can be given away, or nobody can say.
    pub owner: Option<(u32, u32)>,
}

impl Facts {
    /// Of a directory of this machine.
    pub fn of_directory(root: &Path) -> std::io::Result<Self> {
        let above = Marker::above(root).map(|above| above.display().to_string());
        Ok(Self { marker: Marker::read(root)?, above, boot: boot_of(root), lies_in: identities(root), owner: owner() })
    }
}

/// What carries to a kind of target.
pub(crate) trait Carrier: Sync {
    /// Takes the target for a run: for as long as this lives, no other run has it, wherever that comes from. Not all targets can.
    /// A directory of this machine that is not there is made, or else an error; kura's other end makes one only then, too.
    fn hold(&self, makes: bool) -> Result<()>;
    /// What is known before anything is compared. Where it is the first run, whether there is nothing will be asked, too.
    fn facts(&self, is_first: bool) -> Result<Facts>;
    /// Whether there is nothing at the target.
    fn is_empty(&self) -> Result<bool>;
    /// What the target has, and what of it cannot be read; none where it cannot tell, and the workers compare.
    fn tree(&self) -> Result<Option<(Catalogue, Vec<Failure>)>>;
    /// Whether several workers may carry parts of a file.
    fn cuts(&self) -> bool;
    /// Marks the target. Durably: the marker, and before it all that the target has, unless the marker says that this is
    /// unfinished.
    fn mark(&self, marker: &Marker, durably: bool) -> Result<()>;
    /// Removes what is not whole of a copy that no run goes on with, where that can be reached.
    fn sweep(&self) -> Result<()>;
    /// Carries everything. Files that could not be carried are told to `carry`; an error is the end of the run.
    fn carry(&self, carry: &Carry<'_>) -> Result<()>;
    /// Compares the target with the source, contents and all, with so many workers.
    fn verify(&self, source: &Source, workers: usize) -> Result<Verified>;
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the target as the source is. `place` keeps what the next run wants to know.
///
/// Of a source that is a copy which was failed over to when it lacked something, the target keeps what only it has, and all that was
/// not changed in the copy since then.
pub fn run(source: &Path, target: &Target, options: &Options, place: &Place, progress: &Progress) -> Result<Summary> {
    options.check(target)?;
    let began = (Instant::now(), SystemTime::now());
    let source = Source::open(source)?;
    let since = source.worked_since();
    let carrier = options.carrier(target);
    let catalogue = place.catalogue();
    let Facts { marker, boot, owner, .. } = meet(&source, target, &*carrier, catalogue.is_some(), options)?;
    let is_suspect = marker.as_ref().is_some_and(|marker| marker.is_suspect(&boot));
    // Where work is brought back, what only the target has is to be known, too.
    let may_be_left = !is_suspect && since.is_none();
    let is_left = catalogue.as_ref().is_some_and(|left| may_be_left && options.trusts(left, marker.as_ref()));
    let There { by, tree: known, unread: unread_there, doubted } = There::of(&*carrier, catalogue, is_left)?;
    let sweeps = options.recheck || marker.as_ref().is_some_and(|marker| marker.state != State::Complete);
    let there = Known { tree: &known, by, is_suspect, has_one_owner: owner.is_some() };
    let left = if is_left { Some(&known) } else { doubted.as_ref() };
    let (mut changes, unread) = look(&source, there, left.filter(|_| !options.allow_empty), progress);
    changes.doubt(doubted.as_ref(), by);
    let failures = [left_out(&mut changes, &unread, &known, since), unread_there.clone()].concat();
    refuse_unread_root(&source, &unread).and_then(|()| refuse_unknown(since, by, &unread_there))?;
    refuse_emptied(&source, &changes, Some(&known).filter(|_| by != By::Nobody), marker.as_ref(), &*carrier, options)?;
    let learned = place.learned();
    let plan = Plan::of(&changes, options, carrier.cuts(), &options.held(learned.cost().unwrap_or_default()));
    let mut summary = Summary::begun(&Origin::Tree(source.path.clone()), target, began.1);
    summary.plan(&changes, &plan, owner);
    if options.dry_run {
        return Ok(summary.only_planned(failures, began.0.elapsed()));
    }
    progress.carry(plan.files(), plan.bytes(), options.all_workers());
    let carry = Carry {
        source: &source,
        changes: &changes,
        plan: &plan,
        options,
        progress,
        is_known: by != By::Nobody,
        knows_attributes: by != By::Run,
        is_suspect,
        has_unread: unread.iter().any(|unread| unread.is_directory),
        was_empty: marker.is_none() && !options.adopt,
        sweeps,
        dealer: Mutex::new(Dealer::new(plan.lists.clone())),
        learned: Mutex::new(learned),
        failures: Mutex::new(failures),
    };
    // What the target told is kept, so that the next run need not ask it.
    let has_work = !changes.is_nothing() || by != By::Run || sweeps;
    let run = if has_work { Uuid::new_v4() } else { known.run() };
    // What a power cut has taken is not there before this run is through, even where it is cut off itself.
    let begun_in = marker.as_ref().filter(|_| is_suspect).map_or_else(|| boot.clone(), |marker| marker.boot.clone());
    // What an earlier run has left to be made durable is this one's, even where there is nothing else to do.
    let has_open = has_work || marker.as_ref().is_some_and(|marker| marker.volatile);
    let before = moment_before(marker, &source, place)?;
    let mark = |state, recovery_point| {
        let (boot, volatile, released, back) = (boot.clone(), has_open && !options.durable, None, None);
        Marker { source: source.name(), run, state, recovery_point, boot, volatile, lacks: false, released, back }
    };
    if has_work {
        // Durably before anything changes: what says complete after a power cut must be complete.
        carrier.mark(&Marker { boot: begun_in, ..mark(State::Unfinished, before.clone()) }, true)?;
        carrier.carry(&carry)?;
    }
    progress.finish();
    summary.stolen = lock(&carry.dealer).stolen();
    let failures = std::mem::take(&mut *lock(&carry.failures));
    let (state, point) = ended(&failures, began.1, before);
    carrier.mark(&Marker { back: back(&source, &failures), ..mark(state, point) }, has_open && options.durable)?;
    if has_work {
        let done = Done { changes: &changes, unread: &unread, failures: &failures, since: began.1, left };
        done.remember(place, if unread_there.is_empty() && since.is_none() { run } else { Uuid::new_v4() }, &known)?;
    }
    summary.end(&carry, failures, state, began.0.elapsed());
    place.end(&summary, &lock(&carry.learned))?;
    Ok(summary)
}

/// Refuses to bring work back to where it cannot be read what is there: it may be newer.
fn refuse_unknown(worked_since: Option<Time>, by: By, unread_there: &[Failure]) -> Result<()> {
    match unread_there.first().filter(|_| worked_since.is_some()) {
        _ if worked_since.is_some() && by == By::Nobody => {
            let text = "the source is a copy that lacked something when it was failed over to, and what is at the target may be newer: \
                        name it as a directory, kura://HOST:PORT/PATH or ssh://HOST/PATH, which tell what they have";
            Err(Error::Usage(text.to_owned()))
        }
        Some(Failure { path, cause, .. }) => {
            let text =
                format!("{}: {cause}: what is there may be newer than the copy: make it readable", escaped(path));
            Err(Error::Usage(text))
        }
        None => Ok(()),
    }
}

/// What is known of the target when a run begins.
struct There {
    by: By,
    tree: Catalogue,
    /// What of it cannot be read.
    unread: Vec<Failure>,
    /// What the run before has left, where that is not trusted any more.
    doubted: Option<Catalogue>,
}

impl There {
    fn of(carrier: &dyn Carrier, catalogue: Option<Catalogue>, is_left: bool) -> Result<Self> {
        let doubted = match catalogue {
            Some(tree) if is_left => return Ok(Self { by: By::Run, tree, unread: Vec::new(), doubted: None }),
            doubted => doubted,
        };
        Ok(match carrier.tree()? {
            Some((tree, unread)) => Self { by: By::Target, tree, unread, doubted },
            None => Self { by: By::Nobody, tree: Catalogue::default(), unread: Vec::new(), doubted },
        })
    }
}

/// What a run has made of the target, and the moment of the source that it has; `before` is the one before the run.
fn ended(failures: &[Failure], began: SystemTime, before: Option<String>) -> (State, Option<String>) {
    if failures.is_empty() { (State::Complete, Some(rfc3339(began))) } else { (State::Partial, before) }
}

/// Of which run the copy is whose work is back, where only such was left out as stays at the target in any case.
fn back(source: &Source, failures: &[Failure]) -> Option<Uuid> {
    let is_back = failures.iter().all(|failure| failure.cause == STAYS);
    source.released.as_ref().filter(|_| is_back).map(|released| released.run)
}

/// The moment that the copy is of before a run. One of another source, or of what was there before, is not, and is forgotten.
fn moment_before(marker: Option<Marker>, source: &Source, place: &Place) -> Result<Option<String>> {
    let before = marker.filter(|marker| marker.source == source.name()).and_then(|marker| marker.recovery_point);
    place.keep_point(before.is_some())?;
    Ok(before)
}

/// What is not carried in any case: what could not be read, and what stays as it is where work since then is brought back.
fn left_out(changes: &mut Changes, unread: &[Unread], known: &Catalogue, worked_since: Option<Time>) -> Vec<Failure> {
    let stays = worked_since.map(|since| changes.leave(known, since)).unwrap_or_default();
    let unread = unread.iter().map(|unread| Failure::new(unread.path.clone(), format!("source: {}", unread.cause)));
    unread.chain(stays.into_iter().map(|path| Failure::new(path, STAYS))).collect()
}

/// Scans the source and finds what has changed. `before` says what the last run found mounted in it.
fn look(source: &Source, known: Known<'_>, before: Option<&Catalogue>, progress: &Progress) -> (Changes, Vec<Unread>) {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 16);
    let how = Scan { threads, attributes: known.by != By::Run, opens: false };
    let not_carried = Mutex::new(Vec::new());
    let read = |directory: Directory| {
        progress.saw(directory.entries.len() as u64);
        if !directory.unfinished.is_empty() {
            lock(&not_carried).extend(directory.not_carried());
        }
        directory
    };
    let since = Time::of(SystemTime::now() - TICK);
    let root = source.root.as_fd();
    let (mut visited, mut unread) = scan(root, how, |directory| Some(known.visit(read(directory))));
    let again = |seen: &Seen<'_>| scan_again(root, how, seen, |directory| Some(read(directory)));
    known.look_again(&mut visited, &mut unread, since, again);
    unread.append(&mut lock(&not_carried));
    unread.extend(before.into_iter().flat_map(|before| known.unmounted(&mut visited, before)));
    let changes = known.changes(visited, &unread);
    (changes, unread)
}

fn refuse_inside(source: &Path, target: &Target) -> Result<()> {
    let Target::Local(target) = target else { return Ok(()) };
    let Some(target) = real(target) else { return Ok(()) };
    if target.starts_with(source) || source.starts_with(&target) {
        one_in_the_other(source, target.display())
    } else {
        Ok(())
    }
}

/// The same of a target that is reached some other way, and may be on this machine all the same.
fn refuse_inside_here(source: &Path, target: &Target, facts: &Facts) -> Result<()> {
    if facts.boot.is_empty() || facts.boot != boot_of(source) {
        return Ok(());
    }
    let here = identities(source);
    let is_in = |one: &[(u64, u64)], other: &[(u64, u64)]| other.first().is_some_and(|other| one.contains(other));
    if is_in(&facts.lies_in, &here) || is_in(&here, &facts.lies_in) { one_in_the_other(source, target) } else { Ok(()) }
}

fn one_in_the_other(source: &Path, target: impl std::fmt::Display) -> Result<()> {
    let text = format!("{} and {target} are one in the other: choose another target", source.display());
    Err(Error::Usage(text))
}

/// Takes the target for a run, if it is one to run to; what it says of itself.
fn meet(source: &Source, target: &Target, carrier: &dyn Carrier, had_copy: bool, options: &Options) -> Result<Facts> {
    refuse_inside(&source.path, target)?;
    if !options.dry_run {
        // What is not mounted must not be made where it would be.
        carrier.hold(!had_copy || options.adopt)?;
    }
    let facts = carrier.facts(!had_copy)?;
    refuse_inside_here(&source.path, target, &facts)?;
    refuse_others(source, target, &facts, carrier, options)?;
    if had_copy && facts.marker.is_none() && !options.adopt {
        return Err(Error::target(target.to_string(), GONE));
    }
    Ok(facts)
}

/// A target that somebody else uses is left alone.
fn refuse_others(
    source: &Source,
    target: &Target,
    facts: &Facts,
    carrier: &dyn Carrier,
    options: &Options,
) -> Result<()> {
    let refuse = |cause: String| Err(Error::target(target.to_string(), cause));
    if let Some(above) = &facts.above {
        let text = "a copy itself, the next run of which would delete it: choose another target";
        return refuse(format!("it is in {above}, {text}"));
    }
    match &facts.marker {
        Some(marker) if marker.state == State::Released => {
            refuse("it was failed over to and may hold newer work: `kura replicate failback` brings that back".to_owned())
        }
        Some(marker) if marker.source != source.name() && !options.adopt => refuse(format!(
            "it is the copy of {}: choose another target, or say --adopt to make it the copy of {}",
            marker.source,
            source.name()
        )),
        None if !options.adopt && !carrier.is_empty()? => refuse(
            "it is not empty and no copy of ours, and what is only there would be deleted: choose another target, or say --adopt"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

fn refuse_unread_root(source: &Source, unread: &[Unread]) -> Result<()> {
    match unread.iter().find(|unread| unread.path.is_empty()) {
        Some(unread) => {
            Err(Error::Source { path: source.path.clone(), cause: std::io::Error::other(unread.cause.clone()) })
        }
        None => Ok(()),
    }
}

/// A source that is suddenly empty is one that is not mounted, more often than not. A copy that does not tell what it has
/// may have anything.
fn refuse_emptied(
    source: &Source,
    changes: &Changes,
    known: Option<&Catalogue>,
    marker: Option<&Marker>,
    carrier: &dyn Carrier,
    options: &Options,
) -> Result<()> {
    let is_empty = changes.kept.is_empty()
        && matches!(&changes.directories[..], [root] if root.directory.entries.is_empty() && root.directory.path.is_empty());
    if !is_empty || options.allow_empty {
        return Ok(());
    }
    let has_any = match known {
        Some(known) => known.directories() > 1 || changes.directories.iter().any(|root| !root.gone.is_empty()),
        None => marker.is_some() || !carrier.is_empty()?,
    };
    if has_any {
        let text =
            "it is empty, and all of its copy would be deleted: is it mounted? Say --allow-empty to empty the copy too";
        return Err(Error::Source { path: source.path.clone(), cause: std::io::Error::other(text) });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
