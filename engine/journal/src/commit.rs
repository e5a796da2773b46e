//! The committer: group commit, one entry at a time.

use crate::elsewhere::Elsewhere;
use crate::entry::Group;
use crate::journal::Inner;
use crate::state::{Kept, Step};
use futures::future::{Either, select};
use kura_block::Result;
use std::rc::Rc;
use std::time::Duration;

/// How long an entry waits for data that is on its way elsewhere: who wants it durable is not kept waiting by a disk that hangs.
pub const PATIENCE: Duration = Duration::from_millis(500);

impl Inner {
    /// The committer: one entry at a time, and a flush when somebody waits or much is unflushed.
    pub async fn commit_groups(self: Rc<Self>) {
        loop {
            let step = self.next_step().await;
            let ends = matches!(step, Step::End);
            let done = match step {
                Step::Write { group, durable } => self.write_group(group, durable).await,
                Step::Flush => self.flush_entries().await,
                Step::End => self.write_last_root().await,
            };
            if let Err(error) = done {
                tracing::error!(controller = self.identity.controller, %error, "the journal failed");
                self.state.borrow_mut().failed = Some(error);
                self.progress.notify_waiters();
                return;
            }
            if ends {
                return;
            }
        }
    }

    /// Waits until there is something to do.
    async fn next_step(&self) -> Step {
        loop {
            let linger = {
                let state = &mut *self.state.borrow_mut();
                match state.step(self.runtime.now(), self.limits) {
                    Ok(step) => return step,
                    Err(linger) => linger,
                }
            };
            match linger {
                None => self.wake.notified().await,
                Some(rest) => {
                    select(std::pin::pin!(self.wake.notified()), self.runtime.sleep(rest)).await;
                }
            }
        }
    }

    async fn write_group(&self, group: Group, durable: bool) -> Result<()> {
        let (here, elsewhere) = group.bytes();
        let groups = self.settle(group).await;
        // One write makes one entry durable.
        let durable = durable && groups.len() == 1;
        let mut bytes = 0;
        for group in &groups {
            self.write_entry(group, durable).await?;
            bytes += group.entry_bytes();
        }
        {
            let state = &mut *self.state.borrow_mut();
            state.pending_bytes -= here;
            state.elsewhere_bytes -= elsewhere;
        }
        if elsewhere > 0 {
            self.progress.notify_waiters();
        }
        if durable {
            return self.made_durable().await;
        }
        let state = &mut *self.state.borrow_mut();
        if state.unflushed_bytes == 0 {
            state.unflushed_since = self.runtime.now();
        }
        state.unflushed_bytes += bytes;
        Ok(())
    }

    /// Waits until a group's data has arrived elsewhere, and makes it durable there. What does not arrive is carried; so is all of
    /// it where that takes too long, or not all could be made durable.
    async fn settle(&self, mut group: Group) -> Vec<Group> {
        let mut elsewhere = std::mem::take(&mut group.elsewhere);
        if elsewhere.is_empty() {
            return vec![group];
        }
        let settled = async {
            for one in &mut elsewhere {
                one.wait().await;
            }
            match self.settles.get() {
                Some(settle) if elsewhere.iter().any(Elsewhere::has_arrived) => settle().await,
                _ => false,
            }
        };
        let durable = match select(std::pin::pin!(settled), self.runtime.sleep(PATIENCE)).await {
            Either::Left((durable, _)) => durable,
            Either::Right(_) => false,
        };
        elsewhere.retain(|one| !(durable && one.has_arrived()));
        if elsewhere.is_empty() { vec![group] } else { group.carrying(elsewhere) }
    }

    async fn flush_entries(&self) -> Result<()> {
        self.state.borrow_mut().unflushed_bytes = 0;
        self.on_live_copies(async |_, copy| copy.device.flush().await).await?;
        self.made_durable().await
    }

    /// Lets all that was written count as durable; where a copy died meanwhile, only after the others say so, durably.
    /// Nobody but the committer writes entries.
    async fn made_durable(&self) -> Result<()> {
        while self.state.borrow().told != self.state.borrow().live_copies {
            self.write_entry(&Group::default(), true).await?;
        }
        let state = &mut *self.state.borrow_mut();
        state.alive()?;
        (state.durable, state.durable_sequence) = (state.written, state.sequence);
        state.wanted_first = Some(state.wanted).filter(|wanted| *wanted > state.durable);
        self.progress.notify_waiters();
        Ok(())
    }

    /// The root that says that the log ends here: who reads it need not look for more. Nobody but the committer writes entries.
    async fn write_last_root(&self) -> Result<()> {
        let _alone = self.telling.lock().await;
        let root = {
            let state = &mut *self.state.borrow_mut();
            state.closed = true;
            state.root
        };
        self.tell_root(root.tail_lsn, root.settled, root.tables).await?;
        self.progress.notify_waiters();
        Ok(())
    }

    /// Writes one entry to all live copies.
    async fn write_entry(&self, group: &Group, durable: bool) -> Result<()> {
        let bytes = group.entry_bytes();
        let position = self.room_for(bytes).await?;
        let _alone = self.telling.lock().await;
        let stamp = self.state.borrow().stamp(group);
        let entry = group.encode(stamp);
        let place = self.shape.place(position);
        self.on_live_copies(async |index, copy| self.put((index, copy), place, &entry, durable).await).await?;
        let state = &mut *self.state.borrow_mut();
        let end_lsn = state.after(group);
        state.kept.push_back(Kept { first_lsn: stamp.first_lsn, end_lsn, sequence: stamp.sequence, position });
        state.position = position + bytes;
        state.sequence += 1;
        state.written = end_lsn;
        state.told = stamp.live_copies;
        Ok(())
    }

    /// Where the next entry goes, once there is room for it; an error when the journal fails before.
    async fn room_for(&self, bytes: u64) -> Result<u64> {
        loop {
            let progress = self.progress.notified();
            {
                let state = self.state.borrow();
                state.alive()?;
                let position = self.shape.fit(state.position, bytes);
                if position + bytes - state.tail_position() <= self.shape.ring_bytes {
                    return Ok(position);
                }
            }
            progress.await;
        }
    }
}
