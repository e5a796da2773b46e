//! The accept loop: from a listener to sessions.

use crate::export::Exports;
use crate::handshake::handshake;
use crate::limits::Limits;
use crate::listen::Listener;
use crate::memory::Budget;
use crate::session::Session;
use crate::socket::Socket;
use crate::tls::Tls;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tracing::Instrument;

/// How long to wait when a client cannot be accepted, for example because no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Negotiates with clients. One server may have several listeners, each with places of its own for clients: who may reach
/// one of them takes none of another's. The data of all clients' requests shares one memory.
pub struct Server<E> {
    exports: Arc<E>,
    limits: Limits,
    memory: Arc<Budget>,
}

impl<E: Exports> Server<E> {
    /// A server of `exports`.
    pub fn new(exports: E, limits: Limits) -> Self {
        let memory = Budget::new(limits.memory_bytes.max(limits.payload_bytes as usize));
        Self { exports: Arc::new(exports), limits, memory }
    }

    /// Accepts clients at `listener` until `stop` resolves, negotiates with each as `tls` says, and calls `begin` with
    /// those that chose an export. `begin` brings the session to the thread of its volume and calls
    /// [`crate::transmit`] there. Clients that still negotiate when it stops are dropped.
    ///
    /// Only who chose an export takes a place: one that merely connects, and may be nobody who is to be served, keeps none
    /// from the others. Clients that find all places taken are not accepted, and those who are past that already wait.
    pub async fn serve<F>(&self, listener: Listener, tls: Tls, begin: F, stop: impl Future<Output = ()>)
    where
        F: Fn(Session<Socket>) + Clone + Send + 'static,
    {
        let places = Arc::new(Semaphore::new(self.limits.connections));
        let mut negotiations: JoinSet<Option<Session<Socket>>> = JoinSet::new();
        let mut negotiating = Negotiating::default();
        let mut waiting = JoinSet::new();
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return,
                Some(_) = waiting.join_next() => {}
                Some(ended) = negotiations.join_next_with_id() => {
                    let id = ended.as_ref().map_or_else(tokio::task::JoinError::id, |(id, _)| *id);
                    negotiating.remove(id);
                    if let Ok((_, Some(mut session))) = ended {
                        session.memory = Some(Arc::clone(&self.memory));
                        waiting.spawn(take_place(session, Arc::clone(&places), begin.clone()));
                    }
                }
                // Whoever waits was told already that it is served: it comes first.
                accepted = accept(&listener, &places), if waiting.is_empty() => match accepted {
                    Ok(socket) => {
                        let origin = socket.origin().to_owned();
                        let (exports, tls, limits) = (Arc::clone(&self.exports), tls.clone(), self.limits);
                        let span = tracing::info_span!("nbd", peer = %socket.peer());
                        let client = negotiations.spawn(negotiate(socket, exports, tls, limits).instrument(span));
                        negotiating.add(client, origin, self.limits.negotiations);
                    }
                    Err(error) => {
                        tracing::warn!(address = %listener.address(), %error, "cannot accept an NBD client");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }
}

/// The next client, once there is a place for it.
async fn accept(listener: &Listener, places: &Semaphore) -> io::Result<Socket> {
    // Given back at once: it is taken by who gets as far as to choose an export.
    drop(places.acquire().await.map_err(io::Error::other)?);
    listener.accept().await
}

/// Waits for a place, and begins.
async fn take_place(mut session: Session<Socket>, places: Arc<Semaphore>, begin: impl Fn(Session<Socket>)) {
    // The semaphore is never closed.
    if let Ok(place) = places.acquire_owned().await {
        session.place = Some(place);
        begin(session);
    }
}

/// The clients that negotiate, the oldest first.
#[derive(Default)]
struct Negotiating(Vec<(AbortHandle, String)>);

impl Negotiating {
    /// Adds a client. Where there are more than `most` now, one goes: of the machine (or of those of this one) with most
    /// clients here the oldest, so that who keeps many connections open in silence displaces his own.
    fn add(&mut self, client: AbortHandle, origin: String, most: usize) {
        self.0.push((client, origin));
        if self.0.len() <= most {
            return;
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, origin) in &self.0 {
            *counts.entry(origin).or_default() += 1;
        }
        let most = counts.values().max();
        let Some(at) = self.0.iter().position(|(_, origin)| counts.get(origin.as_str()) == most) else { return };
        let (client, origin) = self.0.remove(at);
        tracing::debug!(%origin, "NBD client dropped while negotiating: too many do");
        client.abort();
    }

    fn remove(&mut self, id: tokio::task::Id) {
        self.0.retain(|(client, _)| client.id() != id);
    }
}

/// Negotiates with one client; the session is ready to go to another thread.
async fn negotiate<E: Exports>(socket: Socket, exports: Arc<E>, tls: Tls, limits: Limits) -> Option<Session<Socket>> {
    match handshake(socket, &*exports, &tls, &limits).await {
        Ok(None) => tracing::debug!("NBD client left without an export"),
        Err(hangup) => tracing::info!(%hangup, "NBD client dropped while negotiating"),
        Ok(Some(mut session)) => match session.detach() {
            Ok(()) => {
                tracing::debug!(export = %session.export.name, "NBD client connected");
                return Some(session);
            }
            Err(error) => tracing::warn!(%error, "NBD client lost on its way to its volume"),
        },
    }
    None
}
