//! Connections to where S3 is spoken, which are used again.

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use kura_admin::Patient;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::cell::RefCell;
use std::error::Error;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

/// A body on its way.
pub type Body = UnsyncBoxBody<Bytes, anyhow::Error>;

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// Nobody can be reached.
    #[error("cannot be reached: {0}")]
    Away(String),
    /// No other request of a run would go better: of the key, or of the bucket as a whole.
    #[error("{0}")]
    Shut(String),
    /// It may go well another time.
    #[error("{0}")]
    Passing(String),
    /// It was refused for good.
    #[error("{0}")]
    Refused(String),
}

impl Trouble {
    /// True where a run has nothing more to ask.
    pub fn ends_all(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Shut(_))
    }
}

/// What came of a request.
pub type Answered<T> = std::result::Result<T, Trouble>;

/// Connections to a host.
pub struct Wire {
    /// `HOST:PORT`
    address: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// A host on whose connection nothing moves for so long is given up.
    patience: Duration,
    idle: RefCell<Vec<SendRequest<Body>>>,
}

impl Wire {
    /// To the host of an `http` or, with whom to trust, an `https` URL.
    pub fn new(host: &str, port: u16, trust: Option<Arc<ClientConfig>>, patience: Duration) -> Result<Self> {
        let tls = match trust {
            None => None,
            Some(trust) => {
                let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(name).with_context(|| format!("{host}: is not a host name"))?;
                Some((TlsConnector::from(trust), name))
            }
        };
        Ok(Self { address: format!("{host}:{port}"), tls, patience, idle: RefCell::default() })
    }

    /// Asks, and waits for an answer to begin.
    pub async fn ask(&self, request: Request<Body>) -> Answered<Response<Incoming>> {
        let mut sender = match self.take() {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let answer = sender.send_request(request).await.map_err(|error| of(&error))?;
        // It is taken again once its answer was read.
        self.idle.borrow_mut().push(sender);
        Ok(answer)
    }

    fn take(&self) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|sender| !sender.is_closed());
        let ready = idle.iter().position(SendRequest::is_ready)?;
        Some(idle.swap_remove(ready))
    }

    async fn connect(&self) -> Answered<SendRequest<Body>> {
        let away = |error: std::io::Error| Trouble::Away(error.to_string());
        let stream = Patient::reach(&self.address, Some(self.patience)).await.map_err(away)?;
        match &self.tls {
            None => converse(stream).await,
            Some((tls, name)) => converse(tls.connect(name.clone(), stream).await.map_err(away)?).await,
        }
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Answered<SendRequest<Body>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| of(&error))?;
    // The connection ends with its sender; how it ends is seen in the answers.
    tokio::spawn(async { connection.await.ok() });
    Ok(sender)
}

/// What a failure on a connection is: only a host that is silent is given up.
pub fn of(error: &(dyn Error + 'static)) -> Trouble {
    let innermost = std::iter::successors(Some(error), |&cause| cause.source()).last().unwrap_or(error);
    match innermost.downcast_ref::<std::io::Error>() {
        Some(cause) if cause.kind() == ErrorKind::TimedOut => Trouble::Away(cause.to_string()),
        _ => Trouble::Passing(innermost.to_string()),
    }
}

/// What a request says of where it goes: host, and what follows it in the URL.
pub fn split(url: &str) -> Result<(String, String)> {
    let uri: Uri = url.parse().context("a URL")?;
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    Ok((authority, uri.path_and_query().map_or("/", |path| path.as_str()).to_owned()))
}
