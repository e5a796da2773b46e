//! Working with the copy, and back.

use super::{Facts, Options, Place, Source, run};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::marker::{Marker, State};
use crate::origin::Origin;
use crate::progress::Progress;
use crate::run::Summary;
use crate::target::Target;
use std::path::Path;
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
    // Else it would be part of the tree that is worked with.
    carrier.sweep()?;
    carrier.mark(&Marker { state: State::Released, lacks, volatile: false, ..marker.clone() }, true)?;
    Ok(marker)
}

/// Makes the source as the copy that was worked with, and the copy a copy again. Nobody may change either meanwhile. Where the copy is
/// on another machine, a run there has brought its work to the source.
///
/// What a copy lacks that was not all of the source when it was failed over to is nowhere but at the source, and stays there. So does
/// what nobody has changed in such a copy since: it may be older than the source's. That is told, and the copy becomes one again, into
/// which the next run carries it, only where that is asked for.
pub fn failback(job: &Job, options: &Options, anyway: bool, back: &Place, progress: &Progress) -> Result<Summary> {
    let target = job.target()?;
    let source = job.source.tree()?;
    let carrier = options.carrier(&target);
    carrier.hold(false)?;
    let begun =
        Summary::begun(&Origin::Tree(target.to_string().into()), &Target::Local(source.to_owned()), SystemTime::now());
    let ended = Summary { is_complete: !options.dry_run, dry_run: options.dry_run, ..begun };
    let marker = match carrier.facts(false)?.marker {
        Some(marker) if marker.state == State::Released => marker,
        // The copy's marker is the last that changes: what was cut off after that is done, and only the job does not know it.
        Some(_) if job.failed_over => return Ok(ended),
        _ => return Err(Error::target(target.to_string(), "it was not failed over")),
    };
    let summary = match &target {
        Target::Local(copy) => {
            let options = Options { adopt: true, recheck: true, nodes: Vec::new(), with: None, ..options.clone() };
            let mut summary = run(copy, &Target::Local(source.to_owned()), &options, back, progress)?;
            // All work is back where only such is told as stays at the source in any case.
            summary.is_complete |= anyway && !summary.dry_run && summary.has_only_what_stays();
            summary
        }
        _ if is_back(source, &marker, anyway)? => ended,
        _ => return Err(Error::target(target.to_string(), ELSEWHERE)),
    };
    if summary.is_complete {
        let source = Source::open(source)?;
        Marker::remove(&source.path).map_err(|cause| Error::state(&source.path, cause))?;
        // What became of the source since that run nobody has seen: then the next one looks.
        let is_same = !marker.lacks && matches!(target, Target::Local(_));
        let point = Some(summary.started_at.clone()).filter(|_| is_same);
        let state = if is_same { State::Complete } else { State::Unfinished };
        let again = Marker { state, recovery_point: point, lacks: false, ..marker };
        carrier.mark(&again, true)?;
    }
    Ok(summary)
}

/// How work is brought back from another machine.
const ELSEWHERE: &str = "its work is brought back from its machine: `kura replicate run COPY SOURCE --adopt` there, until nothing is told, \
     then this again; with --anyway where only such is told as stays at the source";

/// Whether a run from the copy with this marker has brought all its work to the source.
fn is_back(source: &Path, copy: &Marker, anyway: bool) -> Result<bool> {
    let marker = Marker::read(source).map_err(|cause| Error::state(source, cause))?;
    let has_all = |marker: &Marker| marker.state == State::Complete || (anyway && marker.state == State::Partial);
    Ok(marker.is_some_and(|marker| marker.back == Some(copy.run) && has_all(&marker)))
}
