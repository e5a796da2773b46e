//! Looks after disks: those that are failed or leaving, and those that are back.

use crate::disks::Book;
use kura_block::{DeviceId, Result};
use kura_controller::{DiskInfo, Node};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::interval;
use uuid::Uuid;

/// How often.
const TEND: Duration = Duration::from_secs(1);

/// Does what is next for disks that are failed, leaving or back, until the server stops.
pub async fn tend(node: Node, book: Arc<Book>, mut stopping: watch::Receiver<bool>) {
    let mut ticks = interval(TEND);
    let (mut told, mut told_back) = (String::new(), String::new());
    loop {
        tokio::select! {
            _ = stopping.changed() => return,
            _ = ticks.tick() => {}
        }
        match take_back(&node, &book).await {
            Ok(()) => told_back.clear(),
            Err(error) if told_back == error.to_string() => {}
            Err(error) => {
                tracing::warn!(%error, "a disk that is back could not join again; trying again");
                told_back = error.to_string();
            }
        }
        match node.tend().await {
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

/// Lets disks join again that were missing at an earlier start, and are here.
async fn take_back(node: &Node, book: &Book) -> Result<()> {
    for disk in node.back_again().await? {
        let uuid = Uuid::new_v4();
        let joined = node.rejoin_disk(DeviceId(disk.id), *uuid.as_bytes()).await?;
        let (was, now, path) = (disk.id, joined.id, joined.path);
        tracing::info!(disk = now, was, path, "a disk that was missing is back, and what it held is rebuilt");
        book.note([(uuid, path)])?;
    }
    Ok(())
}

/// Lets go of a disk that the pool has forgotten.
async fn let_go(node: &Node, book: &Book, disk: DiskInfo) {
    tracing::info!(disk = disk.id, path = disk.path, "disk has left the pool");
    // The next start does not look for it, and only then is it made blank, and others may have it.
    let done = async {
        let path = book.forget(Uuid::from_bytes(disk.uuid))?;
        let closed = node.let_go(DeviceId(disk.id)).await;
        if let Some(path) = path {
            book.release(&path);
        }
        closed
    };
    if let Err(error) = done.await {
        tracing::warn!(disk = disk.id, %error, "a disk that has left could not be made blank");
    }
}
