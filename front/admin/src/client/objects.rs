//! Buckets, access keys and objects, asked for.

use super::{Client, Result};
use crate::{
    AccessKey, BatchResult, Bucket, Content, NewBucket, NewKey, Object, ObjectHead, ObjectPage, ObjectQuery, paths,
};
use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::http::request::Builder;
use hyper::http::{Method, Request, Response, header};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Client {
    /// All buckets, by name.
    pub async fn buckets(&self) -> Result<Vec<Bucket>> {
        self.get("/api/v1/buckets").await
    }

    /// Makes a bucket.
    pub async fn create_bucket(&self, name: &str) -> Result<Bucket> {
        self.send(Method::POST, "/api/v1/buckets", &NewBucket { name: name.to_owned() }).await
    }

    /// Deletes a bucket; `Busy` while it holds anything.
    pub async fn delete_bucket(&self, name: &str) -> Result<()> {
        self.request(Method::DELETE, &paths::bucket(name), None).await?;
        Ok(())
    }

    /// All access keys, without their secrets.
    pub async fn keys(&self) -> Result<Vec<AccessKey>> {
        self.get("/api/v1/keys").await
    }

    /// Makes an access key; its secret is told only now.
    pub async fn create_key(&self, new: &NewKey) -> Result<AccessKey> {
        self.send(Method::POST, "/api/v1/keys", new).await
    }

    /// Revokes an access key.
    pub async fn revoke_key(&self, id: &str) -> Result<()> {
        self.request(Method::DELETE, &paths::key(id), None).await?;
        Ok(())
    }

    /// A page of a bucket's objects.
    pub async fn objects(&self, bucket: &str, query: &ObjectQuery) -> Result<ObjectPage> {
        let mut path = format!("{}/objects?prefix={}", paths::bucket(bucket), paths::encoded(&query.prefix));
        let limit = query.limit.map(|limit| limit.to_string());
        let versions = query.versions.then(|| query.versions.to_string());
        let said =
            [("delimiter", &query.delimiter), ("after", &query.after), ("limit", &limit), ("versions", &versions)];
        for (name, value) in said {
            path.extend(value.iter().map(|value| format!("&{name}={}", paths::encoded(value))));
        }
        self.get(&path).await
    }

    /// What is known of an object.
    pub async fn object(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Object> {
        self.get(&(paths::object(bucket, key) + &query_of(version))).await
    }

    /// Deletes an object, or a version of it for good.
    pub async fn delete_object(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<()> {
        self.request(Method::DELETE, &(paths::object(bucket, key) + &query_of(version)), None).await?;
        Ok(())
    }

    /// An object's content, or a range of its bytes, as it comes.
    pub async fn read_object(
        &self,
        bucket: &str,
        key: &str,
        version: Option<&str>,
        range: Option<Range<u64>>,
    ) -> Result<ObjectBytes> {
        let mut path = format!("{}/content{}", paths::object(bucket, key), query_of(version));
        if let Some(Range { start, end }) = range {
            let and = if version.is_some() { '&' } else { '?' };
            path = format!("{path}{and}offset_bytes={start}&size_bytes={}", end.saturating_sub(start));
        }
        let answer = self.request(Method::GET, &path, None).await?;
        Ok(ObjectBytes { client: self.clone(), body: answer.into_body() })
    }

    /// Stores an object of `size_bytes`, where that is known, as `content` comes.
    pub async fn write_object(
        &self,
        bucket: &str,
        key: &str,
        head: &ObjectHead,
        size_bytes: Option<u64>,
        content: Content,
    ) -> Result<Object> {
        let mut request = Request::builder().method(Method::PUT).uri(format!("{}/content", paths::object(bucket, key)));
        if let Some(size_bytes) = size_bytes {
            request = request.header(header::CONTENT_LENGTH, size_bytes);
        }
        if let Some(content_type) = &head.content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        if head.new {
            request = request.header(header::IF_NONE_MATCH, "*");
        }
        for (name, value) in &head.metadata {
            request = request.header(format!("x-amz-meta-{name}"), value);
        }
        self.parsed(self.upload(request, content).await?).await
    }

    /// Sends a body that comes as it goes: the server waits for that, and owes no answer before its end.
    async fn upload(&self, request: Builder, content: Content) -> Result<Response<Incoming>> {
        self.has_spoken.store(true, Ordering::Relaxed);
        self.exchange(request, Body::from_stream(content)).await
    }

    /// Does a batch: `body` is what `POST /api/v1/batch` takes.
    pub async fn batch(&self, body: Content) -> Result<BatchResult> {
        let request = Request::builder().method(Method::POST).uri("/api/v1/batch");
        let request = request.header(header::CONTENT_TYPE, "application/x-kura-batch");
        self.parsed(self.upload(request, body).await?).await
    }
}

/// An object's content, as it comes from the server.
pub struct ObjectBytes {
    client: Client,
    body: Incoming,
}

impl ObjectBytes {
    /// How many there are left, in bytes, where that is known.
    pub fn size_bytes(&self) -> Option<u64> {
        hyper::body::Body::size_hint(&self.body).exact()
    }

    /// The next bytes; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|cause| self.client.broke_off(cause))?;
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}

fn query_of(version: Option<&str>) -> String {
    version.map_or_else(String::new, |version| format!("?version={}", paths::encoded(version)))
}
