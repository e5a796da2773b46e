//! Bodies in chunks (`aws-chunked`), of which s3s has a chunk in memory until it is there as a whole.
//!
//! ```text
//!   SIZE[;chunk-signature=SIGNATURE] CR LF  SIZE bytes  CR LF  ...  0 ... CR LF  trailers
//! ```
//! A large chunk goes on as several small ones. Where it has a signature, which is of all of it, it is refused instead, as is what
//! is not in this form: s3s takes a size from more than that, and whatever stands behind it.

use hyper::HeaderMap;
use hyper::body::Bytes;
use std::collections::VecDeque;

/// The largest chunk that goes on as one, and the largest with a signature.
const PIECE_BYTES: u64 = 256 << 10;
const SIGNED_BYTES: u64 = 1 << 20;
/// The longest line before a chunk, as s3s has it.
const HEAD_BYTES: usize = 1024;

/// Why a body is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A chunk with a signature is too large.
    TooLarge,
    /// The line before a chunk does not say its size.
    NoSize,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge => {
                write!(f, "a chunk with a signature has at most {SIGNED_BYTES} bytes: send smaller ones")
            }
            Self::NoSize => f.write_str("a chunk begins with its size in hexadecimal digits, at most 8 of them"),
        }
    }
}

impl std::error::Error for Refused {}

/// Where a body stands.
enum At {
    /// In the line before a chunk.
    Head(Vec<u8>),
    /// In a chunk: its bytes that are left, and those before it goes on as another one.
    Data { left: u64, piece: u64 },
    /// In the end of line behind it.
    End(usize),
    /// Behind the last one.
    Behind,
}

/// A body in chunks on its way to s3s.
pub(crate) struct Chunks {
    at: At,
    ready: VecDeque<Bytes>,
}

impl Chunks {
    /// Of a request with this head, where its body is in chunks.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let hash = headers.get("x-amz-content-sha256")?;
        let is_framed = hash.as_bytes().starts_with(b"STREAMING-");
        is_framed.then(|| Self { at: At::Head(Vec::new()), ready: VecDeque::new() })
    }

    /// The next bytes that came.
    pub fn push(&mut self, mut bytes: Bytes) -> Result<(), Refused> {
        while !bytes.is_empty() {
            match &mut self.at {
                At::Head(head) => {
                    let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
                    head.extend_from_slice(&bytes.split_to(end));
                    if head.ends_with(b"\n") || head.len() > HEAD_BYTES {
                        let head = std::mem::take(head);
                        self.begin(head)?;
                    }
                }
                At::Data { left, piece } => {
                    let data = bytes.split_to(bytes.len().min(*piece as usize));
                    *left -= data.len() as u64;
                    *piece -= data.len() as u64;
                    self.ready.push_back(data);
                    if *left == 0 {
                        self.at = At::End(2);
                    } else if *piece == 0 {
                        *piece = PIECE_BYTES.min(*left);
                        self.ready.push_back(format!("\r\n{piece:x}\r\n").into());
                    }
                }
                At::End(left) => {
                    let data = bytes.split_to(bytes.len().min(*left));
                    *left -= data.len();
                    self.ready.push_back(data);
                    if *left == 0 {
                        self.at = At::Head(Vec::new());
                    }
                }
                At::Behind => self.ready.push_back(std::mem::take(&mut bytes)),
            }
        }
        Ok(())
    }

    /// Begins what a line says.
    fn begin(&mut self, head: Vec<u8>) -> Result<(), Refused> {
        let size = size(&head).ok_or(Refused::NoSize)?;
        let is_signed = head.contains(&b';');
        if is_signed && size > SIGNED_BYTES {
            return Err(Refused::TooLarge);
        }
        if size > PIECE_BYTES && !is_signed {
            self.at = At::Data { left: size, piece: PIECE_BYTES };
            self.ready.push_back(format!("{PIECE_BYTES:x}\r\n").into());
            return Ok(());
        }
        self.at = if size > 0 { At::Data { left: size, piece: size } } else { At::Behind };
        self.ready.push_back(head.into());
        Ok(())
    }

    /// The next bytes for s3s, of those that came.
    pub fn next(&mut self) -> Option<Bytes> {
        self.ready.pop_front()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}

/// The size that a line before a chunk says: digits and no more, and as many as s3s reads.
fn size(head: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(head).ok()?.strip_suffix("\r\n")?;
    let digits = text.split(';').next().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok().filter(|_| digits.len() <= 8).map(u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a body that comes in pieces of this size.
    fn passed(body: &[u8], step: usize) -> Result<Vec<u8>, Refused> {
        let mut chunks = Chunks { at: At::Head(Vec::new()), ready: VecDeque::new() };
        for piece in body.chunks(step) {
            chunks.push(Bytes::copy_from_slice(piece))?;
        }
        Ok(std::iter::from_fn(|| chunks.next()).flatten().collect())
    }

    #[test]
    fn a_large_chunk_goes_on_in_small_ones() {
        let data = |len: usize| (0..len).map(|at| (at % 251) as u8).collect::<Vec<u8>>();
        let trailer = b"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n";
        let large = [b"9c400\r\n".as_slice(), &data(640_000), b"\r\n5\r\nhello\r\n", trailer].concat();
        let all = data(640_000);
        let (first, rest) = all.split_at(256 << 10);
        let (second, third) = rest.split_at(256 << 10);
        let small = [
            b"40000\r\n".as_slice(),
            first,
            b"\r\n40000\r\n",
            second,
            b"\r\n1c400\r\n",
            third,
            b"\r\n5\r\nhello\r\n",
            trailer,
        ];
        for step in [1, 7, 4096, 300_000, large.len()] {
            assert!(passed(&large, step).unwrap() == small.concat(), "in pieces of {step}");
        }
    }

    #[test]
    fn what_is_signed_stays_whole_or_is_refused() {
        let signature = [b";chunk-signature=".as_slice(), &[b'a'; 64], b"\r\n"].concat();
        let body =
            |size: usize| [format!("{size:x}").as_bytes(), &signature, &vec![7; size], b"\r\n0\r\n\r\n"].concat();
        for step in [11, 1 << 20] {
            assert!(passed(&body(1 << 20), step).unwrap() == body(1 << 20));
            assert!(passed(&body((1 << 20) + 1), step).is_err());
        }
    }

    #[test]
    fn a_line_that_does_not_say_a_size_is_refused() {
        let signature = format!(";chunk-signature={}\r\n", "a".repeat(64));
        for size in ["40000000 ", "4000000g", "zz", "-5", "+5", "", "000000005", "100000000", " 5", "0x5", "5\r"] {
            for rest in ["\r\n", &signature, " ;chunk-signature=aa\r\n"] {
                let body = format!("{size}{rest}abcdefgh");
                for step in [1, 100] {
                    assert_eq!(passed(body.as_bytes(), step), Err(Refused::NoSize), "{body:?}");
                }
            }
        }
        for odd in [&[b'1'; 3000][..], b"5\nhello\n", b"\xff\xff\r\n"] {
            assert_eq!(passed(odd, 100), Err(Refused::NoSize), "{}", odd.escape_ascii());
        }
    }
}
