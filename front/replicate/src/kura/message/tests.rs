use super::*;
use proptest::prelude::*;

#[test]
fn messages_are_read_as_they_were_written() {
    let at = At { path: b"d/f", in_place: true };
    let attributes = vec![(b"user.a".to_vec(), b"1".to_vec())];
    let meta = Meta { mode: 0o4755, uid: 1, gid: 2, modified: crate::tree::Time { s: -5, ns: 7 } };
    let small = |contents| Small { name: b"n", kind: Kind::Symlink, meta, attributes: attributes.clone(), contents };
    let requests = [
        Request::Hello { version: VERSION, path: b"x", token: b"t", hold: Hold::Worker },
        Request::Hello { version: 1, path: b"x", token: b"t", hold: Hold::No },
        Request::IsEmpty,
        Request::Tree,
        Request::Unread,
        Request::Mark { text: b"{}", durably: true },
        Request::Directories(vec![(b"d", meta)]),
        Request::Batch { directory: b"", files: vec![small(None), small(Some(b"abc"[..].into()))] },
        Request::Prepare(vec![(at, 1 << 40)]),
        Request::Data { at, offset: 9, bytes: b"abc"[..].into() },
        Request::Hole { at, offset: 1, length: 2 },
        Request::Keep { at, offset: 1, length: 2 },
        Request::Sums { at, seed: 3, block: 4096, ranges: vec![(0, 5), (7, 9)] },
        Request::Finish { at, meta, attributes: attributes.clone() },
        Request::Links(vec![(b"a", b"b")]),
        Request::Delete(vec![(b"a", true), (b"", false)]),
        Request::Touch(vec![(b"d", meta, attributes)]),
        Request::Digests(vec![(b"a", true)]),
        Request::Sweep(vec![b"a"]),
        Request::Nothing,
    ];
    for request in requests {
        let (frame, mut body) = (request.frame(), Vec::new());
        let kind = read_frame(&mut &frame[..], &mut body, MOST).unwrap().unwrap();
        assert_eq!(Request::of(kind, &body).unwrap(), request);
    }
    let failures = vec![Failure::new(*b"a", "why")];
    for reply in [
        Reply::Done(failures.clone()),
        Reply::Bytes(b"x".to_vec()),
        Reply::Records(vec![b"r".to_vec()]),
        Reply::Present(PRESENT.to_vec(), failures),
        Reply::Refused("no".to_owned()),
        Reply::Welcome(Welcome {
            marker: b"{}\n".to_vec(),
            above: "/a".to_owned(),
            boot: "b".to_owned(),
            lies_in: vec![(1, 2), (1, 3)],
            owner: Some((7, 8)),
        }),
    ] {
        let (frame, mut body) = (reply.frame(), Vec::new());
        let kind = read_frame(&mut &frame[..], &mut body, MOST).unwrap().unwrap();
        assert_eq!(Reply::of(kind, &body, 4).unwrap(), reply);
    }
}

#[test]
fn a_reply_has_no_more_than_was_asked_for() {
    let paths: Vec<Vec<u8>> = (0..100).map(|index| vec![b'p'; index]).collect();
    let request = Request::Digests(paths.iter().map(|path| (&**path, false)).collect());
    let failures = |count| -> Vec<Failure> {
        let long = "c".repeat(CAUSE);
        paths.iter().cycle().take(count).map(|path| Failure::new(path.clone(), &long)).collect()
    };
    let Bounds { bytes, items } = request.bounds();
    let frame = Reply::Done(failures(100)).frame();
    let mut body = Vec::new();
    let kind = read_frame(&mut &frame[..], &mut body, bytes).unwrap().unwrap();
    assert!(matches!(Reply::of(kind, &body, items), Ok(Reply::Done(failures)) if failures.len() == 100));
    let frame = Reply::Done(failures(101)).frame();
    assert!(Reply::of(0, &frame[5..], items).unwrap_err().to_string().contains("more than it was asked for"));
    let frame = Reply::Bytes(vec![0; bytes]).frame();
    let much = read_frame(&mut &frame[..], &mut body, bytes).unwrap_err().to_string();
    assert!(much.contains("more than it was asked for"), "{much}");
    // Whatever fits into a request has a reply that fits, too.
    assert!(Request::Sweep(Vec::new()).bounds().bytes <= MOST);
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(kind in 0..24_u8, body: Vec<u8>, stream: Vec<u8>) {
        let _ = Request::of(kind, &body);
        let _ = Reply::of(kind, &body, usize::MAX);
        let _ = read_frame(&mut &stream[..], &mut Vec::new(), 99);
    }
}
