//! Objects on their way to the target, and what came of them.

use super::lists::{again, told, twice};
use super::store::{Attributes, Part};
use super::wire::{Answered, Body, Trouble};
use super::{Pair, content, failure};
use anyhow::{Error, Result};
use base64_simd::STANDARD;
use futures::{StreamExt, TryStreamExt, stream};
use hex_simd::AsciiCase;
use kura_admin::{ClientError, ProblemKind};
use kura_replicate::bucket::{Carried, Here, There, Upload, is_addressable, part_bytes, parts};
use kura_replicate::{Failure, Limit, Options, Progress, Target};
use md5::{Digest, Md5};
use std::cell::{Ref, RefCell};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Headers that an object keeps, besides its user's own.
const KEPT: [&str; 8] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
    TAGS,
    "x-amz-website-redirect-location",
];
/// An object's tags, which a target takes with a put, and tells otherwise.
pub const TAGS: &str = "x-amz-tagging";
/// The type of an object that has none.
const UNTYPED: &str = "binary/octet-stream";
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
    /// Keys of all objects that there are.
    keys: HashSet<u128>,
}

/// A run under way.
pub struct Run<'a> {
    pair: &'a Pair,
    /// As the source is asked for it.
    bucket: &'a str,
    target: &'a Target,
    /// Nothing is changed.
    plans: bool,
    workers: usize,
    /// Bodies that are on their way at once, of objects and of parts of them.
    turns: Semaphore,
    progress: &'a Progress,
    limit: Arc<Limit>,
    carried: RefCell<Carried>,
    /// Uploads that runs before left, and nobody went on with yet.
    left: RefCell<Vec<Upload>>,
    /// Uploads that the next run is to go on with.
    cut: RefCell<Vec<Upload>>,
    tally: RefCell<Tally>,
}

/// Why an object was not carried, or compared.
pub enum Why {
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
    ) -> Result<Self> {
        let left = carried.uploads();
        if !options.dry_run {
            // A line that was torn must not spoil the next one.
            carried.keep_uploads(&left)?;
        }
        Ok(Self {
            pair,
            bucket,
            target,
            plans: options.dry_run,
            workers: options.workers,
            turns: Semaphore::new(options.workers),
            progress,
            limit: Arc::new(Limit::new(options.bandwidth)),
            carried: RefCell::new(carried),
            left: RefCell::new(left),
            cut: RefCell::default(),
            tally: RefCell::default(),
        })
    }

    /// What is known of objects.
    pub fn carried(&self) -> Ref<'_, Carried> {
        self.carried.borrow()
    }

    /// Counts an object that stays.
    pub fn keep(&self, here: &Here) {
        let mut tally = self.tally.borrow_mut();
        tally.unchanged += 1;
        tally.keys.insert(Carried::key_of(&here.key));
    }

    /// Deletes an object at the target.
    pub async fn delete(&self, there: &There) -> Result<()> {
        if !self.plans {
            if !is_addressable(&there.key) {
                self.fail(&there.key, NO_URL);
                return Ok(());
            }
            match again(async || self.pair.target.delete(&there.key).await).await {
                Err(trouble) if trouble.ends_all() => return Err(told(self.target, &trouble)),
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
        if !self.plans {
            if !is_addressable(&here.key) {
                self.fail(&here.key, NO_URL);
                return Ok(());
            }
            match self.send(here).await {
                Ok(etag) => self.carried.borrow_mut().carried(here, &etag)?,
                Err(Why::Run(error)) => return Err(error),
                Err(Why::Object(cause) | Why::Passing(cause)) => {
                    self.fail(&here.key, cause);
                    return Ok(());
                }
            }
            self.count(1, 0, 0);
        }
        let mut tally = self.tally.borrow_mut();
        tally.files += 1;
        tally.bytes += here.size_bytes;
        tally.keys.insert(Carried::key_of(&here.key));
        Ok(())
    }

    /// Sends an object, and tells the `ETag` that it has there.
    async fn send(&self, here: &Here) -> Result<String, Why> {
        let (source, version) = (&self.pair.source, Some(here.version.as_str()));
        let stat = source.object(self.bucket, &here.key, version).await.map_err(of_source)?;
        let attributes = kept(stat.attributes);
        if let Some(part_bytes) = part_bytes(here.size_bytes) {
            return self.send_parts(here, &attributes, part_bytes).await;
        }
        let size_bytes = here.size_bytes;
        let md5 = match md5_of(&stat.etag) {
            Some(md5) => md5,
            None => self.md5(here, 0..size_bytes).await?,
        };
        let md5 = STANDARD.encode_to_string(md5);
        let put = async |body| self.pair.target.put(&here.key, (&attributes, &md5), size_bytes, body).await;
        self.send_range(here, 0..size_bytes, put).await
    }

    /// Sends a range of an object by `put`, again where that may help.
    async fn send_range(
        &self,
        here: &Here,
        range: Range<u64>,
        put: impl AsyncFn(Body) -> Answered<String>,
    ) -> Result<String, Why> {
        // Nobody closes it.
        let _turn = self.turns.acquire().await;
        let size_bytes = range.end - range.start;
        let send = async || -> Result<String, Why> {
            let (source, version) = (&self.pair.source, Some(here.version.as_str()));
            let bytes = source.read_object(self.bucket, &here.key, version, Some(range.clone())).await;
            let (body, failed) = content::body(bytes.map_err(of_source)?, size_bytes, &self.limit);
            let sent = put(body).await;
            match (sent, failed.get()) {
                (Err(_), Some(cause)) => Err(Why::Passing(format!("the source: {cause}"))),
                (sent, _) => sent.map_err(|trouble| of_target(self.target, trouble)),
            }
        };
        let etag = twice(send, |why| matches!(why, Why::Passing(_))).await?;
        self.count(0, size_bytes, size_bytes);
        Ok(etag)
    }

    async fn send_parts(&self, here: &Here, attributes: &Attributes, part_bytes: u64) -> Result<String, Why> {
        let (upload, there) = self.begin(here, attributes).await?;
        let named = (upload.key.as_str(), upload.id.as_str());
        let sent = stream::iter(parts(here.size_bytes, part_bytes).zip(1..)).map(|(range, number): (_, u16)| {
            let size_bytes = range.end - range.start;
            let has = there.iter().find(|part| part.number == number && part.size_bytes == size_bytes);
            async move {
                let md5 = self.md5(here, range.clone()).await?;
                // A target may list a part of which only the beginning came.
                if let Some(part) = has.filter(|part| part.etag == hex_simd::encode_to_string(md5, AsciiCase::Lower)) {
                    self.count(0, size_bytes, 0);
                    return Ok(part.etag.clone());
                }
                let md5 = STANDARD.encode_to_string(md5);
                let put = async |body| self.pair.target.part(named, (number, &md5), size_bytes, body).await;
                self.send_range(here, range, put).await
            }
        });
        let done = match sent.buffered(self.workers).try_collect::<Vec<String>>().await {
            Ok(etags) => self.complete(here, named, &etags).await,
            Err(why) => Err(why),
        };
        match &done {
            // What is there of it is of no use; what cannot be ended now, the next run ends.
            Err(Why::Object(_)) if self.pair.target.abort(named).await.is_ok() => {}
            Err(_) => self.cut.borrow_mut().push(upload),
            Ok(_) => {}
        }
        done
    }

    /// Has the target make an object of its parts, and tells the `ETag` that it is listed with.
    async fn complete(&self, here: &Here, named: (&str, &str), etags: &[String]) -> Result<String, Why> {
        let complete = again(async || self.pair.target.complete(named, etags).await).await;
        let answered = complete.map_err(|trouble| of_target(self.target, trouble))?;
        if !answered.is_empty() {
            return Ok(answered);
        }
        // It is listed with one all the same.
        match again(async || self.pair.target.listed(&here.key).await).await {
            Ok(Some(there)) if there.size_bytes == here.size_bytes => Ok(there.etag),
            Ok(_) => Err(Why::Object("the target: does not list what it made of its parts".to_owned())),
            Err(trouble) => Err(of_target(self.target, trouble)),
        }
    }

    /// The MD5 of a range of an object, by which the target sees that it came whole.
    async fn md5(&self, here: &Here, range: Range<u64>) -> Result<[u8; 16], Why> {
        let _turn = self.turns.acquire().await;
        let read = async || {
            let (source, version) = (&self.pair.source, Some(here.version.as_str()));
            let read = source.read_object(self.bucket, &here.key, version, Some(range.clone())).await;
            let (mut bytes, mut md5) = (read.map_err(of_source)?, Md5::new());
            while let Some(piece) = bytes.next().await.map_err(of_source)? {
                md5.update(&piece);
            }
            Ok(md5.finalize().into())
        };
        twice(read, |why| matches!(why, Why::Passing(_))).await
    }

    /// The upload that a run before began of the same object, with what is there of it, or else a new one.
    async fn begin(&self, here: &Here, attributes: &Attributes) -> Result<(Upload, Vec<Part>), Why> {
        let target = &self.pair.target;
        let before = {
            let mut left = self.left.borrow_mut();
            let found = left.iter().rposition(|upload| upload.key == here.key && upload.of == here.identity);
            found.map(|at| left.remove(at))
        };
        if let Some(upload) = before {
            match again(async || target.parts((&upload.key, &upload.id)).await).await {
                Ok(there) => return Ok((upload, there)),
                // The target has let go of it, or does not tell: it is ended in the end.
                Err(Trouble::Refused(_)) => self.left.borrow_mut().push(upload),
                Err(trouble) => {
                    self.cut.borrow_mut().push(upload);
                    return Err(of_target(self.target, trouble));
                }
            }
        }
        let id = again(async || target.begin(&here.key, attributes).await).await;
        let id = id.map_err(|trouble| of_target(self.target, trouble))?;
        let upload = Upload { key: here.key.clone(), id, of: here.identity.clone() };
        // Before its first part, so that no run that is killed leaves parts that nobody knows of.
        self.carried().begins(&upload).map_err(|error| Why::Run(error.into()))?;
        Ok((upload, Vec::new()))
    }

    /// What came of it. Both lists were read to their ends.
    pub async fn end(self) -> Result<Tally> {
        let (mut tally, mut carried) = (self.tally.into_inner(), self.carried.into_inner());
        tally.failures.sort();
        if self.plans {
            return Ok(tally);
        }
        // Nobody wants what is left: their objects changed, are gone, or came otherwise.
        let mut kept = self.cut.into_inner();
        for upload in self.left.into_inner() {
            match again(async || self.pair.target.abort((&upload.key, &upload.id)).await).await {
                Err(trouble) if trouble.ends_all() => return Err(told(self.target, &trouble)),
                Err(_) => kept.push(upload),
                Ok(()) => {}
            }
        }
        carried.keep_uploads(&kept)?;
        carried.tidy(&tally.keys)?;
        Ok(tally)
    }

    fn count(&self, objects: u64, bytes: u64, sent: u64) {
        for counter in self.progress.workers() {
            counter.add(objects, bytes);
            counter.sent(sent);
        }
    }

    /// Tells of an object that was not carried.
    pub fn fail(&self, key: &str, cause: impl ToString) {
        let mut tally = self.tally.borrow_mut();
        // What is known of it stays so.
        tally.keys.insert(Carried::key_of(key));
        tally.failures.push(failure(key, cause));
    }
}

/// What a target's trouble is to an object.
pub fn of_target(target: &Target, trouble: Trouble) -> Why {
    match trouble {
        Trouble::Away(_) | Trouble::Shut(_) => Why::Run(told(target, &trouble)),
        Trouble::Passing(cause) => Why::Passing(format!("the target: {cause}")),
        Trouble::Refused(cause) => Why::Object(format!("the target: {cause}")),
    }
}

/// What is carried of an object besides its content.
pub fn kept(attributes: Attributes) -> Attributes {
    let mut kept: Attributes = attributes.into_iter().filter(|(name, _)| is_kept(name)).collect();
    // As S3 has it, and not each target something else.
    kept.entry("content-type".to_owned()).or_insert_with(|| UNTYPED.to_owned());
    kept
}

/// Whether a header is carried with an object.
pub fn is_kept(name: &str) -> bool {
    name.starts_with("x-amz-meta-") || KEPT.contains(&name)
}

/// The MD5 that an `ETag` is; none where the object came in parts.
fn md5_of(etag: &str) -> Option<[u8; 16]> {
    hex_simd::decode_to_vec(etag).ok()?.try_into().ok()
}

/// What a source's error is to an object.
pub fn of_source(error: ClientError) -> Why {
    match error {
        error if passes(&error) => Why::Passing(format!("the source: {error}")),
        ClientError::Refused(problem) => Why::Object(format!("the source: {problem}")),
        error => Why::Run(error.into()),
    }
}

/// Whether a source that says this may say something else when it is asked again.
pub fn passes(error: &ClientError) -> bool {
    let passing = [ProblemKind::Retry, ProblemKind::Busy];
    matches!(error, ClientError::Refused(problem) if passing.contains(&problem.kind))
}

#[cfg(test)]
mod tests {
    use super::md5_of;

    #[test]
    fn only_the_etag_of_a_whole_is_an_md5() {
        assert_eq!(md5_of("000102030405060708090a0b0c0d0e0f"), Some(std::array::from_fn(|at| at as u8)));
        for other in ["d41d8cd98f00b204e9800998ecf8427e-2", "", "d41d", "no"] {
            assert_eq!(md5_of(other), None, "{other}");
        }
    }
}
