//! What the hot area has beyond its share: it borrows while the pool has room, and returns it when nobody writes or somebody
//! wants the room.
//!
//! ```text
//!   writes find few tracks, both disks have plenty ──> another extent, where cold blocks would go to their places else
//!   nobody asks for anything                       ──> all blocks go to their places (the migrator), what is empty goes back
//!   disks are scarce, or somebody finds no room    ──> blocks of the emptiest extents are written anew, elsewhere, and those go
//!                                                      back at once
//! ```
//!
//! So blocks that are written again soon, or together with others of their stripe, need not go to their stripes one by one: free
//! room is of use to nobody else meanwhile.
//!
//! What must hold:
//! 1. Nobody is refused for want of room that the hot area has borrowed: who finds none calls the loan before anything else goes.
//! 2. An extent goes back only when no slot of it is anybody's, and none is read by a replay: as any other hot extent.
//! 3. Who calls the loan hears of it: when some of it is there, when nothing could be returned, and when the store ends.

use crate::hot::HotArea;
use crate::policy::{is_plenty, is_scarce};
use crate::store::Inner;
use futures::future::select;
use kura_array::Urgency;
use kura_array::hot::{HotExtent, Pair};
use kura_block::{DeviceId, Result};
use kura_snapshot::method::Kind as Sharing;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// How long to wait before looking again whether somebody wants what is borrowed.
pub(crate) const LOOK: Duration = Duration::from_millis(200);
/// For so long nothing more is borrowed after some of it had to go back.
const MODEST: Duration = Duration::from_secs(10);
/// Extents returned at once.
const AT_ONCE: usize = 16;

/// What a hot area has beyond its share.
#[derive(Default)]
pub(crate) struct Loan {
    /// Somebody wants it, or there is some.
    pub news: Notify,
    /// Who wants it, and of which disks.
    called: RefCell<Vec<(BTreeSet<DeviceId>, oneshot::Sender<bool>)>>,
    /// Somebody hears who calls.
    is_heard: Cell<bool>,
    /// Until then nothing more is borrowed.
    modest_until: Cell<Duration>,
}

impl HotArea {
    /// True for an extent that nobody uses, as for one that is gone.
    fn is_free(&self, born: u64) -> bool {
        self.table.borrow().extent(born).is_none_or(HotExtent::is_empty)
    }
}

impl Inner {
    /// How many extents of a pair are its part of the share.
    fn share_of(&self) -> impl Fn(Pair) -> usize + use<> {
        let ring = self.ring();
        let each = self.hot_share().div_ceil(ring.len().max(1));
        move |pair| if ring.contains(&pair) { each } else { 0 }
    }

    /// How many extents each pair has beyond its part of the share, those aside that leave with a disk.
    fn loans(&self) -> BTreeMap<Pair, usize> {
        let mut loans: BTreeMap<Pair, usize> = BTreeMap::new();
        let hot = self.hot.table.borrow();
        if !self.settings.hot.borrows || hot.count() <= self.hot_share() {
            return loans;
        }
        let tables = self.tables.borrow();
        let pairs = hot.extents().map(|(_, extent)| extent.pair());
        for pair in pairs.filter(|(one, other)| !tables.is_unwanted(*one) && !tables.is_unwanted(*other)) {
            *loans.entry(pair).or_default() += 1;
        }
        let share_of = self.share_of();
        for (pair, extents) in &mut loans {
            *extents = extents.saturating_sub(share_of(*pair));
        }
        loans
    }

    /// Extents of the hot area beyond its share.
    pub fn loan(&self) -> usize {
        self.loans().values().sum()
    }

    /// How many places of them lie on a disk: they count as free.
    pub fn loan_on(&self, device: DeviceId) -> u32 {
        let loans = self.loans();
        let there = loans.iter().filter(|((one, other), _)| *one == device || *other == device);
        there.map(|(_, extents)| *extents as u32).sum()
    }

    /// True when the hot area may take more than its share: clients ask for something, and nothing had to go back lately.
    pub fn may_borrow(&self) -> bool {
        self.settings.hot.borrows && self.runtime.now() >= self.hot.loan.modest_until.get() && !self.is_quiet()
    }

    /// True when the hot area returns what it can, since nobody asks for anything.
    pub fn returns_loan(&self) -> bool {
        self.is_quiet() && self.loan() > 0
    }

    /// True when slots wait for a checkpoint without which their extents do not go back.
    pub fn loan_waits(&self) -> bool {
        let waits = || self.hot.table.borrow().given_up() > 0 || !self.hot.cooled.borrow().is_empty();
        self.returns_loan() && waits()
    }

    /// What is free on a disk, and what a controller may have of it in all.
    async fn room_on(&self, device: DeviceId) -> Result<(u32, u32)> {
        let all = self.array.member(device).map_or(0, |member| member.plan.extents);
        let sharers = if self.settings.sharing == Sharing::Aggregate { self.controllers.max(1) } else { 1 };
        Ok((self.share.look(device).await?, all / u32::from(sharers)))
    }

    /// True while both disks of a pair have so much room that the hot area may borrow of it.
    pub async fn has_plenty(&self, pair: Pair) -> bool {
        for device in [pair.0, pair.1] {
            if !self.room_on(device).await.is_ok_and(|(free, all)| is_plenty(free, all)) {
                return false;
            }
        }
        true
    }

    /// Has the hot area return some of what it borrowed of those of these disks that have no room otherwise; false when it has returned
    /// nothing.
    pub async fn call_loan(&self, disks: &[DeviceId]) -> bool {
        if self.loan() == 0 || !self.hot.loan.is_heard.get() {
            return false;
        }
        let (answer, answered) = oneshot::channel();
        self.hot.loan.called.borrow_mut().push((disks.iter().copied().collect(), answer));
        self.hot.loan.news.notify_one();
        answered.await.unwrap_or(false)
    }

    /// The task that returns what is borrowed to who wants it, until the store stops or its journal fails.
    pub async fn return_for_ever(self: Rc<Self>) {
        let loan = &self.hot.loan;
        loan.is_heard.set(true);
        while self.goes_on() {
            let called = loan.called.take();
            let disks = called.iter().flat_map(|(disks, _)| disks).copied().collect();
            let returned = self.return_if_wanted(&disks).await;
            for (_, who) in called {
                // One that is gone wants no answer.
                let _ = who.send(returned);
            }
            let news = std::pin::pin!(loan.news.notified());
            match self.loan() {
                // There may be more who want it.
                1.. if returned => {}
                0 => news.await,
                _ => drop(select(news, self.runtime.sleep(LOOK)).await),
            }
        }
        loan.is_heard.set(false);
        loan.called.take();
    }

    /// Returns some of what is borrowed of disks that somebody calls and that have nothing left, or of those that have hardly anything.
    async fn return_if_wanted(&self, called: &BTreeSet<DeviceId>) -> bool {
        let loan = self.loan();
        if loan == 0 {
            return false;
        }
        let mut wanted = BTreeSet::new();
        for device in self.data_disks() {
            // A disk of which nobody says what is free is left alone.
            let is_wanted =
                |(free, all)| free == 0 && called.contains(&device) || called.is_empty() && is_scarce(free, all);
            wanted.extend(self.room_on(device).await.is_ok_and(is_wanted).then_some(device));
        }
        let mut chosen = self.hot.table.borrow().emptiest(self.share_of());
        let places = |born: &u64| self.hot.places_of(*born).unwrap_or_default();
        chosen.retain(|born| places(born).iter().any(|place| wanted.contains(&place.device)));
        chosen.truncate(AT_ONCE.min(loan));
        if chosen.is_empty() {
            return false;
        }
        self.hot.loan.modest_until.set(self.runtime.now() + MODEST);
        self.return_extents(&chosen).await
    }

    /// Writes the blocks of these extents anew and gives the extents back; true when one of them is free. Blocks would rather go to their
    /// places as whole stripes do, but checkpoints, one after another where much is written, leave no time for that.
    async fn return_extents(&self, extents: &[u64]) -> bool {
        for born in extents {
            self.hot.table.borrow_mut().leave(*born, true);
        }
        for born in extents {
            if self.write_hot_anew(*born, Urgency::Buffer).await.is_err() {
                break;
            }
        }
        // What is in the buffer goes elsewhere, and the tail passes the records that say so.
        for _ in 0..2 {
            if self.checkpoint().await.is_err() {
                break;
            }
        }
        let unwanted = self.unwanted_hot();
        let (free, rest): (Vec<u64>, Vec<u64>) = extents.iter().partition(|born| self.hot.is_free(**born));
        for born in rest.into_iter().filter(|born| !unwanted.contains(born)) {
            self.hot.table.borrow_mut().leave(born, false);
        }
        for born in &free {
            // Unless somebody else has.
            if self.hot.table.borrow().extent(*born).is_some() {
                self.give_up_hot_extent(*born);
            }
        }
        !free.is_empty() && self.reclaim().await.is_ok()
    }

    /// Gives back what is empty of what is borrowed.
    pub fn return_empty(&self) {
        let mut empty = self.hot.table.borrow().emptiest(self.share_of());
        empty.retain(|born| self.hot.is_free(*born));
        for born in empty.into_iter().take(self.loan()) {
            self.give_up_hot_extent(born);
        }
    }
}
