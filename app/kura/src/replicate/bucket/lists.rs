//! What both sides have, in the order of keys.

use super::Pair;
use super::carry::passes;
use super::store::Store;
use super::wire::{Answered, Trouble};
use anyhow::{Result, anyhow, bail};
use futures::stream::{self, LocalBoxStream, Peekable, StreamExt, TryStreamExt};
use kura_admin::{Client, Object, ObjectQuery};
use kura_replicate::Target;
use kura_replicate::bucket::{Here, There};
use std::cmp::Ordering;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::sleep;

/// Waits before what may pass is tried again.
const WAITS: [Duration; 3] = [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(5)];

type List<'a, T> = Peekable<LocalBoxStream<'a, Result<T>>>;

/// Both lists.
pub struct Pairs<'a> {
    here: List<'a, Here>,
    there: List<'a, There>,
    /// What the target lists first.
    pub first: Vec<There>,
    /// The key that came last.
    last: Option<String>,
}

/// Some of a target's list, and where the next page begins.
type Page = (Vec<There>, Option<String>);

impl Pair {
    /// What both have.
    pub async fn pairs<'a>(&'a self, bucket: &'a str, target: &'a Target) -> Result<Pairs<'a>> {
        let page = page(&self.target, target, None).await?;
        let first = page.0.clone();
        let here = source_list(&self.source, bucket).boxed_local().peekable();
        let there = target_list(&self.target, target, page).boxed_local().peekable();
        Ok(Pairs { here, there, first, last: None })
    }
}

impl<'a> Pairs<'a> {
    /// Whether there is nothing here, and nothing there.
    pub async fn are_empty(&mut self) -> Result<(bool, bool)> {
        Ok((peek(&mut self.here).await?.is_none(), peek(&mut self.there).await?.is_none()))
    }

    /// What both have under each key.
    pub fn stream(self) -> impl futures::Stream<Item = Result<(Option<Here>, Option<There>)>> + 'a {
        stream::try_unfold(self, |mut pairs| async move {
            let pair = pairs.next().await?;
            Ok((pair != (None, None)).then_some((pair, pairs)))
        })
    }

    async fn next(&mut self) -> Result<(Option<Here>, Option<There>)> {
        let order = match (peek(&mut self.here).await?, peek(&mut self.there).await?) {
            (None, None) => return Ok((None, None)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(here), Some(there)) => here.key.cmp(&there.key),
        };
        let here = if order.is_le() { self.here.try_next().await? } else { None };
        let there = if order.is_ge() { self.there.try_next().await? } else { None };
        let key = here.as_ref().map(|here| &here.key).or(there.as_ref().map(|there| &there.key));
        // Else objects that both have would be taken for strangers, and deleted.
        if key <= self.last.as_ref() {
            bail!("the target does not list its keys in the order of their bytes: it cannot be followed");
        }
        self.last = key.cloned();
        Ok((here, there))
    }
}

/// What comes next in a list.
async fn peek<'l, T>(list: &'l mut List<'_, T>) -> Result<Option<&'l T>> {
    let failed = Pin::new(&mut *list).next_if(Result::is_err).await;
    if let Some(Err(error)) = failed {
        return Err(error);
    }
    Ok(Pin::new(list).peek().await.and_then(|next| next.as_ref().ok()))
}

fn source_list<'a>(client: &'a Client, bucket: &'a str) -> impl futures::Stream<Item = Result<Here>> + 'a {
    let pages = stream::try_unfold(Some(ObjectQuery::default()), async |query| {
        let Some(query) = query else { return Ok(None) };
        let page = twice(async || client.objects(bucket, &query).await, passes).await?;
        let next = page.next.map(|after| ObjectQuery { after: Some(after), ..query });
        let here = page.objects.into_iter().filter(|object| !object.delete_marker).map(|object| Ok(here(object)));
        anyhow::Ok(Some((stream::iter(here.collect::<Vec<_>>()), next)))
    });
    pages.try_flatten()
}

fn here(object: Object) -> Here {
    let Object { key, version, revision, size_bytes, etag, modified_at, .. } = object;
    // A store that went back to a snapshot gives revisions again, but not at the same time.
    Here { identity: format!("{version} {revision} {etag} {modified_at}"), key, version, size_bytes }
}

fn target_list<'a>(
    store: &'a Store,
    target: &'a Target,
    (first, next): Page,
) -> impl futures::Stream<Item = Result<There>> + 'a {
    let pages = stream::try_unfold(next, async move |from: Option<String>| {
        let Some(from) = from else { return Ok(None) };
        let (there, next) = page(store, target, Some(from)).await?;
        anyhow::Ok(Some((stream::iter(there.into_iter().map(Ok)), next)))
    });
    stream::iter(first.into_iter().map(Ok)).chain(pages.try_flatten())
}

async fn page(store: &Store, target: &Target, from: Option<String>) -> Result<Page> {
    again(async || store.page(from.clone()).await).await.map_err(|trouble| told(target, &trouble))
}

/// What a target's trouble is to the run.
pub fn told(target: &Target, trouble: &Trouble) -> anyhow::Error {
    anyhow!("the target {target}: {trouble}")
}

/// Asks again where what went wrong may pass.
pub async fn again<T>(ask: impl AsyncFn() -> Answered<T>) -> Answered<T> {
    twice(ask, |trouble| matches!(trouble, Trouble::Passing(_))).await
}

/// Does it again while `passes` says so of what went wrong.
pub async fn twice<T, E>(work: impl AsyncFn() -> Result<T, E>, passes: impl Fn(&E) -> bool) -> Result<T, E> {
    for wait in WAITS {
        match work().await {
            Err(error) if passes(&error) => sleep(wait).await,
            done => return done,
        }
    }
    work().await
}
