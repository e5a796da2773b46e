//! What this room reports, and its names.

use hyper::{Method, StatusCode};
use kura_object::{Fetched, Store};
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use std::time::Instant;

/// Requests answered, by `method`.
pub const REQUESTS: &str = "kura_s3_requests_total";
/// Requests refused, by `method` and `status`.
pub const ERRORS: &str = "kura_s3_errors_total";
/// Seconds from a request's head to its answer's, by `method`.
pub const LATENCY: &str = "kura_s3_latency_seconds";
/// Bytes of objects that came in.
pub const RECEIVED: &str = "kura_s3_received_bytes_total";
/// Bytes of objects that went out.
pub const SENT: &str = "kura_s3_sent_bytes_total";

/// Pieces of objects' content, of at most 1 MiB, that were read from memory.
pub const CACHE_HITS: &str = "kura_s3_cache_hits_total";
/// Pieces that were read from the volume: they were not in memory.
pub const CACHE_MISSES: &str = "kura_s3_cache_misses_total";
/// Bytes of objects' content that are in memory, to be read again.
pub const CACHED: &str = "kura_s3_cache_bytes";
/// The most of them.
pub const CACHE_LIMIT: &str = "kura_s3_cache_limit_bytes";

/// Tells the recorder that is installed what each of them means.
pub fn describe() {
    describe_counter!(REQUESTS, "S3 requests answered, by method");
    describe_counter!(ERRORS, "S3 requests refused, by method and status");
    describe_histogram!(LATENCY, Unit::Seconds, "Time from an S3 request's head to its answer's, by method");
    describe_counter!(RECEIVED, Unit::Bytes, "Bytes of objects that came in over S3");
    describe_counter!(SENT, Unit::Bytes, "Bytes of objects that went out over S3");
    describe_counter!(CACHE_HITS, "Pieces of objects' content, of at most 1 MiB, that were read from memory");
    describe_counter!(CACHE_MISSES, "Pieces that were read from the volume: they were not in memory");
    describe_gauge!(CACHED, Unit::Bytes, "Bytes of objects' content that are in memory, to be read again");
    describe_gauge!(CACHE_LIMIT, Unit::Bytes, "The most bytes of objects' content that are kept in memory");
}

/// A request under way.
pub(crate) struct Request {
    method: &'static str,
    begun: Instant,
}

impl Request {
    pub fn begin(method: &Method) -> Self {
        // What is no method of S3's has no label of its own: clients would make labels.
        let known = ["GET", "HEAD", "PUT", "POST", "DELETE"].into_iter().find(|known| *known == method.as_str());
        Self { method: known.unwrap_or("other"), begun: Instant::now() }
    }

    pub fn answered(self, status: StatusCode) {
        counter!(REQUESTS, "method" => self.method).increment(1);
        histogram!(LATENCY, "method" => self.method).record(self.begun.elapsed());
        if status.is_client_error() || status.is_server_error() {
            counter!(ERRORS, "method" => self.method, "status" => status.as_u16().to_string()).increment(1);
        }
    }
}

pub(crate) fn received(bytes: usize) {
    counter!(RECEIVED).increment(bytes as u64);
}

pub(crate) fn sent(bytes: usize) {
    counter!(SENT).increment(bytes as u64);
}

pub(crate) fn fetched(fetched: Fetched) {
    counter!(CACHE_HITS).increment(fetched.from_memory);
    counter!(CACHE_MISSES).increment(fetched.from_device);
}

/// Tells what a store keeps in memory.
pub(crate) fn cached(store: &Store) {
    if let Some((bytes, limit_bytes)) = store.recent_bytes() {
        gauge!(CACHED).set(bytes as f64);
        gauge!(CACHE_LIMIT).set(limit_bytes as f64);
    }
}
