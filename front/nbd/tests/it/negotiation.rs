//! The first phase, option by option.

use crate::client::*;
use crate::local::{Fixed, ODD, export, run};
use kura_nbd::{Export, Hangup, Limits, Session, Tls, handshake};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::{JoinHandle, spawn_local};

type Handshake = JoinHandle<Result<Option<Session<DuplexStream>>, Hangup>>;

fn start(exports: Vec<Export>) -> (DuplexStream, Handshake) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let server = async move { handshake(theirs, &Fixed(exports), &Tls::Off, &Limits::default()).await };
    (ours, spawn_local(server))
}

fn two() -> Vec<Export> {
    vec![export("disk", 10 << 20), Export { read_only: true, ..export("tape", 4096) }]
}

async fn connected(exports: Vec<Export>) -> (Client<DuplexStream>, Handshake) {
    let (stream, server) = start(exports);
    (Client::greet(stream, 3).await.unwrap(), server)
}

/// The facts a client is told, by their numbers.
fn facts(replies: &[(u32, Vec<u8>)]) -> Vec<(u16, &[u8])> {
    let infos = replies.iter().filter(|(kind, _)| *kind == 3);
    infos.map(|(_, data)| (u16::from_be_bytes([data[0], data[1]]), &data[2..])).collect()
}

#[test]
fn lists_every_export_with_its_description() {
    run(async {
        let (mut client, _server) = connected(two()).await;
        let replies = client.option(LIST, b"").await.unwrap();
        let named = |name: &str| (2, [&string(name)[..], format!("the {name}").as_bytes()].concat());
        assert_eq!(replies, [named("disk"), named("tape"), (ACK, vec![])]);
        assert_eq!(client.verdict(LIST, b"data").await.unwrap(), INVALID);
    });
}

#[test]
fn an_unknown_option_is_refused_and_the_next_one_is_understood() {
    run(async {
        let (mut client, _server) = connected(two()).await;
        for number in [0, 4, 11, 12, u32::MAX] {
            assert_eq!(client.verdict(number, b"whatever").await.unwrap(), UNSUP);
        }
        assert_eq!(client.verdict(LIST, b"").await.unwrap(), ACK);
    });
}

#[test]
fn info_tells_what_was_asked_for() {
    run(async {
        let (mut client, _server) = connected(two()).await;
        let plain = client.option(INFO, &info_query("disk", &[])).await.unwrap();
        // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, CACHE, FAST_ZERO
        let flags = 0b1101_0110_1101u16;
        let size_and = |size: u64, flags: u16| [&size.to_be_bytes()[..], &flags.to_be_bytes()].concat();
        assert_eq!(facts(&plain), [(0, &size_and(10 << 20, flags)[..])]);

        assert_eq!(client.verdict(STRUCTURED_REPLY, b"").await.unwrap(), ACK);
        let full = client.option(INFO, &info_query("tape", &[1, 2, 3, 99])).await.unwrap();
        // HAS_FLAGS, READ_ONLY, FLUSH, FUA, DF, MULTI_CONN, CACHE
        let flags = 0b0101_1000_1111u16;
        let sizes: Vec<u8> = [1u32, 4096, 64 << 20].iter().flat_map(|size| size.to_be_bytes()).collect();
        let expected: [(u16, &[u8]); 4] = [(0, &size_and(4096, flags)), (1, b"tape"), (2, b"the tape"), (3, &sizes)];
        assert_eq!(facts(&full), expected);
        assert_eq!(client.verdict(INFO, &info_query("cloud", &[])).await.unwrap(), UNKNOWN);
    });
}

#[test]
fn malformed_data_is_refused_and_the_next_option_is_understood() {
    run(async {
        let (mut client, _server) = connected(two()).await;
        let long_name = info_query(&"n".repeat(5000), &[]);
        let lying: &[&[u8]] = &[
            b"",
            b"\0\0",
            b"\0\0\0\x09disk\0\0",
            b"\0\0\0\x04disk\0\x05",
            b"\0\0\0\x04disk\0\0\0",
            b"\0\0\0\x01\xff\0\0",
            &long_name,
        ];
        for data in lying {
            assert_eq!(client.verdict(GO, data).await.unwrap(), INVALID);
        }
        assert_eq!(client.verdict(STRUCTURED_REPLY, b"x").await.unwrap(), INVALID);
        assert_eq!(client.verdict(STRUCTURED_REPLY, b"").await.unwrap(), ACK);
        let many: &[&[u8]] =
            &[b"\0\0\0\x04disk\xff\xff\xff\xff", b"\0\0\0\x04disk\0\0\0\x01\xff\xff\xff\xff", b"\0\0\0\x04disk"];
        for data in many {
            assert_eq!(client.verdict(LIST_META_CONTEXT, data).await.unwrap(), INVALID);
        }
        assert_eq!(client.verdict(GO, &info_query("disk", &[])).await.unwrap(), ACK);
    });
}

#[test]
fn an_option_too_long_is_thrown_away_and_refused() {
    run(async {
        let (mut client, _server) = connected(two()).await;
        assert_eq!(client.verdict(GO, &vec![0; 1 << 20]).await.unwrap(), TOO_BIG);
        assert_eq!(client.verdict(LIST, b"").await.unwrap(), ACK);
    });
}

#[test]
fn the_only_export_is_the_default_one() {
    run(async {
        let (mut client, server) = connected(vec![export("disk", 4096)]).await;
        let replies = client.option(GO, &info_query("", &[1])).await.unwrap();
        assert_eq!(facts(&replies)[1], (1, &b"disk"[..]));
        assert_eq!(server.await.unwrap().unwrap().expect("a session").export().name, "disk");

        for exports in [two(), vec![]] {
            let (mut client, _server) = connected(exports).await;
            assert_eq!(client.verdict(GO, &info_query("", &[])).await.unwrap(), UNKNOWN);
        }
    });
}

#[test]
fn export_name_ends_the_negotiation_with_or_without_padding() {
    run(async {
        for (flags, len) in [(1, 134), (3, 10)] {
            let (stream, server) = start(two());
            let mut client = Client::greet(stream, flags).await.unwrap();
            client.send(&option(EXPORT_NAME, b"disk")).await.unwrap();
            let mut answer = vec![1; len];
            client.stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer[..8], (10u64 << 20).to_be_bytes());
            assert!(answer[10..].iter().all(|&byte| byte == 0));
            assert!(server.await.unwrap().unwrap().is_some());
            assert_eq!(client.rest().await.unwrap(), b"", "the session was dropped, and nothing else was sent");
        }
    });
}

#[test]
fn export_name_of_what_is_not_there_ends_the_connection() {
    run(async {
        for name in [b"cloud".to_vec(), b"\xff".to_vec(), vec![b'n'; 70_000]] {
            let (mut client, server) = connected(two()).await;
            client.send(&option(EXPORT_NAME, &name)).await.unwrap();
            assert_eq!(client.rest().await.unwrap(), b"");
            assert!(matches!(server.await.unwrap(), Err(Hangup::Violation(_))));
        }
    });
}

#[test]
fn abort_is_acknowledged_and_leaving_is_polite() {
    run(async {
        let (mut client, server) = connected(two()).await;
        assert_eq!(client.verdict(ABORT, b"ignored").await.unwrap(), ACK);
        assert_eq!(client.rest().await.unwrap(), b"");
        assert!(server.await.unwrap().unwrap().is_none());

        let (client, server) = connected(two()).await;
        drop(client);
        assert!(server.await.unwrap().unwrap().is_none());
    });
}

#[test]
fn metadata_contexts_need_structured_replies() {
    run(async {
        let (mut client, _server) = connected(two()).await;
        let query = context_query("disk", &["base:allocation"]);
        for number in [LIST_META_CONTEXT, SET_META_CONTEXT] {
            assert_eq!(client.verdict(number, &query).await.unwrap(), INVALID);
        }
    });
}

#[test]
fn metadata_contexts_are_listed_and_selected() {
    run(async {
        let (mut client, _server) = connected(two()).await;
        assert_eq!(client.verdict(STRUCTURED_REPLY, b"").await.unwrap(), ACK);
        let of = |id: u8, name: &str| (4, [&[0, 0, 0, id][..], name.as_bytes()].concat());
        let allocation = |id: u8| vec![of(id, "base:allocation"), (ACK, vec![])];
        let odd = |id: u8| vec![of(id, ODD), (ACK, vec![])];
        let both = |ids: [u8; 2]| vec![of(ids[0], "base:allocation"), of(ids[1], ODD), (ACK, vec![])];
        let none = vec![(ACK, vec![])];
        let cases: [(u32, &[&str], _); 12] = [
            (LIST_META_CONTEXT, &[], both([0, 0])),
            (LIST_META_CONTEXT, &["x-test:"], odd(0)),
            (LIST_META_CONTEXT, &[ODD], odd(0)),
            (SET_META_CONTEXT, &[ODD], odd(1)),
            (SET_META_CONTEXT, &[ODD, "base:allocation"], both([1, 2])),
            (LIST_META_CONTEXT, &["base:"], allocation(0)),
            (LIST_META_CONTEXT, &["qemu:dirty-bitmap:x", "base:allocation", "base:"], allocation(0)),
            (LIST_META_CONTEXT, &["base:unknown", "x-other:", "no colon"], none.clone()),
            (SET_META_CONTEXT, &[], none.clone()),
            (SET_META_CONTEXT, &["base:"], none.clone()),
            (SET_META_CONTEXT, &["qemu:allocation-depth"], none),
            (SET_META_CONTEXT, &["base:allocation", "base:allocation"], allocation(1)),
        ];
        for (number, queries, expected) in cases {
            let replies = client.option(number, &context_query("disk", queries)).await.unwrap();
            assert_eq!(replies, expected, "option {number}, queries {queries:?}");
        }
        let missing = context_query("cloud", &["base:allocation"]);
        assert_eq!(client.verdict(SET_META_CONTEXT, &missing).await.unwrap(), UNKNOWN);
    });
}

#[test]
fn unknown_flags_and_a_wrong_magic_number_end_the_connection() {
    run(async {
        let (stream, server) = start(two());
        let mut client = Client::greet(stream, 4).await.unwrap();
        assert_eq!(client.rest().await.unwrap(), b"");
        assert!(matches!(server.await.unwrap(), Err(Hangup::Violation(_))));

        let (mut client, server) = connected(two()).await;
        client.send(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
        assert_eq!(client.rest().await.unwrap(), b"");
        assert!(matches!(server.await.unwrap(), Err(Hangup::Violation(_))));
    });
}

#[test]
fn a_client_that_dawdles_is_dropped() {
    run(async {
        let begun = tokio::time::Instant::now();
        let (mut stream, server) = start(two());
        let drip = spawn_local(async move {
            for byte in [&[0, 0, 0, 3][..], &option(LIST, &[0; 1000])].concat() {
                if stream.write_all(&[byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        assert!(matches!(server.await.unwrap(), Err(Hangup::Slow { .. })));
        assert_eq!(begun.elapsed().as_secs(), Limits::default().handshake_timeout.as_secs());
        drip.await.unwrap();
    });
}

#[test]
fn leaving_in_the_middle_of_an_option_is_no_polite_end() {
    run(async {
        let whole = option(GO, &info_query("disk", &[1, 2, 3]));
        for cut in 1..whole.len() {
            let (mut client, server) = connected(two()).await;
            client.send(&whole[..cut]).await.unwrap();
            drop(client);
            assert!(matches!(server.await.unwrap(), Err(Hangup::Broken(_))), "cut at {cut}");
        }
    });
}
