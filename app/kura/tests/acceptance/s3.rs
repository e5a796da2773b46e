//! Objects over S3, under the clients that people use.

use crate::harness::{Home, Server, ok, tool};
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
