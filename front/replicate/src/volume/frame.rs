//! Frames: pieces of what differs between two points, as they travel.
//!
//! ```text
//!    0  magic "kurafrm1"        8
//!    8  offset                  8   where the piece begins: all before it is in earlier frames
//!   16  next                    8   where it ends
//!   24  bytes of the body       4
//!   28  xxh3 of head and body   8   the head up to here, the body as it is before it is compressed
//!   36  body, compressed by zstd
//!
//!   body: since, to             each 2 bytes of length, then a name; since is empty in a transfer of everything
//!         extents               4 bytes: how many; each 8 bytes of offset, 7 of length, 1 of kind (0 zeroes, 1 data)
//!         data                  of the extents that have some, in order
//! ```
//! Integers are little-endian.

use xxhash_rust::xxh3::Xxh3;

const MAGIC: &[u8; 8] = b"kurafrm1";
const HEAD_BYTES: usize = 36;
/// Bytes of data a frame aims at.
pub const FRAME_BYTES: usize = 4 << 20;
/// The most bytes of a body: what a frame aims at, and as much again for names and extents.
const BODY_BYTES: usize = 2 * FRAME_BYTES;
/// The quickest of zstd's usual levels: the link is seldom slower than that.
const LEVEL: i32 = 1;

/// A run of bytes that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins.
    pub offset: u64,
    /// How long it is, in bytes.
    pub len: u64,
    /// Whether it has data; else it reads as zeroes.
    pub is_data: bool,
}

/// A piece of what differs between two points.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The earlier point; empty where all is sent.
    pub since: String,
    /// The later point.
    pub to: String,
    /// Where the piece begins, in bytes of the volume.
    pub offset: u64,
    /// Where it ends.
    pub next: u64,
    /// What differs in it, in order; all other bytes of the piece are the same.
    pub extents: Vec<Extent>,
    /// What the extents with data have, one behind the other.
    pub data: Vec<u8>,
}

/// What can be read of a frame without unpacking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Where the piece begins, in bytes of the volume.
    pub offset: u64,
    /// Where it ends.
    pub next: u64,
    /// Bytes of the body before it was compressed.
    pub body_bytes: u32,
    checksum: u64,
}

impl Head {
    /// The head of a frame. The error says in one line what is wrong.
    pub fn of(bytes: &[u8]) -> Result<Self, String> {
        let Some((head, _)) = bytes.split_at_checked(HEAD_BYTES).filter(|(head, _)| head.starts_with(MAGIC)) else {
            return Err("this is no frame: use the same kura at both ends".to_owned());
        };
        let mut head = Reader(&head[8..]);
        let head = Self { offset: head.u64()?, next: head.u64()?, body_bytes: head.u32()?, checksum: head.u64()? };
        if head.body_bytes as usize > BODY_BYTES || head.next < head.offset {
            return Err(format!("a frame of {} bytes from {} to {}", head.body_bytes, head.offset, head.next));
        }
        Ok(head)
    }

    fn bytes(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.next.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[28..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    fn checksum_with(&self, body: &[u8]) -> u64 {
        let mut sum = Xxh3::new();
        sum.update(&self.bytes()[..28]);
        sum.update(body);
        sum.digest()
    }
}

impl Frame {
    /// The frame as it travels.
    pub fn pack(&self) -> std::io::Result<Vec<u8>> {
        let mut body = Vec::with_capacity(self.data.len() + 16 * self.extents.len() + 512);
        for name in [&self.since, &self.to] {
            body.extend((name.len() as u16).to_le_bytes());
            body.extend(name.as_bytes());
        }
        body.extend((self.extents.len() as u32).to_le_bytes());
        for extent in &self.extents {
            body.extend(extent.offset.to_le_bytes());
            body.extend((extent.len | u64::from(extent.is_data) << 56).to_le_bytes());
        }
        body.extend(&self.data);
        let mut head = Head { offset: self.offset, next: self.next, body_bytes: body.len() as u32, checksum: 0 };
        head.checksum = head.checksum_with(&body);
        let mut packed = head.bytes().to_vec();
        packed.append(&mut zstd::bulk::compress(&body, LEVEL)?);
        Ok(packed)
    }

    /// Reads a frame, and holds it to its checksum. The error says in one line what is wrong.
    pub fn unpack(bytes: &[u8]) -> Result<Self, String> {
        let head = Head::of(bytes)?;
        let body = zstd::bulk::decompress(&bytes[HEAD_BYTES..], head.body_bytes as usize)
            .map_err(|error| format!("a frame cannot be unpacked: {error}"))?;
        if body.len() != head.body_bytes as usize || head.checksum_with(&body) != head.checksum {
            return Err("a frame is not what its checksum says: it was changed on its way".to_owned());
        }
        let mut reader = Reader(&body);
        let (since, to) = (reader.name()?, reader.name()?);
        let count = reader.u32()?;
        let mut extents = Vec::new();
        let (mut at, mut data_bytes) = (head.offset, 0);
        for _ in 0..count {
            let (offset, word) = (reader.u64()?, reader.u64()?);
            let extent = Extent { offset, len: word & (u64::MAX >> 8), is_data: word >> 56 == 1 };
            let end = offset.checked_add(extent.len).filter(|end| offset >= at && *end <= head.next && word >> 57 == 0);
            at = end.ok_or("a frame has extents that lie outside it")?;
            data_bytes += if extent.is_data { extent.len } else { 0 };
            extents.push(extent);
        }
        if reader.0.len() as u64 != data_bytes {
            return Err(format!("a frame has {} bytes of data for {data_bytes}", reader.0.len()));
        }
        let data = reader.0.to_vec();
        Ok(Self { since, to, offset: head.offset, next: head.next, extents, data })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("a frame ends too early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take(N)?.try_into().map_err(|_| "a frame ends too early".to_owned())
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.number()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.number()?))
    }

    fn name(&mut self) -> Result<String, String> {
        let len = u16::from_le_bytes(self.number()?);
        let name = std::str::from_utf8(self.take(len.into())?).map_err(|_| "a frame has a name that is no text")?;
        Ok(name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> Frame {
        let extent = |offset, len, is_data| Extent { offset, len, is_data };
        Frame {
            since: "a".to_owned(),
            to: "b c".to_owned(),
            offset: 4096,
            next: 1 << 40,
            extents: vec![extent(4096, 5, true), extent(1 << 20, 1 << 39, false), extent((1 << 40) - 3, 3, true)],
            data: b"12345678".to_vec(),
        }
    }

    #[test]
    fn a_frame_comes_out_as_it_went_in() {
        let packed = frame().pack().unwrap();
        assert_eq!(Frame::unpack(&packed), Ok(frame()));
        let head = Head::of(&packed).unwrap();
        assert_eq!((head.offset, head.next), (4096, 1 << 40));
    }

    #[test]
    fn a_frame_that_was_changed_is_never_taken_for_another() {
        let packed = frame().pack().unwrap();
        for at in 0..packed.len() {
            let mut changed = packed.clone();
            changed[at] ^= 1;
            // Compression has bits that say nothing.
            assert!(
                Frame::unpack(&changed).is_ok_and(|found| found == frame()) || Frame::unpack(&changed).is_err(),
                "{at}"
            );
            assert!(Frame::unpack(&packed[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn extents_outside_a_frame_are_refused() {
        let whole = frame();
        for (offset, len) in [(0, 5), (4097, u64::MAX >> 8), (u64::MAX, 1), (1 << 21, 1)] {
            let mut frame = whole.clone();
            frame.extents[1] = Extent { offset, len, is_data: false };
            frame.extents[2].offset = 1 << 20;
            assert!(Frame::unpack(&frame.pack().unwrap()).is_err(), "{offset} {len}");
        }
    }

    proptest! {
        #[test]
        fn noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..100), magic in any::<bool>()) {
            let bytes = if magic { [MAGIC, &bytes[..]].concat() } else { bytes };
            prop_assert!(Frame::unpack(&bytes).is_err());
        }
    }
}
