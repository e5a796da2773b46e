//! A link between two servers that can be cut, slow, far, or dead.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that are relayed at once.
const PIECE_BYTES: usize = 16 << 10;
/// Pieces that may be between the ends: what a fast link of some 100 ms holds.
const PIECES: usize = 512;

/// A port of this machine that leads to another one.
#[derive(Clone)]
pub struct Link {
    pub port: u16,
    /// The port it leads to.
    pub to: Arc<AtomicU16>,
    /// It is cut after so many bytes, until this is set again.
    pub left_bytes: Arc<AtomicU64>,
    /// While true nothing moves, and nobody is told.
    pub is_dead: Arc<AtomicBool>,
    /// All connections together, in each direction.
    bytes_per_s: u64,
    /// One way.
    delay: Duration,
}

impl Link {
    /// A quick one, to a port that is not said yet.
    pub fn new() -> Self {
        Self::with(u64::MAX, Duration::ZERO)
    }

    /// One of so many bytes a second, which take so long to the other end.
    pub fn with(bytes_per_s: u64, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let link = Self {
            port: listener.local_addr().expect("its address").port(),
            to: Arc::default(),
            left_bytes: Arc::new(AtomicU64::new(u64::MAX)),
            is_dead: Arc::default(),
            bytes_per_s,
            delay,
        };
        let lanes = [Arc::new(Mutex::new(Instant::now())), Arc::new(Mutex::new(Instant::now()))];
        let relaying = link.clone();
        // Ends with the test's process.
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let to = relaying.to.load(Ordering::SeqCst);
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let ways = [(near.try_clone(), far.try_clone()), (far.try_clone(), near.try_clone())];
                for ((from, to), lane) in ways.into_iter().zip(&lanes) {
                    let (from, to) = (from.expect("a stream"), to.expect("a stream"));
                    let (link, lane) = (relaying.clone(), Arc::clone(lane));
                    std::thread::spawn(move || link.relay(from, to, &lane));
                }
            }
        });
        link
    }

    fn relay(&self, mut from: TcpStream, to: TcpStream, lane: &Mutex<Instant>) {
        let _ = (from.set_nodelay(true), to.set_nodelay(true));
        let (far, under_way) = sync_channel(PIECES);
        let other = to.try_clone().expect("a stream");
        std::thread::spawn(move || arrive(under_way, to));
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let read = from.read(&mut buffer);
            // Not even that an end has closed is told.
            while self.is_dead.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let Ok(len @ 1..) = read else { break };
            self.take_time(len, lane);
            let left = self.left_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                if left == u64::MAX { Some(left) } else { left.checked_sub(len as u64) }
            });
            if left.is_err() {
                // Cut is cut, for all.
                self.left_bytes.store(0, Ordering::SeqCst);
                let _ = other.shutdown(Shutdown::Both);
                break;
            }
            if far.send((Instant::now() + self.delay, buffer[..len].to_vec())).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
    }

    fn take_time(&self, len: usize, lane: &Mutex<Instant>) {
        if self.bytes_per_s == u64::MAX {
            return;
        }
        let goes_at = {
            let mut free_at = lane.lock().unwrap_or_else(PoisonError::into_inner);
            *free_at = (*free_at).max(Instant::now()) + Duration::from_secs_f64(len as f64 / self.bytes_per_s as f64);
            *free_at
        };
        std::thread::sleep(goes_at.saturating_duration_since(Instant::now()));
    }
}

fn arrive(under_way: Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    for (at, bytes) in under_way {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
