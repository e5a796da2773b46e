//! Disks that fail, leave and are replaced under a server that is used, and killed.

use crate::array::fio;
use crate::clients::nbdsh;
use crate::harness::{Home, Server, eventually, fails, ok, tool};
use crate::serving::json;
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Random bytes, and a volume of the same size that holds them.
fn volume_of(home: &Home, size_mib: u64) -> PathBuf {
    let source = home.path("source");
    let (file, count) = (format!("of={}", source.display()), format!("count={size_mib}"));
    ok(tool("dd").args(["if=/dev/urandom", &file, "bs=1M", &count]));
    home.ok(&["volume", "create", "v", "--size", &format!("{size_mib}M"), "--layout", "mirror"]);
    ok(tool("nbdcopy").arg("--flush").arg(&source).arg(home.uri("v")));
    source
}

fn same(home: &Home, source: &Path) {
    let copy = home.path("copy");
    // nbdcopy wants a file that is not there yet, or that is as large.
    let _ = std::fs::remove_file(&copy);
    ok(tool("nbdcopy").arg(home.uri("v")).arg(&copy));
    ok(tool("cmp").arg(source).arg(&copy));
}

fn disks(home: &Home) -> Vec<Value> {
    json(home, &["disk", "list"]).as_array().expect("a list").clone()
}

fn ids(home: &Home) -> Vec<u64> {
    disks(home).iter().map(|disk| disk["id"].as_u64().expect("a number")).collect()
}

fn disk(home: &Home, id: u64) -> Value {
    disks(home).into_iter().find(|disk| disk["id"] == id).expect("the disk")
}

/// Bytes on a disk that a rebuild has still to move.
fn to_move(home: &Home, id: u64) -> u64 {
    disk(home, id)["unwanted_bytes"].as_u64().expect("bytes")
}

#[test]
fn what_a_failed_disk_held_is_copied_anew_through_kills_and_then_another_may_fail() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "pool.rebuild_rate = '4M'\n").expect("a configuration");
    let slow = ["--config", "kura.toml"];
    let mut server = home.serve_with(&slow);
    let source = volume_of(&home, 192);
    home.ok(&["disk", "fail", "3"]);
    let all = to_move(&home, 3);
    assert!(all >= 32 * MIB, "{all} bytes on disk 3");
    let status = home.ok(&["status"]);
    assert!(status.contains("still to be copied"), "{status}");
    for quarters in [3, 2] {
        eventually(Duration::from_mins(2), "the rebuild goes on", || to_move(&home, 3) <= all / 4 * quarters);
        server.kill();
        server = home.serve_with(&slow);
    }
    assert!(to_move(&home, 3) > 0, "the kills came in its middle");
    server.kill();
    let _server = home.serve();
    nbdsh(&home.uri("v"), "h.connect_uri(URI); h.pwrite(b'K' * 4096, 12345); h.flush()");
    eventually(Duration::from_mins(2), "the rebuild ends", || to_move(&home, 3) == 0);
    home.ok(&["disk", "fail", "5"]);
    eventually(Duration::from_mins(2), "the second one ends", || to_move(&home, 5) == 0);
    home.ok(&["disk", "fail", "2"]);
    let check = home.ok(&["check"]);
    assert!(check.contains("all is well"), "{check}");
    let put_back = format!(
        "h.connect_uri(URI); assert h.pread(4096, 12345) == b'K' * 4096
f = open({:?}, 'rb'); f.seek(12345); h.pwrite(f.read(4096), 12345); h.flush()",
        source.display().to_string()
    );
    nbdsh(&home.uri("v"), &put_back);
    same(&home, &source);
}

#[test]
fn disks_of_both_classes_are_replaced_while_they_serve() {
    let home = Home::new();
    let mut server = home.serve();
    let source = volume_of(&home, 64);
    let refused = fails(&mut home.kura(&["disk", "remove", "1"]));
    assert!(refused.contains("carries journals") && refused.contains("add one"), "{refused}");
    let said = home.ok(&["disk", "replace", "1", "fast9", "--size", "512M"]);
    assert!(said.contains("has left the pool"), "{said}");
    home.ok(&["disk", "replace", "4", "slow9", "--size", "4G"]);
    assert_eq!(ids(&home), [0, 2, 3, 5, 6, 7, 8, 9]);
    let carriers: Vec<u64> =
        disks(&home).iter().filter_map(|disk| disk["journals"].as_u64()).filter(|n| *n > 0).collect();
    assert_eq!(carriers.len(), 2);
    // The journals on the new disk have their space: the file system may be full when they want it.
    let taken = std::fs::metadata(home.path("fast9")).expect("a disk").blocks() * 512;
    assert!(taken >= carriers[1] * 64 * MIB, "{taken} bytes are taken");
    // What has left becomes blank, and is not asked for again.
    for gone in ["fast1", "slow2"] {
        let gone = home.data().join("disks").join(gone);
        eventually(Duration::from_mins(2), "what has left is blank", || {
            let compared = tool("cmp").arg("--bytes=8192").arg(&gone).arg("/dev/zero").output();
            compared.is_ok_and(|compared| compared.status.success())
        });
        std::fs::remove_file(gone).expect("a disk nobody has any more");
    }
    server.kill();
    let mut server = home.serve();
    assert_eq!(ids(&home), [0, 2, 3, 5, 6, 7, 8, 9]);
    let status = home.ok(&["status"]);
    assert!(status.contains("health  healthy"), "{status}");
    same(&home, &source);
    // The new journal disk is a whole one: without its partner nothing is missing.
    home.ok(&["disk", "fail", "0"]);
    nbdsh(&home.uri("v"), "h.connect_uri(URI); h.pwrite(b'J' * 4096, 0, nbd.CMD_FLAG_FUA)");
    server.kill();
    std::fs::remove_file(home.data().join("disks").join("fast0")).expect("the partner");
    let _server = home.serve();
    nbdsh(&home.uri("v"), "h.connect_uri(URI); assert h.pread(4096, 0) == b'J' * 4096");
}

#[test]
fn what_cannot_leave_says_why() {
    let home = Home::new();
    let _server = home.serve();
    home.ok(&["volume", "create", "one", "--size", "64M", "--layout", "none", "--thick"]);
    let lost = |home: &Home| disks(home).into_iter().find(|disk| disk["lost_bytes"].as_u64() > Some(0));
    let mut refused = 0;
    for failed in 2_u64..5 {
        let id = failed.to_string();
        let only = home.kura(&["disk", "fail", &id]).output().expect("kura");
        if !only.status.success() {
            // It has the only copy of something: named, and nothing has happened.
            let said = String::from_utf8_lossy(&only.stderr);
            assert!(said.contains("has the only copy of") && said.contains("MiB of volumes one: "), "{said}");
            assert!(said.contains("--force") && said.lines().count() == 1, "{said}");
            assert!(fails(&mut home.kura(&["disk", "fail", &id, "--dry-run"])).contains("only copy"));
            let disk = disks(&home).into_iter().find(|disk| disk["id"] == failed).expect("the disk");
            assert_eq!(disk["state"], "healthy");
            let said = fails(&mut home.kura(&["disk", "fail", &id, "--force", "--wait"]));
            assert!(said.contains("had the only copy of") && said.contains("all else"), "{said}");
            refused += 1;
        }
        // Other volumes have another copy, of which they have two again before the next one fails.
        eventually(Duration::from_mins(2), "what has another copy is copied", || {
            let disks = disks(&home);
            let disk = disks.iter().find(|disk| disk["id"] == failed).expect("the disk");
            disk["unwanted_bytes"] == disk["lost_bytes"]
        });
    }
    assert!(refused > 0, "a volume with one copy of each extent lay on none of three disks");
    let lost = lost(&home).expect("a disk that had the only copy of something")["id"].to_string();
    let status = home.ok(&["status"]);
    assert!(status.contains("had their only copy on it"), "{status}");
    let id: u64 = lost.parse().expect("a number");
    let lost_bytes = |home: &Home| disks(home).iter().find(|disk| disk["id"] == id)?["lost_bytes"].as_u64();
    eventually(Duration::from_mins(1), "the rest of it is elsewhere", || Some(to_move(&home, id)) == lost_bytes(&home));
    let said = fails(&mut home.kura(&["disk", "remove", &lost]));
    assert!(said.contains("only copy"), "{said}");
    home.ok(&["volume", "delete", "one"]);
    // It was told to leave, and does when nothing is left on it.
    eventually(Duration::from_mins(1), "it leaves", || !disks(&home).iter().any(|disk| disk["id"] == id));
    for args in [&["disk", "remove", "99"][..], &["disk", "replace", "99", "nowhere"]] {
        let said = fails(&mut home.kura(args));
        assert!(said.contains("disk 99: no such disk"), "{said}");
    }
}

#[test]
fn the_last_disk_that_carries_the_journals_does_not_fail_by_hand() {
    let home = Home::new();
    let slow = (0..3).flat_map(|at| ["--slow".into(), format!("d{at}=1G")]);
    let args: Vec<_> =
        ["pool", "create", "--single-fast", "--fast", "f=512M"].map(String::from).into_iter().chain(slow).collect();
    home.ok(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let _server = home.serve();
    for more in [&[][..], &["--force"], &["--dry-run"]] {
        let said = fails(&mut home.kura(&[&["disk", "fail", "0"][..], more].concat()));
        assert!(said.contains("carries the only copy of the journals"), "{said}");
    }
    home.ok(&["volume", "create", "still-served", "--size", "16M"]);
}

/// Who stops the server for a while, as one freezes a container, finds all disks in service.
#[test]
fn a_server_that_is_stopped_for_a_while_takes_no_disk_for_dead() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "pool.disk_timeout_s = 3\n").expect("a configuration");
    let server = home.serve_with(&["--config", "kura.toml"]);
    home.ok(&["volume", "create", "v", "--size", "128M"]);
    let mut load = fio(&home, "during", "0");
    load.args(["--do_verify=0", "--fsync=4", "--time_based", "--runtime=15"]);
    let mut load = load.stdout(Stdio::null()).spawn().expect("fio");
    let signal = |name: &str| ok(tool("kill").args([name, &server.pid().to_string()]));
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(500));
        signal("-STOP");
        std::thread::sleep(Duration::from_secs(4));
        signal("-CONT");
    }
    assert!(load.wait().expect("fio").success());
    let disks = disks(&home);
    assert!(disks.iter().all(|disk| disk["state"] == "healthy"), "{disks:#?}");
}

/// True while the server has the file open.
fn has_open(server: &Server, file: &Path) -> bool {
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("the server's files");
    open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).any(|at| at == file)
}

#[test]
fn a_disk_that_has_left_is_anybodys_at_once() {
    let home = Home::new();
    let server = home.serve();
    let disk = home.data().join("disks").join("slow4").canonicalize().expect("a disk");
    let path = disk.to_str().expect("UTF-8");
    assert!(has_open(&server, &disk));
    let said = fails(&mut home.kura(&["disk", "add", path, "--class", "slow"]));
    assert!(said.contains("is in the pool already"), "{said}");
    home.ok(&["disk", "remove", "6"]);
    eventually(Duration::from_mins(1), "it is closed", || !has_open(&server, &disk));
    ok(tool("flock").args(["--exclusive", "--nonblock", path, "true"]));
    home.ok(&["disk", "add", path, "--class", "slow"]);
    // One that failed has its label still.
    home.ok(&["disk", "fail", "8"]);
    home.ok(&["disk", "remove", "8"]);
    eventually(Duration::from_mins(1), "it is closed, too", || !has_open(&server, &disk));
    home.ok(&["disk", "add", path, "--class", "slow", "--force"]);
    assert_eq!(ids(&home), [0, 1, 2, 3, 4, 5, 7, 9]);
}

/// A disk that has left may be anything since, and the name of one that is broken may lead nowhere.
#[test]
fn what_became_of_listed_disks_keeps_no_server_from_starting() {
    let home = Home::new();
    let listed = |name: &str| {
        let (class, size) = if name.starts_with('f') { ("fast", "256M") } else { ("slow", "512M") };
        format!("{{ path = '{name}', class = '{class}', size = '{size}' }}")
    };
    let disks = ["f0", "f1", "s0", "s1", "s2", "s3"].map(listed).join(", ");
    std::fs::write(home.path("kura.toml"), format!("pool.journal = '16M'\npool.disks = [{disks}]\n"))
        .expect("a configuration");
    let listed = ["--config", "kura.toml"];
    let mut server = home.serve_with(&listed);
    home.ok(&["disk", "remove", "5"]);
    assert!(server.stop().success());
    // It is blank.
    let mut server = home.serve_with(&listed);
    assert_eq!(json(&home, &["status"])["health"], "healthy");
    assert!(server.log().contains("is not a disk of the pool"), "{}", server.log());
    assert!(server.stop().success());
    // Somebody else has it; and another one is there, and cannot be opened.
    let other = std::fs::File::open(home.path("s3")).expect("a file");
    other.lock().expect("nobody else has it");
    std::fs::remove_file(home.path("s2")).expect("a disk");
    let _socket = UnixListener::bind(home.path("s2")).expect("what is no disk");
    for is_pipe in [false, true] {
        if is_pipe {
            // To open it is to wait for who writes to it.
            std::fs::remove_file(home.path("s2")).expect("the socket");
            ok(tool("mkfifo").arg(home.path("s2")));
        }
        let _server = home.serve_with(&listed);
        assert_eq!(ids(&home), [0, 1, 2, 3, 4]);
        let missing = disk(&home, 4);
        assert_eq!((&missing["state"], missing["path"].as_str()), (&"missing".into(), home.path("s2").to_str()));
    }
}

#[test]
fn a_missing_disk_that_leaves_keeps_its_name() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "pool.rebuild_rate = '1M'\n").expect("a configuration");
    let slow = ["--config", "kura.toml"];
    let mut server = home.serve_with(&slow);
    volume_of(&home, 64);
    assert!(server.stop().success());
    let path = home.data().join("disks").join("slow1");
    std::fs::remove_file(&path).expect("a disk");
    for _ in 0..2 {
        server = home.serve_with(&slow);
        home.ok(&["disk", "remove", "3", "--no-wait"]);
        let leaving = disk(&home, 3);
        assert_eq!((&leaving["state"], leaving["path"].as_str()), (&"leaving".into(), path.to_str()));
        server.kill();
    }
}
