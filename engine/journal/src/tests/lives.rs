//! Many lives of a journal of two copies: deaths, absences, joins, checkpoints, and a crash at any operation.

use super::*;
use futures::future::join;
use kura_sim::ChaCha8Rng;
use rand::RngExt;
use std::cell::RefCell;

/// What must hold of a journal from life to life.
struct Model {
    rng: RefCell<ChaCha8Rng>,
    /// All numbers appended, in order.
    log: RefCell<Vec<u64>>,
    /// So many of them are promised.
    promised: Cell<usize>,
    /// Copies each of which alone has all that is promised.
    whole: Cell<u32>,
    next: Cell<u64>,
    /// So many of them the tables have, where a checkpoint of this life has given them.
    tabled: Cell<Option<usize>>,
}

/// What happens in a life.
struct Life {
    away: Vec<usize>,
    degraded: bool,
    /// A disk gets a fault: then the journal may refuse, or fail.
    faulty: bool,
}

impl Model {
    /// A number below `below`.
    fn random(&self, below: u64) -> u64 {
        self.rng.borrow_mut().random_range(0..below)
    }

    fn check(&self, found: &[u64]) {
        let log = self.log.borrow();
        assert!(log.starts_with(found), "{found:?} is no beginning of {log:?}");
        assert!(found.len() >= self.promised.get(), "{found:?} lacks some of {:?}", &log[..self.promised.get()]);
    }

    /// Copies are done without, as long as others have everything.
    fn without(&self, copies: u32) {
        if self.whole.get() & !copies != 0 {
            self.whole.set(self.whole.get() & !copies);
        }
    }

    async fn live(&self, rig: &Rig, life: &Life) -> Result<()> {
        let (scan, found) = rig.scan(&life.away).await?;
        let runtime: Rc<dyn Runtime> = rig.sim.runtime();
        let journal = scan.finish(Limits::default(), runtime, life.degraded)?;
        self.without(life.away.iter().fold(0, |set, copy| set | 1 << copy));
        journal.begin().await?;
        self.check(&found);
        self.promised.set(found.len());
        self.log.replace(found);
        self.tabled.set(None);
        self.whole.set(live(&journal));
        let (written, kept) = join(self.write(&journal), self.keep(rig, life, &journal)).await;
        written.and(kept)
    }

    async fn write(&self, journal: &Journal) -> Result<()> {
        for _ in 0..self.random(40) {
            if journal.has_room(block(7).len() as u64) {
                append(journal, self.next.get());
                self.log.borrow_mut().push(self.next.get());
                self.next.set(self.next.get() + 1);
            }
            if self.random(2) == 0 {
                self.commit(journal).await?;
            }
        }
        Ok(())
    }

    async fn commit(&self, journal: &Journal) -> Result<(usize, Lsn)> {
        let (count, lsn) = (self.log.borrow().len(), journal.next_lsn());
        journal.commit(lsn).await?;
        self.promised.set(self.promised.get().max(count));
        Ok((count, lsn))
    }

    /// Checkpoints, and copies that leave and join.
    async fn keep(&self, rig: &Rig, life: &Life, journal: &Journal) -> Result<()> {
        for _ in 0..self.random(6) {
            rig.sim.runtime().sleep(Duration::from_micros(self.random(2000))).await;
            if live(journal) == 3 && self.random(10) == 0 {
                let leaves = self.random(2) as usize;
                self.without(1 << leaves);
                journal.drop_copy(leaves);
            }
            let (count, lsn) = self.commit(journal).await?;
            for index in 0..2 {
                let away = journal.is_live(index) || journal.is_joining(index) || life.away.contains(&index);
                if !away && self.random(3) > 0 {
                    let copy = rig.copies(&[])[index].clone().unwrap();
                    self.whole.set(live(journal));
                    if self.random(2) == 0 {
                        // A new disk: it has no root at all.
                        let blank = Buf::copy_of(&[0; 2 * BLOCK_BYTES]);
                        copy.device.write(copy.offset, blank.into(), true).await?;
                    }
                    journal.join(index, copy);
                }
            }
            let tables = match self.tabled.get().filter(|_| self.random(3) > 0) {
                Some(tabled) => changes(&self.log.borrow()[tabled..count]),
                None => {
                    Tables::Whole(self.log.borrow()[..count].iter().flat_map(|number| number.to_le_bytes()).collect())
                }
            };
            self.tabled.set(None);
            let tail = Lsn(journal.tail().0.max(lsn.0.saturating_sub(self.random(20))));
            journal.checkpoint(tail, tail, Some((tables, lsn))).await?;
            self.tabled.set(Some(count));
            self.whole.set(live(journal));
        }
        Ok(())
    }
}

fn live(journal: &Journal) -> u32 {
    (0..2).filter(|index| journal.is_live(*index)).fold(0, |set, index| set | 1 << index)
}

fn lives(seed: u64) {
    let rig = Rig::new(seed, 2);
    let model = Model {
        rng: RefCell::new(rig.sim.rng("lives")),
        log: RefCell::default(),
        promised: Cell::new(0),
        whole: Cell::new(3),
        next: Cell::new(0),
        tabled: Cell::new(None),
    };
    for _ in 0..8 {
        let random = |below| model.random(below);
        let one = random(2) as usize;
        let away = if random(2) == 0 { vec![one] } else { Vec::new() };
        // Nobody goes on without a copy that is known to have more than what is left.
        let degraded = !away.is_empty() && model.whole.get() & 1 << (1 - one) != 0 && random(3) > 0;
        let ill = random(2) as usize;
        let what = if random(2) == 0 { FaultKind::Dead } else { FaultKind::WriteError };
        let fault = Fault { disk: format!("disk{ill}"), when: When::Op(1 + random(60)), what };
        let faulty = random(3) == 0;
        let life = Life { away, degraded, faulty };
        let crash = CrashPoint::Op(1 + random(150));
        let faults = faulty.then_some(fault).into_iter().collect();
        rig.sim.set_plan(&FaultPlan { faults, crashes: vec![crash] });
        let struck = rig.sim.strikes().len();
        match rig.sim.run_until_crash_or(model.live(&rig, &life)) {
            Outcome::Crashed => {}
            Outcome::Done(done) => {
                let may_fail = life.faulty || !life.away.is_empty() && !life.degraded;
                assert!(may_fail || done.is_ok(), "seed {seed}: {done:?}");
                rig.sim.crash();
            }
        }
        if rig.sim.strikes().len() > struck {
            model.without(1 << ill);
        }
        rig.disks.iter().for_each(SimDisk::revive);
    }
    rig.sim.set_plan(&FaultPlan::default());
    let (_, found) = rig.sim.block_on(rig.open(&[], false)).unwrap();
    model.check(&found);
}

#[test]
fn what_is_promised_outlives_deaths_absences_joins_and_crashes() {
    (0..250).for_each(lives);
}
