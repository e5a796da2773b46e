//! Encryption: what a server offers, and a stream that may have been upgraded.

use kura_block::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::io::{self, IoSlice};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Whether a server encrypts.
#[derive(Clone, Default)]
pub enum Tls {
    /// Never: clients that ask for it are told that it is not supported.
    #[default]
    Off,
    /// When the client asks for it.
    Offered(TlsKeys),
    /// Always: clients that do not ask for it learn nothing about the exports.
    Required(TlsKeys),
}

/// The server's certificate, and whom it trusts. Clones share them.
#[derive(Clone)]
pub struct TlsKeys {
    acceptor: TlsAcceptor,
}

impl TlsKeys {
    /// Reads PEM files: the server's certificate (with the chain above it), its key, and, when clients must show a
    /// certificate, the authorities that may have signed it.
    pub fn load(certificate: &Path, key: &Path, client_authorities: Option<&Path>) -> Result<Self> {
        let chain = certificates(certificate)?;
        let key_der = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| Error::invalid(format!("TLS key {}: {error}: give a PEM file", key.display())))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid(format!("TLS: {error}")))?;
        let builder = match client_authorities {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let refused = |error: &dyn std::fmt::Display| {
                    Error::invalid(format!("TLS client authorities {}: {error}", path.display()))
                };
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(|error| refused(&error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| refused(&error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, key_der).map_err(|error| {
            let (certificate, key) = (certificate.display(), key.display());
            Error::invalid(format!("TLS certificate {certificate} with key {key}: {error}: do they belong together?"))
        })?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let refused = |error: &dyn std::fmt::Display| {
        Error::invalid(format!("TLS certificate {}: {error}: give a PEM file", path.display()))
    };
    let all: Vec<_> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|error| refused(&error))?;
    if all.is_empty() {
        return Err(refused(&"no certificate in it"));
    }
    Ok(all)
}

/// A client's stream, before or after its upgrade.
pub(crate) enum Stream<S> {
    Plain(S),
    Tls(Box<TlsStream<S>>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream<S> {
    /// Upgrades the stream. Whatever the client sent in the clear after it asked for the upgrade is taken for a part
    /// of the TLS handshake, which fails: nothing is ever read ahead of it.
    pub(crate) async fn upgrade(self, keys: &TlsKeys) -> io::Result<Self> {
        match self {
            Self::Plain(stream) => Ok(Self::Tls(Box::new(keys.acceptor.accept(stream).await?))),
            Self::Tls(_) => Err(io::Error::other("the stream is encrypted already")),
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }
}

impl<S> Stream<S> {
    /// The stream underneath.
    pub(crate) fn socket(&self) -> &S {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    /// The stream underneath.
    pub(crate) fn socket_mut(&mut self) -> &mut S {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_mut().0,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
