//! Working with the copy, and back.

use super::{Options, Place, Source, run};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::marker::{Marker, State};
use crate::progress::Progress;
use crate::run::Summary;
use crate::target::Target;

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
    carrier.hold()?;
    let Some(marker) = carrier.facts(false)?.marker else { return refuse("there is no copy any more") };
    match marker.state {
        State::Released => return refuse("it was failed over already"),
        State::Complete => {}
        State::Unfinished | State::Partial if anyway => {}
        State::Partial => return refuse("the last run could not carry everything: run it again, or say --anyway"),
        State::Unfinished => {
            return refuse("a run was cut off, and some files are newer than others: run it again, or say --anyway");
        }
    }
    let lacks = marker.state != State::Complete;
    carrier.mark(&Marker { state: State::Released, lacks, ..marker.clone() }, true)?;
    Ok(marker)
}

/// Makes the source as the copy that was worked with, and the copy a copy again. Nobody may change either meanwhile.
///
/// What a copy lacks that was not all of the source when it was failed over to is nowhere but at the source, and stays there.
pub fn failback(job: &Job, options: &Options, back: &Place, progress: &Progress) -> Result<Summary> {
    let target = job.target()?;
    let Target::Local(copy) = &target else {
        let text = "bringing work back is done where the copy is: `kura replicate run` there, from it to the source";
        return Err(Error::target(target.to_string(), text));
    };
    let marker = Marker::read(copy).map_err(|error| Error::target(target.to_string(), error))?;
    let Some(marker) = marker.filter(|marker| marker.state == State::Released) else {
        return Err(Error::target(target.to_string(), "it was not failed over"));
    };
    let how = Options { adopt: true, recheck: true, nodes: Vec::new(), with: None, ..options.clone() };
    let options = Options { deletes_nothing: marker.lacks, ..how };
    let summary = run(copy, &Target::Local(job.source.tree()?.to_owned()), &options, back, progress)?;
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
