//! A client: one connection, one request at a time, on the caller's thread. For more at once, open more.

use crate::protocol::{
    GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, STRING_BYTES, command_flag,
    handshake_flag, info, option, reply,
};
use std::io::{self, Error, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Commands, as requests name them.
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
/// A server that takes or says nothing for so long is given up.
const PATIENCE: Duration = Duration::from_mins(1);

/// What bytes go over.
trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// A connection to an export, for reading and writing.
pub struct Client {
    stream: Box<dyn Stream>,
    size_bytes: u64,
    cookie: u64,
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut refused = Error::new(ErrorKind::NotFound, format!("{address}: no such host"));
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn garbled(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the server does not speak NBD as expected: {what}"))
}

impl Client {
    /// Connects over TCP, to `HOST:PORT`.
    pub fn tcp(address: &str, export: &str) -> io::Result<Self> {
        let stream = connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Self::open(Box::new(stream), export)
    }

    /// Connects to a Unix socket.
    pub fn unix(path: &Path, export: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Self::open(Box::new(stream), export)
    }

    fn open(mut stream: Box<dyn Stream>, export: &str) -> io::Result<Self> {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        let is_newstyle = u64_at(&greeting, 0) == GREETING_MAGIC && u64_at(&greeting, 8) == OPTION_MAGIC;
        if !is_newstyle {
            return Err(garbled("its greeting is another one's"));
        }
        let flags = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        let name = export.as_bytes();
        let mut hello = Vec::from(flags.to_be_bytes());
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(option::GO.to_be_bytes());
        hello.extend((name.len() as u32 + 6).to_be_bytes());
        hello.extend((name.len() as u32).to_be_bytes());
        hello.extend(name);
        // No information is asked for besides what always comes.
        hello.extend(0_u16.to_be_bytes());
        stream.write_all(&hello)?;
        let mut size_bytes = None;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let (kind, len) = (u32_at(&head, 12), u32_at(&head, 16) as usize);
            if u64_at(&head, 0) != OPTION_REPLY_MAGIC || len > STRING_BYTES * 2 {
                return Err(garbled("a reply to an option"));
            }
            let mut data = vec![0; len];
            stream.read_exact(&mut data)?;
            match kind {
                reply::ACK => break,
                reply::INFO if len >= 12 && data[..2] == info::EXPORT.to_be_bytes() => {
                    size_bytes = Some(u64_at(&data, 2));
                }
                reply::INFO => {}
                _ => return Err(Error::other(format!("{export}: {}", String::from_utf8_lossy(&data)))),
            }
        }
        let size_bytes = size_bytes.ok_or_else(|| garbled("the export has no size"))?;
        Ok(Self { stream, size_bytes, cookie: 0 })
    }

    /// Bytes of the export.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reads bytes from `offset` on.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.ask(READ, 0, offset, into.len(), &[])?;
        self.stream.read_exact(into)
    }

    /// Writes bytes from `offset` on; with `fua` they are durable when this returns.
    pub fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> io::Result<()> {
        let flags = if fua { command_flag::FUA } else { 0 };
        self.ask(WRITE, flags, offset, data.len(), data)
    }

    /// Sends a request, and reads the head of its reply.
    fn ask(&mut self, command: u16, flags: u16, offset: u64, len: usize, data: &[u8]) -> io::Result<()> {
        self.send(command, flags, offset, len, data)?;
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        if u32_at(&head, 0) != SIMPLE_REPLY_MAGIC || u64_at(&head, 8) != self.cookie {
            return Err(garbled("a reply to a request"));
        }
        match u32_at(&head, 4) {
            0 => Ok(()),
            errno => Err(Error::from_raw_os_error(errno.cast_signed())),
        }
    }

    fn send(&mut self, command: u16, flags: u16, offset: u64, len: usize, data: &[u8]) -> io::Result<()> {
        self.cookie += 1;
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(REQUEST_MAGIC.to_be_bytes());
        request.extend(flags.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend((len as u32).to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A server that is gone needs no goodbye.
        let _ = self.send(DISCONNECT, 0, 0, 0, &[]);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |all, byte| all << 8 | u32::from(*byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}
