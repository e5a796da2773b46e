//! Volumes that change their controller while clients use them.
//!
//! ```text
//!   new owner                        old owner
//!   fetch ── offer ───────────────>  all at its own places, image           I/O goes on
//!         ── part with, ticket ───>  writes held, at rest, departed         from here on writes wait
//!         <── what is in memory ───
//!   arrived, served
//!         ── gone ────────────────>  who waited goes on, there              until here
//!         ── forget ──────────────>                                         once that is durable
//! ```
//!
//! What a connection asks for is carried to the new owner until whoever serves it follows, told by [`Controller::moved`]. What
//! must hold of the tables stands in `kura_volume`; what must hold of the ways there:
//! 1. A controller knows where a volume went, by number, from its departure until it comes back, and not longer.
//! 2. So each controller on the way got the volume later than the one before it: the way ends, where it is or was deleted.

mod balance;
mod ferry;
mod node;
mod policy;

use ferry::Course;

pub use balance::Balancer;
pub(crate) use ferry::Ferry;
pub use node::{Drained, Moved};

use crate::Controller;
use crate::door::{Door, WeakDoor};
use futures::future::join_all;
use kura_block::{Block, ControllerId, Error, Local, Result};
use kura_volume::{Departing, Departure, KeptCold, Still, Store, Ticket, Volume};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, RwLock};

/// Images that are tried: each is out of date when the family's tables changed behind it.
const TRIES: u32 = 8;

/// What a controller knows of volumes that went, and of clients of other controllers that use its own.
#[derive(Default)]
pub(crate) struct Harbour {
    /// Volumes that left this controller and have not come back, by number.
    gone: RefCell<BTreeMap<u64, Gone>>,
    /// The numbers of volumes in `gone`, by name.
    named: RefCell<BTreeMap<String, u64>>,
    /// `gone` has changed.
    news: Notify,
    /// What other controllers' clients have open here.
    guests: RefCell<BTreeMap<u64, Rc<dyn Block>>>,
    next_guest: Cell<u64>,
    /// Requests of this controller's clients that other controllers did.
    carried: Cell<u64>,
    /// What clients have open through this controller.
    courses: RefCell<Vec<Weak<Course>>>,
    /// The family that is about to leave, out of the hot area, and still when the rest of it is ready.
    cold: RefCell<Option<KeptCold>>,
    still: RefCell<Option<Still>>,
}

/// A volume that left.
#[derive(Clone)]
enum Gone {
    /// It is not served anywhere yet.
    Underway,
    /// To this controller. Later on it may have left that one too, which knows to where.
    To(WeakDoor),
    /// Nobody knows where it is, and why.
    Lost(Error),
}

/// Where a volume is, as its last owner knows it.
pub(crate) enum Place {
    Here(Volume),
    There(WeakDoor),
}

/// The members of a family: numbers and names.
type Family = Vec<(u64, String)>;

/// What the old owner says when it was asked to let a family go.
enum Parted {
    Gone(Departure, Family),
    Differs(Vec<u8>),
}

impl Controller {
    /// Resolves when this volume, by its number, is another controller's: who serves it to a client does well to go there.
    pub async fn moved(&self, volume: u64) {
        loop {
            let news = self.harbour.news.notified();
            if matches!(self.harbour.gone.borrow().get(&volume), Some(Gone::To(_))) {
                return;
            }
            news.await;
        }
    }

    /// Takes the family of a volume over from its owner; how long its writes waited.
    async fn fetch(
        self: Rc<Self>,
        name: String,
        (from, source): (ControllerId, Door),
        here: WeakDoor,
        nobodys: Arc<RwLock<()>>,
    ) -> Result<Duration> {
        let fetched = self.fetch_held(&name, (from, &source), &here, &nobodys).await;
        let release = |controller: &Rc<Self>| {
            controller.harbour.still.take();
            controller.harbour.cold.take();
        };
        source.ask(release).await?;
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
            Box::pin(async move {
                let (image, cold) = controller.store().offer(&wanted).await?;
                controller.harbour.cold.replace(Some(cold));
                Ok(image)
            })
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
                    // From here on it is served: nothing has run since it arrived.
                    let gone = match &arrived {
                        Ok(()) => {
                            self.harbour.forget(&family);
                            Gone::To(here.clone())
                        }
                        Err(error) => {
                            self.harbour.tell(&family, &Gone::Lost(error.clone()));
                            Gone::Lost(error.clone())
                        }
                    };
                    let tell = move |controller: Rc<Self>| -> Local<'static, ()> {
                        controller.harbour.tell(&family, &gone);
                        Box::pin(async move { controller.harbour.follow(&family).await })
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
        let still = self.harbour.still.take();
        let still = match still {
            Some(still) => still,
            None => self.store().keep_still(name).await?,
        };
        let family = self.store().family(name)?;
        let may_go = || {
            if let Some((_, recorded)) = family.iter().find(|(_, name)| self.find_recording(name).is_ok()) {
                return Err(Error::busy(format!(
                    "volume {recorded}: has a recording: `kura trace export {recorded}` keeps it, and `kura trace delete {recorded}` \
                     lets the volume go"
                )));
            }
            self.harbour.tell(&family, &Gone::Underway);
            Ok(())
        };
        let departing = self.store().depart(name, (to, ticket), image, &still, &may_go).await;
        // Until the new owner says that it is done.
        self.harbour.still.replace(Some(still));
        match departing? {
            Departing::Differs(now) => Ok(Parted::Differs(now)),
            Departing::Gone(departure) => Ok(Parted::Gone(departure, family)),
            Departing::Unsure(error) => {
                let why = Error::fenced(format!(
                    "volume {name}: the journal of controller {} failed while it moved ({error}): restart the server",
                    self.id().0
                ));
                self.harbour.tell(&family, &Gone::Lost(why.clone()));
                Err(why)
            }
        }
    }
}

impl Harbour {
    /// Requests that were carried to other controllers since the start.
    pub fn carried(&self) -> u64 {
        self.carried.get()
    }

    fn tell(&self, family: &Family, gone: &Gone) {
        for (id, name) in family {
            self.gone.borrow_mut().insert(*id, gone.clone());
            self.named.borrow_mut().insert(name.clone(), *id);
        }
        self.news.notify_waiters();
    }

    /// A family is here: where it went when it was here before does not count any more.
    fn forget(&self, family: &Family) {
        for (id, _) in family {
            self.gone.borrow_mut().remove(id);
        }
        let gone = self.gone.borrow();
        self.named.borrow_mut().retain(|_, id| gone.contains_key(id));
        drop(gone);
        self.news.notify_waiters();
    }

    /// Lets clients of a family that left have it open where it is now, also those that ask for nothing.
    async fn follow(&self, family: &Family) {
        self.courses.borrow_mut().retain(|course| course.strong_count() > 0);
        let courses: Vec<_> = self.courses.borrow().iter().filter_map(Weak::upgrade).collect();
        let left = courses.iter().filter(|course| family.iter().any(|(id, _)| *id == course.id));
        join_all(left.map(|course| course.keep_up())).await;
    }

    /// The number of a volume of this name that left.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.named.borrow().get(name).copied()
    }

    /// Where a volume is that is here, or was, once that is known.
    pub async fn locate(&self, store: &Store, volume: u64) -> Result<Place> {
        loop {
            let news = self.news.notified();
            if let Some(volume) = store.open_id(volume) {
                return Ok(Place::Here(volume));
            }
            let gone = self.gone.borrow().get(&volume).cloned();
            match gone {
                Some(Gone::Underway) => news.await,
                Some(Gone::To(door)) => return Ok(Place::There(door)),
                Some(Gone::Lost(why)) => return Err(why),
                None => return Err(Error::missing("the volume is deleted")),
            }
        }
    }
}
