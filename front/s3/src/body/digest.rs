//! What a body hashes to, held against what its sender said. Done on the doors' thread, as the bytes come.

use crate::body::md5::{Md5, Sum};
use crate::checksums::{ALGORITHMS, Algorithm, CHECKSUM, checksum_of, values};
use crate::problem::{custom, problem};
use hyper::{HeaderMap, StatusCode};
use kura_block::Buf;
use s3s::checksum::ChecksumHasher;
use s3s::dto::Checksum;
use s3s::{S3ErrorCode, S3Result, TrailingHeaders};

/// What a sender says of a body.
#[derive(Default)]
pub(crate) struct Said {
    /// Base64 of its MD5.
    pub md5: Option<String>,
    /// Checksums that stood in the request's head.
    pub checksum: Checksum,
    /// An algorithm that is asked for, or announced for the trailer.
    pub algorithm: Option<String>,
    /// Names of checksums that are announced for the trailer.
    pub owed: Vec<String>,
    /// What comes behind the body.
    pub trailers: Option<TrailingHeaders>,
}

/// The checksums that a request's head announces for its trailer.
fn owed(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all("x-amz-trailer").iter().filter_map(|value| value.to_str().ok());
    let names = values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase());
    names.filter(|name| name.starts_with(CHECKSUM)).collect()
}

/// A body's hashes so far.
pub(crate) struct Digest {
    md5: Md5,
    sums: ChecksumHasher,
    said: Said,
}

/// What a whole body is.
pub(crate) struct Digested {
    pub md5: Sum,
    /// The checksums that were said or asked for.
    pub checksum: Checksum,
}

impl Said {
    /// What a request says of its body, in its head and in what comes behind the body.
    pub fn of_request(headers: &HeaderMap, trailers: Option<TrailingHeaders>) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let owed = owed(headers);
        let announced = owed.first().and_then(|name| name.strip_prefix(CHECKSUM));
        // Of what SDKs ask for, s3s reads nothing.
        let asked = || text("x-amz-checksum-algorithm").or_else(|| text("x-amz-sdk-checksum-algorithm"));
        let algorithm = announced.or_else(asked).map(str::to_ascii_lowercase);
        Self { algorithm, owed, trailers, ..Self::of_headers(headers) }
    }

    /// What a request's head says of its body, apart from checksums in its trailer.
    pub fn of_headers(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let checksum = checksum_of(text);
        Self { md5: text("content-md5"), checksum, ..Self::default() }
    }

    /// True when no checksum is said, announced or asked for but of this algorithm.
    pub fn is_only(&self, algorithm: &str) -> bool {
        let owed = self.owed.iter().filter_map(|name| name.strip_prefix(CHECKSUM));
        let mut named = values(&self.checksum).map(|(said, _)| said.name).chain(owed).chain(self.algorithm.as_deref());
        named.all(|named| named == algorithm)
    }

    /// What is to be computed.
    pub fn sums(&self) -> S3Result<ChecksumHasher> {
        let mut sums = ChecksumHasher::default();
        for algorithm in &ALGORITHMS {
            let is_asked = self.algorithm.as_deref() == Some(algorithm.name);
            if is_asked || (algorithm.value)(&self.checksum).is_some() {
                (algorithm.begin)(&mut sums);
            }
        }
        let md5 = self.md5.as_ref().map(|md5| base64_simd::STANDARD.decode_to_vec(md5));
        match md5 {
            Some(bytes) if !bytes.as_ref().is_ok_and(|bytes| bytes.len() == 16) => {
                Err(problem(S3ErrorCode::InvalidDigest, "Content-MD5 is not base64 of 16 bytes"))
            }
            _ => Ok(sums),
        }
    }

    /// Holds all of it against what was computed of the body.
    pub fn hold(self, md5: Sum, sums: ChecksumHasher) -> S3Result<Digested> {
        if self.md5.is_some_and(|said| said != base64_simd::STANDARD.encode_to_string(md5)) {
            return Err(problem(S3ErrorCode::BadDigest, "Content-MD5 is not that of the body"));
        }
        let checksum = sums.finalize();
        let trailers = self.trailers.and_then(|trailers| trailers.take()).unwrap_or_default();
        if let Some(name) = self.owed.iter().find(|name| !trailers.contains_key(name.as_str())) {
            let text = format!("x-amz-trailer announces {name}, and it did not come behind the body");
            return Err(custom("MalformedTrailerError", StatusCode::BAD_REQUEST, text));
        }
        for Algorithm { header, value, .. } in &ALGORITHMS {
            let in_trailer = trailers.get(*header).map(hyper::header::HeaderValue::as_bytes);
            for said in value(&self.checksum).map(String::as_bytes).into_iter().chain(in_trailer) {
                if value(&checksum).is_none_or(|real| real.as_bytes() != said) {
                    return Err(problem(S3ErrorCode::BadDigest, format!("{header} is not that of the body")));
                }
            }
        }
        Ok(Digested { md5, checksum })
    }
}

impl Digest {
    pub fn new(said: Said) -> S3Result<Self> {
        Ok(Self { md5: Md5::default(), sums: said.sums()?, said })
    }

    /// The next piece, whole blocks of MD5 unless it is the last one.
    pub async fn push(&mut self, piece: &Buf) {
        self.sums.update(piece);
        self.md5.push(piece.clone()).await;
    }

    /// Holds all that was said against the body.
    pub async fn finish(self) -> S3Result<Digested> {
        let Self { md5, sums, said } = self;
        said.hold(md5.finish().await, sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn finish(said: Said) -> S3Result<Digested> {
        let mut digest = Digest::new(said)?;
        digest.push(&Buf::copy_of(b"hello")).await;
        digest.finish().await
    }

    #[tokio::test]
    async fn what_is_said_is_held_against_the_body() {
        let md5 = |text: &str| Said { md5: Some(text.to_owned()), ..Said::default() };
        assert!(finish(md5("XUFAKrxLKna5cZ2REBfFkg==")).await.is_ok());
        assert_eq!(*finish(md5("AUFAKrxLKna5cZ2REBfFkg==")).await.err().unwrap().code(), S3ErrorCode::BadDigest);
        assert_eq!(*finish(md5("nonsense")).await.err().unwrap().code(), S3ErrorCode::InvalidDigest);
        let crc = async |text: &str| {
            let checksum = Checksum { checksum_crc32: Some(text.to_owned()), ..Checksum::default() };
            finish(Said { checksum, ..Said::default() }).await
        };
        assert_eq!(crc("NhCmhg==").await.unwrap().checksum.checksum_crc32.unwrap(), "NhCmhg==");
        assert_eq!(*crc("AAAAAA==").await.err().unwrap().code(), S3ErrorCode::BadDigest);
    }

    #[tokio::test]
    async fn what_is_only_asked_for_is_told() {
        let digested = finish(Said { algorithm: Some("sha1".to_owned()), ..Said::default() }).await.unwrap();
        assert_eq!(digested.checksum.checksum_sha1.unwrap(), "qvTGHdzF6KLavt4PO0gs2a6pQ00=");
        assert!(digested.checksum.checksum_crc32.is_none());
    }
}
