//! The journal alone, on simulated disks.

mod elsewhere;
mod faults;
mod lives;

use crate::root::Root;
use crate::{Identity, Journal, JournalCopy, Limits, Lsn, Scan, Shape, Tables, format};
use kura_block::{BLOCK_BYTES, Buf, Bufs, Checksum, Kind, Result, Runtime};
use kura_sim::{CrashPoint, DiskSpec, Fault, FaultKind, FaultPlan, Outcome, Sim, SimDisk, When};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const SHAPE: Shape = Shape { tables_bytes: 64 << 10, ring_bytes: Shape::RING_MIN_BYTES.next_multiple_of(4096) };
/// LSNs of this pool begin at 1.
const IDENTITY: Identity = Identity { pool: [3, 3, 3, 3, 3, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0], controller: 1 };

struct Rig {
    sim: Sim,
    disks: Vec<SimDisk>,
}

impl Rig {
    fn new(seed: u64, copies: usize) -> Self {
        let sim = Sim::new(seed);
        let disks: Vec<_> = (0..copies).map(|at| sim.disk(&format!("disk{at}"), DiskSpec::nvme(16 << 20))).collect();
        let rig = Self { sim, disks };
        let copies: Vec<_> = rig.copies(&[]).into_iter().flatten().collect();
        rig.sim.block_on(format(&copies, SHAPE, IDENTITY)).unwrap();
        rig
    }

    fn copies(&self, away: &[usize]) -> Vec<Option<JournalCopy>> {
        let copy = |disk: &SimDisk| JournalCopy { device: disk.open(), offset: 8192 };
        self.disks.iter().enumerate().map(|(at, disk)| (!away.contains(&at)).then(|| copy(disk))).collect()
    }

    /// Reads the log and goes on with it in a new epoch, as every user of a journal does.
    async fn open(&self, away: &[usize], degraded: bool) -> Result<(Journal, Vec<u64>)> {
        let (scan, found) = self.scan(away).await?;
        let runtime: Rc<dyn Runtime> = self.sim.runtime();
        let journal = scan.finish(Limits::default(), runtime, degraded)?;
        journal.begin().await?;
        Ok((journal, found))
    }

    /// All numbers in the tables and the log.
    async fn scan(&self, away: &[usize]) -> Result<(Scan, Vec<u64>)> {
        let mut scan = Scan::open(self.copies(away), SHAPE, IDENTITY).await?;
        let (tables, changes, below) = scan.tables().await?;
        let numbers = |bytes: &[u8]| -> Vec<u64> {
            bytes.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
        };
        let mut found = numbers(&tables);
        found.extend(numbers(&changes).into_iter().filter(|number| *number > 0).map(|number| number - 1));
        while let Some(entry) = scan.next().await? {
            for record in entry.records.iter().filter(|record| record.lsn >= below) {
                let number = u64::from_le_bytes(record.body[..].try_into().unwrap());
                assert_eq!(*record.data.contiguous(), block(number)[..], "the data of record {number}");
                found.push(number);
            }
        }
        Ok((scan, found))
    }
}

/// The data of a record: most have little, some so much that a few of them go round the ring.
fn block(number: u64) -> Vec<u8> {
    let blocks = match number % 12 {
        0 | 3 | 6 => 2,
        7 => 150,
        _ => 0,
    };
    vec![number as u8; blocks * BLOCK_BYTES]
}

fn append(journal: &Journal, number: u64) -> Lsn {
    let data = block(number);
    let checksums: Vec<_> = data.chunks(BLOCK_BYTES).map(Checksum::of).collect();
    journal.append(&number.to_le_bytes(), &Bufs::from(Buf::copy_of(&data)), &checksums)
}

/// Appends and commits numbers from `first` on; `acknowledged` is how many are promised.
async fn work(journal: &Journal, acknowledged: &Cell<u64>, first: u64, count: u64) {
    for number in first..first + count {
        let lsn = append(journal, number);
        if number % 2 == 0 {
            journal.commit(Lsn(lsn.0 + 1)).await.unwrap();
            acknowledged.set(number + 1);
        }
    }
}

/// Puts all numbers into the tables, and makes the log empty.
async fn checkpoint(journal: &Journal, numbers: u64) -> Result<()> {
    let tables = (0..numbers).flat_map(u64::to_le_bytes).collect();
    journal.checkpoint(journal.next_lsn(), journal.next_lsn(), Some((Tables::Whole(tables), journal.next_lsn()))).await
}

/// Numbers as changes of tables: zeroes are none.
fn changes(numbers: &[u64]) -> Tables {
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| (number + 1).to_le_bytes()).collect();
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    Tables::Changes(bytes)
}

#[test]
fn numbers_that_are_skipped_are_never_used() {
    for crash in [false, true] {
        let rig = Rig::new(5, 2);
        rig.sim.block_on(async {
            let (journal, _) = rig.open(&[], false).await.unwrap();
            let before = append(&journal, 1);
            journal.skip_to(Lsn(1000));
            // What is behind already stays where it is.
            journal.skip_to(Lsn(500));
            assert_eq!(journal.next_lsn(), Lsn(1000));
            assert_eq!((before, append(&journal, 2)), (Lsn(1), Lsn(1000)));
            journal.skip_to(Lsn(2000));
            journal.commit(journal.next_lsn()).await.unwrap();
            assert_eq!(journal.durable(), Lsn(2000));
            if !crash {
                journal.checkpoint(Lsn(1000), Lsn(1000), None).await.unwrap();
            }
        });
        rig.sim.crash();
        rig.sim.block_on(async {
            let (journal, found) = rig.open(&[], false).await.unwrap();
            assert_eq!(found, if crash { vec![1, 2] } else { vec![2] });
            assert_eq!(append(&journal, 3), Lsn(2000));
        });
    }
}

#[test]
fn what_is_committed_survives_a_crash_at_every_operation() {
    let run = |crash: u64, copies: usize| {
        let rig = Rig::new(crash, copies);
        let acknowledged = Cell::new(0);
        rig.sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(crash)], ..FaultPlan::default() });
        let outcome = rig.sim.run_until_crash_or(async {
            let (journal, _) = rig.open(&[], false).await.unwrap();
            work(&journal, &acknowledged, 0, 12).await;
        });
        if outcome == Outcome::Done(()) {
            rig.sim.crash();
        }
        // Every log is gone on with, after any crash of the recovery before it too, and emptied at the end.
        for life in 1..4 {
            rig.sim.set_plan(&FaultPlan {
                crashes: vec![CrashPoint::Op(1 + crash % (11 * life))],
                ..FaultPlan::default()
            });
            let next = rig.sim.run_until_crash_or(async {
                let (journal, found) = rig.open(&[], false).await.unwrap();
                let count = found.len() as u64;
                assert_eq!(found, (0..count).collect::<Vec<_>>(), "the log is a beginning of what was appended");
                assert!(count >= acknowledged.get(), "crash at {crash}: {count} of {acknowledged:?}");
                work(&journal, &acknowledged, count, 3).await;
                if crash.is_multiple_of(3) {
                    checkpoint(&journal, count + 3).await.unwrap();
                }
            });
            if next == Outcome::Done(()) {
                rig.sim.crash();
            }
        }
        rig.sim.set_plan(&FaultPlan::default());
        let (_, found) = rig.sim.block_on(rig.open(&[], false)).unwrap();
        assert!(found.len() as u64 >= acknowledged.get(), "crash at {crash}: {} of {acknowledged:?}", found.len());
        outcome == Outcome::Done(())
    };
    for copies in 1..=2 {
        assert!((1..10_000).any(|crash| run(crash, copies)), "some run ends before its crash");
    }
}

#[test]
fn the_tail_moves_and_the_ring_is_used_again_and_again() {
    let rig = Rig::new(1, 2);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[], false).await.unwrap();
        let data = Bufs::from(Buf::copy_of(&vec![1; 64 * BLOCK_BYTES]));
        let checksums = vec![Checksum::of(&[1; BLOCK_BYTES]); 64];
        let mut written = 0;
        while written < 5 * SHAPE.ring_bytes {
            if journal.has_room(data.len() as u64) {
                let lsn = journal.append(b"", &data, &checksums);
                journal.commit(Lsn(lsn.0 + 1)).await.unwrap();
                written += data.len() as u64;
            } else {
                journal.checkpoint(journal.next_lsn(), journal.next_lsn(), None).await.unwrap();
                assert_eq!(journal.usage().used_bytes, 0);
            }
        }
    });
}

#[test]
fn a_copy_that_dies_is_done_without_and_never_trusted_alone() {
    let rig = Rig::new(2, 2);
    let acknowledged = Cell::new(0);
    rig.sim.set_plan(&FaultPlan {
        faults: vec![Fault { disk: "disk1".into(), when: When::Op(8), what: FaultKind::Dead }],
        ..FaultPlan::default()
    });
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[], false).await.unwrap();
        work(&journal, &acknowledged, 0, 21).await;
        assert!(journal.is_live(0) && !journal.is_live(1));
    });
    rig.sim.crash();
    rig.disks[1].revive();
    rig.sim.block_on(async {
        // Alone, the stale copy says that the other one was alive: it may hold more.
        let alone = rig.open(&[0], false).await.map(|_| ());
        assert_eq!(alone.unwrap_err().kind(), Kind::Invalid);
        // The good copy knows that the other one is out, and needs nobody.
        let (_, found) = rig.open(&[1], false).await.unwrap();
        assert_eq!(found.len(), 21);
    });
}

#[test]
fn a_stale_copy_that_comes_back_counts_once_it_has_everything() {
    let rig = Rig::new(3, 2);
    let acknowledged = Cell::new(0);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[1], true).await.unwrap();
        work(&journal, &acknowledged, 0, 9).await;
    });
    rig.sim.crash();
    rig.sim.block_on(async {
        let (journal, found) = rig.open(&[], false).await.unwrap();
        assert_eq!(found.len(), 9);
        assert!(!journal.is_live(1), "what was away is not taken for the journal");
        journal.join(1, rig.copies(&[])[1].clone().unwrap());
        while !journal.is_live(1) {
            append(&journal, 9);
            journal.commit(journal.next_lsn()).await.unwrap();
            checkpoint(&journal, 9).await.unwrap();
        }
    });
    rig.sim.crash();
    let (_, found) = rig.sim.block_on(rig.open(&[0], true)).unwrap();
    assert_eq!(found[..9], (0..9).collect::<Vec<_>>(), "the copy that was away has everything now");
}

#[test]
fn damage_in_the_middle_is_not_taken_for_the_end() {
    let rig = Rig::new(4, 1);
    let acknowledged = Cell::new(0);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[], false).await.unwrap();
        work(&journal, &acknowledged, 0, 9).await;
        // The first entry lies where the ring begins, behind the roots and the tables.
        let first = 8192 + 2 * 4096 + 2 * SHAPE.tables_bytes;
        let garbage = Buf::copy_of(&[0xaa; BLOCK_BYTES]);
        kura_block::Block::write(&*rig.disks[0].open(), first, garbage.into(), true).await.unwrap();
    });
    rig.sim.crash();
    let opened = rig.sim.block_on(rig.open(&[], false)).map(|_| ());
    assert_eq!(opened.unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn records_that_nobody_waits_for_are_written_after_a_while() {
    let rig = Rig::new(5, 1);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[], false).await.unwrap();
        let lsn = append(&journal, 0);
        assert!(journal.durable() <= lsn);
        rig.sim.runtime().sleep(Duration::from_millis(40)).await;
        assert!(journal.durable() > lsn);
    });
}

#[test]
fn a_journal_of_another_pool_is_not_read() {
    let rig = Rig::new(6, 1);
    let other = Identity { pool: [4; 16], ..IDENTITY };
    let opened = rig.sim.block_on(Scan::open(rig.copies(&[]), SHAPE, other)).map(|_| ());
    assert_eq!(opened.unwrap_err().kind(), Kind::Corrupt);
}

/// Disks that were another pool's, of an older kura.
#[test]
fn a_root_of_another_format_is_in_nobodys_way_but_its_own() {
    let rig = Rig::new(6, 2);
    let other = Identity { pool: [4; 16], ..IDENTITY };
    for (identity, opens) in [(other, true), (IDENTITY, false)] {
        let mut old = Root::default().encode(identity).to_vec();
        old[8] = 2;
        kura_block::seal(&mut old, 4);
        for copy in rig.copies(&[]).into_iter().flatten() {
            let written = copy.device.write(copy.offset, Buf::copy_of(&old).into(), true);
            rig.sim.block_on(written).unwrap();
        }
        match rig.sim.block_on(rig.open(&[], false)).map(|(_, found)| found) {
            Ok(found) => assert!(opens && found.is_empty()),
            Err(error) => assert!(!opens && error.to_string().contains("format 2"), "{error}"),
        }
    }
}

#[test]
fn tables_that_do_not_fit_are_refused_and_the_old_ones_stay() {
    let rig = Rig::new(7, 2);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[], false).await.unwrap();
        append(&journal, 0);
        journal.commit(journal.next_lsn()).await.unwrap();
        let large = vec![0; SHAPE.tables_bytes as usize + 1];
        let refused = journal
            .checkpoint(journal.next_lsn(), journal.next_lsn(), Some((Tables::Whole(large), journal.next_lsn())))
            .await;
        assert_eq!(refused.unwrap_err().kind(), Kind::Full);
        checkpoint(&journal, 0).await.unwrap();
        let (lsn, mut all) = (journal.next_lsn(), vec![0; SHAPE.tables_bytes as usize]);
        all[..8].copy_from_slice(&1_u64.to_le_bytes());
        journal.checkpoint(Lsn(1), Lsn(1), Some((Tables::Changes(all), lsn))).await.unwrap();
        let refused = journal.checkpoint(lsn, lsn, Some((changes(&[0]), lsn))).await;
        assert_eq!(refused.unwrap_err().kind(), Kind::Full);
    });
    rig.sim.crash();
    let (_, found) = rig.sim.block_on(rig.open(&[], false)).unwrap();
    assert_eq!(found, [0]);
}
