//! What the fuzz targets and the tests do with their bytes.

use kura_replicate::serve_stream;
use kura_replicate::volume::{Extent, Frame, Head};
use std::fs;
use xxhash_rust::xxh3::Xxh3;

/// Bytes of a message before its body: its length, and its kind.
const MESSAGE_HEAD: usize = 5;
/// The kind of a message that says nothing else than that an end is at work.
const ALIVE: u8 = 6;
/// Bytes of a frame before its body, and those of them that the checksum covers.
const FRAME_HEAD: usize = 36;
const SUMMED: usize = 28;

/// `data` is what a source sends. The target must end, touch nothing beside its copy, and answer in whole replies, which are
/// returned.
pub fn serve(data: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let (copy, secret) = (folder.path().join("copy"), folder.path().join("secret"));
    fs::write(&secret, "secret").expect("a file");
    let mut heard = Vec::new();
    // How it ends is the source's matter.
    let _ = serve_stream(&copy, within_reason(data), &mut heard);
    assert_eq!(fs::read(&secret).expect("the file beside the copy"), b"secret");
    let beside = fs::read_dir(folder.path()).expect("the folder").count();
    assert!(beside <= 2, "something was made beside the copy");
    replies(&heard);
    heard
}

/// The same, up to a message that makes work without end for who asks: sums of what a sparse file has not.
fn within_reason(data: &[u8]) -> &[u8] {
    const SUMS: u8 = 11;
    let mut rest = data;
    while let Some((head, body)) = rest.split_at_checked(MESSAGE_HEAD) {
        if head[4] == SUMS {
            return &data[..data.len() - rest.len()];
        }
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        rest = body.get(length..).unwrap_or_default();
    }
    data
}

/// Takes what was answered apart: the kinds, but for signs of life.
pub fn replies(heard: &[u8]) -> Vec<u8> {
    let (mut rest, mut kinds) = (heard, Vec::new());
    while !rest.is_empty() {
        let (head, body) = rest.split_at_checked(MESSAGE_HEAD).expect("a whole reply");
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        rest = body.get(length..).expect("a whole reply");
        assert!(head[4] <= ALIVE, "a reply of kind {}", head[4]);
        kinds.extend((head[4] < ALIVE).then_some(head[4]));
    }
    kinds
}

/// How many messages these are.
pub fn requests(data: &[u8]) -> usize {
    let (mut rest, mut count) = (data, 0);
    while let Some((head, body)) = rest.split_at_checked(MESSAGE_HEAD) {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        rest = &body[length..];
        count += 1;
    }
    count
}

/// `data` is a frame's offset, end and body as they are before they are sealed and packed. True where that is a frame.
pub fn unpack(data: &[u8]) -> bool {
    // As it comes, too, which has a head that agrees with nothing.
    let _ = (Head::of(data), Frame::unpack(data));
    let Some((ends, body)) = data.split_at_checked(16) else { return false };
    let mut packed = b"kurafrm1".to_vec();
    packed.extend(ends);
    packed.extend((body.len() as u32).to_le_bytes());
    let mut sum = Xxh3::new();
    sum.update(&packed[..SUMMED]);
    sum.update(body);
    packed.extend(sum.digest().to_le_bytes());
    packed.extend(zstd::bulk::compress(body, 1).expect("it packs"));
    match Frame::unpack(&packed) {
        Ok(frame) => {
            let mut at = frame.offset;
            for Extent { offset, len, .. } in &frame.extents {
                assert!(at <= *offset && offset + len <= frame.next);
                at = offset + len;
            }
            let data_bytes: u64 = frame.extents.iter().filter(|extent| extent.is_data).map(|extent| extent.len).sum();
            assert_eq!(data_bytes, frame.data.len() as u64);
            true
        }
        Err(refused) => {
            assert!(!refused.contains('\n'), "{refused}");
            false
        }
    }
}

/// Frames as [`unpack`] takes them.
pub fn frame_seeds() -> Vec<Vec<u8>> {
    let extent = |offset, len, is_data| Extent { offset, len, is_data };
    let frame = |since: &str, extents: Vec<Extent>, data: &[u8]| {
        let frame = Frame {
            since: since.to_owned(),
            to: "b".to_owned(),
            offset: 4096,
            next: 1 << 30,
            extents,
            data: data.to_vec(),
        };
        let packed = frame.pack().expect("it packs");
        let head = Head::of(&packed).expect("a head");
        let body = zstd::bulk::decompress(&packed[FRAME_HEAD..], head.body_bytes as usize).expect("a body");
        [&packed[8..24], &body[..]].concat()
    };
    vec![
        frame("", vec![], b""),
        frame(
            "a",
            vec![extent(4096, 5, true), extent(1 << 20, 1 << 29, false), extent((1 << 30) - 3, 3, true)],
            b"12345678",
        ),
    ]
}

/// A number as messages have it: seven bits a byte.
fn number(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [number(bytes.len() as u64), bytes.to_vec()].concat()
}

fn message(kind: u8, body: &[Vec<u8>]) -> Vec<u8> {
    let body = body.concat();
    [&(body.len() as u32).to_le_bytes()[..], &[kind], &body].concat()
}

/// Beginnings from which interesting bytes are not far: what a source says that makes a copy.
pub fn request_seeds() -> Vec<Vec<u8>> {
    let hello = || message(0, &[number(8), text(b"x"), text(b"t"), vec![1]]);
    // Mode, owner, group, seconds, nanoseconds; no attributes.
    let meta = || [number(0o644), number(0), number(0), number(10), number(0)].concat();
    let none = || number(0);
    let small = |name: &[u8], kind: u8, contents: &[u8]| {
        [text(name), vec![kind], meta(), none(), vec![1], text(contents)].concat()
    };
    let at = |path: &[u8]| [text(path), vec![0]].concat();
    let write = [
        hello(),
        message(5, &[number(1), text(b"d"), meta()]),
        message(6, &[text(b"d"), number(2), small(b"f", 0, b"content"), small(b"l", 1, b"../../secret")]),
        message(13, &[number(1), text(b"hard"), text(b"d/f")]),
        message(15, &[number(1), text(b"d"), meta(), none()]),
        message(17, &[]),
        // A marker that is none.
        message(4, &[text(b"{}"), vec![1]]),
    ];
    let large = [
        hello(),
        message(7, &[number(1), at(b"big"), number(1 << 20)]),
        message(8, &[at(b"big"), number(4096), text(&[7; 300])]),
        message(9, &[at(b"big"), number(0), number(4096)]),
        message(10, &[at(b"big"), number(8192), number(4096)]),
        message(12, &[at(b"big"), meta(), none()]),
        message(16, &[number(2), text(b"big"), vec![0], text(b"big"), vec![1]]),
    ];
    let read = [
        hello(),
        message(2, &[]),
        // What could not be read of a tree.
        message(19, &[]),
        message(6, &[none(), number(1), small(b"f", 0, b"content")]),
        message(14, &[number(2), text(b"f"), vec![0], text(b"../secret"), vec![0]]),
        message(18, &[number(1), text(b"f")]),
        message(17, &[]),
    ];
    vec![hello(), write.concat(), large.concat(), read.concat()]
}
