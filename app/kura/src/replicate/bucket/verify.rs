//! Whether a copy is what its bucket is, contents and headers.

use super::carry::{TAGS, Why, is_kept, kept, of_source, of_target};
use super::lists::twice;
use super::store::{Attributes, Tags};
use super::wire::{Trouble, of};
use super::{Pair, failure};
use anyhow::Result;
use futures::future::try_join;
use futures::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use hyper::header::HeaderMap;
use kura_replicate::bucket::{Carried, Here, There, is_addressable};
use kura_replicate::{Options, Target, Verified};
use percent_encoding::percent_decode_str;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

const MISSING: &str = "the target does not have it";
/// What a target may add to an object for whoever caches it.
const ADDED: [&str; 2] = ["cache-control", "expires"];

impl Pair {
    /// Compares all of both. What is seen to differ is carried by the next run of the job whose folder this is, though the target
    /// lists it as it was left there.
    pub async fn compare(
        &self,
        bucket: &str,
        target: &Target,
        (options, folder): (&Options, &Path),
    ) -> Result<Verified> {
        let compared = self.pairs(bucket, target).await?.stream().map_ok(|(here, there)| async move {
            let size_bytes = here.as_ref().map_or(0, |here| here.size_bytes);
            let (differs, key) = match (here, there) {
                (Some(here), Some(there)) => match self.differs(bucket, target, &here, &there).await? {
                    Compared::Alike => (None, None),
                    Compared::Differs(how) => (Some(failure(&here.key, how)), Some(Carried::key_of(&here.key))),
                    Compared::Unknown(why) => (Some(failure(&here.key, why)), None),
                },
                (Some(here), None) => (Some(failure(&here.key, MISSING)), None),
                (None, Some(there)) => (Some(failure(&there.key, "only the target has it")), None),
                (None, None) => (None, None),
            };
            anyhow::Ok((size_bytes, differs, key))
        });
        let mut verified = Verified { files: 0, bytes: 0, seconds: 0.0, differing: Vec::new() };
        let mut wrong = Vec::new();
        let mut compared = compared.try_buffer_unordered(options.workers).boxed_local();
        while let Some((size_bytes, differs, key)) = compared.try_next().await? {
            verified.files += 1;
            verified.bytes += size_bytes;
            verified.differing.extend(differs);
            wrong.extend(key);
        }
        if !wrong.is_empty() && Carried::is_there(folder) {
            Carried::open(folder)?.distrust(&wrong)?;
        }
        Ok(verified)
    }

    /// What comes of a comparison of an object: no other one is the worse for it.
    pub async fn differs(&self, bucket: &str, target: &Target, here: &Here, there: &There) -> Result<Compared> {
        let difference = async || self.difference(bucket, target, here, there).await;
        match twice(difference, |why| matches!(why, Why::Passing(_))).await {
            Ok(None) => Ok(Compared::Alike),
            Ok(Some(how)) => Ok(Compared::Differs(how.to_owned())),
            Err(Why::Run(error)) => Err(error),
            // A target that holds what it reads against sums says so of what is rotten there.
            Err(Why::Passing(cause)) => Ok(Compared::Differs(cause)),
            Err(Why::Object(cause)) => Ok(Compared::Unknown(cause)),
        }
    }

    async fn difference(
        &self,
        bucket: &str,
        target: &Target,
        here: &Here,
        there: &There,
    ) -> Result<Option<&'static str>, Why> {
        if here.size_bytes != there.size_bytes {
            return Ok(Some("sizes differ"));
        }
        if !is_addressable(&here.key) {
            return Err(Why::Object("no URL can name its key".to_owned()));
        }
        let of_target = |trouble| of_target(target, trouble);
        let (headers, mut copy) = match self.target.get(&here.key).await {
            Err(Trouble::Refused(cause)) if cause.starts_with("NoSuchKey") => return Ok(Some(MISSING)),
            got => got.map_err(of_target)?,
        };
        let version = Some(here.version.as_str());
        let stat = self.source.object(bucket, &here.key, version).await.map_err(of_source)?;
        let ours = kept(stat.attributes);
        if !has_all(&headers, &ours) {
            return Ok(Some("headers or metadata differ"));
        }
        // What they are takes a request of its own.
        let has_tags = ours.contains_key(TAGS) || headers.contains_key("x-amz-tagging-count");
        if has_tags && self.target.tags(&here.key).await.map_err(of_target)? != tags(&ours) {
            return Ok(Some("tags differ"));
        }
        // Side by side: who is not listened to hangs up.
        let ours = async {
            let mut content = self.source.read_object(bucket, &here.key, version, None).await.map_err(of_source)?;
            let mut sum = Xxh3::new();
            while let Some(piece) = content.next().await.map_err(of_source)? {
                sum.update(&piece);
            }
            Ok::<_, Why>(sum.digest128())
        };
        let theirs = async {
            let mut sum = Xxh3::new();
            while let Some(frame) = copy.frame().await {
                // Trailers are no content.
                if let Ok(data) = frame.map_err(|error| of_target(of(&error)))?.into_data() {
                    sum.update(&data);
                }
            }
            Ok(sum.digest128())
        };
        let (ours, theirs) = try_join(ours, theirs).await?;
        Ok((ours != theirs).then_some("contents differ"))
    }
}

/// What comes of a comparison.
pub enum Compared {
    /// Both are the same.
    Alike,
    /// They are not, and how, or the target's cannot be read.
    Differs(String),
    /// That cannot be told, and why.
    Unknown(String),
}

/// True when all these headers are there, and no others that are carried; tags are no header of an answer.
fn has_all(headers: &HeaderMap, attributes: &Attributes) -> bool {
    let mut plain = attributes.iter().filter(|(name, _)| *name != TAGS);
    let mut more = headers.keys().filter(|name| is_kept(name.as_str()) && !ADDED.contains(&name.as_str()));
    plain.all(|(name, value)| headers.get(name).is_some_and(|there| there.as_bytes() == value.as_bytes()))
        && more.all(|name| attributes.contains_key(name.as_str()))
}

/// The tags among an object's attributes, which are written as a query is.
fn tags(attributes: &Attributes) -> Tags {
    let plain = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let query = attributes.get(TAGS).map(String::as_str).unwrap_or_default();
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| part.split_once('=').unwrap_or((part, "")))
        .map(|(key, value)| (plain(key), plain(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_a_query_is() {
        let attributes = Attributes::from([(TAGS.to_owned(), "a%20b=c%26d&e=&f+g=h".to_owned())]);
        let expected = [("a b", "c&d"), ("e", ""), ("f g", "h")];
        assert_eq!(tags(&attributes), expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        assert_eq!(tags(&Attributes::new()), Tags::new());
    }
}
