//! `kura replicate` of a bucket, from one server to the S3 door of another.

use crate::harness::{Home, Server, eventually, fails, ok};
use crate::object_cli::bytes;
use crate::s3::{Key, client, url};
use crate::serving::get;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Larger than what goes in one piece: the second part is a small one.
const LARGE: usize = (16 << 20) + 400_000;
const KEYS: [&str; 8] = ["a b+c", "100% %41", "ü/日本.txt", "folder/", "//x", "a'\"&<>?#*", "plain", "plain/below"];

pub fn json(home: &Home, args: &[&str]) -> Value {
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
    let (source, target) = (here.serve(), there.serve());
    let (to, key) = begin(&here, &there, &target);
    here.ok(&["replicate", "add", "photos", "bucket:photos", &to, "--target-credentials", "credentials"]);
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

    // Its tags change nothing else of an object.
    let tags = |server: &Server, key: &Key, args: &[&str]| {
        let mut aws = client("/usr/bin/aws", server, key);
        ok(aws.args(["--endpoint-url", &url(server), "s3api"]).args(args))
    };
    let tagging = ["--key", "plain", "--tagging", "TagSet=[{Key=a b,Value=c&d}]"];
    tags(&source, &Key::of(&source), &[&["put-object-tagging", "--bucket", "photos"], &tagging[..]].concat());
    assert_eq!(counts(&run(&here, &[])), [1, 0, all - 1, 0]);
    let there_now = tags(&target, &key, &["get-object-tagging", "--bucket", "copy", "--key", "plain"]);
    assert!(there_now.contains("a b") && there_now.contains("c&d"), "{there_now}");
    assert!(here.ok(&["replicate", "verify", "photos"]).contains("nothing differs"));
    // As many, and others; and where there are none here.
    for object in ["plain", "large"] {
        let other = ["--bucket", "copy", "--key", object, "--tagging", "TagSet=[{Key=a b,Value=<c>}]"];
        tags(&target, &key, &[&["put-object-tagging"], &other[..]].concat());
    }
    let differing = fails_to_verify(&here);
    assert!(differing.contains("plain: tags differ") && differing.contains("large: tags differ"), "{differing}");
    tags(&target, &key, &["delete-object-tagging", "--bucket", "copy", "--key", "large"]);
    tags(&target, &key, &[&["put-object-tagging", "--bucket", "copy"], &tagging[..]].concat());
    assert!(here.ok(&["replicate", "verify", "photos"]).contains("nothing differs"));

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

    // Another bucket of its name, which is somebody else's.
    let objects = json(&there, &["object", "list", "copy"])["objects"].as_array().cloned().expect("objects");
    for object in objects {
        there.ok(&["object", "delete", &format!("copy/{}", object["key"].as_str().expect("a key"))]);
    }
    there.ok(&["bucket", "delete", "copy"]);
    there.ok(&["bucket", "create", "copy"]);
    there.ok(&["object", "put", "copy/mine", "stranger"]);
    let refused = fails(&mut here.kura(&["replicate", "run", "photos"]));
    assert!(refused.contains("--adopt") && refused.lines().count() == 1, "{refused}");
    assert_eq!(json(&there, &["object", "stat", "copy/mine"])["size_bytes"], 8);
    assert_eq!(counts(&run(&here, &["--adopt"])), [all, 1, 0, 0]);
}

/// What was made of what is known where the pool goes.
#[test]
fn a_bucket_is_followed_by_a_pool_that_moved() {
    let (here, there) = (Home::new(), Home::new());
    let (mut source, target) = (here.serve(), there.serve());
    let (to, _) = begin(&here, &there, &target);
    here.ok(&["replicate", "add", "photos", "bucket:photos", &to, "--target-credentials", "credentials"]);
    let all = KEYS.len() as u64 + 1;
    assert_eq!(counts(&run(&here, &[])), [all, 0, 0, 0]);
    assert!(source.stop().success());
    here.ok(&["pool", "export", "-o", "along.json"]);
    let disks =
        std::fs::read_dir(here.data().join("disks")).expect("the disks").map(|disk| disk.expect("a disk").path());
    let disks: Vec<String> = disks.map(|disk| disk.to_string_lossy().into_owned()).collect();
    let import = ["pool", "import", "--data", "moved", "--export", "along.json"].map(str::to_owned);
    ok(here.kura(&[]).args(import).args(disks));
    let _source = here.serve_with(&["--data", "moved"]);
    let again = run(&here, &["--data", "moved", "--server", "moved/admin.sock"]);
    assert_eq!((counts(&again), &again["sent_bytes"]), ([0, 0, all, 0], &0.into()));
}

fn fails_to_verify(home: &Home) -> String {
    let output = home.kura(&["replicate", "verify", "photos"]).output().expect("kura");
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_large_object_goes_on_where_its_run_was_killed() {
    let (here, there) = (Home::new(), Home::new());
    let (_source, target) = (here.serve(), there.serve());
    let (to, key) = begin(&here, &there, &target);
    here.ok(&["replicate", "add", "photos", "bucket:photos", &to, "--target-credentials", "credentials"]);
    let s3api = |args: &[&str]| {
        let mut aws = client("/usr/bin/aws", &target, &key);
        let told = ok(aws.args(["--endpoint-url", &url(&target), "s3api"]).args(args));
        serde_json::from_str(&told).unwrap_or(Value::Null)
    };
    let uploads = here.data().join("replicate/photos/uploads");
    // Kills a run that has sent the second part, while the first takes more than half a minute: what the upload is called,
    // and the part's size.
    let cut_off = || {
        let mut killed = Command::new(env!("CARGO_BIN_EXE_kura"))
            .args(["replicate", "run", "photos", "--bandwidth", "512K", "--quiet"])
            .current_dir(here.path(""))
            .stdin(Stdio::null())
            .spawn()
            .expect("kura");
        let mut id = None;
        eventually(Duration::from_mins(1), "an upload in parts is under way", || {
            let begun = std::fs::read_to_string(&uploads).unwrap_or_default();
            id = serde_json::from_str::<Value>(&begun).ok().and_then(|line| Some(line["id"].as_str()?.to_owned()));
            id.is_some()
        });
        let id = id.expect("an id");
        let parts = || s3api(&["list-parts", "--bucket", "copy", "--key", "large", "--upload-id", &id]);
        eventually(Duration::from_mins(1), "a part is there", || parts()["Parts"].is_array());
        killed.kill().and_then(|()| killed.wait()).expect("a kill");
        let parts = parts()["Parts"].as_array().expect("the parts").clone();
        assert_eq!(parts.len(), 1, "it was killed in the midst of it");
        assert_eq!(parts[0]["PartNumber"], 2);
        let has = parts[0]["Size"].as_u64().expect("a size");
        (id, has)
    };
    let (_, has) = cut_off();
    let rest = run(&here, &[]);
    assert!(rest["is_complete"] == true, "{rest}");
    let sent = rest["sent_bytes"].as_u64().expect("bytes");
    assert!(sent >= LARGE as u64 - has && sent < LARGE as u64 - has + 100_000, "{has} bytes were there: {rest}");

    // A target that lists a part which is another one is not believed.
    put(&here, "large", &bytes(78, LARGE), &[]);
    let (id, has) = cut_off();
    std::fs::write(here.path("other"), bytes(79, has as usize)).expect("a file");
    let other = here.path("other").display().to_string();
    let named = ["--bucket", "copy", "--key", "large", "--upload-id", &id, "--part-number", "2", "--body", &other];
    s3api(&[&["upload-part"], &named[..]].concat());
    assert_eq!(run(&here, &[])["sent_bytes"], LARGE);
    assert_eq!(s3api(&["list-multipart-uploads", "--bucket", "copy"])["Uploads"], Value::Null);
    assert!(!uploads.exists());
    assert!(here.ok(&["replicate", "verify", "photos"]).contains("nothing differs"));
    assert_eq!(json(&here, &["snapshot", "list", "objects"]), Value::Array(Vec::new()), "no snapshot is left");
}

#[test]
fn a_server_keeps_a_bucket_by_its_schedule() {
    let (here, there) = (Home::new(), Home::new());
    let (_source, target) = (here.serve(), there.serve());
    let (to, _) = begin(&here, &there, &target);
    let add = ["replicate", "add", "photos", "bucket:photos", &to, "--target-credentials", "credentials"];
    here.ok(&[&add[..], &["--every", "1s", "--rpo", "1m"]].concat());
    let is_there = |key: &str| {
        let stat = there.kura(&["object", "stat", &format!("copy/{key}")]).output();
        stat.is_ok_and(|done| done.status.success())
    };
    eventually(Duration::from_mins(2), "the first copy", || is_there("large"));
    put(&here, "later", b"later", &[]);
    eventually(Duration::from_mins(2), "what came later", || is_there("later"));
    eventually(Duration::from_mins(2), "the run's end", || {
        let status = json(&here, &["replicate", "status", "photos"]);
        status[0]["last"]["is_complete"] == true && status[0]["is_late"] == false
    });
}

#[test]
fn a_job_that_is_removed_leaves_nothing_half_done() {
    let (here, there) = (Home::new(), Home::new());
    let (_source, target) = (here.serve(), there.serve());
    let (to, key) = begin(&here, &there, &target);
    let add = ["replicate", "add", "photos", "bucket:photos", &to, "--target-credentials", "credentials"];
    here.ok(&[&add[..], &["--every", "1s", "--bandwidth", "512K"]].concat());
    let uploads = here.data().join("replicate/photos/uploads");
    eventually(Duration::from_mins(1), "an upload in parts is under way", || uploads.exists());
    let would = here.ok(&["replicate", "remove", "photos", "--dry-run"]);
    assert!(would.contains("delete objects@replica-"), "{would}");
    here.ok(&["replicate", "remove", "photos"]);
    assert_eq!(json(&here, &["snapshot", "list", "objects"]), Value::Array(Vec::new()), "no snapshot is left");
    let mut aws = client("/usr/bin/aws", &target, &key);
    let list = ["--endpoint-url", &url(&target), "s3api", "list-multipart-uploads", "--bucket", "copy"];
    assert!(!ok(aws.args(list)).contains("UploadId"), "no upload is left");

    // A snapshot has the bucket though it is gone.
    here.ok(&["snapshot", "create", "objects@monday"]);
    here.ok(&["bucket", "delete", "photos", "--force"]);
    let adopt = ["replicate", "run", "bucket:photos@monday", &to, "--target-credentials", "credentials", "--adopt"];
    assert_eq!(counts(&json(&here, &adopt))[0], KEYS.len() as u64 + 1);
}

/// One that needs no server, and would go on without it.
#[test]
fn a_run_of_the_schedule_ends_with_its_server_also_where_that_is_killed() {
    let home = Home::new();
    let mut server = home.serve();
    let (tree, copy) = (home.path("tree"), home.path("copy"));
    std::fs::create_dir(&tree).expect("a folder");
    // A minute of work.
    for number in 0..480 {
        std::fs::write(tree.join(format!("{number:03}")), bytes(number, 64 << 10)).expect("a file");
    }
    let slow = ["--every", "1s", "--bandwidth", "512K"];
    home.ok(&[&["replicate", "add", "slowly", "tree", "copy"], &slow[..]].concat());
    let data = home.data().canonicalize().expect("the data directory");
    let is_its = |process: std::fs::DirEntry| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains("replicate run slowly") && line.contains(&*data.to_string_lossy())
    };
    let runs = || std::fs::read_dir("/proc").expect("processes").flatten().any(is_its);
    eventually(Duration::from_mins(1), "a part of the copy is there", || copy.join("000").exists());
    // Before the first one has ended, nothing is told of how it ended.
    let metrics = get(server.port("http"), "/metrics");
    assert!(metrics.contains("kura_replicate_running{job=\"slowly\""), "{metrics}");
    assert!(!metrics.contains("kura_replicate_complete"), "{metrics}");
    server.kill();
    eventually(Duration::from_secs(10), "its run has ended", || !runs());
    assert!(!copy.join("479").exists(), "it ended by itself");
}

/// The URL of a bucket at a server that says this to everything, or nothing.
fn answering(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            if stream.read(&mut [0; 4096]).is_ok() && stream.write_all(answer).is_ok() {
                held.push(stream);
            }
        }
    });
    format!("http://{address}/copy")
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
    let html = answering(b"HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n<html>hello</html>");
    let silent = answering(b"");
    let cases = [
        ("bucket:photos", to.as_str(), "credentials-not-there", "credentials-not-there"),
        ("bucket:photos", &to, "broken", "write aws_access_key_id = "),
        ("bucket:photos", &to, "wrong", "SignatureDoesNotMatch"),
        ("bucket:photos", &none, "credentials", "NoSuchBucket"),
        ("bucket:photos", "http://127.0.0.1:1/copy", "credentials", "cannot be reached"),
        ("bucket:photos", "http://192.0.2.1/copy", "credentials", "--allow-plain"),
        ("bucket:photos", &html, "credentials", "does not list as S3 does"),
        ("bucket:photos", &silent, "credentials", "silent"),
        ("bucket:photos", "/a/directory", "credentials", "a bucket goes to a bucket"),
        ("bucket:nothing", &to, "credentials", "no such bucket"),
    ];
    for (source, target, credentials, expected) in cases {
        let timeout = if expected == "silent" { "2s" } else { "5m" };
        let args = ["replicate", "run", source, target, "--target-credentials", credentials, "--timeout", timeout];
        let began = Instant::now();
        let complaint = fails(&mut here.kura(&args));
        assert!(began.elapsed() < Duration::from_secs(50), "{args:?} took {:?}", began.elapsed());
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
