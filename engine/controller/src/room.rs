//! Room in a full pool that drops snapshots: the pool's oldest goes, whichever controller has it.
//!
//! ```text
//!   a controller without room       the first one                        the one that has the oldest
//!   drop the oldest ─────────────>  one drop at a time:
//!                                   which is yours? ──────────────────>  (each of them)
//!                                   drop it ──────────────────────────>  gone, durably, and its space given back
//!   looks again <─────── dropped    <──────────────────────────────────
//! ```
//!
//! The first controller decides for all: of those that find the pool full at once each would have one dropped otherwise.
//!
//! What must hold:
//! 1. Nobody waits in a circle: who wants room waits for the first controller, that for an owner, and an owner for its own journal
//!    and disks only. That the first one or the owner wants room, too, is in the way of none of it.
//! 2. A controller that ends is waited for no longer, and one that stops or whose journal has failed has no snapshot that may go.
//! 3. What is dropped serves all who waited for it: they look again before another one goes.
//! 4. Who wants room gets what another one gives up: leased extents are called back. Fixed shares are not, so with them each
//!    controller drops its own.

use crate::door::WeakDoor;
use crate::{Controller, Door, Node};
use futures::future::join_all;
use kura_block::{Error, Local, Result};
use kura_volume::{Droppable, Others, Sharing};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Mutex;

/// What the first controller knows of drops.
#[derive(Default)]
pub(crate) struct Drops {
    /// Held by who has a snapshot dropped.
    one: Mutex<()>,
    /// How many were.
    count: Cell<u64>,
}

impl Node {
    /// From now on a full pool drops none of these snapshots, whichever controller has them and wherever they go, and every other one
    /// that may go otherwise.
    pub async fn spare(&self, names: &BTreeSet<String>) -> Result<()> {
        let names = names.clone();
        self.ask_each(move |controller| controller.store().spare(names.clone())).await.map(drop)
    }

    /// From now on a controller that finds the pool full has the oldest snapshot of all dropped, where the policy is so.
    pub(crate) fn share_drops(&self) {
        let doors: Arc<[WeakDoor]> = self.doors.iter().map(Door::downgrade).collect();
        for door in self.doors.iter().filter(|_| self.doors.len() > 1) {
            let doors = Arc::clone(&doors);
            door.send(move |controller| {
                let store = controller.store();
                if store.sharing().0 != Sharing::Aggregate {
                    store.join(Rc::new(Everyone { doors }));
                }
            });
        }
    }
}

/// The controllers of the pool, by number.
struct Everyone {
    doors: Arc<[WeakDoor]>,
}

impl Others for Everyone {
    fn give_back(&self) -> Local<'static, bool> {
        let doors = Arc::clone(&self.doors);
        Box::pin(async move {
            let each = doors.iter().map(|door| {
                door.call(|controller| -> Local<'static, _> {
                    Box::pin(async move { controller.store().give_back().await })
                })
            });
            let mut more = false;
            for done in join_all(each).await {
                match done.flatten() {
                    Ok(returned) => more |= returned,
                    Err(error) => tracing::debug!(%error, "what was given up lately is not free yet"),
                }
            }
            more
        })
    }

    fn drop_oldest(&self) -> Local<'static, Result<bool>> {
        let doors = Arc::clone(&self.doors);
        Box::pin(async move {
            let first = doors.first().cloned().ok_or_else(|| Error::retry("no controller serves"))?;
            first.call(move |controller| Box::pin(async move { controller.drop_oldest_of(&doors).await })).await?
        })
    }
}

impl Controller {
    async fn drop_oldest_of(&self, doors: &[WeakDoor]) -> Result<bool> {
        let before = self.drops.count.get();
        let _one = self.drops.one.lock().await;
        if self.drops.count.get() != before {
            return Ok(true);
        }
        let (mut done, mut failed) = (Ok(false), BTreeSet::new());
        while let Some(oldest) = oldest_of(doors, &failed).await {
            match drop_at(doors, oldest).await {
                Ok(true) => {
                    self.drops.count.set(self.drops.count.get() + 1);
                    return Ok(true);
                }
                // Somebody has opened it meanwhile, or it is gone, or moved.
                Ok(false) => {}
                // What the others have may go still.
                Err(error) => {
                    failed.insert(oldest.controller);
                    done = Err(error);
                }
            }
        }
        done
    }
}

/// The oldest snapshot that may go, of all controllers but those that failed. A family that is just moving is nobody's.
async fn oldest_of(doors: &[WeakDoor], failed: &BTreeSet<u16>) -> Option<Droppable> {
    let answers = doors.iter().map(|door| {
        door.call(|controller| -> Local<'static, _> { Box::pin(std::future::ready(controller.store().droppable())) })
    });
    let answers = join_all(answers).await.into_iter().filter_map(|answer| answer.ok().flatten());
    answers.filter(|one| !failed.contains(&one.controller)).min()
}

async fn drop_at(doors: &[WeakDoor], oldest: Droppable) -> Result<bool> {
    let owner = doors.get(usize::from(oldest.controller));
    let owner = owner.ok_or_else(|| Error::retry("the server is shutting down"))?;
    let work = move |controller: Rc<Controller>| -> Local<'static, Result<bool>> {
        Box::pin(async move { controller.store().drop_snapshot(oldest).await })
    };
    owner.call(work).await?
}
