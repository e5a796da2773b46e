//! Buckets, keys and objects on the command line, and what S3's clients see of them.

use crate::harness::{Home, eventually, fails, ok, tool};
use crate::s3::{Key, client, url};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::time::Duration;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

fn text_of(made: &Value, field: &str) -> String {
    made[field].as_str().expect("it is told").to_owned()
}

/// Bytes that no two offsets have alike.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    bytes
}

#[test]
fn what_is_stored_here_is_seen_there_and_the_other_way_round() {
    let home = Home::new();
    let server = home.serve();
    let made = json(&home.ok(&["bucket", "create", "photos", "--json"]));
    assert_eq!((&made["name"], &made["versioning"]), (&"photos".into(), &"never".into()));
    let (path, back) = (home.path("large"), home.path("back"));
    // A file of the kernel tells no size.
    home.ok(&["object", "put", "photos/version", "/proc/version"]);
    assert_eq!(home.ok(&["object", "get", "photos/version"]), fs::read_to_string("/proc/version").unwrap());
    home.ok(&["object", "delete", "photos/version"]);
    for len in [0, 1, 65_536, 65_537, 30_000_000] {
        let content = bytes(len as u64, len);
        fs::write(&path, &content).unwrap();
        let put = ["object", "put", "photos/a/ü .jpg", "large", "--content-type", "image/x", "--metadata", "Of=cat"];
        home.ok(&put);
        home.ok(&["object", "get", "photos/a/ü .jpg", "back"]);
        assert!(fs::read(&back).unwrap() == content, "{len} bytes come back");
        let printed = home.kura(&["object", "get", "photos/a/ü .jpg"]).output().unwrap();
        assert!(printed.status.success() && printed.stdout == content, "{len} bytes are printed");
    }
    let stat = json(&home.ok(&["object", "stat", "photos/a/ü .jpg", "--json"]));
    assert_eq!(stat["size_bytes"], 30_000_000);
    assert_eq!(
        (&stat["attributes"]["content-type"], &stat["attributes"]["x-amz-meta-of"]),
        (&"image/x".into(), &"cat".into())
    );

    // A key of one bucket, used and revoked.
    let made = json(&home.ok(&["key", "create", "reader", "--bucket", "photos=read", "--json"]));
    let key = Key { id: text_of(&made, "id"), secret: text_of(&made, "secret") };
    let aws = |args: &[&str]| {
        let mut command = client("/usr/bin/aws", &server, &key);
        command.args(["--endpoint-url", &url(&server), "s3api"]).args(args).current_dir(home.path(""));
        command
    };
    let object = ["get-object", "--bucket", "photos", "--key", "a/ü .jpg", "seen"];
    let seen = json(&ok(&mut aws(&object)));
    assert_eq!((&seen["ContentType"], &seen["Metadata"]["of"]), (&"image/x".into(), &"cat".into()));
    assert_eq!(seen["ETag"], format!("\"{}\"", stat["etag"].as_str().unwrap()));
    assert!(fs::read(home.path("seen")).unwrap() == fs::read(&path).unwrap());
    let refused = fails(&mut aws(&["put-object", "--bucket", "photos", "--key", "b", "--body", "seen"]));
    assert!(refused.contains("AccessDenied"), "{refused}");
    assert!(home.ok(&["key", "list"]).contains("photos=read"));
    assert!(!home.ok(&["key", "list", "--json"]).contains(&key.secret), "a secret is told once");
    home.ok(&["key", "revoke", &key.id]);
    let refused = fails(&mut aws(&object));
    assert!(refused.contains("InvalidAccessKeyId"), "{refused}");

    let refused = fails(&mut home.kura(&["bucket", "delete", "photos"]));
    assert!(refused.contains("bucket photos: it is not empty"), "{refused}");
    home.ok(&["object", "delete", "photos/a/ü .jpg"]);
    home.ok(&["bucket", "delete", "photos"]);
    let left = json(&home.ok(&["bucket", "list", "--json"]));
    assert_eq!(left.as_array().unwrap().len(), 1, "demo is left");
    assert!(home.ok(&["check"]).contains("all is well"));
}

#[test]
fn lists_are_in_order_and_whole() {
    let home = Home::new();
    let _server = home.serve();
    let mut lines = String::new();
    let mut keys: Vec<String> = (0..2500).map(|at| format!("f{}/{at:04}", at % 3)).collect();
    for key in &keys {
        lines += &serde_json::json!({ "put": format!("demo/{key}"), "text": key }).to_string();
        lines.push('\n');
    }
    fs::write(home.path("many"), lines).unwrap();
    let done = json(&home.ok(&["object", "batch", "many", "--json"]));
    assert_eq!((&done["stored"], &done["deleted"]), (&2500.into(), &0.into()));
    keys.sort();
    let listed = json(&home.ok(&["object", "list", "demo", "--json"]));
    let found: Vec<&str> =
        listed["objects"].as_array().unwrap().iter().map(|object| object["key"].as_str().unwrap()).collect();
    assert_eq!(found, keys);
    assert_eq!(home.ok(&["object", "list", "demo/f1/"]).lines().count(), 833);
    let folders = json(&home.ok(&["object", "list", "demo", "--delimiter", "/", "--json"]));
    assert_eq!(folders["prefixes"], serde_json::json!(["f0/", "f1/", "f2/"]));
    assert_eq!(home.ok(&["object", "list", "demo/none"]), "");
}

#[test]
fn a_batch_happens_as_a_whole_or_not_at_all() {
    let home = Home::new();
    let _server = home.serve();
    let large = bytes(1, 12_000_000);
    fs::create_dir(home.path("sub")).unwrap();
    fs::write(home.path("sub/large"), &large).unwrap();
    let batch = |text: &str| fs::write(home.path("sub/batch"), text).unwrap();
    batch(concat!(
        "{\"require\": \"demo/a\", \"is\": \"absent\"}\n\n",
        "{\"put\": \"demo/a\", \"text\": \"one\", \"content_type\": \"text/plain\"}\n",
        "{\"put\": \"demo/b\", \"file\": \"large\", \"metadata\": {\"color\": \"red\"}}\n",
        "{\"delete\": \"demo/c\"}\n",
    ));
    assert_eq!(home.ok(&["object", "batch", "sub/batch"]), "2 stored and 1 deleted, together\n");
    assert_eq!(home.ok(&["object", "get", "demo/a"]), "one");
    home.ok(&["object", "get", "demo/b", "back"]);
    assert!(fs::read(home.path("back")).unwrap() == large);
    // A condition, a bucket, a line, a file that is not right: nothing of the batch happens.
    for (last, said) in [
        ("{\"require\": \"demo/a\", \"is\": \"absent\"}", "demo/a: exists already"),
        ("{\"require\": \"demo/zz\", \"is\": \"present\"}", "demo/zz: no such object"),
        (
            "{\"require\": \"demo/a\", \"is\": {\"etag\": \"00\"}}",
            "demo/a: its ETag is f97c5d29941bfb1b2fdab0874906ab82",
        ),
        ("{\"put\": \"demo/b\", \"text\": \"\", \"new\": true}", "demo/b: exists already"),
        ("{\"put\": \"nowhere/b\", \"text\": \"\"}", "bucket nowhere: no such bucket"),
        (
            "{\"put\": \"demo/b\", \"text\": \"\", \"metadata\": {\"a b\": \"c\"}}",
            "metadata \"a b\": \"c\": S3 sends it as a header",
        ),
        (
            "{\"put\": \"demo/b\", \"text\": \"\", \"content_type\": \"a\\nb\"}",
            "content type \"a\\nb\": cannot be sent in a header",
        ),
        ("{\"put\": \"demo/b\"}", "sub/batch:3: a put has either text or a file"),
        ("{\"put\": \"demo/b\", \"file\": \"none\"}", "sub/batch:3: sub/none: No such file"),
        ("{\"delete\": \"demo/new\"}", "key new is named twice in a batch"),
        ("nonsense", "sub/batch:3: expected"),
    ] {
        batch(&format!("{{\"put\": \"demo/new\", \"file\": \"large\"}}\n{{\"delete\": \"demo/a\"}}\n{last}\n"));
        let refused = fails(&mut home.kura(&["object", "batch", "sub/batch"]));
        assert!(refused.contains(said) && refused.lines().count() == 1, "{last}: {refused}");
        assert_eq!(home.ok(&["object", "list", "demo"]).lines().count(), 2, "{last}");
    }
    assert!(home.ok(&["check"]).contains("all is well"));
}

#[test]
fn versions_are_listed_and_a_bucket_is_emptied_by_them() {
    let home = Home::new();
    let server = home.serve();
    home.ok(&["bucket", "create", "photos"]);
    fs::write(home.path("cat"), b"cat").unwrap();
    let made = json(&home.ok(&["key", "create", "owner", "--json"]));
    let key = Key { id: text_of(&made, "id"), secret: text_of(&made, "secret") };
    let mut aws = client("/usr/bin/aws", &server, &key);
    aws.args(["--endpoint-url", &url(&server), "s3api", "put-bucket-versioning", "--bucket", "photos"]);
    ok(aws.args(["--versioning-configuration", "Status=Enabled"]));
    for _ in 0..2 {
        home.ok(&["object", "put", "photos/cat.jpg", "cat"]);
    }
    home.ok(&["object", "put", "photos/dog.jpg", "cat"]);
    home.ok(&["object", "delete", "photos/cat.jpg"]);
    assert_eq!(home.ok(&["object", "list", "photos"]).lines().count(), 1);
    let told = fails(&mut home.kura(&["bucket", "delete", "photos"]));
    assert!(told.contains("`kura object list photos --versions` lists"), "{told}");
    let listed = home.ok(&["object", "list", "photos", "--versions"]);
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    let shown: Vec<_> = rows.iter().map(|row| (row[0], row[3])).collect();
    assert_eq!(shown, [("deleted", "cat.jpg"), ("3", "cat.jpg"), ("3", "cat.jpg"), ("3", "dog.jpg")]);
    for row in rows {
        home.ok(&["object", "delete", &format!("photos/{}", row[3]), "--version-id", row[2]]);
    }
    home.ok(&["bucket", "delete", "photos"]);

    // More than a page of them, under keys that a path has to escape; what is beside them stays.
    let puts = (0..1200).map(|n| format!("{{\"put\": \"demo/#a b/{n}?\", \"text\": \"{n}\"}}"));
    fs::write(home.path("batch"), puts.collect::<Vec<_>>().join("\n")).unwrap();
    home.ok(&["object", "batch", "batch"]);
    home.ok(&["bucket", "create", "other"]);
    home.ok(&["object", "put", "other/cat.jpg", "cat"]);
    let told = json(&home.ok(&["bucket", "delete", "demo", "--force", "--dry-run", "--json"]));
    assert_eq!((&told["versions"], &told["dry_run"]), (&Value::from(1200), &Value::from(true)));
    assert_eq!(home.ok(&["object", "list", "demo"]).lines().count(), 1200);
    assert!(home.ok(&["bucket", "delete", "demo", "--force"]).contains("1200"));
    let buckets = home.ok(&["bucket", "list"]);
    assert!(!buckets.contains("demo"), "{buckets}");
    assert!(home.ok(&["object", "list", "other"]).contains("cat.jpg"));
    assert!(home.ok(&["check"]).contains("all is well"));

    let told = home.ok(&["key", "create", "backup", "--quiet"]);
    assert!(told.contains("with the secret "), "nobody would have it: {told}");
    let told = json(&home.ok(&["key", "create", "backup", "--quiet", "--json"]));
    assert!(told["secret"].is_string(), "{told}");
}

#[test]
fn what_is_wrong_is_told_in_one_line() {
    let home = Home::new();
    let _server = home.serve();
    fs::write(home.path("large"), bytes(1, 20_000_000)).unwrap();
    for (line, said) in [
        ("bucket create NO", "\"NO\" cannot be a bucket's name: 3 to 63 lower-case letters"),
        ("bucket create demo", "bucket demo: exists already"),
        ("bucket delete none", "bucket none: no such bucket"),
        ("key create a --bucket none=read", "bucket none: no such bucket; `kura bucket list` lists them"),
        ("key revoke none", "key none: no such key; `kura key list` lists them"),
        ("object put none/a large", "bucket none: no such bucket"),
        ("object put demo/a absent", "absent: No such file"),
        ("object put demo/a .", ".: is a folder"),
        ("object get demo/none", "demo/none: no such object"),
        ("object get demo/none file", "demo/none: no such object"),
        ("object get demo/a --version x", "\"x\" is no version of an object"),
        ("object stat demo/none", "demo/none: no such object"),
        ("object delete demo/none", "demo/none: no such object"),
        ("object list none", "bucket none: no such bucket"),
        ("volume delete objects --force", "volume objects has the object store, with all buckets"),
        ("volume resize objects 64M --shrink", "volume objects has the object store, with all buckets"),
        ("volume delete objects", "volume objects has the object store, with all buckets"),
    ] {
        let args: Vec<&str> = line.split_whitespace().collect();
        let output = home.kura(&args).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line}: {told}");
        assert!(told.contains(said) && told.lines().count() == 1, "{line}: {told}");
    }
    let told = fails(&mut home.kura(&["key", "create", "x\ny\u{1b}[31m"]));
    assert!(told.contains("control characters") && told.lines().count() == 1 && !told.contains('\u{1b}'), "{told}");
    assert_eq!(json(&home.ok(&["key", "list", "--json"])).as_array().map(Vec::len), Some(1));
    let long = "k".repeat(1025);
    let told = fails(&mut home.kura(&["object", "put", &format!("demo/{long}"), "large"]));
    assert!(told.contains("1024"), "{told}");
    home.ok(&["object", "put", "demo/a", "large", "--new"]);
    let told = fails(&mut home.kura(&["object", "put", "demo/a", "large", "--new"]));
    assert!(told.contains("demo/a: exists already"), "{told}");
    assert_eq!(home.kura(&["object", "put", "demo", "large"]).status().unwrap().code(), Some(2));
    assert!(!home.path("file").exists(), "a file that could not be read leaves nothing");
}

/// A server that says to each request's head what `says` tells, and waits until its client goes.
fn pretend(home: &Home, says: fn(&str) -> String) {
    fs::create_dir(home.data()).expect("the data directory");
    let listener = UnixListener::bind(home.data().join("admin.sock")).expect("a socket");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            std::thread::spawn(move || {
                let mut head = [0; 4096];
                let len = stream.read(&mut head).expect("a request");
                stream.write_all(says(&String::from_utf8_lossy(&head[..len])).as_bytes()).expect("an answer");
                while stream.read(&mut head).is_ok_and(|len| len > 0) {}
            });
        }
    });
}

#[test]
fn what_a_bucket_has_lost_is_told_although_it_stays() {
    let home = Home::new();
    pretend(&home, |request| {
        let body =
            |status: &str, body: &str| format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let object = |key: &str| {
            serde_json::json!({
                "bucket": "demo", "key": key, "version": "1", "size_bytes": 1, "modified_at": "2026-11-30T00:00:00Z",
                "etag": "e", "latest": true, "delete_marker": false, "attributes": {}
            })
        };
        if request.starts_with("GET ") {
            body("200 OK", &serde_json::json!({ "objects": [object("a"), object("b")], "prefixes": [] }).to_string())
        } else if request.contains("/objects/a?") {
            body("200 OK", "")
        } else {
            // When the other one has gone.
            std::thread::sleep(Duration::from_secs(1));
            body("507 Full", r#"{"kind": "full", "error": "the pool is full"}"#)
        }
    });
    let told = fails(&mut home.kura(&["bucket", "delete", "demo", "--force"]));
    assert!(told.contains("bucket demo stays, but 1 of its versions are deleted: the pool is full"), "{told}");
}

#[test]
fn a_read_that_is_interrupted_leaves_no_file() {
    let home = Home::new();
    // It never comes to the end of what it says.
    pretend(&home, |_| "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf".to_owned());
    let begun = || fs::read_dir(home.path("")).unwrap().count() > 1;
    for (signal, status) in [("-INT", 130), ("-TERM", 143)] {
        let mut reading = home.kura(&["object", "get", "demo/a", "out"]).spawn().unwrap();
        eventually(Duration::from_secs(30), "a part is there", begun);
        ok(tool("kill").args([signal, &reading.id().to_string()]));
        assert_eq!(reading.wait().unwrap().code(), Some(status));
        assert!(!begun(), "only the data directory is left");
    }
}
