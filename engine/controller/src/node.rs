//! (being built)
use crate::{CheckReport, ControllerInfo, Door, PoolInfo, VolumeInfo, VolumeSpec};
use kura_block::{DeviceId, Error, Result};

/// The controllers of a pool, joined. Usable from any thread; clones are the same node.
#[derive(Clone)]
pub struct Node {
    doors: std::sync::Arc<[Door]>,
}

#[allow(clippy::unused_async)]
impl Node {
    /// A node of these controllers, in the order of their numbers.
    pub fn new(doors: Vec<Door>) -> Self {
        Self { doors: doors.into() }
    }
    /// The door of the controller that owns the volume, and the volume as it is.
    pub async fn find(&self, name: &str) -> Result<(Door, VolumeInfo)> {
        let _ = &self.doors;
        Err(Error::missing(format!("volume {name}: no such volume")))
    }
    /// All volumes, by name.
    pub async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        Ok(vec![])
    }
    /// Makes a volume, on the controller with the fewest bytes.
    pub async fn create_volume(&self, _spec: VolumeSpec) -> Result<VolumeInfo> {
        Err(Error::retry("being built"))
    }
    /// Changes a volume's size; smaller only with `shrink`.
    pub async fn resize_volume(&self, _name: &str, _size_bytes: u64, _shrink: bool) -> Result<VolumeInfo> {
        Err(Error::retry("being built"))
    }
    /// Deletes a volume; `Busy` when a client has it open and not `force`.
    pub async fn delete_volume(&self, _name: &str, _force: bool) -> Result<()> {
        Err(Error::retry("being built"))
    }
    /// The pool and its disks.
    pub async fn pool(&self) -> Result<PoolInfo> {
        Err(Error::retry("being built"))
    }
    /// The controllers, by number.
    pub async fn controllers(&self) -> Result<Vec<ControllerInfo>> {
        Err(Error::retry("being built"))
    }
    /// Marks a disk as failed: it is not used until it is replaced.
    pub async fn fail_disk(&self, _disk: DeviceId) -> Result<()> {
        Err(Error::retry("being built"))
    }
    /// Checks every table and, with `data`, every copy of every written block.
    pub async fn check(&self, _data: bool) -> Result<CheckReport> {
        Err(Error::retry("being built"))
    }
    /// Writes everything to its place, checkpoints, and stops the controllers.
    pub async fn stop(&self) -> Result<()> {
        Ok(())
    }
}
