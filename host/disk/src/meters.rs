//! What a disk reports of itself, and the names it does so under.

use metrics::{Counter, Histogram, Unit, counter, describe_counter, describe_histogram, histogram};
use std::path::Path;
use std::time::Instant;

const REQUESTS: &str = "kura_disk_requests_total";
const BYTES: &str = "kura_disk_bytes_total";
const ERRORS: &str = "kura_disk_errors_total";
const SECONDS: &str = "kura_disk_request_seconds";

/// One kind of request to one device.
pub(crate) struct Meter {
    requests: Counter,
    bytes: Counter,
    errors: Counter,
    seconds: Histogram,
}

/// The requests to one device, by kind. Handles are taken from the recorder that is installed when a disk is opened.
pub(crate) struct Meters {
    pub(crate) read: Meter,
    pub(crate) write: Meter,
    pub(crate) flush: Meter,
    pub(crate) discard: Meter,
}

impl Meters {
    pub(crate) fn of(path: &Path) -> Self {
        describe_counter!(REQUESTS, "Requests to a device, by kind");
        describe_counter!(BYTES, Unit::Bytes, "Bytes requested of a device, by kind");
        describe_counter!(
            ERRORS,
            "Requests that the operating system failed, by device and kind; the pool's own count is kura_disk_io_errors_total"
        );
        describe_histogram!(SECONDS, Unit::Seconds, "Time a device took, by kind");
        let device = path.display().to_string();
        let meter = |kind: &'static str| Meter {
            requests: counter!(REQUESTS, "device" => device.clone(), "kind" => kind),
            bytes: counter!(BYTES, "device" => device.clone(), "kind" => kind),
            errors: counter!(ERRORS, "device" => device.clone(), "kind" => kind),
            seconds: histogram!(SECONDS, "device" => device.clone(), "kind" => kind),
        };
        Self { read: meter("read"), write: meter("write"), flush: meter("flush"), discard: meter("discard") }
    }
}

impl Meter {
    /// Counts a request of `len_bytes` while it runs.
    pub(crate) async fn count<T, E>(
        &self,
        len_bytes: u64,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let begin = Instant::now();
        let result = request.await;
        self.requests.increment(1);
        self.seconds.record(begin.elapsed());
        match &result {
            Ok(_) => self.bytes.increment(len_bytes),
            Err(_) => self.errors.increment(1),
        }
        result
    }
}
