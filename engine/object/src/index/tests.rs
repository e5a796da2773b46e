//! The index against a plain map.

use super::{Index, Leaf};
use crate::known::{Extent, Known, Piece, UNVERSIONED};
use crate::object::Row;
use kura_sim::Sim;
use rand::RngExt;
use std::collections::BTreeMap;

fn known(version: u64, pieces: usize) -> Known {
    let piece = |at: usize| {
        let extent = Extent { block: at as u32 + 1, blocks: 255, crc: version as u32 };
        let is_hole = at.is_multiple_of(3);
        Piece { extent: (!is_hole).then_some(extent), from: if is_hole { 0 } else { 77 }, len: 1 << (at % 40) }
    };
    let pieces = (0..pieces).map(piece).collect();
    Known {
        version,
        revision: version + 3,
        flags: if version.is_multiple_of(2) { UNVERSIONED } else { 0 },
        tag: vec![7; version as usize % 64],
        place: version << 20,
        pieces,
        ..Known::default()
    }
}

/// The first version of the name that was put without `versioned`, but for that row.
fn unversioned(map: &BTreeMap<Row, Known>, name: &[u8], but: Option<&Row>) -> Option<(Row, Known)> {
    let own = map.range(Row::newest(name.to_vec())..).take_while(|(row, _)| row.name == name);
    let found = own.into_iter().find(|(row, known)| known.is_unversioned() && but != Some(*row));
    found.map(|(row, known)| (row.clone(), known.clone()))
}

/// A leaf says that it has such a version where it has one, and nowhere else.
fn assert_leaves_know(index: &Index) {
    for (first, leaf) in &index.leaves {
        let (mut walk, mut has) = (leaf.walk(), false);
        while let Some((_, known)) = walk.next_value().unwrap() {
            has |= known.is_unversioned();
        }
        assert_eq!(leaf.has_unversioned, has, "the leaf from {first} on");
    }
}

/// Of one, two, eight and more bytes as they are packed.
const VERSIONS: [u64; 6] = [1, 2, 300, (1 << 56) - 1, 1 << 56, u64::MAX - 3];

#[test]
fn random_edits_agree_with_a_map() {
    for seed in 0..20 {
        let mut rng = Sim::new(seed).rng("index");
        let (mut index, mut map) = (Index::new(), BTreeMap::new());
        for step in 0..6000 {
            let shared = "x".repeat(rng.random_range(0..3) * 300);
            let name = format!("{shared}{:03}", rng.random_range(0..200)).into_bytes();
            let row = Row::new(name, VERSIONS[rng.random_range(0..VERSIONS.len())]);
            // First it grows, then it shrinks; now and then a row is larger than a leaf.
            let grows = rng.random_bool(if step < 3000 { 0.8 } else { 0.2 });
            let pieces = if rng.random_bool(0.02) { 500 } else { rng.random_range(0..4) };
            let value = grows.then(|| known(row.version.0, pieces));
            let before = index.edit(&row, value.as_ref()).unwrap();
            let expected = match value {
                Some(value) => map.insert(row.clone(), value),
                None => map.remove(&row),
            };
            assert_eq!(before, expected);
            assert_eq!(
                index.seek(&row).unwrap(),
                map.range(&row..).next().map(|(row, known)| (row.clone(), known.clone()))
            );
            for but in [None, Some(&row)] {
                assert_eq!(index.unversioned(&row.name, but).unwrap(), unversioned(&map, &row.name, but));
            }
        }
        assert_leaves_know(&index);
        let mut all = Vec::new();
        index
            .scan(&Row::newest(Vec::new()), |row, known| {
                all.push((row, known));
                true
            })
            .unwrap();
        assert_eq!(all, map.clone().into_iter().collect::<Vec<_>>());
        assert_eq!(index.rows(), map.len() as u64);
        // Written out leaf by leaf and read again, it is the same.
        let (mut again, mut after) = (Index::new(), None);
        while let Some((last, leaf)) = index.leaf_after(after.as_ref()).unwrap() {
            again.push_leaf(Leaf::from_bytes(leaf.bytes())).unwrap();
            after = Some(last);
        }
        assert_eq!((again.rows(), again.bytes()), (index.rows(), index.bytes()));
        for (row, known) in &map {
            assert_eq!(again.get(row).unwrap().as_ref(), Some(known));
        }
        assert_leaves_know(&again);
    }
}

#[test]
fn of_very_many_versions_few_are_looked_at() {
    let row = |version: u64| Row::new(b"name".to_vec(), version);
    let mut index = Index::new();
    for other in [b"mine".to_vec(), b"name2".to_vec()] {
        index.edit(&Row::new(other, 8), Some(&known(8, 1))).unwrap();
    }
    for version in (2..100_000).filter(|version| *version == 2 || version % 2 == 1) {
        index.edit(&row(version), Some(&known(version, 1))).unwrap();
    }
    assert_leaves_know(&index);
    let all = index.leaves.len();
    // Whoever goes through one of these ends with an error.
    for leaf in index.leaves.values_mut().filter(|leaf| !leaf.has_unversioned) {
        *leaf = Leaf::from_bytes(&[0xff; 100]);
        leaf.has_unversioned = false;
    }
    let looked_at = index.leaves.values().filter(|leaf| leaf.has_unversioned).count();
    assert!(all > 1000 && looked_at <= 3, "{looked_at} of {all}");
    assert_eq!(index.unversioned(b"name", None).unwrap(), Some((row(2), known(2, 1))));
    assert_eq!(index.unversioned(b"name", Some(&row(2))).unwrap(), None);
    assert_eq!(index.unversioned(b"nam", None).unwrap(), None);
    assert_eq!(index.unversioned(b"name2", None).unwrap().unwrap().0.version.0, 8);
}

#[test]
fn leaves_go_with_their_rows_in_whatever_order_those_are_removed() {
    let row = |at: usize| Row::new(format!("{at:06}").into_bytes(), 7);
    let orders: [fn(usize) -> usize; 3] = [|at| at, |at| 19_999 - at, |at| at * 7919 % 20_000];
    for (number, order) in orders.into_iter().enumerate() {
        // A few rows stay, or none.
        for some_stay in [true, false] {
            let stays = |at: &usize| some_stay && at % 1000 == 1;
            let mut index = Index::new();
            for at in 0..20_000 {
                index.edit(&row(at), Some(&known(7, 1))).unwrap();
            }
            let before = index.leaves.len();
            for at in (0..20_000).map(order).filter(|at| !stays(at)) {
                index.edit(&row(at), None).unwrap().unwrap();
            }
            let (left, bytes) = (index.leaves.len(), index.leaves.values().map(|leaf| leaf.bytes().len() as u64).sum());
            assert!(before > 300 && left <= 3, "{before} leaves, {left} are left in order {number}");
            assert_eq!((index.bytes(), index.rows()), (bytes, if some_stay { 20 } else { 0 }));
            let mut rows = Vec::new();
            index
                .scan(&Row::newest(Vec::new()), |row, _| {
                    rows.push(row);
                    true
                })
                .unwrap();
            assert_eq!(rows, (0..20_000).filter(stays).map(row).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_leaf_between_full_ones_goes_with_its_last_row() {
    let row = |at: usize| Row::new(format!("{at:06}").into_bytes(), 7);
    let mut index = Index::new();
    // Leaves split in the middle as rows come in order; others between fill them.
    for at in (0..1000).step_by(2).chain((1..1000).step_by(4)) {
        index.edit(&row(at), Some(&known(7, 1))).unwrap();
    }
    let before = index.leaves.len();
    let firsts: Vec<Row> = index.leaves.keys().skip(before / 2).take(2).cloned().collect();
    let mut rows = Vec::new();
    index
        .scan(&firsts[0], |row, _| {
            let is_in = row < firsts[1];
            rows.extend(is_in.then_some(row));
            is_in
        })
        .unwrap();
    for row in rows {
        index.edit(&row, None).unwrap().unwrap();
    }
    assert_eq!(index.leaves.len(), before - 1);
}
