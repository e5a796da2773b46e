//! Disks that join.
//!
//! What must hold: wherever the power goes, and whichever controller cannot open it, a disk is one for all or for none; and what it had
//! before says nothing.

use super::{CONTROLLERS, POOL, Rig, failed, fill, holds, labelled, settle, tend};
use kura_block::{Block, DeviceId, Error, Runtime};
use kura_controller::{DiskClass, DiskState, Node};
use kura_sim::{CrashPoint, DiskSpec, FaultKind, FaultPlan, Outcome, SimDisk};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// The power goes while a disk joins: a start that takes it makes it known to all others, and its loss is one disk's.
#[test]
fn a_disk_whose_joining_was_cut_off_is_missed_like_any_other() {
    let mut joined = 0;
    for crash in 1.. {
        let rig = Rig::new();
        rig.fill();
        let added = rig.run(&POOL, async |node, _| {
            rig.sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(crash)], ..FaultPlan::default() });
            node.add_disk("slow9".into(), DiskClass::Slow, [99; 16]).await.unwrap();
        });
        rig.sim.set_plan(&FaultPlan::default());
        if added != Outcome::Crashed {
            break;
        }
        let names = labelled(&rig);
        if !names.contains(&"slow9") {
            continue;
        }
        joined += 1;
        let done = rig.run(&names, async |node, _| {
            for name in ["w0", "w1"] {
                fill(node, name, Rig::content(9)).await;
            }
            let disks = node.pool().await.unwrap().disks;
            let new = disks.iter().find(|disk| disk.uuid == [99; 16]).unwrap();
            assert!(new.free_bytes < new.data_bytes, "nothing lies there");
            node.stop().await.unwrap();
        });
        assert_eq!(done, Outcome::Done(()), "crash at {crash}");
        let done = rig.run(&POOL, async |node, _| {
            assert!(holds(node, "w0", Rig::content(9)).await && holds(node, "w1", Rig::content(9)).await);
        });
        assert_eq!(done, Outcome::Done(()), "crash at {crash}");
    }
    assert!(joined > 1, "{joined}");
}

/// A disk leaves, and the one that was to carry its journals fails before: why it stays is told, and it leaves when another can.
#[test]
fn a_disk_that_keeps_its_journals_says_why() {
    let rig = Rig::new();
    rig.fill();
    let done = rig.run(&POOL, async |node, runtime| {
        node.add_disk("fast9".into(), DiskClass::Fast, [98; 16]).await.unwrap();
        node.remove_disk(DeviceId(0)).await.unwrap();
        node.fail_disk(DeviceId(5), true).await.unwrap();
        tend(node, runtime, 50).await;
        let disks = node.pool().await.unwrap().disks;
        let says = disks[0].stalled.clone().unwrap_or_default();
        assert!(says.contains("disk 0 carries journals and no other disk has room"), "{says}");
    });
    assert_eq!(done, Outcome::Done(()));
    let another = rig.sim.disk("fast8", DiskSpec::nvme(18 << 20));
    let disks = [rig.disks.clone(), vec![another]].concat();
    let rig = Rig { disks, ..rig };
    let done = rig.run(&labelled(&rig), async |node, runtime| {
        node.add_disk("fast8".into(), DiskClass::Fast, [97; 16]).await.unwrap();
        for _ in 0..1000 {
            if node.pool().await.unwrap().disks.iter().all(|disk| disk.id != 0) {
                return;
            }
            for gone in node.tend().await.unwrap() {
                node.retire_disk(DeviceId(gone.id)).await.unwrap();
            }
            runtime.sleep(Duration::from_millis(10)).await;
        }
        panic!("it never leaves: {:#?}", node.pool().await.unwrap());
    });
    assert_eq!(done, Outcome::Done(()));
}

/// A disk that carried the pool's journals once comes again: what it has of them is no journal, from before it is named one.
#[test]
fn a_disk_that_joins_has_no_old_journal() {
    let rig = Rig::new();
    rig.fill();
    let [carrier, new] = ["fast0", "fast9"].map(|name| rig.disks.iter().find(|disk| disk.name() == name).unwrap());
    let roots = || (0..8 << 20).step_by(4096).filter(|at| new.at_rest(*at, 4) == *b"KuJR").count();
    rig.sim.block_on(async {
        let (from, to) = (carrier.open(), new.open());
        to.write(1 << 20, from.read(1 << 20, 16 << 20).await.unwrap(), true).await.unwrap();
    });
    assert!(roots() > 0);
    rig.run(&POOL, async |node, _| {
        node.add_disk("fast9".into(), DiskClass::Fast, [98; 16]).await.unwrap();
        assert_eq!(roots(), 0);
    });
}

/// A disk of the pool does not take the label that names a new one: it is the broken one, and the new one joins.
#[test]
fn a_disk_that_refuses_its_label_has_failed() {
    let rig = Rig::new();
    rig.fill();
    let names = ["fast0", "fast1", "slow0", "slow1", "slow2", "slow9"];
    let done = rig.run(&POOL, async |node, runtime| {
        rig.disks[3].inject(FaultKind::WriteError);
        let added = node.add_disk("slow9".into(), DiskClass::Slow, [99; 16]).await.unwrap();
        assert_eq!((added.id, failed(node).await), (5, vec![3]));
        tend(node, runtime, 3).await;
        for name in ["w0", "w1"] {
            fill(node, name, Rig::content(9)).await;
        }
    });
    assert_eq!(done, Outcome::Done(()));
    let done = rig.run(&names, async |node, _| {
        assert_eq!(failed(node).await, [3]);
        assert!(holds(node, "w0", Rig::content(9)).await && holds(node, "w1", Rig::content(9)).await);
    });
    assert_eq!(done, Outcome::Done(()));
    rig.verify(&names);
}

/// A disk that is to carry the journals takes very long to be filled for that: who fails, adds or removes another one does not wait
/// for it.
#[test]
fn a_disk_that_is_filled_for_journals_keeps_nobody_waiting() {
    let rig = Rig::new();
    rig.fill();
    let done = rig.run(&POOL, async |node, runtime| {
        node.add_disk("fast9".into(), DiskClass::Fast, [98; 16]).await.unwrap();
        node.remove_disk(DeviceId(0)).await.unwrap();
        let lasts = Duration::from_mins(10);
        rig.disks[5].inject(FaultKind::Slow { times: 5000, lasts });
        let begun = runtime.now();
        tend(node, runtime, 5).await;
        node.fail_disk(DeviceId(3), false).await.unwrap();
        tend(node, runtime, 5).await;
        assert!(runtime.now().saturating_sub(begun) < Duration::from_secs(2), "{:?}", runtime.now());
        let disks = node.pool().await.unwrap().disks;
        assert!(disks[5].lacks_journals() && disks[0].journals == CONTROLLERS, "{disks:#?}");
        runtime.sleep(lasts).await;
        tend(node, runtime, 100).await;
        let disks = node.pool().await.unwrap().disks;
        let carriers: Vec<_> = disks.iter().filter(|disk| disk.journals > 0).map(|disk| disk.id).collect();
        assert_eq!(carriers, [1, 5]);
    });
    assert_eq!(done, Outcome::Done(()));
}

/// A disk is taken out of service while it is being filled for the journals: it carries none in the end.
#[test]
fn a_disk_that_fails_while_it_is_filled_for_journals_carries_none() {
    let rig = Rig::new();
    rig.fill();
    let done = rig.run(&POOL, async |node, runtime| {
        node.add_disk("fast9".into(), DiskClass::Fast, [98; 16]).await.unwrap();
        node.fail_disk(DeviceId(0), false).await.unwrap();
        rig.disks[5].inject(FaultKind::Slow { times: 500, lasts: Duration::from_mins(1) });
        tend(node, runtime, 2).await;
        node.fail_disk(DeviceId(5), false).await.unwrap();
        tend(node, runtime, 1000).await;
        let disks = node.pool().await.unwrap().disks;
        let carriers: Vec<_> = disks.iter().filter(|disk| disk.journals > 0).map(|disk| disk.id).collect();
        assert_eq!(carriers, [1]);
    });
    assert_eq!(done, Outcome::Done(()));
}

/// A disk that one controller cannot open when it joins is one that failed, for all.
#[test]
fn a_disk_that_not_every_controller_can_open_has_failed() {
    for refused in 1..=u32::from(CONTROLLERS) {
        let rig = Rig::new();
        rig.fill();
        let runtime: Rc<dyn Runtime> = rig.sim.runtime();
        let (disks, opened) = (rig.disks.clone(), Rc::new(Cell::new(0)));
        let opener = move |name: &str| {
            if name == "slow9" && opened.replace(opened.get() + 1) == refused {
                return Err(Error::device("slow9: it does not open"));
            }
            SimDisk::opener(&disks)(name)
        };
        rig.sim.block_on(async {
            let node = Rig::node_with(opener, &POOL, &runtime).await;
            node.add_disk("slow9".into(), DiskClass::Slow, [99; 16]).await.unwrap();
            fill(&node, "w0", Rig::content(9)).await;
            fill(&node, "w1", Rig::content(9)).await;
            tend(&node, &*runtime, 3).await;
            let disks = node.pool().await.unwrap().disks;
            let ill: Vec<_> =
                disks.iter().filter(|disk| disk.state != DiskState::Healthy).map(|disk| disk.id).collect();
            assert_eq!(ill, [5]);
            assert!(holds(&node, "w0", Rig::content(9)).await && holds(&node, "w1", Rig::content(9)).await);
            node.stop().await.unwrap();
        });
        rig.sim.crash();
        let done = rig.run(&labelled(&rig), async |node, _| {
            assert!(holds(node, "w0", Rig::content(9)).await && holds(node, "w1", Rig::content(9)).await);
            assert_eq!(failed(node).await, [5]);
        });
        assert_eq!(done, Outcome::Done(()));
        rig.verify(&labelled(&rig));
    }
}

/// A pool of fast disks gets slow ones, of which the first is too few for a mirror: writes to new places go on, it may leave again, and
/// from the second on what is new lies on slow disks alone.
#[test]
fn one_slow_disk_beside_fast_ones_stops_nothing() {
    let sizes = [("fast0", 26), ("fast1", 26), ("slow0", 8), ("slow1", 8)];
    let rig = Rig::of(11, &sizes, 2..2);
    let names = sizes.map(|(name, _)| name);
    let used = async |node: &Node, disk: usize| node.pool().await.unwrap().disks[disk].used_bytes();
    let done = rig.run(&names[..2], async |node, runtime| {
        fill(node, "v0", Rig::content(0)).await;
        node.add_disk(names[2].into(), DiskClass::Slow, [98; 16]).await.unwrap();
        fill(node, "v1", Rig::content(1)).await;
        assert!(used(node, 2).await > 0, "it takes its part");
        node.remove_disk(DeviceId(2)).await.unwrap();
        settle(node, runtime).await;
        fill(node, "v2", Rig::content(2)).await;
        for (name, uuid) in [(names[2], [99; 16]), (names[3], [100; 16])] {
            node.add_disk(name.into(), DiskClass::Slow, uuid).await.unwrap();
        }
        let before = used(node, 0).await + used(node, 1).await;
        fill(node, "v3", Rig::content(3)).await;
        assert_eq!(used(node, 0).await + used(node, 1).await, before, "the fast ones take nothing new");
        let refused = node.remove_disk(DeviceId(3)).await.unwrap_err().to_string();
        assert!(refused.contains("1 disks of data would be left"), "{refused}");
    });
    assert_eq!(done, Outcome::Done(()));
    rig.verify(&names);
}
