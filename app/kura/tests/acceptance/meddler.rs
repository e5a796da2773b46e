//! A way to a server on which somebody changes what is said.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Whose words they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum From {
    Client,
    Server,
}

type Change = dyn Fn(From, &mut [u8]) + Send + Sync;

/// A port of this machine that leads to another one.
#[derive(Clone)]
pub struct Meddler {
    pub port: u16,
    change: Arc<Mutex<Arc<Change>>>,
}

impl Meddler {
    /// On the way to `to`; nothing is changed yet.
    pub fn before(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let meddler = Self { port, change: Arc::new(Mutex::new(Arc::new(|_, _| {}))) };
        let own = meddler.clone();
        // Ends with the test's process.
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let ends = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
                for ((from, to), whose) in ends.into_iter().zip([From::Client, From::Server]) {
                    let (from, to, own) = (from.expect("a stream"), to.expect("a stream"), own.clone());
                    std::thread::spawn(move || own.relay(from, to, whose));
                }
            }
        });
        meddler
    }

    /// What is read at once is changed so from now on.
    pub fn change(&self, change: impl Fn(From, &mut [u8]) + Send + Sync + 'static) {
        *self.change.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(change);
    }

    fn relay(&self, mut from: TcpStream, mut to: TcpStream, whose: From) {
        let mut buffer = vec![0; 256 << 10];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            let change = Arc::clone(&self.change.lock().unwrap_or_else(PoisonError::into_inner));
            change(whose, &mut buffer[..len]);
            if to.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

/// Puts words in the place of others, which are as long.
pub fn replace(bytes: &mut [u8], words: &[u8], others: &[u8]) {
    assert_eq!(words.len(), others.len());
    let mut at = 0;
    while at + words.len() <= bytes.len() {
        if bytes[at..].starts_with(words) {
            bytes[at..at + words.len()].copy_from_slice(others);
        }
        at += 1;
    }
}
