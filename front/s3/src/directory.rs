//! The buckets and access keys: few, looked at by every request, and so kept in memory.

use crate::bucket::{Bucket, Setting};
use crate::door::{Door, Way};
use crate::keys::{Key, NewKey};
use crate::multipart::forget_uploads;
use crate::problem::{problem, refusal};
use kura_block::{Error, Kind, Result};
use kura_object::{Batch, Condition, Item, PartitionId, Put, Query, Store, Which};
use s3s::validation::{AwsNameValidation, NameValidation};
use s3s::{S3ErrorCode, S3Result};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, Notify};

/// The partition of the access keys; what begins with a point is never a bucket.
const KEYS: &[u8] = b".keys";
/// The partition of the parts of multipart uploads.
const PARTS: &[u8] = b".parts";
/// Partitions or keys that one step of a start reads.
const PAGE: usize = 1000;

/// The buckets and access keys of an object store. Every change of them goes through this.
pub struct Directory {
    way: Way,
    keys_partition: PartitionId,
    pub(crate) parts_partition: PartitionId,
    known: RwLock<Known>,
    /// Held by whoever changes something: what is stored and what is known change in the same order.
    changing: Mutex<()>,
    /// Lifecycle rules were set.
    sweep: Notify,
}

#[derive(Default)]
struct Known {
    buckets: BTreeMap<String, Arc<Bucket>>,
    keys: BTreeMap<String, Arc<Key>>,
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().min(u128::from(u64::MAX)) as u64
}

impl Directory {
    /// Reads what there is in the store behind `door`.
    pub async fn open(door: Arc<dyn Door>) -> Result<Arc<Self>> {
        let way = Way::new(door);
        let read = async |store: Store| {
            let keys_partition = system(&store, KEYS).await?;
            let parts_partition = system(&store, PARTS).await?;
            let known = Known { buckets: buckets(&store).await?, keys: keys(&store, keys_partition).await? };
            Ok::<_, Error>((keys_partition, parts_partition, known))
        };
        let (keys_partition, parts_partition, known) = way.ask(read).await?;
        Ok(Arc::new(Self {
            way,
            keys_partition,
            parts_partition,
            known: RwLock::new(known),
            changing: Mutex::default(),
            sweep: Notify::new(),
        }))
    }

    /// Lets the rules be followed soon.
    pub(crate) fn sweep_soon(&self) {
        self.sweep.notify_one();
    }

    pub(crate) async fn sweep_is_wanted(&self) {
        self.sweep.notified().await;
    }

    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    fn look<T>(&self, at: impl FnOnce(&Known) -> T) -> T {
        at(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn note<T>(&self, at: impl FnOnce(&mut Known) -> T) -> T {
        at(&mut self.known.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The bucket of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<Arc<Bucket>> {
        self.look(|known| known.buckets.get(name).cloned())
    }

    /// The same, or `NoSuchBucket`.
    pub(crate) fn bucket(&self, name: &str) -> S3Result<Arc<Bucket>> {
        self.find(name).ok_or_else(|| problem(S3ErrorCode::NoSuchBucket, format!("there is no bucket {name}")))
    }

    /// All buckets, by name.
    pub fn buckets(&self) -> Vec<Arc<Bucket>> {
        self.look(|known| known.buckets.values().cloned().collect())
    }

    /// The access key of this identifier, if there is one.
    pub fn key(&self, id: &str) -> Option<Arc<Key>> {
        self.look(|known| known.keys.get(id).cloned())
    }

    /// All access keys.
    pub fn keys(&self) -> Vec<Arc<Key>> {
        self.look(|known| known.keys.values().cloned().collect())
    }

    /// Makes a bucket: `Exists` when there is one of this name, `Invalid` when it cannot be one's name.
    pub async fn create_bucket(&self, name: &str) -> Result<Arc<Bucket>> {
        if !AwsNameValidation::new().validate_bucket_name(name) {
            return Err(Error::invalid(format!(
                "{name:?} cannot be a bucket's name: 3 to 63 small letters, digits, points and hyphens"
            )));
        }
        let _turn = self.changing.lock().await;
        let (made, parts) = (name.to_owned(), self.parts_partition);
        let create = async move |store: Store| {
            let now = now_ms();
            if store.partition(made.as_bytes()).await.is_err() {
                // What a bucket of this name may have left when a crash came between its end and its uploads'.
                forget_uploads(&store, &made, parts).await?;
            }
            Bucket::of(store.create_partition(made.as_bytes(), Bucket::attributes(now), now).await?)
        };
        let bucket = self.way.ask(create).await.map_err(|error: Error| match error.kind() {
            Kind::Exists => Error::exists(format!("bucket {name}: exists already")),
            _ => error,
        })?;
        let bucket = Arc::new(bucket);
        self.note(|known| known.buckets.insert(name.to_owned(), Arc::clone(&bucket)));
        Ok(bucket)
    }

    /// Deletes a bucket: `Busy` while there are objects, versions or delete markers in it.
    pub async fn delete_bucket(&self, name: &str) -> Result<()> {
        let _turn = self.changing.lock().await;
        let (removed, parts) = (name.to_owned(), self.parts_partition);
        let remove = async move |store: Store| {
            store.remove_partition(removed.as_bytes()).await?;
            forget_uploads(&store, &removed, parts).await
        };
        self.way.ask(remove).await.map_err(|error: Error| match error.kind() {
            Kind::Missing => Error::missing(format!("bucket {name}: there is none")),
            Kind::Busy => Error::busy(format!("bucket {name}: it is not empty: delete its objects and their versions")),
            _ => error,
        })?;
        self.note(|known| known.buckets.remove(name));
        Ok(())
    }

    /// Sets or removes what is set on a bucket.
    pub(crate) async fn set(&self, name: &str, setting: Setting, value: Option<Vec<u8>>) -> S3Result<()> {
        let _turn = self.changing.lock().await;
        self.bucket(name)?;
        let partition = name.as_bytes().to_vec();
        let change = vec![(setting.attribute().to_owned(), value)];
        let set = async move |store: Store| Bucket::of(store.set_partition_attributes(&partition, None, change).await?);
        let bucket = self.way.ask(set).await.map_err(|error: Error| match error.kind() {
            Kind::Invalid => problem(
                S3ErrorCode::MaxMessageLengthExceeded,
                format!("what is set on bucket {name} takes too much: {error}"),
            ),
            _ => refusal(error),
        })?;
        self.note(|known| known.buckets.insert(name.to_owned(), Arc::new(bucket)));
        Ok(())
    }

    /// Makes an access key.
    pub async fn create_key(&self, new: NewKey) -> Result<Arc<Key>> {
        let _turn = self.changing.lock().await;
        let key = Key::generate(new, now_ms());
        let (partition, id, attributes, modified_ms) =
            (self.keys_partition, key.id.clone().into_bytes(), key.attributes(), key.created_ms);
        let create = async move |store: Store| {
            let mut batch = Batch::new();
            batch.require(partition, &id, Condition::Absent);
            batch.put(partition, &id, Put { attributes, modified_ms, ..Put::default() });
            store.commit(batch).await
        };
        self.way.ask(create).await.map(|_: Vec<_>| ())?;
        let key = Arc::new(key);
        self.note(|known| known.keys.insert(key.id.clone(), Arc::clone(&key)));
        Ok(key)
    }

    /// Revokes an access key: from now on nothing that it signed is done. `Missing` when there is none.
    pub async fn revoke_key(&self, id: &str) -> Result<Arc<Key>> {
        let _turn = self.changing.lock().await;
        let missing = || Error::missing(format!("key {id}: no such key; `kura key list` lists them"));
        let key = self.key(id).ok_or_else(missing)?;
        let (partition, name) = (self.keys_partition, id.as_bytes().to_vec());
        let remove = async move |store: Store| store.remove(partition, &name, Which::Latest).await;
        self.way.ask(remove).await?;
        self.note(|known| known.keys.remove(id));
        Ok(key)
    }
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

async fn buckets(store: &Store) -> Result<BTreeMap<String, Arc<Bucket>>> {
    let mut all = BTreeMap::new();
    let mut after = Vec::new();
    loop {
        let page = store.partitions(&after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(all) };
        after.clone_from(&last.name);
        for partition in page.into_iter().filter(|partition| !partition.name.starts_with(b".")) {
            let bucket = Bucket::of(partition)?;
            all.insert(bucket.name.clone(), Arc::new(bucket));
        }
    }
}

async fn keys(store: &Store, partition: PartitionId) -> Result<BTreeMap<String, Arc<Key>>> {
    let mut all = BTreeMap::new();
    let mut query = Query::default();
    loop {
        let page = store.list(partition, &query).await?;
        for item in page.items {
            let Item::Object { key, .. } = item else { continue };
            let (stat, attributes) = store.attributes(partition, &key, Which::Latest).await?;
            let key = Key::of(&key, stat.modified_ms, &attributes)?;
            all.insert(key.id.clone(), Arc::new(key));
        }
        match page.next {
            Some(after) => query.after = after,
            None => return Ok(all),
        }
    }
}
