use super::*;
use crate::error::COPY;
use crate::tree::Time;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// A copy, and beside it a file that is none of its.
fn beside() -> (tempfile::TempDir, Sink, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let sink = Sink::open(&folder.path().join("copy"), true).unwrap();
    (folder, sink, secret)
}

const META: Meta = Meta { mode: 0o666, uid: 7, gid: 7, modified: Time { s: 5, ns: 0 } };

fn entry<'a>(name: &'a [u8], kind: Kind, contents: Option<&'a [u8]>) -> Small<'a> {
    Small { name, kind, meta: META, attributes: Vec::new(), contents: contents.map(Into::into) }
}

#[test]
fn nothing_that_is_asked_for_leads_out_of_the_copy() {
    use std::os::unix::ffi::OsStrExt;
    let (folder, mut sink, secret) = beside();
    let (to, up) = (secret.as_os_str().as_bytes().to_vec(), folder.path().as_os_str().as_bytes().to_vec());
    let links = vec![entry(b"link", Kind::Symlink, Some(&to)), entry(b"up", Kind::Symlink, Some(&up))];
    assert_eq!(sink.handle(Request::Batch { directory: b"", files: links }), Reply::Done(Vec::new()));
    let at = |path| At { path, in_place: true };
    let bytes = || b"mine"[..].into();
    let asked = [
        Request::Batch { directory: b"", files: vec![entry(b"link", Kind::File, None)] },
        Request::Batch { directory: b"up", files: vec![entry(b"secret", Kind::File, Some(b"mine"))] },
        Request::Batch { directory: b"", files: vec![entry(b"../secret", Kind::File, Some(b"mine"))] },
        Request::Touch(vec![(b"link", META, Vec::new())]),
        Request::Touch(vec![(b"up/secret", META, Vec::new())]),
        Request::Data { at: at(b"link"), offset: 0, bytes: bytes() },
        Request::Data { at: at(b"up/secret"), offset: 0, bytes: bytes() },
        Request::Data { at: at(b"d/../../secret"), offset: 0, bytes: bytes() },
        Request::Hole { at: at(b"link"), offset: 0, length: 3 },
        Request::Finish { at: at(b"up/secret"), meta: META, attributes: Vec::new() },
        Request::Links(vec![(b"hard", b"up/secret")]),
        Request::Delete(vec![(b"../secret", false)]),
        Request::Directories(vec![(b"up/more", META)]),
    ];
    for request in asked {
        let text = format!("{request:?}");
        let Reply::Done(failures) = sink.handle(request) else { panic!("{text}") };
        assert_eq!(failures.len(), 1, "{text}");
    }
    // What is deleted is the link, not what it leads to; nor is a directory gone through that is a link.
    sink.handle(Request::Delete(vec![(b"up", true), (b"up/secret", false), (b"link", false)]));
    let Reply::Bytes(sums) = sink.handle(Request::Digests(vec![(b"up/secret", false), (b"up/secret", true)])) else {
        panic!()
    };
    assert_eq!(sums, [0; 32]);
    let is = std::fs::metadata(&secret).unwrap();
    assert_eq!((is.mode() & 0o7777, is.nlink(), is.mtime() == 5), (0o600, 1, false));
    assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
}

#[test]
fn a_copy_in_what_is_deleted_or_replaced_stays() {
    let (folder, mut sink, _) = beside();
    let root = folder.path().join("copy");
    let (boot, lies_in) = (boot_of(&root), identities(&root));
    assert_eq!(sink.welcome().unwrap(), Welcome { boot, lies_in, owner: owner(), ..Welcome::default() });
    for path in ["gone/in", "gone/stale", "file"] {
        std::fs::create_dir_all(root.join(path)).unwrap();
        std::fs::write(root.join(path).join("work"), "precious").unwrap();
    }
    for path in ["gone/in", "file"] {
        std::fs::write(root.join(path).join(".kura-replica"), "{}").unwrap();
    }
    let in_its_place = vec![entry(b"file", Kind::File, Some(b"mine"))];
    for request in [Request::Delete(vec![(b"gone", true)]), Request::Batch { directory: b"", files: in_its_place }] {
        let text = format!("{request:?}");
        let Reply::Done(failures) = sink.handle(request) else { panic!("{text}") };
        assert!(matches!(&failures[..], [one] if one.cause.contains(COPY)), "{text}: {failures:?}");
    }
    assert!(root.join("gone/in/work").exists() && root.join("file/work").exists() && !root.join("gone/stale").exists());
    let inner = Sink::beneath(&root, Path::new("gone/in/deeper"), true).unwrap().welcome().unwrap();
    assert!(inner.above.ends_with("copy/gone/in"), "{inner:?}");
}

#[test]
fn a_run_has_the_copy_until_all_its_links_are_gone() {
    let (folder, first, _) = beside();
    let root = folder.path().join("copy");
    let another = || Sink::open(&root, false).unwrap();
    let (worker, looking) = (another(), another());
    first.hold(Hold::Run).unwrap();
    worker.hold(Hold::Worker).unwrap();
    looking.hold(Hold::No).unwrap();
    for hold in [Hold::Run, Hold::Again] {
        assert_eq!(another().hold(hold).unwrap_err(), HELD);
    }
    assert!(crate::marker::hold(&root, true).unwrap_err().to_string().contains(HELD));
    drop(first);
    // What a worker is about to write is written before anybody else begins.
    std::thread::scope(|scope| {
        scope.spawn(|| another().hold(Hold::Run).unwrap());
        std::thread::sleep(PATIENCE / 10);
        drop(worker);
    });
    let here = crate::marker::hold(&root, true).unwrap();
    assert_eq!(another().hold(Hold::Run).unwrap_err(), HELD);
    drop(here);
    another().hold(Hold::Run).unwrap();
}

#[test]
fn what_no_message_holds_is_not_summed() {
    let (_folder, mut sink, _) = beside();
    let at = At { path: b"large", in_place: true };
    sink.handle(Request::Prepare(vec![(at, 1 << 20)]));
    let mut sums =
        |block, ranges: &[(u64, u64)]| sink.handle(Request::Sums { at, seed: 1, block, ranges: ranges.to_vec() });
    assert!(matches!(sums(4096, &[(0, 8192)]), Reply::Bytes(sums) if sums.len() == 32));
    for (block, range) in [(1, (0, u64::MAX)), (4096, (u64::MAX - 1, 4096)), (0, (0, 4096)), (64, (0, 1 << 40))] {
        assert!(matches!(sums(block, &[range]), Reply::Done(failures) if failures.len() == 1), "{block} {range:?}");
    }
}

#[test]
fn what_is_not_whole_goes_unless_a_run_goes_on_with_it() {
    let (folder, mut sink, _) = beside();
    let at = |path| At { path, in_place: false };
    sink.handle(Request::Directories(vec![(b"d", META)]));
    sink.handle(Request::Prepare(vec![(at(b"d/goes-on"), 1 << 20), (at(b"d/is-left"), 1 << 20)]));
    sink.handle(Request::Touch(vec![(b"d", META, Vec::new())]));
    let directory = folder.path().join("copy/d");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2);
    assert_eq!(sink.handle(Request::Sweep(vec![b"d/goes-on"])), Reply::Done(Vec::new()));
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    assert_eq!(std::fs::metadata(&directory).unwrap().mtime(), META.modified.s);
    let finish = Request::Finish { at: at(b"d/goes-on"), meta: META, attributes: Vec::new() };
    assert_eq!(sink.handle(finish), Reply::Done(Vec::new()));
    assert_eq!(std::fs::metadata(directory.join("goes-on")).unwrap().len(), 1 << 20);
}

#[test]
fn what_is_written_into_has_no_other_name() {
    let (folder, mut sink, _) = beside();
    let root = folder.path().join("copy");
    let path = |name: &[u8]| root.join(super::name(name));
    let old = vec![b'o'; 10_000];
    // A link that was cut off has left the first one, a link that the source has no more the second.
    for (other, at) in [
        (unfinished(b"large"), At { path: b"large", in_place: false }),
        (b"in-place".to_vec(), At { path: b"in-place", in_place: true }),
    ] {
        std::fs::write(path(b"kept"), &old).unwrap();
        std::fs::hard_link(path(b"kept"), path(&other)).unwrap();
        let prepared = sink.handle(Request::Prepare(vec![(at, 20_000)]));
        assert_eq!(prepared, Reply::Present(vec![Present::Zeroes], Vec::new()), "{at:?}");
        sink.handle(Request::Data { at, offset: 5000, bytes: vec![b'n'; 15_000].into() });
        sink.handle(Request::Finish { at, meta: META, attributes: Vec::new() });
        assert!(std::fs::read(path(b"kept")).unwrap() == old, "{at:?}");
        let is = [vec![0; 5000], vec![b'n'; 15_000]].concat();
        assert!(std::fs::read(path(at.path)).unwrap() == is, "{at:?}");
    }
    // Nor is a link left that could not take its place.
    let long = [b'l'; 256];
    let Reply::Done(failures) = sink.handle(Request::Links(vec![(&long, b"kept")])) else { panic!() };
    assert_eq!((failures.len(), std::fs::metadata(path(b"kept")).unwrap().nlink()), (1, 1));
}

#[test]
fn no_two_files_are_written_in_one_place() {
    let (folder, mut sink, _) = beside();
    // The first digits of the name's SHA-256: two names with these in common are not to be found.
    assert_eq!(unfinished(b"database.bin"), b".~kura~08ae031d3263d53e");
    assert!(crate::tree::is_upkeep(b"d", &unfinished(b"database.bin")));
    let at = At { path: b"large", in_place: false };
    let Reply::Present(present, failures) = sink.handle(Request::Prepare(vec![(at, 10), (at, 20)])) else { panic!() };
    assert_eq!((present, failures.len()), (vec![Present::Zeroes, Present::Refused], 1));
    let is = std::fs::metadata(folder.path().join("copy").join(super::name(&unfinished(b"large")))).unwrap();
    assert_eq!(is.len(), 10);
}

#[test]
fn what_cannot_be_made_leaves_what_has_its_name() {
    let (folder, mut sink, _) = beside();
    let file = folder.path().join("copy/file");
    std::fs::write(&file, "the last version").unwrap();
    // A link to nowhere is refused before anybody looks for its name, as everything is where no file can be opened any more.
    let files = vec![entry(b"file", Kind::Symlink, Some(b""))];
    let Reply::Done(failures) = sink.handle(Request::Batch { directory: b"", files }) else { panic!() };
    assert_eq!((failures.len(), std::fs::read(&file).unwrap()), (1, b"the last version".to_vec()));
}

#[test]
fn zeroes_of_a_small_file_are_holes() {
    let (folder, mut sink, _) = beside();
    let block = |byte| vec![byte; 4096];
    let zeroes = || vec![0; 512 << 10];
    let cases = [
        ([block(7), zeroes(), vec![8; 10]].concat(), true),
        ([zeroes(), block(7), zeroes(), vec![0; 10]].concat(), true),
        (zeroes(), true),
        ([block(7), block(8)].concat(), false),
        (vec![0; 10], false),
        (Vec::new(), false),
    ];
    for (contents, has_holes) in cases {
        let files = vec![entry(b"file", Kind::File, Some(&contents))];
        assert_eq!(sink.handle(Request::Batch { directory: b"", files }), Reply::Done(Vec::new()));
        let path = folder.path().join("copy/file");
        assert!(std::fs::read(&path).unwrap() == contents);
        let has_all = std::fs::metadata(&path).unwrap().blocks() * 512 >= contents.len() as u64;
        assert!(!has_holes || !has_all, "{}", contents.len());
    }
}
