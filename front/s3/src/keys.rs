//! Access keys: whom a signature names, and what they may do besides what bucket policies say.

use kura_block::{Error, Result};
use kura_object::Attributes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// What a key may do in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grant {
    /// List the bucket, and read its objects.
    Read,
    /// Store and delete objects.
    Write,
    /// Both.
    ReadWrite,
}

impl Grant {
    pub(crate) fn reads(self) -> bool {
        self != Self::Write
    }

    pub(crate) fn writes(self) -> bool {
        self != Self::Read
    }
}

/// What a new key is to be.
#[derive(Clone, Debug, Default)]
pub struct NewKey {
    /// A name for people.
    pub name: String,
    /// What it may do, by bucket; none stands for everything, in every bucket.
    pub buckets: BTreeMap<String, Grant>,
}

/// An access key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// What a request shows.
    pub id: String,
    /// What it is signed with.
    pub secret: String,
    /// A name for people.
    pub name: String,
    /// What it may do, by bucket; none stands for everything, in every bucket.
    pub buckets: BTreeMap<String, Grant>,
    /// When it was made: milliseconds since 1970.
    pub created_ms: u64,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Key {
    /// A key that nobody can guess.
    pub(crate) fn generate(new: NewKey, created_ms: u64) -> Self {
        let random = || Uuid::new_v4().simple().to_string();
        let id = format!("KURA{}", &random().to_uppercase()[..16]);
        Self { id, secret: random() + &random()[..8], name: new.name, buckets: new.buckets, created_ms }
    }

    /// True when it may do everything.
    pub(crate) fn owns_all(&self) -> bool {
        self.buckets.is_empty()
    }

    /// What is stored of it.
    pub(crate) fn attributes(&self) -> Attributes {
        let buckets = self.buckets.iter().map(|(bucket, grant)| {
            let grant: &[u8] = match grant {
                Grant::Read => b"read",
                Grant::Write => b"write",
                Grant::ReadWrite => b"read-write",
            };
            (format!("bucket:{bucket}"), grant.to_vec())
        });
        let own = [("secret", self.secret.as_bytes()), ("name", self.name.as_bytes())];
        own.into_iter().map(|(name, value)| (name.to_owned(), value.to_vec())).chain(buckets).collect()
    }

    /// The key that is stored so.
    pub(crate) fn of(id: &[u8], created_ms: u64, attributes: &Attributes) -> Result<Self> {
        let id = String::from_utf8_lossy(id).into_owned();
        let corrupt = || Error::corrupt("it has no secret, or grants what this kura does not know");
        let text = |value: &Vec<u8>| String::from_utf8(value.clone()).map_err(|_| corrupt());
        let mut buckets = BTreeMap::new();
        for (name, value) in attributes {
            let Some(bucket) = name.strip_prefix("bucket:") else { continue };
            let grant = match value.as_slice() {
                b"read" => Grant::Read,
                b"write" => Grant::Write,
                b"read-write" => Grant::ReadWrite,
                _ => return Err(corrupt()),
            };
            buckets.insert(bucket.to_owned(), grant);
        }
        let secret = text(attributes.get("secret").ok_or_else(corrupt)?)?;
        let name = attributes.get("name").map(text).transpose()?.unwrap_or_default();
        Ok(Self { id, secret, name, buckets, created_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_stored() {
        let buckets = [("one".to_owned(), Grant::Read), ("two".to_owned(), Grant::ReadWrite)].into();
        let key = Key::generate(NewKey { name: "backup".into(), buckets }, 5);
        assert_eq!(Key::of(key.id.as_bytes(), 5, &key.attributes()).unwrap(), key);
        assert_eq!((key.id.len(), key.secret.len()), (20, 40));
        assert!(!format!("{key:?}").contains(&key.secret));
    }

    #[test]
    fn a_key_without_its_secret_is_no_key() {
        assert!(Key::of(b"KURA", 5, &Attributes::new()).is_err());
    }
}
