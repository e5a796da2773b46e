//! `kura replicate` of a bucket, from one server to the S3 door of another.

use crate::harness::{Home, Server, eventually, fails, ok};
use crate::object_cli::bytes;
use crate::s3::{Key, client, url};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Larger than what goes in one piece.
const LARGE: usize = 20_000_000;
const KEYS: [&str; 8] = ["a b+c", "100% %41", "ü/日本.txt", "folder/", "//x", "a'\"&<>?#*", "plain", "plain/below"];

fn json(home: &Home, args: &[&str]) -> Value {
    let text = home.ok(&[args, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

fn put(home: &Home, key: &str, content: &[u8], more: &[&str]) {
    std::fs::write(home.path("content"), content).expect("a file");
    home.ok(&[&["object", "put", &format!("photos/{key}"), "content"], more].concat());
}

/// A bucket with all kinds of keys here, a bucket there, and what a job wants to hear.
fn begin(here: &Home, there: &Home, target: &Server) -> (String, Key) {
    here.ok(&["bucket", "create", "photos"]);
    there.ok(&["bucket", "create", "copy"]);
    for (number, key) in KEYS.iter().enumerate() {
        put(here, key, &bytes(number as u64, number * 1000), &[]);
    }
    put(here, "large", &bytes(77, LARGE), &["--content-type", "image/x", "--metadata", "of=a cat"]);
    let key = Key::of(target);
    let text = format!("[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n", key.id, key.secret);
    std::fs::write(here.path("credentials"), text).expect("the credentials");
    (format!("{}/copy", url(target)), key)
}

fn run(home: &Home, more: &[&str]) -> Value {
    json(home, &[&["replicate", "run", "photos"], more].concat())
}

fn counts(summary: &Value) -> [u64; 4] {
    ["files", "deleted", "unchanged", "failed"].map(|field| summary[field].as_u64().expect("a count"))
}

#[test]
fn a_bucket_is_followed() {
    let (here, there) = (Home::new(), Home::new());
    let (_source, target) = (here.serve(), there.serve());
    let (url, _) = begin(&here, &there, &target);
    here.ok(&["replicate", "add", "photos", "bucket:photos", &url, "--target-credentials", "credentials"]);
    let all = KEYS.len() as u64 + 1;
    assert_eq!(counts(&run(&here, &["--dry-run"])), [all, 0, 0, 0]);
    assert_eq!(counts(&run(&here, &[])), [all, 0, 0, 0]);
    let stat = json(&there, &["object", "stat", "copy/large"]);
    let attributes = &stat["attributes"];
    assert_eq!(stat["size_bytes"], LARGE);
    assert_eq!((&attributes["content-type"], &attributes["x-amz-meta-of"]), (&"image/x".into(), &"a cat".into()));
    for key in KEYS {
        let (ours, theirs) = (json(&here, &["object", "stat", &format!("photos/{key}")]), format!("copy/{key}"));
        assert_eq!(ours["etag"], json(&there, &["object", "stat", &theirs])["etag"], "{key}");
    }
    assert!(here.ok(&["replicate", "verify", "photos"]).contains("nothing differs"));
    let again = run(&here, &[]);
    assert_eq!((counts(&again), &again["sent_bytes"]), ([0, 0, all, 0], &0.into()));

    // Changed, changed in its words only, new, deleted; and what somebody did to the copy.
    put(&here, "plain", b"new", &[]);
    put(&here, "large", &bytes(77, LARGE), &["--metadata", "of=a dog"]);
    put(&here, "zz", b"z", &[]);
    here.ok(&["object", "delete", "photos/folder/"]);
    there.ok(&["object", "delete", "copy/a b+c"]);
    std::fs::write(there.path("stranger"), b"stranger").expect("a file");
    there.ok(&["object", "put", "copy/stranger", "stranger"]);
    there.ok(&["object", "put", "copy/ü/日本.txt", "stranger"]);
    let differing = fails_to_verify(&here);
    assert!(differing.contains("stranger: only the target has it") && differing.contains("zz: "), "{differing}");
    assert_eq!(counts(&run(&here, &[])), [5, 2, all - 5, 0]);
    assert_eq!(json(&there, &["object", "stat", "copy/large"])["attributes"]["x-amz-meta-of"], "a dog");
    assert!(here.ok(&["replicate", "verify", "photos"]).contains("nothing differs"));
    assert_eq!(json(&here, &["snapshot", "list", "objects"]), Value::Array(Vec::new()), "no snapshot is left");
}

fn fails_to_verify(home: &Home) -> String {
    let output = home.kura(&["replicate", "verify", "photos"]).output().expect("kura");
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_run_that_is_killed_leaves_nothing_over() {
    let (here, there) = (Home::new(), Home::new());
    let (_source, target) = (here.serve(), there.serve());
    let (to, key) = begin(&here, &there, &target);
    here.ok(&["replicate", "add", "photos", "bucket:photos", &to, "--target-credentials", "credentials"]);
    let mut killed = Command::new(env!("CARGO_BIN_EXE_kura"))
        .args(["replicate", "run", "photos", "--bandwidth", "4M", "--quiet"])
        .current_dir(here.path(""))
        .stdin(Stdio::null())
        .spawn()
        .expect("kura");
    let uploads = here.data().join("replicate/photos/uploads");
    eventually(Duration::from_secs(20), "an upload in parts is under way", || uploads.exists());
    std::thread::sleep(Duration::from_millis(300));
    killed.kill().and_then(|()| killed.wait()).expect("a kill");
    let mut unfinished = client("/usr/bin/aws", &target, &key);
    unfinished.args(["--endpoint-url", &url(&target), "s3api", "list-multipart-uploads", "--bucket", "copy"]);
    assert!(ok(&mut unfinished).contains("UploadId"), "it was killed in the midst of it");
    let rest = run(&here, &[]);
    assert!(rest["is_complete"] == true && rest["files"].as_u64() >= Some(1), "{rest}");
    assert!(!ok(&mut unfinished).contains("UploadId"));
    assert!(here.ok(&["replicate", "verify", "photos"]).contains("nothing differs"));
    assert_eq!(json(&here, &["snapshot", "list", "objects"]), Value::Array(Vec::new()), "no snapshot is left");
}

#[test]
fn what_is_wrong_with_a_target_is_said_in_a_line() {
    let (here, there) = (Home::new(), Home::new());
    let (_source, target) = (here.serve(), there.serve());
    let (to, key) = begin(&here, &there, &target);
    let none = url(&target) + "/nobucket";
    let wrong = format!("aws_access_key_id = {}\naws_secret_access_key = wrong\n", key.id);
    std::fs::write(here.path("wrong"), wrong).expect("the credentials");
    std::fs::write(here.path("broken"), "secret\n").expect("the credentials");
    let cases = [
        ("bucket:photos", to.as_str(), "credentials-not-there", "credentials-not-there"),
        ("bucket:photos", &to, "broken", "write aws_access_key_id = "),
        ("bucket:photos", &to, "wrong", "SignatureDoesNotMatch"),
        ("bucket:photos", &none, "credentials", "NoSuchBucket"),
        ("bucket:photos", "http://127.0.0.1:1/copy", "credentials", "cannot be reached"),
        ("bucket:photos", "/a/directory", "credentials", "a bucket goes to a bucket"),
        ("bucket:nothing", &to, "credentials", "no such bucket"),
    ];
    for (source, target, credentials, expected) in cases {
        let args = ["replicate", "run", source, target, "--target-credentials", credentials];
        let complaint = fails(&mut here.kura(&args));
        assert!(complaint.contains(expected) && complaint.lines().count() == 1, "{args:?}: {complaint}");
        assert!(!complaint.contains("wrong\"") && !complaint.contains(&key.secret), "{complaint}");
    }
    let mut unsaid = here.kura(&["replicate", "run", "bucket:photos", &to]);
    let complaint = fails(unsaid.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY"));
    assert!(complaint.contains("no access key"), "{complaint}");

    // What is there and not from here is not harmed, nor emptied by a source that suddenly is.
    std::fs::write(there.path("mine"), b"mine").expect("a file");
    there.ok(&["object", "put", "copy/mine", "mine"]);
    let run = |source: &str, more: &[&str]| {
        let mut run = here.kura(&[&["replicate", "run", source, &to], more].concat());
        run.env("AWS_ACCESS_KEY_ID", &key.id).env("AWS_SECRET_ACCESS_KEY", &key.secret);
        run
    };
    assert!(fails(&mut run("bucket:photos", &[])).contains("--adopt"));
    ok(&mut run("bucket:photos", &["--adopt"]));
    here.ok(&["bucket", "create", "empty"]);
    assert!(fails(&mut run("bucket:empty", &["--adopt"])).contains("--allow-empty"));
    ok(&mut run("bucket:empty", &["--adopt", "--allow-empty"]));
    assert_eq!(json(&there, &["object", "list", "copy"])["objects"], Value::Array(Vec::new()));
}
