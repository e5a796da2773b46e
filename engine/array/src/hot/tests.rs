//! The management table alone.

use crate::hot::{HotPage, HotSettings, HotTable, MirrorId, Owner};
use crate::layout::{Place, Places};
use kura_block::{DeviceId, ExtentId};

const SETTINGS: HotSettings = HotSettings { track_slots: 4, batch: 2, aged_tracks: 2, ..HotSettings::TODAY };

fn places(first: u16, second: u16) -> Places {
    [first, second].map(|device| Place { device: DeviceId(device), extent: ExtentId(0) }).into_iter().collect()
}

fn owner(block: u64) -> Owner {
    Owner { volume: 3 << 16 | 5, block }
}

/// Two tracks of four slots on one pair.
fn table() -> HotTable {
    let mut table = HotTable::new(1, SETTINGS, 8);
    table.add(10, places(0, 1), 0, None);
    table
}

const PAIR: (DeviceId, DeviceId) = (DeviceId(0), DeviceId(1));

#[test]
fn a_track_is_filled_before_the_next_and_never_a_slot_twice() {
    let mut table = table();
    let mut seen = Vec::new();
    while !table.take(PAIR, 2).iter().map(|id| seen.push(*id)).collect::<Vec<_>>().is_empty() {}
    assert_eq!(seen, (0..8).map(|slot| MirrorId { born: 10, slot }).collect::<Vec<_>>());
    assert_eq!(table.writable().count(), 0);
    for id in &seen[..2] {
        table.empty(*id);
    }
    assert_eq!(table.writable().collect::<Vec<_>>(), [(PAIR, 1)]);
}

#[test]
fn what_is_given_up_waits_for_the_tail() {
    let mut table = table();
    let ids = table.take(PAIR, 2);
    table.fill(ids[0], owner(1));
    table.fill(ids[1], owner(2));
    table.give_up(ids[0], 100);
    assert_eq!((table.owner(ids[0]), table.owner(ids[1])), (None, Some(owner(2))));
    assert!(!table.take(PAIR, 2).contains(&ids[0]), "a slot that a replay may read is not taken");
    table.tail_moved(99);
    assert_eq!(table.given_up(), 1);
    table.tail_moved(100);
    assert_eq!(table.given_up(), 0);
}

#[test]
fn what_is_given_up_at_rest_does_not_wait() {
    let mut table = table();
    let ids = table.take(PAIR, 2);
    table.fill(ids[0], owner(1));
    table.fill(ids[1], owner(2));
    table.give_up(ids[1], 100);
    table.give_up_at_rest(ids[0]);
    assert_eq!(table.writable().count(), 1, "not before the log is durable that says so");
    table.tail_moved(5);
    assert_eq!(table.given_up(), 1);
    assert_eq!(table.take(PAIR, 2), [ids[0], MirrorId { born: 10, slot: 2 }]);
}

/// A replay gives a slot up that came back at rest before the log ended, and was somebody's again.
#[test]
fn a_slot_that_is_somebodys_again_is_not_freed() {
    let mut table = table();
    let ids = table.take(PAIR, 2);
    table.fill(ids[0], owner(1));
    table.give_up(ids[0], 50);
    table.fill(ids[0], owner(2));
    table.tail_moved(50);
    assert_eq!(table.owner(ids[0]), Some(owner(2)));
    table.give_up(ids[0], 60);
    table.fill(ids[0], owner(3));
    table.give_up(ids[0], 70);
    table.tail_moved(60);
    assert_eq!(table.given_up(), 1);
    let free = table.take(PAIR, 2);
    assert!(!free.contains(&ids[0]), "it waits for the last record that gives it up");
}

#[test]
fn blocks_that_nobody_uses_grow_old_and_are_found() {
    let mut table = table();
    for block in 0..4 {
        let ids = table.take(PAIR, 2);
        table.fill(ids[0], owner(2 * block));
        table.fill(ids[1], owner(2 * block + 1));
    }
    assert!(table.cold(PAIR, 2, false).is_empty(), "all are young");
    for _ in 0..2 {
        table.grow_old(PAIR);
        table.touch(MirrorId { born: 10, slot: 0 });
        table.touch(MirrorId { born: 10, slot: 1 });
        table.touch(MirrorId { born: 10, slot: 2 });
    }
    let cold = table.cold(PAIR, 2, false);
    assert_eq!(cold, [4, 5].map(|slot| MirrorId { born: 10, slot }), "track 0 has too few cold ones");
    table.leave(10, true);
    assert_eq!(table.writable().count(), 0);
}

#[test]
fn a_page_says_who_has_the_slots() {
    let mut table = table();
    let ids = table.take(PAIR, 2);
    table.fill(ids[1], owner((1 << 38) - 1));
    let pages = table.take_dirty();
    assert!(table.take_dirty().is_empty());
    let (born, _, page) = &pages[0];
    let again = HotPage::decode(&page.encode(), (1, *born), 8).unwrap();
    assert_eq!(again, *page);
    assert_eq!(again.slots[1], Some(owner((1 << 38) - 1)));
    assert_eq!(again.slots.iter().flatten().count(), 1, "what is only being filled is nobody's");
    assert_eq!(HotPage::decode(&page.encode(), (1, 11), 8), None);
    assert_eq!(HotPage::decode(&page.encode(), (2, *born), 8), None, "another controller counts as well");
    let mut torn = page.encode().to_vec();
    torn[40] ^= 1;
    assert_eq!(HotPage::decode(&torn, (1, *born), 8), None);
}

/// Two places take turns: a page that was not written leaves the other one, which has what counts, alone.
#[test]
fn a_page_that_was_not_written_is_written_where_it_was_to_go() {
    let mut table = table();
    let ids = table.take(PAIR, 1);
    table.fill(ids[0], owner(1));
    let (born, _, first) = table.take_dirty().remove(0);
    table.fill(ids[0], owner(2));
    let second = table.take_dirty().remove(0).2;
    assert_eq!(second.sequence, first.sequence + 1);
    for _ in 0..3 {
        table.not_written(born);
        let again = table.take_dirty().remove(0).2;
        assert!(again.sequence > second.sequence && again.sequence % 2 == second.sequence % 2);
    }
}

#[test]
fn the_emptiest_extents_are_told() {
    let mut table = table();
    table.add(20, places(0, 1), 0, None);
    table.add(30, places(1, 2), 0, None);
    let all = |table: &HotTable| table.emptiest(|_| 0);
    let ids = table.take(PAIR, 2);
    assert!(!table.extent(10).unwrap().is_empty(), "slots that are being filled are in use");
    table.fill(ids[0], owner(1));
    table.fill(ids[1], owner(2));
    assert_eq!(all(&table), [20, 30, 10]);
    assert_eq!(table.emptiest(|_| 1), [20], "each pair keeps its fullest one");
    assert_eq!(table.emptiest(|pair| usize::from(pair == PAIR)), [20, 30]);
    table.leave(20, true);
    assert_eq!(all(&table), [30, 10]);
    table.leave(20, false);
    assert_eq!(all(&table), [20, 30, 10]);
    table.cool(ids[1]);
    table.give_up_at_rest(ids[0]);
    table.give_up_at_rest(ids[1]);
    assert!(!table.extent(10).unwrap().is_empty(), "a replay may read them");
    table.tail_moved(0);
    assert!(table.extent(10).unwrap().is_empty());
}
