//! A client that has chosen its export.

use crate::export::Export;
use crate::memory::Budget;
use crate::socket::Socket;
use crate::tls::Stream;
use crate::transmit::Input;
use std::io;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// A client that has chosen its export and is about to send requests: hand it to [`crate::transmit`] on the thread
/// that owns the volume.
pub struct Session<S> {
    pub(crate) stream: Stream<S>,
    pub(crate) export: Export,
    pub(crate) structured: bool,
    /// The metadata contexts it selected; the number that stands for one in replies is its place here, from 1 on.
    pub(crate) contexts: Vec<String>,
    /// What has come of its next requests, where it was served before.
    pub(crate) input: Option<Input>,
    /// What its writes draw their memory from, where that is bounded; `input` has it once there is one.
    pub(crate) memory: Option<Arc<Budget>>,
    /// Its place among the connections a server takes, given up when the session is dropped.
    pub(crate) place: Option<OwnedSemaphorePermit>,
}

impl<S> Session<S> {
    pub(crate) fn new(stream: Stream<S>, export: Export, structured: bool, contexts: Vec<String>) -> Self {
        Self { stream, export, structured, contexts, place: None, input: None, memory: None }
    }

    /// The export as it was when the client chose it.
    pub fn export(&self) -> &Export {
        &self.export
    }
}

impl Session<Socket> {
    /// Leaves this thread: to be called before the session goes to another one.
    pub fn detach(&mut self) -> io::Result<()> {
        self.stream.socket_mut().detach()
    }

    /// Who is at the other end, for people.
    pub fn peer(&self) -> &str {
        self.stream.socket().peer()
    }
}
