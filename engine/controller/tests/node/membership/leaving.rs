//! Disks that leave.
//!
//! What must hold: no space is promised to two of them, and a controller that can note nothing any more keeps none of the others
//! from noting it.

use super::{CONTROLLERS, POOL, Rig, settle, tend};
use futures::future::{Either, select};
use kura_block::{Buf, DeviceId, Kind, Local, Result, Runtime};
use kura_controller::{Controller, DiskClass, DiskState, Door, Layout, Node, VolumeSpec};
use kura_sim::{Fault, FaultKind, FaultPlan, Outcome, When};
use std::rc::Rc;
use std::time::Duration;

/// Of six disks each is full to three quarters: what one holds fits on the others, and what two hold does not.
#[test]
fn what_moves_off_one_disk_is_not_free_for_another() {
    for fails in [false, true] {
        let names = ["fast0", "slow0", "slow1", "slow2", "slow3", "slow4", "slow5"];
        let rig = Rig::of(5, &names.map(|name| (name, if name == "fast0" { 18 } else { 16 })), 1..names.len());
        let done = rig.run(&names, async |node, _| {
            let size_bytes = (node.pool().await.unwrap().data_bytes / 8 * 3).next_multiple_of(1 << 20);
            let spec =
                VolumeSpec { name: "thick".into(), size_bytes, layout: Layout::Mirror, thick: true, read_only: false };
            node.create_volume(spec).await.unwrap();
            if fails {
                node.fail_disk(DeviceId(2), false).await.unwrap();
            } else {
                node.remove_disk(DeviceId(2)).await.unwrap();
            }
            let refused = node.remove_disk(DeviceId(3)).await.unwrap_err();
            assert_eq!(refused.kind(), Kind::Full, "{refused}");
            assert_eq!(node.pool().await.unwrap().disks[3].state, DiskState::Healthy);
            // Nothing more is promised to one that takes nothing already.
            node.remove_disk(DeviceId(2)).await.unwrap();
        });
        assert_eq!(done, Outcome::Done(()));
    }
}

/// A disk failed of which nothing is left: there is nothing to move, and the others need no room for it.
#[test]
fn what_is_lost_needs_no_room_elsewhere() {
    let names = ["fast0", "slow0", "slow1", "slow2"];
    let rig = Rig::of(5, &names.map(|name| (name, if name == "fast0" { 18 } else { 16 })), 1..names.len());
    let done = rig.run(&names, async |node, _| {
        let size_bytes = (node.pool().await.unwrap().data_bytes / 10 * 9) >> 20 << 20;
        let spec = VolumeSpec { name: "thick".into(), size_bytes, layout: Layout::None, thick: true, read_only: false };
        node.create_volume(spec).await.unwrap();
        assert_eq!(node.remove_disk(DeviceId(2)).await.unwrap_err().kind(), Kind::Full);
        node.fail_disk(DeviceId(2), true).await.unwrap();
        node.remove_disk(DeviceId(2)).await.unwrap();
    });
    assert_eq!(done, Outcome::Done(()));
}

/// The way to a controller, by a volume of its.
async fn door_of(node: &Node, controller: u16) -> Door {
    let volumes = node.volumes().await.unwrap();
    let own = volumes.iter().find(|volume| volume.controller == controller).unwrap();
    node.find(&own.spec.name).await.unwrap().0
}

/// The first controller's journal fails.
async fn lose_the_first_journal(rig: &Rig, node: &Node) {
    for controller in 0..CONTROLLERS {
        let checkpoint = |one: Rc<Controller>| -> Local<'static, Result<()>> {
            Box::pin(async move { one.store().checkpoint().await })
        };
        door_of(node, controller).await.call(checkpoint).await.unwrap().unwrap();
    }
    rig.sim.runtime().sleep(Duration::from_secs(3)).await;
    let fault = |disk: &str, op| Fault { disk: disk.into(), when: When::Op(op), what: FaultKind::WriteError };
    rig.sim.set_plan(&FaultPlan { faults: vec![fault("fast1", 1), fault("fast0", 2)], ..FaultPlan::default() });
    let drain = |one: Rc<Controller>| -> Local<'static, Result<()>> {
        Box::pin(async move { one.store().set_drained(true).await })
    };
    door_of(node, 0).await.call(drain).await.unwrap().unwrap_err();
    rig.sim.set_plan(&FaultPlan::default());
    assert!(node.controllers().await.unwrap()[0].failure.is_some());
}

/// The first controller, which alone writes labels, can note nothing any more; another one finds a disk dead.
#[test]
fn a_failed_journal_keeps_no_disk_from_joining_or_leaving() {
    let rig = Rig::new();
    rig.fill();
    let done = rig.run(&POOL, async |node, runtime| {
        lose_the_first_journal(&rig, node).await;
        rig.disks[3].inject(FaultKind::Dead);
        let find = |one: Rc<Controller>| -> Local<'static, ()> {
            Box::pin(async move {
                let own = one.volumes().remove(0);
                let device = one.open_volume(&own.spec.name).unwrap();
                let number: usize = own.spec.name[1..].parse().unwrap();
                device.write(0, Buf::copy_of(&Rig::content(number)).into(), true).await.unwrap();
                one.store().checkpoint().await.unwrap();
            })
        };
        door_of(node, 1).await.call(find).await.unwrap();
        assert_eq!(node.pool().await.unwrap().disks[3].state, DiskState::Failed);
        tend(node, runtime, 3).await;
        node.add_disk("slow9".into(), DiskClass::Slow, [99; 16]).await.unwrap();
        node.remove_disk(DeviceId(3)).await.unwrap();
        node.fail_disk(DeviceId(4), false).await.unwrap_or_else(|refused| {
            assert!(refused.to_string().contains("only copy"), "{refused}");
        });
    });
    assert_eq!(done, Outcome::Done(()));
    // The next start tells it what the others noted.
    let names = ["fast0", "fast1", "slow0", "slow2", "slow9"];
    let done = rig.run(&names, async |node, runtime| {
        settle(node, runtime).await;
        assert!(node.pool().await.unwrap().disks.iter().all(|disk| disk.id != 3));
    });
    assert_eq!(done, Outcome::Done(()));
    rig.verify(&names);
}

/// One controller meets an error of a disk that leaves: all are told that it has failed.
#[test]
fn a_disk_that_leaves_and_fails_has_failed_for_all() {
    let rig = Rig::new();
    rig.fill();
    let done = rig.run(&POOL, async |node, _| {
        node.remove_disk(DeviceId(3)).await.unwrap();
        let fail = |one: Rc<Controller>| -> Local<'static, Result<()>> {
            Box::pin(async move { one.store().fail_disk(DeviceId(3)).await })
        };
        door_of(node, 1).await.call(fail).await.unwrap().unwrap();
        node.tend().await.unwrap();
        for controller in 0..CONTROLLERS {
            let known = |one: Rc<Controller>| -> Local<'static, Vec<DeviceId>> {
                Box::pin(std::future::ready(one.store().failed_disks()))
            };
            assert_eq!(door_of(node, controller).await.call(known).await.unwrap(), [DeviceId(3)], "{controller}");
        }
    });
    assert_eq!(done, Outcome::Done(()));
}

/// A stop comes while another disk takes over the journals, at any moment of that: nobody waits for it, and the next start does it.
#[test]
fn a_stop_does_not_wait_for_journals_that_move() {
    let mut were_under_way = 0;
    for at in 0..12 {
        let rig = Rig::new();
        rig.fill();
        let done = rig.run(&POOL, async |node, runtime| {
            node.add_disk("fast9".into(), DiskClass::Fast, [98; 16]).await.unwrap();
            node.remove_disk(DeviceId(0)).await.unwrap();
            let moves = std::pin::pin!(settle(node, runtime));
            let stops = std::pin::pin!(runtime.sleep(Duration::from_millis(at)));
            let was_under_way = matches!(select(moves, stops).await, Either::Right(_));
            node.stop().await.unwrap();
            was_under_way
        });
        let Outcome::Done(was_under_way) = done else { panic!("{at} ms") };
        were_under_way += usize::from(was_under_way);
        let names = ["fast0", "fast1", "slow0", "slow1", "slow2", "fast9"];
        let done = rig.run(&names, async |node, runtime| settle(node, runtime).await);
        assert_eq!(done, Outcome::Done(()), "{at} ms");
        rig.verify(&names[1..]);
    }
    assert!(were_under_way > 2, "{were_under_way}");
}
