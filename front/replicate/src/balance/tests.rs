use super::*;
use proptest::prelude::*;

/// Paths, sizes and places of a made-up tree.
#[derive(Debug)]
struct Tree(Vec<(Vec<u8>, u64, u32)>);

impl Tree {
    fn items(&self) -> Vec<Item<'_>> {
        self.0.iter().map(|(path, size_bytes, place)| Item { path, size_bytes: *size_bytes, place: *place }).collect()
    }
}

fn trees() -> impl Strategy<Value = Tree> {
    let size = prop_oneof![Just(0), 0..100_000_u64, 1_000_000..50_000_000_u64, Just(3_000_000_000)];
    prop::collection::vec((prop::collection::vec(0..255_u8, 1..6), size, 0..9_u32), 0..200).prop_map(|files| {
        let path =
            |(name, size, place): (Vec<u8>, u64, u32)| ([&[b'a' + place as u8, b'/'], &*name].concat(), size, place);
        Tree(files.into_iter().map(path).collect())
    })
}

fn all(items: &[Item<'_>], workers: usize) -> [Lists; 3] {
    let cost = Cost::default();
    [
        by_count(items, workers, &cost),
        size_aware(items, workers, SizeAware::default(), &cost),
        balanced(items, workers, Balanced::default(), &cost),
    ]
}

/// Every byte of every item once, whoever has it.
fn assert_whole(items: &[Item<'_>], mut pieces: Vec<Piece>) {
    pieces.sort();
    let mut pieces = pieces.into_iter().peekable();
    for (index, item) in items.iter().enumerate() {
        let mut end = 0;
        loop {
            let piece = pieces.next().expect("a piece for every item");
            assert_eq!((piece.item, piece.offset_bytes), (index, end));
            end += piece.length_bytes;
            if end == item.size_bytes {
                break;
            }
            assert!(piece.length_bytes > 0 && end < item.size_bytes);
        }
    }
    assert_eq!(pieces.next(), None);
}

proptest! {
    #[test]
    fn every_item_is_in_the_lists_exactly_once(tree in trees(), workers in 1..12_usize) {
        let items = tree.items();
        for lists in all(&items, workers) {
            prop_assert_eq!(lists.of_workers.len(), workers);
            assert_whole(&items, (0..workers).flat_map(|worker| lists.pieces(worker).collect::<Vec<_>>()).collect());
        }
    }

    #[test]
    fn whoever_asks_when_every_item_is_handed_out_once(
        tree in trees(), workers in 1..12_usize, asks in prop::collection::vec((0..12_usize, any::<bool>()), 0..400)
    ) {
        let items = tree.items();
        for lists in all(&items, workers) {
            let mut dealer = Dealer::new(lists);
            let mut pieces = Vec::new();
            for &(worker, fails) in &asks {
                for unit in dealer.take(worker % workers, 0.01) {
                    if fails { dealer.give_back(worker % workers, unit) } else { pieces.extend(unit.pieces) }
                }
            }
            for worker in 0..workers {
                pieces.extend(std::iter::from_fn(|| dealer.next(worker)).flat_map(|unit| unit.pieces));
            }
            prop_assert!(!(0..workers).any(|worker| dealer.has_any(worker)));
            assert_whole(&items, pieces);
        }
    }

    #[test]
    fn lists_follow_from_the_items_alone(tree in trees(), workers in 1..12_usize) {
        let items = tree.items();
        prop_assert_eq!(all(&items, workers), all(&items, workers));
    }

    #[test]
    fn counts_differ_by_one_at_most_and_lists_follow_the_paths(tree in trees(), workers in 1..12_usize) {
        let items = tree.items();
        let lists = by_count(&items, workers, &Cost::default());
        let counts: Vec<u64> = lists.loads().iter().map(|load| load.items).collect();
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        let paths: Vec<&[u8]> = (0..workers).flat_map(|w| lists.pieces(w).map(|p| items[p.item].path).collect::<Vec<_>>()).collect();
        prop_assert!(paths.is_sorted());
    }

    #[test]
    fn large_items_are_dealt_in_turn_before_small_ones(tree in trees(), workers in 1..12_usize, cap_mb in 1..9000_u64) {
        let items = tree.items();
        let how = SizeAware { cap_bytes: cap_mb * 1_000_000, ..SizeAware::default() };
        let lists = size_aware(&items, workers, how, &Cost::default());
        let large: Vec<usize> = (0..items.len()).filter(|&i| items[i].size_bytes >= how.threshold_bytes).collect();
        for worker in 0..workers {
            let listed: Vec<usize> = lists.pieces(worker).map(|piece| piece.item).collect();
            let dealt: Vec<usize> = large.iter().copied().skip(worker).step_by(workers).collect();
            prop_assert_eq!(&listed[..dealt.len()], &dealt[..]);
            prop_assert!(listed[dealt.len()..].iter().all(|&item| items[item].size_bytes < how.threshold_bytes));
            // A list is closed once it has reached the cap, and not before.
            let of_large = lists.of_workers[worker].iter().filter(|group| items[group.units[0].pieces[0].item].size_bytes >= how.threshold_bytes);
            let bytes: Vec<(u64, u64)> = of_large.map(|group| {
                let sizes: Vec<u64> = group.units[0].pieces.iter().map(|piece| piece.length_bytes).collect();
                (sizes.iter().sum(), *sizes.last().unwrap())
            }).collect();
            prop_assert!(bytes.iter().all(|(sum, last)| sum - last < how.cap_bytes));
            prop_assert!(bytes.iter().rev().skip(1).all(|(sum, _)| *sum >= how.cap_bytes));
        }
    }

    #[test]
    fn ours_is_never_further_from_the_mean_than_the_largest_group(tree in trees(), workers in 1..12_usize) {
        let items = tree.items();
        let lists = balanced(&items, workers, Balanced::default(), &Cost::default());
        let loads: Vec<f64> = lists.loads().iter().map(|load| load.cost_s).collect();
        let largest = lists.of_workers.iter().flatten().map(|group| group.cost_s).fold(0.0, f64::max);
        let mean = loads.iter().sum::<f64>() / workers as f64;
        // What list scheduling promises: the last group to be placed went to the worker that had the least.
        prop_assert!(loads.iter().all(|load| *load <= mean + largest + 1e-6), "{loads:?}, {largest}");
        for list in &lists.of_workers {
            prop_assert!(list.iter().is_sorted_by(|one, next| one.cost_s >= next.cost_s));
        }
    }

    #[test]
    fn uncut_items_are_whole(tree in trees(), workers in 1..12_usize) {
        let items = tree.items();
        let lists = balanced(&items, workers, Balanced { may_cut: false, ..Balanced::default() }, &Cost::default());
        for worker in 0..workers {
            prop_assert!(lists.pieces(worker).all(|p| p.offset_bytes == 0 && p.length_bytes == items[p.item].size_bytes));
        }
    }
}

#[test]
fn a_directory_of_small_files_stays_with_one_worker() {
    let tree = Tree((0..400_u32).map(|i| (format!("{}/{i}", i % 40).into_bytes(), 4096, i % 40)).collect());
    let items = tree.items();
    let lists = balanced(&items, 4, Balanced::default(), &Cost::default());
    for place in 0..40 {
        let workers = (0..4).filter(|&worker| lists.pieces(worker).any(|piece| items[piece.item].place == place));
        assert_eq!(workers.count(), 1, "directory {place}");
    }
    assert!(imbalance(lists.loads().iter().map(|load| load.cost_s)) < 1.05);
}

#[test]
fn one_huge_directory_and_one_huge_file_are_work_for_all() {
    let directory = Tree((0..4000_u32).map(|i| (format!("d/{i}").into_bytes(), 4096, 0)).collect());
    let file = Tree(vec![(b"d/huge".to_vec(), 10 << 30, 0)]);
    for tree in [directory, file] {
        let loads = balanced(&tree.items(), 4, Balanced::default(), &Cost::default()).loads();
        assert!(imbalance(loads.iter().map(|load| load.cost_s)) < 1.05, "{loads:?}");
    }
}

#[test]
fn a_worker_that_stands_still_keeps_only_what_it_has_begun() {
    let tree = Tree((0..64_u32).map(|i| (format!("{i}/x").into_bytes(), 1 << 20, i)).collect());
    let items = tree.items();
    let mut dealer = Dealer::new(balanced(&items, 4, Balanced::default(), &Cost::default()));
    let held = dealer.next(0).expect("a first unit");
    let others: usize = std::iter::from_fn(|| dealer.next(1)).map(|unit| unit.pieces.len()).sum();
    assert_eq!(others + held.pieces.len(), 64);
    assert!(dealer.stolen() > 0 && dealer.next(2).is_none() && dealer.next(0).is_none());
}

#[test]
fn what_is_taken_at_once_is_as_much_for_each_and_worth_a_process() {
    let tree = Tree((0..3000_u32).map(|i| (format!("{}/{i}", i % 30).into_bytes(), 4096, i % 30)).collect());
    let items = tree.items();
    let lists = balanced(&items, 4, Balanced::default(), &Cost { file_s: 1e-3, byte_s: 0.0 });
    for least_s in [0.1, 0.3, 0.5, 2.0, 10.0] {
        let mut dealer = Dealer::new(lists.clone());
        let mut costs_s = [0.0_f64; 4];
        let mut takes = Vec::new();
        // Whoever has done least comes next.
        loop {
            let worker = (0..4).min_by(|&a: &usize, &b| costs_s[a].total_cmp(&costs_s[b])).expect("a worker");
            let taken_s: f64 = dealer.take(worker, least_s).iter().map(|unit| unit.cost_s).sum();
            if taken_s == 0.0 {
                break;
            }
            costs_s[worker] += taken_s;
            takes.push(taken_s);
        }
        assert!(imbalance(costs_s) < 1.05, "{least_s}: {costs_s:?}");
        // Of three seconds.
        assert!(takes.iter().all(|taken_s| *taken_s > 0.9 * least_s.min(0.7)), "{least_s}: {takes:?}");
        assert!((costs_s.iter().sum::<f64>() - 3.0).abs() < 1e-6);
    }
}

#[test]
fn a_worker_that_lacks_a_little_does_not_take_a_large_file_for_it() {
    let large = (0..10_u32).map(|i| (format!("large/{i}").into_bytes(), 100_000_000, 0));
    let small = (0..4686_u32).map(|i| (format!("small/{}/{i}", i / 6).into_bytes(), 100_000, 1 + i / 6));
    let tree = Tree(large.chain(small).collect());
    let items = tree.items();
    let mut dealer =
        Dealer::new(balanced(&items, 4, Balanced { may_cut: false, ..Balanced::default() }, &Cost::default()));
    let costs_s = [0, 1, 2, 3].map(|worker| dealer.take(worker, 10.0).iter().map(|unit| unit.cost_s).sum::<f64>());
    assert!(imbalance(costs_s) < 1.05, "{costs_s:?}");
    assert!(!dealer.has_any(0));
}

#[test]
fn the_papers_lists_are_nobody_elses_until_their_worker_is_gone() {
    let tree = Tree((0..8_u32).map(|i| (vec![b'a' + i as u8], 1, 0)).collect());
    let items = tree.items();
    let mut dealer = Dealer::new(by_count(&items, 2, &Cost::default()));
    let first = dealer.next(0).expect("the first list");
    assert!(dealer.next(0).is_none());
    dealer.give_back(0, first);
    assert!(dealer.next(1).is_some() && dealer.next(1).is_some() && dealer.next(0).is_none());
    // One that never came has given nothing back.
    let mut dealer = Dealer::new(by_count(&items, 2, &Cost::default()));
    assert!(dealer.next(0).is_some() && !dealer.has_any(0) && dealer.has_any(1));
    dealer.lose_worker();
    assert!(dealer.has_any(0) && dealer.next(0).is_some() && !dealer.has_any(1));
    let mut dealer = Dealer::new(by_count(&items, 2, &Cost::default()));
    assert_eq!(dealer.rest().iter().map(|unit| unit.pieces.len()).sum::<usize>(), 8);
}

#[test]
fn costs_are_learned_from_samples_of_any_mixture() {
    let truth = Cost { file_s: 0.002, byte_s: 1e-8 };
    let mut learned = Learned::default();
    assert_eq!(learned.cost(), None);
    for round in 1..50_u64 {
        let (files, bytes) = (1 + round * 7 % 40, round * round * 31_337 % 9_000_000);
        learned.add(files, bytes, truth.of(files, bytes));
    }
    let cost = learned.cost().expect("a cost");
    assert!(
        (cost.file_s / truth.file_s - 1.0).abs() < 0.01 && (cost.byte_s / truth.byte_s - 1.0).abs() < 0.01,
        "{cost:?}"
    );
    let mut alike = Learned::default();
    (0..9).for_each(|_| alike.add(10, 40_960, 0.1));
    let cost = alike.cost().expect("a cost");
    assert!((cost.of(10, 40_960) - 0.1).abs() < 0.001, "{cost:?}");
}

#[test]
fn a_byte_may_cost_more_than_a_unit() {
    let tree = Tree(vec![(b"x".to_vec(), 1, 0), (b"y".to_vec(), 3, 0)]);
    for byte_s in [1e-11, 1.0, 1e9] {
        let lists = balanced(&tree.items(), 4, Balanced::default(), &Cost { file_s: 1e-6, byte_s });
        assert_eq!(lists.loads().iter().map(|load| load.bytes).sum::<u64>(), 4, "{byte_s}");
    }
}
