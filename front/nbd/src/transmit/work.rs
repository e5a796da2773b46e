//! From a request to what the volume makes of it.

use super::input::Payload;
use crate::export::{Contexts, EXTENTS_LIMIT, Extent};
use crate::handshake::ALLOCATION;
use crate::memory::Grant;
use crate::protocol::{Command, Errno, Request, command_flag as flag, state};
use kura_block::{Block, Bufs, Error, Kind, Local, Run, RunKind};
use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// What a connection agreed on, and what bounds its requests.
pub struct Terms {
    /// The export's size when the connection began.
    pub size_bytes: u64,
    pub read_only: bool,
    pub structured: bool,
    /// The metadata contexts the client selected.
    pub contexts: Rc<[String]>,
    pub payload_bytes: u32,
}

/// A request that succeeded.
pub enum Answer {
    /// Nothing to tell.
    Done,
    /// The bytes read.
    Data(Bufs),
    /// What the selected contexts say of the range, from its start.
    Status(Vec<Vec<Extent>>),
}

/// Where one extent is enough, so much is asked for at first, and twice as much each time that all of it was alike.
const ONE_BYTES: u64 = 256 << 10;

/// What is served: a volume, and what is told of it beside its bytes.
#[derive(Clone, Copy)]
pub struct Served<'v> {
    pub volume: &'v dyn Block,
    pub contexts: &'v dyn Contexts,
}

/// A request that failed: the protocol's number, and a line for people.
#[derive(Debug)]
pub struct Failure {
    pub errno: Errno,
    pub text: Cow<'static, str>,
}

impl Failure {
    pub fn new(errno: Errno, text: &'static str) -> Self {
        Self { errno, text: Cow::Borrowed(text) }
    }
}

/// What becomes of a request.
pub type Outcome = Result<Answer, Failure>;

/// The volume's part of a request.
enum Work<'v> {
    Unit(Local<'v, kura_block::Result<()>>),
    Read(Local<'v, kura_block::Result<Bufs>>),
    Status(Local<'v, kura_block::Result<Vec<Vec<Extent>>>>),
}

/// A request and what became of it.
pub struct Answered {
    pub request: Request,
    /// When it arrived.
    pub arrived: Instant,
    pub outcome: Outcome,
    /// The memory of what was read, until the client has taken it.
    pub grant: Option<Grant>,
}

/// A request being served; a future that resolves to what became of it.
pub struct Working<'v> {
    request: Request,
    arrived: Instant,
    volume: &'v dyn Block,
    work: Work<'v>,
    /// Goes with the last use of what it was granted for.
    grant: Option<Grant>,
}

impl<'v> Working<'v> {
    /// Begins to serve `request`, with the payload of a write; refuses what must not come to the volume.
    pub fn begin(
        terms: &Terms,
        served: Served<'v>,
        request: Request,
        payload: Payload,
        arrived: Instant,
    ) -> Result<Self, Failure> {
        check(terms, &request)?;
        let work = start(terms, served, &request, payload.data)?;
        let volume = served.volume;
        Ok(Self { request, arrived, volume, work, grant: payload.grant })
    }

    fn failure(&self, error: &Error) -> Failure {
        let Request { command, offset, len, .. } = self.request;
        let shrunk = offset.saturating_add(u64::from(len)) > self.volume.geometry().size_bytes;
        let errno = match (error.kind(), command) {
            (Kind::Invalid, Command::Write | Command::WriteZeroes) if shrunk => Errno::NoSpc,
            // The snapshot of a context is gone, not the volume: there is no need to leave.
            (Kind::Missing, Command::BlockStatus) => Errno::Inval,
            _ => Errno::from(error),
        };
        Failure { errno, text: Cow::Owned(error.to_string()) }
    }
}

impl Future for Working<'_> {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        let this = &mut *self;
        let outcome = match &mut this.work {
            Work::Unit(work) => ready!(work.as_mut().poll(cx)).map(|()| Answer::Done),
            Work::Read(work) => ready!(work.as_mut().poll(cx)).map(Answer::Data),
            Work::Status(work) => ready!(work.as_mut().poll(cx)).map(Answer::Status),
        };
        let outcome = outcome.map_err(|error| this.failure(&error));
        let grant = this.grant.take().filter(|_| matches!(outcome, Ok(Answer::Data(_) | Answer::Status(_))));
        Poll::Ready(Answered { request: this.request, arrived: this.arrived, outcome, grant })
    }
}

/// Refuses what the protocol, the export or the limits do not allow.
fn check(terms: &Terms, request: &Request) -> Result<(), Failure> {
    let invalid = |text| Err(Failure::new(Errno::Inval, text));
    let allowed = flag::FUA
        | match request.command {
            Command::Read if terms.structured => flag::DF,
            Command::WriteZeroes => flag::NO_HOLE | flag::FAST_ZERO,
            Command::BlockStatus => flag::REQ_ONE,
            Command::Unknown(_) => return invalid("this server does not know this command"),
            _ => 0,
        };
    if request.flags & !allowed != 0 {
        return invalid("the request has a flag that does not belong to its command");
    }
    let writes = matches!(request.command, Command::Write | Command::Trim | Command::WriteZeroes);
    if writes && terms.read_only {
        return Err(Failure::new(Errno::Perm, "the export is read-only"));
    }
    let ranged = !matches!(request.command, Command::Flush | Command::Disconnect);
    let end = request.offset.checked_add(u64::from(request.len));
    if ranged && end.is_none_or(|end| end > terms.size_bytes) {
        let errno = match request.command {
            Command::Write | Command::WriteZeroes => Errno::NoSpc,
            _ => Errno::Inval,
        };
        return Err(Failure::new(errno, "the request leaves the export"));
    }
    if request.command == Command::Read && request.len > terms.payload_bytes {
        let errno = if terms.structured { Errno::Overflow } else { Errno::Inval };
        return Err(Failure::new(errno, "the read is larger than the server's largest payload: read less at once"));
    }
    if request.command == Command::BlockStatus && (terms.contexts.is_empty() || request.len == 0) {
        return invalid("a block status needs a metadata context, negotiated before, and a length");
    }
    Ok(())
}

/// Hands a request that was checked to the volume.
fn start<'v>(terms: &Terms, served: Served<'v>, request: &Request, data: Bufs) -> Result<Work<'v>, Failure> {
    let volume = served.volume;
    let (offset, len, fua) = (request.offset, request.len, request.has(flag::FUA) && !terms.read_only);
    let done = || Work::Unit(Box::pin(std::future::ready(Ok(()))));
    Ok(match request.command {
        Command::Read if len == 0 => Work::Read(Box::pin(std::future::ready(Ok(Bufs::new())))),
        Command::Write | Command::Trim | Command::WriteZeroes if len == 0 && !fua => done(),
        Command::Read => Work::Read(volume.read(offset, len as usize)),
        Command::Write => Work::Unit(volume.write(offset, data, fua)),
        Command::Flush => Work::Unit(volume.flush()),
        Command::Trim => Work::Unit(persisted(volume, volume.discard(offset, u64::from(len)), fua)),
        Command::WriteZeroes => {
            let keep = request.has(flag::NO_HOLE);
            // Only giving space back is surely faster than writing.
            if request.has(flag::FAST_ZERO) && (keep || !volume.geometry().discards) {
                return Err(Failure::new(Errno::NotSup, "zeroing here is not faster than writing"));
            }
            Work::Unit(persisted(volume, volume.write_zeroes(offset, u64::from(len), keep), fua))
        }
        Command::BlockStatus => Work::Status(Box::pin(status(Rc::clone(&terms.contexts), served, *request))),
        // A hint, and nothing is read ahead.
        Command::Cache | Command::Disconnect | Command::Unknown(_) => done(),
    })
}

/// What each of `contexts` says of a request's range.
async fn status(contexts: Rc<[String]>, served: Served<'_>, request: Request) -> kura_block::Result<Vec<Vec<Extent>>> {
    let (offset, len) = (request.offset, u64::from(request.len));
    let mut all = Vec::new();
    for context in &*contexts {
        let (mut extents, mut told) = (Vec::<Extent>::new(), 0);
        let mut piece = if request.has(flag::REQ_ONE) { ONE_BYTES } else { len };
        loop {
            let wanted = piece.min(len - told);
            let found = extents_of(context, served, offset + told, wanted).await?;
            let found_bytes = found.iter().map(|extent| extent.len_bytes).sum::<u64>();
            told += found_bytes;
            extents.extend(found);
            let is_alike = extents.windows(2).all(|pair| pair[0].flags == pair[1].flags);
            if told >= len || found_bytes < wanted || !is_alike {
                break;
            }
            piece *= 2;
        }
        all.push(extents);
    }
    Ok(all)
}

/// What a context says of a range, as far as one reply tells it.
async fn extents_of(context: &str, served: Served<'_>, offset: u64, len: u64) -> kura_block::Result<Vec<Extent>> {
    let mut extents = if context == ALLOCATION {
        served.volume.runs(offset, len).await?.iter().map(allocation).collect()
    } else {
        served.contexts.status(context, offset, len).await?
    };
    extents.truncate(EXTENTS_LIMIT);
    extents.shrink_to_fit();
    Ok(extents)
}

fn allocation(run: &Run) -> Extent {
    let flags = match run.kind {
        RunKind::Hole => state::HOLE | state::ZERO,
        RunKind::Zero => state::ZERO,
        RunKind::Data => 0,
    };
    Extent { len_bytes: run.len_bytes, flags }
}

/// `change`, followed by a flush when it must survive a crash.
fn persisted<'v>(
    volume: &'v dyn Block,
    change: Local<'v, kura_block::Result<()>>,
    fua: bool,
) -> Local<'v, kura_block::Result<()>> {
    if !fua {
        return change;
    }
    Box::pin(async move {
        change.await?;
        volume.flush().await
    })
}
