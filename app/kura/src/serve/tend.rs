//! Looks after disks that are failed or leaving.

use crate::serve::disks::Book;
use kura_block::DeviceId;
use kura_controller::{DiskInfo, Node};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use uuid::Uuid;

/// How often.
const TEND: Duration = Duration::from_secs(1);

/// Does what is next for disks that are failed or leaving, until the server stops.
pub async fn tend(node: Node, book: Arc<Book>, mut stopping: watch::Receiver<bool>) {
    let mut ticks = interval(TEND);
    // After a step that took long, too, the pool is let alone for a while.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = String::new();
    loop {
        tokio::select! {
            _ = stopping.changed() => return,
            _ = ticks.tick() => {}
        }
        // A step takes as long as the disks do. One that is given up here goes on with the controllers until they stop, and the next start
        // does what is left of it.
        let tended = tokio::select! {
            _ = stopping.changed() => return,
            tended = node.tend() => tended,
        };
        match tended {
            Ok(forgotten) => {
                told.clear();
                for disk in forgotten {
                    let_go(&node, &book, disk).await;
                }
            }
            Err(error) if told == error.to_string() => {}
            Err(error) => {
                tracing::warn!(%error, "disks that are failed or leaving could not be tended; trying again");
                told = error.to_string();
            }
        }
    }
}

/// Lets go of a disk that the pool has forgotten.
async fn let_go(node: &Node, book: &Book, disk: DiskInfo) {
    tracing::info!(disk = disk.id, path = disk.path, "disk has left the pool");
    // The next start does not look for it, and only then is it made blank, and others may have it.
    let done = async {
        let path = book.forget(Uuid::from_bytes(disk.uuid))?;
        let closed = node.retire_disk(DeviceId(disk.id)).await;
        if let Some(path) = path {
            book.release(&path);
        }
        closed
    };
    if let Err(error) = done.await {
        tracing::warn!(disk = disk.id, %error, "a disk that has left could not be made blank");
    }
}
