//! Which copy, root and entry is believed after a fault: each test is one way to be misled.

use super::*;

/// Appends a number and commits it.
async fn put(journal: &Journal, number: u64) -> Result<()> {
    append(journal, number);
    journal.commit(journal.next_lsn()).await
}

/// Makes tables of the numbers below `numbers`; the last record, which is committed, stays in the log.
async fn checkpoint_but_one(journal: &Journal, numbers: u64) -> Result<()> {
    let tables = (0..numbers).flat_map(u64::to_le_bytes).collect();
    let tail = Lsn(journal.next_lsn().0 - 1);
    journal.checkpoint(tail, tail, Some((Tables::Whole(tables), journal.next_lsn()))).await
}

#[test]
fn a_journal_without_a_live_copy_does_not_open() {
    let rig = Rig::new(1, 2);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[1], true).await.unwrap();
        put(&journal, 0).await.unwrap();
        journal.join(1, rig.copies(&[])[1].clone().unwrap());
        // The root says that copy 1 does not count yet: it has not got the first entry.
        journal.checkpoint(Lsn(1), Lsn(1), None).await.unwrap();
        assert!(journal.is_joining(1));
    });
    rig.sim.crash();
    for degraded in [false, true] {
        let opened = rig.sim.block_on(rig.open(&[0], degraded)).map(|(_, found)| found);
        assert_eq!(opened.unwrap_err().kind(), Kind::Invalid);
    }
    assert_eq!(rig.sim.block_on(rig.open(&[1], false)).unwrap().1, [0]);
}

#[test]
fn an_entry_of_an_older_epoch_does_not_replace_the_true_one() {
    let rig = Rig::new(2, 2);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[], false).await.unwrap();
        put(&journal, 0).await.unwrap();
        rig.disks[1].inject(FaultKind::LostWrite);
        put(&journal, 1).await.unwrap();
    });
    rig.sim.crash();
    rig.sim.block_on(async {
        let (journal, found) = rig.open(&[0], true).await.unwrap();
        assert_eq!(found, [0], "the other entry reached only the copy that is away");
        put(&journal, 2).await.unwrap();
    });
    for _ in 0..3 {
        rig.sim.crash();
        assert_eq!(rig.sim.block_on(rig.open(&[], false)).unwrap().1, [0, 2]);
    }
}

#[test]
fn a_root_of_an_older_epoch_does_not_replace_the_true_one() {
    let rig = Rig::new(3, 2);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[], false).await.unwrap();
        put(&journal, 0).await.unwrap();
        rig.disks[1].inject(FaultKind::LostWrite);
        journal.checkpoint(Lsn(1), Lsn(1), None).await.unwrap();
    });
    rig.sim.crash();
    rig.sim.block_on(async {
        // Both copies have a root of the same generation now, copy 1 that of the later epoch.
        let (journal, _) = rig.open(&[0], true).await.unwrap();
        put(&journal, 1).await.unwrap();
    });
    rig.sim.crash();
    assert_eq!(rig.sim.block_on(rig.open(&[], false)).unwrap().1, [0, 1]);
}

#[test]
fn a_copy_that_joined_stays_although_older_entries_do_not_name_it() {
    let rig = Rig::new(4, 2);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[1], true).await.unwrap();
        journal.join(1, rig.copies(&[])[1].clone().unwrap());
        for number in 0..4 {
            put(&journal, number).await.unwrap();
        }
        checkpoint_but_one(&journal, 4).await.unwrap();
        assert!(journal.is_live(1));
    });
    rig.sim.crash();
    let (journal, found) = rig.sim.block_on(rig.open(&[], false)).unwrap();
    assert!(journal.is_live(1) && found == [0, 1, 2, 3]);
    rig.sim.crash();
    assert_eq!(rig.sim.block_on(rig.open(&[0], true)).unwrap().1, [0, 1, 2, 3], "it has everything");
}

#[test]
fn a_copy_that_joins_stays_although_entries_are_written_meanwhile() {
    let run = |crash: u64, seed: u64| {
        let rig = Rig::new(seed, 2);
        let joined = Cell::new(false);
        rig.sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(crash)], ..FaultPlan::default() });
        let outcome = rig.sim.run_until_crash_or(async {
            let (journal, _) = rig.open(&[1], true).await.unwrap();
            // A new disk: the first root it gets may be the one that counts it.
            let copy = rig.copies(&[])[1].clone().unwrap();
            let blank = Buf::copy_of(&[0; 2 * BLOCK_BYTES]);
            copy.device.write(copy.offset, blank.into(), true).await.unwrap();
            append(&journal, 0);
            journal.join(1, copy);
            let writes = async {
                let mut number = 1;
                while !joined.get() {
                    put(&journal, number).await.unwrap();
                    number += 1;
                }
            };
            let checkpoints = async {
                while !journal.is_live(1) {
                    let (lsn, bytes) = (journal.next_lsn(), (0..journal.next_lsn().0 - 1).flat_map(u64::to_le_bytes));
                    let bytes = bytes.collect::<Vec<_>>();
                    journal.commit(lsn).await.unwrap();
                    journal.checkpoint(lsn, lsn, Some((Tables::Whole(bytes), lsn))).await.unwrap();
                }
                joined.set(true);
            };
            futures::future::join(writes, checkpoints).await;
        });
        if outcome == Outcome::Done(()) {
            rig.sim.crash();
        }
        rig.sim.set_plan(&FaultPlan::default());
        let (journal, _) = rig.sim.block_on(rig.open(&[], false)).unwrap();
        assert!(journal.is_live(1) || !joined.get(), "crash at {crash}: the copy counted and does no more");
        outcome == Outcome::Done(())
    };
    for seed in 0..8 {
        assert!((1..10_000).any(|crash| run(crash, seed)), "some run ends before its crash");
    }
}

#[test]
fn a_copy_that_died_in_a_checkpoint_stays_dead_although_older_entries_name_it() {
    let rig = Rig::new(5, 2);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[], false).await.unwrap();
        for number in 0..4 {
            put(&journal, number).await.unwrap();
        }
        rig.disks[1].inject(FaultKind::Dead);
        checkpoint_but_one(&journal, 4).await.unwrap();
        assert!(!journal.is_live(1));
    });
    rig.sim.crash();
    rig.disks[1].revive();
    let alone = rig.sim.block_on(rig.open(&[0], false)).map(|(_, found)| found);
    assert_eq!(alone.unwrap_err().kind(), Kind::Invalid);
    let (journal, found) = rig.sim.block_on(rig.open(&[], false)).unwrap();
    assert!(!journal.is_live(1), "it has not got the tables");
    assert_eq!(found, [0, 1, 2, 3]);
}

#[test]
fn a_copy_that_cannot_be_read_is_as_good_as_away() {
    let rig = Rig::new(6, 2);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[], false).await.unwrap();
        put(&journal, 0).await.unwrap();
        rig.disks[1].inject(FaultKind::Dead);
        put(&journal, 1).await.unwrap();
    });
    // It dies at each of the reads of a recovery: copy 1 alone does not know what it lacks.
    for read in 1..12 {
        rig.sim.crash();
        rig.disks.iter().for_each(SimDisk::revive);
        rig.sim.set_plan(&FaultPlan {
            faults: vec![Fault { disk: "disk0".into(), when: When::Op(read), what: FaultKind::Dead }],
            ..FaultPlan::default()
        });
        if let Ok((_, found)) = rig.sim.block_on(rig.open(&[], false)) {
            assert_eq!(found, [0, 1], "dead at read {read}");
        }
    }
    rig.sim.crash();
    rig.disks[0].revive();
    rig.disks[0].inject(FaultKind::ReadError(kura_sim::Place::Range(8192..16384)));
    let opened = rig.sim.block_on(rig.open(&[], false)).map(|(_, found)| found);
    assert_eq!(opened.unwrap_err().kind(), Kind::Invalid, "its roots cannot be read");
}

#[test]
fn a_journal_that_failed_writes_nothing_more() {
    let rig = Rig::new(8, 2);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[1], true).await.unwrap();
        put(&journal, 0).await.unwrap();
        journal.join(1, rig.copies(&[])[1].clone().unwrap());
        journal.drop_copy(0);
        journal.checkpoint(Lsn(1), Lsn(1), None).await.unwrap_err();
    });
    rig.sim.crash();
    assert_eq!(rig.sim.block_on(rig.open(&[], false)).unwrap().1, [0], "no root says that nobody lives");
}

#[test]
fn a_copy_that_missed_a_root_gets_it_before_the_next_one() {
    let rig = Rig::new(7, 2);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[], false).await.unwrap();
        for number in 0..4 {
            put(&journal, number).await.unwrap();
            if number == 3 {
                // Generation 6 does not reach copy 1; the tables that its older root names are overwritten.
                let lost = Fault { disk: "disk1".into(), when: When::Op(2), what: FaultKind::LostWrite };
                rig.sim.set_plan(&FaultPlan { faults: vec![lost], ..FaultPlan::default() });
            }
            let (tables, lsn) = ((0..=number).rev().flat_map(u64::to_le_bytes).collect(), journal.next_lsn());
            journal.checkpoint(lsn, lsn, Some((Tables::Whole(tables), lsn))).await.unwrap();
        }
    });
    assert_eq!(rig.sim.strikes()[0].range, 8192..8192 + 4096, "the write that was lost is a root's");
    rig.sim.crash();
    rig.sim.block_on(rig.open(&[], false)).unwrap();
    rig.sim.crash();
    // Generation 7, which the recovery wrote, is torn there.
    let garbage = Buf::copy_of(&[0xaa; BLOCK_BYTES]);
    let torn = rig.disks[1].open();
    rig.sim.block_on(kura_block::Block::write(&*torn, 8192 + 4096, garbage.into(), true)).unwrap();
    rig.sim.crash();
    assert_eq!(rig.sim.block_on(rig.open(&[0], true)).unwrap().1, [3, 2, 1, 0]);
}

/// An entry in the middle of the log rots, and a disk refuses a place near those behind it.
#[test]
fn what_a_disk_refuses_nearby_hides_no_gap() {
    const ENTRY: u64 = BLOCK_BYTES as u64;
    let at = |entry: u64| 8192 + SHAPE.ring_at() + entry * ENTRY;
    for copies in [1, 2] {
        // Beside the entries, on all copies or on one; or all behind the gap.
        for (refused, of, proven) in
            [(100..101, 1, true), (100..101, 2, true), (2..4, 1, copies == 2), (2..4, 2, false)]
        {
            let rig = Rig::new(4, copies);
            rig.sim.block_on(async {
                let (journal, _) = rig.open(&[], false).await.unwrap();
                for number in [1, 2, 4, 5] {
                    put(&journal, number).await.unwrap();
                }
            });
            rig.sim.crash();
            for disk in &rig.disks {
                disk.inject(FaultKind::BitRot(kura_sim::Place::Range(at(1)..at(2)), 40));
            }
            for disk in rig.disks.iter().take(of) {
                disk.inject(FaultKind::ReadError(kura_sim::Place::Range(at(refused.start)..at(refused.end))));
            }
            let error = rig.sim.block_on(rig.open(&[], false)).map(|(_, found)| found).unwrap_err();
            let what = if proven { "damaged in its middle" } else { "may hold newer writes" };
            assert!(error.to_string().contains(what), "{copies} copies, {refused:?} of {of}: {error}");
        }
    }
}

/// What rots on one copy may be whole on the other one, if that could be asked.
#[test]
fn what_a_copy_may_have_that_cannot_be_asked_is_not_given_up() {
    // Behind the first entry and its two blocks of data.
    let entry = 8192 + SHAPE.ring_at() + 3 * BLOCK_BYTES as u64;
    let tables = 8192 + SHAPE.tables_at(1);
    for (at, checkpoints) in [(entry, false), (tables, true)] {
        let rig = Rig::new(4, 2);
        rig.sim.block_on(async {
            let (journal, _) = rig.open(&[], false).await.unwrap();
            for number in [0, 1, 2, 3] {
                put(&journal, number).await.unwrap();
            }
            if checkpoints {
                checkpoint(&journal, 4).await.unwrap();
            }
        });
        rig.sim.crash();
        let place = || kura_sim::Place::Range(at..at + 32);
        rig.disks[0].inject(FaultKind::BitRot(place(), 40));
        assert_eq!(rig.sim.block_on(rig.scan(&[])).unwrap().1, [0, 1, 2, 3]);
        let refused = |away: &[usize]| rig.sim.block_on(rig.scan(away)).map(drop).unwrap_err();
        assert_eq!(refused(&[1]).kind(), Kind::Invalid, "the other copy is away");
        rig.disks[1].inject(FaultKind::ReadError(place()));
        assert_eq!(refused(&[]).kind(), Kind::Invalid, "the other copy does not read");
        rig.disks[1].inject(FaultKind::BitRot(place(), 40));
        let rotten = Buf::copy_of(&[0xaa; BLOCK_BYTES]);
        rig.sim.block_on(kura_block::Block::write(&*rig.disks[1].open(), at, rotten.into(), true)).unwrap();
        assert_eq!(refused(&[]).kind(), Kind::Corrupt, "nobody has it");
    }
}

/// A log that was closed says where it ends: nothing is looked for behind it, and nothing before it may be missing.
#[test]
fn a_log_that_was_closed_is_not_searched() {
    let rig = Rig::new(9, 2);
    let read_bytes = || rig.disks.iter().map(|disk| disk.counters().read_bytes).sum::<u64>();
    let opened = |closes: bool, numbers: &[u64]| {
        let before = read_bytes();
        rig.sim.block_on(async {
            let (journal, found) = rig.open(&[], false).await.unwrap();
            assert_eq!(found, numbers);
            let read = read_bytes() - before;
            put(&journal, found.len() as u64).await.unwrap();
            if closes {
                journal.close().await.unwrap();
            }
            read
        })
    };
    let searched = 2 * SHAPE.ring_bytes;
    assert!(opened(true, &[]) >= searched, "it was never closed");
    assert!(opened(false, &[0]) < searched / 8);
    rig.sim.crash();
    assert!(opened(true, &[0, 1]) >= searched, "it was not closed again");
    rig.sim.crash();
    // The last entry, of which no later one says that it was durable.
    let last = 8192 + SHAPE.ring_at() + 4 * BLOCK_BYTES as u64;
    for disk in &rig.disks {
        disk.inject(FaultKind::BitRot(kura_sim::Place::Range(last..last + BLOCK_BYTES as u64), 40));
    }
    assert_eq!(rig.sim.block_on(rig.scan(&[])).map(drop).unwrap_err().kind(), Kind::Corrupt);
}

/// Others fill the file system that a copy lies on.
#[test]
fn a_copy_without_space_is_waited_for_and_not_for_ever() {
    let rig = Rig::new(10, 2);
    rig.sim.block_on(async {
        let (journal, _) = rig.open(&[], false).await.unwrap();
        for (number, lasts, lives) in [(0, Duration::from_secs(2), true), (1, Duration::MAX, false)] {
            rig.disks[1].inject(FaultKind::Full { lasts });
            put(&journal, number).await.unwrap();
            assert_eq!(journal.is_live(1), lives);
        }
    });
    rig.sim.crash();
    assert_eq!(rig.sim.block_on(rig.open(&[1], false)).unwrap().1, [0, 1]);
}
