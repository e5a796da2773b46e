//! Whether a copy is what its bucket is, contents and headers.

use super::carry::{TAGS, kept};
use super::lists::{again, told};
use super::store::{Attributes, Tags};
use super::{Pair, failure};
use anyhow::{Context, Result, anyhow};
use futures::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use hyper::header::HeaderMap;
use kura_replicate::bucket::{Here, There, is_addressable};
use kura_replicate::{Failure, Options, Target, Verified};
use percent_encoding::percent_decode_str;
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

    async fn differs(&self, bucket: &str, target: &Target, here: &Here, there: &There) -> Result<Option<Failure>> {
        let different = |how: &str| Ok(Some(failure(&here.key, how)));
        if here.size_bytes != there.size_bytes {
            return different("sizes differ");
        }
        if !is_addressable(&here.key) {
            return different("no URL can name its key");
        }
        let got = again(async || self.target.get(&here.key).await).await;
        let (headers, mut copy) = got.map_err(|trouble| told(target, &trouble))?;
        let version = Some(here.version.as_str());
        let stat = self.source.object(bucket, &here.key, version).await?;
        let ours = kept(stat.attributes);
        if !has_all(&headers, &ours) {
            return different("headers or metadata differ");
        }
        // What they are takes a request of its own.
        let has_tags = ours.contains_key(TAGS) || headers.contains_key("x-amz-tagging-count");
        if has_tags {
            let theirs = again(async || self.target.tags(&here.key).await).await;
            if theirs.map_err(|trouble| told(target, &trouble))? != tags(&ours) {
                return different("tags differ");
            }
        }
        let mut content = self.source.read_object(bucket, &here.key, version, None).await?;
        let (mut ours, mut theirs) = (Xxh3::new(), Xxh3::new());
        while let Some(piece) = content.next().await? {
            ours.update(&piece);
        }
        while let Some(frame) = copy.frame().await {
            let frame = frame.with_context(|| format!("the target {target}: {}", here.key))?;
            theirs.update(&frame.into_data().map_err(|_| anyhow!("the target {target}: sends trailers"))?);
        }
        if ours.digest128() == theirs.digest128() { Ok(None) } else { different("contents differ") }
    }
}

/// True when all these headers are there; tags are no header of an answer.
fn has_all(headers: &HeaderMap, attributes: &Attributes) -> bool {
    let mut plain = attributes.iter().filter(|(name, _)| *name != TAGS);
    plain.all(|(name, value)| headers.get(name).is_some_and(|there| there.as_bytes() == value.as_bytes()))
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
