use super::*;
use futures::executor::{LocalPool, block_on};
use futures::task::LocalSpawnExt;
use kura_block::Kind as Remedy;
use kura_snapshot::method::{Kind, Method};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn ids(numbers: &[u32]) -> Vec<EntryId> {
    numbers.iter().copied().map(EntryId).collect()
}

/// One that is done, however it ended: the others do not wait for one that panicked.
struct Done<'a>(&'a AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Takes entries until there are none and gives every seventh back, which somebody else may take; then answers the
/// others until all are done.
fn fill(kind: Kind, control: Control, controllers: usize, done: &AtomicUsize) -> Vec<EntryId> {
    let control = Rc::new(control);
    let mut pool = LocalPool::new();
    let method: Rc<dyn Method> = kind.method(control.clone(), controllers as u16);
    let attends = Rc::clone(&method);
    pool.spawner()
        .spawn_local(async move { while control.arrived().await.is_ok() && attends.attend().done().await.is_ok() {} })
        .unwrap();
    let is_done = Done(done);
    let taken = pool.run_until(async {
        let mut taken = Vec::new();
        for turn in 1_u32.. {
            match method.take().done().await {
                Ok(entry) => taken.push(entry),
                Err(error) if error.kind() == Remedy::Full => break,
                Err(error) => panic!("{error}"),
            }
            if turn.is_multiple_of(7)
                && let Some(entry) = taken.pop()
            {
                let region = Region { volume: 0, number: 0 };
                method.free(&[(region, entry)]).done().await.unwrap();
            }
        }
        taken
    });
    drop(is_done);
    while done.load(Ordering::Acquire) < controllers {
        pool.run_until_stalled();
        std::thread::sleep(Duration::from_micros(100));
    }
    taken
}

#[test]
fn controllers_on_threads_share_a_pool_to_the_last_entry() {
    const ENTRIES: u32 = 30_000;
    for kind in [Kind::Lease, Kind::AccessChange, Kind::Aggregate] {
        let tables = ControlTables::new(ENTRIES);
        let done = AtomicUsize::new(0);
        let controls: Vec<Control> = (0..3).map(|id| tables.join(ControllerId(id))).collect();
        let taken: Vec<Vec<EntryId>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                controls.into_iter().map(|control| scope.spawn(|| fill(kind, control, 3, &done))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let distinct: BTreeSet<EntryId> = taken.iter().flatten().copied().collect();
        assert_eq!(distinct.len(), taken.iter().map(Vec::len).sum::<usize>(), "{kind}: one was handed out twice");
        assert_eq!((distinct.len() as u32, tables.free()), (ENTRIES, 0), "{kind}");
    }
}

#[test]
fn a_batch_is_given_back_or_adopted_whole_or_not_at_all() {
    let tables = ControlTables::new(10);
    let [one, other] = [0, 1].map(|id| tables.join(ControllerId(id)));
    assert_eq!(block_on(one.take(4)).unwrap(), ids(&[0, 1, 2, 3]));
    for wrong in [&[0, 1, 7][..], &[0, 0], &[3, 10]] {
        assert_eq!(block_on(one.release(ids(wrong))).unwrap_err().kind(), Remedy::Invalid, "{wrong:?}");
        assert_eq!(tables.free(), 6, "{wrong:?}");
    }
    assert_eq!(block_on(other.release(ids(&[0]))).unwrap_err().kind(), Remedy::Invalid);
    for (from, wrong) in [(None, &[5, 3][..]), (None, &[5, 5]), (Some(ControllerId(7)), &[6, 0])] {
        let refused = block_on(other.adopt(from, ids(wrong))).unwrap_err();
        assert_eq!(refused.kind(), Remedy::Corrupt, "{refused}");
        assert_eq!(tables.free(), 6, "{wrong:?}");
    }
    // A volume moves: what it points at goes with it.
    block_on(other.adopt(Some(ControllerId(0)), ids(&[2, 3, 9]))).unwrap();
    assert_eq!(block_on(one.read_entry(EntryId(3))).unwrap(), PoolEntry::Held(ControllerId(1)));
    block_on(other.release(ids(&[2, 3, 9]))).unwrap();
    assert_eq!(tables.free(), 8);
    // So does what is common, but nobody claims it for himself.
    assert!(block_on(one.claim(EntryId(8))).unwrap());
    assert_eq!(block_on(other.adopt(None, ids(&[8]))).unwrap_err().kind(), Remedy::Corrupt);
    block_on(other.adopt(Some(ControllerId(0)), ids(&[8]))).unwrap();
    assert_eq!(block_on(one.read_entry(EntryId(8))).unwrap(), PoolEntry::Held(ControllerId(1)));
}

#[test]
fn who_was_expelled_is_refused_until_it_joins_again() {
    let tables = ControlTables::new(10);
    let [dead, heir] = [0, 1].map(|id| tables.join(ControllerId(id)));
    block_on(dead.take(3)).unwrap();
    block_on(heir.send(vec![ControllerId(0)], Message::GiveBack)).unwrap();
    block_on(heir.expel(ControllerId(0))).unwrap();
    let region = Region { volume: 1, number: 2 };
    let refusals = [
        block_on(dead.take(1)).unwrap_err(),
        block_on(dead.claim(EntryId(9))).unwrap_err(),
        block_on(dead.release(ids(&[0]))).unwrap_err(),
        block_on(dead.update_index(region, IndexEntry::Pvol, IndexEntry::Pool(EntryId(0)))).unwrap_err(),
        block_on(dead.send(vec![ControllerId(1)], Message::GiveBack)).unwrap_err(),
        block_on(dead.arrived()).unwrap_err(),
    ];
    assert!(refusals.iter().all(|refused| refused.kind() == Remedy::Fenced), "{refusals:?}");
    assert!(dead.receive().is_none() && heir.peers().is_empty());
    assert_eq!(heir.receive(), Some((ControllerId(0), Message::Gone)));
    assert_eq!(block_on(heir.read_index(region)).unwrap(), IndexEntry::Pvol);

    let again = tables.join(ControllerId(0));
    assert_eq!(block_on(again.take(1)).unwrap(), ids(&[3]), "what it held before is still held");
    assert_eq!(block_on(dead.take(1)).unwrap_err().kind(), Remedy::Fenced);
    assert_eq!(block_on(heir.reclaim(ControllerId(0))).unwrap_err().kind(), Remedy::Busy);
}

#[test]
fn an_index_entry_is_changed_only_from_what_it_is() {
    let tables = ControlTables::new(10);
    let [one, other] = [0, 1].map(|id| tables.join(ControllerId(id)));
    let region = Region { volume: 1, number: 2 };
    let [first, second] = [4, 5].map(|entry| IndexEntry::Pool(EntryId(entry)));
    assert_eq!(block_on(one.update_index(region, IndexEntry::Pvol, first)).unwrap(), first);
    assert_eq!(block_on(other.update_index(region, IndexEntry::Pvol, second)).unwrap(), first);
    assert_eq!(block_on(other.update_index(region, first, IndexEntry::Pvol)).unwrap(), IndexEntry::Pvol);
    assert!(block_on(one.claim(EntryId(4))).unwrap() && !block_on(other.claim(EntryId(4))).unwrap());
    block_on(other.release(ids(&[4]))).unwrap();
    assert!(block_on(other.claim(EntryId(4))).unwrap());
    assert_eq!(block_on(one.claim(EntryId(10))).unwrap_err().kind(), Remedy::Invalid);
}
