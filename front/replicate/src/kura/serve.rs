//! The target's kura: serves a stream of requests, or all who connect.

use super::message::{MOST, Reply, Request, VERSION, read_frame};
use super::sink::Sink;
use std::io::{BufReader, BufWriter, Error, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;

/// The most bytes of a first message: nobody is known yet.
const HELLO: usize = 64 << 10;
/// The most bytes of a frame of records.
const RECORDS: usize = 4 << 20;

/// Serves the copy in one directory on a stream, until its end. Whoever has the stream may change the copy.
pub fn serve_stream(root: &Path, reader: impl Read, writer: impl Write) -> Result<()> {
    serve(reader, writer, |_, _| Ok(root.to_owned()))
}

/// Copies under one directory, for all who connect and know the token.
pub struct Service {
    root: PathBuf,
    token: String,
    listener: TcpListener,
}

impl Service {
    /// Listens. Only on the loopback: what goes further wants to be encrypted, which is ssh's.
    pub fn listen(root: &Path, address: &str, token: String) -> Result<Self> {
        let listener = TcpListener::bind(address)?;
        if !listener.local_addr()?.ip().is_loopback() {
            let text = "it is not on the loopback, and this is not encrypted: use ssh://HOST/PATH from there";
            return Err(Error::other(format!("{address}: {text}")));
        }
        Ok(Self { root: root.canonicalize()?, token, listener })
    }

    /// Where it listens.
    pub fn address(&self) -> Result<std::net::SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the process ends, each stream on a thread of its own.
    pub fn run(self) -> Result<()> {
        let service = Arc::new(self);
        loop {
            match service.listener.accept() {
                Ok((stream, _)) => {
                    let service = Arc::clone(&service);
                    // One that breaks is its client's to tell.
                    std::thread::spawn(move || service.serve(&stream));
                }
                // Out of files or of memory: others end meanwhile.
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn serve(&self, stream: &TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        serve(stream, stream, |path, token| {
            if !bool::from(self.token.as_bytes().ct_eq(token)) {
                return Err("the token is wrong: say --token with what the token file there holds".to_owned());
            }
            let path = Path::new(std::ffi::OsStr::new(std::str::from_utf8(path).map_err(|_| "the path is no text")?));
            if path.components().any(|part| !matches!(part, Component::Normal(_))) {
                return Err("the path leads out of what is served".to_owned());
            }
            stream.set_read_timeout(None).map_err(|error| error.to_string())?;
            Ok(self.root.join(path))
        })
    }
}

/// Serves a stream. `enter` says which directory a path and a token open.
fn serve(
    reader: impl Read,
    writer: impl Write,
    enter: impl Fn(&[u8], &[u8]) -> std::result::Result<PathBuf, String>,
) -> Result<()> {
    let mut reader = BufReader::with_capacity(256 << 10, reader);
    let mut writer = BufWriter::new(writer);
    let mut body = Vec::new();
    let mut sink: Option<Sink> = None;
    while let Some(kind) = read_frame(&mut reader, &mut body, if sink.is_some() { MOST } else { HELLO })? {
        let request = Request::of(kind, &body)?;
        let reply = match (&mut sink, request) {
            (Some(sink), request) => sink.handle(request),
            (None, Request::Hello { version: VERSION, path, token }) => {
                match enter(path, token).and_then(|path| Sink::open(&path).map_err(|error| error.to_string())) {
                    Ok(opened) => {
                        sink = Some(opened);
                        Reply::Done(Vec::new())
                    }
                    Err(why) => Reply::Refused(why),
                }
            }
            (None, Request::Hello { version, .. }) => {
                Reply::Refused(format!("it speaks version {VERSION} and not {version}: use the same kura at both ends"))
            }
            (None, _) => Reply::Refused("who speaks first says hello".to_owned()),
        };
        let is_over = matches!(reply, Reply::Refused(_));
        answer(&mut writer, reply)?;
        if is_over {
            return writer.flush();
        }
        if reader.buffer().is_empty() {
            writer.flush()?;
        }
    }
    writer.flush()
}

fn answer(writer: &mut impl Write, reply: Reply) -> Result<()> {
    let Reply::Records(records) = reply else { return writer.write_all(&reply.frame()) };
    let mut frame = Vec::new();
    let mut bytes = 0;
    for record in records {
        bytes += record.len();
        frame.push(record);
        if bytes > RECORDS {
            writer.write_all(&Reply::Records(std::mem::take(&mut frame)).frame())?;
            bytes = 0;
        }
    }
    if !frame.is_empty() {
        writer.write_all(&Reply::Records(frame).frame())?;
    }
    writer.write_all(&Reply::Records(Vec::new()).frame())
}
