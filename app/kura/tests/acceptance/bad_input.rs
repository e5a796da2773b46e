//! What goes wrong outside: a server neither hangs nor panics, says what is wrong, and serves who can be served.

use crate::harness::{Home, Server, eventually, fails, ok, tool, zeroes};
use crate::nbd::{Client, FLUSH, FUA, READ, WRITE};
use crate::serving::json;
use serde_json::Value;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;

#[test]
fn a_data_directory_has_one_server() {
    let home = Home::new();
    let server = home.serve();
    let complaint = fails(&mut home.kura(&["serve", "--nbd", "127.0.0.1:0", "--s3", "off", "--admin", "127.0.0.1:0"]));
    let pid = server.pid().to_string();
    assert!(complaint.contains("kura-data") && complaint.contains(&pid), "who holds it? {complaint}");
    assert_eq!(ok(tool("nbdinfo").args(["--size", &home.uri("demo")])).trim(), (1 << 30).to_string());
}

#[test]
fn a_configuration_is_told_what_is_wrong_with_it() {
    let home = Home::new();
    let cases = [
        ("[nbd]\nlistn = \"127.0.0.1:0\"\n", "2:", "listen"),
        ("demo = \"10 apples\"\n", "1:", "demo"),
        ("[nbd]\nlisten = \"0.0.0.0:10809\"\n", "2:", "[nbd.tls]"),
        ("[admin]\nlisten = \"0.0.0.0:7400\"\n", "2:", "token"),
        ("\n\n[pool\n", "3:", "kura.toml"),
    ];
    for (text, line, remedy) in cases {
        fs::write(home.path("kura.toml"), text).expect("the configuration");
        for args in [["config", "check", "kura.toml"], ["serve", "--config", "kura.toml"]] {
            let complaint = fails(&mut home.kura(&args));
            let says = format!("kura.toml:{line}");
            assert!(complaint.contains(&says) && complaint.contains(remedy), "{args:?} of {text:?}: {complaint}");
        }
    }
    assert!(!home.data().exists(), "a server that is refused makes nothing");
    fs::write(home.path("kura.toml"), "demo = \"64M\"\n").expect("the configuration");
    home.ok(&["config", "check", "kura.toml"]);
    fs::write(home.path("kura.toml"), home.ok(&["config", "example"])).expect("the configuration");
    home.ok(&["config", "check", "kura.toml"]);
}

#[test]
fn hostile_bytes_harm_nobody_else() {
    let home = Home::new();
    let mut server = home.serve();
    let mut good = Client::connect(&home.socket(), "demo").expect("a connection");
    good.call(WRITE, 0, 0, 4096, &[9; 4096]).expect("a write");
    let open_files = || fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("its open files").count();
    let before = open_files();
    drop(hostile(&home));
    eventually(Duration::from_mins(1), "what they had open is closed", || open_files() <= before);
    let _half_open = hostile(&home);
    assert!(open_files() > before, "the count does not see them");
    assert_eq!(good.call(READ, 0, 0, 4096, &[]).expect("the good client is served"), [9; 4096]);
    assert!(Client::connect(&home.socket(), "demo").is_ok(), "new clients are served");
    assert!(server.stop().success(), "half open connections do not hold a stop up");
}

/// Connections on which hostile bytes were sent, open as far as the server keeps them so.
fn hostile(home: &Home) -> Vec<UnixStream> {
    let hostile: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 4096],
        &[0, 0, 0, 3],
        // Options: a length beyond reason, an unknown one, and half of one.
        b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff",
        b"\0\0\0\x03IHAVEOPT\xde\xad\xbe\xef\0\0\0\x04abcd",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04de",
    ];
    let mut half_open = Vec::new();
    for bytes in hostile {
        let mut stream = UnixStream::connect(home.socket()).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        // The server may close at any point of this.
        let _ = stream.write_all(bytes);
        let _ = stream.read(&mut [0; 4096]);
        half_open.push(stream);
    }
    // In transmission: a wrong magic, an unknown command, a write that is longer than anything allowed.
    for request in [[0xffu8; 28], bad_request(99, 0), bad_request(WRITE, u32::MAX)] {
        let mut client = Raw::connect(home);
        let _ = client.0.write_all(&request);
        let _ = client.0.read(&mut [0; 64]);
        half_open.push(client.0);
    }
    half_open
}

/// A request as `nbd.rs` would not send it.
fn bad_request(command: u16, len: u32) -> [u8; 28] {
    let mut request = [0; 28];
    request[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
    request[6..8].copy_from_slice(&command.to_be_bytes());
    request[24..].copy_from_slice(&len.to_be_bytes());
    request
}

/// A connection in transmission, negotiated by the oldest option.
struct Raw(UnixStream);

impl Raw {
    fn connect(home: &Home) -> Self {
        let mut stream = UnixStream::connect(home.socket()).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_mins(1))).expect("a timeout");
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04demo").expect("EXPORT_NAME");
        stream.read_exact(&mut [0; 18 + 10]).expect("the greeting and the export's size and flags");
        // The server may have nothing to say to what comes now.
        stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        Self(stream)
    }
}

/// A file system of its own, which can be full without harm; unmounted when dropped.
struct SmallFileSystem {
    mount: PathBuf,
}

impl SmallFileSystem {
    fn new(home: &Home, size_bytes: u64) -> Self {
        let (image, mount) = (home.path("small.ext4"), home.data());
        zeroes(&image, size_bytes);
        ok(tool("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image));
        fs::create_dir_all(&mount).expect("a mount point");
        ok(tool("mount").args(["-o", "loop"]).arg(&image).arg(&mount));
        Self { mount }
    }

    fn fill(&self) -> PathBuf {
        let file = self.mount.join("ballast");
        // Ends when nothing is left, which is what is wanted.
        let _ = std::io::copy(&mut std::io::repeat(1), &mut fs::File::create(&file).expect("ballast"));
        file
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = tool("umount").arg("--lazy").arg(&self.mount).status();
    }
}

#[test]
fn a_full_disk_is_an_error_to_the_client_and_nothing_worse() {
    let home = Home::new();
    let disk = SmallFileSystem::new(&home, 1024 * MIB);
    let mut server = home.serve();
    let mut client = Client::connect(&home.socket(), "demo").expect("a connection");
    client.call(WRITE, FUA, 0, 4096, &[1; 4096]).expect("a write while there is room");
    let ballast = disk.fill();
    let megabyte = vec![2; MIB as usize];
    let mut failed = false;
    for at in 1..1024 {
        let written = client.call(WRITE, 0, at * MIB, MIB as u32, &megabyte);
        let flushed = written.and_then(|_| client.call(FLUSH, 0, 0, 0, &[]));
        if let Err(error) = flushed {
            assert!(error.raw_os_error().is_some(), "the connection broke: {error}");
            failed = true;
            break;
        }
    }
    assert!(failed, "a GiB went into a full file system");
    assert!(server.is_alive());
    assert_eq!(client.call(READ, 0, 0, 4096, &[]).expect("a read while the disk is full"), [1; 4096]);
    drop(client);
    // It may say that not all of it could be written; it may not hang.
    server.stop();
    fs::remove_file(ballast).expect("making room");
    let _server = home.serve();
    let mut client = Client::connect(&home.socket(), "demo").expect("a connection");
    assert_eq!(client.call(READ, 0, 0, 4096, &[]).expect("a read after it all"), [1; 4096]);
    client.call(WRITE, FUA, 512 * MIB, 4096, &[3; 4096]).expect("a write after room was made");
    home.ok(&["check"]);
}

/// The files of the pool's disks of which `wanted` holds.
fn disks(home: &Home, wanted: impl Fn(&Value) -> bool) -> Vec<PathBuf> {
    let list = json(home, &["disk", "list"]);
    let disks = list.as_array().expect("disks").iter().filter(|disk| wanted(disk));
    disks.map(|disk| home.path("").join(disk["path"].as_str().expect("a path"))).collect()
}

/// Those that hold data.
fn slow_disks(home: &Home) -> Vec<PathBuf> {
    disks(home, |disk| disk["class"] == "slow")
}

fn truncate(path: &Path, size_bytes: u64) {
    fs::File::options().write(true).open(path).and_then(|file| file.set_len(size_bytes)).expect("truncate");
}

#[test]
fn a_device_that_shrinks_under_the_server_fails_and_the_mirror_serves() {
    let home = Home::new();
    let mut server = home.serve();
    home.ok(&["volume", "create", "safe", "--size", "256M", "--layout", "mirror"]);
    let mut client = Client::connect(&home.socket(), "safe").expect("a connection");
    let megabyte = |at: u64| vec![(at % 251) as u8 + 1; MIB as usize];
    for at in 0..256 {
        client.call(WRITE, 0, at * MIB, MIB as u32, &megabyte(at)).expect("a write");
    }
    client.call(FLUSH, 0, 0, 0, &[]).expect("a flush");
    truncate(&slow_disks(&home)[0], 0);
    for at in 0..256 {
        let found = client.call(READ, 0, at * MIB, MIB as u32, &[]).expect("the other copy");
        assert!(found == megabyte(at), "the megabyte at {at} is not what was written");
    }
    for at in 0..256 {
        client.call(WRITE, 0, at * MIB, MIB as u32, &megabyte(at + 1)).expect("a write");
    }
    client.call(FLUSH, 0, 0, 0, &[]).expect("a flush");
    eventually(Duration::from_mins(1), "the pool says that it is degraded", || {
        json(&home, &["status"])["health"] == "degraded"
    });
    assert!(server.stop().success());
    // What is left of the device is no device of the pool: the next start says so, and serves.
    let _server = home.serve();
    let mut client = Client::connect(&home.socket(), "safe").expect("a connection");
    for at in 0..256 {
        let found = client.call(READ, 0, at * MIB, MIB as u32, &[]).expect("the other copy");
        assert!(found == megabyte(at + 1), "the megabyte at {at} is not what was written last");
    }
}

#[test]
fn a_device_that_is_gone_at_the_start_is_missed() {
    let home = Home::new();
    let mut server = home.serve();
    home.ok(&["volume", "create", "safe", "--size", "64M", "--layout", "mirror", "--thick"]);
    let mut client = Client::connect(&home.socket(), "safe").expect("a connection");
    client.call(WRITE, FUA, 0, MIB as u32, &vec![5; MIB as usize]).expect("a write");
    let gone = slow_disks(&home).swap_remove(0);
    assert!(server.stop().success());
    fs::remove_file(&gone).expect("removing a disk");
    // Also where it is listed: the list says where to look, and the pool what is missing.
    let listed = format!("pool.disks = [{{ path = '{}', class = 'slow' }}]\n", gone.display());
    fs::write(home.path("kura.toml"), listed).expect("the configuration");
    home.ok(&["config", "check", "kura.toml"]);
    let _server = home.serve_with(&["--config", "kura.toml"]);
    let name = gone.file_name().expect("a name").to_string_lossy().into_owned();
    let status = json(&home, &["status"]);
    assert_eq!(status["health"], "degraded");
    assert!(status["problems"].to_string().contains(&name), "which disk? {}", status["problems"]);
    let mut client = Client::connect(&home.socket(), "safe").expect("a connection");
    assert_eq!(client.call(READ, 0, 0, 4096, &[]).expect("a read"), [5; 4096]);
}

#[test]
fn a_start_gives_up_no_only_copy_unasked() {
    let home = Home::new();
    let mut server = home.serve();
    home.ok(&["volume", "create", "plain", "--size", "64M", "--layout", "none", "--thick"]);
    home.ok(&["volume", "create", "safe", "--size", "64M", "--layout", "mirror"]);
    let megabyte = |at: u64| vec![at as u8 + 1; MIB as usize];
    for name in ["plain", "safe"] {
        let mut client = Client::connect(&home.socket(), name).expect("a connection");
        for at in 0..64 {
            client.call(WRITE, 0, at * MIB, MIB as u32, &megabyte(at)).expect("a write");
        }
        client.call(FLUSH, 0, 0, 0, &[]).expect("a flush");
    }
    let disk = slow_disks(&home).swap_remove(0);
    let shelf = home.path("a-shelf-that-is-off");
    // Once after a crash, once after a stop that left nothing in the journals.
    for crashes in [true, false] {
        if crashes {
            server.kill();
        } else {
            assert!(server.stop().success());
        }
        fs::rename(&disk, &shelf).expect("a disk that goes");
        let why = refused(&home);
        assert!(why.contains("lie nowhere else") && why.contains("plain") && why.contains("--degraded"), "{why}");
        assert!(!why.contains("safe"), "{why}");
        fs::rename(&shelf, &disk).expect("a disk that comes back");
        server = home.serve();
        assert_eq!(json(&home, &["status"])["health"], "healthy");
        let mut client = Client::connect(&home.socket(), "plain").expect("a connection");
        for at in 0..64 {
            let found = client.call(READ, 0, at * MIB, MIB as u32, &[]).expect("a read");
            assert!(found == megabyte(at), "the megabyte at {at} is not what was written");
        }
    }
    assert!(server.stop().success());
    fs::rename(&disk, &shelf).expect("a disk that goes");
    let _server = home.serve_with(&["--degraded"]);
    let status = json(&home, &["status"]);
    assert!(status["problems"].to_string().contains("only copy"), "{}", status["problems"]);
    let mut client = Client::connect(&home.socket(), "safe").expect("a connection");
    for at in 0..64 {
        assert!(client.call(READ, 0, at * MIB, MIB as u32, &[]).expect("a read") == megabyte(at));
    }
    let mut client = Client::connect(&home.socket(), "plain").expect("a connection");
    let mut lost = 0;
    for at in 0..64 {
        match client.call(READ, 0, at * MIB, MIB as u32, &[]) {
            Ok(found) => assert!(found == megabyte(at), "the megabyte at {at} is not what was written"),
            Err(error) => {
                assert!(error.raw_os_error().is_some(), "the connection broke: {error}");
                lost += 1;
            }
        }
    }
    assert!(lost > 0 && lost < 64, "{lost} of 64 megabytes lay on one of the disks");
}

/// Starts a server that must refuse, and returns its complaint.
fn refused(home: &Home) -> String {
    let mut server: Server = home.spawn(&[]);
    let status = server.wait(Duration::from_mins(2)).expect("a server that cannot serve ends");
    assert_eq!(status.code(), Some(1), "{}", server.log());
    assert!(!server.log().contains("panicked"), "{}", server.log());
    server.log()
}

#[test]
fn disks_of_another_version_are_refused_and_kept() {
    let home = Home::new();
    let mut server = home.serve();
    let paths = disks(&home, |_| true);
    assert!(server.stop().success());
    for path in &paths {
        let mut disk = fs::File::options().read(true).write(true).open(path).expect("a disk");
        for slot in [0, 4096] {
            let mut label = [0; 4096];
            disk.seek(SeekFrom::Start(slot)).and_then(|_| disk.read_exact(&mut label)).expect("a label");
            // docs/format.md: the version stands at 12 and the checksum at 8, computed with itself as zero.
            label[12..16].copy_from_slice(&99u32.to_le_bytes());
            label[8..12].fill(0);
            let checksum = crc32c::crc32c(&label);
            label[8..12].copy_from_slice(&checksum.to_le_bytes());
            disk.seek(SeekFrom::Start(slot)).and_then(|_| disk.write_all(&label)).expect("a label");
        }
    }
    let sum = || ok(tool("sha256sum").arg(&paths[0]));
    let before = sum();
    let complaint = refused(&home);
    assert!(complaint.contains("99"), "which version? {complaint}");
    assert_eq!(sum(), before, "a server that refuses writes nothing");
}

#[test]
fn a_data_directory_of_another_version_is_refused_and_kept() {
    let home = Home::new();
    let mut server = home.serve();
    assert!(server.stop().success());
    let version = home.data().join("version");
    let ours = fs::read_to_string(&version).expect("a version");
    let written = || disk_files(&home).map(|file| fs::metadata(file).and_then(|file| file.modified()).expect("a time"));
    let before: Vec<_> = written().collect();
    for theirs in ["kura data 2\n", "kura data 0\n", "", "kura data 1", "\u{feff}kura data 1\n"] {
        fs::write(&version, theirs).expect("another version");
        let complaint = refused(&home);
        let both = format!("it says {:?}, this kura reads {:?}", theirs.trim(), ours.trim());
        let is_told = [&both, "kura-data", "--data"].iter().all(|words| complaint.contains(words));
        assert!(is_told && complaint.trim_end().lines().count() == 1, "{theirs:?}: {complaint}");
        assert_eq!(fs::read_to_string(&version).expect("a version"), theirs);
        assert!(written().eq(before.iter().copied()), "a server that refuses writes nothing");
    }
    fs::write(&version, ours).expect("our version");
    home.serve();
}

/// The pool's disks, and what tells where they are.
fn disk_files(home: &Home) -> impl Iterator<Item = PathBuf> {
    let disks = fs::read_dir(home.data().join("disks")).expect("the disks");
    disks.map(|disk| disk.expect("a disk").path()).chain([home.data().join("disks.json")])
}

#[test]
fn garbage_in_place_of_the_disks_is_refused_and_kept() {
    let home = Home::new();
    let mut server = home.serve();
    let paths = disks(&home, |_| true);
    assert!(server.stop().success());
    for path in &paths {
        let mut file = fs::File::options().write(true).open(path).expect("a disk");
        file.write_all(&vec![0xa5; 2 * MIB as usize]).expect("garbage");
    }
    let complaint = refused(&home);
    assert!(complaint.contains("kura-data"), "{complaint}");
    let mut start = [0; 4096];
    fs::File::open(&paths[0]).and_then(|mut file| file.read_exact(&mut start)).expect("a disk");
    assert_eq!(start, [0xa5; 4096], "a server that refuses writes nothing");
}
