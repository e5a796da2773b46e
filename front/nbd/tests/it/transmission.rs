//! The second phase, command by command.

use crate::client::*;
use crate::local::{ODD, PIPE_BYTES, SIZE, Setup, connect, run};
use kura_block::Kind;
use kura_nbd::{Hangup, Limits};
use std::time::Duration;
use tokio::io::AsyncReadExt;

const STRUCTURED: Setup =
    Setup { structured: true, read_only: false, context: None, limits: LIMITS, moves_every: None };
const SIMPLE: Setup = Setup { structured: false, read_only: false, context: None, limits: LIMITS, moves_every: None };
const LIMITS: Limits = Limits {
    connections: 1,
    negotiations: 1,
    handshake_timeout: Duration::from_secs(10),
    option_bytes: 1 << 16,
    payload_bytes: 256 << 10,
    requests: 64,
    bytes_in_flight: 1 << 20,
    memory_bytes: 1 << 20,
    stall_timeout: Duration::from_secs(10),
    drain_timeout: Duration::from_secs(5),
};

#[test]
fn what_was_written_is_read_at_any_offset() {
    run(async {
        let (mut client, _served) = connect(SIMPLE).await;
        let data: Vec<u8> = (0..10_000u32).map(|at| (at % 251) as u8).collect();
        assert_eq!(client.write(0, 4095, &data).await.unwrap(), 0);
        assert_eq!(client.read(4095, 10_000).await.unwrap().unwrap(), data);
        assert_eq!(client.read(4000, 100).await.unwrap().unwrap(), [&[0; 95][..], &data[..5]].concat());
        assert_eq!(client.read(SIZE - 1, 1).await.unwrap().unwrap(), [0]);
    });
}

#[test]
fn large_writes_arrive_whole() {
    run(async {
        let (mut client, _served) = connect(SIMPLE).await;
        for len in [32 << 10, 100_000, 200_000, 256 << 10] {
            let data: Vec<u8> = (0..len).map(|at| (at % 241) as u8).collect();
            assert_eq!(client.write(0, 77, &data).await.unwrap(), 0);
            assert_eq!(client.read(77, len).await.unwrap().unwrap(), data);
        }
    });
}

#[test]
fn a_session_that_moves_on_and_on_loses_nothing() {
    run(async {
        let setup = Setup { moves_every: Some(Duration::from_millis(3)), ..SIMPLE };
        let (mut client, served) = connect(setup).await;
        served.volume.delay.set(Duration::from_millis(2));
        let data = |cookie: u64| vec![cookie as u8; 5000];
        let place = |cookie: u64| 10_000 * cookie;
        let requests =
            (1..=40).flat_map(|cookie| [request(WRITE, 0, cookie, place(cookie), 5000), data(cookie)].concat());
        // In pieces that end anywhere, some of them just when the session moves.
        for piece in requests.collect::<Vec<_>>().chunks(1777) {
            client.send(piece).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut answered = Vec::new();
        for _ in 1..=40 {
            match client.reply(0).await.unwrap().0 {
                Reply::Simple { error: 0, cookie } => answered.push(cookie),
                other => panic!("not a reply: {other:?}"),
            }
        }
        answered.sort_unstable();
        assert_eq!(answered, (1..=40).collect::<Vec<_>>(), "each once");
        for cookie in 1..=40 {
            assert_eq!(client.read(place(cookie), 5000).await.unwrap().unwrap(), data(cookie));
        }
        served.stop.send_replace(true);
        served.server.await.unwrap().unwrap();
    });
}

#[test]
fn holes_are_told_and_not_sent() {
    run(async {
        let (mut client, _served) = connect(STRUCTURED).await;
        client.write(0, 64 << 10, &[5; 8192]).await.unwrap();
        let (kinds, data) = client.read_chunks(0, 0, 256 << 10).await.unwrap();
        assert_eq!(kinds, [2, 1, 2]);
        assert!(data[64 << 10..72 << 10].iter().all(|&byte| byte == 5));
        assert!(data[..64 << 10].iter().chain(&data[72 << 10..]).all(|&byte| byte == 0));
        assert_eq!(client.read_chunks(0, 0, 4096).await.unwrap(), (vec![2], vec![0; 4096]));
        // Not to be fragmented: one chunk of data, whatever lies there.
        let (kinds, whole) = client.read_chunks(DF, 0, 256 << 10).await.unwrap();
        assert_eq!((kinds, whole), (vec![1], data));
    });
}

#[test]
fn requests_of_no_length_are_answered() {
    run(async {
        let (mut client, _served) = connect(STRUCTURED).await;
        assert_eq!(client.read_chunks(0, 0, 0).await.unwrap(), (vec![0], vec![]));
        assert_eq!(client.write(FUA, 0, b"").await.unwrap(), 0);
        for command in [TRIM, WRITE_ZEROES, CACHE] {
            assert_eq!(client.ask(command, 0, SIZE, 0).await.unwrap(), 0);
        }
        assert_eq!(client.ask(BLOCK_STATUS, 0, 0, 0).await.unwrap(), EINVAL);
    });
}

#[test]
fn flush_and_fua_reach_the_volume() {
    run(async {
        let (mut client, served) = connect(SIMPLE).await;
        let synced = || served.volume.synced.get();
        client.write(0, 0, b"volatile").await.unwrap();
        assert_eq!(synced(), 0);
        client.write(FUA, 0, b"durable").await.unwrap();
        assert_eq!(synced(), 1);
        assert_eq!(client.ask(FLUSH, 0, 0, 0).await.unwrap(), 0);
        assert_eq!(synced(), 2);
        assert_eq!(client.ask(TRIM, FUA, 0, 4096).await.unwrap(), 0);
        assert_eq!(client.ask(WRITE_ZEROES, FUA | NO_HOLE, 0, 4096).await.unwrap(), 0);
        assert_eq!(synced(), 4);
    });
}

#[test]
fn zeroes_are_holes_unless_they_must_not_be() {
    run(async {
        let (mut client, _served) = connect(STRUCTURED).await;
        client.write(0, 0, &[9; 16 << 10]).await.unwrap();
        assert_eq!(client.ask(WRITE_ZEROES, 0, 0, 4096).await.unwrap(), 0);
        assert_eq!(client.ask(WRITE_ZEROES, NO_HOLE, 4096, 4096).await.unwrap(), 0);
        assert_eq!(client.ask(WRITE_ZEROES, FAST_ZERO, 8192, 4096).await.unwrap(), 0);
        assert_eq!(client.ask(WRITE_ZEROES, FAST_ZERO | NO_HOLE, 12288, 4096).await.unwrap(), ENOTSUP);
        let (kinds, data) = client.read_chunks(0, 0, 16 << 10).await.unwrap();
        assert_eq!(kinds, [2, 1, 2, 1]);
        assert_eq!(data, [vec![0; 12288], vec![9; 4096]].concat());
    });
}

#[test]
fn block_status_tells_runs_and_one_run() {
    run(async {
        let (mut client, served) = connect(STRUCTURED).await;
        client.write(0, 8192, &[1; 4096]).await.unwrap();
        let status = async |client: &mut Client<_>, flags, offset, len| {
            client.send(&request(BLOCK_STATUS, flags, 3, offset, len)).await.unwrap();
            match client.reply(0).await.unwrap().0 {
                Reply::Chunk { last: true, kind: 5, cookie: 3, payload } => {
                    assert_eq!(payload[..4], 1u32.to_be_bytes(), "the selected context");
                    let words = payload[4..].chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap()));
                    words.collect::<Vec<_>>()
                }
                other => panic!("not a status: {other:?}"),
            }
        };
        assert_eq!(status(&mut client, 0, 4096, 64 << 10).await, [4096, 3, 4096, 0, 56 << 10, 3]);
        assert_eq!(status(&mut client, REQ_ONE, 4096, 64 << 10).await, [4096, 3]);
        assert_eq!(status(&mut client, REQ_ONE, 9000, 1000).await, [1000, 0]);
        // Where one is enough, what lies far behind its end is not looked at; where it is long, all of it is told.
        served.volume.asked_bytes.set(0);
        assert_eq!(status(&mut client, REQ_ONE, 0, SIZE as u32).await, [8192, 3]);
        assert!(served.volume.asked_bytes.get() <= SIZE / 4, "{}", served.volume.asked_bytes.get());
        assert_eq!(status(&mut client, REQ_ONE, 12288, SIZE as u32 - 12288).await, [SIZE as u32 - 12288, 3]);
        assert_eq!(client.ask(BLOCK_STATUS, 0, SIZE, 1).await.unwrap(), EINVAL);
    });
}

#[test]
fn each_context_has_a_chunk_of_its_own() {
    run(async {
        let setup = Setup { context: Some(ODD), ..STRUCTURED };
        let (mut client, _served) = connect(setup).await;
        client.write(0, 8192, &[1; 4096]).await.unwrap();
        for (flags, odd, allocation) in [
            (0, vec![4096, 4, 4096, 0, 100, 4], vec![4096, 3, 4096, 0, 100, 3]),
            (REQ_ONE, vec![4096, 4], vec![4096, 3]),
        ] {
            client.send(&request(BLOCK_STATUS, flags, 3, 4096, 8292)).await.unwrap();
            let words = |id: u32, words: Vec<u32>| {
                std::iter::once(id).chain(words).flat_map(u32::to_be_bytes).collect::<Vec<u8>>()
            };
            for (last, payload) in [(false, words(1, allocation)), (true, words(2, odd))] {
                let expected = Reply::Chunk { last, kind: 5, cookie: 3, payload };
                assert_eq!(client.reply(0).await.unwrap().0, expected);
            }
        }
    });
}

#[test]
fn block_status_wants_its_context() {
    run(async {
        let (mut client, _served) = connect(SIMPLE).await;
        assert_eq!(client.ask(BLOCK_STATUS, 0, 0, 4096).await.unwrap(), EINVAL);
        assert_eq!(client.read(0, 1).await.unwrap(), Ok(vec![0]));
    });
}

#[test]
fn beyond_the_end_is_an_error() {
    run(async {
        let (mut client, served) = connect(STRUCTURED).await;
        for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2)] {
            let data = vec![1; len as usize];
            assert_eq!(client.write(0, offset, &data).await.unwrap(), ENOSPC);
            assert_eq!(client.ask(WRITE_ZEROES, 0, offset, len).await.unwrap(), ENOSPC);
            for command in [READ, TRIM, CACHE, BLOCK_STATUS] {
                assert_eq!(client.ask(command, 0, offset, len).await.unwrap(), EINVAL);
            }
        }
        // The volume shrank under the connection, which keeps the size it began with.
        served.volume.size_bytes.set(SIZE / 2);
        assert_eq!(client.write(0, SIZE / 2 - 1, b"ab").await.unwrap(), ENOSPC);
        assert_eq!(client.ask(READ, 0, SIZE / 2, 1).await.unwrap(), EINVAL);
        // It grew: the connection does not see it.
        served.volume.size_bytes.set(SIZE * 2);
        assert_eq!(client.write(0, SIZE, b"a").await.unwrap(), ENOSPC);
    });
}

#[test]
fn too_large_is_refused_without_an_end() {
    run(async {
        for (setup, read_error) in [(SIMPLE, EINVAL), (STRUCTURED, EOVERFLOW)] {
            let (mut client, _served) = connect(setup).await;
            let large = LIMITS.payload_bytes + 1;
            assert_eq!(client.write(0, 0, &vec![1; large as usize]).await.unwrap(), EINVAL);
            assert_eq!(client.ask(READ, 0, 0, large).await.unwrap(), read_error);
            assert_eq!(client.write(0, 0, b"fits").await.unwrap(), 0);
            assert_eq!(client.ask(WRITE_ZEROES, 0, 0, SIZE as u32).await.unwrap(), 0);
        }
    });
}

#[test]
fn a_read_only_export_refuses_changes() {
    run(async {
        let (mut client, served) = connect(Setup { read_only: true, ..SIMPLE }).await;
        assert_eq!(client.write(FUA, 0, b"no").await.unwrap(), EPERM);
        assert_eq!(client.ask(TRIM, 0, 0, 4096).await.unwrap(), EPERM);
        assert_eq!(client.ask(WRITE_ZEROES, 0, 0, 4096).await.unwrap(), EPERM);
        assert_eq!(client.ask(FLUSH, 0, 0, 0).await.unwrap(), 0);
        assert_eq!(client.read(0, 4).await.unwrap().unwrap(), [0; 4]);
        assert_eq!(served.volume.synced.get(), 1);
    });
}

#[test]
fn what_the_protocol_does_not_know_is_refused() {
    run(async {
        let (mut client, _served) = connect(SIMPLE).await;
        for command in [8, 9, u16::MAX] {
            assert_eq!(client.ask(command, 0, 0, 0).await.unwrap(), EINVAL);
        }
        let misplaced =
            [(READ, NO_HOLE), (READ, DF), (TRIM, REQ_ONE), (FLUSH, FAST_ZERO), (CACHE, 1 << 5), (READ, 1 << 15)];
        for (command, flags) in misplaced {
            assert_eq!(client.ask(command, flags, 0, 0).await.unwrap(), EINVAL, "command {command} flags {flags}");
        }
        assert_eq!(client.write(DF, 0, b"x").await.unwrap(), EINVAL);
        // FUA belongs everywhere.
        assert_eq!(client.ask(FLUSH, FUA, 0, 0).await.unwrap(), 0);
    });
}

#[test]
fn the_volumes_errors_have_their_numbers() {
    let numbers = [
        (Kind::Full, ENOSPC),
        (Kind::Invalid, EINVAL),
        (Kind::ReadOnly, EPERM),
        (Kind::Fenced, ESHUTDOWN),
        (Kind::Missing, ESHUTDOWN),
        (Kind::Retry, EIO),
        (Kind::Corrupt, EIO),
        (Kind::Device, EIO),
        (Kind::Busy, EIO),
        (Kind::Exists, EIO),
    ];
    run(async {
        for setup in [SIMPLE, STRUCTURED] {
            let (mut client, served) = connect(setup).await;
            for (kind, number) in numbers {
                served.volume.failure.set(Some(kind));
                assert_eq!(client.ask(READ, 0, 0, 4096).await.unwrap(), number);
                assert_eq!(client.write(0, 0, b"x").await.unwrap(), number);
                for command in [FLUSH, TRIM, WRITE_ZEROES] {
                    assert_eq!(client.ask(command, 0, 0, 1).await.unwrap(), number);
                }
            }
            served.volume.failure.set(None);
            assert_eq!(client.write(0, 0, b"x").await.unwrap(), 0);
        }
    });
}

#[test]
fn slow_requests_run_together_and_keep_their_names() {
    run(async {
        let (mut client, served) = connect(STRUCTURED).await;
        served.volume.delay.set(Duration::from_millis(10));
        let begun = tokio::time::Instant::now();
        for cookie in 0..50u64 {
            client
                .send(&[&request(WRITE, 0, cookie, cookie * 4096, 4)[..], &[cookie as u8; 4]].concat())
                .await
                .unwrap();
        }
        let mut cookies = Vec::new();
        for _ in 0..50 {
            match client.reply(0).await.unwrap().0 {
                Reply::Simple { error: 0, cookie } => cookies.push(cookie),
                other => panic!("not a success: {other:?}"),
            }
        }
        cookies.sort_unstable();
        assert_eq!(cookies, (0..50).collect::<Vec<_>>());
        assert_eq!(begun.elapsed(), Duration::from_millis(10));
        for cookie in 0..50 {
            let (_, data) = client.read_chunks(0, cookie * 4096, 4).await.unwrap();
            assert_eq!(data, [cookie as u8; 4]);
        }
    });
}

#[test]
fn no_more_requests_are_taken_than_allowed() {
    let cases = [
        (Limits { requests: 3, ..LIMITS }, 3),
        // One request may go beyond: three of 100 kB are the first sum above 250 kB.
        (Limits { bytes_in_flight: 250_000, ..LIMITS }, 3),
    ];
    for (limits, most) in cases {
        run(async {
            let (mut client, served) = connect(Setup { limits, ..STRUCTURED }).await;
            served.volume.delay.set(Duration::from_millis(10));
            for cookie in 0..12 {
                client.send(&request(READ, DF, cookie, 0, 100_000)).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert_eq!(served.volume.in_flight.get(), most);
            for _ in 0..12 {
                assert!(matches!(client.reply(0).await.unwrap().0, Reply::Chunk { last: true, kind: 1, .. }));
            }
        });
    }
}

#[test]
fn a_client_that_does_not_read_stops_being_read() {
    run(async {
        let (mut client, served) = connect(Setup { structured: false, ..SIMPLE }).await;
        // Replies of 100 kB fill the pipe, then the server's limit, then requests wait: none is lost.
        for cookie in 0..40 {
            client.send(&request(READ, 0, cookie, 0, 100_000)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert!(!served.server.is_finished());
        for cookie in 0..40 {
            let (reply, data) = client.reply(100_000).await.unwrap();
            assert_eq!((reply, data.len()), (Reply::Simple { error: 0, cookie }, 100_000));
        }
    });
}

#[test]
fn disconnect_waits_for_what_is_in_flight() {
    run(async {
        let (mut client, served) = connect(SIMPLE).await;
        // A disk may take longer than a server that stops waits.
        served.volume.delay.set(4 * Limits::default().drain_timeout);
        let write = [&request(WRITE, 0, 1, 0, 4)[..], b"last"].concat();
        client.send(&[&write[..], &request(DISC, 0, 2, 0, 0), b"ignored"].concat()).await.unwrap();
        assert_eq!(client.reply(0).await.unwrap().0, Reply::Simple { error: 0, cookie: 1 });
        assert_eq!(client.rest().await.unwrap(), b"");
        drop(client);
        assert!(served.server.await.unwrap().is_ok());
    });
}

#[test]
fn a_client_that_vanishes_leaves_nothing_behind() {
    let write = [&request(WRITE, 0, 1, 0, 8)[..], b"complete"].concat();
    for cut in 0..=write.len() {
        run(async {
            let (mut client, served) = connect(SIMPLE).await;
            served.volume.delay.set(Duration::from_secs(1));
            client.send(&write).await.unwrap();
            client.send(&write[..cut]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
            drop(client);
            let end = served.server.await.unwrap();
            assert!(matches!(end, Err(Hangup::Broken(_))), "cut at {cut}: {end:?}");
            assert_eq!(served.volume.in_flight.get(), 0);
            // What was taken was done, though nobody heard of it.
            assert_eq!(kura_block::Block::read(&*served.volume, 0, 8).await.unwrap().contiguous()[..], *b"complete");
        });
    }
}

#[test]
fn garbage_ends_the_connection_after_what_came_before_it() {
    run(async {
        let (mut client, served) = connect(SIMPLE).await;
        served.volume.delay.set(Duration::from_secs(1));
        client.send(&[&request(FLUSH, 0, 1, 0, 0)[..], &[0x5a; 100]].concat()).await.unwrap();
        assert_eq!(client.reply(0).await.unwrap().0, Reply::Simple { error: 0, cookie: 1 });
        assert_eq!(client.rest().await.unwrap(), b"");
        drop(client);
        assert!(matches!(served.server.await.unwrap(), Err(Hangup::Violation(_))));
    });
}

#[test]
fn a_stopping_server_answers_what_it_took_and_leaves_the_rest() {
    run(async {
        let (mut client, served) = connect(SIMPLE).await;
        served.volume.delay.set(Duration::from_secs(1));
        client.send(&request(FLUSH, 0, 1, 0, 0)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        served.stop.send_replace(true);
        tokio::time::sleep(Duration::from_millis(10)).await;
        // An answer would keep a client from repeating it elsewhere.
        client.send(&[&request(WRITE, 0, 2, 0, 4)[..], b"late", &request(FLUSH, 0, 3, 0, 0)].concat()).await.unwrap();
        assert_eq!(client.reply(0).await.unwrap().0, Reply::Simple { error: 0, cookie: 1 });
        assert_eq!(client.rest().await.unwrap(), b"");
        drop(client);
        assert!(served.server.await.unwrap().is_ok());
        assert_eq!(served.volume.synced.get(), 1);
    });
}

#[test]
fn a_stopping_server_does_not_wait_for_ever() {
    run(async {
        let begun = tokio::time::Instant::now();
        let (mut client, served) = connect(SIMPLE).await;
        // The replies do not fit the pipe, and nobody reads them.
        for cookie in 0..5 {
            client.send(&request(READ, 0, cookie, 0, PIPE_BYTES as u32)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        served.stop.send_replace(true);
        assert!(matches!(served.server.await.unwrap(), Err(Hangup::Slow { .. })));
        assert!(begun.elapsed() < LIMITS.drain_timeout * 2);
        assert_eq!(served.volume.in_flight.get(), 0);
        let mut some = [0; 16];
        client.stream.read_exact(&mut some).await.unwrap();
    });
}
