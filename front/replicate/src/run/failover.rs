//! Working with the copy, and back.

use super::{Facts, Options, Place, Source, run};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::marker::{Marker, State};
use crate::origin::Origin;
use crate::progress::Progress;
use crate::run::Summary;
use crate::target::Target;
use crate::tree::{MARKER, Time};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

/// Lets go of a job's copy, so that one can work with it: no run changes it any more. Returns what it is a copy of.
///
/// A copy in which some files are newer than others is let go only where that is asked for.
pub fn failover(job: &Job, options: &Options, anyway: bool) -> Result<Marker> {
    let target = job.target()?;
    let refuse = |cause: &str| Err(Error::target(target.to_string(), cause));
    if options.carrier(&target).facts(false)?.marker.is_none() {
        return refuse("there is no copy yet");
    }
    let carrier = options.carrier(&target);
    carrier.hold(false)?;
    let Facts { marker, boot, .. } = carrier.facts(false)?;
    let Some(marker) = marker else { return refuse("there is no copy any more") };
    let is_suspect = marker.is_suspect(&boot);
    match marker.state {
        State::Released => return refuse("it was failed over already"),
        State::Complete | State::Partial if is_suspect && !anyway => {
            return refuse(
                "its machine has started anew, and the last run made nothing durable: run it again, or say --anyway",
            );
        }
        State::Complete => {}
        State::Unfinished | State::Partial if anyway => {}
        State::Partial => return refuse("the last run could not carry everything: run it again, or say --anyway"),
        State::Unfinished => {
            return refuse("a run was cut off, and some files are newer than others: run it again, or say --anyway");
        }
    }
    let lacks = marker.state != State::Complete || is_suspect;
    carrier.mark(&Marker { state: State::Released, lacks, volatile: false, ..marker.clone() }, true)?;
    Ok(marker)
}

/// Makes the source as the copy that was worked with, and the copy a copy again. Nobody may change either meanwhile.
///
/// What a copy lacks that was not all of the source when it was failed over to is nowhere but at the source, and stays there. So does
/// what nobody has changed in such a copy since: it may be older than the source's. That is told, and the copy becomes one again, into
/// which the next run carries it, only where that is asked for.
pub fn failback(job: &Job, options: &Options, anyway: bool, back: &Place, progress: &Progress) -> Result<Summary> {
    let target = job.target()?;
    let Target::Local(copy) = &target else {
        let text = "bringing work back is done where the copy is: `kura replicate run` there, from it to the source";
        return Err(Error::target(target.to_string(), text));
    };
    let marker = Marker::read(copy).map_err(|error| Error::target(target.to_string(), error))?;
    let marker = match marker {
        Some(marker) if marker.state == State::Released => marker,
        // The copy's marker is the last that changes: what was cut off after that is done, and only the job does not know it.
        Some(_) if job.failed_over => {
            let (from, to) = (Origin::Tree(copy.clone()), Target::Local(job.source.tree()?.to_owned()));
            let begun = Summary::begun(&from, &to, SystemTime::now());
            return Ok(Summary { is_complete: !options.dry_run, dry_run: options.dry_run, ..begun });
        }
        _ => return Err(Error::target(target.to_string(), "it was not failed over")),
    };
    let how = Options { adopt: true, recheck: true, nodes: Vec::new(), with: None, ..options.clone() };
    // One that came by rsync does not say it.
    let written = || copy.join(OsStr::from_bytes(MARKER)).symlink_metadata();
    let written = || written().map(|it| Time { s: it.ctime(), ns: it.ctime_nsec() as u32 });
    let released = marker.released.map_or_else(written, Ok);
    let released = released.map_err(|error| Error::target(target.to_string(), error))?;
    let options = Options { worked_since: marker.lacks.then_some(released), ..how };
    let mut summary = run(copy, &Target::Local(job.source.tree()?.to_owned()), &options, back, progress)?;
    // All work is back where only such is told as stays at the source in any case.
    summary.is_complete |= anyway && !summary.dry_run && summary.has_only_what_stays();
    if summary.is_complete {
        let source = Source::open(job.source.tree()?)?;
        Marker::remove(&source.path).map_err(|cause| Error::state(&source.path, cause))?;
        let point = Some(summary.started_at.clone()).filter(|_| !marker.lacks);
        let state = if marker.lacks { State::Unfinished } else { State::Complete };
        let again = Marker { state, recovery_point: point, lacks: false, ..marker };
        options.carrier(&target).mark(&again, true)?;
    }
    Ok(summary)
}
