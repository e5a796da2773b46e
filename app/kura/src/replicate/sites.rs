//! The two kuras between which a volume is copied.

use crate::{ask, tls};
use anyhow::{Context, Result, ensure};
use kura_admin::{Client, ClientError, Follow, FrameClient, NewSnapshots, ProblemKind, Replica, ServerUri, Token};
use kura_replicate::volume::{Point, pair_of};
use kura_replicate::{Options, is_this_machine};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// A volume of a kura.
#[derive(Clone)]
pub struct Site {
    /// Asks the kura.
    pub client: Client,
    /// The same, for frames.
    pub frames: FrameClient,
    /// The volume.
    pub volume: String,
    server: ServerUri,
}

impl Site {
    /// A volume of a kura.
    fn new(client: Client, server: ServerUri, volume: &str) -> Self {
        Self { frames: FrameClient::new(client.clone()), client, volume: volume.to_owned(), server }
    }

    /// The copy that a target of a source of `home` names.
    pub fn of_target(server: &str, volume: &str, home: &Home<'_>, options: &Options) -> Result<Self> {
        let server: ServerUri = server.parse().map_err(anyhow::Error::msg)?;
        if let ServerUri::Http(authority) = &server {
            check_plain(authority.host(), options)?;
        }
        // Never the home's own: whoever has the target would have the home, too.
        let file = options.target_token_file.as_deref();
        let token = file.map(|file| read_token(file).with_context(|| file.display().to_string())).transpose()?;
        let trust = tls::trusted(&server, options.target_ca.as_deref().or(home.ca), "--target-ca")?;
        let client = Client::new(server.clone(), token, trust).patient(options.timeout);
        Ok(Self::new(client, server, volume))
    }

    /// The name of the snapshot that is a point here.
    pub fn name_of(&self, point: &str) -> String {
        format!("{}@{point}", self.volume)
    }

    /// The points here, those of a pair and of others, from the oldest to the newest.
    pub async fn points(&self, pair: u32) -> Result<Vec<Point>> {
        let snapshots = match self.client.snapshots(Some(&self.volume)).await {
            Err(error) if error.is_missing() => Vec::new(),
            snapshots => snapshots?,
        };
        let points = snapshots.into_iter().filter_map(|snapshot| {
            // The volume may be a snapshot itself.
            let name = snapshot.name.rsplit_once('@')?.1.to_owned();
            let in_use = snapshot.clients > 0 || snapshot.snapshots > 0;
            Some(Point { is_own: pair_of(&name)? == pair, name, in_use })
        });
        Ok(points.collect())
    }

    /// What no other volume says of itself: its pool's UUID, and its number there, which is never used again.
    pub async fn identity(&self) -> Result<String> {
        let (pool, volume) = tokio::try_join!(self.client.pool(), self.client.volume(&self.volume))?;
        Ok(format!("{}/{}", pool.uuid, volume.id))
    }

    /// Whether there is such a volume.
    pub async fn is_there(&self) -> Result<bool> {
        match self.client.volume(&self.volume).await {
            Err(error) if error.is_missing() => Ok(false),
            found => Ok(found.map(|_| true)?),
        }
    }

    /// What it is a copy of, where it is one.
    pub async fn replica(&self) -> Result<Option<Replica>> {
        Ok(self.client.replicas().await?.into_iter().find(|replica| replica.volume == self.volume))
    }

    /// Makes a point of what it holds now.
    pub async fn make(&self, point: &str) -> Result<()> {
        let names = vec![self.name_of(point)];
        self.client.create_snapshots(&NewSnapshots { names, read_only: true }).await?;
        Ok(())
    }

    /// Deletes a point; one that was taken into use just now stays.
    pub async fn delete(&self, point: &str) -> Result<()> {
        self.is_deleted(point).await.map(drop)
    }

    /// Deletes a point; false where it is in use, and stays.
    pub async fn is_deleted(&self, point: &str) -> Result<bool> {
        match self.client.delete_snapshot(&self.name_of(point), false).await {
            Err(ClientError::Refused(problem)) if problem.kind == ProblemKind::Busy => Ok(false),
            Err(error) if error.is_missing() => Ok(true),
            done => Ok(done.map(|()| true)?),
        }
    }

    /// Makes the volume, where there is one, a copy of that source.
    pub async fn adopt(&self, source: String) -> Result<()> {
        let follow = Follow { source: Some(source), ..Follow::default() };
        match self.client.follow_source(&self.volume, &follow).await {
            Err(error) if error.is_missing() => Ok(()),
            done => Ok(done.map(drop)?),
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume {} of {}", self.volume, self.server)
    }
}

/// Refuses plain http to another machine, unless it is asked for.
pub fn check_plain(host: &str, options: &Options) -> Result<()> {
    ensure!(
        is_this_machine(host) || options.allow_plain,
        "http://{host}: is another machine, and whoever is between reads and changes what goes there: name https://, or \
         say --allow-plain"
    );
    Ok(())
}

fn read_token(file: &Path) -> Result<Token> {
    std::fs::read_to_string(file)?.trim().parse().map_err(anyhow::Error::msg)
}

/// The kura that has the sources.
#[derive(Clone, Debug)]
pub struct Home<'a> {
    /// Where it is asked.
    pub server: &'a ServerUri,
    /// What it wants to hear, with http and https.
    pub token: Option<&'a Token>,
    /// Whom to trust with https.
    pub ca: Option<&'a Path>,
}

impl Home<'_> {
    /// Asks it, and waits this long for an answer.
    pub fn client(&self, timeout: Duration) -> Result<Client> {
        Ok(ask::client(self.server, self.token, self.ca)?.patient(timeout))
    }

    /// A volume of it.
    pub fn volume(&self, name: &str, timeout: Duration) -> Result<Site> {
        Ok(Site::new(self.client(timeout)?, self.server.clone(), name))
    }
}
