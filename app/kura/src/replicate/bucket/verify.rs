//! Whether a copy is what its bucket is, contents and headers.

use super::carry::{TAGS, Why, is_kept, kept, of_source, of_target};
use super::lists::twice;
use super::store::{Attributes, Tags};
use super::wire::of;
use super::{Pair, failure};
use anyhow::Result;
use futures::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use hyper::header::HeaderMap;
use kura_replicate::bucket::{Here, There, is_addressable};
use kura_replicate::{Failure, Options, Target, Verified};
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::Xxh3;

impl Pair {
    /// Compares all of both.
    pub async fn compare(&self, bucket: &str, target: &Target, options: &Options) -> Result<Verified> {
        let compared = self.pairs(bucket, target).stream().map_ok(|(here, there)| async move {
            let size_bytes = here.as_ref().map_or(0, |here| here.size_bytes);
            let differs = match (here, there) {
                (Some(here), Some(there)) => self.differs(bucket, target, &here, &there).await?,
                (Some(here), None) => Some(failure(&here.key, "the target does not have it")),
                (None, Some(there)) => Some(failure(&there.key, "only the target has it")),
                (None, None) => None,
            };
            anyhow::Ok((size_bytes, differs))
        });
        let mut verified = Verified { files: 0, bytes: 0, seconds: 0.0, differing: Vec::new() };
        let mut compared = compared.try_buffer_unordered(options.workers).boxed_local();
        while let Some((size_bytes, differs)) = compared.try_next().await? {
            verified.files += 1;
            verified.bytes += size_bytes;
            verified.differing.extend(differs);
        }
        Ok(verified)
    }

    /// How an object differs, or why that cannot be told: no other one of a comparison is the worse for it.
    pub async fn differs(&self, bucket: &str, target: &Target, here: &Here, there: &There) -> Result<Option<Failure>> {
        let difference = async || self.difference(bucket, target, here, there).await;
        match twice(difference, |why| matches!(why, Why::Passing(_))).await {
            Ok(how) => Ok(how.map(|how| failure(&here.key, how))),
            Err(Why::Run(error)) => Err(error),
            Err(Why::Object(cause) | Why::Passing(cause)) => Ok(Some(failure(&here.key, cause))),
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
            return Ok(Some("no URL can name its key"));
        }
        let of_target = |trouble| of_target(target, trouble);
        let (headers, mut copy) = self.target.get(&here.key).await.map_err(of_target)?;
        let version = Some(here.version.as_str());
        let stat = self.source.object(bucket, &here.key, version).await.map_err(of_source)?;
        let ours = kept(stat.attributes);
        if plain(&headers) != plain_of(&ours) {
            return Ok(Some("headers or metadata differ"));
        }
        // What they are takes a request of its own.
        let has_tags = ours.contains_key(TAGS) || headers.contains_key("x-amz-tagging-count");
        if has_tags && self.target.tags(&here.key).await.map_err(of_target)? != tags(&ours) {
            return Ok(Some("tags differ"));
        }
        let mut content = self.source.read_object(bucket, &here.key, version, None).await.map_err(of_source)?;
        let (mut ours, mut theirs) = (Xxh3::new(), Xxh3::new());
        while let Some(piece) = content.next().await.map_err(of_source)? {
            ours.update(&piece);
        }
        while let Some(frame) = copy.frame().await {
            // Trailers are no content.
            if let Ok(data) = frame.map_err(|error| of_target(of(&error)))?.into_data() {
                theirs.update(&data);
            }
        }
        Ok((ours.digest128() != theirs.digest128()).then_some("contents differ"))
    }
}

/// The headers of an answer that are carried with an object; tags are none.
fn plain(headers: &HeaderMap) -> BTreeMap<&str, &[u8]> {
    let all = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    all.filter(|(name, _)| is_kept(name)).collect()
}

/// The same of an object's attributes.
fn plain_of(attributes: &Attributes) -> BTreeMap<&str, &[u8]> {
    let all = attributes.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    all.filter(|(name, _)| *name != TAGS).collect()
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
