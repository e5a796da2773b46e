//! Recording what clients ask of a volume, while they ask it.
//!
//! ```text
//!   client ──> Recorder ──> Volume          a request passes as it is, or leaves an entry
//!                 │ Tap                     one a volume: reaches the clients that are there already
//!              Recording ── Ring            the newest entries, overwritten by newer ones; copied out in pieces
//! ```
//!
//! All of it is on the controller's thread: an entry costs two looks at the clock and no lock. A recording lives in
//! memory, until it is deleted, its volume is, or the server ends. That of a snapshot which a full pool drops stays until it is deleted.

mod layer;
mod ring;
#[cfg(test)]
mod tests;

pub(crate) use layer::{Recorder, Tap};
pub(crate) use ring::Ring;
pub use ring::{Entry, Op};

use crate::{Controller, Door, Node};
use kura_block::{Error, Result};
use layer::Recording;
use std::rc::Rc;
use std::time::Duration;

/// A recording as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingInfo {
    /// The volume's name.
    pub volume: String,
    /// True as long as requests are recorded.
    pub running: bool,
    /// When it began, since the beginning of 1970, as whoever began it said.
    pub time_of_day: Duration,
    /// Bytes of memory it may take.
    pub memory_bytes: u64,
    /// Requests it has seen.
    pub requests: u64,
    /// The oldest of them, which newer ones have overwritten.
    pub overwritten: u64,
}

impl Recording {
    fn describe(&self, volume: &str) -> RecordingInfo {
        let ring = self.ring.borrow();
        RecordingInfo {
            volume: volume.to_owned(),
            running: self.running.get(),
            time_of_day: self.time_of_day,
            memory_bytes: ring.memory_bytes(),
            requests: ring.next(),
            overwritten: ring.oldest(),
        }
    }
}

/// The requests of a recording, read in pieces that keep the controller for microseconds only.
pub struct RecordedRequests {
    door: Door,
    recording: RecordingInfo,
    next: u64,
}

/// Requests in a piece.
const PIECE: usize = 4096;

impl RecordedRequests {
    /// The recording as it was when reading began; what arrives later is not read.
    pub fn recording(&self) -> &RecordingInfo {
        &self.recording
    }

    /// More requests, in the order in which they arrived, with the number of the first, counted from the recording's
    /// first; none at the end. Where the recording overwrites what was not read yet, numbers are missing.
    pub async fn next(&mut self) -> Result<Option<(u64, Vec<Entry>)>> {
        let (volume, begun) = (self.recording.volume.clone(), self.recording.time_of_day);
        let (from, end) = (self.next, self.recording.requests);
        let copy = move |controller: &Rc<Controller>| -> Result<(u64, Vec<Entry>)> {
            let recording = controller.find_recording(&volume)?;
            // Another one may have begun since.
            let is_it = recording.time_of_day == begun;
            if is_it { Ok(recording.ring.borrow().copy(from..end, PIECE)) } else { Err(nothing_recorded(&volume)) }
        };
        let (first, requests) = self.door.ask(copy).await??;
        self.next = first + requests.len() as u64;
        Ok(if requests.is_empty() { None } else { Some((first, requests)) })
    }
}

impl Controller {
    /// Begins to record a volume's requests. `time_of_day` is the present, since the beginning of 1970: the engine
    /// does not know it.
    pub fn record(&self, volume: &str, memory_bytes: u64, time_of_day: Duration) -> Result<RecordingInfo> {
        // Refuses a volume that is not here.
        self.store().open(volume)?;
        let tap = self.tap(volume);
        if let Some(there) = tap.recording() {
            let text = if there.running.get() {
                format!("volume {volume}: it is being recorded already: `kura trace stop {volume}` stops that")
            } else {
                format!("volume {volume}: a recording of it is kept: `kura trace delete {volume}` drops it")
            };
            return Err(Error::exists(text));
        }
        let recording = Recording::new(Rc::clone(self.runtime()), memory_bytes, time_of_day)?;
        let recording = Rc::new(recording);
        tap.set(Some(Rc::clone(&recording)));
        Ok(recording.describe(volume))
    }

    /// Its recordings, by volume.
    pub fn recordings(&self) -> Vec<RecordingInfo> {
        let taps = self.taps().borrow();
        taps.iter().filter_map(|(volume, tap)| Some(tap.recording()?.describe(volume))).collect()
    }

    /// The recording of a volume.
    pub fn recording(&self, volume: &str) -> Result<RecordingInfo> {
        Ok(self.find_recording(volume)?.describe(volume))
    }

    /// Ends a recording; what it holds stays.
    pub fn stop_recording(&self, volume: &str) -> Result<RecordingInfo> {
        let recording = self.find_recording(volume)?;
        recording.running.set(false);
        Ok(recording.describe(volume))
    }

    /// Ends the recording of a volume, if there is one, and takes its memory off this thread: giving much of it back
    /// takes a while.
    pub(crate) fn drop_recording(&self, volume: &str) -> Option<Ring> {
        let tap = self.taps().borrow().get(volume).cloned()?;
        let recording = tap.recording()?;
        recording.running.set(false);
        tap.set(None);
        // Requests in flight may hold the recording, not its memory.
        Some(recording.ring.take())
    }

    pub(crate) fn find_recording(&self, volume: &str) -> Result<Rc<Recording>> {
        let tap = self.taps().borrow().get(volume).cloned();
        tap.and_then(|tap| tap.recording()).ok_or_else(|| nothing_recorded(volume))
    }
}

fn nothing_recorded(volume: &str) -> Error {
    Error::missing(format!("volume {volume}: nothing is recorded; `kura trace record {volume}` begins"))
}

impl Node {
    /// Begins to record a volume's requests, of which the newest are kept in `memory_bytes` of memory. `time_of_day` is
    /// the present, since the beginning of 1970.
    pub async fn record(&self, volume: &str, memory_bytes: u64, time_of_day: Duration) -> Result<RecordingInfo> {
        self.ask_owner(volume, move |controller, volume| controller.record(volume, memory_bytes, time_of_day)).await
    }

    /// All recordings, by volume.
    pub async fn recordings(&self) -> Result<Vec<RecordingInfo>> {
        let each = self.ask_each(|controller| controller.recordings()).await?;
        let mut recordings: Vec<_> = each.into_iter().flatten().collect();
        recordings.sort_by(|one, other| one.volume.cmp(&other.volume));
        Ok(recordings)
    }

    /// The recording of a volume, also of one that is gone.
    pub async fn recording(&self, volume: &str) -> Result<RecordingInfo> {
        Ok(self.at_recording(volume, |controller, volume| controller.recording(volume).ok()).await?.1)
    }

    /// The requests of a recording that are there now.
    pub async fn recorded(&self, volume: &str) -> Result<RecordedRequests> {
        let ask = |controller: &Controller, volume: &str| controller.recording(volume).ok();
        let (door, recording) = self.at_recording(volume, ask).await?;
        Ok(RecordedRequests { door, next: recording.overwritten, recording })
    }

    /// Ends a recording; what it holds stays.
    pub async fn stop_recording(&self, volume: &str) -> Result<RecordingInfo> {
        Ok(self.at_recording(volume, |controller, volume| controller.stop_recording(volume).ok()).await?.1)
    }

    /// Drops a recording.
    pub async fn delete_recording(&self, volume: &str) -> Result<()> {
        self.at_recording(volume, Controller::drop_recording).await.map(drop)
    }

    /// What the controller that has a volume's recording says, and its door. All are asked: a full pool drops a snapshot, and its
    /// recording stays.
    async fn at_recording<T: Send + 'static>(
        &self,
        volume: &str,
        ask: impl Fn(&Controller, &str) -> Option<T> + Clone + Send + 'static,
    ) -> Result<(Door, T)> {
        let name = volume.to_owned();
        let each = self.ask_each(move |controller| ask(controller, &name)).await?;
        let said = self.doors.iter().zip(each).find_map(|(door, said)| Some((door.clone(), said?)));
        if said.is_none() {
            self.find(volume).await?;
        }
        said.ok_or_else(|| nothing_recorded(volume))
    }
}
