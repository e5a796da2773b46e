//! The hot area kept ready: it grows while it may, cold blocks go to their places in stripes, what lies on a disk that fails or
//! leaves is written anew, and what no volume has use for goes back to the pool.
//!
//! ```text
//!   cold blocks of a track ─> read ─> their stripes, with parity ─> (checkpoint: flush) ─> their slots are given up
//! ```
//!
//! A block is in both areas until a checkpoint has made its cold place durable: a crash before that finds it hot.

use crate::checkpoint::TABLES_FOR_GROUPS;
use crate::destage::STALLED;
use crate::hot::ColdStripe;
use crate::hot::loan::LOOK;
use crate::policy::{Migration, hot_extents, hot_extents_most, migration};
use crate::record::Record;
use crate::store::{Freed, Inner};
use crate::tables::VolumeState;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use futures::{StreamExt, stream};
use kura_array::hot::{HotExtent, Owner, Pair};
use kura_array::{Place, Urgency};
use kura_block::{BLOCK_BYTES_U64, Bufs, Checksum, Result};
use kura_journal::Lsn;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// How long to wait before asking a pool again that was full.
const FULL: Duration = Duration::from_secs(1);
/// How long to wait for disks that have something to do, or for blocks to become cold.
const BUSY: Duration = Duration::from_millis(10);

/// What the migrator does next.
enum Step {
    /// On the first of these that takes it.
    Grow(Vec<Pair>),
    Cool(Pair, Vec<ColdStripe>, Urgency),
    Rest(Option<Duration>),
}

impl Inner {
    /// The task that keeps the hot area ready, until the store stops or its journal fails.
    pub async fn migrate_for_ever(self: Rc<Self>) {
        // One batch of each pair at a time.
        let mut cooling = FuturesUnordered::new();
        let mut busy = BTreeSet::new();
        while self.goes_on() {
            let news = std::pin::pin!(self.hot.migrator.notified());
            match self.next_step(&busy) {
                Step::Grow(pairs) => {
                    self.grow_hot_somewhere(pairs).await;
                    self.hot.wanted.set(false);
                    self.destager.notify_one();
                }
                Step::Cool(pair, chosen, urgency) => {
                    busy.insert(pair);
                    cooling.push(self.cool_for(pair, chosen, urgency));
                }
                Step::Rest(rest) => {
                    let rest = async {
                        match rest {
                            Some(rest) => self.runtime.sleep(rest).await,
                            None => std::future::pending().await,
                        }
                    };
                    let rest = std::pin::pin!(rest);
                    let news = select(news, rest);
                    if cooling.is_empty() {
                        news.await;
                    } else if let Either::Left((Some(pair), _)) = select(cooling.next(), news).await {
                        busy.remove(&pair);
                    }
                }
            }
        }
        // A stripe on its way is written to its end: the last checkpoint calls all of them complete.
        while cooling.next().await.is_some() {}
    }

    /// True while the hot area has less than its share of the disks, or may borrow, the pool has not refused, and there is a pair of
    /// disks that takes something.
    pub fn hot_can_grow(&self) -> bool {
        let most = if self.may_borrow() { hot_extents_most(self.array.extent_bytes(), &self.settings.hot) } else { 0 };
        !self.is_stopping()
            && self.runtime.now() >= self.hot.full_until.get()
            && self.hot.table.borrow().count() < most.max(self.hot_share())
            && self.ring().iter().any(|pair| self.takes_hot(*pair))
    }

    /// The pairs on which it is to grow before cold blocks are moved, best first: as it has not had its share yet, or as writes find
    /// few tracks there.
    fn pairs_to_grow(&self) -> Vec<Pair> {
        if !self.hot_can_grow() {
            return Vec::new();
        }
        let hot = self.hot.table.borrow();
        let lacks_share = hot.count() < self.hot_share();
        let is_low = |pair: &Pair| hot.coming(*pair) < self.settings.hot.enough(hot.tracks_of(*pair) as u32);
        let mut pairs = self.ring();
        pairs.retain(|pair| self.takes_hot(*pair) && (lacks_share || self.hot.wanted.get() || is_low(pair)));
        pairs.sort_by_key(|pair| hot.extents_of(*pair));
        pairs
    }

    /// True when a volume has use for the hot area, as one has that holds something or soon will: it takes its share of the
    /// disks before the volume's data does, so that it has one on a full pool too, and beside the data.
    fn hot_is_due(&self) -> bool {
        let holds = |volume: &VolumeState| volume.spec.borrow().thick || volume.mapped() > 0;
        self.tables.borrow().volumes.values().any(|volume| volume.has_hot_area() && holds(volume))
    }

    /// Gives the hot area back that no volume has use for; true while some of it is left, which the log may need yet.
    fn give_up_unused(&self) -> bool {
        let empty: Vec<_> =
            self.hot.table.borrow().extents().filter(|(_, extent)| extent.is_empty()).map(|(born, _)| born).collect();
        for born in empty {
            self.give_up_hot_extent(born);
        }
        self.hot.table.borrow().count() > 0
    }

    /// The extents that this controller's hot area has in any case: at least one on each pair.
    pub fn hot_share(&self) -> usize {
        let disks = self.data_disks();
        let extents: u64 =
            disks.iter().filter_map(|disk| self.array.member(*disk)).map(|disk| u64::from(disk.plan.extents)).sum();
        let share = extents / u64::from(self.controllers.max(1));
        hot_extents(share, self.array.extent_bytes(), &self.settings.hot).max(self.ring().len() as u64) as usize
    }

    /// Chained declustering: each disk's first half is mirrored on the next one's second half.
    pub fn ring(&self) -> Vec<Pair> {
        let disks = self.data_disks();
        match disks.len() {
            0 | 1 => Vec::new(),
            2 => vec![(disks[0], disks[1])],
            count => (0..count).map(|at| (disks[at], disks[(at + 1) % count])).collect(),
        }
    }

    /// Migrates these blocks for a pair; the pair.
    async fn cool_for(&self, pair: Pair, chosen: Vec<ColdStripe>, urgency: Urgency) -> Pair {
        match self.cool(chosen, urgency).await {
            Ok(0) => self.runtime.sleep(BUSY).await,
            Ok(_) => {}
            Err(_) => self.runtime.sleep(STALLED).await,
        }
        pair
    }

    fn next_step(&self, busy: &BTreeSet<Pair>) -> Step {
        if !self.hot.wanted.get() && !self.hot_is_due() {
            return Step::Rest(self.give_up_unused().then_some(BUSY));
        }
        let pairs = self.pairs_to_grow();
        if !pairs.is_empty() {
            return Step::Grow(pairs);
        }
        self.hot.wanted.set(false);
        if self.hot.awaited.take() {
            // It could have grown when writes began to wait for that.
            self.destager.notify_one();
        }
        let hot = self.hot.table.borrow();
        if hot.wants_tail() || self.loan_waits() {
            self.checkpointer.notify_one();
        }
        let mut facts: Vec<_> = hot.pairs().into_iter().map(|pair| (hot.coming(pair), pair)).collect();
        facts.sort_unstable();
        drop(hot);
        let returns = self.returns_loan();
        if returns {
            self.return_empty();
        }
        let mut wants = false;
        for (tracks, pair) in facts.into_iter().filter(|(_, pair)| !busy.contains(pair)) {
            let all = self.hot.table.borrow().tracks_of(pair) as u32;
            let enough = self.settings.hot.enough(all);
            // The queue of a disk puts migration behind all else.
            let idle = self.array.has_queues(&[pair.0, pair.1]) || self.array.queue_of(pair) == 0;
            match migration(tracks, enough, idle, returns) {
                Migration::Rest => {}
                Migration::Later => wants = true,
                Migration::Now { urgent, any } => {
                    wants = true;
                    let cold = self.cold_blocks(pair, any);
                    if !cold.is_empty() {
                        return Step::Cool(pair, cold, if urgent { Urgency::Buffer } else { Urgency::Idle });
                    }
                }
            }
        }
        let loan = (self.loan() > 0).then_some(LOOK);
        Step::Rest(if wants { Some(BUSY) } else { loan })
    }

    /// Takes an extent into the hot area, on the first pair of disks that has one; where none has, it is not asked for a
    /// while.
    async fn grow_hot_somewhere(&self, pairs: Vec<Pair>) {
        let borrows = self.hot.table.borrow().count() >= self.hot_share();
        for pair in pairs {
            if borrows && !self.has_plenty(pair).await || self.grow_hot(pair).await.is_err() {
                continue;
            }
            if borrows {
                self.hot.loan.news.notify_one();
            }
            return;
        }
        self.hot.full_until.set(self.runtime.now() + FULL);
    }

    /// Takes an extent on a pair of disks into the hot area.
    async fn grow_hot(&self, pair: Pair) -> Result<()> {
        self.room_in_tables(0, TABLES_FOR_GROUPS)?;
        let places = self.allocate_on(&[pair.0, pair.1]).await?;
        let leaves = |place: &Place| self.tables.borrow().leaving.contains(&place.device);
        if places.iter().any(|place| !self.array.works(*place) || leaves(place)) || self.is_stopping() {
            self.put_back(&places).await?;
            return Err(kura_block::Error::retry("a disk went out of service, or leaves"));
        }
        let born = self.append(&Record::HotExtent { places: places.clone() });
        self.hot.table.borrow_mut().add(born.0, places, 0, None);
        Ok(())
    }

    /// Hot extents on disks that are out of service or leaving.
    pub fn unwanted_hot(&self) -> Vec<u64> {
        let tables = self.tables.borrow();
        let hot = self.hot.table.borrow();
        let unwanted = |place: &Place| tables.is_unwanted(place.device);
        let extents = hot.extents().filter(|(_, extent)| extent.places.iter().any(unwanted));
        extents.map(|(born, _)| born).collect()
    }

    /// Writes the blocks of the hot extents on unwanted disks anew, elsewhere, and gives up those that are empty then; the
    /// extents of which nothing is left but blocks that were not: they cannot be read, or nobody may write to their volume.
    pub async fn evacuate(&self, extents: &[u64]) -> Result<Vec<u64>> {
        for born in extents {
            self.hot.table.borrow_mut().leave(*born, true);
        }
        let work = stream::iter(extents).map(|born| self.empty_hot(*born)).buffer_unordered(self.rebuild_width());
        let staying = work.collect::<Vec<_>>().await.into_iter().collect::<Result<BTreeMap<_, _>>>()?;
        // What is in the buffer goes to other slots; then the tail passes the records that gave these up.
        self.checkpoint().await?;
        self.checkpoint().await?;
        let mut stuck = Vec::new();
        for born in extents {
            let (empty, left) = match self.hot.table.borrow().extent(*born) {
                Some(extent) => (extent.is_empty(), extent.owners().into_iter().flatten().count()),
                None => continue,
            };
            if empty {
                self.give_up_hot_extent(*born);
            } else if left > 0 && staying.get(born).is_some_and(|staying| left <= *staying) {
                stuck.push(*born);
            }
        }
        Ok(stuck)
    }

    /// Writes the blocks of a hot extent anew, and rests as a rebuild does: which one, and how many stay there.
    async fn empty_hot(&self, born: u64) -> Result<(u64, usize)> {
        let begun = self.begin_rebuild();
        let (stays, bytes) = self.write_hot_anew(born, Urgency::Idle).await?;
        let rest = self.rest_of_rebuild(begun, bytes);
        if !rest.is_zero() {
            // To its end: what the rebuilder has to look at is left for it to hear.
            self.runtime.sleep(rest).await;
        }
        Ok((born, stays))
    }

    /// Writes the blocks of a hot extent anew: how many stay there, and bytes that were written.
    pub async fn write_hot_anew(&self, born: u64, urgency: Urgency) -> Result<(usize, u64)> {
        let owners = self.hot.table.borrow().extent(born).map(HotExtent::owners).unwrap_or_default();
        let mut blocks: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for Owner { volume, block } in owners.into_iter().flatten() {
            blocks.entry(volume).or_default().insert(block);
        }
        let (mut stays, mut bytes) = (0, 0);
        for (volume, blocks) in blocks {
            let Some(state) = self.tables.borrow().volumes.get(&volume).cloned() else { continue };
            let read = self.read_to_cool(&state, blocks.clone(), urgency).await;
            let found: BTreeSet<_> = read.iter().map(|(block, ..)| *block).collect();
            // One in the write buffer is not read either, and goes elsewhere by itself.
            let here = |block: u64| {
                state.slot(block).is_some_and(|id| id.born == born) && !state.dirty.borrow().contains_key(&block)
            };
            stays += blocks.difference(&found).filter(|block| here(**block)).count();
            for (block, id, data) in read {
                self.make_room(BLOCK_BYTES_U64).await?;
                if state.slot(block) == Some(id) && self.write_anew(&state, block, data) {
                    bytes += BLOCK_BYTES_U64;
                } else {
                    // As those of a volume that is lost.
                    stays += usize::from(here(block));
                }
            }
        }
        Ok((stays, bytes))
    }

    /// Writes a block of the hot area as if a client had: it gets another slot. True when it was written.
    fn write_anew(&self, volume: &Rc<VolumeState>, block: u64, data: Bufs) -> bool {
        let (index, inside) = self.split(block);
        let extent = volume.extent(index).filter(|extent| extent.is_loaded());
        let expected = extent.as_ref().and_then(|extent| extent.with_page(|page| page.get(inside)));
        let (Some(extent), Some(expected)) = (extent, expected) else { return false };
        Checksum::of(&data.contiguous()) == expected && self.write_again(volume, &extent, block, data, expected)
    }

    /// Gives an extent that is empty back to the pool.
    pub fn give_up_hot_extent(&self, born: u64) {
        let lsn = self.append(&Record::HotExtentGone { born });
        if let Some(extent) = self.hot.table.borrow_mut().remove(born) {
            self.freed.borrow_mut().push(Freed::places(extent.places, Lsn(lsn.0 + 1)));
            self.checkpointer.notify_one();
        }
    }
}
