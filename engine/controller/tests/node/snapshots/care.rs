//! What would take something from somebody is refused, and looked at where it happens: a client may come at any time.

use super::{BLOCK, Rig, check, device, read, settings, snapshot, volume, write};
use futures::future::join;
use kura_block::Kind;
use kura_controller::SnapshotSpec;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

const BLOCKS: usize = 16;

/// Lets all others have so many turns.
async fn turns(count: usize) {
    for _ in 0..count {
        let mut had = false;
        poll_fn(|context| {
            context.waker().wake_by_ref();
            if std::mem::replace(&mut had, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[test]
fn a_volume_that_a_client_opens_meanwhile_is_not_deleted() {
    let (mut stayed, mut gone) = (0, 0);
    for late in 0..40 {
        let rig = Rig::new(24);
        rig.run(settings(), async |node, controllers, _| {
            node.create_volume(volume("v", BLOCKS)).await.unwrap();
            let opens = async {
                turns(late).await;
                controllers[0].open_volume("v").ok()
            };
            let (deleted, opened) = join(node.delete_volume("v", false), opens).await;
            match opened {
                Some(device) => {
                    assert_eq!(deleted.map_err(|error| error.kind()), Err(Kind::Busy), "after {late} turns");
                    write(&*device, 0, &[1; BLOCK]).await;
                    stayed += 1;
                }
                None => {
                    deleted.unwrap();
                    gone += 1;
                }
            }
        });
    }
    assert!(stayed > 2 && gone > 2, "{stayed} stayed, {gone} are gone");
}

#[test]
fn a_volume_that_a_client_opens_meanwhile_is_not_rolled_back() {
    let (mut refused, mut rolled) = (0, 0);
    for late in 0..40 {
        let rig = Rig::new(24);
        rig.run(settings(), async |node, controllers, _| {
            node.create_volume(volume("v", BLOCKS)).await.unwrap();
            node.snapshot(vec![snapshot("v", "a")], 1).await.unwrap();
            write(&*device(controllers, "v"), 0, &[1; BLOCK]).await;
            let opens = async {
                turns(late).await;
                // One that is being rolled back is so for whoever comes now.
                let is_rolling = controllers[0].store().check_roll_back("v@a").is_err();
                (controllers[0].open_volume("v").unwrap(), is_rolling)
            };
            let (done, (device, was_rolling)) = join(node.roll_back("v@a", false), opens).await;
            assert_eq!(done.is_ok(), was_rolling, "after {late} turns");
            assert_eq!(read(&*device, 1).await[0], u8::from(!was_rolling), "after {late} turns");
            if was_rolling { rolled += 1 } else { refused += 1 }
        });
    }
    assert!(refused > 2 && rolled > 2, "{refused} were refused, {rolled} were rolled back");
}

/// A clone has nothing at home, however large it is.
#[test]
fn a_roll_back_of_a_clone_tells_how_far_it_is() {
    const MANY: usize = 512;
    let rig = Rig::new(24);
    rig.run(settings(), async |node, controllers, runtime| {
        node.create_volume(volume("v", MANY)).await.unwrap();
        node.snapshot(vec![SnapshotSpec { name: "c".into(), ..snapshot("v", "") }], 1).await.unwrap();
        for (byte, name) in [(1, "a"), (2, "b"), (3, "d")] {
            write(&*device(controllers, "c"), 0, &vec![byte; MANY * BLOCK]).await;
            node.snapshot(vec![snapshot("c", name)], 1).await.unwrap();
        }
        node.roll_back("c@a", false).await.unwrap();
        let mut told = Vec::new();
        while let Err(busy) = node.snapshot(vec![snapshot("c", "then")], 1).await {
            let text = busy.to_string();
            let share = text.split_once("rolled back, ").and_then(|(_, share)| share.split_once(" %"));
            told.push(share.expect(&text).0.parse::<u64>().expect(&text));
            runtime.sleep(Duration::from_micros(100)).await;
        }
        assert!(told.is_sorted() && told[told.len() / 2] > 0 && told[told.len() - 1] <= 100, "{told:?}");
        assert!(read(&*device(controllers, "c"), MANY).await.iter().all(|byte| *byte == 1));
    });
}

#[test]
fn what_is_read_only_keeps_its_size() {
    let rig = Rig::new(24);
    rig.run(settings(), async |node, _, _| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        node.snapshot(vec![SnapshotSpec { read_only: true, ..snapshot("v", "fixed") }, snapshot("v", "free")], 1)
            .await
            .unwrap();
        let size_bytes = (2 * BLOCKS * BLOCK) as u64;
        let resized = node.resize_volume("v@fixed", size_bytes, false).await.map(drop);
        assert_eq!(resized.map_err(|error| error.kind()), Err(Kind::ReadOnly));
        assert_eq!(node.find("v@fixed").await.unwrap().1.spec.size_bytes, size_bytes / 2);
        for name in ["v@free", "v"] {
            node.resize_volume(name, size_bytes, false).await.unwrap();
        }
        check(node).await;
    });
}
