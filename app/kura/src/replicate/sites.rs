//! The two kuras between which a volume is copied.

use super::volume::Pair;
use crate::replica::refuse_object_store;
use crate::tls;
use anyhow::{Context, Result, bail, ensure};
use kura_admin::{Client, FrameClient, ServerUri, Token};
use kura_replicate::{Options, Origin, Target, is_this_machine};
use std::fmt;
use std::path::Path;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

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

    /// The name of the snapshot that is a point here.
    pub fn name_of(&self, point: &str) -> String {
        format!("{}@{point}", self.volume)
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

/// The kura that has the sources.
#[derive(Clone, Debug)]
pub struct Home<'a> {
    /// Where it is asked.
    pub server: &'a ServerUri,
    /// What it wants to hear, with http and https.
    pub token: Option<&'a str>,
    /// Whom to trust with https.
    pub ca: Option<&'a Path>,
}

impl Home<'_> {
    /// Asks it, and waits this long for an answer.
    pub fn client(&self, timeout: Duration) -> Result<Client> {
        let trust = tls::trusted(self.server, self.ca, "--ca")?;
        Ok(Client::new(self.server.clone(), self.token.map(Token::new), trust).patient(timeout))
    }

    /// A volume of it.
    pub fn volume(&self, name: &str, timeout: Duration) -> Result<Site> {
        Ok(Site::new(self.client(timeout)?, self.server.clone(), name))
    }
}

impl Pair {
    /// Refuses the object store's volume, at either end, before anybody is asked for anything.
    pub fn check_names(&self) -> kura_block::Result<()> {
        refuse_object_store(&self.source.volume)?;
        refuse_object_store(&self.target.volume)
    }

    /// Of a volume of `home`, and what a target names.
    pub fn of(home: &Home<'_>, volume: &str, target: &Target, options: &Options) -> Result<Self> {
        let Target::Kura { server, volume: copy } = target else {
            bail!("a volume goes to a kura: name its REST door and a volume there, https://HOST:PORT/VOLUME");
        };
        let source = home.volume(volume, options.timeout)?;
        let server: ServerUri = server.parse().map_err(anyhow::Error::msg)?;
        if let ServerUri::Http(authority) = &server {
            check_plain(authority.host(), options)?;
        }
        // Never the home's own: whoever has the target would have the home, too.
        let file = options.target_token_file.as_deref();
        let token = file.map(|file| std::fs::read_to_string(file).with_context(|| file.display().to_string()));
        let token = token.transpose()?;
        let token = token.as_deref().map(|token| Token::new(token.trim()));
        let trust = tls::trusted(&server, options.target_ca.as_deref().or(home.ca), "--target-ca")?;
        let client = Client::new(server.clone(), token, trust).patient(options.timeout);
        let there = Site::new(client, server, copy);
        // The same whoever runs it, and another one for each target.
        let id = xxh3_64(format!("{}\n{target}", Origin::Volume(volume.to_owned())).as_bytes()) as u32;
        Ok(Self { source, target: there, id })
    }
}
