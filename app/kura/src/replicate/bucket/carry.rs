//! Objects on their way to the target, and what came of them.

use super::content::Content;
use super::lists::{WAITS, again, told};
use super::store::{Attributes, Trouble};
use super::{Pair, failure};
use anyhow::{Error, Result};
use kura_admin::ClientError;
use kura_replicate::bucket::{Carried, Here, There, Upload, is_addressable, part_bytes};
use kura_replicate::{Failure, Limit, Options, Progress, Target};
use std::cell::{Ref, RefCell};
use std::collections::HashSet;
use std::sync::Arc;
use tokio::time::sleep;

/// Headers that an object keeps, besides its user's own.
const KEPT: [&str; 7] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
    "x-amz-website-redirect-location",
];
const NO_URL: &str = "its key has . or .. between slashes, which no URL can name";

/// What a run came to so far.
#[derive(Default)]
pub struct Tally {
    /// Objects that were carried, or are to be.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Objects that were deleted, or are to be.
    pub deleted: u64,
    /// Objects that were there.
    pub unchanged: u64,
    /// What was not done.
    pub failures: Vec<Failure>,
    keys: HashSet<u128>,
}

/// A run under way.
pub struct Run<'a> {
    pair: &'a Pair,
    /// As the source is asked for it.
    bucket: &'a str,
    target: &'a Target,
    dry_run: bool,
    progress: &'a Progress,
    limit: Arc<Limit>,
    carried: RefCell<Carried>,
    tally: RefCell<Tally>,
}

/// Why an object was not carried.
enum Why {
    /// Another try may carry it.
    Passing(String),
    /// Nothing will.
    Object(String),
    /// Nor any other one.
    Run(Error),
}

impl<'a> Run<'a> {
    /// A run that begins.
    pub fn new(
        pair: &'a Pair,
        bucket: &'a str,
        target: &'a Target,
        options: &Options,
        progress: &'a Progress,
        carried: Carried,
    ) -> Self {
        let limit = Arc::new(Limit::new(options.bandwidth));
        let (carried, tally) = (RefCell::new(carried), RefCell::default());
        Self { pair, bucket, target, dry_run: options.dry_run, progress, limit, carried, tally }
    }

    /// What is known of objects.
    pub fn carried(&self) -> Ref<'_, Carried> {
        self.carried.borrow()
    }

    /// Ends uploads that a run before left.
    pub async fn end_uploads(&self) -> Result<()> {
        let uploads = self.carried().uploads();
        for Upload { key, id } in &uploads {
            let done = again(async || self.pair.target.abort((key, id)).await).await;
            done.map_err(|trouble| told(self.target, &trouble))?;
        }
        Ok(self.carried().forget_uploads()?)
    }

    /// Counts an object that stays.
    pub fn keep(&self, here: &Here) {
        let mut tally = self.tally.borrow_mut();
        tally.unchanged += 1;
        tally.keys.insert(Carried::key_of(&here.key));
    }

    /// Deletes an object at the target.
    pub async fn delete(&self, there: &There) -> Result<()> {
        if !self.dry_run {
            if !is_addressable(&there.key) {
                self.fail(&there.key, NO_URL);
                return Ok(());
            }
            match again(async || self.pair.target.delete(&there.key).await).await {
                Err(trouble @ Trouble::Away(_)) => return Err(told(self.target, &trouble)),
                Err(trouble) => {
                    self.fail(&there.key, format!("the target: {trouble}"));
                    return Ok(());
                }
                Ok(()) => {}
            }
        }
        self.tally.borrow_mut().deleted += 1;
        Ok(())
    }

    /// Carries an object.
    pub async fn carry(&self, here: &Here) -> Result<()> {
        self.progress.expect(1, here.size_bytes);
        if !self.dry_run {
            if !is_addressable(&here.key) {
                self.fail(&here.key, NO_URL);
                return Ok(());
            }
            match self.send_until_it_is_there(here).await {
                Ok(etag) => self.carried.borrow_mut().carried(here, &etag)?,
                Err(Why::Run(error)) => return Err(error),
                Err(Why::Object(cause) | Why::Passing(cause)) => {
                    self.fail(&here.key, cause);
                    return Ok(());
                }
            }
            for counter in self.progress.workers() {
                counter.add(1, here.size_bytes);
                counter.sent(here.size_bytes);
            }
        }
        let mut tally = self.tally.borrow_mut();
        tally.files += 1;
        tally.bytes += here.size_bytes;
        tally.keys.insert(Carried::key_of(&here.key));
        Ok(())
    }

    async fn send_until_it_is_there(&self, here: &Here) -> Result<String, Why> {
        for wait in WAITS {
            match self.send(here).await {
                Err(Why::Passing(_)) => sleep(wait).await,
                done => return done,
            }
        }
        self.send(here).await
    }

    /// Sends an object, and tells the `ETag` that it has there.
    async fn send(&self, here: &Here) -> Result<String, Why> {
        let (source, version) = (&self.pair.source, Some(here.version.as_str()));
        let stat = source.object(self.bucket, &here.key, version).await.map_err(of_source)?;
        let attributes = kept(stat.attributes);
        let bytes = source.read_object(self.bucket, &here.key, version).await.map_err(of_source)?;
        let content = Content::new(bytes, Arc::clone(&self.limit));
        let sent = match part_bytes(here.size_bytes) {
            None => {
                let body = content.body(here.size_bytes);
                let put = self.pair.target.put(&here.key, &attributes, here.size_bytes, body).await;
                put.map_err(|trouble| self.of_target(trouble))
            }
            Some(part_bytes) => self.send_parts(here, &attributes, part_bytes, &content).await,
        };
        match (sent, content.failed().await) {
            (Err(_), Some(cause)) => Err(Why::Passing(format!("the source: {cause}"))),
            (sent, _) => sent,
        }
    }

    async fn send_parts(
        &self,
        here: &Here,
        attributes: &Attributes,
        part: u64,
        content: &Content,
    ) -> Result<String, Why> {
        let target = &self.pair.target;
        let id = target.begin(&here.key, attributes).await.map_err(|trouble| self.of_target(trouble))?;
        let upload = Upload { key: here.key.clone(), id };
        // Before its first part, so that no run that is killed leaves parts that nobody knows of.
        self.carried().begins(&upload).map_err(|error| Why::Run(error.into()))?;
        let named = (upload.key.as_str(), upload.id.as_str());
        let sent = async {
            let mut etags = Vec::new();
            let mut left = here.size_bytes;
            while left > 0 {
                let size = part.min(left);
                let number = etags.len() as u16 + 1;
                etags.push(target.part(named, number, size, content.body(size)).await?);
                left -= size;
            }
            target.complete(named, &etags).await
        };
        let sent = sent.await;
        if sent.is_err() {
            // What is left of it, the next run ends.
            target.abort(named).await.ok();
        }
        sent.map_err(|trouble| self.of_target(trouble))
    }

    /// What came of it. Both lists were read to their ends.
    pub fn end(self) -> Result<Tally> {
        let (mut tally, mut carried) = (self.tally.into_inner(), self.carried.into_inner());
        tally.failures.sort();
        if !self.dry_run && tally.failures.is_empty() {
            carried.forget_uploads()?;
            carried.tidy(&tally.keys)?;
        }
        Ok(tally)
    }

    fn fail(&self, key: &str, cause: impl ToString) {
        self.tally.borrow_mut().failures.push(failure(key, cause));
    }

    fn of_target(&self, trouble: Trouble) -> Why {
        match trouble {
            Trouble::Away(_) => Why::Run(told(self.target, &trouble)),
            Trouble::Passing(cause) => Why::Passing(format!("the target: {cause}")),
            Trouble::Refused(cause) => Why::Object(format!("the target: {cause}")),
        }
    }
}

/// What is carried of an object besides its content.
pub fn kept(attributes: Attributes) -> Attributes {
    let is_kept = |name: &str| name.starts_with("x-amz-meta-") || KEPT.contains(&name);
    attributes.into_iter().filter(|(name, _)| is_kept(name)).collect()
}

fn of_source(error: ClientError) -> Why {
    match error {
        ClientError::Refused(problem) => Why::Object(format!("the source: {problem}")),
        error => Why::Run(error.into()),
    }
}
