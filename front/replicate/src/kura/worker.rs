//! One worker: takes units of work, reads files, and sends them to its own end of the target.

use super::compare::Comparing;
use super::contents::{READ, Uncopied, read_full};
use super::failed::failed;
use super::large::{Large, Larges};
use super::limit::Limit;
use super::link::Link;
use super::message::{Present, Reply, Request, Small};
use crate::attributes;
use crate::balance::{Piece, Unit};
use crate::error::{CHANGED, Failure};
use crate::run::{Carry, Job, lock};
use crate::tree::{Entry, Kind, Need, open_directory};
use rustix::fs::{Mode, SeekFrom, fstat, openat, seek};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

/// A file of up to so many bytes goes into a message with others.
pub const SMALL: u64 = 1 << 20;
/// What a message of small files holds at most.
const BATCH: (usize, usize) = (1 << 20, 512);
/// Bytes of a large file in a message.
pub(super) const CHUNK: usize = 1 << 20;
/// What is compared at last.
pub(super) const FINE: u64 = 4 << 10;

/// What a reply is for.
pub(super) enum Ticket {
    /// Files that are at the target then, and their bytes.
    Files(u64, u64),
    /// Bytes of a large file.
    Bytes(u64),
    /// The last of a part of a large file: which file, and where the part begins.
    Part(usize, u64),
    /// A large file that is whole then.
    Finish(usize),
    /// Somebody waits for this reply.
    Call,
}

/// The link is gone, and why.
pub struct Lost(pub String);

pub(super) type Sent = Result<(), Lost>;

pub struct Worker<'a> {
    pub(super) carry: &'a Carry<'a>,
    pub(super) larges: &'a Larges,
    limit: &'a Limit,
    number: usize,
    link: Link,
    /// Units that were handed out and are not known to be done, by number, and what is waited for of each: that it was gone through, and
    /// messages' replies.
    open: BTreeMap<usize, (Unit, usize)>,
    /// The unit that messages are of.
    pub(super) unit: usize,
    /// What messages without a reply are for, and of which unit.
    tickets: VecDeque<(usize, Ticket)>,
    /// Parts whose sums were asked for, in the order of that.
    pub(super) comparing: VecDeque<Comparing<'a>>,
    directory: Option<(usize, OwnedFd)>,
    /// Contents of small files that are not sent yet, and whose they are.
    arena: Vec<u8>,
    batch: Vec<(Job, Range<usize>, attributes::Attributes)>,
    /// Bytes of attributes in it.
    attribute_bytes: usize,
}

impl<'a> Worker<'a> {
    pub fn new(carry: &'a Carry<'a>, larges: &'a Larges, limit: &'a Limit, number: usize, link: Link) -> Self {
        let (open, tickets, comparing, batch) = (BTreeMap::new(), VecDeque::new(), VecDeque::new(), Vec::new());
        Self {
            carry,
            larges,
            limit,
            number,
            link,
            open,
            unit: 0,
            tickets,
            comparing,
            directory: None,
            arena: Vec::new(),
            batch,
            attribute_bytes: 0,
        }
    }

    /// Works until nothing is left. What was not known to be done is given back when the link goes.
    pub fn work(mut self) -> Sent {
        for number in 0.. {
            let unit = lock(&self.carry.dealer).next(self.number);
            let is_over = unit.is_none() && self.open.is_empty();
            let done = match unit {
                Some(unit) => self.take(number, unit),
                None => self.settle(),
            };
            if done.is_err() {
                let mut dealer = lock(&self.carry.dealer);
                for (unit, _) in self.open.into_values() {
                    dealer.give_back(self.number, unit);
                }
                return done;
            }
            if is_over {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, number: usize, unit: Unit) -> Sent {
        let began = Instant::now();
        self.open.insert(number, (unit.clone(), 1));
        self.within(number, |worker| worker.go_through(&unit).inspect(|()| worker.learn(&unit, began)))
    }

    /// Does something of a unit that it is waited for. One of which nothing is waited for any more, nor for what that has led to, is done.
    pub(super) fn within(&mut self, unit: usize, work: impl FnOnce(&mut Self) -> Sent) -> Sent {
        let before = std::mem::replace(&mut self.unit, unit);
        work(self)?;
        self.unit = before;
        if let Some((_, awaited)) = self.open.get_mut(&unit) {
            *awaited -= 1;
            if *awaited == 0 {
                self.open.remove(&unit);
            }
        }
        Ok(())
    }

    fn learn(&self, unit: &Unit, began: Instant) {
        let files = unit.pieces.iter().filter(|piece| piece.offset_bytes == 0).count() as u64;
        let bytes = unit.pieces.iter().map(|piece| piece.length_bytes).sum();
        lock(&self.carry.learned).add(files, bytes, began.elapsed().as_secs_f64());
    }

    fn go_through(&mut self, unit: &Unit) -> Sent {
        for piece in &unit.pieces {
            let job = self.carry.plan.jobs[piece.item];
            match self.larges.get(piece.item) {
                Some(large) => self.part(piece, large)?,
                None => self.small(job)?,
            }
        }
        self.flush()
    }

    pub(super) fn fail(&self, job: Job, cause: impl ToString) {
        self.carry.fail([Failure::new(job.path(self.carry.changes), cause)]);
    }

    // Small entries.

    fn small(&mut self, job: Job) -> Sent {
        let changes = self.carry.changes;
        let entry = job.entry(changes);
        let bytes = self.arena.len() + self.attribute_bytes;
        let is_full = bytes + entry.size_bytes as usize > BATCH.0 || self.batch.len() >= BATCH.1;
        if is_full || self.batch.last().is_some_and(|(last, ..)| last.directory != job.directory) {
            self.flush()?;
        }
        let from = self.arena.len();
        match self.read(job, entry) {
            Ok(attributes) => {
                self.attribute_bytes += attributes::bytes(&attributes);
                self.batch.push((job, from..self.arena.len(), attributes));
            }
            Err(cause) => {
                self.arena.truncate(from);
                self.fail(job, cause);
            }
        }
        Ok(())
    }

    /// Appends contents to the arena, and returns attributes.
    fn read(&mut self, job: Job, entry: &Entry) -> Result<attributes::Attributes, String> {
        let has_contents = matches!(job.need(self.carry.changes), Need::Contents { .. });
        if entry.kind != Kind::File || !has_contents {
            if has_contents {
                self.arena.extend_from_slice(&entry.target);
            }
            let directory = self.directory(job).map_err(cause)?;
            return attributes::read(directory.as_fd(), &entry.name).map_err(cause);
        }
        let file = self.open(job, entry).map_err(cause)?;
        let from = self.arena.len();
        // One byte more than there should be, to see that there is none.
        self.arena.resize(from + entry.size_bytes as usize + 1, 0);
        let count = read_full(&file, 0, &mut self.arena[from..]).map_err(cause)?;
        self.arena.truncate(from + count);
        if count as u64 != entry.size_bytes || !is_unchanged(&file, entry) {
            return Err(CHANGED.to_owned());
        }
        attributes::of_file(file.as_fd()).map_err(cause)
    }

    fn flush(&mut self) -> Sent {
        if self.batch.is_empty() {
            return Ok(());
        }
        let (arena, batch) = (std::mem::take(&mut self.arena), std::mem::take(&mut self.batch));
        self.attribute_bytes = 0;
        self.goes(arena.len() as u64);
        let changes = self.carry.changes;
        let files = batch.iter().map(|(job, range, attributes)| {
            let entry = job.entry(changes);
            let has_contents = matches!(job.need(changes), Need::Contents { .. });
            let contents = has_contents.then(|| arena[range.clone()].into());
            Small { name: &entry.name, kind: entry.kind, meta: entry.meta, attributes: attributes.clone(), contents }
        });
        let directory = &changes.directories[batch[0].0.directory].directory.path;
        let request = Request::Batch { directory, files: files.collect() };
        let done = self.post(request, Ticket::Files(batch.len() as u64, arena.len() as u64));
        self.arena = arena;
        self.arena.clear();
        done
    }

    fn directory(&mut self, job: Job) -> rustix::io::Result<&OwnedFd> {
        if self.directory.as_ref().is_none_or(|(open, _)| *open != job.directory) {
            let path = &self.carry.changes.directories[job.directory].directory.path;
            self.directory = Some((job.directory, open_directory(self.carry.source.root.as_fd(), path)?));
        }
        self.directory.as_ref().map(|(_, fd)| fd).ok_or(Errno::NOENT)
    }

    fn open(&mut self, job: Job, entry: &Entry) -> rustix::io::Result<File> {
        Ok(openat(self.directory(job)?, OsStr::from_bytes(&entry.name), READ, Mode::empty())?.into())
    }

    // Parts of large files.

    fn part(&mut self, piece: &Piece, large: &'a Large) -> Sent {
        self.flush()?;
        if large.is_over() {
            return Ok(());
        }
        let entry = large.job.entry(self.carry.changes);
        let file = match self.open(large.job, entry) {
            Ok(file) => file,
            Err(error) => {
                self.fail(large.job, cause(error));
                large.fail();
                return Ok(());
            }
        };
        let range = piece.offset_bytes..piece.offset_bytes + piece.length_bytes;
        let done = match large.present {
            Present::Refused => return Ok(()),
            Present::Zeroes => self.all(&file, large, entry, range),
            // To compare with an old version that is to be copied as well would be more to read, and nothing less to write.
            Present::Elsewhere if self.is_near() => self.all(&file, large, entry, range),
            Present::Something if self.is_near() => self.differences(&file, large, entry, range),
            Present::Something | Present::Elsewhere => {
                if large.present == Present::Elsewhere {
                    let keep = Request::Keep { at: large.at(), offset: range.start, length: piece.length_bytes };
                    self.post(keep, Ticket::Bytes(0))?;
                }
                return self.compare(piece, large, file);
            }
        };
        self.part_is_sent(piece, large, &file, done)
    }

    /// A part was read and sent, or could not be.
    pub(super) fn part_is_sent(&mut self, piece: &Piece, large: &Large, file: &File, done: Result<(), Broken>) -> Sent {
        match done {
            Ok(()) if is_unchanged(file, large.job.entry(self.carry.changes)) => {
                self.post(Request::Nothing, Ticket::Part(piece.item, piece.offset_bytes))
            }
            Ok(()) => {
                self.fail(large.job, CHANGED);
                large.fail();
                Ok(())
            }
            Err(Broken::Source(error)) => {
                self.fail(large.job, cause(error));
                large.fail();
                Ok(())
            }
            Err(Broken::Link(lost)) => Err(lost),
        }
    }

    /// Sends the bytes of a range that is zeroes at the target.
    fn all(&mut self, file: &File, large: &Large, entry: &Entry, range: Range<u64>) -> Result<(), Broken> {
        let mut at = range.start;
        while at < range.end {
            let data = if entry.is_sparse { next_data(file, at, range.end)? } else { at..range.end };
            self.count(data.start.min(range.end) - at);
            at = data.end;
            if !data.is_empty() {
                self.send(file, large, data)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, file: &File, large: &Large, data: Range<u64>) -> Result<(), Broken> {
        let mut offset = data.start;
        let mut buffer = Vec::new();
        while offset < data.end {
            let is_free = self.is_near() && !self.limit.is_set();
            let part = (data.end - offset).min(if is_free { 16 << 20 } else { CHUNK as u64 });
            self.goes(part);
            if let Link::Near(sink) = &mut self.link {
                // The kernel copies what is on one machine.
                match sink.data_of(large.at(), file, offset, part) {
                    Ok(()) => {}
                    Err(Uncopied::From(error)) => return Err(error.into()),
                    Err(Uncopied::To(error)) => {
                        large.fail();
                        self.carry.fail([failed(large.at().path, error)]);
                        return Ok(());
                    }
                }
                self.count(part);
            } else {
                buffer.resize(part as usize, 0);
                let count = read_full(file, offset, &mut buffer)?;
                let request = Request::Data { at: large.at(), offset, bytes: buffer[..count].into() };
                self.post(request, Ticket::Bytes(part))?;
            }
            offset += part;
        }
        Ok(())
    }

    /// Sends what differs of a range from what is at the target of this machine, which is read beside it.
    fn differences(&mut self, file: &File, large: &Large, entry: &Entry, range: Range<u64>) -> Result<(), Broken> {
        let (mut ours, mut theirs) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut offset = range.start;
        while offset < range.end {
            let part = (range.end - offset).min(CHUNK as u64) as usize;
            let count = read_full(file, offset, &mut ours[..part])?;
            let Link::Near(sink) = &mut self.link else { return Ok(()) };
            let runs = match sink.read(large.at(), offset, &mut theirs[..count]) {
                Ok(there) => {
                    theirs[there..count].fill(0);
                    runs(&ours[..count], &theirs[..count])
                }
                // What cannot be read there is written anew.
                Err(_) => std::iter::once(0..count).collect(),
            };
            let differing: usize = runs.iter().map(ExactSizeIterator::len).sum();
            self.count((part - differing) as u64);
            for run in runs {
                self.difference(large, entry, offset + run.start as u64, &ours[run])?;
            }
            offset += part as u64;
        }
        Ok(())
    }

    pub(super) fn difference(&mut self, large: &Large, entry: &Entry, offset: u64, bytes: &[u8]) -> Sent {
        let (at, length) = (large.at(), bytes.len() as u64);
        if entry.is_sparse && bytes.iter().all(|byte| *byte == 0) {
            return self.post(Request::Hole { at, offset, length }, Ticket::Bytes(length));
        }
        self.goes(length);
        self.post(Request::Data { at, offset, bytes: bytes.into() }, Ticket::Bytes(length))
    }

    fn is_near(&self) -> bool {
        matches!(self.link, Link::Near(_))
    }

    /// Waits until bytes may be sent, and counts them.
    fn goes(&self, bytes: u64) {
        self.limit.wait(bytes);
        self.carry.progress.workers()[self.number].sent(bytes);
    }

    /// Bytes that are at the target without having been sent.
    pub(super) fn count(&self, bytes: u64) {
        self.carry.progress.workers()[self.number].add(0, bytes);
    }

    // Messages.

    pub(super) fn post(&mut self, request: Request<'_>, ticket: Ticket) -> Sent {
        match self.link.send(request).map_err(Lost)? {
            Some(reply) if matches!(ticket, Ticket::Call) => {
                // Near, nothing is asked: what is there is read.
                drop(reply);
                Ok(())
            }
            Some(reply) => self.answered(ticket, reply),
            None => {
                self.open.entry(self.unit).and_modify(|(_, awaited)| *awaited += 1);
                self.tickets.push_back((self.unit, ticket));
                while !matches!(self.tickets.front(), Some((_, Ticket::Call))) {
                    let Some(reply) = self.link.receive(false).map_err(Lost)? else { break };
                    if let Some((unit, ticket)) = self.tickets.pop_front() {
                        self.within(unit, |worker| worker.answered(ticket, reply))?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Waits for the reply of the request that was called. The one who takes it is [`Self::within`] its unit.
    pub(super) fn await_call(&mut self) -> Result<Reply, Lost> {
        loop {
            let reply = self.link.receive(true).map_err(Lost)?;
            match (self.tickets.pop_front(), reply) {
                (Some((_, Ticket::Call)), Some(reply)) => return Ok(reply),
                (Some((unit, ticket)), Some(reply)) => self.within(unit, |worker| worker.answered(ticket, reply))?,
                _ => return Err(Lost("a reply is missing".to_owned())),
            }
        }
    }

    /// Waits until everything was answered.
    fn settle(&mut self) -> Sent {
        self.flush()?;
        while !self.comparing.is_empty() {
            self.compare_on()?;
        }
        while let Some((unit, ticket)) = self.tickets.pop_front() {
            let reply = self.link.receive(true).map_err(Lost)?;
            let reply = reply.ok_or_else(|| Lost("a reply is missing".to_owned()))?;
            self.within(unit, |worker| worker.answered(ticket, reply))?;
        }
        Ok(())
    }

    fn answered(&mut self, ticket: Ticket, reply: Reply) -> Sent {
        let failures = match reply {
            Reply::Done(failures) => failures,
            Reply::Refused(why) => return Err(Lost(why)),
            _ => Vec::new(),
        };
        for failure in &failures {
            self.larges.fail(&failure.path);
        }
        self.carry.fail(failures);
        let counter = &self.carry.progress.workers()[self.number];
        match ticket {
            Ticket::Files(files, bytes) => counter.add(files, bytes),
            Ticket::Bytes(bytes) => counter.add(0, bytes),
            Ticket::Part(item, offset) => {
                if let Some(large) = self.larges.get(item).filter(|large| large.part_is_done(offset)) {
                    return self.finish(item, large);
                }
            }
            Ticket::Finish(item) => {
                counter.add(1, 0);
                if let Some(large) = self.larges.get(item) {
                    large.finish();
                }
            }
            Ticket::Call => {}
        }
        Ok(())
    }

    /// All parts of a large file are there.
    fn finish(&mut self, item: usize, large: &Large) -> Sent {
        let entry = large.job.entry(self.carry.changes);
        let file = self.open(large.job, entry).map_err(cause);
        let file = file.and_then(|file| if is_unchanged(&file, entry) { Ok(file) } else { Err(CHANGED.to_owned()) });
        match file.and_then(|file| attributes::of_file(file.as_fd()).map_err(cause)) {
            Ok(attributes) => {
                let request = Request::Finish { at: large.at(), meta: entry.meta, attributes };
                self.post(request, Ticket::Finish(item))
            }
            Err(cause) => {
                self.fail(large.job, cause);
                Ok(())
            }
        }
    }
}

fn plain(error: &std::io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}

/// Why a file of the source cannot be carried.
pub fn cause(error: impl Into<std::io::Error>) -> String {
    let error = error.into();
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => "source: it vanished while it was copied".to_owned(),
        // Something else has its name, or that of a directory above it: a link, which is not followed, a pipe, a file.
        Some(Errno::LOOP | Errno::SPIPE | Errno::NOTDIR | Errno::ISDIR | Errno::NXIO) => CHANGED.to_owned(),
        _ => format!("source: {}", plain(&error)),
    }
}

/// Why a part of a large file was not sent.
pub(super) enum Broken {
    Source(std::io::Error),
    Link(Lost),
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Self {
        Self::Source(error)
    }
}

impl From<Lost> for Broken {
    fn from(lost: Lost) -> Self {
        Self::Link(lost)
    }
}

/// Whether an open file still is what the scan found.
fn is_unchanged(file: &File, entry: &Entry) -> bool {
    fstat(file).is_ok_and(|stat| entry.is_still(&stat))
}

/// The next data of a sparse file from `at` on, up to `end`; empty at `end` where there is none.
fn next_data(file: &File, at: u64, end: u64) -> std::io::Result<Range<u64>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) if data < end => {
            let hole = seek(file, SeekFrom::Hole(data))?;
            Ok(data..hole.min(end))
        }
        Ok(_) | Err(Errno::NXIO) => Ok(end..end),
        Err(error) => Err(error.into()),
    }
}

/// Runs of blocks that differ between two buffers of the same length.
fn runs(ours: &[u8], theirs: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    if ours == theirs {
        return runs;
    }
    for start in (0..ours.len()).step_by(FINE as usize) {
        let end = (start + FINE as usize).min(ours.len());
        match runs.last_mut() {
            _ if ours[start..end] == theirs[start..end] => {}
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_blocks_that_differ() {
        let ours = vec![7_u8; 5 * 4096 + 10];
        let with = |places: &[usize]| {
            let mut theirs = ours.clone();
            for place in places {
                theirs[*place] = 8;
            }
            runs(&ours, &theirs)
        };
        assert_eq!(with(&[]), []);
        assert_eq!(with(&[4096, 8192, 20_489]), [4096..12288, 20480..20490]);
        assert_eq!(with(&[0, 3 * 4096, 5 * 4096 + 9]), [0..4096, 3 * 4096..4 * 4096, 5 * 4096..5 * 4096 + 10]);
    }
}
