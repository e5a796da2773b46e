//! The command line towards a server: dry runs, what programs read, and which server is asked.

use crate::harness::{Home, eventually, fails, ok, tool};
use crate::nbd::Client;
use crate::serving::{json, volume};
use crate::snapshots::rest;
use serde_json::{Value, json as value};
use std::fs;
use std::time::Duration;

/// A pool of files: two fast ones, and these slow ones.
pub fn sparse(home: &Home, slow: &[&str]) {
    let disks = ["pool", "create", "--controllers", "2", "--journal", "16M", "--fast", "f0=128M", "--fast", "f1=128M"];
    let slow = slow.iter().flat_map(|disk| ["--slow", disk]);
    home.ok(&disks.into_iter().chain(slow).collect::<Vec<_>>());
}

#[test]
fn a_dry_run_is_refused_as_the_deed_is_and_does_nothing() {
    let home = Home::new();
    sparse(&home, &["s0=512M", "s1=512M", "s2=512M"]);
    let _server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    home.ok(&["snapshot", "create", "v@a"]);
    ok(tool("qemu-io").args(["-f", "raw", "-c", "write -P 7 0 1M", &home.uri("v")]));
    home.ok(&["volume", "create", "wide", "--size", "64M", "--layout", "raid5"]);
    fs::write(home.path("file"), "content").expect("a file");
    home.ok(&["bucket", "create", "full"]);
    home.ok(&["bucket", "create", "empty"]);
    home.ok(&["object", "put", "full/key", "file"]);
    let key = json(&home, &["key", "create", "k"])["id"].as_str().expect("an id").to_owned();
    home.ok(&["volume", "create", "s", "--size", "64M"]);
    home.ok(&["snapshot", "schedule", "add", "s", "--every", "10h", "--keep", "3"]);
    home.ok(&["trace", "record", "s"]);
    let is_scheduled = || json(&home, &["snapshot", "list", "s"]).as_array().is_some_and(|list| list.len() == 1);
    eventually(Duration::from_mins(1), "the schedule's first snapshot", is_scheduled);
    // What is there; how much space it takes just now is another matter.
    let state = || {
        let lists = [
            &["volume", "list"][..],
            &["snapshot", "list"],
            &["snapshot", "schedule", "list"],
            &["bucket", "list"],
            &["key", "list"],
            &["disk", "list"],
            &["trace", "list"],
        ];
        let mut state: Vec<Value> = Vec::new();
        for list in lists.map(|list| json(&home, list)) {
            let of = |item: &Value| ["name", "id", "volume", "state", "size_bytes"].map(|field| item[field].clone());
            state.extend(list.as_array().expect("a list").iter().flat_map(of));
        }
        state.push(json(&home, &["object", "list", "full"]));
        state
    };
    let before = state();

    let refused: [(&[&str], &str); 17] = [
        (&["volume", "delete", "v"], "snapshots or clones are made of it"),
        (&["volume", "delete", "objects"], "has the object store"),
        (&["volume", "resize", "v", "32M", "--shrink"], "can grow but not shrink"),
        (&["snapshot", "delete", "v@b"], "no such snapshot"),
        (&["bucket", "delete", "full"], "not empty"),
        (&["object", "delete", "full/other"], "other"),
        (&["key", "revoke", "nobody"], "no such key"),
        (&["disk", "remove", "3"], "2 disks of data would be left"),
        (&["disk", "remove", "0"], "carries journals"),
        (&["disk", "fail", "9"], "no such disk"),
        (&["disk", "replace", "3", "new", "--size", "1M"], "too small"),
        (&["disk", "replace", "3", "file"], "is not blank"),
        (&["disk", "add", "file", "--class", "slow"], "is not blank"),
        (&["disk", "add", "new", "--class", "slow", "--size", "1M"], "too small"),
        (&["pool", "create", "--data", "other", "--slow", "file"], "is not blank"),
        (&["snapshot", "schedule", "remove", "v"], "has no schedule auto"),
        (&["trace", "delete", "v"], "v"),
    ];
    for (line, why) in refused {
        let dry = fails(&mut home.kura(&[line, &["--dry-run"]].concat()));
        assert!(dry.contains(why), "{line:?}: {dry}");
        assert_eq!(dry, fails(&mut home.kura(line)), "{line:?}: the deed is refused with other words");
    }
    let client = Client::connect(&home.socket(), "v").expect("a connection");
    let said = fails(&mut home.kura(&["snapshot", "rollback", "v@a", "--dry-run"]));
    assert!(said.contains("v: 1 client has it open: unmount it"), "{said}");
    home.ok(&["snapshot", "rollback", "v@a", "--dry-run", "--force"]);
    drop(client);

    let would = [
        (vec!["volume", "delete", "wide"], value!({ "/name": "wide" })),
        (vec!["volume", "resize", "v", "128M"], value!({ "/size_bytes": 64 << 20, "/to_size_bytes": 128 << 20 })),
        (vec!["snapshot", "delete", "v@a"], value!({ "/0/name": "v@a" })),
        (vec!["bucket", "delete", "empty"], value!({ "/name": "empty" })),
        (vec!["object", "delete", "full/key"], value!({ "/key": "key" })),
        (vec!["key", "revoke", &key], value!({ "/id": key })),
        (vec!["disk", "fail", "3"], value!({ "/state": "healthy" })),
        (vec!["disk", "replace", "3", "new", "--size", "512M"], value!({ "/id": 3, "/removed": false })),
        (vec!["disk", "add", "new", "--class", "slow", "--size", "512M"], value!({ "/0/size_bytes": 512 << 20 })),
        (vec!["pool", "grow", "new=512M", "newer=1G", "--force"], value!({ "/1/size_bytes": 1 << 30 })),
        (vec!["pool", "create", "--data", "other", "--slow", "new=1G"], value!({ "/disks": 1 })),
        (vec!["snapshot", "schedule", "remove", "s"], value!({ "/volume": "s", "/prefix": "auto" })),
        (vec!["trace", "delete", "s"], value!({ "/volume": "s" })),
    ];
    for (line, fields) in would {
        let told = json(&home, &[&line[..], &["--dry-run"]].concat());
        assert!(told["dry_run"] == true || told[0]["dry_run"] == true, "{line:?}: {told}");
        for (at, is) in fields.as_object().expect("fields") {
            assert_eq!(told.pointer(at), Some(is), "{line:?}: {told}");
        }
    }
    assert!(!home.path("new").exists() && !home.path("other").exists(), "something was made");
    assert_eq!(state(), before, "a dry run did something");
    ok(tool("qemu-io").args(["-f", "raw", "-c", "read -P 7 0 1M", &home.uri("v")]));
}

#[test]
fn programs_are_told_kinds_and_states() {
    let home = Home::new();
    let complaint = |args: &[&str]| -> Value {
        let told = fails(&mut home.kura(&[args, &["--json"]].concat()));
        serde_json::from_str(&told).unwrap_or_else(|error| panic!("{args:?}: {error}: {told}"))
    };
    assert_eq!(complaint(&["status"])["kind"], "no-server");
    let server = home.serve_with(&["--data", "elsewhere"]);
    // The directory that the environment names is the one that is asked.
    let told = ok(home.kura(&["status"]).env("KURA_DATA", "elsewhere"));
    for address in [format!("s3      http://127.0.0.1:{}", server.port("S3      http")), "rest    http://".to_owned()] {
        assert!(told.contains(&address), "no {address} in: {told}");
    }
    drop(server);
    fs::write(home.path("kura.toml"), "pool.controllers = 2\n").expect("a configuration");
    let _server = home.serve_with(&["--config", "kura.toml"]);
    assert_eq!(complaint(&["volume", "show", "nobody"])["kind"], "missing");
    assert_eq!(complaint(&["volume", "create", "demo", "--size", "1G"])["kind"], "exists");
    home.ok(&["controller", "drain", "0"]);
    let told = json(&home, &["controller", "resume", "0"]);
    assert_eq!((&told["id"], &told["drained"]), (&value!(0), &value!(false)));
    let told = json(&home, &["disk", "remove", "7"]);
    assert_eq!((&told["id"], &told["removed"], &told["dry_run"]), (&value!(7), &value!(true), &value!(false)));
    assert_eq!((&told["state"], &told["unwanted_bytes"]), (&value!("leaving"), &value!(0)));
    let told = json(&home, &["volume", "resize", "demo", "2G"]);
    assert_eq!((&told["dry_run"], &told["size_bytes"]), (&value!(false), &value!(2u64 << 30)));
    assert_eq!(volume(&home, "demo")["size_bytes"], value!(2u64 << 30));
    // Nothing is said, but for errors.
    assert_eq!(home.ok(&["status", "--quiet", "--json"]), "");
}

/// Every name in a document, but for those of causes, which are words for people.
fn names(document: &Value) -> Vec<&str> {
    match document {
        Value::Object(fields) => {
            let below = |(name, field): (&'_ String, _)| if name == "causes" { Vec::new() } else { names(field) };
            fields.keys().map(String::as_str).chain(fields.iter().flat_map(below)).collect()
        }
        Value::Array(items) => items.iter().flat_map(names).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn programs_are_told_of_copies_as_rest_tells_them() {
    let home = Home::new();
    for source in ["source", "gone"] {
        fs::create_dir(home.path(source)).expect("a folder");
        fs::write(home.path(source).join("file"), "content").expect("a file");
    }
    let often = ["--every", "1h", "--rpo", "2h", "--timeout", "30s", "--bandwidth", "1M"];
    let added = json(&home, &[&["replicate", "add", "good", "source", "target"], &often[..]].concat());
    home.ok(&[&["replicate", "add", "bad", "gone", "elsewhere"], &often[..]].concat());
    fs::remove_dir_all(home.path("gone")).expect("the source");

    // An object a line, also of what goes wrong, each with its job.
    let output = home.kura(&["replicate", "run", "--due", "--json"]).output().expect("kura");
    let lines = |text: &[u8]| -> Vec<Value> {
        let text = String::from_utf8_lossy(text).into_owned();
        let object = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {text}"));
        text.lines().map(object).collect()
    };
    let (done, failed) = (lines(&output.stdout), lines(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
    assert!(done.len() == 1 && done[0]["job"] == "good" && done[0]["is_complete"] == true, "{done:?}");
    assert!(
        !failed.is_empty() && failed.iter().all(|one| one["job"] == "bad" && one["error"].is_string()),
        "{failed:?}"
    );

    let status = json(&home, &["replicate", "status", "good"])[0].clone();
    let _server = home.serve();
    let (_, told) = rest(&home, "GET", "replication-jobs", "").expect("an answer");
    let told: Value = serde_json::from_str(&told).expect("jobs");
    let by_rest = told.as_array().expect("jobs").iter().find(|job| job["name"] == "good").expect("the job").clone();
    for name in by_rest.as_object().expect("a job").keys().filter(|name| *name != "recovery_point_age_s") {
        assert_eq!(status[name], by_rest[name], "{name}");
    }
    assert_eq!((&status["every_s"], &status["options"]["timeout_s"]), (&value!(3600.0), &value!(30.0)));
    assert_eq!((&added["is_failed_over"], &added["options"]["in_place"]), (&value!(false), &value!(false)));
    for document in [&added, &status, &done[0]] {
        let is_plain = |name: &&str| {
            name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
        };
        assert!(names(document).iter().all(is_plain), "{document}");
    }
}
