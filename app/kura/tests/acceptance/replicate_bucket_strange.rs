//! `kura replicate` of a bucket to servers that are not as kura's own, and on ways on which things are changed.

use crate::harness::{Home, Server, fails};
use crate::meddler::{From, Meddler, replace};
use crate::replicate_bucket::json;
use crate::replicate_bucket_crash::s3_port;
use crate::s3::Key;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Goes in two parts.
const LARGE: usize = (16 << 20) + 400_000;
const SOUND: &[u8] = b"sound as it was!";
const HARMED: &[u8] = b"SOUND AS IT WAS!";

/// A bucket with a large object and small ones here, an empty one there, and a job that is not on good terms with the way to it.
fn begin() -> (Home, [Server; 2], Home, Meddler) {
    let (here, there) = (Home::new(), Home::new());
    let (source, target) = (here.serve(), there.serve());
    here.ok(&["bucket", "create", "photos"]);
    there.ok(&["bucket", "create", "copy"]);
    for (key, len) in [("a", 10), ("large", LARGE), ("small", 4000)] {
        std::fs::write(here.path("content"), SOUND.repeat(len.div_ceil(SOUND.len()))).expect("a file");
        here.ok(&["object", "put", &format!("photos/{key}"), "content"]);
    }
    let key = Key::of(&target);
    let text = format!("aws_access_key_id = {}\naws_secret_access_key = {}\n", key.id, key.secret);
    std::fs::write(here.path("credentials"), text).expect("the credentials");
    let way = Meddler::before(s3_port(&target));
    let to = format!("http://127.0.0.1:{}/copy", way.port);
    here.ok(&["replicate", "add", "photos", "bucket:photos", &to, "--target-credentials", "credentials"]);
    (here, [source, target], there, way)
}

/// Objects that a run carried, left as they were, and did not carry.
fn run(home: &Home, more: &[&str]) -> [u64; 3] {
    let summary: Value = json(home, &[&["replicate", "run", "photos"], more].concat());
    ["files", "unchanged", "failed"].map(|field| summary[field].as_u64().expect("a count"))
}

#[test]
fn what_is_changed_on_the_way_is_not_stored_and_what_was_is_mended() {
    let (here, _servers, there, way) = begin();
    way.change(|whose, words| {
        if whose == From::Client {
            replace(words, SOUND, HARMED);
        }
    });
    let complaint = fails(&mut here.kura(&["replicate", "run", "photos"]));
    assert!(complaint.contains("BadDigest") && complaint.contains("3 not copied"), "{complaint}");
    assert_eq!(json(&there, &["object", "list", "copy"])["objects"], Value::Array(Vec::new()));
    way.change(|_, _| {});
    assert_eq!(run(&here, &[]), [3, 0, 0]);

    // What is found to differ at the target, which lists it as it was left there.
    let harm = |whose: From, words: &mut [u8]| {
        if whose == From::Server {
            replace(words, SOUND, HARMED);
        }
    };
    way.change(harm);
    let verify = here.kura(&["replicate", "verify", "photos"]).output().expect("kura");
    let told = String::from_utf8_lossy(&verify.stdout).into_owned();
    assert!(!verify.status.success() && told.matches("contents differ").count() == 3, "{told}");
    way.change(|_, _| {});
    assert_eq!(run(&here, &[]), [3, 0, 0]);
    assert_eq!(run(&here, &["--recheck"]), [0, 3, 0]);
    way.change(harm);
    assert_eq!(run(&here, &["--recheck"]), [3, 0, 0]);
    way.change(|_, _| {});
    assert_eq!(run(&here, &[]), [0, 3, 0]);
    assert!(here.ok(&["replicate", "verify", "photos"]).contains("nothing differs"));
}

#[test]
fn a_target_that_says_things_in_other_words_is_followed() {
    let (here, _servers, _there, way) = begin();
    let changed = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let note = Arc::clone(&changed);
    way.change(move |whose, words| {
        if whose == From::Client {
            return;
        }
        let is_there = |words: &[u8], what: &[u8]| words.windows(what.len()).position(|place| place == what);
        let (s3, other) = (b"http://s3.amazonaws.com/doc/2006-03-01/", b"http://doc.s3.amazonaws.com/2006-03-01/");
        note[0].fetch_or(is_there(words, s3).is_some(), Ordering::SeqCst);
        replace(words, s3, other);
        // Nor does it say what an upload in parts has become.
        if is_there(words, b"<CompleteMultipartUploadResult").is_some()
            && let (Some(from), Some(end)) = (is_there(words, b"<ETag>"), is_there(words, b"</ETag>"))
        {
            words[from + b"<ETag>".len()..end].fill(b' ');
            note[1].store(true, Ordering::SeqCst);
        }
    });
    assert_eq!(run(&here, &[]), [3, 0, 0]);
    assert_eq!(run(&here, &[]), [0, 3, 0]);
    assert!(changed.iter().all(|changed| changed.load(Ordering::SeqCst)), "{changed:?}");
    assert!(here.ok(&["replicate", "verify", "photos"]).contains("nothing differs"));
}

#[test]
fn one_object_that_cannot_be_compared_keeps_no_other_one_from_it() {
    let (here, _servers, there, way) = begin();
    assert_eq!(run(&here, &[]), [3, 0, 0]);
    std::fs::write(there.path("other"), SOUND.repeat(250)).expect("a file");
    there.ok(&["object", "put", "copy/small", "other", "--metadata", "of=another"]);
    let refuses = |status: &'static [u8]| {
        let asked = AtomicBool::new(false);
        way.change(move |whose, words| match whose {
            From::Client if words.starts_with(b"GET /copy/large?") => asked.store(true, Ordering::SeqCst),
            From::Server if asked.swap(false, Ordering::SeqCst) => replace(words, b"HTTP/1.1 200 OK", status),
            _ => {}
        });
    };
    refuses(b"HTTP/1.1 403 NO");
    let verify = here.kura(&["replicate", "verify", "photos", "--workers", "1"]).output().expect("kura");
    let told = String::from_utf8_lossy(&verify.stdout).into_owned();
    assert!(told.contains("large: the target: status 403") && told.contains("small: headers or metadata"), "{told}");
    assert!(!told.contains("a: "), "{told}");
    // What is not shown is no reason to carry it again; what cannot be read there is.
    way.change(|_, _| {});
    assert_eq!(run(&here, &[]), [1, 2, 0]);
    refuses(b"HTTP/1.1 500 NO");
    let complaint = here.kura(&["replicate", "verify", "photos", "--workers", "1"]).output().expect("kura");
    let told = String::from_utf8_lossy(&complaint.stdout).into_owned();
    assert!(told.contains("large: the target: status 500") && told.contains("1 differ"), "{told}");
    way.change(|_, _| {});
    assert_eq!(run(&here, &[]), [1, 2, 0]);
}
