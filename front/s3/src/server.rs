//! Listens, and serves each connection.

use crate::Service;
use crate::cors::Cors;
use crate::stall::Impatient;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Connections served at once; more wait to be accepted.
const CONNECTIONS: usize = 1024;
/// A client that has not said hello (TLS), or not all of a request's head, by then is let go.
const HELLO: Duration = Duration::from_secs(30);
/// A stopping server gives requests at work this long.
const FAREWELL: Duration = Duration::from_secs(3);
/// Wait after an `accept` that failed for want of descriptors or memory.
const BREATH: Duration = Duration::from_millis(100);

/// What is listened on.
pub struct Listener {
    /// A TCP port.
    pub tcp: TcpListener,
    /// What is shown to clients, where they speak TLS.
    pub tls: Option<Arc<ServerConfig>>,
}

/// Serves `service` on `listener` until `stop` says true (or its sender is gone), then lets requests at work end, for
/// some seconds.
pub async fn serve(listener: Listener, service: Service, mut stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stopped(&mut stop) => break,
            accepted = accept(&listener.tcp, &places) => accepted,
            // Reaps what has ended, so that the set holds live connections only.
            Some(_) = connections.join_next() => continue,
        };
        let (place, stream) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "S3: accept failed");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        let (tls, service, stop) = (listener.tls.clone().map(TlsAcceptor::from), service.clone(), stop.clone());
        connections.spawn(async move {
            let _place = place;
            match tls {
                None => converse(stream, service, stop).await,
                Some(tls) => match timeout(HELLO, tls.accept(stream)).await {
                    Ok(Ok(stream)) => converse(stream, service, stop).await,
                    Ok(Err(error)) => tracing::debug!(%error, "S3: TLS handshake failed"),
                    Err(_) => {}
                },
            }
        });
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    // Whoever is not done by then is cut off as the set is dropped.
    let _ = timeout(FAREWELL, ended).await;
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error says that the sender is gone: a stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn accept(tcp: &TcpListener, places: &Arc<Semaphore>) -> io::Result<(OwnedSemaphorePermit, TcpStream)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let stream = tcp.accept().await?.0;
    // A small answer would wait for the client's acknowledgement of the one before.
    stream.set_nodelay(true)?;
    Ok((place, stream))
}

/// Serves one connection to its end, or until `stop` says true and its requests have ended.
pub async fn converse<S>(stream: S, service: Service, mut stop: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = Cors { directory: Arc::clone(&service.directory), service: service.guarded() };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HELLO);
    let connection = http.serve_connection(TokioIo::new(Impatient::new(stream)), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "S3: connection ended early");
    }
}
