//! Volumes that change their controller while clients use them.
//!
//! ```text
//!   new owner                        old owner
//!   fetch ── offer ───────────────>  checkpoint, image                      I/O goes on
//!         ── part with, ticket ───>  writes held, at rest, departed         from here on writes wait
//!         <── what is in memory ───
//!   arrived, served
//!         ── gone ────────────────>  who waited goes on, there              until here
//!         ── forget ──────────────>                                         once that is durable
//! ```
//!
//! A connection stays on its thread: what it asks for is carried to the new owner, until it connects anew. What must hold
//! of the tables stands in `kura_volume`.

mod ferry;
mod node;

pub(crate) use ferry::Ferry;
pub use node::{Drained, Moved};

use crate::Controller;
use crate::door::{Door, WeakDoor};
use kura_block::{Block, ControllerId, Error, Local, Result};
use kura_volume::{Departing, Departure, Ticket};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, RwLock};

/// Images that are tried: each is out of date when the family's tables changed behind it.
const TRIES: u32 = 8;

/// What a controller knows of volumes that went, and of clients of other controllers that use its own.
#[derive(Default)]
pub(crate) struct Harbour {
    /// Where each volume went, by number; or why nobody knows.
    gone: RefCell<BTreeMap<u64, Result<WeakDoor>>>,
    /// The numbers of volumes that went, by name.
    named: RefCell<BTreeMap<String, u64>>,
    /// `gone` has changed.
    news: Notify,
    /// What other controllers' clients have open here.
    guests: RefCell<BTreeMap<u64, Rc<dyn Block>>>,
    next_guest: Cell<u64>,
    /// The controller takes no volume.
    drained: Cell<bool>,
}

/// The members of a family: numbers and names.
type Family = Vec<(u64, String)>;

/// What the old owner says when it was asked to let a family go.
enum Parted {
    Gone(Departure, Family),
    Differs(Vec<u8>),
}

impl Controller {
    /// Takes the family of a volume over from its owner; how long its writes waited.
    async fn fetch(
        self: Rc<Self>,
        name: String,
        (from, source): (ControllerId, Door),
        here: WeakDoor,
        nobodys: Arc<RwLock<()>>,
    ) -> Result<Duration> {
        let fetched = self.fetch_held(&name, (from, &source), &here, &nobodys).await;
        let release = |controller: Rc<Self>| -> Local<'static, ()> {
            controller.held_writes.borrow_mut().clear();
            Box::pin(std::future::ready(()))
        };
        source.call(release).await?;
        fetched
    }

    /// `nobodys` is written while the family is neither's.
    async fn fetch_held(
        &self,
        name: &str,
        (from, source): (ControllerId, &Door),
        here: &WeakDoor,
        nobodys: &RwLock<()>,
    ) -> Result<Duration> {
        let wanted = name.to_owned();
        let offer = move |controller: Rc<Self>| -> Local<'static, Result<Vec<u8>>> {
            Box::pin(async move { controller.store().offer(&wanted).await })
        };
        let mut image = source.call(offer).await??;
        let mut began = None;
        for _ in 0..TRIES {
            let ticket = self.store().expect(from, &image).await?;
            began.get_or_insert_with(|| self.runtime().now());
            let (wanted, to) = (name.to_owned(), self.id());
            let part = move |controller: Rc<Self>| -> Local<'static, Result<Parted>> {
                Box::pin(async move { controller.part_with(&wanted, to, ticket, &image).await })
            };
            let unseen = nobodys.write().await;
            // Where no answer comes, the next start finds out whose the family is: the image stays.
            match source.call(part).await? {
                Err(error) => {
                    // And so it does where the old owner's journal failed in the middle.
                    if error.kind() != kura_block::Kind::Fenced {
                        self.store().cancel(ticket);
                    }
                    return Err(error);
                }
                Ok(Parted::Differs(now)) => {
                    self.store().cancel(ticket);
                    image = now;
                }
                Ok(Parted::Gone(departure, family)) => {
                    let arrived = self.store().arrive(ticket, departure).await;
                    let (there, arrived_there) = (here.clone(), arrived.clone());
                    let tell = move |controller: Rc<Self>| -> Local<'static, ()> {
                        controller.harbour.tell(&family, &arrived_there.map(|()| there));
                        Box::pin(std::future::ready(()))
                    };
                    source.call(tell).await?;
                    drop(unseen);
                    arrived?;
                    let waited = self.runtime().now().saturating_sub(began.unwrap_or_default());
                    self.store().flush().await?;
                    let me = self.id();
                    source.send(move |controller| controller.store().forget(me, ticket));
                    return Ok(waited);
                }
            }
        }
        Err(Error::busy(format!("volume {name}: its tables change all the time: try again when less is written")))
    }

    /// Lets a family go, its writes held from here on.
    async fn part_with(&self, name: &str, to: ControllerId, ticket: Ticket, image: &[u8]) -> Result<Parted> {
        let family = self.store().family(name)?;
        let names: Vec<String> = family.iter().map(|(_, name)| name.clone()).collect();
        if let Some(recorded) = names.iter().find(|name| self.find_recording(name).is_ok()) {
            return Err(Error::busy(format!("volume {recorded}: it is recorded: delete the recording first")));
        }
        if self.held_writes.borrow().is_empty() {
            let held = self.store().hold(&names)?;
            self.held_writes.borrow_mut().push(held);
        }
        match self.store().depart(name, to, ticket, image).await? {
            Departing::Differs(now) => Ok(Parted::Differs(now)),
            Departing::Gone(departure) => Ok(Parted::Gone(departure, family)),
            Departing::Unsure(error) => {
                let why = Error::fenced(format!(
                    "volume {name}: the journal of controller {} failed while it moved ({error}): restart the server",
                    self.id().0
                ));
                self.harbour.tell(&family, &Err(why.clone()));
                Err(why)
            }
        }
    }
}

impl Harbour {
    /// True when the controller takes no volume.
    pub fn is_drained(&self) -> bool {
        self.drained.get()
    }

    fn tell(&self, family: &Family, where_to: &Result<WeakDoor>) {
        let (mut gone, mut named) = (self.gone.borrow_mut(), self.named.borrow_mut());
        for (id, name) in family {
            gone.insert(*id, where_to.clone());
            named.insert(name.clone(), *id);
        }
        drop((gone, named));
        self.news.notify_waiters();
    }

    /// Where a volume of this name went, if one did.
    pub fn address(&self, name: &str) -> Option<WeakDoor> {
        let id = *self.named.borrow().get(name)?;
        self.gone.borrow().get(&id)?.clone().ok()
    }

    /// Where a volume went, once that is known.
    async fn whereabouts(&self, volume: u64) -> Result<WeakDoor> {
        loop {
            let news = self.news.notified();
            let known = self.gone.borrow().get(&volume).cloned();
            match known {
                Some(known) => return known,
                None => news.await,
            }
        }
    }
}
