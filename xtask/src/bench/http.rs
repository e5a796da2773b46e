//! A client of HTTP that costs little.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A request takes no longer than this.
const PATIENCE: Duration = Duration::from_mins(1);

/// A connection that is kept from request to request.
pub struct Connection<S> {
    stream: BufReader<S>,
    answer: Vec<u8>,
}

impl Connection<TcpStream> {
    pub fn tcp(at: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(at)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self::over(stream))
    }
}

impl Connection<UnixStream> {
    pub fn unix(at: &Path) -> Result<Self> {
        let stream = UnixStream::connect(at)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self::over(stream))
    }
}

impl<S: Read + Write> Connection<S> {
    fn over(stream: S) -> Self {
        Self { stream: BufReader::with_capacity(256 << 10, stream), answer: Vec::new() }
    }

    /// Sends a request, and returns the body of its answer; a failure unless that is one of success.
    pub fn ask(&mut self, head: &str, body: &[u8]) -> Result<&[u8]> {
        let socket = self.stream.get_mut();
        if body.len() <= 64 << 10 {
            socket.write_all(&[head.as_bytes(), body].concat())?;
        } else {
            socket.write_all(head.as_bytes())?;
            socket.write_all(body)?;
        }
        let status = self.line()?;
        let mut len = 0;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or_default();
            if name.eq_ignore_ascii_case("content-length") {
                len = value.trim().parse().context("Content-Length")?;
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                bail!("an answer of unknown length");
            }
        }
        self.answer.resize(len, 0);
        self.stream.read_exact(&mut self.answer)?;
        if !status.split(' ').nth(1).is_some_and(|code| code.starts_with('2')) {
            bail!("{status}: {}", String::from_utf8_lossy(&self.answer));
        }
        Ok(&self.answer)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "the server ended the connection");
        Ok(line.trim_end().to_owned())
    }
}
