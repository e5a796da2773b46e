//! Client and server in one thread, in virtual time, over a pipe.

use crate::client::{ACK, Client, GO, SET_META_CONTEXT, STRUCTURED_REPLY, context_query, info_query};
use crate::memory::Memory;
use kura_block::{Block, Error, Geometry, Local, Result};
use kura_nbd::{Contexts, Ended, Export, Exports, Extent, Hangup, Limits, Tls, handshake, transmit};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

/// Some exports: enough to negotiate about.
#[derive(Clone)]
pub struct Fixed(pub Vec<Export>);

impl Exports for Fixed {
    async fn list(&self) -> Result<Vec<Export>> {
        Ok(self.0.clone())
    }

    async fn find(&self, name: &str) -> Result<Export> {
        let found = self.0.iter().find(|export| export.name == name).cloned();
        found.ok_or_else(|| Error::missing(format!("volume {name}: no such volume")))
    }

    async fn contexts(&self, _export: &str) -> Result<Vec<String>> {
        Ok(vec![ODD.to_owned()])
    }
}

/// A metadata context that has bit 2 set of every other 4096 bytes.
pub const ODD: &str = "x-test:odd";

/// Tells of [`ODD`].
struct Odd;

impl Contexts for Odd {
    fn status<'a>(&'a self, context: &'a str, offset: u64, len: u64) -> Local<'a, Result<Vec<Extent>>> {
        assert_eq!(context, ODD);
        let border = |at: u64| (at / 4096 + 1) * 4096;
        let mut extents = Vec::new();
        let mut at = offset;
        while at < offset + len {
            let flags = (at / 4096 % 2) as u32 * 4;
            extents.push(Extent { len_bytes: border(at) - at, flags });
            at = border(at);
        }
        Box::pin(std::future::ready(Ok(extents)))
    }
}

/// An export of `size_bytes`.
pub fn export(name: &str, size_bytes: u64) -> Export {
    let geometry = Geometry { size_bytes, ..Memory::new(0).geometry() };
    Export { name: name.to_owned(), description: format!("the {name}"), read_only: false, geometry }
}

/// Runs a test in virtual time, on a thread with tasks of its own.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let limit = Duration::from_hours(1);
    let test = async { tokio::time::timeout(limit, test).await.expect("the test hangs") };
    runtime.expect("a runtime").block_on(LocalSet::new().run_until(test))
}

/// A server of one connection.
pub struct Served {
    pub volume: Rc<Memory>,
    pub stop: watch::Sender<bool>,
    pub server: JoinHandle<std::result::Result<(), Hangup>>,
}

/// What is different from a writable volume of 1 MiB with simple replies.
#[derive(Clone, Copy, Default)]
pub struct Setup {
    pub read_only: bool,
    pub structured: bool,
    /// The metadata contexts to select besides, where replies are structured.
    pub context: Option<&'static str>,
    pub limits: Limits,
    /// How long one thread after the other serves it.
    pub moves_every: Option<Duration>,
}

pub const SIZE: u64 = 1 << 20;

/// What fits into the pipe to the server, and back.
pub const PIPE_BYTES: usize = 256 << 10;

/// A client connected to a volume, past the handshake.
pub async fn connect(setup: Setup) -> (Client<DuplexStream>, Served) {
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    let volume = Rc::new(Memory::new(SIZE));
    let (stop, mut stopped) = watch::channel(false);
    let server = spawn_local({
        let volume = Rc::clone(&volume);
        async move {
            let exports = Fixed(vec![Export { read_only: setup.read_only, ..export("disk", SIZE) }]);
            let mut session = handshake(theirs, &exports, &Tls::Off, &setup.limits).await?.expect("a session");
            loop {
                let stop = async {
                    let _ = stopped.wait_for(|stopped| *stopped).await;
                };
                let moved = async {
                    match setup.moves_every {
                        Some(time) => tokio::time::sleep(time).await,
                        None => std::future::pending().await,
                    }
                };
                let served = Rc::<Memory>::clone(&volume);
                match transmit(session, served, &Odd, &setup.limits, stop, moved).await {
                    Ended::Left(left) => return left,
                    Ended::Moved(next) => session = *next,
                }
            }
        }
    });
    let mut client = Client::greet(ours, 3).await.expect("a greeting");
    if setup.structured {
        assert_eq!(client.verdict(STRUCTURED_REPLY, b"").await.expect("a reply"), ACK);
        let query = context_query("disk", &setup.context.into_iter().chain(["base:allocation"]).collect::<Vec<_>>());
        assert_eq!(client.verdict(SET_META_CONTEXT, &query).await.expect("a reply"), ACK);
    }
    assert_eq!(client.verdict(GO, &info_query("disk", &[])).await.expect("a reply"), ACK);
    (client, Served { volume, stop, server })
}

/// A client that has negotiated nothing yet, with a server of these exports, all of one volume.
pub async fn greeted(exports: Vec<Export>) -> Client<DuplexStream> {
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    spawn_local(async move {
        let limits = Limits::default();
        // A client that leaves before it chose is none to serve.
        let Ok(Some(session)) = handshake(theirs, &Fixed(exports), &Tls::Off, &limits).await else { return };
        let (volume, stop) = (Rc::new(Memory::new(SIZE)), std::future::pending());
        drop(transmit(session, volume, &Odd, &limits, stop, std::future::pending()).await);
    });
    Client::greet(ours, 3).await.expect("a greeting")
}
