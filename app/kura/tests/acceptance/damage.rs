//! Blocks that a disk has made something else of while no server ran: who reads them, and what repairs them.

use crate::clients::nbdsh;
use crate::commands::sparse;
use crate::harness::{Home, fails, ok, tool};
use crate::nbd::{Client, READ};
use crate::serving::json;
use serde_json::json as value;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const SLOW: [&str; 3] = ["s0", "s1", "s2"];

/// Without a fast tier: what has a copy there is not read where it was damaged.
const UNTIERED: [&str; 2] = ["--config", "kura.toml"];

/// A pool on which volumes `v0`, `v1`... were written, each with its byte from 8 MiB on; its server has stopped.
fn written(home: &Home, volumes: &[(&str, u8, &str)]) {
    sparse(home, &SLOW.map(|disk| format!("{disk}=256M")).each_ref().map(String::as_str));
    fs::write(home.path("kura.toml"), "tier.policy = 'off'\n").expect("a configuration");
    let mut server = home.serve_with(&UNTIERED);
    for (number, (layout, byte, len)) in volumes.iter().enumerate() {
        let name = format!("v{number}");
        home.ok(&["volume", "create", &name, "--size", "64M", "--layout", layout]);
        ok(tool("qemu-io").args(["-f", "raw", "-c", &format!("write -P {byte} 8M {len}"), &home.uri(&name)]));
    }
    assert!(server.stop().success());
}

/// Where a file has a block of this byte, if it has.
fn find(path: &Path, byte: u8) -> Option<u64> {
    let mut file = fs::File::open(path).expect("a disk");
    let mut piece = vec![0; 1 << 20];
    for at in (0u64..).step_by(1 << 20) {
        let len = file.read(&mut piece).expect("a disk");
        if len == 0 {
            return None;
        }
        let found = piece[..len].chunks(4096).position(|block| block == [byte; 4096]);
        if let Some(block) = found {
            return Some(at + block as u64 * 4096);
        }
    }
    None
}

/// The disks that have blocks of this byte, and where these begin.
fn places(home: &Home, byte: u8) -> Vec<(PathBuf, u64)> {
    let place = |disk| Some((home.path(disk), find(&home.path(disk), byte)?));
    SLOW.iter().copied().filter_map(place).collect()
}

/// Makes something else of a block.
fn damage((path, at): &(PathBuf, u64), block: u64) {
    let mut disk = fs::File::options().write(true).open(path).expect("a disk");
    disk.seek(SeekFrom::Start(at + block * 4096)).and_then(|_| disk.write_all(b"damage")).expect("a disk");
}

#[test]
fn a_client_reads_what_was_written_or_an_error() {
    let home = Home::new();
    written(&home, &[("mirror", 0xa7, "64k"), ("raid5", 0xb6, "4M"), ("none", 0xc5, "64k")]);
    // Of the mirror each copy has lost a half: there is no copy that a lucky reader could keep to.
    let copies = places(&home, 0xa7);
    assert_eq!(copies.len(), 2, "{copies:?}");
    for block in 0..8 {
        damage(&copies[0], block);
        damage(&copies[1], 8 + block);
    }
    damage(&places(&home, 0xb6)[0], 3);
    damage(&places(&home, 0xc5)[0], 2);

    let _server = home.serve_with(&UNTIERED);
    let read = |volume: &str, command: &str| ok(tool("qemu-io").args(["-f", "raw", "-c", command, &home.uri(volume)]));
    read("v0", "read -P 0xa7 8M 64k");
    read("v1", "read -P 0xb6 8M 4M");
    let told = json(&home, &["status"])["problems"].to_string();
    assert!(told.contains("with wrong checksums"), "nothing was damaged: {told}");
    let script = r#"
import errno
h.connect_uri(URI)
start, bad = 2**23, 2**23 + 2 * 4096
for at, length in ((bad, 4096), (bad + 100, 1), (start, 2**16), (bad - 1, 2)):
    try:
        h.pread(length, at)
    except nbd.Error as error:
        assert error.errnum == errno.EIO, error
    else:
        raise AssertionError((at, length))
for at, length in ((start, 2 * 4096), (bad + 4096, 13 * 4096)):
    assert h.pread(length, at) == b"\xc5" * length, at
# Nor in a piece of an answer that ends with the error.
pieces = []
try:
    h.pread_structured(2**16, start, lambda data, at, kind, error: pieces.append((kind, bytes(data))))
except nbd.Error as error:
    assert error.errnum == errno.EIO, error
else:
    raise AssertionError(pieces)
assert all(kind != nbd.READ_DATA or set(data) == {0xc5} for kind, data in pieces)
"#;
    nbdsh(&home.uri("v2"), script);
    let mut client = Client::connect(&home.socket(), "v2").expect("a connection");
    let refused = client.call(READ, 0, (8 << 20) + 2 * 4096, 4096, &[]).expect_err("damaged bytes");
    assert_eq!(refused.raw_os_error(), Some(5), "{refused}");
}

#[test]
fn a_check_tells_what_it_would_repair_and_repairs_it() {
    let home = Home::new();
    written(&home, &[("mirror", 0xa7, "64k"), ("raid5", 0xb6, "4M")]);
    // A block of a mirror, and one of a stripe.
    let damaged = [0xa7, 0xb6].map(|byte| places(&home, byte).swap_remove(0));
    for place in &damaged {
        damage(place, 0);
    }

    let mut server = home.serve_with(&UNTIERED);
    for _ in 0..2 {
        let output = home.kura(&["check", "--dry-run"]).output().expect("kura");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(1) && told.contains("2 to be repaired"), "{told}");
    }
    // Who follows the check is told as well, and who wants to hear of errors alone.
    let last =
        json(&home, &["job", "list"]).as_array().expect("jobs").iter().filter_map(|job| job["id"].as_u64()).max();
    let last = last.expect("a job").to_string();
    let output = home.kura(&["job", "follow", &last]).output().expect("kura");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && told.contains("2 to be repaired"), "{told}");
    let complaint = fails(&mut home.kura(&["check", "--dry-run", "-q"]));
    assert!(complaint.contains("2 to be repaired") && complaint.lines().count() == 1, "{complaint}");
    assert_eq!(json(&home, &["check"])["repaired"], 2);
    let told = json(&home, &["check", "--repair-plan"]);
    assert_eq!((&told["dry_run"], &told["repaired"]), (&value!(true), &value!(0)));
    assert!(server.stop().success());
    for (path, at) in &damaged {
        let (mut disk, mut start) = (fs::File::open(path).expect("a disk"), [0; 6]);
        disk.seek(SeekFrom::Start(*at)).and_then(|_| disk.read_exact(&mut start)).expect("a disk");
        assert_ne!(start, *b"damage");
    }
}
