//! What is asked of a server of ours over one connection, which starts no process for each request.

use super::http::Connection;
use anyhow::{Context, Result};
use serde_json::{Value, json};
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
        self.post("/api/v1/snapshots", &json!({ "names": names }))
    }

    /// What is at a path.
    pub fn get(&mut self, path: &str) -> Result<Value> {
        serde_json::from_slice(self.ask("GET", path, "")?).with_context(|| format!("what {path} is"))
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Result<()> {
        self.ask("POST", path, &body.to_string()).map(drop)
    }

    pub fn delete(&mut self, path: &str) -> Result<()> {
        self.ask("DELETE", path, "").map(drop)
    }

    fn ask(&mut self, verb: &str, path: &str, body: &str) -> Result<&[u8]> {
        let head = format!(
            "{verb} {path} HTTP/1.1\r\nHost: kura\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.0.ask(&head, body.as_bytes()).with_context(|| format!("{verb} {path} {body}"))
    }
}
