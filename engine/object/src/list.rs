//! Lists: keys in order, from a place on, with a prefix, rolled up at a delimiter.

use crate::known::Known;
use crate::log::Log;
use crate::object::{Partition, PartitionId, Row, Stat, Version, name_of};
use crate::store::{State, Store};
use kura_block::Result;

/// Items of a page when the query does not say.
const LIMIT: usize = 1000;

/// Where a page begins: behind this.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum After {
    /// From the beginning.
    #[default]
    Nothing,
    /// Behind this key and all its versions; a rolled-up prefix that is this key counts as met.
    Key(Vec<u8>),
    /// Behind this version of the key: for lists of versions.
    Version(Vec<u8>, Version),
    /// Behind all keys that begin with this.
    Prefix(Vec<u8>),
}

/// What to list.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Only keys that begin with this.
    pub prefix: Vec<u8>,
    /// Rolls up keys that have this behind the prefix: they give one [`Item::Prefix`], up to and with the delimiter.
    pub delimiter: Option<Vec<u8>>,
    /// Where the page begins.
    pub after: After,
    /// Items of the page at most; 1000 unless given.
    pub limit: Option<usize>,
    /// False lists each key's newest version, and no key whose newest is a delete marker. True lists every version and
    /// marker, a key's newest first.
    pub versions: bool,
}

/// One item of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A version of a key.
    Object {
        /// The key.
        key: Vec<u8>,
        /// What is known of the version.
        stat: Stat,
    },
    /// There are keys that begin with this.
    Prefix(Vec<u8>),
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// In key order.
    pub items: Vec<Item>,
    /// Where the next page begins; `None` when this is the last one.
    pub next: Option<After>,
}

impl Store {
    /// A page of a partition's keys, in key order (bytes compared), without a read of the device.
    pub async fn list(&self, partition: PartitionId, query: &Query) -> Result<Page> {
        self.inner.seen(Log::last_pending, || self.inner.state.borrow().list(partition, query)).await
    }

    /// Partitions in the order of their names: up to `limit` behind `after`.
    pub async fn partitions(&self, after: &[u8], limit: usize) -> Result<Vec<Partition>> {
        let after = if after.is_empty() { After::Nothing } else { After::Key(after.to_vec()) };
        let query = Query { after, limit: Some(limit), ..Query::default() };
        let look = || {
            let state = self.inner.state.borrow();
            let page = state.list(PartitionId::ROOT, &query)?;
            let known = page.items.into_iter().filter_map(|item| match item {
                Item::Object { stat, .. } => state.partitions.get(&stat.version.0).cloned(),
                Item::Prefix(_) => None,
            });
            Ok(known.collect())
        };
        self.inner.seen(Log::last_pending, look).await
    }
}

/// The first name behind all names that begin with `prefix`; `None` when there is none.
fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte < u8::MAX)?;
    let mut behind = prefix[..=last].to_vec();
    behind[last] += 1;
    Some(behind)
}

impl State {
    fn list(&self, partition: PartitionId, query: &Query) -> Result<Page> {
        let limit = query.limit.unwrap_or(LIMIT);
        let wanted = name_of(partition, &query.prefix);
        let mut page = Page { items: Vec::new(), next: None };
        let Some(mut from) = first_row(partition, query) else { return Ok(page) };
        if limit == 0 {
            return Ok(page);
        }
        // Key that was listed last: its other versions are not the newest.
        let mut met: Option<Vec<u8>> = match &query.after {
            After::Version(key, _) => Some(name_of(partition, key)),
            _ => None,
        };
        loop {
            let mut jump = None;
            let mut over = true;
            self.index.scan(&from, |row, known| {
                if !row.name.starts_with(&wanted) {
                    return false;
                }
                let latest = met.as_ref() != Some(&row.name);
                let (next, goes_on) = step(&mut page, query, limit, &row, known, latest);
                met = Some(row.name);
                over = goes_on;
                jump = next;
                goes_on && jump.is_none()
            })?;
            match jump {
                Some(next) if over => from = next,
                _ => return Ok(page),
            }
        }
    }
}

/// Where a list begins in the index; `None` behind all rows.
fn first_row(partition: PartitionId, query: &Query) -> Option<Row> {
    let from = match &query.after {
        After::Nothing => Row::newest(name_of(partition, &query.prefix)),
        // Version 0 is never given: behind every version of the key.
        After::Key(key) => Row::new(name_of(partition, key), 0),
        After::Version(key, version) => Row::new(name_of(partition, key), version.0.saturating_sub(1)),
        After::Prefix(prefix) => Row::newest(behind(&name_of(partition, prefix))?),
    };
    Some(from.max(Row::newest(name_of(partition, &query.prefix))))
}

/// Takes one row into the page: where to jump to, if anywhere, and whether to go on at all.
fn step(page: &mut Page, query: &Query, limit: usize, row: &Row, known: Known, latest: bool) -> (Option<Row>, bool) {
    let key = row.key();
    let hidden = !query.versions && (known.is_marker() || !latest);
    if hidden {
        // Its other versions are hidden too.
        return (Some(Row::new(row.name.clone(), 0)), true);
    }
    let is_full = page.items.len() == limit;
    let cut = query.delimiter.as_ref().filter(|delimiter| !delimiter.is_empty()).and_then(|delimiter| {
        let rest = &key[query.prefix.len()..];
        let at = rest.windows(delimiter.len()).position(|window| window == delimiter.as_slice())?;
        Some(query.prefix.len() + at + delimiter.len())
    });
    if let Some(cut) = cut {
        let prefix = &key[..cut];
        let name = &row.name[..row.name.len() - key.len() + cut];
        let is_met = matches!(&query.after, After::Key(after) if after == prefix);
        if !is_met && is_full {
            page.next = next_after(page, query);
            return (None, false);
        }
        if !is_met {
            page.items.push(Item::Prefix(prefix.to_vec()));
        }
        return match behind(name) {
            Some(next) => (Some(Row::newest(next)), true),
            None => (None, false),
        };
    }
    if is_full {
        page.next = next_after(page, query);
        return (None, false);
    }
    page.items.push(Item::Object { key: key.to_vec(), stat: known.stat(latest) });
    (None, true)
}

/// Where the page behind this one begins.
fn next_after(page: &Page, query: &Query) -> Option<After> {
    page.items.last().map(|item| match item {
        Item::Object { key, stat } if query.versions => After::Version(key.clone(), stat.version),
        Item::Object { key, .. } => After::Key(key.clone()),
        Item::Prefix(prefix) => After::Prefix(prefix.clone()),
    })
}
