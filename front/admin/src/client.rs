//! The client: typed requests over a Unix socket, HTTP or HTTPS.

mod heard;
mod objects;
mod patient;
mod replicas;
mod snapshots;
mod trial;

pub use objects::ObjectBytes;
pub use patient::Patient;
pub use replicas::FrameClient;
pub use trial::Trial;

use crate::{
    CheckRequest, Controller, Disk, Job, JobState, MoveVolume, NewDisk, NewRecording, NewVolume, Pool, Problem,
    ProblemKind, RecordedRequest, Recording, Replacement, Replacing, ResizeVolume, Status, TierChange, TierMove,
    TierRules, TierStatus, TierWhy, Token, Volume,
};
use crate::{lines::Lines, paths};
use axum::body::Body;
use heard::Heard;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::http::request::Builder;
use hyper::http::{Method, Request, Response, StatusCode, header, uri::Authority};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, pki_types::ServerName};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerUri {
    /// A Unix socket's path; written as a path, or `unix:PATH`.
    Unix(PathBuf),
    /// `http://HOST:PORT`
    Http(Authority),
    /// `https://HOST:PORT`
    Https(Authority),
}

impl std::str::FromStr for ServerUri {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let authority = |text: &str| {
            let authority: Authority =
                text.trim_end_matches('/').parse().map_err(|error| format!("{text:?}: {error}"))?;
            match authority.port_u16() {
                Some(_) if !authority.as_str().contains('@') => Ok(authority),
                _ => Err(format!("{text:?} is not HOST:PORT")),
            }
        };
        match text.split_once("://") {
            Some(("http", rest)) => authority(rest).map(Self::Http),
            Some(("https", rest)) => authority(rest).map(Self::Https),
            Some((scheme, _)) => {
                Err(format!("no such scheme: {scheme}; name a socket's path, http://HOST:PORT or https://HOST:PORT"))
            }
            None if text.is_empty() => Err("it is empty: name a socket's path, or http://HOST:PORT".to_owned()),
            None => Ok(Self::Unix(text.strip_prefix("unix:").unwrap_or(text).into())),
        }
    }
}

impl std::fmt::Display for ServerUri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Http(authority) => write!(f, "http://{authority}"),
            Self::Https(authority) => write!(f, "https://{authority}"),
        }
    }
}

/// Why a request brought no answer of the kind asked for.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens there.
    #[error("no server at {server}: {cause}")]
    NoServer {
        /// Where it was sought.
        server: ServerUri,
        /// What the system says.
        cause: std::io::Error,
    },
    /// The server refused.
    #[error(transparent)]
    Refused(#[from] Problem),
    /// What was to be sent could not be had.
    #[error(transparent)]
    Unsent(#[from] kura_block::Error),
    /// An answer did not come to its end.
    #[error("the answer of {server} broke off ({cause}): is it still running?")]
    BrokeOff {
        /// Where it was asked.
        server: ServerUri,
        /// What was met.
        cause: hyper::Error,
    },
    /// Nothing came, or went, for longer than the client waits.
    #[error("{server} does not answer: nothing moved for {} s", patience.as_secs_f64())]
    Silent {
        /// Where it was asked.
        server: ServerUri,
        /// For how long.
        patience: Duration,
    },
    /// What listens there does not speak as a server of kura does.
    #[error("{server} does not answer as a kura server does: {what}")]
    Garbled {
        /// Where it was asked.
        server: ServerUri,
        /// What was wrong.
        what: String,
    },
}

impl ClientError {
    /// True where the server says that what was named does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused(problem) if problem.kind == ProblemKind::Missing)
    }
}

type Result<T> = std::result::Result<T, ClientError>;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A client of one server; a connection a request.
#[derive(Clone)]
pub struct Client {
    server: ServerUri,
    token: Option<Token>,
    tls: Option<Arc<ClientConfig>>,
    patience: Option<Duration>,
    /// True once it has answered something, or was sent a body that comes as it goes: then it may wait for that.
    has_spoken: Arc<AtomicBool>,
}

impl Client {
    /// A client of `server`, which shows `token` if there is one; `https` wants `tls` to say whom to trust.
    pub fn new(server: ServerUri, token: Option<Token>, tls: Option<Arc<ClientConfig>>) -> Self {
        Self { server, token, tls, patience: None, has_spoken: Arc::default() }
    }

    /// Where the server is.
    pub fn server(&self) -> &ServerUri {
        &self.server
    }

    /// True while the server has been asked, as far as that goes, and has answered nothing.
    pub fn owes_first_answer(&self) -> bool {
        !self.has_spoken.load(Ordering::Relaxed)
    }

    /// The same, that gives a server up on whose connection nothing moves for so long. Without, it waits for ever.
    pub fn patient(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// The node at a glance.
    pub async fn status(&self) -> Result<Status> {
        self.get("/api/v1/status").await
    }

    /// All volumes, by name.
    pub async fn volumes(&self) -> Result<Vec<Volume>> {
        self.get("/api/v1/volumes").await
    }

    /// The tiers as they are.
    pub async fn tier(&self) -> Result<TierStatus> {
        self.get("/api/v1/tier").await
    }

    /// The moves that are remembered, the oldest first.
    pub async fn tier_moves(&self) -> Result<Vec<TierMove>> {
        self.get("/api/v1/tier/moves").await
    }

    /// What is said of a volume's place in the tiers.
    pub async fn tier_rules(&self, volume: &str) -> Result<TierRules> {
        self.get(&format!("{}/tier", paths::volume(volume))).await
    }

    /// Changes what is said of a volume's place in the tiers; all that is said then.
    pub async fn change_tier_rules(&self, volume: &str, change: TierChange) -> Result<TierRules> {
        self.send(Method::PATCH, &format!("{}/tier", paths::volume(volume)), &change).await
    }

    /// Why the region at an offset of a volume is where it is.
    pub async fn tier_why(&self, volume: &str, offset_bytes: u64) -> Result<TierWhy> {
        self.get(&format!("{}/tier/why?offset_bytes={offset_bytes}", paths::volume(volume))).await
    }

    /// A volume.
    pub async fn volume(&self, name: &str) -> Result<Volume> {
        self.get(&paths::volume(name)).await
    }

    /// Makes a volume.
    pub async fn create_volume(&self, new: &NewVolume) -> Result<Volume> {
        self.send(Method::POST, "/api/v1/volumes", new).await
    }

    /// Changes a volume's size; `Busy` when it gets smaller, a client has it open and not `force`.
    pub async fn resize_volume(&self, name: &str, size: ResizeVolume, force: bool) -> Result<Volume> {
        self.send(Method::PATCH, &format!("{}?force={force}", paths::volume(name)), &size).await
    }

    /// Begins to make another controller the owner of a volume.
    pub async fn move_volume(&self, name: &str, to: MoveVolume) -> Result<Job> {
        self.send(Method::POST, &format!("{}/move", paths::volume(name)), &to).await
    }

    /// Deletes a volume; `Busy` when a client has it open and not `force`.
    pub async fn delete_volume(&self, name: &str, force: bool) -> Result<()> {
        self.request(Method::DELETE, &format!("{}?force={force}", paths::volume(name)), None).await?;
        Ok(())
    }

    /// The pool and its disks.
    pub async fn pool(&self) -> Result<Pool> {
        self.get("/api/v1/pool").await
    }

    /// The pool's disks, by number.
    pub async fn disks(&self) -> Result<Vec<Disk>> {
        self.get("/api/v1/disks").await
    }

    /// Adds a disk to the pool; everything on it is lost.
    pub async fn add_disk(&self, new: &NewDisk) -> Result<Disk> {
        self.send(Method::POST, "/api/v1/disks", new).await
    }

    /// Lets a disk leave the pool; [`Client::disks`] lists it until it has.
    pub async fn remove_disk(&self, id: u16) -> Result<Job> {
        self.post(&format!("/api/v1/disks/{id}/remove")).await
    }

    /// Adds a disk and lets another one of its class leave the pool; [`Client::disks`] lists that one until it has.
    pub async fn replace_disk(&self, id: u16, new: &Replacement) -> Result<Replacing> {
        self.send(Method::POST, &format!("/api/v1/disks/{id}/replace"), new).await
    }

    /// Marks a disk as failed; one that has the only copy of something only with `force`.
    pub async fn fail_disk(&self, id: u16, force: bool) -> Result<Job> {
        self.post(&format!("/api/v1/disks/{id}/fail?force={force}")).await
    }

    /// Begins to move all volumes of a controller to the others; it takes none any more.
    pub async fn drain_controller(&self, id: u16) -> Result<Job> {
        self.post(&format!("/api/v1/controllers/{id}/drain")).await
    }

    /// A controller that was drained takes volumes again.
    pub async fn resume_controller(&self, id: u16) -> Result<Controller> {
        self.post(&format!("/api/v1/controllers/{id}/resume")).await
    }

    /// The controllers, by number.
    pub async fn controllers(&self) -> Result<Vec<Controller>> {
        self.get("/api/v1/controllers").await
    }

    /// Starts a check.
    pub async fn check(&self, request: CheckRequest) -> Result<Job> {
        self.send(Method::POST, "/api/v1/check", &request).await
    }

    /// The jobs of the server, oldest first.
    pub async fn jobs(&self) -> Result<Vec<Job>> {
        self.get("/api/v1/jobs").await
    }

    /// A job.
    pub async fn job(&self, id: u64) -> Result<Job> {
        self.get(&format!("/api/v1/jobs/{id}")).await
    }

    /// Asks a job to end where it stands; it ends soon.
    pub async fn cancel_job(&self, id: u64) -> Result<Job> {
        self.post(&format!("/api/v1/jobs/{id}/cancel")).await
    }

    /// Follows a job to its end: `seen` is told of each change, the last one is returned.
    pub async fn follow(&self, id: u64, mut seen: impl FnMut(&Job)) -> Result<Job> {
        let answer = self.request(Method::GET, &format!("/api/v1/jobs/{id}/events"), None).await?;
        let mut lines = Lines::new(answer.into_body());
        while let Some(line) = lines.next().await.map_err(|cause| self.broke_off(cause))? {
            let Some(data) = line.strip_prefix(b"data: ") else { continue };
            let job: Job = serde_json::from_slice(data).map_err(|error| self.garbled(error))?;
            seen(&job);
            if job.state != JobState::Running {
                return Ok(job);
            }
        }
        Err(Problem::new(ProblemKind::Retry, format!("job {id}: the server stopped before it ended")).into())
    }

    /// All recordings, by volume.
    pub async fn recordings(&self) -> Result<Vec<Recording>> {
        self.get("/api/v1/recordings").await
    }

    /// Begins to record a volume's requests.
    pub async fn record(&self, volume: &str, new: NewRecording) -> Result<Recording> {
        self.send(Method::POST, &paths::recording(volume), &new).await
    }

    /// The recording of a volume.
    pub async fn recording(&self, volume: &str) -> Result<Recording> {
        self.get(&paths::recording(volume)).await
    }

    /// Ends a recording; what it holds stays.
    pub async fn stop_recording(&self, volume: &str) -> Result<Recording> {
        self.post(&format!("{}/stop", paths::recording(volume))).await
    }

    /// Deletes a recording.
    pub async fn delete_recording(&self, volume: &str) -> Result<()> {
        self.request(Method::DELETE, &paths::recording(volume), None).await?;
        Ok(())
    }

    /// The requests of a recording that are there now, in the order in which they arrived.
    pub async fn recorded(&self, volume: &str) -> Result<RecordedRequests> {
        let answer = self.request(Method::GET, &format!("{}/requests", paths::recording(volume)), None).await?;
        Ok(RecordedRequests { client: self.clone(), lines: Lines::new(answer.into_body()) })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.parsed(self.request(Method::GET, path, None).await?).await
    }

    /// Asks for what takes no body.
    async fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.parsed(self.request(Method::POST, path, None).await?).await
    }

    async fn send<T: DeserializeOwned>(&self, method: Method, path: &str, body: &impl Serialize) -> Result<T> {
        let body = serde_json::to_vec(body).map_err(|error| self.garbled(error))?;
        self.parsed(self.request(method, path, Some(body)).await?).await
    }

    async fn parsed<T: DeserializeOwned>(&self, response: Response<Incoming>) -> Result<T> {
        let body = response.into_body().collect().await.map_err(|error| self.failed(error))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|error| self.garbled(error))
    }

    /// Sends a request; an answer that is an error becomes one.
    async fn request(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Response<Incoming>> {
        let mut request = Request::builder().method(method).uri(path);
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        self.exchange(request, Body::from(body.unwrap_or_default())).await
    }

    /// The same of a body that may come as it goes.
    async fn exchange(&self, request: Builder, body: Body) -> Result<Response<Incoming>> {
        let mut request = request.header(header::HOST, self.host());
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token.bearer());
        }
        let request = request.body(body).map_err(|error| self.garbled(error))?;
        let mut sender = self.converse().await?;
        let response = sender.send_request(request).await.map_err(|error| self.failed(error))?;
        self.has_spoken.store(true, Ordering::Relaxed);
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        Err(self.refusal(status, response).await)
    }

    /// A new connection, to send requests on.
    async fn converse(&self) -> Result<SendRequest<Body>> {
        let stream = TokioIo::new(Heard::new(self.connect().await?));
        let (sender, connection) = http1::handshake(stream).await.map_err(|error| self.failed(error))?;
        // The connection ends with its sender; how it ends is seen in the answers.
        tokio::spawn(async { connection.await.ok() });
        Ok(sender)
    }

    async fn refusal(&self, status: StatusCode, response: Response<Incoming>) -> ClientError {
        match self.parsed::<Problem>(response).await {
            Ok(problem) => problem.into(),
            Err(_) => self.garbled(format!("status {status}")),
        }
    }

    async fn connect(&self) -> Result<Box<dyn Stream>> {
        let absent = |cause| ClientError::NoServer { server: self.server.clone(), cause };
        let reach =
            async |authority: &Authority| Patient::reach(authority.as_str(), self.patience).await.map_err(absent);
        Ok(match &self.server {
            ServerUri::Unix(path) => {
                Box::new(Patient::new(UnixStream::connect(path).await.map_err(absent)?, self.patience))
            }
            ServerUri::Http(authority) => Box::new(reach(authority).await?),
            ServerUri::Https(authority) => {
                let Some(tls) = &self.tls else {
                    return Err(self.garbled("https, but no authority to trust is given"));
                };
                let stream = reach(authority).await?;
                let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
                let host = ServerName::try_from(host).map_err(|error| self.garbled(error))?;
                let tls = TlsConnector::from(Arc::clone(tls)).connect(host, stream).await;
                Box::new(tls.map_err(|error| self.silence(&error).unwrap_or_else(|| self.garbled(error)))?)
            }
        })
    }

    fn host(&self) -> &str {
        match &self.server {
            ServerUri::Unix(_) => "localhost",
            ServerUri::Http(authority) | ServerUri::Https(authority) => authority.as_str(),
        }
    }

    fn broke_off(&self, cause: hyper::Error) -> ClientError {
        self.silence(&cause).unwrap_or_else(|| ClientError::BrokeOff { server: self.server.clone(), cause })
    }

    fn failed(&self, cause: hyper::Error) -> ClientError {
        let own = causes(&cause).find_map(|cause| cause.downcast_ref::<kura_block::Error>());
        let own = own.cloned().map(ClientError::Unsent);
        own.or_else(|| self.silence(&cause)).unwrap_or_else(|| self.garbled(cause))
    }

    /// What an error is that came of waiting.
    fn silence(&self, error: &(dyn std::error::Error + 'static)) -> Option<ClientError> {
        let is_silence = causes(error).any(|cause| {
            cause.downcast_ref::<std::io::Error>().is_some_and(|cause| cause.kind() == ErrorKind::TimedOut)
        });
        let patience = self.patience.filter(|_| is_silence)?;
        Some(ClientError::Silent { server: self.server.clone(), patience })
    }

    fn garbled(&self, what: impl std::fmt::Display) -> ClientError {
        ClientError::Garbled { server: self.server.clone(), what: what.to_string() }
    }
}

/// An error, and what it came of.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |cause| cause.source())
}

/// Requests of a recording, as they come from the server.
pub struct RecordedRequests {
    client: Client,
    lines: Lines,
}

impl RecordedRequests {
    /// The next one; none at the end.
    pub async fn next(&mut self) -> Result<Option<RecordedRequest>> {
        let line = self.lines.next().await.map_err(|cause| self.client.broke_off(cause))?;
        line.map(|line| serde_json::from_slice(line).map_err(|error| self.client.garbled(error))).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_paths_or_urls() {
        let unix = |path: &str| Some(ServerUri::Unix(path.into()));
        let http = |at: &str| Some(ServerUri::Http(at.parse().unwrap()));
        let cases = [
            ("kura-data/admin.sock", unix("kura-data/admin.sock")),
            ("unix:/run/kura.sock", unix("/run/kura.sock")),
            ("http://127.0.0.1:7400", http("127.0.0.1:7400")),
            ("http://[::1]:7400/", http("[::1]:7400")),
            ("https://store:7400", Some(ServerUri::Https("store:7400".parse().unwrap()))),
            ("http://127.0.0.1", None),
            ("http://me:secret@store:7400", None),
            ("ftp://store:21", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<ServerUri>().ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_name_is_one_part_of_a_path() {
        assert_eq!(paths::volume("a/b ?"), "/api/v1/volumes/a%2Fb%20%3F");
    }
}
