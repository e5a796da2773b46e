//! Objects over S3, under the clients that people use.

use crate::harness::{Home, Server, ok, tool};
use crate::serving::get;
use std::path::Path;
use std::process::Command;

/// A key that a first start told.
pub struct Key {
    pub id: String,
    pub secret: String,
}

impl Key {
    /// The key of the bucket `demo`.
    pub fn of(server: &Server) -> Self {
        let line = server.said().lines().find_map(|line| line.trim().strip_prefix("key"));
        let mut words = line.unwrap_or_else(|| panic!("no key in:\n{}", server.said())).split_whitespace();
        let id = words.next().expect("a key").to_owned();
        let secret = words.nth(3).expect("a secret").to_owned();
        Self { id, secret }
    }
}

/// The URL at which the server speaks S3.
pub fn url(server: &Server) -> String {
    let line = server.said().lines().find_map(|line| line.trim().strip_prefix("S3"));
    line.unwrap_or_else(|| panic!("no S3 in:\n{}", server.said())).trim().to_owned()
}

/// A client that uses this key.
pub fn client(program: &str, server: &Server, key: &Key) -> Command {
    let mut command = tool(program);
    command.env("S3_URL", url(server)).env("AWS_ACCESS_KEY_ID", &key.id).env("AWS_SECRET_ACCESS_KEY", &key.secret);
    command.env("AWS_DEFAULT_REGION", "us-east-1").env_remove("AWS_PROFILE").env_remove("AWS_CA_BUNDLE");
    command
}

/// One of the scripts in `s3/`, which use boto3.
pub fn script(name: &str, server: &Server, key: &Key) -> Command {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acceptance/s3");
    // Debian's, for which boto3 is installed.
    let mut command = client("/usr/bin/python3", server, key);
    command.arg("-B").arg(folder.join(name));
    command
}

/// Runs a script against a server of its own.
fn check(name: &str) {
    let home = Home::new();
    let server = home.serve();
    ok(&mut script(name, &server, &Key::of(&server)));
}

#[test]
fn buckets_and_objects() {
    check("basics.py");
}

#[test]
fn lists_of_many_and_odd_keys() {
    check("lists.py");
}

#[test]
fn uploads_in_parts_and_copies() {
    check("multipart.py");
}

#[test]
fn versions_and_tags() {
    check("versions.py");
}

#[test]
fn policies_cors_and_lifecycle() {
    check("rules.py");
}

#[test]
fn what_signatures_cover() {
    check("signatures.py");
}

/// What the metrics say of the cache: hits, misses, bytes.
fn cache(server: &Server) -> [u64; 3] {
    let metrics = get(server.port("http"), "/metrics");
    ["hits_total", "misses_total", "bytes"].map(|what| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("kura_s3_cache_{what} ")));
        line.map_or(0, |value| value.parse().expect("a number"))
    })
}

#[test]
fn what_is_read_again_comes_from_memory() {
    let home = Home::new();
    let mut server = home.serve();
    let key = Key::of(&server);
    ok(script("cache.py", &server, &key).arg("fill"));
    let [hits, misses, bytes] = cache(&server);
    assert!(hits >= 3 * 11 && misses == 0 && bytes > 3_000_000, "{hits} hits, {misses} misses, {bytes} bytes");
    assert!(server.stop().success());
    // A start begins with nothing.
    let mut server = home.serve();
    ok(script("cache.py", &server, &key).arg("again"));
    let [hits, misses, _] = cache(&server);
    assert!(hits == 0 && misses >= 3, "{hits} hits, {misses} misses");
    ok(script("cache.py", &server, &key).arg("again"));
    assert_eq!(cache(&server)[..2], [misses, misses], "now it is there");
    assert!(server.stop().success());
    std::fs::write(home.path("kura.toml"), "[s3]\ncache = '0'\n").expect("a configuration");
    let server = home.serve_with(&["--config", "kura.toml"]);
    ok(script("cache.py", &server, &key).arg("fill"));
    assert_eq!(cache(&server), [0; 3], "nothing is kept");
}
