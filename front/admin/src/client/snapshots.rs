//! Snapshots and their schedules.

use super::{Client, Result};
use crate::{ChangePage, KeptSchedule, NewClone, NewSnapshots, RollBack, Snapshot, SnapshotSchedule, Volume, paths};
use hyper::http::Method;

const SCHEDULES: &str = "/api/v1/snapshot-schedules";

impl Client {
    /// All snapshots, or those of one volume, by volume and number.
    pub async fn snapshots(&self, volume: Option<&str>) -> Result<Vec<Snapshot>> {
        let filter = volume.map(|volume| format!("?volume={}", paths::encoded(volume))).unwrap_or_default();
        self.get(&format!("/api/v1/snapshots{filter}")).await
    }

    /// A snapshot.
    pub async fn snapshot(&self, name: &str) -> Result<Snapshot> {
        self.get(&paths::snapshot(name)).await
    }

    /// Makes snapshots at one instant.
    pub async fn create_snapshots(&self, new: &NewSnapshots) -> Result<Vec<Snapshot>> {
        self.send(Method::POST, "/api/v1/snapshots", new).await
    }

    /// Deletes a snapshot; `Busy` when a client has it open and not `force`.
    pub async fn delete_snapshot(&self, name: &str, force: bool) -> Result<()> {
        self.request(Method::DELETE, &format!("{}?force={force}", paths::snapshot(name)), None).await?;
        Ok(())
    }

    /// Makes a volume of a snapshot.
    pub async fn clone_snapshot(&self, name: &str, clone: NewClone) -> Result<Volume> {
        self.send(Method::POST, &format!("{}/clone", paths::snapshot(name)), &clone).await
    }

    /// Makes a volume what one of its snapshots is; `Busy` when a client has the volume open and not `force`.
    pub async fn roll_back(&self, name: &str, force: bool) -> Result<Volume> {
        self.send(Method::POST, &format!("{}/rollback", paths::snapshot(name)), &RollBack { force }).await
    }

    /// Where `later` differs from the snapshot `earlier`, from `offset` on.
    pub async fn changes(&self, earlier: &str, later: &str, offset: u64) -> Result<ChangePage> {
        let path = format!("{}/changes?to={}&offset_bytes={offset}", paths::snapshot(earlier), paths::encoded(later));
        self.get(&path).await
    }

    /// All schedules, by volume and prefix.
    pub async fn snapshot_schedules(&self) -> Result<Vec<KeptSchedule>> {
        self.get(SCHEDULES).await
    }

    /// Adds a schedule.
    pub async fn add_snapshot_schedule(&self, new: &SnapshotSchedule) -> Result<SnapshotSchedule> {
        self.send(Method::POST, SCHEDULES, new).await
    }

    /// Removes a schedule.
    pub async fn remove_snapshot_schedule(&self, volume: &str, prefix: &str) -> Result<()> {
        let path = paths::schedule(volume, prefix);
        self.request(Method::DELETE, &path, None).await?;
        Ok(())
    }
}
