//! The index against a plain map.

use super::{Index, Leaf};
use crate::known::{Extent, Known, Piece};
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
        tag: vec![7; version as usize % 64],
        place: version << 20,
        pieces,
        ..Known::default()
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
        }
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
    }
}
