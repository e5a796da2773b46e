//! Bad clients, bad addresses, and an end, with real sockets.

use crate::client::*;
use crate::serve::{Running, Volume, serve};
use futures::future::join_all;
use kura_block::Kind;
use kura_nbd::{Address, Limits, Tls};
use rand::{Rng, SeedableRng};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything here may take on a busy machine, where it is not to take for ever.
const PATIENCE: Duration = Duration::from_mins(1);
const DISK: Volume = Volume { name: "disk", size_bytes: 1 << 20, read_only: false };

fn server(limits: Limits) -> (Running, TempDir, std::path::PathBuf) {
    server_of(DISK, limits)
}

fn server_of(volume: Volume, limits: Limits) -> (Running, TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd.sock");
    let running = serve(&Address::Unix(path.clone()), &[volume], Tls::Off, limits).unwrap();
    (running, folder, path)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A client past its handshake.
async fn connect(path: &std::path::Path) -> Client<tokio::net::UnixStream> {
    tokio::time::timeout(PATIENCE, connect_unhurried(path)).await.expect("the server takes clients")
}

async fn connect_unhurried(path: &std::path::Path) -> Client<tokio::net::UnixStream> {
    let stream = tokio::net::UnixStream::connect(path).await.unwrap();
    let mut client = Client::greet(stream, 3).await.unwrap();
    assert_eq!(client.verdict(GO, &info_query("disk", &[])).await.unwrap(), ACK);
    client
}

/// What a bad client sends; then it leaves without a word.
fn misbehaviours() -> Vec<Vec<u8>> {
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    let mut garbage = vec![0; 100_000];
    random.fill_bytes(&mut garbage);
    let flags = 3u32.to_be_bytes().to_vec();
    let go = [flags.clone(), option(GO, &info_query("disk", &[]))].concat();
    let request_of = |bytes: &[u8]| [&go[..], bytes].concat();
    vec![
        vec![],
        garbage.clone(),
        [flags.clone(), garbage.clone()].concat(),
        [flags, option(GO, &vec![0; 200_000])].concat(),
        go.clone(),
        request_of(&garbage),
        request_of(&request(WRITE, 0, 1, 0, 100_000)),
        request_of(&[&request(WRITE, 0, 1, 0, 1 << 20)[..], &garbage[..50_000]].concat()),
        request_of(&[&request(WRITE, 0, 1, 0, u32::MAX)[..], &garbage].concat()),
        request_of(&request(READ, 0, 1, 0, 1 << 20).repeat(100)),
        request_of(&request(READ, 0, 1, 0, 1)[..20]),
        request_of(&request(DISC, 0, 0, 0, 0)),
    ]
}

#[test]
fn bad_clients_harm_nobody_and_leave_nothing_behind() {
    // Three places for hundreds of clients: each must give its own back.
    let limits = Limits { connections: 3, ..Limits::default() };
    let (_running, _folder, path) = server(limits);
    runtime().block_on(async {
        let mut good = connect(&path).await;
        assert_eq!(good.write(0, 0, b"kept").await.unwrap(), 0);
        for round in 0..20 {
            for bytes in misbehaviours() {
                let mut bad = UnixStream::connect(&path).unwrap();
                bad.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
                // The server may hang up before it has heard all.
                let _ = bad.write_all(&bytes);
                if round % 2 == 0 {
                    bad.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
                    let _ = bad.read(&mut [0; 100]);
                }
            }
            assert_eq!(good.read(0, 4).await.unwrap().unwrap(), b"kept");
        }
        let mut new = connect(&path).await;
        assert_eq!(new.read(0, 4).await.unwrap().unwrap(), b"kept");
    });
}

#[test]
fn clients_beyond_the_limit_wait_for_a_place() {
    let (_running, _folder, path) = server(Limits { connections: 1, ..Limits::default() });
    runtime().block_on(async {
        let first = connect(&path).await;
        // It may have been told that it has its export; served it is not.
        let second = async { connect(&path).await.read(0, 1).await.unwrap().unwrap() };
        tokio::pin!(second);
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut second).await.is_err());
        drop(first);
        tokio::time::timeout(PATIENCE, second).await.expect("a place was given up");
    });
}

#[test]
fn clients_that_only_negotiate_take_nobodys_place() {
    // They would keep their connections for a quarter of an hour.
    let waits = 15 * PATIENCE;
    let (_running, _folder, path) =
        server(Limits { connections: 2, negotiations: 4, handshake_timeout: waits, ..Limits::default() });
    runtime().block_on(async {
        let mut silent: Vec<_> = (0..40).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let mut first = connect(&path).await;
        silent.extend((0..40).map(|_| UnixStream::connect(&path).unwrap()));
        let mut second = connect(&path).await;
        for good in [&mut first, &mut second] {
            assert_eq!(good.write(0, 0, b"kept").await.unwrap(), 0);
        }
        drop((first, silent));
        // What they displaced, and what they left, gives its place back.
        let mut third = connect(&path).await;
        assert_eq!(third.read(0, 4).await.unwrap().unwrap(), b"kept");
    });
}

/// Bytes of this process that are in memory. Other tests of it run at the same time.
fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// What a request of these tests carries, in bytes: all of the volume.
const PAYLOAD: u32 = 16 << 20;

/// A server with memory for four such requests, and little patience.
fn short_of_memory() -> (Running, TempDir, std::path::PathBuf) {
    let limits = Limits { memory_bytes: 32 << 20, stall_timeout: Duration::from_millis(500), ..Limits::default() };
    server_of(Volume { size_bytes: PAYLOAD.into(), ..DISK }, limits)
}

#[test]
fn writes_that_stall_take_a_bounded_memory_and_for_a_bounded_time() {
    let (_running, _folder, path) = short_of_memory();
    runtime().block_on(async {
        let mut small = connect(&path).await;
        let before = resident_bytes();
        // All but the last byte of 320 MiB, as far as the server takes it.
        let mut stalled = Vec::new();
        for _ in 0..20 {
            let mut client = connect(&path).await;
            let sent = [request(WRITE, 0, 1, 0, PAYLOAD), vec![7; PAYLOAD as usize - 1]].concat();
            let _ = tokio::time::timeout(Duration::from_millis(20), client.send(&sent)).await;
            stalled.push(client);
        }
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 200 << 20, "{} MiB", grown >> 20);
        // What is small has memory of its own, and what is not gets it when those who stall have had their time.
        assert_eq!(small.write(0, 0, &[3; 4096]).await.unwrap(), 0);
        let mut good = connect(&path).await;
        let bytes = vec![9; 8 << 20];
        let write = good.write(0, 0, &bytes);
        assert_eq!(tokio::time::timeout(PATIENCE, write).await.expect("memory for it").unwrap(), 0);
        assert_eq!(good.read(0, 4096).await.unwrap().unwrap(), [9; 4096]);
    });
}

#[test]
fn a_write_that_comes_in_crumbs_keeps_no_other_one_waiting() {
    let (_running, _folder, path) = short_of_memory();
    runtime().block_on(async {
        // They have all the memory, and send more at a time than tells a client that has stalled.
        let trickle = async || {
            let mut client = connect(&path).await;
            client.send(&request(WRITE, 0, 1, 0, PAYLOAD)).await?;
            for _ in 0..13 {
                client.send(&vec![7; 5 << 18]).await?;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            std::io::Result::Ok(())
        };
        let good = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let mut good = connect(&path).await;
            good.write(0, 0, &vec![9; 8 << 20]).await.unwrap()
        };
        let (tricklers, good) = tokio::join!(join_all((0..4).map(|_| trickle())), good);
        assert!(tricklers.iter().any(Result::is_err), "none was sent away, while another one waited");
        assert_eq!(good, 0);
    });
}

#[test]
fn reads_that_nobody_takes_have_a_bounded_memory_and_for_a_bounded_time() {
    let (_running, _folder, path) = short_of_memory();
    runtime().block_on(async {
        let mut small = connect(&path).await;
        assert_eq!(small.write(0, 0, &vec![7; PAYLOAD as usize]).await.unwrap(), 0);
        let before = resident_bytes();
        // 384 MiB, of which nobody takes anything.
        let mut stalled = Vec::new();
        for _ in 0..24 {
            let mut client = connect(&path).await;
            client.send(&request(READ, 0, 1, 0, PAYLOAD)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            stalled.push(client);
        }
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 300 << 20, "{} MiB, other tests' among them", grown >> 20);
        assert_eq!(small.read(0, 4096).await.unwrap().unwrap(), [7; 4096], "what is small has memory of its own");
        let mut good = connect(&path).await;
        let read = good.read(0, 8 << 20);
        let read = tokio::time::timeout(PATIENCE, read).await.expect("memory for it, once those had their time");
        assert!(read.unwrap().unwrap().iter().all(|byte| *byte == 7));
    });
}

#[test]
fn a_client_that_pauses_is_waited_for_while_nobody_wants_its_memory() {
    let limits = Limits { stall_timeout: Duration::from_millis(50), ..Limits::default() };
    let (_running, _folder, path) = server(limits);
    runtime().block_on(async {
        let mut client = connect(&path).await;
        client.send(&[request(WRITE, 0, 1, 0, 1 << 20), vec![5; 1000]].concat()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        client.send(&vec![5; (1 << 20) - 1000]).await.unwrap();
        assert_eq!(client.error().await.unwrap(), 0);
        assert_eq!(client.read((1 << 20) - 8, 8).await.unwrap().unwrap(), [5; 8]);
    });
}

#[test]
fn a_socket_left_behind_is_replaced_and_one_in_use_is_not() {
    let (running, folder, path) = server(Limits::default());
    let again = serve(&Address::Unix(path.clone()), &[DISK], Tls::Off, Limits::default());
    assert_eq!(again.err().expect("a refusal").kind(), Kind::Busy);
    drop(running);
    assert!(!path.exists(), "a server that stops takes its socket away");

    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "one that crashed does not");
    // A tool that another test is just starting has the listener for an instant, too.
    let again = (0..1000).find_map(|_| {
        let again = serve(&Address::Unix(path.clone()), &[DISK], Tls::Off, Limits::default());
        let is_busy = again.as_ref().is_err_and(|error| error.kind() == Kind::Busy);
        is_busy.then(|| std::thread::sleep(Duration::from_millis(10)));
        (!is_busy).then_some(again)
    });
    drop(again.expect("one that is free").unwrap());

    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(serve(&Address::Unix(file.clone()), &[DISK], Tls::Off, Limits::default()).is_err());
    assert_eq!(std::fs::read(file).unwrap(), b"precious");
}

#[test]
fn port_zero_takes_a_free_port_and_says_which() {
    let any = Address::Tcp("127.0.0.1:0".to_owned());
    let running = serve(&any, &[DISK], Tls::Off, Limits::default()).unwrap();
    assert!(!running.address.to_string().ends_with(":0"));
    let taken = serve(&running.address, &[DISK], Tls::Off, Limits::default());
    assert_eq!(taken.err().expect("a refusal").kind(), Kind::Busy);
    let nowhere = serve(&Address::Tcp("no.such.host.invalid:1".to_owned()), &[DISK], Tls::Off, Limits::default());
    assert_eq!(nowhere.err().expect("a refusal").kind(), Kind::Invalid);
}

#[test]
fn a_server_stops_though_clients_do_nothing() {
    let waits = 10 * PATIENCE;
    let (running, _folder, path) =
        server(Limits { handshake_timeout: waits, drain_timeout: waits, ..Limits::default() });
    runtime().block_on(async {
        let mut idle = connect(&path).await;
        let negotiating = tokio::net::UnixStream::connect(&path).await.unwrap();
        let begun = Instant::now();
        drop(running);
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        assert_eq!(idle.rest().await.unwrap(), b"");
        drop(negotiating);
    });
}

#[test]
fn a_client_that_never_pauses_cannot_put_off_the_end() {
    let limits = Limits { drain_timeout: Duration::from_millis(300), ..Limits::default() };
    let (running, _folder, path) = server(limits);
    let stream = runtime().block_on(async { connect(&path).await.stream.into_std().unwrap() });
    stream.set_nonblocking(false).unwrap();
    let flood = std::thread::spawn({
        let mut stream = stream.try_clone().unwrap();
        let requests = request(READ, 0, 1, 0, 16).repeat(1000);
        move || while stream.write_all(&requests).is_ok() {}
    });
    let drain = std::thread::spawn({
        let mut stream = stream;
        let mut scrap = vec![0; 1 << 20];
        move || while stream.read(&mut scrap).is_ok_and(|len| len > 0) {}
    });
    std::thread::sleep(Duration::from_millis(100));
    let begun = Instant::now();
    drop(running);
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    flood.join().unwrap();
    drain.join().unwrap();
}
