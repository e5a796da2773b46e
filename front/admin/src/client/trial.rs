//! Dry runs: the server refuses what it would refuse, and does nothing.

use super::{Client, Result};
use crate::{NewDisk, Replacement, ResizeVolume, RollBack, paths};
use hyper::http::Method;
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
        self.ask_with(Method::PATCH, &paths::volume(name), &format!("&force={force}"), &size).await
    }

    /// Refused as [`Client::delete_volume`] is.
    pub async fn delete_volume(&self, name: &str, force: bool) -> Result<()> {
        self.delete(&paths::volume(name), &format!("&force={force}")).await
    }

    /// Refused as [`Client::delete_snapshot`] is.
    pub async fn delete_snapshot(&self, name: &str, force: bool) -> Result<()> {
        self.delete(&paths::snapshot(name), &format!("&force={force}")).await
    }

    /// Refused as [`Client::roll_back`] is.
    pub async fn roll_back(&self, name: &str, force: bool) -> Result<()> {
        self.ask(Method::POST, &format!("{}/rollback", paths::snapshot(name)), &RollBack { force }).await
    }

    /// Refused as [`Client::add_disk`] is.
    pub async fn add_disk(&self, new: &NewDisk) -> Result<()> {
        self.ask(Method::POST, "/api/v1/disks", new).await
    }

    /// Refused as [`Client::remove_snapshot_schedule`] is.
    pub async fn remove_snapshot_schedule(&self, volume: &str, prefix: &str) -> Result<()> {
        self.delete(&paths::schedule(volume, prefix), "").await
    }

    /// Refused as [`Client::fail_disk`] is.
    pub async fn fail_disk(&self, id: u16, force: bool) -> Result<()> {
        self.0.request(Method::POST, &format!("/api/v1/disks/{id}/fail?dry_run=true&force={force}"), None).await?;
        Ok(())
    }

    /// Refused as [`Client::remove_disk`] is.
    pub async fn remove_disk(&self, id: u16) -> Result<()> {
        self.0.request(Method::POST, &format!("/api/v1/disks/{id}/remove?dry_run=true"), None).await?;
        Ok(())
    }

    /// Refused as [`Client::replace_disk`] is.
    pub async fn replace_disk(&self, id: u16, new: &Replacement) -> Result<()> {
        self.ask(Method::POST, &format!("/api/v1/disks/{id}/replace"), new).await
    }

    /// Refused as [`Client::delete_bucket`] is.
    pub async fn delete_bucket(&self, name: &str) -> Result<()> {
        self.delete(&paths::bucket(name), "").await
    }

    /// Refused as [`Client::revoke_key`] is.
    pub async fn revoke_key(&self, id: &str) -> Result<()> {
        self.delete(&paths::key(id), "").await
    }

    /// Refused as [`Client::delete_object`] is.
    pub async fn delete_object(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<()> {
        let version = version.map_or_else(String::new, |version| format!("&version={}", paths::encoded(version)));
        self.delete(&paths::object(bucket, key), &version).await
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
