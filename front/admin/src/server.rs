//! Listens, and serves each connection behind the guard its listener needs.

use crate::guard::{by_site, by_token};
use crate::page::{self, Page};
use crate::requests::numbered;
use crate::stall::{PATIENCE, hurry};
use crate::{Patient, Token};
use axum::Router;
use axum::middleware::{from_fn, map_request};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Connections served at once; more wait to be accepted.
const CONNECTIONS: usize = 256;
/// A client that has not said hello (TLS), or not all of a request's head, by then is let go.
const HELLO: Duration = Duration::from_secs(10);
/// A stopping server gives requests at work this long.
const FAREWELL: Duration = Duration::from_secs(1);
/// Wait after an `accept` that failed for want of descriptors or memory.
const BREATH: Duration = Duration::from_millis(100);

/// What is listened on.
pub enum Listener {
    /// A Unix socket.
    Unix(UnixListener),
    /// A TCP port.
    Tcp(TcpListener),
    /// A TCP port, spoken to in TLS.
    Tls(TcpListener, Arc<ServerConfig>),
}

/// Who may speak to a listener.
pub enum Access {
    /// Whoever reaches it: a Unix socket, whose file's permissions say who does.
    Reach,
    /// Programs of this machine and its own pages: a loopback address.
    ThisMachine,
    /// Whoever shows the token.
    Token(Token),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Serves `routes`, and `pages` to whoever asks, on `listener` until `stop` says true (or its sender is gone), then lets requests at
/// work end, for a second.
pub async fn serve(
    listener: Listener,
    access: Access,
    routes: Router,
    pages: &'static [Page],
    mut stop: watch::Receiver<bool>,
) {
    let routes = match access {
        Access::Reach => routes,
        Access::ThisMachine => routes.layer(from_fn(by_site)),
        Access::Token(token) => routes.layer(from_fn(move |request, next| by_token(token.clone(), request, next))),
    };
    let routes = routes.merge(page::routes(pages)).layer(map_request(hurry)).layer(from_fn(numbered));
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stopped(&mut stop) => break,
            accepted = accept(&listener, &places) => accepted,
            // Reaps what has ended, so that the set holds live connections only.
            Some(_) = connections.join_next() => continue,
        };
        let (place, stream) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "admin: accept failed");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        let tls = match &listener {
            Listener::Tls(_, config) => Some(TlsAcceptor::from(Arc::clone(config))),
            _ => None,
        };
        let (routes, mut stop) = (routes.clone(), stop.clone());
        connections.spawn(async move {
            let _place = place;
            if let Some(stream) = greet(stream, tls).await {
                converse(stream, routes, &mut stop).await;
            }
        });
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    // Whoever is not done by then, such as a follower of a job, is cut off as the set is dropped.
    let _ = timeout(FAREWELL, ended).await;
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error says that the sender is gone: a stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

type Accepted = (tokio::sync::OwnedSemaphorePermit, Box<dyn Stream>);

async fn accept(listener: &Listener, places: &Arc<Semaphore>) -> io::Result<Accepted> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let stream: Box<dyn Stream> = match listener {
        Listener::Unix(unix) => Box::new(unix.accept().await?.0),
        Listener::Tcp(tcp) | Listener::Tls(tcp, _) => {
            let stream = tcp.accept().await?.0;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    };
    Ok((place, stream))
}

async fn greet(stream: Box<dyn Stream>, tls: Option<TlsAcceptor>) -> Option<Box<dyn Stream>> {
    let Some(tls) = tls else { return Some(stream) };
    match timeout(HELLO, tls.accept(stream)).await {
        Ok(Ok(stream)) => Some(Box::new(stream)),
        Ok(Err(error)) => {
            tracing::debug!(%error, "admin: TLS handshake failed");
            None
        }
        Err(_) => None,
    }
}

async fn converse(stream: Box<dyn Stream>, routes: Router, stop: &mut watch::Receiver<bool>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HELLO);
    let connection =
        http.serve_connection(TokioIo::new(Patient::answering(stream, PATIENCE)), TowerToHyperService::new(routes));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stopped(stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "admin: connection ended early");
    }
}
