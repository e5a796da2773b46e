//! Full stores: what gives room can always be done.

use super::{assert_sound, bucket, bytes, put, rig};
use crate::*;
use kura_block::Kind;
use kura_sim::Sim;
use rand::RngExt;

/// A client that puts until the store is full, removes a few objects and goes on, with the power gone now and then: how often it
/// was full. What it removes goes, always.
fn live_at_the_limit(seed: u64, segments: u64, steps: u64) -> u32 {
    let (sim, disk) = rig(seed, segments << 16);
    let mut rng = Sim::new(seed).rng("client");
    let limits: Vec<usize> = (0..3).map(|_| [50, 300, 3900, 8000, 20_000, 100_000][rng.random_range(0..6)]).collect();
    let is_fixed = rng.random_bool(0.4);
    let key_bytes = if rng.random_bool(0.3) { 500 } else { 1 };
    let content = bytes(seed, 100_000);
    let mut alive: Vec<Vec<u8>> = Vec::new();
    let mut fulls = 0;
    for session in 0..4 {
        let store = super::open(&sim, &disk);
        sim.block_on(async {
            let bucket = bucket(&store).await;
            for step in session * steps / 4..(session + 1) * steps / 4 {
                let limit = limits[rng.random_range(0..3)];
                let len = if is_fixed { limit } else { rng.random_range(1..limit) };
                let key = format!("{step:0key_bytes$}").into_bytes();
                match store.put(bucket, &key, put(&content[..len])).await {
                    Ok(_) => alive.push(key),
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Full, "{error}");
                        fulls += 1;
                        for _ in 0..rng.random_range(1..6).min(alive.len()) {
                            let key = alive.swap_remove(rng.random_range(0..alive.len()));
                            let removed = store.remove(bucket, &key, Which::Latest).await;
                            removed.unwrap_or_else(|error| {
                                panic!("seed {seed}, step {step}, full {fulls} times: {error}")
                            });
                        }
                    }
                }
            }
        });
        assert_sound(&store);
        drop(store);
        sim.crash();
    }
    fulls
}

#[test]
fn a_store_that_is_full_again_and_again_never_refuses_a_removal() {
    // Each came to a dead end when puts went on in segments that removals and the cleaner had taken.
    for seed in [0, 2, 5, 8, 9, 11, 13, 15, 18, 20] {
        let fulls = live_at_the_limit(seed, 20 + seed * 7 % 60, 800);
        assert!(fulls > 0, "seed {seed}");
    }
}

/// Uploads, or readers of what is removed, have something in ten data segments that are empty otherwise: none of those can be
/// emptied, and the cleaner must find room elsewhere.
fn clean_beside_what_stays(is_read: bool) {
    let (sim, disk) = rig(2, 64 << 16);
    let store = super::open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let (mut slow, mut readers) = (store.upload(), Vec::new());
        for at in 0..10_u64 {
            if is_read {
                let key = format!("read{at}");
                store.put(bucket, key.as_bytes(), put(&bytes(at, 10_000))).await.unwrap();
                readers.push(store.read(bucket, key.as_bytes(), Which::Latest).await.unwrap());
            } else {
                slow.write(kura_block::Buf::copy_of(&bytes(at, 10_000)).into()).await.unwrap();
                slow.push().await.unwrap();
            }
            store.put(bucket, format!("large{at}").as_bytes(), put(&bytes(at, 44_000))).await.unwrap();
        }
        for at in 0..10_u64 {
            store.remove(bucket, format!("large{at}").as_bytes(), Which::Latest).await.unwrap();
            if is_read {
                store.remove(bucket, format!("read{at}").as_bytes(), Which::Latest).await.unwrap();
            }
        }
        let fill = async |prefix: &str| {
            for at in 0.. {
                if store.put(bucket, format!("{prefix}{at}").as_bytes(), put(&bytes(7, 3000))).await.is_err() {
                    return at;
                }
            }
            0
        };
        let count = fill("a").await;
        for at in (0..count).filter(|at| at % 5 < 2) {
            store.remove(bucket, format!("a{at}").as_bytes(), Which::Latest).await.unwrap();
        }
        let again = fill("b").await;
        assert!(again > count / 4, "read {is_read}: {count} objects fit, and {again} where two of five were");
        drop((slow, readers));
    });
    assert_sound(&store);
}

#[test]
fn what_uploads_hold_does_not_keep_the_cleaner_busy() {
    clean_beside_what_stays(false);
}

#[test]
fn what_is_dead_and_read_does_not_keep_the_cleaner_busy() {
    clean_beside_what_stays(true);
}
