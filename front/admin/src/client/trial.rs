//! Dry runs: the server refuses what it would refuse, and does nothing.

use super::{Client, Result, volume_path};
use crate::{NewDisk, Replacement, ResizeVolume, RollBack};
use hyper::http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

/// A client whose requests are only tried.
#[derive(Clone)]
pub struct Trial(Client);

impl Client {
    /// The same client, for dry runs.
    pub fn trial(&self) -> Trial {
        Trial(self.clone())
    }
}

impl Trial {
    /// Refused as [`Client::resize_volume`] is.
    pub async fn resize_volume(&self, name: &str, size: ResizeVolume, force: bool) -> Result<()> {
        self.ask_with(Method::PATCH, &volume_path(name), &format!("&force={force}"), &size).await
    }

    /// Refused as [`Client::delete_volume`] is.
    pub async fn delete_volume(&self, name: &str, force: bool) -> Result<()> {
        self.delete(&volume_path(name), &format!("&force={force}")).await
    }

    /// Refused as [`Client::delete_snapshot`] is.
    pub async fn delete_snapshot(&self, name: &str, force: bool) -> Result<()> {
        self.delete(&format!("/api/v1/snapshots/{}", encoded(name)), &format!("&force={force}")).await
    }

    /// Refused as [`Client::roll_back`] is.
    pub async fn roll_back(&self, name: &str, force: bool) -> Result<()> {
        self.ask(Method::POST, &format!("/api/v1/snapshots/{}/rollback", encoded(name)), &RollBack { force }).await
    }

    /// Refused as [`Client::add_disk`] is.
    pub async fn add_disk(&self, new: &NewDisk) -> Result<()> {
        self.ask(Method::POST, "/api/v1/disks", new).await
    }

    /// Refused as [`Client::remove_snapshot_schedule`] is.
    pub async fn remove_snapshot_schedule(&self, volume: &str, prefix: &str) -> Result<()> {
        self.delete(&format!("/api/v1/snapshot-schedules/{}/{}", encoded(volume), encoded(prefix)), "").await
    }

    /// Refused as [`Client::fail_disk`] is.
    pub async fn fail_disk(&self, id: u16, force: bool) -> Result<()> {
        self.0.request(Method::POST, &format!("/api/v1/disks/{id}/fail?dry_run=true&force={force}"), None).await?;
        Ok(())
    }

    /// Refused as [`Client::remove_disk`] is.
    pub async fn remove_disk(&self, id: u16) -> Result<()> {
        self.ask(Method::POST, &format!("/api/v1/disks/{id}/remove"), &()).await
    }

    /// Refused as [`Client::replace_disk`] is.
    pub async fn replace_disk(&self, id: u16, new: &Replacement) -> Result<()> {
        self.ask(Method::POST, &format!("/api/v1/disks/{id}/replace"), new).await
    }

    /// Refused as [`Client::delete_bucket`] is.
    pub async fn delete_bucket(&self, name: &str) -> Result<()> {
        self.delete(&format!("/api/v1/buckets/{}", encoded(name)), "").await
    }

    /// Refused as [`Client::revoke_key`] is.
    pub async fn revoke_key(&self, id: &str) -> Result<()> {
        self.delete(&format!("/api/v1/keys/{}", encoded(id)), "").await
    }

    /// Refused as [`Client::delete_object`] is.
    pub async fn delete_object(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<()> {
        let version = version.map_or_else(String::new, |version| format!("&version={}", encoded(version)));
        self.delete(&format!("/api/v1/buckets/{}/objects/{}", encoded(bucket), encoded(key)), &version).await
    }

    async fn delete(&self, path: &str, query: &str) -> Result<()> {
        self.0.request(Method::DELETE, &format!("{path}?dry_run=true{query}"), None).await?;
        Ok(())
    }

    async fn ask(&self, method: Method, path: &str, body: &impl Serialize) -> Result<()> {
        self.ask_with(method, path, "", body).await
    }

    async fn ask_with(&self, method: Method, path: &str, query: &str, body: &impl Serialize) -> Result<()> {
        let body = serde_json::to_vec(body).map_err(|error| self.0.garbled(error))?;
        self.0.request(method, &format!("{path}?dry_run=true{query}"), Some(body)).await?;
        Ok(())
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}
