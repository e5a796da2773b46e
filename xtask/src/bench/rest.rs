//! Snapshots made and deleted over one connection to a server of ours.

use super::http::Connection;
use anyhow::{Context, Result};
use serde_json::json;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A connection that is kept.
pub struct Rest(Connection<UnixStream>);

impl Rest {
    pub fn open(socket: &Path) -> Result<Self> {
        Connection::unix(socket).map(Self)
    }

    /// Makes snapshots at one instant; they are durable when this returns.
    pub fn make(&mut self, names: &[String]) -> Result<()> {
        let body = json!({ "names": names }).to_string();
        self.ask("POST", "/api/v1/snapshots", &body).with_context(|| format!("making {names:?}"))
    }

    pub fn delete(&mut self, name: &str) -> Result<()> {
        self.ask("DELETE", &format!("/api/v1/snapshots/{name}"), "").with_context(|| format!("deleting {name}"))
    }

    fn ask(&mut self, verb: &str, path: &str, body: &str) -> Result<()> {
        let head = format!(
            "{verb} {path} HTTP/1.1\r\nHost: kura\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.0.ask(&head, body.as_bytes()).map(drop)
    }
}
