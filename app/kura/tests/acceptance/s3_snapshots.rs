//! Old versions of buckets: read through S3 and on the command line, and rolled back to.

use crate::harness::{Home, Server, eventually, fails, ok, tool};
use crate::s3::{Key, client, script, url};
use crate::s3_crash::{fill_up, small_pool};
use std::collections::BTreeSet;
use std::time::Duration;

/// A key for everything, made now.
fn new_key(home: &Home) -> Key {
    let made: serde_json::Value = serde_json::from_str(&home.ok(&["key", "create", "--json"])).expect("JSON");
    let text = |name: &str| made[name].as_str().expect("text").to_owned();
    Key { id: text("id"), secret: text("secret") }
}

fn step(server: &Server, step: &str, old: &Key, new: &Key) {
    ok(script("snapshots.py", server, new).args([step, &old.id, &old.secret, &new.id, &new.secret]));
}

#[test]
fn a_bucket_is_read_as_it_was_and_rolled_back() {
    let home = Home::new();
    let mut server = home.serve();
    let old = Key::of(&server);
    step(&server, "before", &old, &old);
    home.ok(&["snapshot", "create", "objects@v1", "--read-only"]);
    home.ok(&["key", "revoke", &old.id]);
    let new = new_key(&home);
    step(&server, "after", &old, &new);

    // On the command line, and under a client that minds its bucket's name.
    assert_eq!(home.ok(&["object", "get", "demo@v1/a"]), "old");
    assert!(home.ok(&["object", "list", "demo@v1"]).contains("gone/1"));
    assert!(home.ok(&["object", "stat", "demo@v1/large"]).contains("large"));
    assert!(fails(&mut home.kura(&["object", "put", "demo@v1/x", "/etc/hostname"])).contains("read only"));
    assert!(fails(&mut home.kura(&["object", "delete", "demo@v1/a"])).contains("read only"));
    assert!(fails(&mut home.kura(&["bucket", "delete", "demo@v1", "--force", "--dry-run"])).contains("read"));
    assert!(fails(&mut home.kura(&["object", "list", "demo@v9"])).contains("objects@v9"));
    let mut aws = client("/usr/bin/aws", &server, &new);
    assert_eq!(ok(aws.args(["--endpoint-url", &url(&server), "s3", "cp", "s3://demo.at.v1/a", "-"])), "old");
    // What blocks hold is nobody's over NBD: the keys' secrets are there, too.
    fails(tool("nbdinfo").arg(home.uri("objects@v1")));

    // A crash right behind the rollback: it happened, whole, and the keys are today's.
    home.ok(&["snapshot", "rollback", "objects@v1"]);
    server.kill();
    server = home.serve();
    step(&server, "rolled", &old, &new);
    assert!(home.ok(&["check"]).contains("all is well"));
    // A server that lives on goes on as well; and what is open for readers does not keep a snapshot from being deleted.
    assert_eq!(home.ok(&["object", "get", "demo@v1/a"]), "old");
    let delete = || home.kura(&["snapshot", "delete", "objects@v1"]).output().expect("kura").status.success();
    eventually(Duration::from_mins(1), "the snapshot is deleted", delete);
    home.ok(&["snapshot", "create", "objects@v2"]);
    home.ok(&["object", "put", "demo/since", "/etc/hostname"]);
    home.ok(&["snapshot", "rollback", "objects@v2"]);
    step(&server, "rolled", &old, &new);
    // Another one of the same name is not taken for one that was deleted as a volume.
    assert_eq!(home.ok(&["object", "get", "demo@v2/a"]), "old");
    home.ok(&["volume", "delete", "objects@v2", "--force"]);
    std::fs::write(home.path("newer"), "newer").expect("a file");
    home.ok(&["object", "put", "demo/a", "newer"]);
    home.ok(&["snapshot", "create", "objects@v2"]);
    assert_eq!(home.ok(&["object", "get", "demo@v2/a"]), "newer");
    assert!(server.stop().success());
}

/// The numbers of versions come again then: their names must not.
#[test]
fn a_version_that_a_rollback_took_has_a_name_that_no_later_one_gets() {
    let home = Home::new();
    let mut server = home.serve();
    let mut aws = client("/usr/bin/aws", &server, &Key::of(&server));
    aws.args(["--endpoint-url", &url(&server), "s3api", "put-bucket-versioning", "--bucket", "demo"]);
    ok(aws.args(["--versioning-configuration", "Status=Enabled"]));
    home.ok(&["snapshot", "create", "objects@a"]);
    let versions_of = |content: &str| {
        std::fs::write(home.path("file"), content).expect("a file");
        for _ in 0..20 {
            home.ok(&["object", "put", "demo/a", "file"]);
        }
        let listed = home.ok(&["object", "list", "demo", "--versions"]);
        let names = listed.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned);
        names.collect::<Vec<_>>()
    };
    let before = versions_of("before");
    home.ok(&["snapshot", "rollback", "objects@a"]);
    let after = versions_of("after");
    let numbers = |names: &[String]| names.iter().map(|name| name[..16].to_owned()).collect::<BTreeSet<_>>();
    assert!(!numbers(&before).is_disjoint(&numbers(&after)), "{before:?} {after:?}");
    for name in &before {
        let get = ["object", "get", "demo/a", "--version-id", name];
        let said = fails(&mut home.kura(&get));
        assert!(said.contains("no such object"), "{said}");
        home.kura(&["object", "delete", "demo/a", "--version-id", name]).output().expect("kura");
    }
    for name in &after {
        assert_eq!(home.ok(&["object", "get", "demo/a", "--version-id", name]), "after");
    }
    assert!(server.stop().success());
}

/// Nobody knows today's keys where the store is not served.
#[test]
fn a_revoked_key_comes_back_only_by_force() {
    let home = Home::new();
    let mut server = home.serve();
    let key = new_key(&home);
    home.ok(&["snapshot", "create", "objects@a"]);
    home.ok(&["key", "revoke", &key.id]);
    assert!(server.stop().success());
    server = home.serve_with(&["--s3", "off"]);
    for more in [&[][..], &["--dry-run"]] {
        let said = fails(&mut home.kura(&[&["snapshot", "rollback", "objects@a"], more].concat()));
        assert!(said.contains("those revoked since work again"), "{said}");
    }
    assert!(server.stop().success());
    server = home.serve();
    assert!(!home.ok(&["key", "list"]).contains(&key.id));
    assert!(server.stop().success());
    server = home.serve_with(&["--s3", "off"]);
    home.ok(&["snapshot", "rollback", "objects@a", "--force"]);
    assert!(server.stop().success());
    let _server = home.serve();
    assert!(home.ok(&["key", "list"]).contains(&key.id));
}

/// A snapshot makes every write of the store want room, that of its root at a start as well.
#[test]
fn a_server_whose_pool_is_full_starts_with_a_snapshot_of_its_objects() {
    let home = Home::new();
    let mut server = small_pool(&home, 400);
    home.ok(&["bucket", "create", "demo"]);
    new_key(&home);
    home.ok(&["object", "put", "demo/a", "/etc/hostname"]);
    let hogs = fill_up(&home);
    home.ok(&["snapshot", "create", "objects@a"]);
    for _ in 0..2 {
        server.kill();
        server = home.serve();
        assert_eq!(home.ok(&["object", "get", "demo/a"]), std::fs::read_to_string("/etc/hostname").expect("a name"));
        fails(&mut home.kura(&["object", "put", "demo/b", "/etc/hostname"]));
        // The same after a rollback, whose access keys wait for room.
        home.ok(&["snapshot", "rollback", "objects@a"]);
        assert_eq!(home.ok(&["object", "get", "demo/a"]), std::fs::read_to_string("/etc/hostname").expect("a name"));
    }
    home.ok(&["volume", "delete", &hogs[0]]);
    let put = || home.kura(&["object", "put", "demo/b", "/etc/hostname"]).output().expect("kura").status.success();
    eventually(Duration::from_mins(1), "there is room", put);
    let key = new_key(&home);
    server.kill();
    server = home.serve();
    assert!(home.ok(&["key", "list"]).contains(&key.id));
    assert!(home.ok(&["check"]).contains("all is well"));
    assert!(server.stop().success());
}
