//! Lists of objects and of their versions, in pages.

use crate::bucket::Bucket;
use crate::meta::{etag, timestamp, version, version_id, version_text};
use crate::problem::{problem, refusal};
use crate::service::Service;
use kura_object::{After, Item, Page, Query, Store, Version};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use s3s::dto::{
    CommonPrefix, DeleteMarkerEntry, EncodingType, ListObjectVersionsInput, ListObjectVersionsOutput, ListObjectsInput,
    ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, Object, ObjectStorageClass, ObjectVersion,
    ObjectVersionStorageClass, Owner,
};
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

/// Keys of a page at most, as in S3.
const KEYS_LIMIT: i32 = 1000;
/// What a key in a URL-encoded list keeps.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// How keys and prefixes are written.
#[derive(Clone, Copy)]
pub(crate) struct Encoding {
    url: bool,
}

impl Encoding {
    pub fn of(asked: Option<&EncodingType>) -> S3Result<Self> {
        match asked.map(EncodingType::as_str) {
            None => Ok(Self { url: false }),
            Some("url") => Ok(Self { url: true }),
            Some(other) => {
                Err(problem(S3ErrorCode::InvalidArgument, format!("encoding-type {other:?}: only url there is")))
            }
        }
    }

    pub fn write(self, key: &[u8]) -> String {
        if self.url { percent_encode(key, KEPT).to_string() } else { String::from_utf8_lossy(key).into_owned() }
    }

    pub fn write_some(self, text: Option<&String>) -> Option<String> {
        text.filter(|text| !text.is_empty()).map(|text| self.write(text.as_bytes()))
    }
}

/// The number of items that a page is to have.
pub(crate) fn page_limit(asked: Option<i32>) -> S3Result<usize> {
    let limit = asked.unwrap_or(KEYS_LIMIT);
    if limit < 0 {
        return Err(problem(S3ErrorCode::InvalidArgument, "the number of keys is below zero"));
    }
    Ok(limit.min(KEYS_LIMIT) as usize)
}

/// A number of items as S3 has it.
pub(crate) fn count(items: usize) -> i32 {
    i32::try_from(items).unwrap_or(i32::MAX)
}

/// Whom everything belongs to: keys are no accounts.
pub(crate) const OWNER: &str = "kura";

pub(crate) fn owner() -> Owner {
    Owner { display_name: Some(OWNER.to_owned()), id: Some(OWNER.to_owned()) }
}

/// Where a page begins, as a client carries it to the next request.
pub(crate) fn token(after: &After) -> String {
    let bytes = match after {
        After::Nothing => b"k".to_vec(),
        After::Key(key) => [b"k", key.as_slice()].concat(),
        After::Prefix(prefix) => [b"p", prefix.as_slice()].concat(),
        After::Version(key, Version(number)) => [b"v", &number.to_be_bytes()[..], key].concat(),
    };
    base64_simd::URL_SAFE_NO_PAD.encode_to_string(bytes)
}

pub(crate) fn of_token(token: &str) -> S3Result<After> {
    let bytes = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(token).unwrap_or_default();
    let version = |bytes: &[u8]| {
        let (number, key) = bytes.split_first_chunk()?;
        Some(After::Version(key.to_vec(), Version(u64::from_be_bytes(*number))))
    };
    let after = match bytes.split_first() {
        Some((b'p', prefix)) => Some(After::Prefix(prefix.to_vec())),
        Some((b'k', key)) => Some(After::Key(key.to_vec())),
        Some((b'v', rest)) => version(rest),
        _ => None,
    };
    after.ok_or_else(|| problem(S3ErrorCode::InvalidArgument, "the continuation token is not one that was given here"))
}

pub(crate) fn after_key(key: Option<&String>) -> After {
    key.filter(|key| !key.is_empty()).map_or(After::Nothing, |key| After::Key(key.clone().into_bytes()))
}

/// A page in S3's words.
struct Shown {
    objects: Vec<Object>,
    prefixes: Vec<CommonPrefix>,
}

fn show(page: &Page, encoding: Encoding, with_owner: bool) -> Shown {
    let mut shown = Shown { objects: Vec::new(), prefixes: Vec::new() };
    for item in &page.items {
        match item {
            Item::Prefix(prefix) => shown.prefixes.push(CommonPrefix { prefix: Some(encoding.write(prefix)) }),
            Item::Object { key, stat } => shown.objects.push(Object {
                key: Some(encoding.write(key)),
                e_tag: Some(etag(&stat.tag)),
                last_modified: Some(timestamp(stat.modified_ms)),
                size: Some(stat.size_bytes.cast_signed()),
                storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                owner: with_owner.then(owner),
                ..Object::default()
            }),
        }
    }
    shown
}

/// The key or prefix behind which the next page begins: not always one that was listed.
fn last_of(page: &Page) -> Option<&[u8]> {
    match page.next.as_ref()? {
        After::Nothing => None,
        After::Key(last) | After::Version(last, _) | After::Prefix(last) => Some(last),
    }
}

impl Service {
    async fn page(&self, bucket: &Bucket, query: Query) -> S3Result<Page> {
        let partition = bucket.id;
        bucket.way().ask(async move |store: Store| store.list(partition, &query).await.map_err(refusal)).await
    }

    pub(crate) async fn list(&self, request: S3Request<ListObjectsInput>) -> S3Result<S3Response<ListObjectsOutput>> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let encoding = Encoding::of(input.encoding_type.as_ref())?;
        let limit = page_limit(input.max_keys)?;
        let query = Query {
            prefix: input.prefix.clone().unwrap_or_default().into_bytes(),
            delimiter: input.delimiter.clone().map(String::into_bytes),
            after: after_key(input.marker.as_ref()),
            limit: Some(limit),
            versions: false,
        };
        let page = self.page(&bucket, query).await?;
        let Shown { objects, prefixes } = show(&page, encoding, true);
        let next = last_of(&page).map(|last| encoding.write(last));
        Ok(S3Response::new(ListObjectsOutput {
            is_truncated: Some(page.next.is_some()),
            next_marker: next,
            name: Some(input.bucket),
            prefix: Some(encoding.write(input.prefix.unwrap_or_default().as_bytes())),
            marker: Some(encoding.write(input.marker.unwrap_or_default().as_bytes())),
            delimiter: encoding.write_some(input.delimiter.as_ref()),
            max_keys: Some(count(limit)),
            encoding_type: input.encoding_type,
            contents: Some(objects),
            common_prefixes: Some(prefixes),
            ..ListObjectsOutput::default()
        }))
    }

    pub(crate) async fn list_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let encoding = Encoding::of(input.encoding_type.as_ref())?;
        let limit = page_limit(input.max_keys)?;
        let after = match input.continuation_token.as_ref().filter(|token| !token.is_empty()) {
            Some(token) => of_token(token)?,
            None => after_key(input.start_after.as_ref()),
        };
        let query = Query {
            prefix: input.prefix.clone().unwrap_or_default().into_bytes(),
            delimiter: input.delimiter.clone().map(String::into_bytes),
            after,
            limit: Some(limit),
            versions: false,
        };
        let page = self.page(&bucket, query).await?;
        let Shown { objects, prefixes } = show(&page, encoding, input.fetch_owner == Some(true));
        Ok(S3Response::new(ListObjectsV2Output {
            is_truncated: Some(page.next.is_some()),
            next_continuation_token: page.next.as_ref().map(token),
            key_count: Some(count(objects.len() + prefixes.len())),
            name: Some(input.bucket),
            prefix: Some(encoding.write(input.prefix.unwrap_or_default().as_bytes())),
            start_after: encoding.write_some(input.start_after.as_ref()),
            continuation_token: input.continuation_token,
            delimiter: encoding.write_some(input.delimiter.as_ref()),
            max_keys: Some(count(limit)),
            encoding_type: input.encoding_type,
            contents: Some(objects),
            common_prefixes: Some(prefixes),
            ..ListObjectsV2Output::default()
        }))
    }

    pub(crate) async fn list_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let encoding = Encoding::of(input.encoding_type.as_ref())?;
        let limit = page_limit(input.max_keys)?;
        let marked = |text: &String| {
            let bad = || problem(S3ErrorCode::InvalidArgument, format!("version-id-marker {text:?} is no version"));
            version(text).map(|(number, _)| number).ok_or_else(bad)
        };
        let after = match (input.key_marker.as_ref(), input.version_id_marker.as_ref().filter(|text| !text.is_empty()))
        {
            (None, Some(_)) => {
                return Err(problem(S3ErrorCode::InvalidArgument, "a version-id-marker requires a key-marker"));
            }
            (Some(key), Some(version)) => After::Version(key.clone().into_bytes(), marked(version)?),
            (key, None) => after_key(key),
        };
        let query = Query {
            prefix: input.prefix.clone().unwrap_or_default().into_bytes(),
            delimiter: input.delimiter.clone().map(String::into_bytes),
            after,
            limit: Some(limit),
            versions: true,
        };
        let page = self.page(&bucket, query).await?;
        let mut output = ListObjectVersionsOutput {
            is_truncated: Some(page.next.is_some()),
            name: Some(input.bucket),
            prefix: Some(encoding.write(input.prefix.unwrap_or_default().as_bytes())),
            key_marker: Some(encoding.write(input.key_marker.unwrap_or_default().as_bytes())),
            version_id_marker: input.version_id_marker,
            delimiter: encoding.write_some(input.delimiter.as_ref()),
            max_keys: Some(count(limit)),
            encoding_type: input.encoding_type,
            ..ListObjectVersionsOutput::default()
        };
        show_versions(&page, encoding, &mut output);
        Ok(S3Response::new(output))
    }
}

fn show_versions(page: &Page, encoding: Encoding, output: &mut ListObjectVersionsOutput) {
    if page.next.is_some() {
        output.next_key_marker = last_of(page).map(|last| encoding.write(last));
        output.next_version_id_marker = match page.items.last() {
            // By its number, also of the version `null`: it says where to go on.
            Some(Item::Object { stat, .. }) => Some(version_text(stat.version, stat.modified_ms)),
            _ => None,
        };
    }
    let (mut versions, mut markers, mut prefixes) = (Vec::new(), Vec::new(), Vec::new());
    for item in &page.items {
        match item {
            Item::Prefix(prefix) => prefixes.push(CommonPrefix { prefix: Some(encoding.write(prefix)) }),
            Item::Object { key, stat } if stat.marker => markers.push(DeleteMarkerEntry {
                is_latest: Some(stat.latest),
                key: Some(encoding.write(key)),
                last_modified: Some(timestamp(stat.modified_ms)),
                owner: Some(owner()),
                version_id: Some(version_id(stat)),
            }),
            Item::Object { key, stat } => versions.push(ObjectVersion {
                is_latest: Some(stat.latest),
                key: Some(encoding.write(key)),
                e_tag: Some(etag(&stat.tag)),
                last_modified: Some(timestamp(stat.modified_ms)),
                owner: Some(owner()),
                size: Some(stat.size_bytes.cast_signed()),
                storage_class: Some(ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD)),
                version_id: Some(version_id(stat)),
                ..ObjectVersion::default()
            }),
        }
    }
    output.versions = Some(versions);
    output.delete_markers = Some(markers);
    output.common_prefixes = Some(prefixes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leads_to_where_it_was_given() {
        let of_version = After::Version(b"a/b".to_vec(), Version(u64::MAX - 7));
        for after in [After::Key(b"a/b \xff".to_vec()), After::Prefix(b"a/".to_vec()), of_version] {
            assert_eq!(of_token(&token(&after)).unwrap(), after);
        }
        for bad in ["", "!", "AAAA", "dgAA"] {
            assert!(of_token(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_are_written_so_that_every_byte_comes_through() {
        let url = Encoding { url: true };
        assert_eq!(url.write("a b/ü+\u{1}%~".as_bytes()), "a%20b/%C3%BC%2B%01%25~");
        assert_eq!(Encoding { url: false }.write(b"a b"), "a b");
    }
}
