//! Clients who take all they can get: the others, and the doors beside theirs, do not suffer.

use crate::harness::{Home, Server, ok, tool};
use crate::nbd::{Client, FLUSH, READ, WRITE};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// `EXPORT_NAME demo`, after the flags.
const CHOOSE: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04demo";

/// A client of the TCP address past its handshake, if the server serves it in time.
fn served(port: u16, time: Duration) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(time)).expect("a timeout");
    stream.write_all(CHOOSE).ok()?;
    stream.read_exact(&mut [0; 18 + 10]).ok()?;
    // Told that it may go on it is; served it is once a read comes back.
    stream.write_all(&request(READ, 512)).ok()?;
    stream.read_exact(&mut [0; 16 + 512]).ok()?;
    Some(stream)
}

fn request(command: u16, len: u32) -> [u8; 28] {
    let mut request = [0; 28];
    request[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
    request[6..8].copy_from_slice(&command.to_be_bytes());
    request[24..].copy_from_slice(&len.to_be_bytes());
    request
}

/// Bytes of the server that are in memory.
fn resident_bytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the server's status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") << 10
}

#[test]
fn more_clients_than_descriptors_leave_some_for_all_else() {
    let home = Home::new();
    let server = home.serve_with(&["--log", "info"]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).expect("the server's limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("that on files");
    let mut numbers = files.split_whitespace().skip(3);
    assert_eq!(numbers.next(), numbers.next(), "it takes what it may have: {files}");
    drop(server);

    let server = home.serve_limited(256);
    assert!(server.log().contains("may open only 256 files"), "{}", server.log());
    let port = server.port("nbd");
    let mut idle = Vec::new();
    for _ in 0..150 {
        idle.push(TcpStream::connect(("127.0.0.1", port)).expect("a connection"));
    }
    for stream in &mut idle {
        let _ = stream.write_all(CHOOSE);
    }
    for _ in 0..150 {
        idle.push(TcpStream::connect(("127.0.0.1", port)).expect("a connection"));
    }
    for _ in 0..5 {
        home.ok(&["status"]);
        home.ok(&["snapshot", "schedule", "list"]);
    }
    let more = home.path("more");
    home.ok(&["disk", "add", more.to_str().expect("a path"), "--class", "slow", "--size", "256M"]);
    let mut client = Client::connect(&home.socket(), "demo").expect("the socket has places of its own");
    client.call(WRITE, 0, 0, 4096, &[1; 4096]).expect("a write");
    assert!(!server.log().contains("cannot accept"), "{}", server.log());
}

#[test]
fn who_only_connects_keeps_nobody_out() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "[nbd]\nconnections = 2\n").expect("the configuration");
    let server = home.serve_with(&["--config", "kura.toml"]);
    let port = server.port("nbd");
    let _silent: Vec<_> = (0..200).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("a connection")).collect();
    let all = [(); 2].map(|()| served(port, Duration::from_secs(30)));
    assert!(all.iter().all(Option::is_some), "silent connections take no places");
    assert!(served(port, Duration::from_secs(1)).is_none(), "there are two places");
    // They are those of the address: the socket has its own.
    let mut local = Client::connect(&home.socket(), "demo").expect("a connection");
    local.call(WRITE, 0, 0, 4096, &[1; 4096]).expect("a write");
    ok(tool("nbdinfo").args(["--size", &home.uri("demo")]));
}

#[test]
fn writes_that_stall_take_no_more_memory_than_there_is_for_writes() {
    let home = Home::new();
    let server = home.serve();
    let before = resident_bytes(&server);
    let mut stalled = Vec::new();
    let most = vec![7; 63 * MIB as usize];
    // 756 MiB, as far as the server takes them.
    for _ in 0..12 {
        let mut stream = UnixStream::connect(home.socket()).expect("a connection");
        stream.write_all(CHOOSE).expect("EXPORT_NAME");
        stream.read_exact(&mut [0; 18 + 10]).expect("the greeting and the export's size and flags");
        stream.write_all(&request(WRITE, 64 << 20)).expect("a header");
        stream.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let _ = stream.write_all(&most);
        stalled.push(stream);
    }
    let grown = resident_bytes(&server).saturating_sub(before);
    assert!(grown < 400 * MIB, "{} MiB", grown / MIB);
    let mut good = Client::connect(&home.socket(), "demo").expect("a connection");
    good.call(WRITE, 0, 0, 4096, &[3; 4096]).expect("a small write has memory of its own");
    good.call(WRITE, 0, 0, 2 * MIB as u32, &vec![9; 2 * MIB as usize])
        .expect("a write, once the others had their time");
    good.call(FLUSH, 0, 0, 0, &[]).expect("a flush");
    assert_eq!(good.call(READ, 0, MIB, 4096, &[]).expect("a read"), [9; 4096]);
}

#[test]
fn reads_that_nobody_takes_have_no_more_memory_than_there_is_for_them() {
    let home = Home::new();
    let server = home.serve();
    let mut good = Client::connect(&home.socket(), "demo").expect("a connection");
    for at in 0..64 {
        good.call(WRITE, 0, at * MIB, MIB as u32, &vec![at as u8 + 1; MIB as usize]).expect("a write");
    }
    good.call(FLUSH, 0, 0, 0, &[]).expect("a flush");
    let before = resident_bytes(&server);
    // 768 MiB, of which nobody takes anything.
    let stalled: Vec<UnixStream> = (0..12)
        .map(|_| {
            let mut stream = UnixStream::connect(home.socket()).expect("a connection");
            stream.write_all(CHOOSE).expect("EXPORT_NAME");
            stream.read_exact(&mut [0; 18 + 10]).expect("the greeting and the export's size and flags");
            stream.write_all(&request(READ, 64 << 20)).expect("a read");
            std::thread::sleep(Duration::from_millis(200));
            stream
        })
        .collect();
    let grown = resident_bytes(&server).saturating_sub(before);
    assert!(grown < 400 * MIB, "{} MiB", grown / MIB);
    assert_eq!(good.call(READ, 0, MIB, 4096, &[]).expect("a small read has memory of its own"), [2; 4096]);
    let much = good.call(READ, 0, 0, 2 * MIB as u32, &[]).expect("a read, once the others had their time");
    assert!(much[..MIB as usize].iter().all(|byte| *byte == 1) && much[MIB as usize..].iter().all(|byte| *byte == 2));
    drop(stalled);
}
