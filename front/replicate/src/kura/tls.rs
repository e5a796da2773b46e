//! TLS on a stream whose two directions are different threads'.
//!
//! ```text
//!   Reader: socket ──> (lock) decrypt ──> plain        neither waits for the socket with the lock held: an end that
//!   Writer: plain ──> (lock) encrypt ──> socket        cannot write goes on reading, or both ends could wait for ever
//! ```

use crate::run::lock;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Bytes that are read from a socket at once: a record and some.
const RECORD_BYTES: usize = 32 << 10;

/// What comes.
pub struct Reader {
    connection: Arc<Mutex<Connection>>,
    socket: TcpStream,
    /// Read from the socket; not decrypted yet from this place on.
    record: Vec<u8>,
    at: usize,
}

/// What goes. Its end is the end of what goes.
pub struct Writer {
    connection: Arc<Mutex<Connection>>,
    socket: TcpStream,
}

/// Greets a server, of which whoever is trusted says that it is who `host` names.
pub fn client(socket: TcpStream, host: &str, trust: ClientConfig) -> Result<(Reader, Writer)> {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(Error::other)?;
    let connection = ClientConnection::new(Arc::new(trust), name).map_err(Error::other)?;
    greet(connection.into(), socket)
}

/// Why a server was not greeted, in one line.
pub fn told(error: &Error) -> String {
    let hint = match error.get_ref().and_then(|error| error.downcast_ref()) {
        // An authority of the same name, but another key, has signed it badly.
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            ": it is not the authority that --target-ca names who vouches for it"
        }
        Some(rustls::Error::InvalidCertificate(_)) => "",
        _ => ": is it TLS that is spoken there, and not kura://?",
    };
    let silent = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    if silent { format!("it does not answer{hint}") } else { format!("TLS: {error}{hint}") }
}

/// Greets a client.
pub fn server(socket: TcpStream, config: Arc<ServerConfig>) -> Result<(Reader, Writer)> {
    greet(ServerConnection::new(config).map_err(Error::other)?.into(), socket)
}

/// Who trusts the authorities in a PEM file, and nobody else.
pub fn trust(ca: &Path) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(ca).map_err(Error::other)? {
        roots.add(authority.map_err(Error::other)?).map_err(Error::other)?;
    }
    if roots.is_empty() {
        return Err(Error::other("there is no certificate in PEM in it"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(config.map_err(Error::other)?.with_root_certificates(roots).with_no_client_auth())
}

fn greet(mut connection: Connection, socket: TcpStream) -> Result<(Reader, Writer)> {
    while connection.is_handshaking() {
        connection.complete_io(&mut &socket)?;
    }
    // What is left to be said of the greeting.
    while connection.wants_write() {
        connection.write_tls(&mut &socket)?;
    }
    let connection = Arc::new(Mutex::new(connection));
    let reader = Reader { connection: Arc::clone(&connection), socket: socket.try_clone()?, record: Vec::new(), at: 0 };
    Ok((reader, Writer { connection, socket }))
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        loop {
            {
                let mut connection = lock(&self.connection);
                match connection.reader().read(into) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    done => return done,
                }
                if self.at < self.record.len() {
                    let mut left = &self.record[self.at..];
                    self.at += connection.read_tls(&mut left)?;
                    connection.process_new_packets().map_err(Error::other)?;
                    continue;
                }
            }
            self.record.resize(RECORD_BYTES, 0);
            self.at = 0;
            let len = self.socket.read(&mut self.record)?;
            self.record.truncate(len);
            if len == 0 {
                // An end without a farewell is told as an error by the next read.
                lock(&self.connection).read_tls(&mut std::io::empty())?;
            }
        }
    }
}

impl Writer {
    /// Sends what there is to be sent.
    fn send(&mut self, say: impl FnOnce(&mut Connection) -> Result<usize>) -> Result<usize> {
        let mut records = Vec::new();
        let len = {
            let mut connection = lock(&self.connection);
            let len = say(&mut connection)?;
            while connection.wants_write() {
                connection.write_tls(&mut records)?;
            }
            len
        };
        self.socket.write_all(&records)?;
        Ok(len)
    }
}

impl Write for Writer {
    fn write(&mut self, plain: &[u8]) -> Result<usize> {
        self.send(|connection| connection.writer().write(plain))
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Whoever is gone hears no farewell.
        let _ = self.send(|connection| {
            connection.send_close_notify();
            Ok(0)
        });
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::pki_types::PrivateKeyDer;
    use std::net::TcpListener;

    /// An authority's certificate, and what a server of 127.0.0.1 shows.
    fn identity() -> (String, Arc<ServerConfig>) {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![cert.der().clone()],
                PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
            )
            .unwrap();
        (authority.pem(), Arc::new(config))
    }

    #[test]
    fn both_directions_are_full_at_once_and_neither_end_waits_for_ever() {
        const BYTES: usize = 24 << 20;
        let (ca, config) = identity();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), ca).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Answers each byte by one, without reading ahead: what a target's end does.
        let other = std::thread::spawn(move || {
            let (mut reader, mut writer) = server(listener.accept().unwrap().0, config).unwrap();
            let mut buffer = vec![0; 70_000];
            loop {
                match reader.read(&mut buffer).unwrap() {
                    0 => break,
                    len => writer.write_all(&buffer[..len]).unwrap(),
                }
            }
        });
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut reader, mut writer) = client(socket, "127.0.0.1", trust(file.path()).unwrap()).unwrap();
        let sent: Vec<u8> = (0..BYTES).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
        let want = sent.clone();
        let got = std::thread::spawn(move || {
            let mut got = vec![0; BYTES];
            reader.read_exact(&mut got).unwrap();
            (got, reader.read(&mut [0]).unwrap())
        });
        writer.write_all(&sent).unwrap();
        drop(writer);
        let (got, end) = got.join().unwrap();
        assert!(got == want && end == 0);
        other.join().unwrap();
    }

    #[test]
    fn a_server_that_nobody_vouches_for_is_refused() {
        let (_, config) = identity();
        let (stranger, _) = identity();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), stranger).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let other = std::thread::spawn(move || server(listener.accept().unwrap().0, config).map(drop));
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let error = client(socket, "127.0.0.1", trust(file.path()).unwrap()).err().unwrap();
        assert!(told(&error).contains("--target-ca"), "{error}");
        assert!(other.join().unwrap().is_err());
        let none = tempfile::NamedTempFile::new().unwrap();
        assert!(trust(none.path()).unwrap_err().to_string().contains("no certificate"));
    }
}
