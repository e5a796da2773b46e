//! A small NBD client that keeps many requests in flight: fixed newstyle, `GO`, simple replies.
//!
//! Written from the protocol's text and not from the server, so that the two can disagree.

use std::collections::BTreeMap;
use std::io::{self, Error, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;

/// The flag that makes a request durable before its reply.
pub const FUA: u16 = 1;

const IHAVEOPT: u64 = 0x4948_4156_454F_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;

/// A connection in transmission.
pub struct Client {
    stream: UnixStream,
    next_cookie: u64,
    /// Bytes that the reply to each read in flight carries.
    reads: BTreeMap<u64, usize>,
    /// The export's size in bytes.
    pub size_bytes: u64,
}

/// The server's answer to one request.
pub struct Reply {
    pub cookie: u64,
    /// 0 or an errno.
    pub error: u32,
    pub data: Vec<u8>,
}

impl Client {
    /// Connects to the socket and chooses the export. A server that is silent for a minute is an error.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_mins(1)))?;
        stream.set_write_timeout(Some(Duration::from_mins(1)))?;
        let greeting: [u8; 18] = read(&mut stream)?;
        if &greeting[..8] != b"NBDMAGIC" || greeting[8..16] != IHAVEOPT.to_be_bytes() {
            return Err(Error::other("this is no newstyle greeting"));
        }
        // Fixed newstyle and no zeroes, as offered; then GO with the name and no information requests.
        stream.write_all(&3u32.to_be_bytes())?;
        let mut go = IHAVEOPT.to_be_bytes().to_vec();
        go.extend(OPT_GO.to_be_bytes());
        go.extend((export.len() as u32 + 6).to_be_bytes());
        go.extend((export.len() as u32).to_be_bytes());
        go.extend(export.as_bytes());
        go.extend(0u16.to_be_bytes());
        stream.write_all(&go)?;
        let mut size_bytes = 0;
        loop {
            let header: [u8; 20] = read(&mut stream)?;
            let (magic, kind, len) = (word64(&header[..8]), word32(&header[12..16]), word32(&header[16..]));
            if magic != OPTION_REPLY {
                return Err(Error::other("this is no option reply"));
            }
            let mut payload = vec![0; len as usize];
            stream.read_exact(&mut payload)?;
            match kind {
                REP_ACK => return Ok(Self { stream, next_cookie: 1, reads: BTreeMap::new(), size_bytes }),
                REP_INFO if payload.len() >= 10 && payload[..2] == [0, 0] => size_bytes = word64(&payload[2..10]),
                REP_INFO => {}
                error => return Err(Error::other(format!("GO was refused: {error:#x}"))),
            }
        }
    }

    /// Sends a request and returns its cookie. `data` is the payload of a write and empty for others.
    pub fn send(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> io::Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut request = Vec::with_capacity(28 + data.len());
        request.extend(REQUEST.to_be_bytes());
        request.extend(flags.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request)?;
        if command == READ {
            self.reads.insert(cookie, len as usize);
        }
        Ok(cookie)
    }

    /// Waits for the next reply, whichever request it is for.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let header: [u8; 16] = read(&mut self.stream)?;
        if word32(&header[..4]) != SIMPLE_REPLY {
            return Err(Error::other(format!("this is no simple reply: {header:?}")));
        }
        let (error, cookie) = (word32(&header[4..8]), word64(&header[8..]));
        let len = self.reads.remove(&cookie).unwrap_or(0);
        let mut data = vec![0; if error == 0 { len } else { 0 }];
        self.stream.read_exact(&mut data)?;
        Ok(Reply { cookie, error, data })
    }

    /// One request by itself; an errno in the reply is an error.
    pub fn call(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> io::Result<Vec<u8>> {
        let cookie = self.send(command, flags, offset, len, data)?;
        let reply = self.reply()?;
        assert_eq!(reply.cookie, cookie, "a reply to a request that was not made");
        if reply.error == 0 { Ok(reply.data) } else { Err(Error::from_raw_os_error(reply.error.cast_signed())) }
    }
}

fn read<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn word32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn word64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}
