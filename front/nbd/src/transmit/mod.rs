//! The second phase: requests and replies, on the thread that owns the volume.
//!
//! A connection is one task. A turn of it asks [`Connection::next`] for an action, applies it, and asks again:
//!
//! ```text
//!   socket ──> Input ──request──> Working ──(ready at once, or later through `working`)──> Replies ──> Output ──> socket
//! ```
//!
//! What is ready is answered before more is read. The first reply goes out at once, for the client to work on; those
//! after it in batches that double, the last one when nothing else is left to do. A request that the volume answers at
//! once costs neither a task nor a wake-up.

mod answer;
mod input;
mod output;
#[cfg(test)]
mod tests;
mod work;

use crate::export::{Contexts, Export};
use crate::hangup::Hangup;
use crate::limits::Limits;
use crate::meters::Meters;
use crate::protocol::{Command, Errno, Request};
use crate::session::Session;
use crate::tls::Stream;
use answer::Replies;
use futures::stream::{FuturesUnordered, StreamExt};
use input::{Incoming, Payload};
use kura_block::Block;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::coop;
use tokio::time::Sleep;
use work::{Answered, Failure, Served, Terms, Working};

pub(crate) use input::Input;

/// Replies of this many bytes go out before another is made.
const SEND_FIRST_BYTES: usize = 256 << 10;
/// How long the client may take to close its side after we closed ours.
const LINGER: Duration = Duration::from_secs(1);
/// What a client sends of a write, or takes of what it read, within [`Limits::stall_timeout`] at least, while others wait for the
/// memory it has; of more than eight times as much, an eighth.
const STALL_BYTES: usize = 1 << 20;

/// How serving a session ended.
pub enum Ended<S> {
    /// The client left, or was sent away.
    Left(Result<(), Hangup>),
    /// The volume is elsewhere, and nothing is in flight: the session goes on with it there.
    Moved(Box<Session<S>>),
}

/// Serves `session` from `volume`, of which `contexts` tells what the session selected, until the client leaves, or `stop` or
/// `moved` resolves; then lets the requests in flight end, and reads no more. Once stopped, it closes: clients that connect again
/// repeat what was not answered, where an `ESHUTDOWN`, which the protocol allows, would be an error for whoever uses them. Once
/// moved, what comes waits for whoever serves the session next.
pub async fn transmit<S>(
    session: Session<S>,
    volume: Rc<dyn Block>,
    contexts: &impl Contexts,
    limits: &Limits,
    stop: impl Future<Output = ()>,
    moved: impl Future<Output = ()>,
) -> Ended<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = Connection::new(session, Served { volume: &*volume, contexts }, limits);
    let (mut stop, mut moved) = (pin!(stop), pin!(moved));
    poll_fn(|cx| connection.turn(stop.as_mut(), moved.as_mut(), cx)).await;
    if connection.phase == Phase::Moving {
        return Ended::Moved(Box::new(connection.into_session()));
    }
    Ended::Left(connection.close().await)
}

/// What a client does with memory that it has and all connections share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    /// It sends a write, which is not complete.
    Sends,
    /// It takes replies.
    Takes,
}

/// How far it has come.
#[derive(Clone, Copy)]
struct Withheld {
    deed: Deed,
    /// Moved so far, in bytes, of this and of all before.
    moved: usize,
    /// How much memory it has, in bytes.
    held: usize,
}

impl Withheld {
    /// What it should do.
    fn what(self) -> &'static str {
        match self.deed {
            Deed::Sends => "send the data of a write while others wait",
            Deed::Takes => "take the data that it read while others wait",
        }
    }

    /// True when it has moved enough since `before`.
    fn moves_since(self, before: Self) -> bool {
        self.moved >= before.moved + STALL_BYTES.max(before.held / 8)
    }
}

/// Whether a connection takes requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Requests are served.
    Open,
    /// The volume is elsewhere: what is in flight ends, and nothing more is read here.
    Moving,
    /// Nothing more is read.
    Closing,
}

/// What a connection does next.
enum Action {
    /// Answers a request.
    Answer(Answered),
    /// Goes on without reading: the client is through, or sent what cannot be understood, or the server stops.
    Leave(Result<(), Hangup>),
    /// Goes on without sending: nobody listens.
    Deafen(Hangup),
    /// Ends.
    Finish,
}

struct Connection<'v, S> {
    stream: Stream<S>,
    export: Export,
    served: Served<'v>,
    terms: Terms,
    limits: Limits,
    phase: Phase,
    input: Input,
    replies: Replies,
    /// Requests that were not ready at once.
    working: FuturesUnordered<Working<'v>>,
    /// Data of these requests.
    working_bytes: usize,
    /// Replies sent since there last was nothing to do.
    sent: usize,
    /// False once sending failed.
    heard: bool,
    hangup: Option<Hangup>,
    /// True once the server stops.
    stopping: bool,
    /// True once the client said that it is through, and waits for its last answers.
    is_through: bool,
    /// Runs once the connection no longer is open.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Runs while the client has memory which all share, with what it had moved when it began.
    stall: Option<(Pin<Box<Sleep>>, Withheld)>,
    meters: Meters,
    place: Option<OwnedSemaphorePermit>,
}

impl<'v, S: AsyncRead + AsyncWrite + Unpin> Connection<'v, S> {
    fn new(session: Session<S>, served: Served<'v>, limits: &Limits) -> Self {
        let Session { stream, export, structured, contexts, place, input, memory } = session;
        let input = input.unwrap_or_else(|| Input::new(limits.payload_bytes as usize, contexts.len(), memory));
        let terms = Terms {
            size_bytes: export.geometry.size_bytes,
            read_only: export.read_only,
            structured,
            contexts: contexts.into(),
            payload_bytes: limits.payload_bytes,
        };
        Self {
            stream,
            export,
            served,
            terms,
            limits: *limits,
            phase: Phase::Open,
            input,
            replies: Replies::new(structured),
            working: FuturesUnordered::new(),
            working_bytes: 0,
            sent: 0,
            heard: true,
            hangup: None,
            stopping: false,
            is_through: false,
            deadline: None,
            stall: None,
            meters: Meters::of_connection(),
            place,
        }
    }

    /// The session as the next one is to serve it, with what has come of the next requests.
    fn into_session(self) -> Session<S> {
        let Self { stream, export, terms, place, input, .. } = self;
        let (structured, contexts) = (terms.structured, terms.contexts.to_vec());
        // What it draws memory from goes with its input.
        Session { stream, export, structured, contexts, place, input: Some(input), memory: None }
    }

    /// Acts until there is nothing to do; ready at the end of the connection.
    fn turn(
        &mut self,
        stop: Pin<&mut impl Future<Output = ()>>,
        moved: Pin<&mut impl Future<Output = ()>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        // What ends a connection comes first: a client that never pauses cannot put it off.
        if !self.stopping && stop.poll(cx).is_ready() {
            self.stopping = true;
            self.apply(Action::Leave(Ok(())));
        }
        if self.phase == Phase::Open && moved.poll(cx).is_ready() {
            self.phase = Phase::Moving;
        }
        loop {
            if self.phase == Phase::Closing && self.poll_deadline(cx).is_ready() {
                return Poll::Ready(());
            }
            match ready!(self.next(cx)) {
                Action::Finish => return Poll::Ready(()),
                action => self.apply(action),
            }
        }
    }

    /// Chooses what to do: first what is ready, then what arrived, then what waits to be sent.
    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Action> {
        // Volumes that answer at once must not keep the thread from its other tasks.
        ready!(coop::poll_proceed(cx)).made_progress();
        loop {
            if self.sends_now() {
                let replies = self.replies.output.replies();
                match self.replies.output.poll_send(&mut self.stream, cx) {
                    Poll::Ready(Err(error)) => return Poll::Ready(Action::Deafen(error.into())),
                    Poll::Ready(Ok(())) => self.sent += replies,
                    Poll::Pending => {}
                }
            }
            if let Poll::Ready(Some(answered)) = self.working.poll_next_unpin(cx) {
                self.working_bytes -= self.held_bytes(&answered.request);
                return Poll::Ready(Action::Answer(answered));
            }
            if self.takes_requests() {
                let held_bytes = self.working_bytes + self.replies.output.bytes();
                match self.input.poll_next(&mut self.stream, held_bytes, cx) {
                    Poll::Ready(Ok(Incoming::End)) => return Poll::Ready(Action::Leave(Ok(()))),
                    Poll::Ready(Err(hangup)) => return Poll::Ready(Action::Leave(Err(hangup))),
                    Poll::Ready(Ok(Incoming::Request(request, payload))) => {
                        if request.command == Command::Disconnect {
                            self.is_through = true;
                            return Poll::Ready(Action::Leave(Ok(())));
                        }
                        match self.begin(request, payload, cx) {
                            Poll::Ready(answered) => return Poll::Ready(Action::Answer(answered)),
                            Poll::Pending => continue,
                        }
                    }
                    Poll::Ready(Ok(Incoming::Oversized(request))) => {
                        let why = "the write is larger than the server's largest payload: write less at once";
                        return Poll::Ready(Action::Answer(self.refused(request, Failure::new(Errno::Inval, why))));
                    }
                    Poll::Pending => {}
                }
            } else {
                self.input.stand_back();
            }
            if !self.replies.output.is_empty() {
                match self.replies.output.poll_send(&mut self.stream, cx) {
                    Poll::Ready(Ok(())) => continue,
                    Poll::Ready(Err(error)) => return Poll::Ready(Action::Deafen(error.into())),
                    Poll::Pending => {}
                }
            } else if self.phase != Phase::Open && self.working.is_empty() {
                return Poll::Ready(Action::Finish);
            }
            self.sent = 0;
            return self.poll_stall(cx).map(|hangup| Action::Leave(Err(hangup)));
        }
    }

    /// What the client could give memory back for that all share. While the volume is at work it is not to blame for what does
    /// not come: it may not be listened to.
    fn withheld(&self) -> Option<Withheld> {
        if self.phase == Phase::Closing {
            return None;
        }
        let taken = self.replies.output.withheld();
        let came = self.input.withheld().filter(|_| self.working.is_empty());
        let known = |deed| move |(moved, held)| Withheld { deed, moved, held };
        taken.map(known(Deed::Takes)).or(came.map(known(Deed::Sends)))
    }

    /// Ready when a client has had memory for too long that others wait for.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<Hangup> {
        let limit = self.limits.stall_timeout;
        while let Some(now) = self.withheld() {
            self.stall.take_if(|(_, before)| before.deed != now.deed);
            let (sleep, before) = self.stall.get_or_insert_with(|| (Box::pin(tokio::time::sleep(limit)), now));
            ready!(sleep.as_mut().poll(cx));
            if !now.moves_since(*before) && self.input.others_wait() {
                return Poll::Ready(Hangup::Slow { what: now.what(), limit });
            }
            self.stall = None;
        }
        self.stall = None;
        Poll::Pending
    }

    /// Ready when a connection that is ending took too long. A client that is through gets all answers: what is in flight takes as
    /// long as the volume wants, unless the server stops.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_through && self.heard && !self.stopping && !self.working.is_empty() {
            return Poll::Pending;
        }
        let limit = self.limits.drain_timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(deadline.as_mut().poll(cx));
        self.heard = false;
        self.hangup.get_or_insert(Hangup::Slow { what: "take the last replies", limit });
        Poll::Ready(())
    }

    /// True when the replies that gathered go out before another is made: the first at once, then as many together as
    /// went before, so that the client works on some while the rest are made, and many cost few system calls.
    fn sends_now(&self) -> bool {
        let output = &self.replies.output;
        output.replies() > self.sent || output.bytes() >= SEND_FIRST_BYTES
    }

    /// True while the connection may have one more request in flight.
    fn takes_requests(&self) -> bool {
        let output = &self.replies.output;
        self.phase == Phase::Open
            && self.working.len() + output.replies() < self.limits.requests
            && self.working_bytes + output.bytes() < self.limits.bytes_in_flight
    }

    fn held_bytes(&self, request: &Request) -> usize {
        request.held_bytes(self.terms.contexts.len())
    }

    /// Begins a request; pending when its answer will come later, through `working`.
    fn begin(&mut self, request: Request, payload: Payload, cx: &mut Context<'_>) -> Poll<Answered> {
        let arrived = self.input.arrived();
        let mut working = match Working::begin(&self.terms, self.served, request, payload, arrived) {
            Ok(working) => working,
            Err(failure) => return Poll::Ready(self.refused(request, failure)),
        };
        let answered = Pin::new(&mut working).poll(cx);
        if answered.is_pending() {
            self.working_bytes += self.held_bytes(&request);
            self.working.push(working);
        }
        answered
    }

    fn refused(&self, request: Request, failure: Failure) -> Answered {
        Answered { request, arrived: self.input.arrived(), outcome: Err(failure), grant: None }
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Answer(Answered { request, arrived, outcome, grant }) => {
                let times = (arrived, Instant::now());
                self.meters.answered(request.command, request.len, outcome.is_err(), times);
                if self.heard {
                    self.replies.put(&request, outcome, grant);
                }
            }
            Action::Leave(why) => {
                self.phase = Phase::Closing;
                self.hangup = self.hangup.take().or(why.err());
            }
            Action::Deafen(why) => {
                self.phase = Phase::Closing;
                self.heard = false;
                self.replies.output.clear();
                self.hangup.get_or_insert(why);
            }
            Action::Finish => {}
        }
    }

    /// Closes our side, and waits a moment for the client to close its own: closing a socket that holds unread bytes
    /// would make the kernel take back replies that the client has not read yet.
    async fn close(mut self) -> Result<(), Hangup> {
        if self.heard {
            let mut scrap = [0; 4096];
            let goodbye = async {
                self.stream.shutdown().await?;
                while self.stream.read(&mut scrap).await? > 0 {}
                std::io::Result::Ok(())
            };
            // Whatever goes wrong now, everything was answered.
            let _ = tokio::time::timeout(LINGER, goodbye).await;
        }
        self.hangup.map_or(Ok(()), Err)
    }
}
