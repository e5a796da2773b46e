//! Copies of volumes, asked for and sent.

use super::{Client, ClientError, Result};
use crate::{Follow, NewPoint, NewTransfer, PartHash, Replica, paths};
use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::client::conn::http1::SendRequest;
use hyper::http::{Method, Request, header};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

impl Client {
    /// All volumes that are, or were, copies.
    pub async fn replicas(&self) -> Result<Vec<Replica>> {
        self.get("/api/v1/replicas").await
    }

    /// Makes a volume a copy: what it has beyond the point is lost.
    pub async fn follow_source(&self, volume: &str, how: &Follow) -> Result<Replica> {
        self.send(Method::PUT, &paths::replica(volume), how).await
    }

    /// Begins a transfer, or goes on with it.
    pub async fn begin_transfer(&self, volume: &str, new: &NewTransfer) -> Result<Replica> {
        self.send(Method::POST, &format!("{}/transfer", paths::replica(volume)), new).await
    }

    /// Makes the point that the transfer was to.
    pub async fn complete_transfer(&self, volume: &str, to: &str) -> Result<Replica> {
        self.send(Method::POST, &format!("{}/points", paths::replica(volume)), &NewPoint { to: to.to_owned() }).await
    }

    /// Lets a copy go, as it was at its newest complete point.
    pub async fn promote(&self, volume: &str) -> Result<Replica> {
        self.post(&format!("{}/promote", paths::replica(volume))).await
    }

    /// The checksum of a part of a snapshot.
    pub async fn part_hash(&self, snapshot: &str, offset: u64) -> Result<PartHash> {
        self.get(&format!("{}/hash?offset_bytes={offset}", paths::snapshot(snapshot))).await
    }
}

/// A client whose connections are used again: frames are many, and a connection far away takes long to get up to speed.
#[derive(Clone)]
pub struct FrameClient {
    client: Client,
    idle: Arc<Mutex<Vec<SendRequest<Body>>>>,
}

impl FrameClient {
    /// For a client's server.
    pub fn new(client: Client) -> Self {
        Self { client, idle: Arc::default() }
    }

    /// What a snapshot has from an offset on, or, with `since`, what changed after that snapshot.
    pub async fn frame(&self, snapshot: &str, since: Option<&str>, offset: u64) -> Result<Bytes> {
        let mut path = format!("{}/frame?offset_bytes={offset}", paths::snapshot(snapshot));
        if let Some(since) = since {
            path = format!("{path}&since={}", paths::encoded(since));
        }
        self.exchange(Method::GET, &path, Bytes::new()).await
    }

    /// Puts a frame into its place, durably.
    pub async fn apply_frame(&self, volume: &str, frame: Bytes) -> Result<()> {
        self.exchange(Method::POST, &format!("{}/frames", paths::replica(volume)), frame).await.map(drop)
    }

    /// Asks on a connection that is there, or on a new one: the server lets idle ones go, and what is asked here may be
    /// asked twice.
    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        loop {
            let Some(mut sender) = self.idle().pop() else { break };
            if sender.ready().await.is_ok()
                && let done @ (Ok(_) | Err(ClientError::Refused(_) | ClientError::Silent { .. })) =
                    self.ask(sender, &method, path, body.clone()).await
            {
                return done;
            }
        }
        self.ask(self.client.converse().await?, &method, path, body).await
    }

    async fn ask(&self, mut sender: SendRequest<Body>, method: &Method, path: &str, body: Bytes) -> Result<Bytes> {
        let client = &self.client;
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, client.host());
        if let Some(token) = &client.token {
            request = request.header(header::AUTHORIZATION, token.bearer());
        }
        let request = request.body(Body::from(body)).map_err(|error| client.garbled(error))?;
        let response = sender.send_request(request).await.map_err(|cause| client.broke_off(cause))?;
        let status = response.status();
        if !status.is_success() {
            return Err(client.refusal(status, response).await);
        }
        let answer = response.into_body().collect().await.map_err(|cause| client.broke_off(cause))?.to_bytes();
        self.idle().push(sender);
        Ok(answer)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<SendRequest<Body>>> {
        // A list is whole even if its holder panicked.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
