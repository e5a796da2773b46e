//! The NBD door in front of a node: negotiates on the doors' threads, serves each client on its volume's.

mod changes;

use crate::serve::s3;
use crate::{config, descriptors};
use anyhow::Result;
use kura_admin::Replicas;
use kura_block::{Error, Geometry, Kind};
use kura_controller::{Node, VolumeInfo};
use kura_nbd::{Address, Ended, Export, Exports, Limits, Listener, Server, Session, Socket, Tls, TlsKeys, transmit};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tracing::Instrument;

/// A stopping server gives requests in flight this long.
const DRAIN: Duration = Duration::from_secs(3);

/// The addresses a server listens at, each with its encryption.
pub struct Doors {
    listeners: Vec<(Listener, Tls)>,
    limits: Limits,
}

impl Doors {
    /// Listens as `nbd` says, and on the Unix socket.
    pub async fn open(nbd: &config::Nbd, unix: PathBuf) -> Result<Self> {
        let mut listeners = vec![(Listener::bind(&Address::Unix(unix)).await?, Tls::Off)];
        if let config::Listen::At(address) = nbd.listen.get_ref() {
            let listener = Listener::bind(&Address::Tcp(address.to_string())).await?;
            listeners.push((listener, tls(nbd)?));
        }
        let limits = Limits {
            connections: *nbd.connections.get_ref(),
            payload_bytes: nbd.request_bytes.get_ref().0 as u32,
            requests: *nbd.in_flight.get_ref(),
            drain_timeout: DRAIN,
            ..Limits::default()
        };
        Ok(Self { listeners, limits })
    }

    /// Takes no more clients than `limit` descriptors have room for.
    pub fn fit(&mut self, limit: usize) -> Result<()> {
        self.limits = descriptors::fit(self.limits, limit, descriptors::open())?;
        Ok(())
    }

    /// URIs of the volumes, in which `{volume}` stands for a volume's name.
    pub fn uris(&self) -> Vec<String> {
        let uri = |(listener, tls): &(Listener, Tls)| match (listener.address(), tls) {
            (Address::Unix(path), _) => format!("nbd+unix:///{{volume}}?socket={}", escaped(&path.to_string_lossy())),
            (Address::Tcp(address), Tls::Required(_)) => format!("nbds://{address}/{{volume}}"),
            (Address::Tcp(address), _) => format!("nbd://{address}/{{volume}}"),
        };
        self.listeners.iter().rev().map(uri).collect()
    }

    /// Serves the volumes of `node` until `stop` says true, and every client has left or was sent away.
    pub async fn serve(self, node: Node, replicas: Arc<dyn Replicas>, stop: watch::Receiver<bool>) {
        let server = Server::new(Volumes { node: node.clone(), replicas: Arc::clone(&replicas) }, self.limits);
        // Each client holds a clone of `here`: when all are dropped, all have left.
        let (here, mut left) = mpsc::channel::<()>(1);
        let begin = {
            let (limits, stop) = (self.limits, stop.clone());
            move |session: Session<Socket>| {
                let (node, stop, here) = (node.clone(), stop.clone(), here.clone());
                let replicas = Arc::clone(&replicas);
                let span = tracing::info_span!("nbd", peer = %session.peer(), volume = %session.export().name);
                let attended = async move {
                    attend((node, replicas), session, limits, stop).await;
                    drop(here);
                };
                tokio::spawn(attended.instrument(span));
            }
        };
        let listening = self
            .listeners
            .into_iter()
            .map(|(listener, tls)| server.serve(listener, tls, begin.clone(), stopped(stop.clone())));
        futures::future::join_all(listening).await;
        drop(begin);
        left.recv().await;
    }
}

fn tls(nbd: &config::Nbd) -> Result<Tls> {
    let Some(tls) = &nbd.tls else { return Ok(Tls::Off) };
    let authority = tls.client_ca.as_ref().map(|ca| ca.get_ref().as_path());
    let keys = TlsKeys::load(tls.cert.get_ref(), tls.key.get_ref(), authority)?;
    // Where clients must show a certificate, none may go without TLS.
    Ok(if authority.is_some() { Tls::Required(keys) } else { Tls::Offered(keys) })
}

/// A path as the query of a URI has it.
fn escaped(path: &str) -> String {
    use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
    const RESERVED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'&').add(b'#').add(b'+').add(b'?').add(b'"');
    utf8_percent_encode(path, RESERVED).to_string()
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error says that the sender is gone: a stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Brings a client to the thread that owns its volume, and serves it there; where the volume moves, the client follows.
async fn attend(
    (node, replicas): (Node, Arc<dyn Replicas>),
    mut session: Session<Socket>,
    limits: Limits,
    stop: watch::Receiver<bool>,
) {
    let mut number = None;
    let served = loop {
        match serve((&node, &replicas), session, &mut number, limits, stop.clone()).await {
            Ok(Ended::Moved(next)) => session = *next,
            Ok(Ended::Left(left)) => break Ok(left),
            Err(error) => break Err(error),
        }
    };
    match served {
        Ok(Ok(())) => tracing::debug!("NBD client left"),
        Ok(Err(hangup)) => tracing::info!(%hangup, "NBD client dropped"),
        Err(error) => tracing::warn!(%error, "NBD client not served"),
    }
}

/// Serves a client on the thread that owns its volume now, as long as that is so. `number` is the volume's once it is known:
/// another one of its name is not served to this client.
async fn serve(
    (node, replicas): (&Node, &Arc<dyn Replicas>),
    session: Session<Socket>,
    number: &mut Option<u64>,
    limits: Limits,
    stop: watch::Receiver<bool>,
) -> kura_block::Result<Ended<Socket>> {
    let name = session.export().name.clone();
    let (door, info) = node.find(&name).await?;
    if *number.get_or_insert(info.id) != info.id {
        return Err(Error::missing(format!("volume {name}: it was deleted, and made anew")));
    }
    let replicas = Arc::clone(replicas);
    let serve = door.call(move |controller| {
        Box::pin(async move {
            let volume = match controller.open_volume(&name) {
                // It was on its way when it was found.
                Err(error) if error.kind() == Kind::Missing => return Ok(Ended::Moved(Box::new(session))),
                opened => opened?,
            };
            // It may have become a copy since the client asked; from here on it sees that it is open.
            replicas.check_free(&name).await?;
            drop(replicas);
            let owner = Rc::clone(&controller);
            let changes = changes::Changes { controller, volume: name };
            let ended = transmit(session, volume, &changes, &limits, stopped(stop), owner.moved(info.id)).await;
            if let Ended::Moved(mut session) = ended {
                let lost = |error| Error::retry(format!("NBD client lost on its way to its volume: {error}"));
                session.detach().map_err(lost)?;
                return Ok(Ended::Moved(session));
            }
            Ok(ended)
        })
    });
    serve.await.flatten()
}

/// The node's volumes as exports.
struct Volumes {
    node: Node,
    replicas: Arc<dyn Replicas>,
}

impl Exports for Volumes {
    async fn list(&self) -> kura_block::Result<Vec<Export>> {
        let volumes = self.node.volumes().await?.into_iter();
        Ok(volumes.filter(|volume| !s3::is_ours(&volume.spec.name)).map(export).collect())
    }

    async fn find(&self, name: &str) -> kura_block::Result<Export> {
        if s3::is_ours(name) {
            return Err(Error::missing(format!("volume {name} has the object store: ask for objects over S3")));
        }
        // In the middle of a transfer a copy is neither what it was nor what it will be.
        self.replicas.check_free(name).await?;
        Ok(export(self.node.find(name).await?.1))
    }

    /// The only volume: its snapshots go by their names alone.
    async fn default_export(&self) -> kura_block::Result<Export> {
        kura_nbd::only(self.list().await?.into_iter().filter(|export| !export.name.contains('@')).collect())
    }

    async fn contexts(&self, export: &str) -> kura_block::Result<Vec<String>> {
        Ok(changes::contexts(&self.node.volumes().await?, export))
    }
}

fn export(volume: VolumeInfo) -> Export {
    let geometry = Geometry {
        size_bytes: volume.spec.size_bytes,
        align_bytes: 1,
        optimal_bytes: kura_block::BLOCK_BYTES as u32,
        rotational: false,
        discards: true,
    };
    Export { name: volume.spec.name, description: String::new(), read_only: volume.spec.read_only, geometry }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_path_in_a_uri_is_escaped() {
        assert_eq!(super::escaped("/srv/a b/nbd.sock"), "/srv/a%20b/nbd.sock");
        assert_eq!(super::escaped("/srv/50%&more"), "/srv/50%25%26more");
    }
}
