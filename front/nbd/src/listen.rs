//! Where a server listens.

use crate::socket::Socket;
use kura_block::{Error, Result};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// The port of NBD.
const DEFAULT_PORT: u16 = 10809;

/// An address to listen at: `HOST:PORT`, `HOST` (port 10809), or the path of a Unix socket (with a `/` in it, or
/// `unix:` before it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host and port; port 0 takes a free one.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(match text.strip_prefix("unix:") {
            Some(path) => Self::Unix(path.into()),
            None if text.contains('/') => Self::Unix(text.into()),
            None => Self::tcp(text),
        })
    }
}

impl Address {
    /// A host with or without a port; an IPv6 address may stand in brackets, and must with a port behind it.
    fn tcp(text: &str) -> Self {
        let host = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        Self::Tcp(match host.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::new(ip, DEFAULT_PORT).to_string(),
            Err(_) if text.contains(':') => text.to_owned(),
            Err(_) => format!("{text}:{DEFAULT_PORT}"),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host) => f.write_str(host),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// An address that clients can connect to. A Unix socket's file goes when the listener is dropped.
pub struct Listener {
    socket: ListenSocket,
    address: Address,
}

enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens at `address`. The file of a Unix socket that nobody listens at any more is replaced; one that somebody
    /// listens at is `Busy`, as is a port in use.
    pub async fn bind(address: &Address) -> Result<Self> {
        let refused = |error: io::Error| {
            let text = format!("NBD address {address}: {error}");
            match error.kind() {
                io::ErrorKind::AddrInUse => Error::busy(format!("{text}: stop the other server or choose another")),
                _ => Error::invalid(format!("{text}: choose another")),
            }
        };
        match address {
            Address::Tcp(host) => {
                let listener = TcpListener::bind(host).await.map_err(refused)?;
                let address = Address::Tcp(listener.local_addr().map_err(refused)?.to_string());
                Ok(Self { socket: ListenSocket::Tcp(listener), address })
            }
            Address::Unix(path) => {
                remove_stale(path).await.map_err(refused)?;
                let listener = UnixListener::bind(path).map_err(refused)?;
                Ok(Self { socket: ListenSocket::Unix(listener), address: address.clone() })
            }
        }
    }

    /// The address, with the port that was taken.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The next client.
    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        match &self.socket {
            ListenSocket::Tcp(listener) => Ok(Socket::tcp(listener.accept().await?.0)),
            ListenSocket::Unix(listener) => Ok(Socket::unix(listener.accept().await?.0)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // Gone already is gone.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes the file of a socket that a server left behind.
async fn remove_stale(path: &Path) -> io::Result<()> {
    match UnixStream::connect(path).await {
        // Nobody listens. A plain file refuses just the same, and is not ours to remove.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => std::fs::remove_file(path),
        // Somebody listens, or something else stands there: binding tells.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        let cases = [
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("localhost", "localhost:10809"),
            ("[::1]", "[::1]:10809"),
            ("::1", "[::1]:10809"),
            ("10.0.0.1", "10.0.0.1:10809"),
            ("[::1]:5", "[::1]:5"),
            ("./nbd.sock", "unix:./nbd.sock"),
            ("/run/nbd.sock", "unix:/run/nbd.sock"),
            ("unix:nbd.sock", "unix:nbd.sock"),
        ];
        for (text, expected) in cases {
            let Ok(address) = text.parse::<Address>();
            assert_eq!(address.to_string(), expected);
        }
    }
}
