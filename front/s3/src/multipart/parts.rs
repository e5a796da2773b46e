//! The parts of an upload: listed, and put together into an object.

use crate::checksums::{CHECKSUM, said_checksums, show_checksums};
use crate::list::{Encoding, after_key, count, owner, page_limit};
use crate::meta::{self, etag, hex, timestamp};
use crate::multipart::AT_ONCE;
use crate::problem::{problem, refusal, unsupported};
use crate::service::Service;
use crc_fast::{CrcAlgorithm, checksum_combine};
use futures::{StreamExt, TryStreamExt, stream};
use kura_block::Result;
use kura_object::{Attributes, Item, PartitionId, Query, Stat, Store, Which};
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Md5, Sha1, Sha256};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};
use std::collections::BTreeMap;

type Answer<T> = S3Result<S3Response<T>>;

/// All parts but the last have at least this many bytes.
const PART_LEAST_BYTES: u64 = 5 << 20;

/// A part that is stored.
pub(crate) struct Part {
    pub key: Vec<u8>,
    pub number: i32,
    pub stat: Stat,
}

/// Where a part of an upload is stored.
pub(crate) fn part_key(id: &str, number: i32) -> Vec<u8> {
    format!("{id}/{number:05}").into_bytes()
}

/// The parts of an upload that are stored, by number.
pub(crate) async fn parts_of(store: &Store, partition: PartitionId, id: &[u8]) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let mut query = Query { prefix: [id, b"/"].concat(), ..Query::default() };
    loop {
        let page = store.list(partition, &query).await?;
        for item in page.items {
            let Item::Object { key, stat } = item else { continue };
            let number =
                key.rsplit(|byte| *byte == b'/').next().and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
            parts.extend(number.map(|number| Part { key, number, stat }));
        }
        match page.next {
            Some(after) => query.after = after,
            None => return Ok(parts),
        }
    }
}

/// Which checksum an upload's object is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sums {
    /// In small letters.
    pub algorithm: String,
    /// True for the checksum of the whole object, false for one of its parts' checksums.
    pub whole: bool,
}

impl Sums {
    /// What an upload asks for.
    pub fn of(algorithm: Option<&str>, kind: Option<&str>) -> S3Result<Option<Self>> {
        let Some(algorithm) = algorithm else { return Ok(None) };
        let is_crc = matches!(algorithm, "crc32" | "crc32c" | "crc64nvme");
        if !is_crc && !matches!(algorithm, "sha1" | "sha256") {
            return Err(unsupported(&format!("the checksum {algorithm}")));
        }
        let whole = match kind {
            Some(ChecksumType::FULL_OBJECT) => true,
            Some(_) => false,
            None => algorithm == "crc64nvme",
        };
        // Of hashes, parts' cannot be put together; of CRC64NVME, S3 knows only the whole.
        if whole != is_crc && (whole || algorithm == "crc64nvme") {
            let text = format!("{algorithm} cannot be of this type: {}", kind.unwrap_or_default());
            return Err(problem(S3ErrorCode::InvalidRequest, text));
        }
        Ok(Some(Self { algorithm: algorithm.to_owned(), whole }))
    }

    pub fn kind(&self) -> ChecksumType {
        ChecksumType::from_static(if self.whole { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE })
    }

    fn name(&self) -> String {
        format!("{CHECKSUM}{}", self.algorithm)
    }

    /// The object's checksum, from its parts': their bytes and their sizes.
    fn combine(&self, parts: &[(Vec<u8>, u64)]) -> String {
        let joined = || parts.iter().flat_map(|(sum, _)| sum).copied().collect::<Vec<u8>>();
        let base64 = |bytes: &[u8]| base64_simd::STANDARD.encode_to_string(bytes);
        let of_parts = |bytes: &[u8]| format!("{}-{}", base64(bytes), parts.len());
        match (self.algorithm.as_str(), self.whole) {
            ("sha1", _) => of_parts(&Sha1::checksum(&joined())),
            ("sha256", _) => of_parts(&Sha256::checksum(&joined())),
            ("crc32", false) => of_parts(&Crc32::checksum(&joined())),
            ("crc32c", false) => of_parts(&Crc32c::checksum(&joined())),
            (name, _) => {
                let algorithm = match name {
                    "crc32" => CrcAlgorithm::Crc32IsoHdlc,
                    "crc32c" => CrcAlgorithm::Crc32Iscsi,
                    _ => CrcAlgorithm::Crc64Nvme,
                };
                let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                let whole = parts.iter().map(|(sum, len)| (number(sum), *len));
                let whole =
                    whole.reduce(|(sum, all), (next, len)| (checksum_combine(algorithm, sum, next, len), all + len));
                let sum = whole.map_or(0, |(sum, _)| sum).to_be_bytes();
                base64(if name == "crc64nvme" { &sum } else { &sum[4..] })
            }
        }
    }
}

/// An object made of parts.
pub(crate) struct Whole {
    /// The parts that it is made of, in order.
    pub keys: Vec<Vec<u8>>,
    pub tag: Vec<u8>,
    pub checksum: Checksum,
    pub size_bytes: u64,
    /// The parts'.
    pub sizes: Vec<u64>,
    kind: Option<ChecksumType>,
}

/// What a client says of an object that it completes.
pub(crate) struct Stated {
    pub checksum: Checksum,
    pub size_bytes: Option<i64>,
}

impl Stated {
    /// Holds it against what the object is. What is not known of it is refused as well: nobody checked it. A checksum of
    /// parts' checksums is taken without the count of parts as well, as in S3: minio-go sends it so.
    pub fn hold(&self, checksum: &Checksum, size_bytes: u64) -> S3Result<()> {
        if let Some(said) = self.size_bytes.filter(|said| *said != size_bytes.cast_signed()) {
            let text = format!("the object has {size_bytes} bytes, not {said}");
            return Err(problem(S3ErrorCode::InvalidRequest, text));
        }
        let own = meta::of_checksum(checksum);
        for (name, value) in meta::of_checksum(&self.checksum) {
            match own.get(&name) {
                Some(own) if own.strip_prefix(value.as_slice()).is_some_and(|left| matches!(left, [] | [b'-', ..])) => {
                }
                Some(_) => return Err(problem(S3ErrorCode::BadDigest, format!("{name} is not that of the object"))),
                None => {
                    let text =
                        format!("{name} is not known of the object: its upload was not begun with that checksum");
                    return Err(problem(S3ErrorCode::InvalidRequest, text));
                }
            }
        }
        Ok(())
    }
}

impl Whole {
    /// What the object keeps of it.
    pub fn attributes(&self) -> Attributes {
        let mut attributes = meta::of_checksum(&self.checksum);
        if let Some(kind) = &self.kind {
            attributes.insert("x-amz-checksum-type".to_owned(), kind.as_str().as_bytes().to_vec());
        }
        attributes
    }
}

/// Puts together what a client names of the parts that are stored.
pub(crate) async fn assemble(
    store: &Store,
    partition: PartitionId,
    stored: &[Part],
    asked: &[CompletedPart],
    sums: Option<&Sums>,
) -> S3Result<Whole> {
    if asked.is_empty() {
        return Err(problem(S3ErrorCode::MalformedXML, "an object is made of one part at least"));
    }
    let by_number: BTreeMap<i32, &Part> = stored.iter().map(|part| (part.number, part)).collect();
    let numbers = || asked.iter().map(|part| part.part_number.unwrap_or(0));
    if numbers().zip(numbers().skip(1)).any(|(one, next)| one >= next) {
        return Err(problem(S3ErrorCode::InvalidPartOrder, "parts stand in the order of their numbers"));
    }
    let mut parts = Vec::new();
    for (at, named) in asked.iter().enumerate() {
        let number = named.part_number.unwrap_or(0);
        let part = by_number.get(&number).filter(|part| is_named(part, named));
        let part = *part.ok_or_else(|| {
            problem(S3ErrorCode::InvalidPart, format!("part {number} is not there, or of another ETag"))
        })?;
        if at + 1 < asked.len() && part.stat.size_bytes < PART_LEAST_BYTES {
            let text = format!(
                "part {number} has {} bytes: all but the last have {PART_LEAST_BYTES} at least",
                part.stat.size_bytes
            );
            return Err(problem(S3ErrorCode::EntityTooSmall, text));
        }
        parts.push((part, named));
    }
    let sizes: Vec<u64> = parts.iter().map(|(part, _)| part.stat.size_bytes).collect();
    let md5s: Vec<u8> = parts.iter().flat_map(|(part, _)| &part.stat.tag).copied().collect();
    let mut whole = Whole {
        keys: parts.iter().map(|(part, _)| part.key.clone()).collect(),
        tag: tag_of(&md5s, parts.len()),
        checksum: Checksum::default(),
        size_bytes: sizes.iter().sum(),
        sizes,
        kind: None,
    };
    let read = stream::iter(parts).map(|(part, named)| part_sum(store, partition, part, named, sums));
    let part_sums: Vec<_> = read.buffered(AT_ONCE).try_collect().await?;
    if let Some(sums) = sums {
        let part_sums: Vec<_> = part_sums.into_iter().flatten().zip(whole.sizes.iter().copied()).collect();
        let value = sums.combine(&part_sums);
        whole.checksum = meta::checksum(&[(sums.name(), value.into_bytes())].into());
        whole.kind = Some(sums.kind());
    }
    Ok(whole)
}

/// The tag of an object made of parts of these tags.
fn tag_of(md5s: &[u8], parts: usize) -> Vec<u8> {
    let mut tag = Md5::checksum(md5s).to_vec();
    tag.extend_from_slice(&(parts as u16).to_le_bytes());
    tag
}

/// The tag of the object that a client names the parts of, where it names them by their `ETag`s.
pub(crate) fn tag_of_named(asked: &[CompletedPart]) -> Option<Vec<u8>> {
    let md5 = |part: &CompletedPart| hex_simd::decode_to_vec(part.e_tag.as_ref()?.value()).ok();
    let md5s: Option<Vec<Vec<u8>>> = asked.iter().map(md5).collect();
    Some(tag_of(&md5s?.concat(), asked.len()))
}

fn is_named(part: &Part, named: &CompletedPart) -> bool {
    named.e_tag.as_ref().is_none_or(|tag| tag.value() == hex(&part.stat.tag))
}

/// The checksum of a part that its object's is made of. What the client says of the part is held against what was stored.
async fn part_sum(
    store: &Store,
    partition: PartitionId,
    part: &Part,
    named: &CompletedPart,
    sums: Option<&Sums>,
) -> S3Result<Option<Vec<u8>>> {
    let said = meta::of_checksum(&said_checksums!(named));
    if said.is_empty() && sums.is_none() {
        return Ok(None);
    }
    let bad = |text: String| problem(S3ErrorCode::InvalidPart, format!("part {}: {text}", part.number));
    let (_, stored) = store.attributes(partition, &part.key, Which::Latest).await.map_err(refusal)?;
    if let Some((name, _)) = said.iter().find(|(name, value)| stored.get(*name) != Some(*value)) {
        return Err(bad(format!("{name} is not what was stored with it")));
    }
    let Some(sums) = sums else { return Ok(None) };
    let sum = stored.get(&sums.name()).and_then(|text| base64_simd::STANDARD.decode_to_vec(text).ok());
    sum.map(Some).ok_or_else(|| bad("it has no checksum of the upload's kind".to_owned()))
}

impl Service {
    pub(crate) async fn parts_page(&self, request: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let limit = page_limit(input.max_parts)?;
        let found = self.upload(&bucket, &input.key, &input.upload_id).await?;
        let (partition, id) = (bucket.home.parts, found.entry.id);
        let behind = input.part_number_marker.unwrap_or(0);
        let look = async move |store: Store| {
            let mut parts = parts_of(&store, partition, &id).await.map_err(refusal)?;
            parts.retain(|part| part.number > behind);
            let more = limit > 0 && parts.len() > limit;
            parts.truncate(limit);
            let read = stream::iter(parts).map(async |part| {
                let (_, attributes) = store.attributes(partition, &part.key, Which::Latest).await.map_err(refusal)?;
                Ok::<_, s3s::S3Error>((part, meta::checksum(&attributes)))
            });
            let shown: Vec<_> = read.buffered(AT_ONCE).try_collect().await?;
            Ok::<_, s3s::S3Error>((shown, more))
        };
        let (parts, more) = bucket.way().ask(look).await?;
        let last = parts.last().map(|(part, _)| part.number);
        let show = |(part, checksum): (Part, Checksum)| {
            let mut shown = s3s::dto::Part {
                e_tag: Some(etag(&part.stat.tag)),
                last_modified: Some(timestamp(part.stat.modified_ms)),
                part_number: Some(part.number),
                size: Some(part.stat.size_bytes.cast_signed()),
                ..s3s::dto::Part::default()
            };
            show_checksums!(shown, checksum);
            shown
        };
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            is_truncated: Some(more),
            next_part_number_marker: last,
            part_number_marker: Some(behind),
            max_parts: Some(count(limit)),
            parts: Some(parts.into_iter().map(show).collect()),
            owner: Some(owner()),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            ..ListPartsOutput::default()
        }))
    }

    pub(crate) async fn list_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let encoding = Encoding::of(input.encoding_type.as_ref())?;
        let limit = page_limit(input.max_uploads)?;
        let query = Query {
            prefix: input.prefix.clone().unwrap_or_default().into_bytes(),
            delimiter: input.delimiter.clone().map(String::into_bytes),
            after: after_key(input.key_marker.as_ref()),
            limit: Some(limit),
            versions: true,
        };
        let behind = input.upload_id_marker.clone().filter(|id| !id.is_empty());
        let (items, more) = self.directory.uploads_page(&bucket, query, behind).await?;
        let prefixes = items.iter().filter_map(|item| match item {
            Item::Prefix(prefix) => Some(CommonPrefix { prefix: Some(encoding.write(prefix)) }),
            Item::Object { .. } => None,
        });
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (next_key, next_id) = match items.last().filter(|_| more) {
            Some(Item::Prefix(prefix)) => (Some(encoding.write(prefix)), None),
            Some(Item::Object { key, stat }) => (Some(encoding.write(key)), Some(text(&stat.tag))),
            None => (None, None),
        };
        let shown = items.iter().filter_map(|item| match item {
            Item::Object { key, stat } => Some(MultipartUpload {
                initiated: Some(timestamp(stat.modified_ms)),
                key: Some(encoding.write(key)),
                owner: Some(owner()),
                storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
                upload_id: Some(text(&stat.tag)),
                ..MultipartUpload::default()
            }),
            Item::Prefix(_) => None,
        });
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            common_prefixes: Some(prefixes.collect()),
            uploads: Some(shown.collect()),
            is_truncated: Some(more),
            next_key_marker: next_key,
            next_upload_id_marker: next_id,
            prefix: Some(encoding.write(input.prefix.unwrap_or_default().as_bytes())),
            key_marker: Some(encoding.write(input.key_marker.unwrap_or_default().as_bytes())),
            upload_id_marker: input.upload_id_marker,
            delimiter: encoding.write_some(input.delimiter.as_ref()),
            max_uploads: Some(count(limit)),
            encoding_type: input.encoding_type,
            ..ListMultipartUploadsOutput::default()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3s::crypto::Crc64Nvme;

    #[test]
    fn the_whole_has_the_checksum_that_its_bytes_have() {
        let (one, other) = (vec![7u8; 1000], vec![9u8; 77]);
        let all = [one.as_slice(), &other].concat();
        let base64 = |bytes: &[u8]| base64_simd::STANDARD.encode_to_string(bytes);
        let sums = |algorithm: &str| Sums { algorithm: algorithm.to_owned(), whole: true };
        let of = |sum: fn(&[u8]) -> Vec<u8>| vec![(sum(&one), 1000), (sum(&other), 77)];
        let crc32: fn(&[u8]) -> Vec<u8> = |bytes| Crc32::checksum(bytes).to_vec();
        let crc64: fn(&[u8]) -> Vec<u8> = |bytes| Crc64Nvme::checksum(bytes).to_vec();
        assert_eq!(sums("crc32").combine(&of(crc32)), base64(&Crc32::checksum(&all)));
        assert_eq!(sums("crc64nvme").combine(&of(crc64)), base64(&Crc64Nvme::checksum(&all)));
    }

    #[test]
    fn only_checksums_that_can_be_are_taken() {
        let of = |algorithm, kind| Sums::of(Some(algorithm), kind).map(|sums| sums.is_some_and(|sums| sums.whole));
        assert!(of("crc64nvme", None).unwrap() && of("crc32", Some("FULL_OBJECT")).unwrap());
        assert!(!of("crc32", None).unwrap() && !of("sha256", Some("COMPOSITE")).unwrap());
        for (algorithm, kind) in [("sha256", "FULL_OBJECT"), ("crc64nvme", "COMPOSITE"), ("md4", "COMPOSITE")] {
            assert!(of(algorithm, Some(kind)).is_err(), "{algorithm} {kind}");
        }
    }
}
