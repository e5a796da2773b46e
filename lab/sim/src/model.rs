//! How long devices take.

use serde::{Deserialize, Serialize};

/// What an operation is, to a service-time model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// The volatile cache is emptied.
    Flush,
    /// Space is given back.
    Discard,
    /// A range is made to read as zeroes.
    WriteZeroes,
}

/// An operation as a service-time model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// What it does.
    pub kind: IoKind,
    /// Where it begins, in bytes; 0 for a flush.
    pub offset_bytes: u64,
    /// How many bytes it covers; 0 for a flush.
    pub len_bytes: u64,
}

/// How long a device takes over an operation. Operations wait in one queue, first come first served, until one of the
/// device's channels is free.
pub trait ServiceModel: Send {
    /// Operations served at the same time.
    fn channels(&self) -> usize {
        1
    }

    /// Nanoseconds that `io` takes when its service begins at `start_ns`. Called once an operation, in the order in
    /// which services begin; `start_ns` never falls.
    fn service_ns(&mut self, io: &Io, start_ns: u64) -> u64;
}

/// Every operation takes the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Nanoseconds of any operation.
    pub service_ns: u64,
    /// Operations served at the same time; without bound unless it is said.
    #[serde(default = "unbounded", skip_serializing_if = "is_unbounded")]
    pub channels: usize,
}

const fn unbounded() -> usize {
    usize::MAX
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_unbounded(channels: &usize) -> bool {
    *channels == unbounded()
}

impl ServiceModel for Constant {
    fn channels(&self) -> usize {
        self.channels
    }

    fn service_ns(&mut self, _: &Io, _: u64) -> u64 {
        self.service_ns
    }
}

/// A solid-state device: a latency on one of several channels, then the transfer on a link that all channels share, one
/// for each direction.
///
/// ```text
///   channel 1  |latency|==|            a read alone:       latency + bytes / bandwidth
///   channel 2  |latency|  |==|         reads at depth n:   the link's bandwidth, or n / latency where n is small
///   link               |==|==|
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ssd {
    spec: SsdSpec,
    read_link_free_ns: u64,
    write_link_free_ns: u64,
}

/// What a solid-state device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsdSpec {
    /// Operations served at the same time.
    pub channels: usize,
    /// Nanoseconds before a read's first byte.
    pub read_latency_ns: u64,
    /// Nanoseconds before a write is acknowledged, beside its transfer.
    pub write_latency_ns: u64,
    /// Nanoseconds of a flush.
    pub flush_latency_ns: u64,
    /// Bytes a second that the device reads.
    pub read_bytes_per_s: u64,
    /// Bytes a second that the device writes.
    pub write_bytes_per_s: u64,
}

impl SsdSpec {
    /// A data-centre `NVMe` device: 80 us and 3 GB/s reads, 15 us and 1.5 GB/s writes, 32 channels.
    pub fn nvme() -> Self {
        Self {
            channels: 32,
            read_latency_ns: 80_000,
            write_latency_ns: 15_000,
            flush_latency_ns: 100_000,
            read_bytes_per_s: 3_000_000_000,
            write_bytes_per_s: 1_500_000_000,
        }
    }

    /// A SATA device: 100 us and 530 MB/s reads, 50 us and 480 MB/s writes, 8 channels.
    pub fn sata() -> Self {
        Self {
            channels: 8,
            read_latency_ns: 100_000,
            write_latency_ns: 50_000,
            flush_latency_ns: 1_000_000,
            read_bytes_per_s: 530_000_000,
            write_bytes_per_s: 480_000_000,
        }
    }
}

impl Ssd {
    /// A device that begins idle.
    pub fn new(spec: SsdSpec) -> Self {
        Self { spec, read_link_free_ns: 0, write_link_free_ns: 0 }
    }
}

/// When a transfer that is ready at `ready_ns` has passed the link that is free at `free_ns`.
fn pass(free_ns: &mut u64, ready_ns: u64, len_bytes: u64, bytes_per_s: u64) -> u64 {
    let transfer_ns = u128::from(len_bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
    *free_ns = ready_ns.max(*free_ns).saturating_add(transfer_ns as u64);
    *free_ns
}

impl ServiceModel for Ssd {
    fn channels(&self) -> usize {
        self.spec.channels
    }

    fn service_ns(&mut self, io: &Io, start_ns: u64) -> u64 {
        let spec = &self.spec;
        match io.kind {
            IoKind::Read => {
                let ready_ns = start_ns.saturating_add(spec.read_latency_ns);
                pass(&mut self.read_link_free_ns, ready_ns, io.len_bytes, spec.read_bytes_per_s) - start_ns
            }
            IoKind::Write => {
                let ready_ns = start_ns.saturating_add(spec.write_latency_ns);
                pass(&mut self.write_link_free_ns, ready_ns, io.len_bytes, spec.write_bytes_per_s) - start_ns
            }
            IoKind::Flush => spec.flush_latency_ns,
            IoKind::Discard | IoKind::WriteZeroes => spec.write_latency_ns,
        }
    }
}
