//! What the fuzz targets and the fuzz tests do with their bytes.

use crate::certificates::Certificates;
use crate::client::{Client, GO, Reply, STRUCTURED_REPLY, info_query, option};
use crate::local::{Fixed, ODD, SIZE, Served, Setup, connect, export, run};
use kura_nbd::{Limits, Tls, TlsKeys, handshake};
use std::sync::LazyLock;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::task::spawn_local;

/// `data` is what a client sends from the first byte on, behind one that chooses whether there is TLS. The handshake must end,
/// and soon.
pub fn negotiate(data: &[u8]) {
    let Some((&tls, data)) = data.split_first() else { return };
    let tls = match tls % 3 {
        0 => Tls::Off,
        1 => Tls::Offered(KEYS.clone()),
        _ => Tls::Required(KEYS.clone()),
    };
    run(async {
        let (ours, theirs) = duplex(1 << 20);
        let (mut hears, mut says) = tokio::io::split(ours);
        let hearing = spawn_local(async move {
            let mut heard = Vec::new();
            // The server may close with bytes unread.
            let _ = hears.read_to_end(&mut heard).await;
            assert!(b"NBDMAGICIHAVEOPT\x00\x03".starts_with(&heard[..heard.len().min(18)]));
        });
        let exports = Fixed(vec![export("disk", SIZE), export("tape", 4096)]);
        let data = data.to_vec();
        let saying = spawn_local(async move {
            let _ = says.write_all(&data).await;
            let _ = says.shutdown().await;
        });
        drop(handshake(theirs, &exports, &tls, &Limits::default()).await);
        saying.await.expect("saying does not fail");
        hearing.await.expect("what is heard is the greeting");
    });
}

/// `data` is what a client sends once it has chosen its export; its first byte chooses the kind of replies and of
/// volume. The server must end, answer in whole replies, and leave nothing in flight.
pub fn transmit(data: &[u8]) {
    let Some((&setup, data)) = data.split_first() else { return };
    let data = data.to_vec();
    run(async move {
        let limits = Limits { payload_bytes: 64 << 10, requests: 8, bytes_in_flight: 256 << 10, ..Limits::default() };
        let moves_every = (setup & 16 != 0).then_some(Duration::from_micros(700));
        let context = (setup & 8 != 0).then_some(ODD);
        let setup_of = Setup { structured: setup & 1 != 0, read_only: setup & 2 != 0, context, limits, moves_every };
        let (client, served) = connect(setup_of).await;
        let Served { volume, stop, server } = served;
        volume.delay.set(Duration::from_millis(u64::from(setup >> 4)));
        let (mut hears, mut says) = tokio::io::split(client.stream);
        let hearing = spawn_local(async move {
            let mut heard = Vec::new();
            let _ = hears.read_to_end(&mut heard).await;
            heard
        });
        let _ = says.write_all(&data).await;
        if setup & 4 == 0 {
            let _ = says.shutdown().await;
        } else {
            stop.send_replace(true);
        }
        let ended = server.await.expect("the server does not panic");
        // A reply may only be cut when the client is at fault.
        let heard = hearing.await.expect("hearing does not fail");
        assert_eq!(volume.in_flight.get(), 0);
        if setup & 1 != 0 {
            check_chunks(&heard, ended.is_ok()).await;
        }
    });
}

/// With structured replies, what the server sent can be taken apart without knowing what was asked.
async fn check_chunks(heard: &[u8], whole: bool) {
    let (mut ours, theirs) = duplex(heard.len().max(1));
    ours.write_all(heard).await.expect("it fits");
    drop(ours);
    let mut client = Client { stream: theirs };
    let mut open = std::collections::BTreeSet::new();
    loop {
        match client.reply(0).await {
            Ok((Reply::Simple { cookie, .. } | Reply::Chunk { last: true, cookie, .. }, _)) => {
                open.remove(&cookie);
            }
            Ok((Reply::Chunk { cookie, .. }, _)) => {
                open.insert(cookie);
            }
            Err(_) => break,
        }
    }
    assert!(!whole || open.is_empty(), "replies that never ended");
}

/// A server's certificate, which nobody needs to trust here.
static KEYS: LazyLock<TlsKeys> = LazyLock::new(|| {
    let made = Certificates::make();
    TlsKeys::load(&made.file("server-cert.pem"), &made.file("server-key.pem"), None).expect("keys that belong together")
});

/// Beginnings from which interesting bytes are not far: each with TLS off, offered and required.
pub fn negotiation_seeds() -> Vec<Vec<u8>> {
    let with = |tls: u8| conversations().into_iter().map(move |said| [vec![tls], said].concat());
    (0..3).flat_map(with).collect()
}

fn conversations() -> Vec<Vec<u8>> {
    let begin = |options: &[Vec<u8>]| [&3u32.to_be_bytes()[..], &options.concat()].concat();
    let go = option(GO, &info_query("disk", &[0, 1, 2, 3]));
    let contexts = |number| option(number, &crate::client::context_query("disk", &["base:allocation", "base:"]));
    vec![
        begin(&[]),
        begin(&[option(crate::client::LIST, b""), option(STRUCTURED_REPLY, b""), go.clone()]),
        begin(&[option(STRUCTURED_REPLY, b""), contexts(9), contexts(10), go]),
        begin(&[option(crate::client::STARTTLS, b""), option(crate::client::EXPORT_NAME, b"disk")]),
        // The first bytes of a client's greeting in TLS 1.3, and no more of it.
        [begin(&[option(crate::client::STARTTLS, b"")]), vec![0x16, 3, 1, 0, 60, 1, 0, 0, 56, 3, 3, 7, 7]].concat(),
        begin(&[option(crate::client::INFO, &info_query("tape", &[3])), option(crate::client::ABORT, b"")]),
    ]
}

/// The same for the second phase.
pub fn transmission_seeds() -> Vec<Vec<u8>> {
    use crate::client::{BLOCK_STATUS, CACHE, DF, DISC, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES, request};
    let write =
        |cookie, offset, len: usize| [request(WRITE, 0, cookie, offset, len as u32), vec![cookie as u8; len]].concat();
    let all = [
        write(1, 0, 5000),
        request(READ, 0, 2, 0, 9000),
        request(READ, DF, 3, 4096, 70_000),
        request(FLUSH, 1, 4, 0, 0),
        request(TRIM, 0, 5, 0, 4096),
        request(WRITE_ZEROES, 2, 6, 100, 5000),
        request(CACHE, 0, 7, 0, 10),
        request(BLOCK_STATUS, 8, 8, 0, 100_000),
        write(9, SIZE - 10, 11),
        request(DISC, 0, 0, 0, 0),
    ];
    [0x00u8, 0x01, 0x11, 0x13, 0x35, 0x25].iter().map(|&setup| [vec![setup], all.concat()].concat()).collect()
}
