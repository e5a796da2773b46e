//! The addresses of what has a name.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// `text` as it stands in an address, in its path or its query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

pub(crate) fn volume(name: &str) -> String {
    format!("/api/v1/volumes/{}", encoded(name))
}

pub(crate) fn recording(volume: &str) -> String {
    format!("{}/recording", self::volume(volume))
}

pub(crate) fn snapshot(name: &str) -> String {
    format!("/api/v1/snapshots/{}", encoded(name))
}

pub(crate) fn schedule(volume: &str, prefix: &str) -> String {
    format!("/api/v1/snapshot-schedules/{}/{}", encoded(volume), encoded(prefix))
}

pub(crate) fn replica(volume: &str) -> String {
    format!("/api/v1/replicas/{}", encoded(volume))
}

pub(crate) fn bucket(name: &str) -> String {
    format!("/api/v1/buckets/{}", encoded(name))
}

pub(crate) fn object(bucket: &str, key: &str) -> String {
    format!("{}/objects/{}", self::bucket(bucket), encoded(key))
}

pub(crate) fn key(id: &str) -> String {
    format!("/api/v1/keys/{}", encoded(id))
}
