//! The buckets and access keys: few, looked at by every request, and so kept in memory.

use crate::bucket::{Bucket, Home, Setting};
use crate::door::{Door, Stopped, Way};
use crate::keys::{Key, NewKey};
use crate::multipart::forget_uploads;
use crate::past::{Past, Snapshots, split};
use crate::problem::{problem, refusal};
use futures::TryFutureExt;
use kura_block::{Error, Kind, Result};
use kura_object::{Batch, Condition, Durability, Item, PartitionId, Put, Query, Store, Which};
use s3s::validation::{AwsNameValidation, NameValidation};
use s3s::{S3Error, S3ErrorCode, S3Result};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, MutexGuard, Notify};
use tracing::Instrument;

/// The partition of the access keys; what begins with a point is never a bucket.
const KEYS: &[u8] = b".keys";
/// The partition of the parts of multipart uploads.
const PARTS: &[u8] = b".parts";
/// Partitions or keys that one step of a start reads.
const PAGE: usize = 1000;

/// The buckets and access keys of an object store. Every change of them goes through this.
pub struct Directory {
    /// Where that goes on which is not to stop halfway: not on threads that serve HTTP, which end it when they panic.
    runtime: Handle,
    known: RwLock<Known>,
    past: Past,
    /// Held by whoever changes something: what is stored and what is known change in the same order.
    changing: Mutex<Owed>,
    /// Lifecycle rules were set.
    sweep: Notify,
}

/// To be called when the access keys are in the store that a rollback has kept: not yet, where the store has no room for
/// them.
type Owed = Option<Box<dyn FnOnce() -> Result<()> + Send>>;

/// What a store has.
pub(crate) struct Known {
    home: Home,
    keys_partition: PartitionId,
    pub buckets: BTreeMap<String, Arc<Bucket>>,
    keys: Keys,
    /// Access keys whose records cannot be read, and why: nothing that they sign is done.
    closed_keys: BTreeMap<String, Error>,
}

/// Access keys by their identifiers.
type Keys = BTreeMap<String, Arc<Key>>;

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().min(u128::from(u64::MAX)) as u64
}

impl Directory {
    /// Reads what there is in the store behind `door`, and opens it as `snapshots` have it where that is asked for.
    /// `keys`, where they are given, are the access keys from now on; `kept` is called when that is durable.
    pub async fn open(
        door: Arc<dyn Door>,
        snapshots: Arc<dyn Snapshots>,
        keys: Option<Vec<Key>>,
        kept: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Arc<Self>> {
        let mut known = read(Way::new(door)).await?;
        let mut owed: Owed = None;
        if let Some(keys) = keys {
            owed = Some(Box::new(kept));
            let keys = keys.into_iter().map(|key| (key.id.clone(), Arc::new(key)));
            known.keep(keys.collect(), &mut owed).await?;
        }
        let (known, past) = (RwLock::new(known), Past::new(snapshots));
        let runtime = Handle::current();
        Ok(Arc::new(Self { runtime, known, past, changing: Mutex::new(owed), sweep: Notify::new() }))
    }

    /// Goes over to the store behind the door that `change` resolves to: this one as it was before, the access keys
    /// excepted, which stay those of now; `kept` is called when that is durable. Until the end nothing else changes
    /// buckets or keys, and whoever asks for an object is told to try again. Where it did not go over, that is the error; where
    /// it did, and the keys are not in the store, the error is within.
    pub async fn go_over(
        &self,
        change: impl Future<Output = Result<Arc<dyn Door>>>,
        kept: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Result<()>> {
        let mut owed = self.changing.lock().await;
        let mut known = read(Way::new(change.await?)).await?;
        *owed = Some(Box::new(kept));
        let done = known.keep(self.look(|known| known.keys.clone()), &mut owed).await;
        self.note(|before| *before = known);
        Ok(done)
    }

    /// The turn to change an access key: those that a rollback kept are in the store before.
    async fn turn_for_keys(&self) -> Result<MutexGuard<'_, Owed>> {
        let mut owed = self.changing.lock().await;
        if owed.is_some() {
            let (home, keys_partition, keys) =
                self.look(|known| (known.home.clone(), known.keys_partition, known.keys.clone()));
            let stored = read(home.way).await?.keys;
            store_keys(&self.way(), keys_partition, stored, keys).await?;
            pay(&mut owed)?;
        }
        Ok(owed)
    }

    /// Closes the store of a snapshot as soon as those have done who read it.
    pub fn close_snapshot(&self, snapshot: &str) {
        self.past.close_snapshot(snapshot);
    }

    /// Closes the stores of all snapshots, also those that are being opened: as the server stops.
    pub fn close_snapshots(&self) {
        self.past.close();
    }

    pub(crate) async fn sweep_is_wanted(&self) {
        self.sweep.notified().await;
    }

    /// The way to the store of today.
    pub(crate) fn way(&self) -> Way {
        self.home().way
    }

    pub(crate) fn home(&self) -> Home {
        self.look(|known| known.home.clone())
    }

    fn look<T>(&self, at: impl FnOnce(&Known) -> T) -> T {
        at(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn note<T>(&self, at: impl FnOnce(&mut Known) -> T) -> T {
        at(&mut self.known.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The bucket of this name as it is today, if there is one.
    pub fn find(&self, name: &str) -> Option<Arc<Bucket>> {
        self.look(|known| known.buckets.get(name).cloned())
    }

    /// The bucket that a request names, as it is today or as a snapshot has it; or `NoSuchBucket`.
    pub(crate) async fn bucket(&self, name: &str) -> S3Result<Arc<Bucket>> {
        self.bucket_or_missing(name).await.map_err(no_bucket)
    }

    /// The same, or `Missing`; `Corrupt` where what is set on it cannot be read.
    pub(crate) async fn bucket_or_missing(&self, name: &str) -> Result<Arc<Bucket>> {
        let bucket = match split(name) {
            Some((bucket, snapshot)) => self.past.bucket(bucket, snapshot).await?,
            None => self.named(name)?,
        };
        bucket.readable()?;
        Ok(bucket)
    }

    /// The bucket of this name as it is today, whatever is set on it, or `Missing`.
    fn named(&self, name: &str) -> Result<Arc<Bucket>> {
        self.find(name).ok_or_else(|| Error::missing(format!("there is no bucket {name}")))
    }

    /// All buckets, by name.
    pub fn buckets(&self) -> Vec<Arc<Bucket>> {
        self.look(|known| known.buckets.values().cloned().collect())
    }

    /// The access key of this identifier, if there is one.
    pub fn key(&self, id: &str) -> Option<Arc<Key>> {
        self.look(|known| known.keys.get(id).cloned())
    }

    /// The same, or `Missing`; `Corrupt` where its record cannot be read.
    pub fn known_key(&self, id: &str) -> Result<Arc<Key>> {
        let missing = || Error::missing(format!("key {id}: no such key; `kura key list` lists them"));
        self.key(id).ok_or_else(|| self.look(|known| known.closed_keys.get(id).cloned()).unwrap_or_else(missing))
    }

    /// Refuses what [`Directory::revoke_key`] refuses.
    pub fn check_revoke_key(&self, id: &str) -> Result<()> {
        match self.known_key(id) {
            Err(error) if error.kind() != Kind::Corrupt => Err(error),
            _ => Ok(()),
        }
    }

    /// Why access keys are closed, a line each.
    pub(crate) fn closed_keys(&self) -> Vec<Error> {
        self.look(|known| known.closed_keys.values().cloned().collect())
    }

    /// All access keys.
    pub fn keys(&self) -> Vec<Arc<Key>> {
        self.look(|known| known.keys.values().cloned().collect())
    }

    /// Does something to its end although nobody may wait for it any more, as when a client goes away: the store does its part all
    /// the same, and what is known would fall behind what is stored.
    pub(crate) async fn to_its_end<T, E>(
        &self,
        change: impl Future<Output = std::result::Result<T, E>> + Send + 'static,
    ) -> std::result::Result<T, E>
    where
        T: Send + 'static,
        E: From<Stopped> + Send + 'static,
    {
        self.runtime.spawn(change.in_current_span()).await.map_err(|_| E::from(Stopped))?
    }

    /// Makes a bucket: `Exists` when there is one of this name, `Invalid` when it cannot be one's name.
    pub async fn create_bucket(self: &Arc<Self>, name: &str) -> Result<Arc<Bucket>> {
        if !AwsNameValidation::new().validate_bucket_name(name) || split(name).is_some() {
            return Err(Error::invalid(format!(
                "{name:?} cannot be a bucket's name: 3 to 63 lower-case letters, digits, dots and hyphens, without .at."
            )));
        }
        let (own, name) = (Arc::clone(self), name.to_owned());
        self.to_its_end(async move {
            let _turn = own.changing.lock().await;
            let (made, home) = (name.clone(), own.home());
            let (way, parts_of) = (home.way.clone(), home.clone());
            let create = async move |store: Store| {
                let now = now_ms();
                if store.partition(made.as_bytes()).await.is_err() {
                    // What a bucket of this name may have left when a crash came between its end and its uploads'.
                    forget_uploads(&store, &made, &parts_of).await?;
                }
                store.create_partition(made.as_bytes(), Bucket::attributes(now), now).await
            };
            let partition = way.ask(create).await.map_err(|error: Error| match error.kind() {
                Kind::Exists => Error::exists(format!("bucket {name}: exists already; choose another name")),
                _ => error,
            })?;
            let bucket = Arc::new(Bucket::of(partition, home));
            own.note(|known| known.buckets.insert(name, Arc::clone(&bucket)));
            Ok(bucket)
        })
        .await
    }

    /// Deletes a bucket: `Busy` while there are objects, versions or delete markers in it.
    pub async fn delete_bucket(self: &Arc<Self>, name: &str) -> Result<()> {
        let (own, name) = (Arc::clone(self), name.to_owned());
        self.to_its_end(async move {
            let _turn = own.changing.lock().await;
            let (removed, home) = (name.clone(), own.home());
            let way = home.way.clone();
            let remove = async move |store: Store| store.remove_partition(removed.as_bytes()).await;
            way.ask(remove).await.map_err(|error: Error| match error.kind() {
                Kind::Missing => no_such_bucket(&name),
                Kind::Busy => not_empty(&name),
                _ => error,
            })?;
            own.note(|known| known.buckets.remove(&name));
            // No bucket of its name is made before they are gone; what stays of them goes when one is.
            let of = name.clone();
            let forget = async move |store: Store| forget_uploads(&store, &of, &home).await;
            if let Err(error) = way.ask(forget).await {
                tracing::warn!(bucket = name, %error, "uploads of a deleted bucket are left");
            }
            Ok(())
        })
        .await
    }

    /// Sets or removes what is set on a bucket.
    pub(crate) async fn set(self: &Arc<Self>, name: &str, setting: Setting, value: Option<Vec<u8>>) -> S3Result<()> {
        let (own, name) = (Arc::clone(self), name.to_owned());
        self.to_its_end(async move {
            let _turn = own.changing.lock().await;
            // Also where what is set cannot be read: so it is mended.
            let bucket = own.named(&name).map_err(no_bucket)?;
            let partition = name.as_bytes().to_vec();
            let change = vec![(setting.attribute().to_owned(), value)];
            let set = async move |store: Store| store.set_partition_attributes(&partition, None, change).await;
            let set = bucket.way().ask(set).map_err(|error: Error| match error.kind() {
                Kind::Invalid => problem(
                    S3ErrorCode::MaxMessageLengthExceeded,
                    format!("what is set on bucket {name} takes too much: {error}"),
                ),
                _ => refusal(error),
            });
            let changed = Arc::new(bucket.changed(setting, set).await?);
            own.note(|known| known.buckets.insert(name, changed));
            if setting == Setting::Lifecycle {
                own.sweep.notify_one();
            }
            Ok(())
        })
        .await
    }

    /// Makes an access key. Its name is shown in lists, on a line: control characters in it are refused. `Missing` where it names a
    /// bucket that there is not.
    pub async fn create_key(self: &Arc<Self>, new: NewKey) -> Result<Arc<Key>> {
        if new.name.contains(char::is_control) {
            let text = format!(
                "access key name {:?}: it has control characters, such as a line's end: leave them out",
                new.name
            );
            return Err(Error::invalid(text));
        }
        for name in new.buckets.keys() {
            if let Some((bucket, _)) = split(name) {
                let text = format!("bucket {name}: name {bucket} alone: who reads a bucket reads its snapshots");
                return Err(Error::invalid(text));
            }
            self.find(name).ok_or_else(|| no_such_bucket(name))?.readable()?;
        }
        let own = Arc::clone(self);
        self.to_its_end(async move {
            let _turn = own.turn_for_keys().await?;
            let key = Key::generate(new, now_ms());
            let (partition, id, attributes, modified_ms) =
                (own.look(|known| known.keys_partition), key.id.clone().into_bytes(), key.attributes(), key.created_ms);
            let create = async move |store: Store| {
                let mut batch = durable();
                batch.require(partition, &id, Condition::Absent);
                batch.put(partition, &id, Put { attributes, modified_ms, ..Put::default() });
                store.commit(batch).await
            };
            own.way().ask(create).await.map(|_: Vec<_>| ())?;
            let key = Arc::new(key);
            own.note(|known| known.keys.insert(key.id.clone(), Arc::clone(&key)));
            Ok(key)
        })
        .await
    }

    /// Revokes an access key, also one whose record cannot be read: from now on nothing that it signed is done. `Missing` when
    /// there is none.
    pub async fn revoke_key(self: &Arc<Self>, id: &str) -> Result<()> {
        let (own, id) = (Arc::clone(self), id.to_owned());
        self.to_its_end(async move {
            let _turn = own.turn_for_keys().await?;
            own.check_revoke_key(&id)?;
            let (partition, name) = (own.look(|known| known.keys_partition), id.as_bytes().to_vec());
            let remove = async move |store: Store| {
                let mut batch = durable();
                batch.remove(partition, &name, Which::Latest);
                store.commit(batch).await
            };
            own.way().ask(remove).await?;
            own.note(|known| {
                known.keys.remove(&id);
                known.closed_keys.remove(&id);
            });
            Ok(())
        })
        .await
    }
}

/// What is said of a bucket that there is not.
pub(crate) fn no_such_bucket(name: &str) -> Error {
    Error::missing(format!("bucket {name}: no such bucket; `kura bucket list` lists them"))
}

/// Why a bucket cannot be deleted.
pub(crate) fn not_empty(name: &str) -> Error {
    Error::busy(format!(
        "bucket {name}: it is not empty: `kura object list {name} --versions` lists what it holds, and `kura bucket delete {name} --force` deletes it all"
    ))
}

/// Reads what there is in the store at the end of `way`; what a new one lacks is made.
pub(crate) async fn read(way: Way) -> Result<Known> {
    let ask = way.clone();
    let read = async move |store: Store| {
        let keys_partition = system(&store, KEYS).await?;
        let home = Home { way, parts: system(&store, PARTS).await?, turns: Arc::default() };
        let (buckets, (keys, closed_keys)) = (buckets(&store, &home).await?, keys(&store, keys_partition).await?);
        Ok::<_, Error>(Known { home, keys_partition, buckets, keys, closed_keys })
    };
    ask.ask(read).await
}

impl Known {
    /// Makes these the access keys, in the store as well: one that was revoked does not come back with an older store. Where
    /// there is no room for them that is owed.
    async fn keep(&mut self, keys: Keys, owed: &mut Owed) -> Result<()> {
        let stored = std::mem::replace(&mut self.keys, keys.clone());
        match store_keys(&self.home.way, self.keys_partition, stored, keys).await {
            Err(error) if error.kind() == Kind::Full => Ok(()),
            done => done.and_then(|()| pay(owed)),
        }
    }
}

/// Changes of access keys outlive whatever comes once they are acknowledged, however objects are.
fn durable() -> Batch {
    let mut batch = Batch::new();
    batch.durability(Durability::Durable);
    batch
}

/// Puts `keys` into the store in place of those that are there.
async fn store_keys(way: &Way, partition: PartitionId, stored: Keys, keys: Keys) -> Result<()> {
    let gone: Vec<String> = stored.into_keys().filter(|id| !keys.contains_key(id)).collect();
    let keep = async move |store: Store| {
        let mut batch = durable();
        for id in gone {
            batch.remove(partition, id.as_bytes(), Which::Latest);
        }
        for (id, key) in keys {
            let put = Put { attributes: key.attributes(), modified_ms: key.created_ms, ..Put::default() };
            batch.put(partition, id.as_bytes(), put);
        }
        store.commit(batch).await.map(drop)
    };
    way.ask::<_, Error, _, _>(keep).await
}

/// What a request is told for which there is no bucket.
fn no_bucket(error: Error) -> S3Error {
    match error.kind() {
        Kind::Missing => problem(S3ErrorCode::NoSuchBucket, error.to_string()),
        _ => refusal(error),
    }
}

fn pay(owed: &mut Owed) -> Result<()> {
    owed.take().map_or(Ok(()), |kept| kept())
}

/// A partition of the room's own, made if need be.
async fn system(store: &Store, name: &[u8]) -> Result<PartitionId> {
    match store.partition(name).await {
        Ok(partition) => Ok(partition.id),
        Err(error) if error.kind() == Kind::Missing => {
            let made = store.create_partition(name, kura_object::Attributes::new(), now_ms()).await?;
            Ok(made.id)
        }
        Err(error) => Err(error),
    }
}

async fn buckets(store: &Store, home: &Home) -> Result<BTreeMap<String, Arc<Bucket>>> {
    let mut all = BTreeMap::new();
    let mut after = Vec::new();
    loop {
        let page = store.partitions(&after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(all) };
        after.clone_from(&last.name);
        for partition in page.into_iter().filter(|partition| !partition.name.starts_with(b".")) {
            let bucket = Bucket::of(partition, home.clone());
            if let Some(error) = &bucket.unreadable {
                tracing::error!("S3: {error}");
            }
            all.insert(bucket.name.clone(), Arc::new(bucket));
        }
    }
}

/// The access keys, and why others cannot be read: these are closed, and nothing else is.
async fn keys(store: &Store, partition: PartitionId) -> Result<(Keys, BTreeMap<String, Error>)> {
    let (mut all, mut closed) = (Keys::new(), BTreeMap::new());
    let mut query = Query::default();
    loop {
        let page = store.list(partition, &query).await?;
        for item in page.items {
            let Item::Object { key, .. } = item else { continue };
            let read = store.attributes(partition, &key, Which::Latest).await;
            match read.and_then(|(stat, attributes)| Key::of(&key, stat.modified_ms, &attributes)) {
                Ok(key) => drop(all.insert(key.id.clone(), Arc::new(key))),
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Device) => {
                    let id = String::from_utf8_lossy(&key).into_owned();
                    let error = Error::corrupt(format!(
                        "access key {id}: closed, since its record cannot be read: `kura key revoke {id}`, and make another one \
                         ({error})"
                    ));
                    tracing::error!("S3: {error}");
                    closed.insert(id, error);
                }
                Err(error) => return Err(error),
            }
        }
        match page.next {
            Some(after) => query.after = after,
            None => return Ok((all, closed)),
        }
    }
}
