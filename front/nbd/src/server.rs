//! The accept loop: from a listener to sessions.

use crate::export::Exports;
use crate::handshake::handshake;
use crate::limits::Limits;
use crate::listen::Listener;
use crate::session::Session;
use crate::socket::Socket;
use crate::tls::Tls;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// How long to wait when a client cannot be accepted, for example because no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Negotiates with clients. One server may have several listeners, which share its limit on connections.
pub struct Server<E> {
    exports: Arc<E>,
    limits: Limits,
    places: Arc<Semaphore>,
}

impl<E: Exports> Server<E> {
    /// A server of `exports`.
    pub fn new(exports: E, limits: Limits) -> Self {
        Self { exports: Arc::new(exports), limits, places: Arc::new(Semaphore::new(limits.connections)) }
    }

    /// Accepts clients at `listener` until `stop` resolves, negotiates with each as `tls` says, and calls `begin` with
    /// those that chose an export. `begin` brings the session to the thread of its volume and calls
    /// [`crate::transmit`] there. Clients that still negotiate when it stops are dropped.
    pub async fn serve<F>(&self, listener: Listener, tls: Tls, begin: F, stop: impl Future<Output = ()>)
    where
        F: Fn(Session<Socket>) + Clone + Send + 'static,
    {
        let mut negotiations = JoinSet::new();
        let mut stop = pin!(stop);
        loop {
            let client = async {
                let place = Arc::clone(&self.places).acquire_owned().await;
                (listener.accept().await, place)
            };
            tokio::select! {
                biased;
                () = &mut stop => return,
                Some(_) = negotiations.join_next() => {}
                (accepted, place) = client => match (accepted, place) {
                    (Ok(socket), Ok(place)) => {
                        let (exports, tls, limits) = (Arc::clone(&self.exports), tls.clone(), self.limits);
                        negotiations.spawn(negotiate(socket, place, exports, tls, limits, begin.clone()));
                    }
                    // The semaphore is never closed.
                    (_, Err(_)) => return,
                    (Err(error), _) => {
                        tracing::warn!(address = %listener.address(), %error, "cannot accept an NBD client");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }
}

/// Negotiates with one client.
async fn negotiate<E: Exports>(
    socket: Socket,
    place: OwnedSemaphorePermit,
    exports: Arc<E>,
    tls: Tls,
    limits: Limits,
    begin: impl Fn(Session<Socket>),
) {
    let peer = socket.peer().to_owned();
    match handshake(socket, &*exports, &tls, &limits).await {
        Ok(None) => tracing::debug!(%peer, "NBD client left without an export"),
        Err(hangup) => tracing::info!(%peer, %hangup, "NBD client dropped while negotiating"),
        Ok(Some(mut session)) => {
            if let Err(error) = session.detach() {
                return tracing::warn!(%peer, %error, "NBD client lost on its way to its volume");
            }
            session.place = Some(place);
            tracing::debug!(%peer, export = %session.export.name, "NBD client connected");
            begin(session);
        }
    }
}
