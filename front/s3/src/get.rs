//! Reading an object: what is known of it, and its bytes.

use crate::bucket::Bucket;
use crate::checksums::show_checksums;
use crate::meta::{checksum, checksum_type, etag, parts_count, show_headers, timestamp, version_id, which};
use crate::meters;
use crate::multipart::{check_number, sizes};
use crate::problem::{custom, of_object, problem, refusal, stopped, unsupported};
use crate::put::precondition_failed;
use crate::service::Service;
use crate::signed::covers;
use crate::tags;
use bytes::Bytes;
use futures::Stream;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode, Uri};
use kura_block::{Buf, Bufs, Kind};
use kura_object::{Attributes, Item, PartitionId, Query, Reader, Stat, Store, Which};
use s3s::dto::{
    ETagCondition, GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts, GetObjectInput,
    GetObjectOutput, HeadObjectInput, HeadObjectOutput, Range, StorageClass, StreamingBlob, Timestamp, TimestampFormat,
};
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{HttpResponse, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, StdError};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Pieces of up to 1 MiB that are read ahead of the socket.
const AHEAD: usize = 2;
/// What a `Content-Range` says before the size of an object that does not have the range.
const NONE_OF: &str = "bytes */";

/// What must hold of an object to be read: names as S3 has them.
#[derive(Clone, Default)]
#[allow(clippy::struct_field_names)] // They are the headers'.
pub(crate) struct Conditions {
    pub if_match: Option<ETagCondition>,
    pub if_none_match: Option<ETagCondition>,
    pub if_modified_since: Option<Timestamp>,
    pub if_unmodified_since: Option<Timestamp>,
}

impl Conditions {
    /// Whether they hold, in the order of RFC 9110; times count in whole seconds.
    pub fn check(&self, stat: &Stat, attributes: Option<&Attributes>) -> S3Result<()> {
        let tag = etag(&stat.tag);
        let is = |condition: &ETagCondition| condition.as_etag().is_none_or(|wanted| wanted.value() == tag.value());
        let modified = timestamp(stat.modified_ms / 1000 * 1000);
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) if !is(condition) => return Err(precondition_failed("If-Match")),
            (None, Some(since)) if modified > *since => return Err(precondition_failed("If-Unmodified-Since")),
            _ => {}
        }
        let changed = match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) => !is(condition),
            (None, Some(since)) => modified > *since,
            (None, None) => true,
        };
        if changed { Ok(()) } else { Err(not_modified(stat, attributes)) }
    }
}

/// Says with it what a cache is to know, as RFC 9110 has it.
fn not_modified(stat: &Stat, attributes: Option<&Attributes>) -> S3Error {
    let mut headers = HeaderMap::new();
    headers.extend(etag(&stat.tag).to_http_header().ok().map(|tag| (header::ETAG, tag)));
    for name in [header::CACHE_CONTROL, header::EXPIRES] {
        let said = attributes
            .and_then(|attributes| attributes.get(name.as_str()))
            .and_then(|value| HeaderValue::from_bytes(value).ok());
        headers.extend(said.map(|value| (name, value)));
    }
    let mut error = S3Error::new(S3ErrorCode::NotModified);
    error.set_headers(headers);
    error
}

/// An object that is open.
pub(crate) struct Opened {
    pub stat: Stat,
    pub attributes: Attributes,
    /// What is to be read of it.
    pub range: std::ops::Range<u64>,
    body: Outgoing,
}

impl Opened {
    /// The bytes, as they come.
    pub fn into_body(self) -> StreamingBlob {
        StreamingBlob::new(self.body)
    }
}

/// Opens a version, begins to read what `choose` says of it, and goes on ahead of whoever takes it. It is asked before its attributes
/// are known, too, and may not say less then.
pub(crate) async fn open<C>(bucket: &Bucket, key: Vec<u8>, which: Which, choose: C) -> S3Result<Opened>
where
    C: Fn(&Stat, Option<&Attributes>) -> S3Result<std::ops::Range<u64>> + Send + 'static,
{
    let (head, opened) = tokio::sync::oneshot::channel();
    let partition = bucket.id;
    let read = async move |store: Store| {
        let begun = async {
            // So that the first bytes are on their way while the attributes are read; only a refusal shows those.
            let wanted = |stat: &Stat| choose(stat, None).unwrap_or(0..0);
            let mut reader = found(&store, partition, &key, which, wanted).await?;
            let range = choose(&reader.stat, Some(&reader.attributes))?;
            reader.range(range.clone()).map_err(refusal)?;
            let first = reader.next().await.map_err(refusal)?;
            Ok((reader, range, first))
        };
        let (mut reader, range, first) = match begun.await {
            Ok(begun) => begun,
            Err(error) => return drop(head.send(Err(error))),
        };
        let mut left = range.end - range.start;
        let mut ready = VecDeque::new();
        if let Some(first) = first {
            left -= first.len() as u64;
            ready.extend(first.parts().iter().map(bytes_of));
        }
        let (pieces, coming) = mpsc::channel(AHEAD);
        let body = Outgoing { ready, left_bytes: range.end - range.start, coming };
        let (stat, attributes) = (reader.stat.clone(), std::mem::take(&mut reader.attributes));
        meters::fetched(reader.fetched());
        let gone = head.send(Ok(Opened { stat, attributes, range, body })).is_err();
        while left > 0 && !gone {
            let next = reader.next().await;
            meters::fetched(reader.fetched());
            left -= next.as_ref().ok().and_then(Option::as_ref).map_or(left, |piece| piece.len() as u64);
            let Some(piece) = next.transpose() else { return };
            if pieces.send(piece).await.is_err() {
                return;
            }
        }
    };
    drop(bucket.way().begin(read));
    opened.await.map_err(|_| S3Error::from(crate::door::Stopped))?
}

/// Opens the version that is meant, to read what `choose` says of it; where there is none to be read, a client is told why.
pub(crate) async fn found(
    store: &Store,
    partition: PartitionId,
    key: &[u8],
    which: Which,
    choose: impl Fn(&Stat) -> std::ops::Range<u64>,
) -> S3Result<Reader> {
    match store.read_chosen(partition, key, which, choose).await {
        // A delete marker that is named is there, but has nothing to read.
        Ok(reader) if reader.stat.marker => Err(of_marker(&reader.stat, which)),
        Err(error) if error.kind() == Kind::Missing => Err(missing(store, partition, key, which).await),
        read => read.map_err(refusal),
    }
}

/// Why there is no such version: to whoever names none, a delete marker is none.
async fn missing(store: &Store, partition: PartitionId, key: &[u8], which: Which) -> S3Error {
    if which != Which::Latest {
        return problem(S3ErrorCode::NoSuchVersion, "there is no such version of the object");
    }
    let newest = Query { prefix: key.to_vec(), versions: true, limit: Some(1), ..Query::default() };
    match store.list(partition, &newest).await.map(|page| page.items.into_iter().next()) {
        Ok(Some(Item::Object { key: own, stat })) if own == key && stat.marker => of_marker(&stat, which),
        Ok(_) => S3ErrorCode::NoSuchKey.into(),
        Err(error) => of_object(error),
    }
}

/// What a client is told of a delete marker: it says what it is in a header.
pub(crate) fn of_marker(marker: &Stat, which: Which) -> S3Error {
    let code = if which == Which::Latest { S3ErrorCode::NoSuchKey } else { S3ErrorCode::MethodNotAllowed };
    let mut error = problem(code, "this is a delete marker");
    let mut headers = HeaderMap::new();
    // They take the place of all that an error has otherwise.
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    headers.insert("x-amz-delete-marker", HeaderValue::from_static("true"));
    headers.extend(version_id(marker).parse().ok().map(|id| (HeaderName::from_static("x-amz-version-id"), id)));
    error.set_headers(headers);
    error
}

/// A body on its way out.
struct Outgoing {
    ready: VecDeque<Bytes>,
    left_bytes: u64,
    coming: mpsc::Receiver<kura_block::Result<Bufs>>,
}

fn bytes_of(part: &Buf) -> Bytes {
    struct Owner(Buf);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(Owner(part.clone()))
}

impl Stream for Outgoing {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                self.left_bytes -= bytes.len() as u64;
                meters::sent(bytes.len());
                return Poll::Ready(Some(Ok(bytes)));
            }
            if self.left_bytes == 0 {
                return Poll::Ready(None);
            }
            match std::task::ready!(self.coming.poll_recv(context)) {
                Some(Ok(piece)) => self.ready.extend(piece.parts().iter().map(bytes_of)),
                // The client sees the connection end before the body does.
                Some(Err(error)) => {
                    tracing::error!(%error, "S3: an object cannot be read to its end");
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => return Poll::Ready(Some(Err(stopped().into()))),
            }
        }
    }
}

impl ByteStream for Outgoing {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(self.left_bytes as usize)
    }
}

/// What of an object is asked for.
#[derive(Clone)]
struct Wanted {
    range: Option<Range>,
    if_range: Option<HeaderValue>,
    /// A part by its number.
    part: Option<i32>,
}

impl Wanted {
    fn new(range: Option<Range>, part: Option<i32>, headers: &HeaderMap) -> S3Result<Self> {
        part.map_or(Ok(()), check_number)?;
        if range.is_some() && part.is_some() {
            return Err(problem(S3ErrorCode::InvalidRequest, "a range and a part's number do not go together"));
        }
        Ok(Self { range, if_range: headers.get(header::IF_RANGE).cloned(), part })
    }

    /// The bytes that are asked for, where these are not all, or the only part.
    fn of(&self, stat: &Stat, attributes: Option<&Attributes>) -> S3Result<Option<std::ops::Range<u64>>> {
        if let Some(number) = self.part {
            // An empty one has no first byte that could be named.
            return Ok(Some(part(number, stat, attributes)?).filter(|part| !part.is_empty()));
        }
        let Some(range) = applied(self.range, self.if_range.as_ref(), stat) else { return Ok(None) };
        // Of nothing, no byte is the last.
        let found = range.check(stat.size_bytes).ok().filter(|_| stat.size_bytes > 0);
        found.map(Some).ok_or_else(|| unsatisfiable(stat))
    }
}

/// A range that the object does not have; its size is in the answer's head, by which [`say_part`] tells it.
fn unsatisfiable(stat: &Stat) -> S3Error {
    let mut error = S3Error::new(S3ErrorCode::InvalidRange);
    let size = format!("{NONE_OF}{}", stat.size_bytes).parse().ok();
    error.set_headers(size.map(|size| (header::CONTENT_RANGE, size)).into_iter().collect());
    error
}

/// The bytes of a part of an object; all, where it is not known yet which they are.
fn part(number: i32, stat: &Stat, attributes: Option<&Attributes>) -> S3Result<std::ops::Range<u64>> {
    let all = 0..stat.size_bytes;
    let found = match (parts_count(&stat.tag), attributes) {
        (None, _) => (number == 1).then_some(all),
        (Some(_), None) => Some(all),
        (Some(_), Some(attributes)) => {
            let unknown = || unsupported("reading a part of an object whose parts' sizes are not known");
            sizes::part(sizes::of(attributes).ok_or_else(unknown)?, number.cast_unsigned().into())
        }
    };
    let text = "The requested partnumber is not satisfiable";
    found.ok_or_else(|| custom("InvalidPartNumber", StatusCode::RANGE_NOT_SATISFIABLE, text))
}

/// What is read of the range that is asked for: all, where `If-Range` names another state of the object.
fn applied(range: Option<Range>, if_range: Option<&HeaderValue>, stat: &Stat) -> Option<Range> {
    let Some(value) = if_range else { return range };
    let value = value.to_str().ok()?.trim();
    let tag = etag(&stat.tag);
    // A weak tag never says that bytes are the same.
    let is_same = value.trim_matches('"') == tag.value()
        || Timestamp::parse(TimestampFormat::HttpDate, value)
            .is_ok_and(|at| at == timestamp(stat.modified_ms / 1000 * 1000));
    range.filter(|_| is_same)
}

/// Forgets a range that is none, or several of them: as RFC 9110 has it, all is read then, and s3s would refuse it. Where the
/// header is signed it must stay.
pub(crate) fn forget_odd_range(headers: &mut HeaderMap, uri: &Uri) {
    let mut values = headers.get_all(header::RANGE).iter();
    let is_range = |value: &HeaderValue| value.to_str().is_ok_and(|text| Range::parse(text).is_ok());
    let is_one = values.next().is_none_or(is_range) && values.next().is_none();
    if !is_one && !covers(header::RANGE.as_str(), headers, uri) {
        headers.remove(header::RANGE);
    }
}

/// Says in an answer what s3s does not: in one without a body, that it is of a part of the object; and how long an object is that does
/// not have the range that was asked for, by which some clients find out that it is empty.
pub(crate) fn say_part(method: &Method, range: Option<&HeaderValue>, answer: &mut HttpResponse) {
    let Some(told) = answer.headers().get(header::CONTENT_RANGE).and_then(|told| told.to_str().ok()) else { return };
    if let (Some(size), Some(range)) = (told.strip_prefix(NONE_OF), range.and_then(|range| range.to_str().ok())) {
        let text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>InvalidRange</Code><Message>The requested range is not \
             satisfiable</Message><RangeRequested>{range}</RangeRequested><ActualObjectSize>{size}</ActualObjectSize></Error>"
        );
        *answer.body_mut() = text.into();
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    } else if method == Method::HEAD && answer.status() == StatusCode::OK {
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
}

fn content_range(range: &std::ops::Range<u64>, stat: &Stat) -> String {
    format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), stat.size_bytes)
}

impl Service {
    /// What is known of a version, and its attributes.
    pub(crate) async fn known(
        &self,
        bucket: &Bucket,
        key: String,
        version: Option<String>,
    ) -> S3Result<(Stat, Attributes)> {
        let (partition, which) = (bucket.id, which(version.as_deref())?);
        let look = async move |store: Store| {
            let mut reader = found(&store, partition, key.as_bytes(), which, |_| 0..0).await?;
            Ok((reader.stat.clone(), std::mem::take(&mut reader.attributes)))
        };
        bucket.way().ask(look).await
    }

    pub(crate) async fn get(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let conditions = Conditions {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let wanted = Wanted::new(input.range, input.part_number, &request.headers)?;
        let which = which(input.version_id.as_deref())?;
        let asked = wanted.clone();
        let choose = move |stat: &Stat, attributes: Option<&Attributes>| {
            conditions.check(stat, attributes)?;
            Ok(asked.of(stat, attributes)?.unwrap_or(0..stat.size_bytes))
        };
        let Opened { stat, attributes, range, body } = open(&bucket, input.key.into_bytes(), which, choose).await?;
        let ranged = wanted.of(&stat, Some(&attributes))?;
        let mut output = GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some((range.end - range.start).cast_signed()),
            content_range: ranged.is_some().then(|| content_range(&range, &stat)),
            e_tag: Some(etag(&stat.tag)),
            last_modified: Some(timestamp(stat.modified_ms)),
            parts_count: wanted.part.and_then(|_| parts_count(&stat.tag)),
            version_id: bucket.versioning.is_known().then(|| version_id(&stat)),
            ..GetObjectOutput::default()
        };
        show_headers!(output, attributes);
        output.tag_count = tags::count(&attributes);
        if input.checksum_mode.is_some() && ranged.is_none() {
            show_checksums!(output, checksum(&attributes));
            output.checksum_type = checksum_type(&attributes);
        }
        output.body = Some(StreamingBlob::new(body));
        Ok(S3Response::new(output))
    }

    pub(crate) async fn head(&self, request: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = request.input;
        let wanted = Wanted::new(input.range, input.part_number, &request.headers)?;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let conditions = Conditions {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let (stat, attributes) = self.known(&bucket, input.key, input.version_id).await?;
        conditions.check(&stat, Some(&attributes))?;
        let ranged = wanted.of(&stat, Some(&attributes))?;
        let range = ranged.clone().unwrap_or(0..stat.size_bytes);
        let mut output = HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some((range.end - range.start).cast_signed()),
            content_range: ranged.is_some().then(|| content_range(&range, &stat)),
            e_tag: Some(etag(&stat.tag)),
            last_modified: Some(timestamp(stat.modified_ms)),
            parts_count: wanted.part.and_then(|_| parts_count(&stat.tag)),
            version_id: bucket.versioning.is_known().then(|| version_id(&stat)),
            ..HeadObjectOutput::default()
        };
        show_headers!(output, attributes);
        if input.checksum_mode.is_some() && ranged.is_none() {
            show_checksums!(output, checksum(&attributes));
            output.checksum_type = checksum_type(&attributes);
        }
        Ok(S3Response::new(output))
    }

    pub(crate) async fn attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let (stat, attributes) = self.known(&bucket, input.key, input.version_id).await?;
        let wanted = |what: &str| {
            input.object_attributes.iter().flat_map(|asked| asked.as_str().split(',')).any(|asked| asked.trim() == what)
        };
        let mut sums = checksum(&attributes);
        sums.checksum_type = checksum_type(&attributes);
        let parts = parts_count(&stat.tag).map(|count| GetObjectAttributesParts {
            total_parts_count: Some(count),
            ..GetObjectAttributesParts::default()
        });
        Ok(S3Response::new(GetObjectAttributesOutput {
            e_tag: wanted("ETag").then(|| etag(&stat.tag)),
            object_size: wanted("ObjectSize").then_some(stat.size_bytes.cast_signed()),
            storage_class: wanted("StorageClass").then(|| StorageClass::from_static(StorageClass::STANDARD)),
            checksum: wanted("Checksum").then_some(sums),
            object_parts: parts.filter(|_| wanted("ObjectParts")),
            last_modified: Some(timestamp(stat.modified_ms)),
            version_id: bucket.versioning.is_known().then(|| version_id(&stat)),
            ..GetObjectAttributesOutput::default()
        }))
    }
}
