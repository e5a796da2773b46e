//! The MD5 of bodies, which S3 shows as their `ETag`, several bodies' at once.
//!
//! ```text
//!   body A  [piece][piece]──┐
//!   body B  [piece]─────────┼──> lanes ──> the chains of A, B and C, a piece further
//!   body C  [piece]─────────┘
//! ```
//! A body's pieces wait until one body can wait no longer: it takes along what others have waiting, in lanes of the same
//! vectors ("multi-buffer hashing"). Which bodies come together changes none of their sums.

mod lanes;

use kura_block::Buf;
use lanes::{BEGINNING, BLOCK_BYTES, LANES, Lane, State, compress};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::OwnedMutexGuard;

/// Pieces that a body has waiting at most.
const WAITING: usize = 2;
/// Smaller pieces are not worth a look at the other bodies.
const SHARED_BYTES: usize = 32 << 10;

/// A sum.
pub(crate) type Sum = [u8; 16];

/// A body's MD5 as its pieces come.
#[derive(Default)]
pub(crate) struct Md5 {
    body: Arc<Body>,
    /// Others see it.
    listed: bool,
}

#[derive(Default)]
struct Body {
    waiting: Mutex<VecDeque<Buf>>,
    /// Locked by who takes in what waits.
    chain: Arc<tokio::sync::Mutex<Chain>>,
}

/// What the pieces so far come to.
struct Chain {
    state: State,
    bytes: u64,
    /// What is less than a block: only behind the last piece.
    rest: Vec<u8>,
}

/// The bodies that have had something waiting.
static BODIES: Mutex<Vec<Arc<Body>>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Md5 {
    /// The next piece, whole blocks unless it is the last one.
    pub async fn push(&mut self, piece: Buf) {
        if !self.listed && piece.len() >= SHARED_BYTES {
            locked(&BODIES).push(Arc::clone(&self.body));
            self.listed = true;
        }
        let waiting = {
            let mut waiting = locked(&self.body.waiting);
            waiting.push_back(piece);
            waiting.len()
        };
        if waiting >= WAITING {
            self.take_in(WAITING - 1).await;
        }
    }

    /// The sum of all pieces.
    pub async fn finish(self) -> Sum {
        self.take_in(0).await;
        self.body.chain.lock().await.finish()
    }

    /// Takes in pieces until at most so many wait.
    async fn take_in(&self, waiting: usize) {
        if self.listed {
            // What others' sockets hold comes along.
            tokio::task::yield_now().await;
        }
        loop {
            let mut chain = Arc::clone(&self.body.chain).lock_owned().await;
            let piece = {
                let mut pieces = locked(&self.body.waiting);
                if pieces.len() <= waiting {
                    return;
                }
                pieces.pop_front()
            };
            let Some(piece) = piece else { return };
            if piece.len() < SHARED_BYTES {
                compress(vec![chain.lane(&piece)]);
            } else {
                side_by_side(chain, piece);
            }
        }
    }
}

impl Drop for Md5 {
    fn drop(&mut self) {
        if self.listed {
            locked(&BODIES).retain(|body| !Arc::ptr_eq(body, &self.body));
        }
    }
}

impl Body {
    /// Its chain and the piece that is next, if somebody is free to take it in.
    fn offer(&self) -> Option<(OwnedMutexGuard<Chain>, Buf)> {
        let chain = Arc::clone(&self.chain).try_lock_owned().ok()?;
        let piece = locked(&self.waiting).pop_front()?;
        Some((chain, piece))
    }
}

/// Takes in a piece, and beside it what other bodies have waiting.
fn side_by_side(chain: OwnedMutexGuard<Chain>, piece: Buf) {
    let mut together = vec![(chain, piece)];
    // Its own chain is locked: it offers nothing.
    let others = locked(&BODIES).clone();
    together.extend(others.iter().filter_map(|body| body.offer()).take(LANES - 1));
    compress(together.iter_mut().map(|(chain, piece)| chain.lane(piece)).collect());
}

impl Default for Chain {
    fn default() -> Self {
        Self { state: BEGINNING, bytes: 0, rest: Vec::new() }
    }
}

impl Chain {
    /// Notes what of `piece` is no whole block, and gives the rest of it to take in.
    fn lane<'a>(&'a mut self, piece: &'a [u8]) -> Lane<'a> {
        debug_assert!(self.rest.is_empty(), "behind the last piece");
        let (blocks, rest) = piece.as_chunks::<BLOCK_BYTES>();
        self.bytes += piece.len() as u64;
        self.rest = rest.to_vec();
        Lane { state: &mut self.state, blocks }
    }

    fn finish(&mut self) -> Sum {
        let mut end = std::mem::take(&mut self.rest);
        end.push(0x80);
        let bytes = (end.len() + 8).next_multiple_of(BLOCK_BYTES);
        end.resize(bytes - 8, 0);
        end.extend((self.bytes * 8).to_le_bytes());
        compress(vec![Lane { state: &mut self.state, blocks: end.as_chunks().0 }]);
        let mut sum = Sum::default();
        for (bytes, word) in sum.as_chunks_mut::<4>().0.iter_mut().zip(self.state) {
            *bytes = word.to_le_bytes();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use md5::Digest;
    use rand::{Rng, RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn noise(random: &mut ChaCha8Rng, bytes: usize) -> Vec<u8> {
        let mut noise = vec![0; bytes];
        random.fill_bytes(&mut noise);
        noise
    }

    async fn summed(body: &[u8], piece_bytes: usize) -> Sum {
        let mut md5 = Md5::default();
        for piece in body.chunks(piece_bytes) {
            md5.push(Buf::copy_of(piece)).await;
            tokio::task::yield_now().await;
        }
        md5.finish().await
    }

    #[tokio::test]
    async fn a_body_of_any_size_is_summed_as_md5_does() {
        let random = &mut ChaCha8Rng::seed_from_u64(1);
        let around = |bytes: usize| bytes.saturating_sub(9)..bytes + 9;
        let sizes = around(0).chain(around(64)).chain(around(SHARED_BYTES)).chain(around(3 * SHARED_BYTES + 64));
        for body in sizes.map(|bytes| noise(random, bytes)) {
            assert_eq!(summed(&body, SHARED_BYTES).await, *md5::Md5::digest(&body), "{} bytes", body.len());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn bodies_that_come_together_are_each_their_own() {
        let random = &mut ChaCha8Rng::seed_from_u64(2);
        for bodies in 2..=20 {
            let tasks: Vec<_> = (0..bodies)
                .map(|_| {
                    let bytes = random.random_range(0..12 * SHARED_BYTES);
                    let body = noise(random, bytes);
                    let piece_bytes = SHARED_BYTES << random.random_range(0..3);
                    let breaks_off = random.random_range(0..4) == 0;
                    tokio::spawn(async move {
                        if breaks_off {
                            let mut md5 = Md5::default();
                            md5.push(Buf::copy_of(&body)).await;
                            return;
                        }
                        assert_eq!(summed(&body, piece_bytes).await, *md5::Md5::digest(&body));
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn what_others_have_waiting_comes_along() {
        let piece = Buf::copy_of(&vec![7; SHARED_BYTES]);
        let mut comes_along = false;
        // The lanes may be full of bodies of other tests.
        for _ in 0..100 {
            let (mut one, mut other) = (Md5::default(), Md5::default());
            other.push(piece.clone()).await;
            one.push(piece.clone()).await;
            assert_eq!(one.finish().await, *md5::Md5::digest(&*piece));
            comes_along |= other.body.chain.lock().await.bytes == SHARED_BYTES as u64;
            assert_eq!(other.finish().await, *md5::Md5::digest(&*piece));
        }
        assert!(comes_along);
    }
}
