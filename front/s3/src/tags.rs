//! Tags of objects and buckets.

use crate::bucket::{Setting, to_xml};
use crate::get::found;
use crate::meta::{TAGGING, text, version_id, which};
use crate::problem::problem;
use crate::service::Service;
use kura_object::{Attributes, Batch, Stat, Store};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

/// Tags of an object, and of a bucket, at most.
const OF_OBJECT: usize = 10;
const OF_BUCKET: usize = 50;
/// Characters of a tag's key and of its value.
const KEY_CHARS: usize = 128;
const VALUE_CHARS: usize = 256;

fn check(tags: &[(String, String)], limit: usize) -> S3Result<()> {
    let bad = |text: String| Err(problem(S3ErrorCode::InvalidTag, text));
    if tags.len() > limit {
        return Err(problem(S3ErrorCode::InvalidTag, format!("there are at most {limit} tags, not {}", tags.len())));
    }
    for (at, (key, value)) in tags.iter().enumerate() {
        if key.is_empty() || key.chars().count() > KEY_CHARS || value.chars().count() > VALUE_CHARS {
            return bad(format!("a tag's key has 1 to {KEY_CHARS} characters, its value up to {VALUE_CHARS}: {key:?}"));
        }
        if tags[..at].iter().any(|(other, _)| other == key) {
            return bad(format!("the tag {key:?} stands twice"));
        }
    }
    Ok(())
}

fn pairs(tags: TagSet) -> Vec<(String, String)> {
    tags.into_iter().map(|tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default())).collect()
}

fn encode(tags: &[(String, String)]) -> Vec<u8> {
    let escaped = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let joined: Vec<_> = tags.iter().map(|(key, value)| format!("{}={}", escaped(key), escaped(value))).collect();
    joined.join("&").into_bytes()
}

fn decode(text: &str) -> S3Result<Vec<(String, String)>> {
    let bad = || problem(S3ErrorCode::InvalidArgument, "x-amz-tagging is not written as a query is");
    let plain = |text: &str| {
        let spaced = text.replace('+', " ");
        percent_decode_str(&spaced).decode_utf8().map(std::borrow::Cow::into_owned).map_err(|_| bad())
    };
    let parts = text.split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| part.split_once('=').unwrap_or((part, "")))
        .map(|(key, value)| Ok((plain(key)?, plain(value)?)))
        .collect()
}

/// The attribute of the tags that a request's header says.
pub(crate) fn of_header(header: Option<&String>) -> S3Result<Attributes> {
    let Some(header) = header else { return Ok(Attributes::new()) };
    let tags = decode(header)?;
    check(&tags, OF_OBJECT)?;
    Ok(if tags.is_empty() { Attributes::new() } else { [(TAGGING.to_owned(), encode(&tags))].into() })
}

/// An object's tags.
pub(crate) fn of_object(attributes: &Attributes) -> Vec<(String, String)> {
    text(attributes, TAGGING).and_then(|text| decode(&text).ok()).unwrap_or_default()
}

/// How many tags an object has, if any.
pub(crate) fn count(attributes: &Attributes) -> Option<i32> {
    let count = crate::list::count(of_object(attributes).len());
    (count > 0).then_some(count)
}

impl Service {
    async fn set_tags(
        &self,
        bucket: &str,
        key: String,
        version: Option<String>,
        tags: Option<Vec<u8>>,
    ) -> S3Result<Option<String>> {
        let bucket = self.directory.bucket(bucket).await?;
        let which = which(version.as_deref())?;
        let partition = bucket.id;
        let set = async move |store: Store| {
            found(&store, partition, key.as_bytes(), which, |_| 0..0).await?;
            let mut batch = Batch::new();
            batch.set_attributes(partition, key.as_bytes(), which, vec![(TAGGING.to_owned(), tags)]);
            store.commit(batch).await.map_err(crate::problem::of_object)
        };
        let changed = bucket.way().ask(set).await?;
        let now: Option<&Stat> = changed.first().and_then(|changed| changed.now.as_ref());
        Ok(now.filter(|_| bucket.versioning.is_known()).map(version_id))
    }

    pub(crate) async fn put_tags(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        let input = request.input;
        let tags = pairs(input.tagging.tag_set);
        check(&tags, OF_OBJECT)?;
        let tags = (!tags.is_empty()).then(|| encode(&tags));
        let version_id = self.set_tags(&input.bucket, input.key, input.version_id, tags).await?;
        Ok(S3Response::new(PutObjectTaggingOutput { version_id }))
    }

    pub(crate) async fn delete_tags(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        let input = request.input;
        let version_id = self.set_tags(&input.bucket, input.key, input.version_id, None).await?;
        Ok(S3Response::new(DeleteObjectTaggingOutput { version_id }))
    }

    pub(crate) async fn get_tags(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let (stat, attributes) = self.known(&bucket, input.key, input.version_id).await?;
        let tag_set = of_object(&attributes).into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) });
        Ok(S3Response::new(GetObjectTaggingOutput {
            tag_set: tag_set.collect(),
            version_id: bucket.versioning.is_known().then(|| version_id(&stat)),
        }))
    }

    pub(crate) async fn put_bucket_tags(
        &self,
        request: S3Request<PutBucketTaggingInput>,
    ) -> S3Result<S3Response<PutBucketTaggingOutput>> {
        let PutBucketTaggingInput { bucket, tagging, .. } = request.input;
        check(&pairs(tagging.tag_set.clone()), OF_BUCKET)?;
        self.directory.set(&bucket, Setting::Tags, Some(to_xml(&tagging)?)).await?;
        Ok(S3Response::new(PutBucketTaggingOutput {}))
    }

    pub(crate) async fn get_bucket_tags(
        &self,
        request: S3Request<GetBucketTaggingInput>,
    ) -> S3Result<S3Response<GetBucketTaggingOutput>> {
        let bucket = self.directory.bucket(&request.input.bucket).await?;
        let tags = bucket.tags.clone().ok_or(S3ErrorCode::NoSuchTagSet)?;
        Ok(S3Response::new(GetBucketTaggingOutput { tag_set: tags.tag_set }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_they_were_written() {
        let tags = vec![("a b".to_owned(), "ü=&+".to_owned()), ("c".to_owned(), String::new())];
        let text = String::from_utf8(encode(&tags)).unwrap();
        assert_eq!(decode(&text).unwrap(), tags);
        assert_eq!(decode("a+b=c").unwrap(), [("a b".to_owned(), "c".to_owned())]);
    }

    #[test]
    fn tags_have_their_limits() {
        let tag = |key: &str| (key.to_owned(), "v".to_owned());
        assert!(check(&[tag("a"), tag("b")], 2).is_ok());
        for bad in [vec![tag("a"), tag("a")], vec![tag("")], vec![tag(&"k".repeat(129))]] {
            assert_eq!(*check(&bad, 10).unwrap_err().code(), S3ErrorCode::InvalidTag);
        }
        assert!(check(&[tag("a"), tag("b")], 1).is_err());
    }
}
