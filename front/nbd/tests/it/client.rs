//! A client that can also misbehave. Its numbers are the protocol's, written down a second time.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
pub const REQUEST_MAGIC: u32 = 0x2560_9513;

pub const EXPORT_NAME: u32 = 1;
pub const ABORT: u32 = 2;
pub const LIST: u32 = 3;
pub const STARTTLS: u32 = 5;
pub const INFO: u32 = 6;
pub const GO: u32 = 7;
pub const STRUCTURED_REPLY: u32 = 8;
pub const LIST_META_CONTEXT: u32 = 9;
pub const SET_META_CONTEXT: u32 = 10;

pub const ACK: u32 = 1;
pub const UNSUP: u32 = 0x8000_0001;
pub const INVALID: u32 = 0x8000_0003;
pub const TLS_REQD: u32 = 0x8000_0005;
pub const UNKNOWN: u32 = 0x8000_0006;
pub const TOO_BIG: u32 = 0x8000_0009;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const EOVERFLOW: u32 = 75;
pub const ENOTSUP: u32 = 95;
pub const ESHUTDOWN: u32 = 108;

/// A piece of an answer: a simple reply, or a chunk.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Simple { error: u32, cookie: u64 },
    Chunk { last: bool, kind: u16, cookie: u64, payload: Vec<u8> },
}

pub struct Client<S> {
    pub stream: S,
}

/// A name as most options carry it.
pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

/// The data of `INFO` and `GO`.
pub fn info_query(export: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = string(export);
    data.extend((wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|info| info.to_be_bytes()));
    data
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub fn context_query(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(export);
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    data
}

pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let header = [&OPTION_MAGIC.to_be_bytes()[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes()].concat();
    [&header, data].concat()
}

pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let front = [&REQUEST_MAGIC.to_be_bytes()[..], &flags.to_be_bytes(), &command.to_be_bytes()].concat();
    [&front[..], &cookie.to_be_bytes(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// Reads the greeting and answers it.
    pub async fn greet(mut stream: S, flags: u32) -> io::Result<Self> {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).await?;
        assert_eq!(&greeting[..], b"NBDMAGICIHAVEOPT\x00\x03");
        stream.write_u32(flags).await?;
        Ok(Self { stream })
    }

    /// Sends an option and reads all replies to it.
    pub async fn option(&mut self, number: u32, data: &[u8]) -> io::Result<Vec<(u32, Vec<u8>)>> {
        self.stream.write_all(&option(number, data)).await?;
        self.stream.flush().await?;
        self.option_replies(number).await
    }

    pub async fn option_replies(&mut self, number: u32) -> io::Result<Vec<(u32, Vec<u8>)>> {
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.stream.read_u64().await?, 0x0003_e889_0455_65a9);
            assert_eq!(self.stream.read_u32().await?, number);
            let kind = self.stream.read_u32().await?;
            let mut data = vec![0; self.stream.read_u32().await? as usize];
            self.stream.read_exact(&mut data).await?;
            replies.push((kind, data));
            if kind == ACK || kind & 1 << 31 != 0 {
                return Ok(replies);
            }
        }
    }

    /// Sends an option and returns the type of the last reply to it.
    pub async fn verdict(&mut self, number: u32, data: &[u8]) -> io::Result<u32> {
        Ok(self.option(number, data).await?.pop().expect("an option has a reply").0)
    }

    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Reads a reply; `len` bytes of data follow a simple one that succeeded.
    pub async fn reply(&mut self, len: usize) -> io::Result<(Reply, Vec<u8>)> {
        let mut data = Vec::new();
        let reply = match self.stream.read_u32().await? {
            0x6744_6698 => {
                let (error, cookie) = (self.stream.read_u32().await?, self.stream.read_u64().await?);
                data.resize(if error == 0 { len } else { 0 }, 0);
                Reply::Simple { error, cookie }
            }
            0x668e_33ef => {
                let (flags, kind) = (self.stream.read_u16().await?, self.stream.read_u16().await?);
                assert!(flags <= 1, "unknown flags of a chunk: {flags}");
                let cookie = self.stream.read_u64().await?;
                let mut payload = vec![0; self.stream.read_u32().await? as usize];
                self.stream.read_exact(&mut payload).await?;
                Reply::Chunk { last: flags == 1, kind, cookie, payload }
            }
            magic => panic!("a reply with the magic number {magic:#x}"),
        };
        self.stream.read_exact(&mut data).await?;
        Ok((reply, data))
    }

    /// Sends a request without data in its reply, and returns the error it is answered with, or 0.
    pub async fn ask(&mut self, command: u16, flags: u16, offset: u64, len: u32) -> io::Result<u32> {
        self.send(&request(command, flags, 7, offset, len)).await?;
        self.error().await
    }

    /// Writes, and returns the error or 0.
    pub async fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> io::Result<u32> {
        self.send(&[&request(WRITE, flags, 7, offset, data.len() as u32), data].concat()).await?;
        self.error().await
    }

    /// The error of the next reply, or 0.
    pub async fn error(&mut self) -> io::Result<u32> {
        Ok(match self.reply(0).await?.0 {
            Reply::Simple { error, .. } => error,
            Reply::Chunk { last: true, kind: 0x8001, payload, .. } => {
                let text = usize::from(u16::from_be_bytes([payload[4], payload[5]]));
                assert_eq!(payload.len(), 6 + text);
                assert!(text > 0 && std::str::from_utf8(&payload[6..]).is_ok(), "an error says something");
                u32::from_be_bytes(payload[..4].try_into().expect("four bytes"))
            }
            other @ Reply::Chunk { .. } => panic!("not an answer to this: {other:?}"),
        })
    }

    /// Reads with simple replies.
    pub async fn read(&mut self, offset: u64, len: u32) -> io::Result<Result<Vec<u8>, u32>> {
        self.send(&request(READ, 0, 7, offset, len)).await?;
        Ok(match self.reply(len as usize).await? {
            (Reply::Simple { error: 0, .. }, data) => Ok(data),
            (Reply::Simple { error, .. }, _) => Err(error),
            (other, _) => panic!("a chunk without structured replies: {other:?}"),
        })
    }

    /// Reads with structured replies: the kinds of the chunks, and what they say together.
    pub async fn read_chunks(&mut self, flags: u16, offset: u64, len: u32) -> io::Result<(Vec<u16>, Vec<u8>)> {
        self.send(&request(READ, flags, 7, offset, len)).await?;
        let (mut kinds, mut data, mut covered) = (Vec::new(), vec![0xee; len as usize], 0);
        loop {
            let (Reply::Chunk { last, kind, payload, .. }, _) = self.reply(0).await? else {
                panic!("a simple reply to a read");
            };
            if kind == 1 || kind == 2 {
                let at = (u64::from_be_bytes(payload[..8].try_into().expect("eight bytes")) - offset) as usize;
                let piece = match kind {
                    1 => payload[8..].to_vec(),
                    _ => vec![0; u32::from_be_bytes(payload[8..].try_into().expect("four bytes")) as usize],
                };
                assert!(!piece.is_empty());
                data[at..at + piece.len()].copy_from_slice(&piece);
                covered += piece.len();
            } else {
                assert!(kind == 0 && payload.is_empty(), "chunk {kind} in the reply to a read");
            }
            kinds.push(kind);
            if last {
                assert_eq!(covered, len as usize);
                return Ok((kinds, data));
            }
        }
    }

    /// Reads until the server closes the connection.
    pub async fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).await?;
        Ok(rest)
    }
}
