//! Records whose data goes elsewhere: the log says so only of what is there.

use super::*;
use crate::Carried;
use kura_block::{BLOCK_BYTES_U64, Block};
use std::cell::RefCell;
use tokio::sync::oneshot;

/// Set in the body of a record whose data lies elsewhere.
const ELSEWHERE: u64 = 1 << 63;
const BLOCKS: u64 = 24;
const BYTES: u64 = BLOCKS * BLOCK_BYTES_U64;

/// A journal on two disks, and a disk for data.
struct Home {
    rig: Rig,
    home: SimDisk,
}

/// What becomes of a record's data.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Arrives,
    /// It is refused, after a while.
    Refused,
    /// Nobody writes it.
    Forgotten,
}

impl Home {
    fn new(seed: u64) -> Self {
        let rig = Rig::new(seed, 2);
        let home = rig.sim.disk("home", DiskSpec::nvme(16 << 20));
        Self { rig, home }
    }

    /// Opens the journal; the data of every record in the log is checked, wherever that says it lies. How many there are, and how
    /// many of them lie elsewhere.
    async fn open(&self, flushes: bool) -> (Journal, u64, u64) {
        let mut scan = Scan::open(self.rig.copies(&[]), SHAPE, IDENTITY).await.unwrap();
        let (mut found, mut elsewhere) = (0, 0);
        while let Some(entry) = scan.next().await.unwrap() {
            for record in entry.records {
                let body = u64::from_le_bytes(record.body[..].try_into().unwrap());
                assert_eq!(body & !ELSEWHERE, found, "a beginning of what was appended");
                let data = if body & ELSEWHERE == 0 {
                    record.data
                } else {
                    elsewhere += 1;
                    self.home.open().read(found * BYTES, BYTES as usize).await.unwrap()
                };
                assert!(data.contiguous().iter().all(|byte| *byte == found as u8 + 1), "the data of record {found}");
                assert_eq!(data.len() as u64, BYTES);
                found += 1;
            }
        }
        let journal = scan.finish(Limits::default(), self.rig.sim.runtime(), false).unwrap();
        journal.begin().await.unwrap();
        let home = self.home.open();
        journal.settle_by(Box::new(move || {
            let home = Rc::clone(&home);
            Box::pin(async move { flushes && home.flush().await.is_ok() })
        }));
        (journal, found, elsewhere)
    }

    /// Appends a record, and sends its data on its way.
    fn append(&self, journal: &Journal, number: u64, fate: Fate) {
        let data = Bufs::from(Buf::copy_of(&vec![number as u8 + 1; BYTES as usize]));
        let checksums: Vec<_> = data.parts().iter().flat_map(Checksum::of_blocks).collect();
        let (arrives, arrival) = oneshot::channel();
        let carried = Carried { body: number.to_le_bytes().to_vec(), data: data.clone(), checksums };
        journal.append_elsewhere(&(number | ELSEWHERE).to_le_bytes(), carried, arrival);
        let (home, runtime) = (self.home.open(), self.rig.sim.runtime());
        self.rig.sim.runtime().spawn(Box::pin(async move {
            match fate {
                Fate::Arrives => {
                    home.write(number * BYTES, data, false).await.unwrap();
                    arrives.send(()).unwrap();
                }
                Fate::Refused => {
                    runtime.sleep(Duration::from_millis(1)).await;
                    drop(arrives);
                }
                Fate::Forgotten => drop(arrives),
            }
        }));
    }
}

#[test]
fn a_crash_anywhere_finds_data_where_the_log_says() {
    let run = |crash: u64| {
        let home = Home::new(crash);
        let acknowledged = Cell::new(0);
        let plan = FaultPlan { crashes: vec![CrashPoint::Op(crash)], ..FaultPlan::default() };
        home.rig.sim.set_plan(&plan);
        let outcome = home.rig.sim.run_until_crash_or(async {
            let (journal, ..) = home.open(true).await;
            for number in 0..24 {
                let fate = [Fate::Arrives, Fate::Arrives, Fate::Refused, Fate::Arrives, Fate::Forgotten];
                home.append(&journal, number, fate[(number * (crash + 3) % 5) as usize]);
                if number % 4 == crash % 4 {
                    journal.commit(journal.next_lsn()).await.unwrap();
                    acknowledged.set(number + 1);
                }
            }
        });
        let ended = outcome == Outcome::Done(());
        if ended {
            home.rig.sim.crash();
        }
        home.rig.sim.set_plan(&FaultPlan::default());
        let (_, found, _) = home.rig.sim.block_on(home.open(true));
        assert!(found >= acknowledged.get(), "crash at {crash}: {found} of {acknowledged:?}");
        ended
    };
    assert!((1..10_000).any(run), "some run ends before its crash");
}

#[test]
fn what_does_not_arrive_is_carried_by_as_many_entries_as_it_takes() {
    for (fate, flushes, expected) in
        [(Fate::Arrives, true, 20), (Fate::Refused, true, 0), (Fate::Forgotten, true, 0), (Fate::Arrives, false, 0)]
    {
        let home = Home::new(9);
        home.rig.sim.block_on(async {
            let (journal, ..) = home.open(flushes).await;
            // Of one group, and more than one entry takes.
            for number in 0..20 {
                home.append(&journal, number, fate);
            }
            assert!(journal.usage().used_bytes > 20 * BYTES, "room for all of it is kept");
            journal.commit(journal.next_lsn()).await.unwrap();
            let used = journal.usage().used_bytes;
            assert_eq!(used < BYTES, expected > 0, "{used} bytes of the ring");
        });
        home.rig.sim.crash();
        let (_, found, elsewhere) = home.rig.sim.block_on(home.open(true));
        assert_eq!((found, elsewhere), (20, expected));
    }
}

#[test]
fn records_before_and_behind_keep_their_numbers_and_their_data() {
    let home = Home::new(3);
    let plain = |journal: &Journal, number: u64| {
        let data = Bufs::from(Buf::copy_of(&vec![number as u8 + 1; BYTES as usize]));
        let checksums: Vec<_> = data.parts().iter().flat_map(Checksum::of_blocks).collect();
        journal.append(&number.to_le_bytes(), &data, &checksums)
    };
    let lsns = RefCell::new(Vec::new());
    home.rig.sim.block_on(async {
        let (journal, ..) = home.open(true).await;
        for number in 0..24 {
            lsns.borrow_mut().push(journal.next_lsn());
            match number % 4 {
                0 => home.append(&journal, number, Fate::Arrives),
                1 => home.append(&journal, number, Fate::Forgotten),
                _ => assert_eq!(plain(&journal, number), lsns.borrow()[number as usize]),
            }
        }
        journal.commit(journal.next_lsn()).await.unwrap();
    });
    home.rig.sim.crash();
    home.rig.sim.block_on(async {
        let mut scan = Scan::open(home.rig.copies(&[]), SHAPE, IDENTITY).await.unwrap();
        let mut found = Vec::new();
        while let Some(entry) = scan.next().await.unwrap() {
            found.extend(entry.records.iter().map(|record| record.lsn));
        }
        assert_eq!(found, *lsns.borrow());
    });
    let (_, found, elsewhere) = home.rig.sim.block_on(home.open(true));
    assert_eq!((found, elsewhere), (24, 6));
}
