//! The checksums that S3 knows, in one table: what is done with each of them goes through it. Only S3's inputs and outputs, each
//! of a type of its own with the same five fields, are read and filled by name.

use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
use s3s::dto::Checksum;

/// Before an algorithm in the name of a header.
pub(crate) const CHECKSUM: &str = "x-amz-checksum-";

/// One of them.
pub(crate) struct Algorithm {
    /// In small letters.
    pub name: &'static str,
    /// The header that has it, and the attribute that it is kept as.
    pub header: &'static str,
    /// What there is of it.
    pub value: fn(&Checksum) -> Option<&String>,
    set: fn(&mut Checksum, Option<String>),
    /// Has it computed.
    pub begin: fn(&mut ChecksumHasher),
}

macro_rules! algorithm {
    ($name:literal, $field:ident, $hasher:ident: $kind:ty) => {
        Algorithm {
            name: $name,
            header: concat!("x-amz-checksum-", $name),
            value: |checksum| checksum.$field.as_ref(),
            set: |checksum, value| checksum.$field = value,
            begin: |hashers| hashers.$hasher = Some(<$kind>::new()),
        }
    };
}

pub(crate) static ALGORITHMS: [Algorithm; 5] = [
    algorithm!("crc32", checksum_crc32, crc32: Crc32),
    algorithm!("crc32c", checksum_crc32c, crc32c: Crc32c),
    algorithm!("crc64nvme", checksum_crc64nvme, crc64nvme: Crc64Nvme),
    algorithm!("sha1", checksum_sha1, sha1: Sha1),
    algorithm!("sha256", checksum_sha256, sha256: Sha256),
];

/// The checksums of these values, each by the name of its header.
pub(crate) fn checksum_of(value: impl Fn(&str) -> Option<String>) -> Checksum {
    let mut checksum = Checksum::default();
    for algorithm in &ALGORITHMS {
        (algorithm.set)(&mut checksum, value(algorithm.header));
    }
    checksum
}

/// Those that are there, each with its value.
pub(crate) fn values(checksum: &Checksum) -> impl Iterator<Item = (&'static Algorithm, &String)> {
    ALGORITHMS.iter().filter_map(|algorithm| Some((algorithm, (algorithm.value)(checksum)?)))
}

/// The checksums in an input of S3's.
macro_rules! said_checksums {
    ($input:expr) => {{
        let input = &$input;
        s3s::dto::Checksum {
            checksum_crc32: input.checksum_crc32.clone(),
            checksum_crc32c: input.checksum_crc32c.clone(),
            checksum_crc64nvme: input.checksum_crc64nvme.clone(),
            checksum_sha1: input.checksum_sha1.clone(),
            checksum_sha256: input.checksum_sha256.clone(),
            checksum_type: None,
        }
    }};
}

/// Shows checksums in an output of S3's.
macro_rules! show_checksums {
    ($output:expr, $checksum:expr) => {{
        let (output, checksum): (_, s3s::dto::Checksum) = (&mut $output, $checksum);
        output.checksum_crc32 = checksum.checksum_crc32;
        output.checksum_crc32c = checksum.checksum_crc32c;
        output.checksum_crc64nvme = checksum.checksum_crc64nvme;
        output.checksum_sha1 = checksum.checksum_sha1;
        output.checksum_sha256 = checksum.checksum_sha256;
    }};
}

pub(crate) use {said_checksums, show_checksums};
