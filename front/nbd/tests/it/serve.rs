//! A server on the threads a node uses: clients negotiate on one, and are served on the one that owns the volumes.

use super::memory::Memory;
use kura_block::{Block, Error, Geometry, Result};
use kura_nbd::{Address, Export, Exports, Limits, Listener, Server, Session, Socket, Tls};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::{mpsc, watch};

/// A volume to serve.
#[derive(Clone)]
pub struct Volume {
    pub name: &'static str,
    pub size_bytes: u64,
    pub read_only: bool,
}

/// The volumes as exports.
struct Catalogue(Arc<[Volume]>);

impl Exports for Catalogue {
    async fn list(&self) -> Result<Vec<Export>> {
        Ok(self.0.iter().map(export).collect())
    }

    async fn find(&self, name: &str) -> Result<Export> {
        let found = self.0.iter().find(|volume| volume.name == name).map(export);
        found.ok_or_else(|| Error::missing(format!("volume {name}: no such volume")))
    }
}

fn export(volume: &Volume) -> Export {
    Export {
        name: volume.name.to_owned(),
        description: format!("{} in memory", volume.name),
        read_only: volume.read_only,
        geometry: Geometry { size_bytes: volume.size_bytes, ..Memory::new(0).geometry() },
    }
}

/// A server that runs until it is dropped.
pub struct Running {
    /// Where it listens.
    pub address: Address,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A test that fails says why by itself.
            let _ = thread.join();
        }
    }
}

/// Serves `volumes` at `address`.
pub fn serve(address: &Address, volumes: &[Volume], tls: Tls, limits: Limits) -> Result<Running> {
    let (stop, stopped) = watch::channel(false);
    let (sessions, arriving) = mpsc::unbounded_channel();
    let (bound, binding) = std::sync::mpsc::channel();
    let volumes: Arc<[Volume]> = volumes.into();
    let owner = std::thread::spawn({
        let (volumes, stopped) = (Arc::clone(&volumes), stopped.clone());
        move || own(&volumes, arriving, stopped, limits)
    });
    let door = std::thread::spawn({
        let address = address.clone();
        move || {
            runtime().block_on(async {
                let listener = Listener::bind(&address).await;
                let bound_address = listener.as_ref().map(|listener| listener.address().clone());
                bound.send(bound_address.map_err(Clone::clone)).expect("the caller waits");
                if let Ok(listener) = listener {
                    // The owner outlives the sessions.
                    let begin = move |session| drop(sessions.send(session));
                    Server::new(Catalogue(volumes), limits).serve(listener, tls, begin, stop_signal(stopped)).await;
                }
            });
        }
    });
    let address = binding.recv().expect("the server's thread answers")?;
    Ok(Running { address, stop, threads: vec![door, owner] })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn stop_signal(mut stopped: watch::Receiver<bool>) {
    // A sender that is gone stops as well.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// The thread of the volumes.
fn own(
    volumes: &[Volume],
    mut arriving: mpsc::UnboundedReceiver<Session<Socket>>,
    stopped: watch::Receiver<bool>,
    limits: Limits,
) {
    let memory = |volume: &Volume| (volume.name, Rc::new(Memory::new(volume.size_bytes)));
    let memories: BTreeMap<&str, Rc<Memory>> = volumes.iter().map(memory).collect();
    let local = tokio::task::LocalSet::new();
    local.spawn_local(async move {
        let mut clients = tokio::task::JoinSet::new();
        while let Some(session) = arriving.recv().await {
            let volume: Rc<dyn Block> = memories[session.export().name.as_str()].clone();
            let stop = stop_signal(stopped.clone());
            clients.spawn_local(async move {
                kura_nbd::transmit(session, volume, &(), &limits, stop, std::future::pending()).await
            });
        }
        clients.join_all().await;
    });
    runtime().block_on(local);
}
