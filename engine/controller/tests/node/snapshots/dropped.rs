//! A full pool that drops snapshots, for whichever of its controllers finds it full.
//!
//! What must hold: the pool's oldest snapshot goes that may, whosever it is and whoever wants room, and no newer one before it; a
//! write is refused only where no controller has one; with fixed shares each controller drops its own; two that find the pool full
//! at once, a controller that stops and a client that leaves keep nobody waiting and leave nothing by halves.

use super::discard::fill;
use super::full::{owner, tries};
use super::{BLOCK, Rig, check, device, read, settings, snapshot, volume, write};
use futures::future::{join, join_all, select};
use kura_block::{Kind, Runtime};
use kura_controller::{Controller, Node, Settings, Sharing, VolumeSpec, WhenFull};
use kura_sim::FaultKind;
use std::rc::Rc;
use std::time::Duration;

const BLOCKS: usize = 128;
/// Blocks of a group.
const GROUP: usize = 16;
const SNAPSHOTS: u8 = 6;
/// Longer than anything here may take.
const LONG: Duration = Duration::from_mins(1);

fn dropping(sharing: Sharing) -> Settings {
    Settings { when_full: WhenFull::DropOldest, sharing, ..settings() }
}

/// Whether it is done before this time has passed; if not, whoever asked for it leaves.
async fn within<T>(work: impl Future<Output = T>, runtime: &dyn Runtime, long: Duration) -> Option<T> {
    match select(std::pin::pin!(work), runtime.sleep(long)).await {
        futures::future::Either::Left((done, _)) => Some(done),
        futures::future::Either::Right(_) => None,
    }
}

/// A full pool: `v` and `w` of controllers 0 and 1, those of `with` with snapshots that were made at the times 0, 1 and so on, each of
/// them overwritten after each; `x` and `y`, of 0 and 1, have nothing yet.
fn full(rig: &Rig, sharing: Sharing, with: &[&str]) {
    rig.run(Settings { sharing, ..settings() }, async |node, controllers, _| {
        for name in ["v", "w", "x", "y"] {
            node.create_volume(volume(name, BLOCKS)).await.unwrap();
        }
        for (name, id) in [("v", 0), ("w", 1), ("x", 0), ("y", 1)] {
            assert_eq!(owner(controllers, name).id().0, id, "{name}");
        }
        for number in 0..=SNAPSHOTS {
            for name in with {
                write(&*device(controllers, name), 0, &vec![number + 1; BLOCKS * BLOCK]).await;
            }
            if number < SNAPSHOTS {
                let wanted = with.iter().map(|name| snapshot(name, &number.to_string())).collect();
                node.snapshot(wanted, number.into()).await.unwrap();
            }
        }
        fill(node).await;
    });
}

/// The snapshots of these volumes, oldest first.
fn in_turn(with: &[&str]) -> Vec<String> {
    (0..SNAPSHOTS).flat_map(|number| with.iter().map(move |name| format!("{name}@{number}"))).collect()
}

async fn names(node: &Node) -> Vec<String> {
    node.volumes().await.unwrap().into_iter().map(|volume| volume.spec.name).collect()
}

/// How many of these are gone; those that are left are the newest, and what they were.
async fn gone(node: &Node, controllers: &[Rc<Controller>], in_turn: &[String]) -> usize {
    let there = names(node).await;
    let gone = in_turn.iter().take_while(|name| !there.contains(name)).count();
    for name in &in_turn[gone..] {
        assert!(there.contains(name), "{name} went before {}: {there:?}", in_turn[gone]);
        let number = name.split_once('@').unwrap().1.parse::<u8>().unwrap();
        let read = read(&*device(controllers, name), BLOCKS).await;
        assert!(read.iter().all(|byte| *byte == number + 1), "{name}");
    }
    gone
}

#[test]
fn a_controller_without_snapshots_has_those_of_another_dropped() {
    for sharing in Sharing::ALL.into_iter().filter(|sharing| *sharing != Sharing::Aggregate) {
        let (rig, all) = (Rig::new(24), in_turn(&["v"]));
        full(&rig, sharing, &["v"]);
        rig.run(dropping(sharing), async |node, controllers, _| {
            for group in 0..BLOCKS / GROUP {
                let written = tries(&*device(controllers, "w"), group * GROUP).await;
                assert_eq!(written, Ok(()), "{sharing}, group {group}");
            }
            let dropped = gone(node, controllers, &all).await;
            assert!((1..all.len()).contains(&dropped), "{sharing}: {dropped} are gone");
            check(node).await;
        });
        rig.run(settings(), async |node, controllers, _| {
            gone(node, controllers, &all).await;
            for group in 0..BLOCKS / GROUP {
                let read = device(controllers, "w").read((group * GROUP * BLOCK) as u64, BLOCK).await.unwrap();
                assert!(read.contiguous().iter().all(|byte| *byte == 9), "{sharing}, group {group}");
            }
            check(node).await;
        });
    }
}

/// Where none may go the write is refused, and no other controller's either.
#[test]
fn a_write_is_refused_when_no_controller_has_a_snapshot_that_may_go() {
    let rig = Rig::new(24);
    full(&rig, Sharing::Lease, &["v"]);
    rig.run(dropping(Sharing::Lease), async |node, controllers, _| {
        let all = in_turn(&["v"]);
        let open: Vec<_> = all.iter().map(|name| device(controllers, name)).collect();
        assert_eq!(tries(&*device(controllers, "w"), 0).await, Err(Kind::Full));
        assert_eq!(gone(node, controllers, &all).await, 0);
        drop(open);
        assert_eq!(tries(&*device(controllers, "w"), 0).await, Ok(()));
        check(node).await;
    });
}

/// A copy's newest point, say: what is spared stays wherever its volume goes, and only that.
#[test]
fn a_snapshot_that_is_spared_stays() {
    let rig = Rig::new(24);
    full(&rig, Sharing::Lease, &["v"]);
    rig.run(dropping(Sharing::Lease), async |node, controllers, _| {
        let all = in_turn(&["v"]);
        node.spare(&all.iter().cloned().collect()).await.unwrap();
        for (name, to) in [("w", 1), ("x", 0)] {
            assert_eq!(tries(&*device(controllers, name), 0).await, Err(Kind::Full), "{name}");
            assert_eq!(gone(node, controllers, &all).await, 0);
            node.move_volume("v", to).await.unwrap();
        }
        node.spare(&all[..1].iter().cloned().collect()).await.unwrap();
        assert_eq!(tries(&*device(controllers, "w"), 0).await, Ok(()));
        assert!(names(node).await.contains(&all[0]));
        assert!(gone(node, controllers, &all[1..]).await > 0);
        check(node).await;
    });
}

#[test]
fn a_pool_that_refuses_asks_nobody() {
    let rig = Rig::new(24);
    full(&rig, Sharing::Lease, &["v"]);
    rig.run(settings(), async |node, controllers, _| {
        assert_eq!(tries(&*device(controllers, "w"), 0).await, Err(Kind::Full));
        assert_eq!(gone(node, controllers, &in_turn(&["v"])).await, 0);
    });
}

/// With fixed shares what another controller gives up is no use.
#[test]
fn with_fixed_shares_a_controller_drops_its_own() {
    let rig = Rig::new(24);
    rig.run(dropping(Sharing::Aggregate), async |node, controllers, _| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        node.create_volume(volume("w", 8192)).await.unwrap();
        for (at, name) in ["v", "w"].into_iter().enumerate() {
            write(&*device(controllers, name), 0, &vec![1; BLOCKS * BLOCK]).await;
            node.snapshot(vec![snapshot(name, "a")], at as u64).await.unwrap();
        }
        let mut group = 0;
        while tries(&*device(controllers, "w"), group * GROUP).await.is_ok() {
            group += 1;
        }
        assert!(group < 8192 / GROUP, "its share is full");
        let there = names(node).await;
        assert!(there.contains(&"v@a".to_owned()) && !there.contains(&"w@a".to_owned()), "{there:?}");
        check(node).await;
    });
}

/// Those of one time go by their controllers; one that is open stays.
#[test]
fn the_oldest_of_all_controllers_goes_first() {
    for (sharing, opened) in Sharing::ALL.into_iter().skip(1).flat_map(|sharing| [(sharing, false), (sharing, true)]) {
        let (rig, with) = (Rig::new(24), ["v", "w"]);
        full(&rig, sharing, &with);
        rig.run(dropping(sharing), async |node, controllers, _| {
            let mut all = in_turn(&with);
            let open = opened.then(|| device(controllers, "v@0"));
            if opened {
                all.remove(0);
            }
            let mut before = 0;
            for group in 0..BLOCKS / GROUP {
                for name in ["y", "x"] {
                    assert_eq!(tries(&*device(controllers, name), group * GROUP).await, Ok(()), "{sharing}: {name}");
                    let now = gone(node, controllers, &all).await;
                    assert!(now >= before && now < all.len(), "{sharing}: {now} of {}", all.len());
                    before = now;
                }
            }
            assert!(before > 1, "{sharing}: {before}");
            assert_eq!(names(node).await.contains(&"v@0".to_owned()), opened);
            drop(open);
            check(node).await;
        });
    }
}

/// A thick volume takes its room at once: where all snapshots together would not make enough, none goes.
#[test]
fn no_snapshot_goes_for_a_volume_that_does_not_fit_without_any() {
    let (rig, with) = (Rig::new(24), ["v", "w"]);
    full(&rig, Sharing::Lease, &with);
    rig.run(dropping(Sharing::Lease), async |node, controllers, _| {
        let thick = |blocks| VolumeSpec { thick: true, ..volume("thick", blocks) };
        let refused = node.create_volume(thick(100 * BLOCKS)).await.map_err(|error| error.kind());
        assert_eq!(refused.map(drop), Err(Kind::Full));
        assert_eq!(gone(node, controllers, &in_turn(&with)).await, 0);
        node.create_volume(thick(GROUP)).await.unwrap();
        assert!(gone(node, controllers, &in_turn(&with)).await > 0);
        check(node).await;
    });
}

/// How many snapshots go for one write of each of these volumes, all at once or one after the other.
fn go_for(sharing: Sharing, writes: &[(&str, usize)], at_once: bool) -> usize {
    let (rig, with) = (Rig::new(24), ["v", "w"]);
    full(&rig, sharing, &with);
    rig.run(dropping(sharing), async |node, controllers, runtime| {
        let devices: Vec<_> = writes.iter().map(|(name, block)| (device(controllers, name), *block)).collect();
        if at_once {
            let all = join_all(devices.iter().map(|(device, block)| tries(&**device, *block)));
            let written = within(all, runtime, LONG).await.expect("nobody waits for ever");
            assert!(written.iter().all(Result::is_ok), "{sharing}: {written:?}");
        } else {
            for (device, block) in &devices {
                assert_eq!(tries(&**device, *block).await, Ok(()), "{sharing}");
            }
        }
        check(node).await;
        gone(node, controllers, &in_turn(&with)).await
    })
}

#[test]
fn one_drop_serves_all_controllers_that_wait_for_it() {
    for sharing in Sharing::ALL.into_iter().skip(1) {
        let writes: Vec<_> = (0..4).flat_map(|group| [("x", group * GROUP), ("y", group * GROUP)]).collect();
        let (one_by_one, at_once) = (go_for(sharing, &writes, false), go_for(sharing, &writes, true));
        assert!(at_once > 0 && at_once <= one_by_one, "{sharing}: {at_once} at once and {one_by_one} one by one");
    }
}

/// Both controllers have their hands full: clients overwrite what has snapshots, and others want room, for as long as there is any;
/// the journals' disks, or those of the data, answer nothing for a while.
#[test]
fn controllers_that_are_short_of_everything_wait_for_nobody_for_ever() {
    for (sharing, stalled) in
        Sharing::ALL.into_iter().flat_map(|sharing| [0..0, 0..2, 2..5].map(|disks| (sharing, disks)))
    {
        let (rig, with) = (Rig::new(24), ["v", "w"]);
        full(&rig, sharing, &with);
        rig.run(dropping(sharing), async |node, controllers, runtime| {
            for disk in &rig.disks[stalled] {
                disk.inject(FaultKind::Stall { lasts: Duration::from_secs(3) });
            }
            let work = ["v", "w", "x", "y"].into_iter().flat_map(|name| (0..4).map(move |part| (name, part)));
            let clients = work.map(|(name, part)| async move {
                for block in 0..BLOCKS / 4 {
                    let written = tries(&*device(controllers, name), part * BLOCKS / 4 + block).await;
                    assert!(written.is_ok() || written == Err(Kind::Full), "{sharing}: {name}: {written:?}");
                }
            });
            assert!(within(join_all(clients), runtime, LONG).await.is_some(), "{sharing}: they all wait");
            check(node).await;
        });
    }
}

/// A controller that stops has nothing that may go any more; who asks it hears so.
#[test]
fn a_controller_that_stops_keeps_nobody_waiting() {
    for late in [Duration::ZERO, Duration::from_micros(200), Duration::from_millis(1), Duration::from_millis(5)] {
        let rig = Rig::new(24);
        full(&rig, Sharing::Lease, &["v"]);
        rig.run(dropping(Sharing::Lease), async |_, controllers, runtime| {
            let stop = async {
                runtime.sleep(late).await;
                controllers[0].store().stop().await.unwrap();
            };
            let device = device(controllers, "w");
            let writes = async {
                for group in 0..BLOCKS / GROUP {
                    let written = tries(&*device, group * GROUP).await;
                    assert!(matches!(written, Ok(()) | Err(Kind::Full | Kind::Retry)), "{written:?}");
                }
            };
            assert!(within(join(stop, writes), runtime, LONG).await.is_some(), "after {late:?}");
        });
        rig.run(settings(), async |node, controllers, _| {
            gone(node, controllers, &in_turn(&["v"])).await;
            check(node).await;
        });
    }
}

/// The client of one controller leaves while another one drops a snapshot for it.
#[test]
fn a_client_that_leaves_cuts_no_drop_of_another_controller_in_half() {
    let (mut long, mut dropped) = (Duration::ZERO, 0);
    loop {
        let rig = Rig::new(24);
        full(&rig, Sharing::Lease, &["v"]);
        let answered = rig.run(dropping(Sharing::Lease), async |node, controllers, runtime| {
            let answered = within(tries(&*device(controllers, "w"), 0), runtime, long).await;
            runtime.sleep(Duration::from_secs(5)).await;
            let now = gone(node, controllers, &in_turn(&["v"])).await;
            if answered.is_none() && now > 0 {
                dropped += 1;
                // Its name is free.
                node.snapshot(vec![snapshot("v", "0")], 9).await.unwrap();
            }
            assert_eq!(tries(&*device(controllers, "w"), 0).await, Ok(()), "after {long:?}");
            check(node).await;
            answered.is_some()
        });
        if answered {
            break;
        }
        long += Duration::from_micros(100);
    }
    assert!(dropped > 2, "it left in the middle of {dropped}");
}
