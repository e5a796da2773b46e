//! The programs that people use with S3, each with what it does best: `aws`, `rclone`, `s3cmd`.

use crate::harness::{Home, Server, ok};
use crate::object_cli::bytes;
use crate::s3::{Key, client, url};
use std::fs;
use std::process::Command;

/// Names that are legal and awkward, in files and in keys.
const ODD: [&str; 6] = ["a b", "ü/ß é", "日本/🦀", "plus+and%20", "semi;colon,&=?#", "quote's \"x\""];

struct At {
    home: Home,
    server: Server,
    key: Key,
}

impl At {
    fn new() -> Self {
        let home = Home::new();
        let server = home.serve();
        let key = Key::of(&server);
        Self { home, server, key }
    }

    /// A client that is run in the home's folder.
    fn run(&self, program: &str, args: &[&str]) -> String {
        ok(&mut self.command(program, args))
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = client(program, &self.server, &self.key);
        let at = url(&self.server);
        command.current_dir(self.home.path("")).env("HOME", self.home.path("")).env("AWS_ENDPOINT_URL", &at);
        let remote = [
            ("TYPE", "s3"),
            ("PROVIDER", "Other"),
            ("ENV_AUTH", "true"),
            ("REGION", "us-east-1"),
            ("ENDPOINT", at.as_str()),
            ("CHUNK_SIZE", "5Mi"),
            ("UPLOAD_CUTOFF", "8Mi"),
        ];
        command.envs(remote.map(|(name, value)| (format!("RCLONE_CONFIG_KURA_{name}"), value)));
        command.args(args);
        command
    }

    fn aws(&self, args: &[&str]) -> String {
        self.run("/usr/bin/aws", &[&["--endpoint-url", &url(&self.server)], args].concat())
    }

    /// A tree of files of every kind of size, with awkward names.
    fn tree(&self, name: &str) {
        for (at, odd) in ODD.iter().enumerate() {
            let path = self.home.path(name).join(odd);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            let len = [0, 1, 70_000, 5_000_000, 9_000_000, 20_000_001][at];
            fs::write(path, bytes(at as u64, len)).expect("a file");
        }
    }

    /// Fails unless two trees are alike.
    fn alike(&self, one: &str, other: &str) {
        ok(Command::new("diff").args(["-r", one, other]).current_dir(self.home.path("")));
    }

    fn check(&self) {
        assert!(self.home.ok(&["check"]).contains("all is well"));
    }
}

#[test]
fn aws() {
    let at = At::new();
    at.tree("tree");
    at.aws(&["s3", "mb", "s3://files"]);
    at.aws(&["s3", "sync", "tree", "s3://files/tree", "--only-show-errors"]);
    at.aws(&["s3", "sync", "s3://files/tree", "back", "--only-show-errors"]);
    at.alike("tree", "back");
    assert_eq!(at.aws(&["s3", "sync", "tree", "s3://files/tree"]), "", "nothing is to be done twice");
    fs::remove_file(at.home.path("tree/a b")).unwrap();
    assert!(at.aws(&["s3", "sync", "tree", "s3://files/tree", "--delete"]).contains("delete: s3://files/tree/a b"));
    assert_eq!(at.aws(&["s3", "ls", "--recursive", "s3://files/"]).lines().count(), ODD.len() - 1);
    at.aws(&["s3", "cp", "--recursive", "s3://files/tree", "s3://files/copy", "--only-show-errors"]);
    at.aws(&["s3", "sync", "s3://files/copy", "copied", "--only-show-errors"]);
    at.alike("tree", "copied");
    // A URL for somebody without a key; a part of an object; a stream.
    let presigned = at.aws(&["s3", "presign", "s3://files/tree/plus+and%20", "--expires-in", "60"]);
    let fetched = Command::new("curl").args(["-sSf", presigned.trim()]).output().expect("curl");
    assert!(fetched.status.success() && fetched.stdout == bytes(3, 5_000_000));
    let range =
        ["s3api", "get-object", "--bucket", "files", "--key", "tree/plus+and%20", "--range", "bytes=10-29", "r"];
    at.aws(&range);
    assert_eq!(fs::read(at.home.path("r")).unwrap(), bytes(3, 5_000_000)[10..30]);
    // Versions.
    let api = |args: &[&str]| at.aws(&[&["s3api"], args, &["--bucket", "files"]].concat());
    api(&["put-bucket-versioning", "--versioning-configuration", "Status=Enabled"]);
    let version = |content: &str| {
        fs::write(at.home.path("v"), content).unwrap();
        let put = api(&["put-object", "--key", "v", "--body", "v"]);
        let put: serde_json::Value = serde_json::from_str(&put).unwrap();
        put["VersionId"].as_str().unwrap().to_owned()
    };
    let (one, _two) = (version("one"), version("two"));
    api(&["delete-object", "--key", "v"]);
    let listed =
        api(&["list-object-versions", "--prefix", "v", "--query", "[length(Versions), length(DeleteMarkers)]"]);
    assert_eq!(listed.split_whitespace().collect::<String>(), "[2,1]");
    api(&["get-object", "--key", "v", "--version-id", &one, "old"]);
    assert_eq!(fs::read_to_string(at.home.path("old")).unwrap(), "one");
    assert_eq!(at.home.ok(&["object", "get", "files/v", "--version", &one]), "one");
    at.check();
}

#[test]
fn rclone() {
    let at = At::new();
    at.tree("tree");
    at.run("rclone", &["mkdir", "kura:files"]);
    at.run("rclone", &["sync", "tree", "kura:files/tree", "--transfers", "8"]);
    at.run("rclone", &["check", "tree", "kura:files/tree", "--download"]);
    at.run("rclone", &["sync", "kura:files/tree", "back"]);
    at.alike("tree", "back");
    // Copied by the server, moved, listed in order, deleted.
    at.run("rclone", &["copy", "kura:files/tree", "kura:files/copy"]);
    at.run("rclone", &["check", "kura:files/tree", "kura:files/copy"]);
    at.run("rclone", &["moveto", "kura:files/copy/a b", "kura:files/copy/moved"]);
    let listed = at.run("rclone", &["lsf", "-R", "--files-only", "kura:files/copy"]);
    assert_eq!(listed.lines().count(), ODD.len());
    assert!(listed.contains("moved") && !listed.contains("a b"));
    let sums = at.run("rclone", &["md5sum", "kura:files/tree"]);
    assert_eq!(sums.lines().count(), ODD.len());
    at.run("rclone", &["purge", "kura:files"]);
    assert_eq!(at.run("rclone", &["lsf", "kura:"]), "demo/\n");
    at.check();
}

#[test]
fn s3cmd() {
    let at = At::new();
    at.tree("tree");
    let host = url(&at.server).replace("http://", "");
    let s3cmd = |args: &[&str]| {
        let common = ["--config=/dev/null", "--no-ssl", "--region=us-east-1", "--multipart-chunk-size-mb=5"];
        let keys = [format!("--access_key={}", at.key.id), format!("--secret_key={}", at.key.secret)];
        let hosts = [format!("--host={host}"), format!("--host-bucket={host}")];
        let own: Vec<&str> = keys.iter().chain(&hosts).map(String::as_str).collect();
        at.run("s3cmd", &[&common, own.as_slice(), args].concat())
    };
    s3cmd(&["mb", "s3://files"]);
    s3cmd(&["sync", "tree/", "s3://files/tree/"]);
    fs::create_dir(at.home.path("back")).unwrap();
    s3cmd(&["sync", "s3://files/tree/", "back/"]);
    at.alike("tree", "back");
    assert_eq!(s3cmd(&["ls", "--recursive", "s3://files"]).lines().count(), ODD.len());
    s3cmd(&["cp", "s3://files/tree/a b", "s3://files/copy"]);
    s3cmd(&["mv", "s3://files/copy", "s3://files/moved"]);
    assert!(s3cmd(&["info", "s3://files/moved"]).contains("File size: 0"));
    // Everybody may read.
    let policy = r#"{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject",
                     "Resource": "arn:aws:s3:::files/*"}]}"#;
    fs::write(at.home.path("policy"), policy).unwrap();
    s3cmd(&["setpolicy", "policy", "s3://files"]);
    let open = format!("{}/files/tree/plus%2Band%2520", url(&at.server));
    let fetched = Command::new("curl").args(["-sSf", &open]).output().expect("curl");
    assert!(fetched.status.success() && fetched.stdout == bytes(3, 5_000_000));
    s3cmd(&["del", "--recursive", "--force", "s3://files"]);
    s3cmd(&["rb", "s3://files"]);
    at.check();
}

#[test]
fn a_hundred_thousand_keys_under_one_prefix() {
    let at = At::new();
    for batch in 0..5 {
        let line = |number: u32| format!("{{\"put\": \"demo/many/{:06}\", \"text\": \"\"}}\n", number * 5 + batch);
        fs::write(at.home.path("many"), (0..20_000).map(line).collect::<String>()).unwrap();
        at.home.ok(&["object", "batch", "many"]);
    }
    let listed =
        at.aws(&["s3api", "list-objects-v2", "--bucket", "demo", "--query", "Contents[].[Key]", "--output", "text"]);
    let expected = (0..100_000).map(|number| format!("many/{number:06}"));
    assert!(listed.lines().eq(expected), "{} keys are listed", listed.lines().count());
    let folders = at.aws(&["s3", "ls", "s3://demo"]);
    assert_eq!(folders.trim(), "PRE many/");
}
