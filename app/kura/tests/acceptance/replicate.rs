//! `kura replicate` with trees that have everything in them, by real rsync and kura to kura, judged by rsync.

use crate::harness::{Home, eventually, fails, ok, on_a_port, tool};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Ways to carry to a directory of this machine.
pub const WAYS: [&[&str]; 4] = [
    &["--with", "kura"],
    &["--with", "kura", "--split", "by-count", "--workers", "3"],
    &["--with", "rsync"],
    &["--with", "rsync", "--split", "size-aware", "--threshold", "1M"],
];

/// Bytes that look like nothing in particular, the same every time.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    crate::object_cli::bytes(seed, length)
}

/// Makes a job what it is where a fail-back was cut off after all of it was done, and before the job was told.
pub fn forget_failback(home: &Home, job: &str) {
    let file = home.data().join("replicate").join(job).join("job.toml");
    let text = fs::read_to_string(&file).expect("a job");
    let rest: Vec<&str> = text.lines().filter(|line| !line.starts_with("failed_over")).collect();
    fs::write(&file, format!("failed_over = true\n{}\n", rest.join("\n"))).expect("a job");
}

/// A tree with one of everything.
pub fn grow(root: &Path) {
    fs::create_dir_all(root.join("d/e")).expect("directories");
    for index in 0..60_usize {
        fs::write(root.join(format!("d/f{index}")), noise(index * 997, index as u64 + 1)).expect("a file");
    }
    fs::write(root.join("large"), noise(9_000_001, 99)).expect("a large file");
    symlink("../nowhere", root.join("d/link")).expect("a link");
    fs::hard_link(root.join("d/f1"), root.join("hard")).expect("a hard link");
    fs::hard_link(root.join("large"), root.join("d/e/large too")).expect("a hard link");
    for name in [&b"new\nline"[..], b"\xff\xfe", b"#hash", b";semicolon", b" lead ", b"-n", b"q'\"\\"] {
        fs::write(root.join("d").join(OsStr::from_bytes(name)), name).expect("a file of an odd name");
    }
    let sparse = File::create(root.join("sparse")).expect("a file");
    sparse.set_len(40 << 20).and_then(|()| sparse.write_all_at(b"x", 5_000_000)).expect("a sparse file");
    ok(tool("setfattr").args(["-n", "user.colour", "-v", "red"]).arg(root.join("d/f2")));
    ok(tool("setfacl").args(["-m", "u:1:r"]).arg(root.join("d/f3")));
    ok(tool("setfacl").args(["-d", "-m", "u:2:rx"]).arg(root.join("d/e")));
    ok(tool("mkfifo").arg(root.join("pipe")));
    ok(tool("mknod").arg(root.join("null")).args(["c", "1", "3"]));
    fs::create_dir(root.join("empty")).expect("a directory");
    fs::create_dir_all(root.join("goes/with/all")).expect("directories");
    fs::write(root.join("goes/with/all/inner"), "x").expect("a file");
    fs::write(root.join("goes/with/beside"), "x").expect("a file");
    ok(tool("chmod").arg("4755").arg(root.join("d/f5")));
    ok(tool("chown").arg("1:2").arg(root.join("d/f6")));
    ok(tool("touch").args(["-d", "1960-01-01 00:00:00.123456789"]).arg(root.join("d/f7")));
    ok(tool("touch").args(["-d", "2001-01-01"]).arg(root.join("empty")).arg(root.join("d")));
}

/// Changes a bit of everything.
pub fn change(root: &Path) {
    let remove = |name: &str| fs::remove_file(root.join(name)).expect("a file");
    remove("d/f9");
    fs::write(root.join("d/f10"), "other").expect("a file");
    fs::create_dir(root.join("new")).expect("a directory");
    fs::rename(root.join("d/f11"), root.join("new/f11")).expect("a file");
    fs::remove_dir(root.join("empty")).expect("a directory");
    fs::remove_dir_all(root.join("goes")).expect("a directory with all it holds");
    remove("d/f12");
    fs::create_dir(root.join("d/f12")).expect("a directory where a file was");
    fs::write(root.join("d/f12/inner"), "x").expect("a file");
    fs::remove_dir_all(root.join("d/e")).expect("a directory");
    fs::write(root.join("d/e"), "x").expect("a file where a directory was");
    fs::hard_link(root.join("hard"), root.join("new/hard too")).expect("a hard link");
    let large = File::options().write(true).open(root.join("large")).expect("the large file");
    large.write_all_at(b"changed", 4_200_000).and_then(|()| large.set_len(8_900_000)).expect("a change in place");
    ok(tool("setfattr").args(["-x", "user.colour"]).arg(root.join("d/f2")));
    ok(tool("setfacl").arg("-b").arg(root.join("d/f3")));
    ok(tool("chmod").arg("600").arg(root.join("d/f4")));
    remove("d/link");
    symlink("elsewhere", root.join("d/link")).expect("a link");
}

/// Fails the test unless rsync, comparing contents and everything else, finds nothing to do.
pub fn assert_same(source: &Path, target: &Path) {
    let mut rsync = tool("rsync");
    rsync.args(["-aHAXSn", "--itemize-changes", "--checksum", "--delete", "--exclude=/.kura-replica"]);
    rsync.arg(format!("{}/", source.display())).arg(format!("{}/", target.display()));
    let differs = ok(&mut rsync);
    assert!(differs.is_empty(), "the copy differs:\n{differs}");
    let left = ok(tool("find").arg(target).args(["-name", ".~kura~*"]));
    assert!(left.is_empty(), "left over: {left}");
}

pub fn run(home: &Home, args: &[&str]) -> Value {
    serde_json::from_str(&home.ok(&[&["replicate", "run", "--json"], args].concat())).expect("a summary")
}

pub fn marker(target: &Path) -> Value {
    serde_json::from_slice(&fs::read(target.join(".kura-replica")).expect("a marker")).expect("JSON")
}

/// Waits until no file was changed just now, which the next run would carry once more.
pub fn settle() {
    std::thread::sleep(Duration::from_millis(2100));
}

/// A copy, the same again, changes, and what the target says itself.
fn over_and_over(home: &Home, source: &Path, target: &Path, args: &[&str]) {
    settle();
    let first = run(home, args);
    assert_eq!((&first["is_complete"], &first["failed"]), (&true.into(), &0.into()), "{first}");
    assert_same(source, target);
    let unchanged = run(home, args);
    assert_eq!((&unchanged["files"], &unchanged["deleted"]), (&0.into(), &0.into()), "{unchanged}");
    change(source);
    settle();
    let planned = run(home, &[args, &["--dry-run"]].concat());
    let changed = run(home, args);
    assert!(changed["files"].as_u64().expect("files") < 20, "{changed}");
    assert_eq!((&planned["files"], &planned["deleted"]), (&changed["files"], &changed["deleted"]));
    assert_same(source, target);
    assert_eq!(marker(target)["state"], "complete");
    // Somebody meddles with the copy: what the last run left there is not what is there.
    fs::write(target.join("d/f20"), "meddled").expect("a file of the copy");
    fs::write(target.join("stranger"), "meddled").expect("a file in the copy");
    assert_eq!(run(home, args)["files"], 0);
    run(home, &[args, &["--recheck"]].concat());
    assert_same(source, target);
}

#[test]
fn everything_in_a_tree_is_carried_changed_and_deleted() {
    for way in WAYS {
        let home = Home::new();
        let (source, target) = (home.path("source"), home.path("copies/target"));
        grow(&source);
        over_and_over(&home, &source, &target, &[&["source", "copies/target"], way].concat());
    }
}

/// A server that dies with its test.
pub struct Serving(pub Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `kura replicate serve` on a free port, and its address.
pub fn serve(home: &Home, root: &str, more: &[&str]) -> (Serving, String) {
    serve_by(Command::new(env!("CARGO_BIN_EXE_kura")), home, root, more)
}

pub fn serve_by(mut command: Command, home: &Home, root: &str, more: &[&str]) -> (Serving, String) {
    fs::create_dir_all(home.path(root)).expect("a directory");
    command.args(["replicate", "serve", root, "--listen", "127.0.0.1:0"]).args(more).current_dir(home.path("."));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("kura");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let serving = Serving(child);
    let line = lines.next().expect("a line").expect("text");
    let address = line.split("/NAME").next().expect("an address").to_owned();
    assert!(lines.any(|line| line.is_ok_and(|line| line == "ready")));
    (serving, address)
}

#[test]
fn kura_to_kura_over_tcp_carries_the_same_to_who_knows_the_token() {
    let home = Home::new();
    let (source, target) = (home.path("source"), home.path("copies/a"));
    grow(&source);
    let (_serving, address) = serve(&home, "copies", &[]);
    let uri = format!("{address}/a");
    fs::write(home.path("guess"), "guess").expect("a token");
    for said in [&[][..], &["--target-token-file", "guess"], &["--token", "guess"]] {
        let refused = fails(&mut home.kura(&[&["replicate", "run", "source", &uri], said].concat()));
        assert!(refused.contains("token") && refused.lines().count() == 1, "{refused}");
    }
    let token = ["--target-token-file", "copies.token"];
    for bad in ["../b", "a/../../b"] {
        let bad = format!("{address}/{bad}");
        let refused = fails(&mut home.kura(&[&["replicate", "run", "source", &bad], &token[..]].concat()));
        assert!(refused.contains("leads out"), "{refused}");
    }
    let args = ["source", &uri, token[0], token[1]];
    over_and_over(&home, &source, &target, &args);
    // Of a large file, only the blocks that changed are sent.
    let large = File::options().write(true).open(source.join("large")).expect("the large file");
    large.write_all_at(b"!", 1_000_000).and_then(|()| large.write_all_at(b"!", 7_000_000)).expect("two changes");
    let changed = run(&home, &args);
    assert_eq!((&changed["bytes"], &changed["sent_bytes"]), (&8_900_000.into(), &8192.into()), "{changed}");
    assert_same(&source, &target);
}

#[test]
fn the_other_end_dies_and_the_next_run_goes_on() {
    let home = Home::new();
    let source = home.path("source");
    grow(&source);
    let token = ["--target-token-file", "copies.token"];
    let (serving, address) = serve(&home, "copies", &[]);
    let uri = format!("{address}/a");
    let slow = [&["replicate", "run", "source", &uri, "--bandwidth", "1M"], &token[..]].concat();
    let mut slow = home.kura(&slow);
    let slow = slow.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("kura");
    eventually(Duration::from_mins(1), "the copy has begun", || home.path("copies/a/d").exists());
    drop(serving);
    let output = slow.wait_with_output().expect("the run");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && complaint.contains("the target kura://"), "{complaint}");
    assert_eq!(complaint.trim_end().lines().count(), 1, "{complaint}");
    assert_eq!(marker(&home.path("copies/a"))["state"], "unfinished");
    let (_serving, address) = serve(&home, "copies", &[]);
    let uri = format!("{address}/a");
    assert_eq!(run(&home, &["source", &uri, token[0], token[1]])["is_complete"], true);
    assert_same(&source, &home.path("copies/a"));
}

/// Adds so much to a tree that it is worth several processes.
pub fn grow_large(source: &Path) {
    for index in 0..12 {
        fs::write(source.join(format!("d/more{index}")), noise(20_000_000, index + 1)).expect("a file");
    }
}

/// An rsync daemon that dies with its test, and the URI of its module.
pub fn daemon(home: &Home) -> (Serving, String) {
    fs::create_dir_all(home.path("module")).expect("a directory");
    let (child, port) = on_a_port(b"@RSYNCD:", |port| {
        let configuration = format!(
            "port = {port}\naddress = 127.0.0.1\nuse chroot = no\nuid = 0\ngid = 0\n[m]\npath = {}\nread only = no\nmunge symlinks = no\n",
            home.path("module").display()
        );
        fs::write(home.path("rsyncd.conf"), configuration).expect("its configuration");
        let mut command = Command::new("rsync");
        command.args(["--daemon", "--no-detach"]).arg(format!("--config={}", home.path("rsyncd.conf").display()));
        command.stdin(Stdio::null()).spawn().expect("rsync")
    });
    (Serving(child), format!("rsync://127.0.0.1:{port}/m"))
}

#[test]
fn an_rsync_daemon_is_a_target() {
    let home = Home::new();
    let (source, target) = (home.path("source"), home.path("module/a"));
    grow(&source);
    let (_serving, uri) = daemon(&home);
    over_and_over(&home, &source, &target, &["source", &format!("{uri}/a")]);
    let refused = fails(&mut home.kura(&["replicate", "run", "source", &format!("{}/b", uri.replace("/m", "/none"))]));
    assert!(refused.contains("none") && refused.lines().count() == 1, "{refused}");
}

#[test]
fn what_cannot_be_written_is_told_and_everything_else_is_copied() {
    for way in ["kura", "rsync"] {
        let home = Home::new();
        grow(&home.path("source"));
        let args = ["source", "target", "--with", way];
        run(&home, &args);
        fs::write(home.path("source/d/f30"), "newer").expect("a file");
        fs::write(home.path("source/d/f31"), "newer").expect("a file");
        settle();
        ok(tool("chattr").arg("+i").arg(home.path("target/d/f30")));
        let complaint = fails(&mut home.kura(&[&["replicate", "run"], &args[..]].concat()));
        ok(tool("chattr").arg("-i").arg(home.path("target/d/f30")));
        assert!(complaint.contains("d/f30") && complaint.contains("not permitted"), "{complaint}");
        assert_eq!(fs::read_to_string(home.path("target/d/f31")).expect("the other file"), "newer");
        assert_eq!(marker(&home.path("target"))["state"], "partial");
        let list = complaint.split("listed in ").nth(1).expect("a list").trim();
        let list = fs::read_to_string(home.path(list)).expect("the list");
        let failure: Value = serde_json::from_str(list.lines().next().expect("a line")).expect("an object");
        assert_eq!(failure["path"], "d/f30");
        // The next run carries it, although nothing has changed since.
        let next = run(&home, &args);
        assert!(next["files"] == 1 && next["is_complete"] == true, "{next}");
        assert_same(&home.path("source"), &home.path("target"));
        // Nor is it forgotten what could not be deleted.
        fs::remove_dir_all(home.path("source/goes")).expect("a directory");
        fs::remove_file(home.path("source/d/f32")).expect("a file");
        let stay = ["goes/with/all/inner", "d/f32"].map(|name| home.path("target").join(name));
        ok(tool("chattr").arg("+i").args(&stay));
        let complaint = fails(&mut home.kura(&[&["replicate", "run"], &args[..]].concat()));
        ok(tool("chattr").arg("-i").args(&stay));
        assert!(complaint.contains("not permitted") && stay.iter().all(|path| path.exists()), "{complaint}");
        assert_eq!(marker(&home.path("target"))["state"], "partial");
        assert!(!home.path("target/goes/with/beside").exists(), "everything else was deleted");
        assert_eq!(run(&home, &args)["is_complete"], true);
        assert_same(&home.path("source"), &home.path("target"));
    }
}

/// A small file system of its own, gone with the test.
struct Small(PathBuf);

impl Small {
    fn mount(home: &Home, at: &str, size: &str) -> Self {
        let path = home.path(at);
        fs::create_dir_all(&path).expect("a directory");
        ok(tool("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&path));
        Self(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = tool("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_target_is_told_and_the_next_run_completes() {
    for way in ["kura", "rsync"] {
        let home = Home::new();
        let source = home.path("source");
        fs::create_dir(&source).expect("a directory");
        for index in 0..40 {
            fs::write(source.join(format!("f{index}")), noise(100_000, index + 1)).expect("a file");
        }
        fs::write(source.join("huge"), noise(8_000_000, 7)).expect("a file");
        let small = Small::mount(&home, "target", "6M");
        let args = ["source", "target", "--with", way];
        let complaint = fails(&mut home.kura(&[&["replicate", "run"], &args[..]].concat()));
        assert!(complaint.contains("the target is full: free some"), "{complaint}");
        assert!(complaint.lines().count() <= 4, "{complaint}");
        assert_ne!(marker(&small.0)["state"], "complete");
        ok(tool("mount").args(["-o", "remount,size=64M"]).arg(&small.0));
        assert_eq!(run(&home, &args)["is_complete"], true);
        assert_same(&source, &small.0);
    }
}

/// True while a process works in this home.
fn is_at_work(home: &Home) -> bool {
    let home = fs::canonicalize(home.path("")).expect("the home");
    let mut processes = fs::read_dir("/proc").expect("/proc").flatten();
    processes.any(|process| fs::read_link(process.path().join("cwd")).is_ok_and(|works_in| works_in.starts_with(&home)))
}

#[test]
fn a_run_that_is_killed_goes_on_where_it_was() {
    for (way, seed) in [("kura", 1), ("kura", 2), ("kura", 3), ("rsync", 4)] {
        let home = Home::new();
        let source = home.path("source");
        grow(&source);
        for index in 0..400 {
            fs::write(source.join(format!("d/more{index}")), noise(30_000, index + 1)).expect("a file");
        }
        // A copy would take ten seconds, of which it gets less than one.
        let args = ["source", "target", "--with", way, "--bandwidth", "2M"];
        let mut cut = Command::new(env!("CARGO_BIN_EXE_kura"));
        let mut cut = cut
            .args(["replicate", "run"])
            .args(args)
            .current_dir(home.path("."))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("kura");
        eventually(Duration::from_mins(1), "something was copied", || home.path("target/d").exists());
        std::thread::sleep(Duration::from_millis(seed * 150));
        cut.kill().expect("kill -9");
        cut.wait().expect("the killed run");
        assert_eq!(marker(&home.path("target"))["state"], "unfinished");
        // As long as one of them is at work, nobody else is: it would put what it has over what a later run carried.
        let again = home.kura(&[&["replicate", "run"], &args[..4]].concat()).output().expect("kura");
        assert!(!(again.status.success() && is_at_work(&home)), "two runs are at work on one copy");
        // They give up a minute after nothing moves any more.
        eventually(Duration::from_mins(5), "rsync's processes end after their parent", || !is_at_work(&home));
        assert_eq!(run(&home, &args[..4])["is_complete"], true);
        assert_same(&source, &home.path("target"));
    }
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let home = Home::new();
    grow(&home.path("source"));
    fs::create_dir(home.path("theirs")).expect("a directory");
    fs::write(home.path("theirs/work"), "precious").expect("a file");
    fs::write(home.path("file"), "").expect("a file");
    for (args, told) in [
        (&["nowhere", "target"][..], "the source nowhere"),
        (&["file", "target"], "directory"),
        (&["source", "theirs"], "not empty"),
        (&["source", "source/d/copy"], "one in the other"),
        (&["source", "."], "one in the other"),
        (&["source", "kura://127.0.0.1:1/x"], "kura replicate serve"),
        (&["source", "rsync://127.0.0.1:1/x"], "refused"),
        (&["source", "ssh://127.0.0.1:1/x"], "ssh"),
        (&["source", "127.0.0.1:/x", "--with", "kura"], "kura reaches"),
        (&["source", "kura://127.0.0.1/x"], "HOST:PORT"),
        (&["nojob"], "no job nojob"),
    ] {
        let complaint = fails(&mut home.kura(&[&["replicate", "run"], args].concat()));
        assert!(complaint.contains(told) && complaint.trim_end().lines().count() == 1, "{args:?}: {complaint}");
    }
    assert_eq!(fs::read_to_string(home.path("theirs/work")).expect("their work"), "precious");
    for (target, told) in [("s3://photos", "a tree goes to"), ("https://127.0.0.1:1/photos", "a tree goes to")] {
        let complaint = fails(&mut home.kura(&["replicate", "add", "job", "source", target]));
        assert!(complaint.contains(told) && complaint.trim_end().lines().count() == 1, "{target}: {complaint}");
    }
    home.ok(&["replicate", "run", "source", "target", "--dry-run"]);
    assert!(!home.data().exists(), "what only looks leaves something");
    // A source that is not mounted does not empty its copy.
    run(&home, &["source", "target"]);
    fs::rename(home.path("source"), home.path("away")).expect("the source");
    fs::create_dir(home.path("source")).expect("an empty directory");
    let complaint = fails(&mut home.kura(&["replicate", "run", "source", "target"]));
    assert!(complaint.contains("mounted") && home.path("target/large").exists(), "{complaint}");
    run(&home, &["source", "target", "--allow-empty"]);
    assert!(!home.path("target/large").exists());
}

#[test]
fn jobs_run_by_name_and_by_schedule_and_tell_how_old_their_copy_is() {
    let home = Home::new();
    grow(&home.path("source"));
    home.ok(&["replicate", "add", "tree", "source", "target", "--every", "1s", "--rpo", "1h", "--workers", "2"]);
    let status = || -> Value { serde_json::from_str(&home.ok(&["replicate", "status", "--json"])).expect("jobs") };
    assert_eq!((&status()[0]["name"], &status()[0]["is_late"]), (&"tree".into(), &true.into()));
    let first = home.ok(&["replicate", "run", "tree", "--json"]);
    assert!(first.contains("\"is_complete\": true"), "{first}");
    assert_same(&home.path("source"), &home.path("target"));
    let age = status()[0]["recovery_point_age_s"].as_f64().expect("an age");
    assert!(age < 60.0 && status()[0]["is_late"] == false);
    change(&home.path("source"));
    let mut follow = Command::new(env!("CARGO_BIN_EXE_kura"));
    follow.args(["replicate", "run", "--follow", "--quiet"]).current_dir(home.path(".")).stdin(Stdio::null());
    let following = Serving(follow.spawn().expect("kura"));
    let target = home.path("target/new/f11");
    eventually(Duration::from_mins(1), "the schedule ran the job", || {
        target.exists() && marker(&home.path("target"))["state"] == "complete"
    });
    drop(following);
    let text = home.ok(&["replicate", "status"]);
    assert!(text.contains("tree") && text.contains("complete"), "{text}");
    assert!(home.ok(&["replicate", "remove", "tree", "--dry-run"]).contains("would remove tree"));
    assert_ne!(status(), Value::Array(Vec::new()));
    home.ok(&["replicate", "remove", "tree"]);
    assert_eq!(status(), Value::Array(Vec::new()));
    assert!(target.exists(), "the copy stays");
}

/// Changes the contents of a file and neither its size nor its time.
pub fn rot(path: &Path) {
    let time = fs::metadata(path).and_then(|it| it.modified()).expect("its time");
    let rotten = File::options().write(true).open(path).expect("a file of the copy");
    rotten.write_all_at(b"!", 40).and_then(|()| rotten.set_modified(time)).expect("a bit that rots");
}

#[test]
fn after_a_restart_of_the_targets_machine_nothing_there_is_trusted() {
    for way in ["kura", "rsync"] {
        let home = Home::new();
        grow(&home.path("source"));
        let args = ["source", "target", "--with", way];
        run(&home, &args);
        // A run that was cut off by a power cut: some files have their size and time, and not their contents.
        let marker = fs::read_to_string(home.path("target/.kura-replica")).expect("the marker");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("this start");
        assert!(marker.contains(boot.trim()));
        let marker = marker.replace("complete", "unfinished").replace(boot.trim(), "another start");
        fs::write(home.path("target/.kura-replica"), marker).expect("the marker");
        rot(&home.path("target/large"));
        rot(&home.path("target/d/f30"));
        assert_eq!(run(&home, &args)["is_complete"], true);
        assert_same(&home.path("source"), &home.path("target"));
    }
}

#[test]
fn a_copy_is_verified_by_its_contents() {
    for way in ["kura", "rsync"] {
        let home = Home::new();
        grow(&home.path("source"));
        settle();
        run(&home, &["source", "target"]);
        let verify = ["replicate", "verify", "source", "target", "--with", way];
        assert!(home.ok(&verify).contains("nothing differs"));
        rot(&home.path("target/large"));
        fs::remove_file(home.path("target/d/f20")).expect("a file of the copy");
        let output = home.kura(&verify).output().expect("kura");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success() && text.contains("large: ") && text.contains("d/f20: "), "{text}");
        // What a run compares by time and size does not see it; the next one carries what was found.
        run(&home, &["source", "target"]);
        assert_same(&home.path("source"), &home.path("target"));
    }
}

#[test]
fn one_works_with_the_copy_and_goes_back() {
    let home = Home::new();
    let (source, target) = (home.path("source"), home.path("target"));
    grow(&source);
    home.ok(&["replicate", "add", "tree", "source", "target"]);
    let complaint = fails(&mut home.kura(&["replicate", "failover", "tree"]));
    assert!(complaint.contains("no copy yet"), "{complaint}");
    home.ok(&["replicate", "run", "tree"]);
    assert!(home.ok(&["replicate", "failover", "tree"]).contains("as of 20"));
    change(&target);
    for refused in [&["replicate", "run", "tree"][..], &["replicate", "run", "source", "target"]] {
        let complaint = fails(&mut home.kura(refused));
        assert!(complaint.contains("failed over"), "{complaint}");
    }
    let before = (marker(&target), tool("find").arg(&source).output().expect("find").stdout);
    assert!(home.ok(&["replicate", "failback", "tree", "--dry-run"]).contains("would carry"));
    assert_eq!((marker(&target), tool("find").arg(&source).output().expect("find").stdout), before);
    home.ok(&["replicate", "failback", "tree"]);
    assert_same(&target, &source);
    forget_failback(&home, "tree");
    assert!(fails(&mut home.kura(&["replicate", "run", "tree"])).contains("failback"));
    home.ok(&["replicate", "failback", "tree"]);
    assert!(!source.join(".kura-replica").exists());
    fs::write(source.join("later"), "x").expect("a file");
    home.ok(&["replicate", "run", "tree"]);
    assert_same(&source, &target);
    // A copy that a run was cut off in is let go only when it is said.
    let text = fs::read_to_string(target.join(".kura-replica")).expect("the marker");
    fs::write(target.join(".kura-replica"), text.replace("complete", "unfinished")).expect("the marker");
    fs::write(source.join("later"), "newer").expect("a file");
    let complaint = fails(&mut home.kura(&["replicate", "failover", "tree"]));
    assert!(complaint.contains("--anyway"), "{complaint}");
    home.ok(&["replicate", "failover", "tree", "--anyway"]);
    // What the source has of its own stays there, and a run carries it only where that was said.
    fs::write(target.join("work"), "work").expect("a file");
    for dry_run in [&["--dry-run"][..], &[]] {
        let failback = [&["replicate", "failback", "tree"], dry_run].concat();
        let complaint = fails(&mut home.kura(&failback));
        assert!(complaint.contains("later") && complaint.contains("--anyway"), "{complaint}");
    }
    assert_eq!(fs::read_to_string(source.join("work")).expect("work that is back"), "work");
    assert!(fails(&mut home.kura(&["replicate", "run", "tree"])).contains("failed over"));
    home.ok(&["replicate", "failback", "tree", "--anyway", "--dry-run"]);
    home.ok(&["replicate", "failback", "tree", "--anyway"]);
    home.ok(&["replicate", "run", "tree"]);
    assert_eq!(fs::read_to_string(target.join("later")).expect("the source's"), "newer");
    assert_same(&source, &target);
}
