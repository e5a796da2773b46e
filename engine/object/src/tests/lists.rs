//! Lists over keys that have nothing to show.

use super::{bucket, open, put, rig};
use crate::*;
use rand::RngExt;

fn text(items: &[Item]) -> Vec<String> {
    let shown = items.iter().map(|item| match item {
        Item::Object { key, .. } => key.escape_ascii().to_string(),
        Item::Prefix(prefix) => format!("({})", prefix.escape_ascii()),
    });
    shown.collect()
}

#[test]
fn a_page_comes_though_very_many_keys_have_nothing_to_show() {
    let (sim, disk) = rig(40, 128 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for key in ["a", "h/zz", "z"] {
            store.put(bucket, key.as_bytes(), put(b"x")).await.unwrap();
        }
        for some in 0..280 {
            let mut batch = Batch::new();
            for at in 0..250 {
                batch.mark(bucket, format!("h/{:06}", some * 250 + at).as_bytes(), 1, false);
            }
            store.commit(batch).await.unwrap();
        }
        for (delimiter, all) in [(None, ["a", "h/zz", "z"]), (Some(b"/".to_vec()), ["a", "(h/)", "z"])] {
            let mut query = Query { delimiter, limit: Some(10), ..Query::default() };
            let mut pages = Vec::new();
            loop {
                let page = store.list(bucket, &query).await.unwrap();
                pages.push(text(&page.items));
                match page.next {
                    Some(next) => query.after = next,
                    None => break,
                }
            }
            assert_eq!(pages.concat(), all);
            assert_eq!(pages.len(), 2, "70,000 are more than a page looks at: {pages:?}");
        }
        // What was rolled up is not rolled up again, though keys in it have nothing to show.
        let after = After::Key(b"h/".to_vec());
        let query = Query { delimiter: Some(b"/".to_vec()), after, ..Query::default() };
        assert_eq!(text(&store.list(bucket, &query).await.unwrap().items), ["z"]);
    });
}

/// The newest version goes between two pages: the one behind it is the newest, and said to be.
#[test]
fn the_newest_version_is_known_at_the_head_of_a_page() {
    let (sim, disk) = rig(41, 32 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for _ in 0..3 {
            store.put(bucket, b"k", Put { versioned: true, ..put(b"x") }).await.unwrap();
        }
        for gone in [false, true] {
            let mut query = Query { versions: true, limit: Some(1), ..Query::default() };
            let page = store.list(bucket, &query).await.unwrap();
            let [Item::Object { stat, .. }] = &page.items[..] else { panic!("{page:?}") };
            assert!(stat.latest);
            if gone {
                let mut batch = Batch::new();
                batch.remove(bucket, b"k", stat.which());
                store.commit(batch).await.unwrap();
            }
            query.after = page.next.unwrap();
            let page = store.list(bucket, &query).await.unwrap();
            let [Item::Object { stat, .. }] = &page.items[..] else { panic!("{page:?}") };
            assert_eq!(stat.latest, gone);
        }
    });
}

/// However early looks end, the pages together are the list.
#[test]
fn looks_that_end_early_leave_nothing_out() {
    for seed in 0..20 {
        let (sim, disk) = rig(300 + seed, 32 << 20);
        let store = open(&sim, &disk);
        let mut rng = sim.rng("keys");
        sim.block_on(async {
            let bucket = bucket(&store).await;
            for _ in 0..120 {
                let key = format!("{}/{}", rng.random_range(0..4), rng.random_range(0..8));
                for _ in 0..rng.random_range(1..12) {
                    if rng.random_bool(0.4) {
                        let put = Put { versioned: true, ..put(b"x") };
                        store.put(bucket, key.as_bytes(), put).await.unwrap();
                    } else {
                        let mut batch = Batch::new();
                        batch.mark(bucket, key.as_bytes(), 1, true);
                        store.commit(batch).await.unwrap();
                    }
                }
            }
            let state = store.inner.state.borrow();
            for (versions, rolled, prefix) in
                [(false, false, ""), (false, true, ""), (true, true, ""), (false, true, "2/")]
            {
                let delimiter = rolled.then(|| b"/".to_vec());
                let query = Query { prefix: prefix.into(), delimiter, versions, ..Query::default() };
                let whole = state.list(bucket, &query, usize::MAX).unwrap();
                assert!(!whole.short && whole.page.next.is_none());
                for (limit, rows) in [(1, 1), (1, 3), (3, 1), (2, 7), (1000, 2)] {
                    let mut query = Query { limit: Some(limit), ..query.clone() };
                    let mut items = Vec::new();
                    loop {
                        let page = state.list(bucket, &query, rows).unwrap().page;
                        items.extend(page.items);
                        let Some(next) = page.next else { break };
                        assert_ne!(next, query.after, "it goes on");
                        query.after = next;
                    }
                    assert_eq!(text(&items), text(&whole.page.items), "{limit} items, {rows} rows");
                    assert_eq!(items, whole.page.items);
                }
            }
        });
    }
}

/// A folder's own placeholder is deleted, what is in the folder is not, and a look ends at the placeholder.
#[test]
fn a_prefix_is_not_lost_where_a_look_ends_at_a_key_of_its_name() {
    let (sim, disk) = rig(41, 32 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for folder in ["a/", "b/", "c/", "d/"] {
            for _ in 0..3 {
                let mut batch = Batch::new();
                batch.mark(bucket, folder.as_bytes(), 1, true);
                store.commit(batch).await.unwrap();
            }
        }
        for key in ["b/x", "d/x", "d/y"] {
            store.put(bucket, key.as_bytes(), put(b"x")).await.unwrap();
        }
        let state = store.inner.state.borrow();
        for rows in 1..20 {
            let mut query = Query { delimiter: Some(b"/".to_vec()), ..Query::default() };
            let mut items = Vec::new();
            loop {
                let page = state.list(bucket, &query, rows).unwrap().page;
                items.extend(text(&page.items));
                let Some(next) = page.next else { break };
                assert_ne!(next, query.after, "it goes on");
                query.after = next;
            }
            assert_eq!(items, ["(b/)", "(d/)"], "{rows} rows");
        }
    });
}
