//! What must not happen by mistake: data that is lost unasked, a server that ends for want of somebody who listens, and a
//! command that goes on for nobody.

use crate::harness::{Home, eventually, fails, ok, tool, zeroes};
use crate::nbd::{Client, FUA, WRITE};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_mins(1);

/// A server that was started otherwise than the harness does; killed when dropped.
struct Started(Child);

impl Started {
    /// Waits until it is ready; S3 listens at `s3`.
    fn by(home: &Home, command: &mut Command, s3: &str) -> Self {
        let doors = ["serve", "--nbd", "127.0.0.1:0", "--s3", s3, "--admin", "127.0.0.1:0"];
        let command = command.args(doors).current_dir(home.path("")).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("kura");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let server = Self(child);
        assert!(lines.map_while(Result::ok).any(|line| line == "ready"), "it is not ready");
        server
    }

    fn signal(&self, name: &str) {
        ok(tool("kill").args([&format!("-{name}"), &self.0.id().to_string()]));
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

fn kura() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kura"))
}

#[test]
fn a_volume_is_not_made_smaller_by_mistake() {
    let home = Home::new();
    let mut server = home.serve();
    fs::write(home.path("file"), [7; 4096]).expect("a file");
    home.ok(&["object", "put", "demo/a", "file"]);
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    let client = Client::connect(&home.socket(), "v").expect("a connection");
    for dry_run in [&[][..], &["--dry-run"]] {
        for more in [&[][..], &["--force"]] {
            let said =
                fails(&mut home.kura(&[&["volume", "resize", "objects", "64M", "--shrink"], more, dry_run].concat()));
            assert!(said.contains("volume objects has the object store") && said.lines().count() == 1, "{said}");
        }
        let said = fails(&mut home.kura(&[&["volume", "resize", "v", "32M", "--shrink"], dry_run].concat()));
        assert!(said.contains("volume v: 1 client has it open") && said.contains("--force"), "{said}");
    }
    // To grow takes nothing from anybody.
    home.ok(&["volume", "resize", "v", "96M"]);
    home.ok(&["volume", "resize", "v", "32M", "--shrink", "--force", "--dry-run"]);
    home.ok(&["volume", "resize", "v", "32M", "--shrink", "--force"]);
    drop(client);
    assert!(server.stop().success());
    let _server = home.serve();
    home.ok(&["object", "get", "demo/a", "back"]);
}

#[test]
fn the_object_store_keeps_its_name() {
    let home = Home::new();
    let mut server = Started::by(&home, &mut kura(), "off");
    home.ok(&["snapshot", "create", "demo@a"]);
    for line in [&["volume", "create", "objects", "--size", "64M"][..], &["snapshot", "clone", "demo@a", "objects"]] {
        let said = fails(&mut home.kura(line));
        assert!(said.contains("reserved for the object store") && said.lines().count() == 1, "{line:?}: {said}");
    }
    server.signal("TERM");
    assert!(server.0.wait().expect("the server").success());
    let _server = home.serve();
    home.ok(&["bucket", "list"]);
}

#[test]
fn a_server_outlives_its_log() {
    let home = Home::new();
    let full = File::options().write(true).open("/dev/full").expect("a full device");
    let mut server = Started::by(&home, kura().stderr(full), "127.0.0.1:0");
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    home.ok(&["volume", "delete", "v"]);
    server.signal("TERM");
    assert!(server.0.wait().expect("the server").success());
    // And a reader of it that has gone.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut server = Started::by(&home, kura().stderr(writer), "127.0.0.1:0");
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    home.ok(&["volume", "show", "v"]);
    server.signal("TERM");
    assert!(server.0.wait().expect("the server").success());
}

#[test]
fn a_terminal_that_closes_stops_the_server_cleanly() {
    let home = Home::new();
    // These tests may be run so that they survive it.
    let mut at_a_terminal = Command::new("env");
    at_a_terminal.arg("--default-signal=HUP").arg(env!("CARGO_BIN_EXE_kura"));
    let mut server = home.spawn_by(at_a_terminal, &[]);
    server.wait_until_ready();
    // The shell and the system may both say so, in one moment.
    ok(tool("sh").args(["-c", &format!("kill -HUP {0}; kill -HUP {0} || true", server.pid())]));
    let status = server.wait(SOON).expect("it goes on");
    assert!(status.success() && server.log().contains("SIGHUP: stopping"), "{status}: {}", server.log());
    // Unless it is to survive that.
    let mut nohup = Command::new("nohup");
    let server = Started::by(&home, nohup.arg(env!("CARGO_BIN_EXE_kura")).stderr(Stdio::null()), "127.0.0.1:0");
    server.signal("HUP");
    std::thread::sleep(Duration::from_secs(1));
    home.ok(&["status"]);
}

/// `timeout` and the like tell a program and its group: twice, in one moment.
#[test]
fn a_server_that_is_told_twice_in_a_moment_stops_cleanly() {
    let home = Home::new();
    let mut server = home.serve();
    let twice = format!("kill -TERM {0}; sleep 0.02; kill -TERM {0} || true", server.pid());
    ok(tool("sh").args(["-c", &twice]));
    let status = server.wait(SOON).expect("it goes on");
    assert!(status.success() && server.log().contains("SIGTERM: stopping"), "{status}: {}", server.log());
}

#[test]
fn a_first_start_that_is_killed_can_be_repeated() {
    let home = Home::new();
    let names = ["f0", "f1", "s0", "s1"];
    let disk = |name: &str| {
        // They are there before, as devices are: nobody removes them.
        zeroes(&home.path(name), 256 * MIB);
        format!("{{ path = '{name}', class = '{}' }}", if name.starts_with('f') { "fast" } else { "slow" })
    };
    let config = format!("pool.journal = '16M'\npool.disks = [{}]\n", names.map(disk).join(", "));
    fs::write(home.path("kura.toml"), config).expect("a configuration");
    let has_label = |name: &str| {
        let mut start = [0; 8];
        File::open(home.path(name)).and_then(|mut file| file.read_exact(&mut start)).expect("a disk");
        start == *b"kura-dsk"
    };
    let mut server = home.spawn(&["--config", "kura.toml"]);
    eventually(SOON, "a disk is labelled", || names.iter().any(|name| has_label(name)));
    server.kill();
    let mut server = home.serve_with(&["--config", "kura.toml"]);
    home.ok(&["check"]);
    assert!(server.stop().success());
    assert!(!home.data().join("begun").exists(), "it is whole");
    // Of a directory that is lost they are nobody's leavings.
    fs::remove_dir_all(home.data()).expect("the data directory");
    let said =
        fails(&mut home.kura(&["serve", "--config", "kura.toml", "--nbd", "off", "--s3", "off", "--admin", "off"]));
    assert!(said.contains("carries a kura label"), "{said}");
}

#[test]
fn a_first_start_that_cannot_be_makes_nothing() {
    let home = Home::new();
    let disks =
        "pool.disks = [{ path = 'f', class = 'fast', size = '1G' }, { path = 's', class = 'slow', size = '1G' }]\n";
    for (text, says) in
        [("demo = 5000\ntier.policy = 'off'\n", ":1:8: demo"), ("tier.single_disk = 's9'\n", "tier.single_disk")]
    {
        fs::write(home.path("kura.toml"), format!("{text}{disks}")).expect("a configuration");
        for line in [&["config", "check", "kura.toml"][..], &["serve", "--config", "kura.toml", "--nbd", "off"]] {
            let said = fails(&mut home.kura(line));
            assert!(said.contains(says) && said.lines().count() == 1, "{line:?}: {said}");
        }
        assert!(!home.path("f").exists() && !home.data().exists(), "something was made");
    }
}

/// A single fast disk may be named by any name that it has.
#[test]
fn a_single_fast_disk_may_be_named_by_a_link() {
    let home = Home::new();
    zeroes(&home.path("f"), 512 * MIB);
    std::os::unix::fs::symlink("f", home.path("link")).expect("a link");
    let text = "pool.journal = '16M'\npool.controllers = 1\ntier.single_disk = 'link'\n\
                pool.disks = [{ path = 'link', class = 'fast' }, { path = 's', class = 'slow', size = '1G' }]\n";
    fs::write(home.path("kura.toml"), text).expect("a configuration");
    let _server = home.serve_with(&["--config", "kura.toml"]);
    home.ok(&["tier", "status"]);
}

#[test]
fn a_command_ends_when_its_reader_has_gone() {
    let home = Home::new();
    let gone = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer
    };
    let done = home.kura(&["completions", "bash"]).stdout(gone()).stderr(Stdio::piped()).output().expect("kura");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.is_empty(), "{}: {said}", done.status);
    let _server = home.serve();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut follows = Started(
        kura().args(["tier", "moves", "--follow"]).current_dir(home.path("")).stdout(writer).spawn().expect("kura"),
    );
    std::thread::sleep(Duration::from_secs(1));
    assert!(follows.0.try_wait().expect("the command").is_none(), "it does not follow");
    drop(reader);
    eventually(SOON, "it ends", || follows.0.try_wait().expect("the command").is_some_and(|status| status.success()));
}

#[test]
fn what_was_done_before_an_error_is_told() {
    let home = Home::new();
    let _server = home.serve();
    let said = fails(&mut home.kura(&["pool", "grow", "a=4G", "a=4G"]));
    assert!(said.contains("1 of 2 disks were added before") && said.contains("is in the pool already"), "{said}");
    assert!(said.lines().count() == 1 && Path::new(&home.path("a")).exists(), "{said}");
    let said = fails(&mut home.kura(&["volume", "create", "v", "--size", "10X"]));
    assert!(said.contains("`kura volume create --help` tells more"), "{said}");
    let said = fails(&mut home.kura(&["volume", "show", ""]));
    assert!(said.contains("a name in it is empty"), "{said}");
}

#[test]
fn a_controller_without_a_journal_says_so() {
    let home = Home::new();
    let _server = home.serve();
    for disk in ["fast0", "fast1"] {
        let file = File::options().write(true).open(home.data().join("disks").join(disk)).expect("a disk");
        file.set_len(0).expect("a disk that is cut off");
    }
    let mut client = Client::connect(&home.socket(), "demo").expect("a connection");
    let says_so = || {
        let refused = client.call(WRITE, FUA, 0, 4096, &[7; 4096]).is_err();
        let said = home.ok(&["status"]);
        refused && said.contains(": takes no writes: no copy of controller") && said.contains("degraded")
    };
    eventually(SOON, "the status says so", says_so);
}
