//! What a check finds and mends.

use super::{BLOCK, GROUP, Rig, block, check, create, hot_rig, reads, write};
use kura_block::{Block, Buf, DeviceId, Progress, Runtime};
use kura_controller::{Check, Controller, Layout, Settings};
use kura_sim::{FaultKind, FaultPlan, Place};
use rand::RngExt;
use std::time::Duration;

/// What leaves the write buffer while its copies are read is no loss.
#[test]
fn a_check_beside_a_writer_finds_nothing() {
    let rig = Rig::new(2, 8, 64 << 10, Settings { write_buffer_bytes: 256 << 10, ..Settings::default() });
    for (disk, times) in rig.disks[2..].iter().zip([3, 40]) {
        disk.inject(FaultKind::Slow { times, lasts: Duration::MAX });
    }
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", 256, Layout::Mirror).await;
        for block in 0..256 {
            write(&*device, block, 1).await.unwrap();
        }
        let mut rng = rig.sim.rng("writes");
        let writes = async {
            for turn in 0..4000 {
                write(&*device, rng.random_range(0..256), turn as u8).await.unwrap();
                runtime.sleep(Duration::from_micros(20)).await;
            }
        };
        let checks = async {
            for _ in 0..20 {
                assert_eq!(check(controller).await, 0, "what is on its way is not bad");
            }
        };
        futures::future::join(writes, checks).await;
    });
}

/// More is bad on a disk than the journal holds: one check mends all of it, and waits for room where there is none.
#[test]
fn a_check_mends_more_than_the_journal_holds() {
    for layout in [Layout::Mirror, Layout::Raid5, Layout::HotMirror, Layout::Floating] {
        let rig = Rig::new(4, 40, 64 << 10, Settings { write_buffer_bytes: 256 << 10, ..Settings::default() });
        rig.run(async |controller, _| {
            let device = create(controller, "v", 10240, layout).await;
            for at in 0..640 {
                device.write(at << 16, Buf::copy_of(&vec![1; 16 * BLOCK]).into(), false).await.unwrap();
            }
            controller.store().stop().await.unwrap();
        });
        let disk = &rig.disks[2];
        let bad = rig.sim.block_on(async {
            let (device, mut bad) = (disk.open(), 0);
            for at in (0..40 << 20).step_by(BLOCK) {
                if disk.at_rest(at, BLOCK) == [1; BLOCK] {
                    device.write(at, Buf::copy_of(&[9; BLOCK]).into(), true).await.unwrap();
                    bad += 1;
                }
            }
            bad
        });
        assert!(bad as usize * BLOCK > 8 << 20, "{layout:?}: {bad} blocks are less than the journal holds");
        rig.sim.crash();
        rig.run(async |controller, _| {
            assert_eq!(check(controller).await, bad, "{layout:?}");
            assert_eq!(check(controller).await, 0, "{layout:?}: a check left something to the next");
        });
    }
}

/// What is bad on a disk is found although another one leaves meanwhile, and every group is on its way to a third.
#[test]
fn a_check_beside_a_rebuild_leaves_no_group_out() {
    let settings = Settings { raid_width: Some(4), rebuild_width: 64, ..Settings::default() };
    let rig = Rig::new(5, 32, 64 << 10, settings);
    rig.run(async |controller, _| {
        let device = create(controller, "v", 1536, Layout::Raid5).await;
        for at in 0..96 {
            device.write(at << 16, Buf::copy_of(&vec![1; 16 * BLOCK]).into(), false).await.unwrap();
        }
        controller.store().stop().await.unwrap();
    });
    let disk = &rig.disks[3];
    let bad = rig.sim.block_on(async {
        let (device, mut bad) = (disk.open(), 0);
        for at in (0..32 << 20).step_by(BLOCK).filter(|at| disk.at_rest(*at, BLOCK) == [1; BLOCK]) {
            device.write(at, Buf::copy_of(&[9; BLOCK]).into(), true).await.unwrap();
            bad += 1;
        }
        bad
    });
    rig.sim.crash();
    rig.run(async |controller, runtime| {
        let checks = async {
            let found = check(controller).await;
            assert!(controller.store().unwanted().contains_key(&DeviceId(2)), "the check was over before the rebuild");
            found
        };
        let leaves = async {
            runtime.sleep(Duration::from_millis(5)).await;
            controller.store().leave_disk(DeviceId(2)).await.unwrap();
        };
        assert_eq!(futures::future::join(checks, leaves).await.0, bad);
        assert_eq!(check(controller).await, 0);
    });
}

/// Power cuts in one test.
const CRASHES: u64 = 6;
/// Blocks of which every second one has left its home for the hot area.
const AGAIN: usize = 512;

/// A volume of four groups in which the homes that hot blocks have left hold 2, the hot blocks 3 and all others 1; so many disks read
/// these homes no more.
fn homes_that_are_nobodys(bad: usize) -> Rig {
    let rig = Rig::new(6, 80, 4 << 20, Settings { raid_width: Some(5), ..Settings::default() });
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", 4 * GROUP, Layout::HotMirror).await;
        for at in 0..4 * GROUP {
            // More than the hot area holds: the first ones go to their stripes.
            write(&*device, at, if at < AGAIN && at % 2 == 0 { 2 } else { 1 }).await.unwrap();
        }
        controller.store().checkpoint().await.unwrap();
        runtime.sleep(Duration::from_secs(10)).await;
        for at in (0..AGAIN).step_by(2) {
            write(&*device, at, 3).await.unwrap();
        }
        controller.store().stop().await.unwrap();
    });
    for disk in &rig.disks[2..2 + bad] {
        for at in (0..80 << 20).step_by(BLOCK).filter(|at| disk.at_rest(*at, BLOCK) == [2; BLOCK]) {
            disk.inject(FaultKind::ReadError(Place::Range(at..at + BLOCK as u64)));
        }
    }
    rig
}

/// Checks as often as a disk is asked for what it refuses to read; how many blocks were written again.
async fn check_until_given_up(controller: &Controller, runtime: &dyn Runtime) -> u64 {
    let mut repaired = 0;
    for _ in 0..9 {
        repaired += controller.store().check(Check::Repair).await.unwrap().repaired;
        runtime.sleep(Duration::from_secs(11)).await;
    }
    repaired
}

/// Places that hot blocks have left are nobody's, but the parity of their rows counts on them: a check mends those that their disks
/// no longer read, as the next disk to fail takes blocks whose rows must tell them. One of a row, or two.
#[test]
fn a_check_mends_what_only_parity_counts_on() {
    for bad in [1, 2] {
        let rig = homes_that_are_nobodys(bad);
        rig.run(async |controller, runtime| {
            let repaired = check_until_given_up(controller, runtime).await;
            assert!(repaired > 0, "{bad}: nothing of what is read no longer was found");
            assert_eq!(check(controller).await, 0, "{bad}");
            controller.store().stop().await.unwrap();
        });
        rig.disks[5].inject(FaultKind::Dead);
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            for at in 0..4 * GROUP {
                let byte = if at < AGAIN && at % 2 == 0 { 3 } else { 1 };
                assert!(reads(&*device, at, byte).await, "{bad}: block {at}");
            }
        });
    }
}

/// The power goes while such places are written anew, and others of their rows by a client, with records of what was there before.
#[test]
fn every_crash_point_of_mending_what_only_parity_counts_on_is_survived() {
    let run = |crash: Option<u64>| {
        let rig = homes_that_are_nobodys(2);
        let before = rig.sim.operations();
        if let Some(crash) = crash {
            rig.cut_power_at(crash);
        }
        rig.run(async |controller, runtime| {
            let device = controller.open_volume("v").unwrap();
            let writes = async {
                for at in (1..AGAIN).step_by(2) {
                    write(&*device, at, 4).await.unwrap();
                    runtime.sleep(Duration::from_millis(200)).await;
                }
            };
            futures::future::join(check_until_given_up(controller, runtime), writes).await;
        });
        let operations = rig.sim.operations() - before;
        rig.sim.set_plan(&FaultPlan::default());
        rig.run(async |controller, runtime| {
            check_until_given_up(controller, runtime).await;
            controller.store().stop().await.unwrap();
        });
        rig.disks[5].inject(FaultKind::Dead);
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            for at in 0..2 * AGAIN {
                let found = block(&*device, at).await;
                let is_one_of = |bytes: &[u8]| bytes.iter().any(|byte| found == [*byte; BLOCK]);
                let may: &[u8] = match at % 2 {
                    _ if at >= AGAIN => &[1],
                    0 => &[3],
                    _ => &[1, 4],
                };
                assert!(is_one_of(may), "crash at {crash:?}: block {at} is {}", found[0]);
            }
        });
        operations
    };
    let operations = run(None);
    for crash in (1..=operations).step_by((operations / CRASHES).max(1) as usize) {
        run(Some(crash));
    }
}

/// Both copies of a page of the hot area are as they were before: what went there since lies nowhere, and a check says of each block
/// that it does.
#[test]
fn a_check_finds_what_has_no_place() {
    let rig = hot_rig();
    let pages = || {
        let all = rig.disks[2..].iter().flat_map(|disk| (0..80 << 20).step_by(BLOCK).map(move |at| (disk, at)));
        all.map(|(disk, at)| (disk, at, disk.at_rest(at, 2 * BLOCK))).filter(|(.., page)| page.starts_with(b"KuHP"))
    };
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", GROUP, Layout::HotMirror).await;
        write(&*device, 0, 7).await.unwrap();
        runtime.sleep(Duration::from_secs(1)).await;
        write(&*device, 0, 8).await.unwrap();
        controller.store().stop().await.unwrap();
    });
    let before: Vec<_> = pages().collect();
    rig.run(async |controller, _| {
        let device = controller.open_volume("v").unwrap();
        for at in 100..164 {
            write(&*device, at, 9).await.unwrap();
        }
        controller.store().stop().await.unwrap();
    });
    rig.sim.block_on(async {
        for (disk, at, page) in before {
            disk.open().write(at, Buf::copy_of(&page).into(), true).await.unwrap();
        }
    });
    rig.sim.crash();
    rig.run(async |controller, _| {
        let report = controller.store().check(Check::Repair).await.unwrap();
        assert!(report.violations.iter().all(|line| line.contains(": lost: it has a checksum, and no place")));
        assert_eq!(told(&report.violations).0, (100..164).collect::<Vec<_>>());
        let device = controller.open_volume("v").unwrap();
        assert!(device.read(100 * BLOCK as u64, BLOCK).await.is_err());
        assert!(reads(&*device, 0, 8).await);
    });
}

/// Few pages are kept in memory: one that comes for a check, and for a read at the same time, may be gone again when it is looked at.
#[test]
fn a_check_beside_reads_has_its_pages() {
    let rig = Rig::new(2, 80, 64 << 10, Settings { pages: 2, ..Settings::default() });
    rig.run(async |controller, _| {
        let device = create(controller, "v", 64 * 16, Layout::Mirror).await;
        for extent in 0..64 {
            write(&*device, extent * 16, 1).await.unwrap();
        }
        let reads = (0..16).map(|reader| {
            let device = &device;
            async move {
                for turn in 0..400 {
                    assert!(reads(&**device, (reader * 7 + turn * (reader + 1)) % 64 * 16, 1).await);
                }
            }
        });
        let checks = async {
            for _ in 0..10 {
                check(controller).await;
            }
        };
        futures::future::join(futures::future::join_all(reads), checks).await;
    });
}

/// The blocks of volume `v` that lines tell of, in order, and how many more they only count.
fn told(lines: &[String]) -> (Vec<usize>, usize) {
    let (mut blocks, mut more) = (Vec::new(), 0);
    for line in lines {
        let words: Vec<_> = line.split([' ', ':']).collect();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        match words[..] {
            ["volume", "v", "block", ..] => blocks.push(number(3)),
            ["volume", "v", "blocks", _, "to", ..] => blocks.extend(number(3)..=number(5)),
            ["controller", ..] => more += number(3),
            _ => panic!("{line}"),
        }
    }
    blocks.sort_unstable();
    (blocks, more)
}

/// More is lost than anybody reads: neighbours share a line, and where there are too many lines the others are counted.
#[test]
fn what_is_lost_is_told_in_few_lines() {
    let rig = Rig::new(2, 48, 64 << 10, Settings::default());
    let lost = |at: &usize| *at < 512 || at.is_multiple_of(2);
    rig.run(async |controller, _| {
        let device = create(controller, "v", 4096, Layout::Mirror).await;
        for first in (0..4096).step_by(16) {
            let data: Vec<_> = (first..first + 16).flat_map(|at| [1 + u8::from(lost(&at)); BLOCK]).collect();
            device.write((first * BLOCK) as u64, Buf::copy_of(&data).into(), false).await.unwrap();
        }
        controller.store().stop().await.unwrap();
    });
    rig.sim.block_on(async {
        for disk in &rig.disks[2..] {
            let device = disk.open();
            for at in (0..48 << 20).step_by(BLOCK).filter(|at| disk.at_rest(*at, BLOCK) == [2; BLOCK]) {
                device.write(at, Buf::copy_of(&[9; BLOCK]).into(), true).await.unwrap();
            }
        }
    });
    rig.sim.crash();
    rig.run(async |controller, _| {
        let report = controller.store().check(Check::Verify).await.unwrap();
        assert!(report.violations.len() < 1100, "{} lines", report.violations.len());
        let (mut blocks, more) = told(&report.violations);
        // Of each both copies are bad.
        let all: Vec<_> = (0..4096).filter(lost).collect();
        assert_eq!(blocks.len() + more, 2 * all.len());
        blocks.dedup();
        assert!(blocks.len() > 750 && blocks[..] == all[..blocks.len()], "{blocks:?}");
    });
}

/// A check that is cancelled ends where it stands.
#[test]
fn a_check_that_is_cancelled_looks_at_nothing_more() {
    let rig = hot_rig();
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", GROUP, Layout::HotMirror).await;
        for turn in 0..3 {
            write(&*device, 0, turn).await.unwrap();
            runtime.sleep(Duration::from_secs(1)).await;
        }
        controller.store().checkpoint().await.unwrap();
        runtime.sleep(Duration::from_secs(5)).await;
        let progress = Progress::default();
        progress.cancel();
        let before = rig.sim.operations();
        controller.store().check_along(Check::Verify, &progress).await.unwrap();
        let looked = rig.sim.operations() - before;
        controller.store().check_along(Check::Verify, &Progress::default()).await.unwrap();
        let all = rig.sim.operations() - before - looked;
        assert!(looked < 30 && all > 3 * looked, "{looked} of {all} operations");
    });
}

/// A block is written while a check is under way. Its place has rotted since the last version went there, and so has its parity: what
/// lies there is nobody's by then, and its row is made whole.
#[test]
fn an_old_place_that_is_bad_is_no_loss_while_the_block_is_in_the_buffer() {
    let rig = Rig::new(3, 48, 64 << 10, Settings { chunk_blocks: 4, ..Settings::default() });
    rig.run(async |controller, _| {
        let first = create(controller, "first", 512, Layout::Mirror).await;
        for at in 0..512 {
            write(&*first, at, 250).await.unwrap();
        }
        let device = create(controller, "v", 32, Layout::Raid5).await;
        for at in 0..32 {
            write(&*device, at, 1 + at as u8).await.unwrap();
        }
        controller.store().stop().await.unwrap();
    });
    rig.sim.block_on(async {
        // Blocks 0 and 4 are of one row.
        for disk in &rig.disks[2..] {
            let device = disk.open();
            for at in (0..48 << 20).step_by(BLOCK) {
                if [1, 1 ^ 5].iter().any(|byte| disk.at_rest(at, BLOCK) == [*byte; BLOCK]) {
                    device.write(at, Buf::copy_of(&[99; BLOCK]).into(), true).await.unwrap();
                }
            }
        }
    });
    rig.sim.crash();
    rig.run(async |controller, runtime| {
        let device = controller.open_volume("v").unwrap();
        let progress = Progress::default();
        let writes = async {
            while progress.counts().0 == 0 {
                runtime.sleep(Duration::from_micros(50)).await;
            }
            write(&*device, 0, 200).await.unwrap();
        };
        let checks = async {
            let report = controller.store().check_along(Check::Repair, &progress).await.unwrap();
            assert!(report.violations.is_empty() && report.repaired > 0, "{report:#?}");
        };
        futures::future::join(writes, checks).await;
        assert_eq!(check(controller).await, 0);
        assert!(reads(&*device, 0, 200).await && reads(&*device, 4, 5).await);
    });
}
