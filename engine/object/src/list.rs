//! Lists: keys in order, from a place on, with a prefix, rolled up at a delimiter.

use crate::known::Known;
use crate::log::Log;
use crate::object::{PARTITION_BYTES, Partition, PartitionId, Row, Stat, Version, name_of};
use crate::store::{State, Store};
use kura_block::Result;
use std::time::Duration;

/// Items of a page when the query does not say.
const LIMIT: usize = 1000;
/// Hidden versions that are looked at without a pause: some milliseconds.
const LOOK_ROWS: usize = 4096;
/// How often so many are looked at for a page: then it is given as it is.
const LOOKS: usize = 16;
/// Hidden versions of one key that are walked over; from then on it is quicker to jump.
const WALKED: u32 = 8;

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
    /// In key order; fewer than asked for, or none, also where many keys in a row have nothing to show.
    pub items: Vec<Item>,
    /// Where the next page begins; `None` when this is the last one.
    pub next: Option<After>,
}

/// What one look at the index finds.
pub(crate) struct Look {
    pub page: Page,
    /// It ended early, in the midst of what has nothing to show.
    pub short: bool,
}

impl Store {
    /// A page of a partition's keys, in key order (bytes compared), without a read of the device. It comes after a bounded
    /// time: with few items, or none, where very many keys have nothing to show. Others go on meanwhile.
    pub async fn list(&self, partition: PartitionId, query: &Query) -> Result<Page> {
        let limit = query.limit.unwrap_or(LIMIT);
        let (mut query, mut items) = (query.clone(), Vec::new());
        for left in (0..LOOKS).rev() {
            query.limit = Some(limit - items.len());
            let look = || self.inner.state.borrow().list(partition, &query, LOOK_ROWS);
            let Look { page, short } = self.inner.seen(Log::last_pending, look).await?;
            items.extend(page.items);
            if !short || left == 0 || items.len() == limit {
                return Ok(Page { items, next: page.next });
            }
            query.after = page.next.unwrap_or_default();
            self.inner.runtime.sleep(Duration::ZERO).await;
        }
        Ok(Page { items, next: Some(query.after) })
    }

    /// Partitions in the order of their names: up to `limit` behind `after`.
    pub async fn partitions(&self, after: &[u8], limit: usize) -> Result<Vec<Partition>> {
        let after = if after.is_empty() { After::Nothing } else { After::Key(after.to_vec()) };
        let query = Query { after, limit: Some(limit), ..Query::default() };
        let look = || {
            let state = self.inner.state.borrow();
            let look = state.list(PartitionId::ROOT, &query, usize::MAX)?;
            let known = look.page.items.into_iter().filter_map(|item| match item {
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
    /// A page, or what there is of it when `rows` hidden versions were met.
    pub fn list(&self, partition: PartitionId, query: &Query, rows: usize) -> Result<Look> {
        let limit = query.limit.unwrap_or(LIMIT);
        let wanted = name_of(partition, &query.prefix);
        let mut look = Look { page: Page { items: Vec::new(), next: None }, short: false };
        let Some(mut from) = first_row(partition, query) else { return Ok(look) };
        if limit == 0 {
            return Ok(look);
        }
        // Key that was met last, and how many of its versions: the others are not the newest. And the one right before it.
        let mut met: Option<Vec<u8>> = match &query.after {
            After::Version(key, version) => {
                let last = Row::new(name_of(partition, key), version.0);
                // All that the page before had of it may be gone.
                let newest = self.newest(&last.name)?;
                newest.filter(|(newest, _)| *newest <= last).map(|_| last.name)
            }
            _ => None,
        };
        let mut before = None;
        let (mut walked, mut hidden) = (0, 0);
        loop {
            let mut jump = None;
            let mut over = true;
            self.index.scan(&from, |row, known| {
                if !row.name.starts_with(&wanted) {
                    return false;
                }
                let latest = met.as_ref() != Some(&row.name);
                walked = if latest { 0 } else { walked + 1 };
                let step = step(&mut look.page, query, limit, &row, known, latest);
                over = !matches!(step, Step::End);
                match step {
                    Step::Next | Step::End => {}
                    Step::Jump(to) => {
                        jump = Some(to);
                        // What was jumped over does not lie right before what comes.
                        met = None;
                        return false;
                    }
                    Step::Hidden => {
                        hidden += 1;
                        let last = if latest { met.as_deref() } else { before.as_deref() };
                        let next =
                            if hidden < rows { None } else { next_of_short(&look.page, query, limit, &row, last) };
                        if next.is_some() {
                            (look.short, look.page.next, over) = (true, next, false);
                        } else if walked >= WALKED {
                            jump = Some(Row::new(row.name.clone(), 0));
                        }
                    }
                }
                if latest {
                    before = met.replace(row.name);
                }
                over && jump.is_none()
            })?;
            match jump {
                Some(next) if over => from = next,
                _ => return Ok(look),
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

/// What comes behind a row.
enum Step {
    Next,
    /// The row shows nothing, and no more do those of its key that follow.
    Hidden,
    Jump(Row),
    End,
}

/// Bytes of a key that it is rolled up to, if it is.
fn cut_of(query: &Query, key: &[u8]) -> Option<usize> {
    let delimiter = query.delimiter.as_ref().filter(|delimiter| !delimiter.is_empty())?;
    let rest = &key[query.prefix.len()..];
    let at = rest.windows(delimiter.len()).position(|window| window == delimiter.as_slice())?;
    Some(query.prefix.len() + at + delimiter.len())
}

/// Takes one row into the page.
fn step(page: &mut Page, query: &Query, limit: usize, row: &Row, known: Known, latest: bool) -> Step {
    let key = row.key();
    let cut = cut_of(query, key);
    let is_met = cut.is_some_and(|cut| matches!(&query.after, After::Key(after) if *after == key[..cut]));
    if !is_met && !query.versions && (known.is_marker() || !latest) {
        return Step::Hidden;
    }
    if !is_met && page.items.len() == limit {
        page.next = next_after(page, query);
        return Step::End;
    }
    let Some(cut) = cut else {
        page.items.push(Item::Object { key: key.to_vec(), stat: known.stat(latest) });
        return Step::Next;
    };
    if !is_met {
        page.items.push(Item::Prefix(key[..cut].to_vec()));
    }
    let name = &row.name[..row.name.len() - key.len() + cut];
    behind(name).map_or(Step::End, |next| Step::Jump(Row::newest(next)))
}

/// Where the next page begins when this one is to end at a hidden row: behind it, but not behind a key that is a prefix to be
/// rolled up itself, which would count as met. There it is behind `last`, the name right before that key's, if that is known.
fn next_of_short(page: &Page, query: &Query, limit: usize, row: &Row, last: Option<&[u8]>) -> Option<After> {
    if page.items.len() == limit {
        return next_after(page, query);
    }
    let is_prefix = cut_of(query, row.key()) == Some(row.key().len());
    let name = if is_prefix { last? } else { row.name.as_slice() };
    Some(After::Key(name[PARTITION_BYTES..].to_vec()))
}

/// Where the page behind this one begins.
fn next_after(page: &Page, query: &Query) -> Option<After> {
    page.items.last().map(|item| match item {
        Item::Object { key, stat } if query.versions => After::Version(key.clone(), stat.version),
        Item::Object { key, .. } => After::Key(key.clone()),
        Item::Prefix(prefix) => After::Prefix(prefix.clone()),
    })
}
