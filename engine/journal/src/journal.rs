//! The journal in service: appending, group commit, space, checkpoints.

use crate::Lsn;
use crate::elsewhere::{Carried, Settle};
use crate::entry::{ENTRY_LIMIT_BYTES, Group};
use crate::habit::Habit;
use crate::root::{Identity, Shape};
use crate::state::{Joining, Start, State};
use kura_block::{Block, Bufs, Checksum, Error, Result, Runtime};
use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify, oneshot};

/// One copy of a journal: a region of a device.
#[derive(Clone)]
pub struct JournalCopy {
    /// The device it lies on.
    pub device: Rc<dyn Block>,
    /// Where on the device its region begins, in bytes.
    pub offset: u64,
}

/// What a checkpoint says of the tables.
pub enum Tables {
    /// All of them.
    Whole(Vec<u8>),
    /// What has changed since the last checkpoint that said anything of them, in whole blocks of 4096 bytes.
    Changes(Vec<u8>),
}

/// When records that nobody waits for are written.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// After this long.
    pub linger: Duration,
    /// Or when they are this many bytes.
    pub batch_bytes: u64,
    /// A client that flushes after fewer bytes than this flushes often. Rewriting this many bytes takes about as long as a flush.
    pub often_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { linger: Duration::from_millis(5), batch_bytes: 512 << 10, often_bytes: 1 << 20 }
    }
}

/// How full a journal is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Of the ring.
    pub ring_bytes: u64,
    /// From the tail to the head, and what waits to be written.
    pub used_bytes: u64,
}

/// A controller's journal; clones are the same journal.
#[derive(Clone)]
pub struct Journal {
    inner: Rc<Inner>,
}

pub(crate) struct Inner {
    pub copies: RefCell<Vec<Option<JournalCopy>>>,
    pub shape: Shape,
    pub identity: Identity,
    pub limits: Limits,
    pub runtime: Rc<dyn Runtime>,
    pub state: RefCell<State>,
    /// Makes durable what records say lies elsewhere.
    pub settles: OnceCell<Settle>,
    /// An entry or a root is on its way, never both: of an entry and a root it is always known which one tells later
    /// what copies live.
    pub telling: Mutex<()>,
    /// The committer has something to look at.
    pub wake: Notify,
    /// `durable`, the tail or `failed` changed.
    pub progress: Notify,
}

impl Journal {
    pub(crate) fn start(
        copies: Vec<Option<JournalCopy>>,
        shape: Shape,
        identity: Identity,
        limits: Limits,
        runtime: Rc<dyn Runtime>,
        start: Start,
    ) -> Self {
        let state = State {
            groups: VecDeque::new(),
            pending_bytes: 0,
            elsewhere_bytes: 0,
            pending_since: Duration::ZERO,
            next_lsn: start.next_lsn,
            written: start.next_lsn,
            unflushed_bytes: 0,
            unflushed_since: Duration::ZERO,
            durable: start.next_lsn,
            durable_sequence: start.sequence,
            wanted: start.next_lsn,
            wanted_first: None,
            habit: Habit::default(),
            told: start.live_copies,
            position: start.position,
            sequence: start.sequence,
            kept: start.kept,
            root: start.root,
            live_copies: start.live_copies,
            lost_copies: 0,
            joining: None,
            mends: start.mends,
            sealed: true,
            closing: false,
            closed: false,
            failed: None,
        };
        let inner = Inner {
            copies: RefCell::new(copies),
            shape,
            identity,
            limits,
            runtime: Rc::clone(&runtime),
            state: RefCell::new(state),
            settles: OnceCell::new(),
            telling: Mutex::new(()),
            wake: Notify::new(),
            progress: Notify::new(),
        };
        let journal = Self { inner: Rc::new(inner) };
        runtime.spawn(Box::pin(Rc::clone(&journal.inner).commit_groups()));
        journal
    }

    /// Appends a record, with the whole blocks of `data` behind it, one checksum each. It is not durable yet. Ask
    /// [`Journal::has_room`] first for records with data.
    pub fn append(&self, body: &[u8], data: &Bufs, checksums: &[Checksum]) -> Lsn {
        self.add((body.len(), checksums.len()), data.len(), |group| group.push(body, data, checksums))
    }

    /// How to make durable what records say lies elsewhere; said once. Until then they carry their data.
    pub fn settle_by(&self, settle: Settle) {
        // Who says it twice says the same.
        let _ = self.inner.settles.set(settle);
    }

    /// Appends a record whose data is on its way elsewhere: `body` is what it says if `arrival` resolves, which is when the
    /// data is written there; if its sender is dropped instead, the record is what is `carried`. Ask [`Journal::has_room`]
    /// first, as if it were in any case. Sent or dropped it must be, whatever else happens: later records wait for it.
    pub fn append_elsewhere(&self, body: &[u8], carried: Carried, arrival: oneshot::Receiver<()>) -> Lsn {
        let bytes = carried.data.len();
        self.add((body.len(), 0), bytes, |group| group.push_elsewhere(body, carried, arrival))
    }

    /// Adds a record of so many bytes and data blocks, for so many bytes of data wherever they are.
    fn add(&self, (body_bytes, data_blocks): (usize, usize), bytes: usize, push: impl FnOnce(&mut Group)) -> Lsn {
        let state = &mut *self.inner.state.borrow_mut();
        assert!(!state.sealed, "no record is appended before recovery has begun a new epoch");
        let fresh = !state.groups.back().is_some_and(|group| group.takes(body_bytes, data_blocks));
        if state.groups.is_empty() {
            state.pending_since = self.inner.runtime.now();
        }
        let was_due = state.is_much(self.inner.limits);
        if fresh {
            state.groups.push_back(Group::default());
        }
        if let Some(group) = state.groups.back_mut() {
            let (here, elsewhere) = if fresh { (0, 0) } else { group.bytes() };
            push(group);
            state.pending_bytes += group.bytes().0 - here;
            state.elsewhere_bytes += group.bytes().1 - elsewhere;
        }
        state.habit.appended(bytes as u64);
        if fresh || (!was_due && state.is_much(self.inner.limits)) {
            self.inner.wake.notify_one();
        }
        let lsn = state.next_lsn;
        state.next_lsn = Lsn(lsn.0 + 1);
        lsn
    }

    /// The next record's number is `lsn`, or higher: no record has the numbers before it that are not given yet.
    pub fn skip_to(&self, lsn: Lsn) {
        let state = &mut *self.inner.state.borrow_mut();
        assert!(!state.sealed, "no number is skipped before recovery has begun a new epoch");
        let Some(skipped) = lsn.0.checked_sub(state.next_lsn.0).filter(|skipped| *skipped > 0) else { return };
        let group = Group::behind_gap(skipped);
        state.next_lsn = lsn;
        state.pending_bytes += group.entry_bytes();
        state.groups.push_back(group);
        self.inner.wake.notify_one();
    }

    /// True when a record with this many bytes of data may be appended; a quarter of the ring stays free for the
    /// records that emptying the write buffer needs.
    pub fn has_room(&self, bytes: u64) -> bool {
        let state = self.inner.state.borrow();
        state.used_bytes() + bytes + ENTRY_LIMIT_BYTES <= self.inner.shape.ring_bytes / 4 * 3
    }

    /// True when so many bytes of data and headers can be written although the tail stays where it is, wherever the ring ends.
    pub fn fits(&self, bytes: u64) -> bool {
        let state = self.inner.state.borrow();
        state.used_bytes() + bytes + ENTRY_LIMIT_BYTES <= self.inner.shape.ring_bytes
    }

    /// Resolves when the journal has moved on: something became durable, or is elsewhere durably, the tail moved, or it failed.
    pub async fn progress(&self) {
        self.inner.progress.notified().await;
    }

    /// The number the next record gets: every record appended so far is below.
    pub fn next_lsn(&self) -> Lsn {
        self.inner.state.borrow().next_lsn
    }

    /// Every record below is durable.
    pub fn durable(&self) -> Lsn {
        self.inner.state.borrow().durable
    }

    /// Records below are never replayed again.
    pub fn tail(&self) -> Lsn {
        self.inner.state.borrow().root.tail_lsn
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        Usage { ring_bytes: self.inner.shape.ring_bytes, used_bytes: self.inner.state.borrow().used_bytes() }
    }

    /// Bytes of data on their way elsewhere whose records are not written yet: they are kept in memory.
    pub fn elsewhere_bytes(&self) -> u64 {
        self.inner.state.borrow().elsewhere_bytes
    }

    /// True while what is appended is asked for after little of it: who asks waits less for one entry with the data than first for the
    /// data's place and then for an entry.
    pub fn is_asked_often(&self) -> bool {
        self.inner.state.borrow().habit.is_asked_often(self.inner.limits.often_bytes)
    }

    /// True before a new epoch has begun after a scan.
    pub fn is_sealed(&self) -> bool {
        self.inner.state.borrow().sealed
    }

    /// The error that ended the journal, if one did.
    pub fn alive(&self) -> Result<()> {
        self.inner.state.borrow().alive()
    }

    /// True while copy `index` is written.
    pub fn is_live(&self, index: usize) -> bool {
        self.inner.state.borrow().live_copies & 1 << index != 0
    }

    /// True once copy `index` was written and is no longer, as its device failed or was taken out of service.
    pub fn is_lost(&self, index: usize) -> bool {
        self.inner.state.borrow().lost_copies & 1 << index != 0
    }

    /// Somebody outside asks for what was appended to be durable: what is learned of that decides what is written early, and what
    /// is carried.
    pub fn asked(&self) {
        self.inner.state.borrow_mut().habit.asked();
    }

    /// Resolves when every record below `lsn` is durable on all live copies.
    pub async fn commit(&self, lsn: Lsn) -> Result<()> {
        loop {
            let progress = self.inner.progress.notified();
            {
                let state = &mut *self.inner.state.borrow_mut();
                if state.durable >= lsn {
                    return Ok(());
                }
                state.alive()?;
                if state.wanted < lsn {
                    state.wanted = lsn;
                    state.wanted_first.get_or_insert(lsn);
                    self.inner.wake.notify_one();
                }
            }
            progress.await;
        }
    }

    /// Begins a new epoch behind the log that was scanned, which stays: brings the live copies level, and makes durable
    /// what was read. From then on records may be appended.
    pub async fn begin(&self) -> Result<()> {
        let (mends, root) = {
            let state = &mut *self.inner.state.borrow_mut();
            (std::mem::take(&mut state.mends), state.root)
        };
        for mend in mends {
            self.inner.mend(mend).await?;
        }
        self.inner.on_live_copies(async |_, copy| copy.device.flush().await).await?;
        // Some may have only the roots before this one, and the next overwrites the later of them.
        self.inner.put_root(&root).await?;
        self.inner.write_root(root.tail_lsn, root.settled, root.tables).await
    }

    /// Moves the tail to `tail`: the caller vouches that all data of records below is at its place and durable. With
    /// `tables`, these, or the last ones with all changes since, hold every record below the LSN beside them; without, the
    /// last ones stay. `settled` is kept for the caller's recovery ([`crate::Scan::settled`]): what records below it speak of
    /// needs no mending.
    pub async fn checkpoint(&self, tail: Lsn, settled: Lsn, tables: Option<(Tables, Lsn)>) -> Result<()> {
        assert!(!self.is_sealed(), "no checkpoint is made before recovery has begun a new epoch");
        let tables = match tables {
            Some((tables, lsn)) => self.inner.write_tables(&tables, lsn).await?,
            None => self.inner.state.borrow().root.tables,
        };
        self.inner.write_root(tail, settled, tables).await?;
        let state = &mut *self.inner.state.borrow_mut();
        while state.kept.front().is_some_and(|kept| kept.end_lsn <= tail) {
            state.kept.pop_front();
        }
        self.inner.progress.notify_waiters();
        self.inner.wake.notify_one();
        Ok(())
    }

    /// Bytes that the tables of a checkpoint may take.
    pub fn tables_area_bytes(&self) -> u64 {
        self.inner.shape.tables_bytes
    }

    /// Bytes of the last tables, and of the changes behind them.
    pub fn tables_bytes(&self) -> (u64, u64) {
        let tables = self.inner.state.borrow().root.tables;
        (tables.changes_at(), tables.changes_bytes)
    }

    /// Stops writing copy `index`; its absence is told in the next entry and root.
    pub fn drop_copy(&self, index: usize) {
        self.inner.kill(index, &Error::device("taken out of service"));
        if let Some(copy) = self.inner.copies.borrow_mut().get_mut(index) {
            *copy = None;
        }
    }

    /// Fills the region of a copy that is to join with zeroes: a sparse file may have no space for it, and it would be found out when
    /// the journal wants it.
    pub async fn fill(&self, copy: &JournalCopy) -> Result<()> {
        const CHUNK_BYTES: u64 = 1 << 20;
        let end = copy.offset + self.inner.shape.region_bytes();
        let mut at = copy.offset;
        while at < end {
            self.alive()?;
            let bytes = (end - at).min(CHUNK_BYTES);
            copy.device.write(at, Bufs::zeroes(bytes as usize), false).await?;
            at += bytes;
        }
        copy.device.flush().await
    }

    /// Begins to write `copy` in the place of copy `index`, which must not be live. It counts from the checkpoint on that
    /// gives tables and whose tail has passed the next entry; until then a crash does without it.
    pub fn join(&self, index: usize, copy: JournalCopy) {
        assert!(!self.is_live(index), "copy {index} of the journal is in service");
        {
            let copies = &mut *self.inner.copies.borrow_mut();
            copies.resize(copies.len().max(index + 1), None);
            copies[index] = Some(copy);
        }
        let state = &mut *self.inner.state.borrow_mut();
        state.lost_copies &= !(1 << index);
        // The entry that is being written now, if there is one, does not go there: let there be another one soon.
        state.joining = Some(Joining { index, sequence: state.sequence + 1, has_tables: false });
        let group = Group::default();
        state.pending_bytes += group.entry_bytes();
        state.groups.push_back(group);
        self.inner.wake.notify_one();
    }

    /// True while copy `index` is written and does not count yet.
    pub fn is_joining(&self, index: usize) -> bool {
        self.inner.state.borrow().joining.is_some_and(|joining| joining.index == index)
    }

    /// Ends the committer once everything appended is durable, and a root says that the log ends there.
    pub async fn close(&self) -> Result<()> {
        assert!(!self.is_sealed(), "no journal is closed before recovery has begun a new epoch");
        self.inner.state.borrow_mut().closing = true;
        self.inner.wake.notify_one();
        loop {
            let progress = self.inner.progress.notified();
            {
                let state = self.inner.state.borrow();
                state.alive()?;
                if state.root.closed {
                    return Ok(());
                }
            }
            progress.await;
        }
    }
}
