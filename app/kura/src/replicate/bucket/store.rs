//! A bucket of whatever speaks S3: requests that are signed and sent, and what their answers say.

use super::wire::{Answered, Body, Trouble, Wire, of, split};
use crate::replicate::sites::check_plain;
use crate::tls;
use anyhow::{Context, Result, anyhow, bail};
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, ETAG, HOST, HeaderMap};
use hyper::{Request, Response, StatusCode};
use kura_replicate::bucket::There;
use kura_replicate::{Options, Target};
use quick_xml::escape::unescape;
use rusty_s3::actions::{CreateMultipartUpload, ListObjectsV2, ListObjectsV2Response, ListParts};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// What an object has besides its content: headers, by their names in lower case.
pub type Attributes = BTreeMap<String, String>;

/// An object's tags: names and values.
pub type Tags = BTreeSet<(String, String)>;

const REGION: &str = "us-east-1";
/// How long a signature holds: as long as clocks may differ.
const SIGNED: Duration = Duration::from_mins(15);
/// A large object may be put together for so long before there is a word of it.
const COMPLETES: Duration = Duration::from_mins(10);
/// What the names in S3's answers belong to.
const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";
/// Answers that every other request would have, too.
const SHUT: [&str; 7] = [
    "AccountProblem",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "NoSuchBucket",
    "RequestTimeTooSkewed",
    "TokenRefreshRequired",
];
/// The most that is read of an answer that is no object.
const ANSWER_BYTES: usize = 16 << 20;

/// A part of an upload, as it is listed.
pub struct Part {
    /// Its number, from 1 on.
    pub number: u16,
    /// Its `ETag`.
    pub etag: String,
    /// Bytes of it.
    pub size_bytes: u64,
}

/// A bucket at the target.
pub struct Store {
    bucket: Bucket,
    credentials: Credentials,
    wire: Wire,
    /// The same, for what takes its time.
    slow: Wire,
}

impl Store {
    /// The bucket that a target names. Nothing is asked of it yet.
    pub fn of(target: &Target, options: &Options) -> Result<Self> {
        let named = || said(["AWS_REGION", "AWS_DEFAULT_REGION"]);
        let region = options.target_region.clone().or_else(named).unwrap_or_else(|| REGION.to_owned());
        let (endpoint, style, name) = place(target, &region)?;
        let at = || format!("the target {target}");
        let endpoint = parsed(&endpoint).with_context(at)?;
        let bucket = Bucket::new(endpoint, style, name, region).map_err(|error| anyhow!("{error}")).with_context(at)?;
        let credentials = match &options.target_credentials {
            Some(file) => from_file(file)?,
            None => Credentials::from_env().context(
                "no access key for the target: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file with \
                 --target-credentials",
            )?,
        };
        let url = bucket.base_url();
        let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
        let trust = match (url.scheme(), &options.target_ca) {
            ("http", _) => {
                check_plain(host, options).with_context(at)?;
                None
            }
            (_, Some(ca)) => Some(tls::trust(ca)?),
            (_, None) => Some(tls::trust_system().context("name the authority to trust with --target-ca")?),
        };
        let wire = Wire::new(host, port, trust.clone(), options.timeout)?;
        let slow = Wire::new(host, port, trust, options.timeout.max(COMPLETES))?;
        Ok(Self { bucket, credentials, wire, slow })
    }

    /// A page of what it has, and where the next one begins.
    pub async fn page(&self, from: Option<String>) -> Answered<(Vec<There>, Option<String>)> {
        let mut list = ListObjectsV2::new(&self.bucket, Some(&self.credentials));
        if let Some(from) = from {
            list.with_continuation_token(from);
        }
        self.list(list).await
    }

    async fn list(&self, list: ListObjectsV2<'_>) -> Answered<(Vec<There>, Option<String>)> {
        let answer = self.send(list, empty(), 0).await?;
        let text = text(answer).await?;
        let page: ListObjectsV2Response = as_s3(&text, "ListBucketResult", ListObjectsV2::parse_response)
            .map_err(|error| Trouble::Refused(format!("does not list as S3 does: {error}")))?;
        let there = page.contents.into_iter().map(|object| There {
            etag: object.etag.as_deref().map(unquoted).unwrap_or_default(),
            size_bytes: object.size.unwrap_or_default(),
            key: object.key,
        });
        Ok((there.collect(), page.next_continuation_token))
    }

    /// Stores an object, and tells its `ETag`. `md5` is that of its content, in base64, which the target holds it against.
    pub async fn put(
        &self,
        key: &str,
        (attributes, md5): (&Attributes, &str),
        size_bytes: u64,
        body: Body,
    ) -> Answered<String> {
        let mut put = self.bucket.put_object(Some(&self.credentials), key);
        for (name, value) in attributes {
            put.headers_mut().insert(name.clone(), value.clone());
        }
        put.headers_mut().insert("content-md5", md5.to_owned());
        etag(self.send(put, body, size_bytes).await?.headers())
    }

    /// Begins an upload in parts, and tells what it is called.
    pub async fn begin(&self, key: &str, attributes: &Attributes) -> Answered<String> {
        let mut begin = self.bucket.create_multipart_upload(Some(&self.credentials), key);
        for (name, value) in attributes {
            begin.headers_mut().insert(name.clone(), value.clone());
        }
        let text = text(self.send(begin, empty(), 0).await?).await?;
        let begun = as_s3(&text, "InitiateMultipartUploadResult", CreateMultipartUpload::parse_response)
            .map_err(|error| Trouble::Refused(format!("does not begin uploads as S3 does: {error}")))?;
        Ok(begun.upload_id().to_owned())
    }

    /// Sends a part, from 1 on, and tells its `ETag`. `md5` is that of its content, in base64, which the target holds it against.
    pub async fn part(
        &self,
        (key, id): (&str, &str),
        (part, md5): (u16, &str),
        size_bytes: u64,
        body: Body,
    ) -> Answered<String> {
        let mut part = self.bucket.upload_part(Some(&self.credentials), key, part, id);
        part.headers_mut().insert("content-md5", md5.to_owned());
        etag(self.send(part, body, size_bytes).await?.headers())
    }

    /// The parts of an upload that are there.
    pub async fn parts(&self, (key, id): (&str, &str)) -> Answered<Vec<Part>> {
        let mut parts = Vec::new();
        let mut after = None;
        loop {
            let mut list = ListParts::new(&self.bucket, Some(&self.credentials), key, id);
            if let Some(after) = after {
                list.set_part_number_marker(after);
            }
            let text = text(self.send(list, empty(), 0).await?).await?;
            let page = as_s3(&text, "ListPartsResult", ListParts::parse_response)
                .map_err(|error| Trouble::Refused(format!("does not list parts as S3 does: {error}")))?;
            parts.extend(page.parts.into_iter().map(|part| Part {
                number: part.number,
                etag: unquoted(&part.etag),
                size_bytes: part.size,
            }));
            match page.next_part_number_marker {
                Some(next) if after.is_none_or(|after| after < next) => after = Some(next),
                _ => return Ok(parts),
            }
        }
    }

    /// Makes an object of its parts, and tells its `ETag`; some answer none.
    pub async fn complete(&self, (key, id): (&str, &str), parts: &[String]) -> Answered<String> {
        let all = || parts.iter().map(String::as_str);
        let complete = self.bucket.complete_multipart_upload(Some(&self.credentials), key, id, all());
        let body = self.bucket.complete_multipart_upload(Some(&self.credentials), key, id, all()).body();
        let size_bytes = body.len() as u64;
        let answer = refusal(self.ask(&self.slow, complete, full(body), size_bytes).await?).await?;
        let text = text(answer).await?;
        // The answer begins before the work is done: an error may come in it.
        match within(&text, "Code") {
            Some(code) => Err(Trouble::Passing(told(&code, &text))),
            None if text.contains("CompleteMultipartUpload") => {
                Ok(unquoted(&within(&text, "ETag").unwrap_or_default()))
            }
            None => Err(Trouble::Refused("does not complete uploads as S3 does".to_owned())),
        }
    }

    /// An object as it is listed; `None` where it is not.
    pub async fn listed(&self, key: &str) -> Answered<Option<There>> {
        let mut list = ListObjectsV2::new(&self.bucket, Some(&self.credentials));
        list.with_prefix(key);
        list.with_max_keys(1);
        // Keys that begin with another one come behind it.
        let (first, _) = self.list(list).await?;
        Ok(first.into_iter().find(|there| there.key == key))
    }

    /// Ends an upload in parts without an object; it is no error if there is none.
    pub async fn abort(&self, (key, id): (&str, &str)) -> Answered<()> {
        let abort = self.bucket.abort_multipart_upload(Some(&self.credentials), key, id);
        match self.ask(&self.wire, abort, empty(), 0).await? {
            answer if answer.status() == StatusCode::NOT_FOUND => Ok(()),
            answer => refusal(answer).await.map(drop),
        }
    }

    /// Deletes an object; it is no error if there is none.
    pub async fn delete(&self, key: &str) -> Answered<()> {
        self.send(self.bucket.delete_object(Some(&self.credentials), key), empty(), 0).await.map(drop)
    }

    /// An object's headers, and its content as it comes.
    pub async fn get(&self, key: &str) -> Answered<(HeaderMap, Incoming)> {
        let answer = self.send(self.bucket.get_object(Some(&self.credentials), key), empty(), 0).await?;
        let (head, body) = answer.into_parts();
        Ok((head.headers, body))
    }

    /// An object's tags.
    pub async fn tags(&self, key: &str) -> Answered<Tags> {
        let mut get = self.bucket.get_object(Some(&self.credentials), key);
        get.query_mut().insert("tagging", "");
        let text = text(self.send(get, empty(), 0).await?).await?;
        let field = |tag: &str, name: &str| within(tag, name).unwrap_or_default();
        Ok(text.split("<Tag>").skip(1).map(|tag| (field(tag, "Key"), field(tag, "Value"))).collect())
    }

    async fn send<'a>(&self, action: impl S3Action<'a>, body: Body, size_bytes: u64) -> Answered<Response<Incoming>> {
        refusal(self.ask(&self.wire, action, body, size_bytes).await?).await
    }

    async fn ask<'a, A: S3Action<'a>>(
        &self,
        wire: &Wire,
        mut action: A,
        body: Body,
        size_bytes: u64,
    ) -> Answered<Response<Incoming>> {
        let mut request = Request::builder().method(A::METHOD.to_str());
        for (name, value) in action.headers_mut().iter() {
            request = request.header(name, value.as_bytes());
        }
        let url = action.sign(SIGNED);
        let refused = |error: &dyn Display| Trouble::Refused(format!("cannot be asked: {error}"));
        let (host, path) = split(url.as_str()).map_err(|error| refused(&error))?;
        let request = request.uri(path).header(HOST, host).header(CONTENT_LENGTH, size_bytes).body(body);
        wire.ask(request.map_err(|error| refused(&error))?).await
    }
}

fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T> {
    text.parse().map_err(|error: T::Err| anyhow!("{error}"))
}

/// The first of these that the environment says.
fn said<const N: usize>(names: [&str; N]) -> Option<String> {
    names.into_iter().filter_map(|name| std::env::var(name).ok()).find(|value| !value.is_empty())
}

/// Endpoint, style and bucket of a target.
fn place(target: &Target, region: &str) -> Result<(String, UrlStyle, String)> {
    match target {
        Target::Bucket(bucket) => {
            // A copy is where its target says, whatever else the environment of a run is for.
            if let Some(endpoint) = said(["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]) {
                bail!(
                    "{target}: is at Amazon's, and AWS_ENDPOINT_URL or AWS_ENDPOINT_URL_S3 says {endpoint}: name \
                     https://HOST/{bucket}, or unset it"
                );
            }
            // Certificates of Amazon's do not cover names with dots.
            let style = if bucket.contains('.') { UrlStyle::Path } else { UrlStyle::VirtualHost };
            let china = if region.starts_with("cn-") { ".cn" } else { "" };
            Ok((format!("https://s3.{region}.amazonaws.com{china}"), style, bucket.clone()))
        }
        Target::Kura { server, volume: bucket } if !bucket.contains('/') => {
            Ok((server.clone(), UrlStyle::Path, bucket.clone()))
        }
        _ => bail!("a bucket goes to a bucket: name s3://BUCKET, or https://HOST/BUCKET where else S3 is spoken"),
    }
}

/// The first access key of a file like `~/.aws/credentials`: all of it is of one profile.
fn from_file(path: &Path) -> Result<Credentials> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    first_key(&text).with_context(|| {
        format!(
            "{}: write aws_access_key_id = ... and aws_secret_access_key = ... into it, a line each",
            path.display()
        )
    })
}

fn first_key(text: &str) -> Option<Credentials> {
    let field = |profile: &str, name: &str| {
        let mut lines = profile.lines().filter_map(|line| line.split_once('='));
        lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
    };
    let mut profiles = text.split("\n[").map(|profile| (profile, field(profile, "aws_access_key_id")));
    let (profile, id) = profiles.find_map(|(profile, id)| Some((profile, id?)))?;
    let secret = field(profile, "aws_secret_access_key")?;
    Some(match field(profile, "aws_session_token") {
        Some(token) => Credentials::new_with_token(id, secret, token),
        None => Credentials::new(id, secret),
    })
}

/// What an answer that is an error says.
async fn refusal(answer: Response<Incoming>) -> Answered<Response<Incoming>> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let region = answer.headers().get("x-amz-bucket-region").and_then(|region| region.to_str().ok()).map(str::to_owned);
    let text = text(answer).await.unwrap_or_default();
    let code = within(&text, "Code").unwrap_or_else(|| format!("status {status}"));
    let passes = status == StatusCode::TOO_MANY_REQUESTS
        || matches!(code.as_str(), "RequestTimeout" | "BadDigest")
        || (status.is_server_error()
            && !matches!(status, StatusCode::NOT_IMPLEMENTED | StatusCode::INSUFFICIENT_STORAGE));
    let told = told(&code, &text);
    Err(match region {
        Some(region) if status.is_redirection() => {
            Trouble::Shut(format!("{told}: the bucket is in {region}: say --target-region {region}"))
        }
        _ if SHUT.contains(&code.as_str()) => Trouble::Shut(told),
        _ if passes => Trouble::Passing(told),
        _ => Trouble::Refused(told),
    })
}

fn told(code: &str, text: &str) -> String {
    let message = within(text, "Message").filter(|message| !message.is_empty());
    let message = message.map(|message| message.replace(['\n', '\r'], " "));
    message.map_or_else(|| code.to_owned(), |message| format!("{code}: {message}"))
}

/// The text of the first element of this name.
fn within(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inner, _) = rest.split_once(&format!("</{name}>"))?;
    Some(unescape(inner).unwrap_or(Cow::Borrowed(inner)).into_owned())
}

/// Reads an answer whose root is `root`; where it cannot be read as it is, by the name that S3 has for that: some have a namespace
/// of their own, or none, or another word.
fn as_s3<T, E>(text: &str, root: &str, parse: impl Fn(&str) -> Result<T, E>) -> Result<T, E> {
    let read = parse(text);
    match renamed(text, root).filter(|_| read.is_err()) {
        Some(renamed) => parse(&renamed).or(read),
        None => read,
    }
}

fn renamed(text: &str, root: &str) -> Option<String> {
    let begin = text.match_indices('<').map(|(at, _)| at).find(|at| !text[at + 1..].starts_with(['?', '!']))?;
    let (tag, rest) = text[begin + 1..].split_once('>')?;
    let name = tag.split_ascii_whitespace().next()?;
    let stem = |name: &str| name.trim_end_matches("Result").trim_end_matches("Response").to_owned();
    let (inner, _) = rest.rsplit_once(&format!("</{name}>"))?;
    (stem(name) == stem(root)).then(|| format!("<{root} xmlns=\"{NAMESPACE}\">{inner}</{root}>"))
}

fn etag(headers: &HeaderMap) -> Answered<String> {
    let etag = headers.get(ETAG).and_then(|etag| etag.to_str().ok()).map(unquoted);
    etag.filter(|etag| !etag.is_empty()).ok_or_else(|| Trouble::Refused("tells no ETag of what it stores".to_owned()))
}

fn unquoted(etag: &str) -> String {
    etag.trim().trim_matches('"').to_owned()
}

async fn text(answer: Response<Incoming>) -> Answered<String> {
    let whole = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
    let bytes = whole.map_err(|error| of(&*error))?.to_bytes();
    String::from_utf8(bytes.into()).map_err(|_| Trouble::Refused("answers what is no text".to_owned()))
}

/// A body of nothing.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

fn full(text: String) -> Body {
    Full::from(text).map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_what_s3_calls_it() {
        let s3 = format!("<ListPartsResult xmlns=\"{NAMESPACE}\"><A>1</A></ListPartsResult>");
        for other in [
            "<?xml version=\"1.0\"?>\n<ListPartsResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'><A>1</A></ListPartsResult>",
            "<ListPartsResult><A>1</A></ListPartsResult>\n",
            "<ListPartsResponse xmlns=\"x\"><A>1</A></ListPartsResponse>",
        ] {
            assert_eq!(renamed(other, "ListPartsResult").as_ref(), Some(&s3), "{other}");
        }
        for strange in ["", "<", "<html>hello</html>", "<ListPartsResult><A>1</A>", "no <?x"] {
            assert_eq!(renamed(strange, "ListPartsResult"), None, "{strange}");
        }
    }

    #[test]
    fn what_a_refusal_says_is_plain_text() {
        let text = "<Error><Code>NoSuchKey</Code><Message>a &amp; b\nc</Message></Error>";
        assert_eq!(told("NoSuchKey", text), "NoSuchKey: a & b c");
        assert_eq!(told("NoSuchBucket", "<Message></Message>"), "NoSuchBucket");
    }

    #[test]
    fn a_key_is_of_one_profile() {
        let told = |text: &str| first_key(text).map(|key| (key.secret().to_owned(), key.token().map(str::to_owned)));
        let (session, own) =
            ("[s]\naws_session_token = t\n", "[a]\naws_access_key_id=A\r\naws_secret_access_key = x=\n");
        let other = "[b]\naws_access_key_id = B\naws_secret_access_key = y\naws_session_token = t\n";
        let plain = Some(("x=".to_owned(), None));
        assert_eq!(told(&format!("{session}{own}region = r\n{other}")), plain);
        assert_eq!(told(&format!("{own}\n{other}")), plain);
        assert_eq!(told(own.trim_start_matches("[a]\n")), plain);
        assert_eq!(told(other), Some(("y".to_owned(), Some("t".to_owned()))));
        assert_eq!(told(&format!("[a]\naws_access_key_id = A\n{other}")), None);
        assert_eq!(told(session), None);
    }
}
