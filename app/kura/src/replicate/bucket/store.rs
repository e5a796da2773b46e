//! A bucket of whatever speaks S3: requests that are signed, sent, and tried again where that may help.

use crate::tls;
use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, ETAG, HeaderMap};
use hyper::{Request, Response, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kura_replicate::bucket::There;
use kura_replicate::{Options, Target};
use rusty_s3::actions::{CreateMultipartUpload, ListObjectsV2, ListObjectsV2Response};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;

/// A body on its way.
pub type Body = UnsyncBoxBody<Bytes, anyhow::Error>;
/// What an object has besides its content: headers, by their names in lower case.
pub type Attributes = BTreeMap<String, String>;

/// Whom to trust where nothing is said: where Debian and its kin have it.
const TRUSTED: &str = "/etc/ssl/certs/ca-certificates.crt";
const REGION: &str = "us-east-1";
/// How long a signature holds.
const SIGNED: Duration = Duration::from_hours(6);
const CONNECT: Duration = Duration::from_secs(10);
/// A request may take so long, and a second more for so many bytes of its body.
const PATIENCE: Duration = Duration::from_mins(1);
const SLOWEST_BYTES_PER_S: u64 = 16 << 10;
/// The most that is read of an answer that is no object.
const ANSWER_BYTES: usize = 16 << 20;

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// Nobody can be reached.
    #[error("cannot be reached: {0}")]
    Away(String),
    /// It may go well another time.
    #[error("{0}")]
    Passing(String),
    /// It was refused for good.
    #[error("{0}")]
    Refused(String),
}

type Answered<T> = std::result::Result<T, Trouble>;

/// A bucket at the target.
pub struct Store {
    bucket: Bucket,
    credentials: Credentials,
    client: Client<HttpsConnector<HttpConnector>, Body>,
    bandwidth: Option<u64>,
}

impl Store {
    /// The bucket that a target names. Nothing is asked of it yet.
    pub fn of(target: &Target, options: &Options) -> Result<Self> {
        let region = options.target_region.clone().or_else(|| std::env::var("AWS_REGION").ok());
        let region = region.unwrap_or_else(|| REGION.to_owned());
        let (endpoint, style, name) = place(target, &region)?;
        let bucket = endpoint
            .parse()
            .map_err(|error| anyhow!("{error}"))
            .and_then(|endpoint| Bucket::new(endpoint, style, name, region).map_err(|error| anyhow!("{error}")));
        let bucket = bucket.with_context(|| format!("the target {target}"))?;
        let credentials = match &options.target_credentials {
            Some(file) => from_file(file)?,
            None => Credentials::from_env().context(
                "no access key for the target: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file with \
                 --target-credentials",
            )?,
        };
        let trust = match &options.target_ca {
            Some(ca) => tls::trust(ca)?,
            None if endpoint.starts_with("https:") => {
                tls::trust(Path::new(TRUSTED)).context("name the authority to trust with --target-ca")?
            }
            None => tls::trust_nobody()?,
        };
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT));
        let https = HttpsConnectorBuilder::new().with_tls_config((*trust).clone()).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build(https.wrap_connector(http));
        Ok(Self { bucket, credentials, client, bandwidth: options.bandwidth })
    }

    /// A page of what it has, and where the next one begins.
    pub async fn page(&self, from: Option<String>) -> Answered<(Vec<There>, Option<String>)> {
        let mut list = ListObjectsV2::new(&self.bucket, Some(&self.credentials));
        if let Some(from) = from {
            list.with_continuation_token(from);
        }
        let answer = self.send(list, empty(), 0).await?;
        let text = text(answer).await?;
        let page: ListObjectsV2Response = ListObjectsV2::parse_response(&text)
            .map_err(|error| Trouble::Refused(format!("does not list as S3 does: {error}")))?;
        let there = page.contents.into_iter().map(|object| There {
            etag: object.etag.as_deref().map(unquoted).unwrap_or_default(),
            size_bytes: object.size.unwrap_or_default(),
            key: object.key,
        });
        Ok((there.collect(), page.next_continuation_token))
    }

    /// Stores an object, and tells its `ETag`.
    pub async fn put(&self, key: &str, attributes: &Attributes, size_bytes: u64, body: Body) -> Answered<String> {
        let mut put = self.bucket.put_object(Some(&self.credentials), key);
        for (name, value) in attributes {
            put.headers_mut().insert(name.clone(), value.clone());
        }
        etag(self.send(put, body, size_bytes).await?.headers())
    }

    /// Begins an upload in parts, and tells what it is called.
    pub async fn begin(&self, key: &str, attributes: &Attributes) -> Answered<String> {
        let mut begin = self.bucket.create_multipart_upload(Some(&self.credentials), key);
        for (name, value) in attributes {
            begin.headers_mut().insert(name.clone(), value.clone());
        }
        let text = text(self.send(begin, empty(), 0).await?).await?;
        let begun = CreateMultipartUpload::parse_response(&text)
            .map_err(|error| Trouble::Refused(format!("does not begin uploads as S3 does: {error}")))?;
        Ok(begun.upload_id().to_owned())
    }

    /// Sends a part, from 1 on, and tells its `ETag`.
    pub async fn part(&self, (key, id): (&str, &str), part: u16, size_bytes: u64, body: Body) -> Answered<String> {
        let part = self.bucket.upload_part(Some(&self.credentials), key, part, id);
        etag(self.send(part, body, size_bytes).await?.headers())
    }

    /// Makes an object of its parts, and tells its `ETag`.
    pub async fn complete(&self, (key, id): (&str, &str), parts: &[String]) -> Answered<String> {
        let all = || parts.iter().map(String::as_str);
        let complete = self.bucket.complete_multipart_upload(Some(&self.credentials), key, id, all());
        let body = self.bucket.complete_multipart_upload(Some(&self.credentials), key, id, all()).body();
        let size_bytes = body.len() as u64;
        let text = text(self.send(complete, full(body), size_bytes).await?).await?;
        // The answer begins before the work is done: an error may come in it.
        match (within(&text, "ETag"), within(&text, "Code")) {
            (Some(etag), None) => Ok(unquoted(&etag.replace("&quot;", "\"").replace("&#34;", "\""))),
            (_, Some(code)) => Err(Trouble::Passing(told(&code, &text))),
            _ => Err(Trouble::Refused("does not complete uploads as S3 does".to_owned())),
        }
    }

    /// Ends an upload in parts without an object; that there is none is no error.
    pub async fn abort(&self, (key, id): (&str, &str)) -> Answered<()> {
        let abort = self.bucket.abort_multipart_upload(Some(&self.credentials), key, id);
        match self.ask(abort, empty(), 0).await? {
            answer if answer.status() == StatusCode::NOT_FOUND => Ok(()),
            answer => refusal(answer).await.map(drop),
        }
    }

    /// Deletes an object; that there is none is no error.
    pub async fn delete(&self, key: &str) -> Answered<()> {
        self.send(self.bucket.delete_object(Some(&self.credentials), key), empty(), 0).await.map(drop)
    }

    /// An object's headers, and its content as it comes.
    pub async fn get(&self, key: &str) -> Answered<(HeaderMap, Incoming)> {
        let answer = self.send(self.bucket.get_object(Some(&self.credentials), key), empty(), 0).await?;
        let (head, body) = answer.into_parts();
        Ok((head.headers, body))
    }

    async fn send<'a>(&self, action: impl S3Action<'a>, body: Body, size_bytes: u64) -> Answered<Response<Incoming>> {
        refusal(self.ask(action, body, size_bytes).await?).await
    }

    async fn ask<'a, A: S3Action<'a>>(
        &self,
        mut action: A,
        body: Body,
        size_bytes: u64,
    ) -> Answered<Response<Incoming>> {
        let refused = |error: &dyn std::fmt::Display| Trouble::Refused(format!("cannot be asked: {error}"));
        let mut request = Request::builder().method(A::METHOD.to_str());
        for (name, value) in action.headers_mut().iter() {
            request = request.header(name, value.as_bytes());
        }
        let url = action.sign(SIGNED);
        let request = request.uri(url.as_str()).header(CONTENT_LENGTH, size_bytes).body(body);
        let asked = self.client.request(request.map_err(|error| refused(&error))?);
        match timeout(self.patience(size_bytes), asked).await {
            Ok(answer) => answer.map_err(|error| {
                let kind = if error.is_connect() { Trouble::Away } else { Trouble::Passing };
                kind(root_of(&error))
            }),
            Err(_) => Err(Trouble::Passing("does not answer".to_owned())),
        }
    }

    /// How long a request may take.
    fn patience(&self, size_bytes: u64) -> Duration {
        // Others share the bandwidth.
        let slowest = self.bandwidth.map_or(SLOWEST_BYTES_PER_S, |limit| (limit / 32).min(SLOWEST_BYTES_PER_S)).max(1);
        PATIENCE + Duration::from_secs(size_bytes / slowest)
    }
}

/// Endpoint, style and bucket of a target.
fn place(target: &Target, region: &str) -> Result<(String, UrlStyle, String)> {
    match target {
        Target::Bucket(bucket) => {
            // Certificates of Amazon's do not cover names with dots.
            let style = if bucket.contains('.') { UrlStyle::Path } else { UrlStyle::VirtualHost };
            Ok((format!("https://s3.{region}.amazonaws.com"), style, bucket.clone()))
        }
        Target::Kura { server, volume: bucket } if !bucket.contains('/') => {
            Ok((server.clone(), UrlStyle::Path, bucket.clone()))
        }
        _ => bail!("a bucket goes to a bucket: name s3://BUCKET, or https://HOST/BUCKET where else S3 is spoken"),
    }
}

/// The first access key of a file like `~/.aws/credentials`.
fn from_file(path: &Path) -> Result<Credentials> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let field = |name: &str| {
        let lines = text.lines().filter_map(|line| line.split_once('='));
        lines.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let (Some(id), Some(secret)) = (field("aws_access_key_id"), field("aws_secret_access_key")) else {
        bail!("{}: write aws_access_key_id = ... and aws_secret_access_key = ... into it, a line each", path.display());
    };
    Ok(match field("aws_session_token") {
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
    let text = text(answer).await.unwrap_or_default();
    let code = within(&text, "Code").unwrap_or_else(|| format!("status {status}"));
    let passes = status == StatusCode::TOO_MANY_REQUESTS
        || code == "RequestTimeout"
        || (status.is_server_error()
            && !matches!(status, StatusCode::NOT_IMPLEMENTED | StatusCode::INSUFFICIENT_STORAGE));
    let told = told(&code, &text);
    Err(if passes { Trouble::Passing(told) } else { Trouble::Refused(told) })
}

fn told(code: &str, text: &str) -> String {
    within(text, "Message").map_or_else(|| code.to_owned(), |message| format!("{code}: {message}"))
}

/// The text of the first element of this name, on one line.
fn within(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inner, _) = rest.split_once(&format!("</{name}>"))?;
    Some(inner.replace(['\n', '\r'], " "))
}

fn etag(headers: &HeaderMap) -> Answered<String> {
    let etag = headers.get(ETAG).and_then(|etag| etag.to_str().ok()).map(unquoted);
    etag.ok_or_else(|| Trouble::Refused("tells no ETag of what it stores".to_owned()))
}

fn unquoted(etag: &str) -> String {
    etag.trim_matches('"').to_owned()
}

async fn text(answer: Response<Incoming>) -> Answered<String> {
    let whole = timeout(PATIENCE, Limited::new(answer.into_body(), ANSWER_BYTES).collect()).await;
    let bytes = match whole {
        Ok(whole) => whole.map_err(|error| Trouble::Passing(error.to_string()))?.to_bytes(),
        Err(_) => return Err(Trouble::Passing("does not end its answer".to_owned())),
    };
    String::from_utf8(bytes.into()).map_err(|_| Trouble::Refused("answers what is no text".to_owned()))
}

/// The innermost cause, which says what happened.
fn root_of(error: &hyper_util::client::legacy::Error) -> String {
    let mut cause = error.source();
    let mut text = error.to_string();
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    text
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

fn full(text: String) -> Body {
    Full::from(text).map_err(|never| match never {}).boxed_unsync()
}
