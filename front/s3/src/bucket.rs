//! A bucket, and what may be set on it.

mod lifecycle;
pub(crate) mod policy;
pub(crate) mod settings;
pub(crate) mod sweep;

pub use sweep::sweep;

use crate::door::Way;
use crate::multipart::turns::Turns;
use crate::problem::problem;
use kura_block::Error;
use kura_object::{Attributes, Partition, PartitionId};
use policy::Policy;
use s3s::dto::{BucketLifecycleConfiguration, CORSConfiguration, Tagging};
use s3s::xml;
use s3s::{S3ErrorCode, S3Result};
use std::sync::Arc;
use tokio::sync::{RwLock, RwLockReadGuard};

/// Whether a key may have several versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versioning {
    /// No, and never so far.
    #[default]
    Never,
    /// Every put adds one.
    Enabled,
    /// Those there are stay; a put replaces the version `null`.
    Suspended,
}

/// The store that a bucket is in.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub way: Way,
    /// Its partition `.parts`.
    pub parts: PartitionId,
    /// Who has a turn with which upload.
    pub turns: Arc<Turns>,
}

/// A bucket as it stands.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// When it was made: milliseconds since 1970.
    pub created_ms: u64,
    /// Whether a key may have several versions: as it was when this was looked up, for what only shows it.
    pub versioning: Versioning,
    /// The same as it is now, in all that was looked up of this bucket.
    versioning_now: Arc<RwLock<Versioning>>,
    /// Where it is: partitions have their numbers in one store.
    pub(crate) home: Home,
    pub(crate) id: PartitionId,
    pub(crate) cors: Option<CORSConfiguration>,
    pub(crate) lifecycle: Option<BucketLifecycleConfiguration>,
    pub(crate) tags: Option<Tagging>,
    pub(crate) policy: Option<Policy>,
    /// What is set on it cannot be read, all of it or some: until that is set anew, it is not served.
    pub(crate) unreadable: Option<Error>,
}

/// What is set on a bucket: an attribute of its partition, in the form in which S3 has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Versioning,
    Cors,
    Lifecycle,
    Tags,
    Policy,
}

impl Setting {
    pub fn attribute(self) -> &'static str {
        match self {
            Self::Versioning => "versioning",
            Self::Cors => "cors",
            Self::Lifecycle => "lifecycle",
            Self::Tags => "tags",
            Self::Policy => "policy",
        }
    }
}

const CREATED: &str = "created";

impl Versioning {
    fn of(text: &[u8]) -> Option<Self> {
        match text {
            b"Enabled" => Some(Self::Enabled),
            b"Suspended" => Some(Self::Suspended),
            _ => None,
        }
    }

    /// True when a put adds a version that stays.
    pub(crate) fn adds(self) -> bool {
        self == Self::Enabled
    }

    /// True when clients are told of versions.
    pub(crate) fn is_known(self) -> bool {
        self != Self::Never
    }
}

impl Bucket {
    /// Attributes of a partition that is to be a bucket.
    pub(crate) fn attributes(created_ms: u64) -> Attributes {
        [(CREATED.to_owned(), created_ms.to_string().into_bytes())].into()
    }

    pub(crate) fn way(&self) -> &Way {
        &self.home.way
    }

    /// The bucket that a partition of the store at `home` is. What of its record or its settings cannot be read is left out, and
    /// keeps this bucket from being served, and no other.
    pub(crate) fn of(partition: Partition, home: Home) -> Self {
        let name = String::from_utf8_lossy(&partition.name).into_owned();
        let mut settings = Settings { attributes: &partition.attributes, unreadable: Vec::new() };
        let created = partition.attributes.get(CREATED).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let versioning = settings.read(Setting::Versioning, Versioning::of).unwrap_or_default();
        Self {
            // Nothing but what is shown hangs on it.
            created_ms: created.unwrap_or(partition.modified_ms),
            versioning,
            versioning_now: Arc::new(RwLock::new(versioning)),
            home,
            id: partition.id,
            cors: settings.read(Setting::Cors, from_xml),
            lifecycle: settings.read(Setting::Lifecycle, from_xml),
            tags: settings.read(Setting::Tags, from_xml),
            policy: settings.read(Setting::Policy, |text| Policy::parse(&String::from_utf8_lossy(text), &name).ok()),
            unreadable: match &partition.unreadable {
                Some(error) => Some(Error::corrupt(format!(
                    "bucket {name}: its record cannot be read ({error}): start again when its disk is back, or roll volume \
                     objects back to a snapshot; until then the bucket is not served"
                ))),
                None => settings.error(&name),
            },
            name,
        }
    }

    /// Whether a key may have several versions now, and until this is dropped: what is committed by it is committed under it.
    /// Since this bucket was looked up all of a body has come, and versioning may keep by now what would be overwritten.
    pub(crate) async fn versioning_now(&self) -> RwLockReadGuard<'_, Versioning> {
        self.versioning_now.read().await
    }

    /// Changes what is set on it, and gives it as it is then. Where that is its versioning, nothing is committed meanwhile
    /// that goes by it.
    pub(crate) async fn changed(
        &self,
        setting: Setting,
        change: impl Future<Output = S3Result<Partition>>,
    ) -> S3Result<Self> {
        let switched = if setting == Setting::Versioning { Some(self.versioning_now.write().await) } else { None };
        let changed = Self::of(change.await?, self.home.clone());
        if let Some(mut switched) = switched {
            *switched = changed.versioning;
        }
        Ok(Self { versioning_now: Arc::clone(&self.versioning_now), ..changed })
    }

    /// Refuses a bucket of which a setting cannot be read.
    pub(crate) fn readable(&self) -> kura_block::Result<()> {
        self.unreadable.clone().map_or(Ok(()), Err)
    }
}

/// What is set on a bucket, while it is read.
struct Settings<'a> {
    attributes: &'a Attributes,
    unreadable: Vec<&'static str>,
}

impl Settings<'_> {
    fn read<T>(&mut self, setting: Setting, parse: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let read = parse(self.attributes.get(setting.attribute())?);
        if read.is_none() {
            self.unreadable.push(setting.attribute());
        }
        read
    }

    fn error(&self, bucket: &str) -> Option<Error> {
        let error = Error::corrupt(format!(
            "bucket {bucket}: what is set on it cannot be read ({}): set that anew or delete it, until then the bucket is \
             not served",
            self.unreadable.join(", ")
        ));
        (!self.unreadable.is_empty()).then_some(error)
    }
}

fn from_xml<T: for<'a> xml::Deserialize<'a>>(text: &[u8]) -> Option<T> {
    T::deserialize(&mut xml::Deserializer::new(text)).ok()
}

/// A setting as it is stored. It is read back before it is: what no start could read is refused where a client hears of it.
pub(crate) fn to_xml<T: xml::Serialize + for<'a> xml::Deserialize<'a>>(value: &T) -> S3Result<Vec<u8>> {
    let mut text = Vec::new();
    let written = value.serialize(&mut xml::Serializer::new(&mut text));
    written.map_err(|error| problem(S3ErrorCode::InvalidRequest, error.to_string()))?;
    let unreadable = || problem(S3ErrorCode::InvalidRequest, "this cannot be kept: it does not read back");
    from_xml::<T>(&text).map(|_| text).ok_or_else(unreadable)
}
