//! Bodies that are documents, XML mostly, and not objects' contents: s3s takes them as a whole, without a look at what their
//! sender says of them, and its reader leaves out what stands in CDATA sections.
//!
//! ```text
//!   watch ─> signature ─> access: is one, and this is said of it ─> s3s reads ─> its end: as said? ─> what it asks for is done
//!                                                                                  └ no: the body breaks off, and the
//!                                                                                    answer says why
//! ```

use crate::body::digest::Said;
use crate::problem::{problem, unsupported};
use hyper::HeaderMap;
use hyper::header::CONTENT_LENGTH;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Md5};
use s3s::dto::Checksum;
use s3s::{S3Error, S3ErrorCode, S3Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The largest one. Completing an upload of 10,000 parts, with all five checksums of each, takes 3.6 million bytes, and deleting
/// 1,000 keys of 1,024 bytes by their versions 1.2 million.
pub(crate) const DOCUMENT_BYTES: usize = 4 << 20;
/// What begins a section of text that is not looked through for tags.
const CDATA: &[u8] = b"<![CDATA[";

/// A request's body, as far as it is one. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Document(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// `None` while nobody knows that it is one.
    coming: Option<Coming>,
    refusal: Option<S3Error>,
}

/// One that is being read.
struct Coming {
    said: Said,
    md5: Md5,
    sums: ChecksumHasher,
    xml: Option<Sought>,
    bytes: usize,
}

/// What is sought for CDATA sections, so far.
#[derive(Default)]
struct Sought {
    /// The last bytes, with which one may begin.
    last: Vec<u8>,
    found: bool,
}

impl Document {
    /// Says that the body is one, of a request with this head.
    pub fn expect(&self, operation: &str, headers: &HeaderMap) -> S3Result<()> {
        if headers.get("x-amz-content-sha256").is_some_and(|hash| hash.as_bytes().starts_with(b"STREAMING-")) {
            return Err(unsupported("a body in chunks (aws-chunked) that is no object's content"));
        }
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        if length.and_then(|length| length.parse().ok()).is_some_and(|length: u64| length > DOCUMENT_BYTES as u64) {
            return Err(too_long());
        }
        let mut said = Said::of_headers(headers);
        if operation == "CompleteMultipartUpload" {
            // They are the object's.
            said.checksum = Checksum::default();
        }
        let xml = (operation != "PutBucketPolicy").then(Sought::default);
        let sums = said.sums()?;
        self.state().coming = Some(Coming { said, md5: Md5::new(), sums, xml, bytes: 0 });
        Ok(())
    }

    /// The next bytes: false when they are too many.
    pub fn push(&self, bytes: &[u8]) -> bool {
        let mut state = self.state();
        if let Some(coming) = &mut state.coming {
            coming.bytes += bytes.len();
            if coming.bytes > DOCUMENT_BYTES {
                (state.coming, state.refusal) = (None, Some(too_long()));
                return false;
            }
            coming.md5.update(bytes);
            coming.sums.update(bytes);
            if let Some(sought) = &mut coming.xml {
                sought.push(bytes);
            }
        }
        true
    }

    /// Says that this was all: whether it is as it should be.
    pub fn end(&self) -> bool {
        let mut state = self.state();
        if let Some(coming) = state.coming.take() {
            state.refusal = coming.check().err();
        }
        state.refusal.is_none()
    }

    /// Why it was refused.
    pub fn refusal(&self) -> Option<S3Error> {
        self.state().refusal.take()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_long() -> S3Error {
    problem(S3ErrorCode::MaxMessageLengthExceeded, format!("a request's XML takes at most {DOCUMENT_BYTES} bytes"))
}

impl Coming {
    fn check(self) -> S3Result<()> {
        self.said.hold(self.md5.finalize(), self.sums)?;
        if self.xml.is_some_and(|sought| sought.found) {
            let text = "CDATA sections are not read: write &lt; for <, and &amp; for &";
            return Err(problem(S3ErrorCode::MalformedXML, text));
        }
        Ok(())
    }
}

impl Sought {
    fn push(&mut self, bytes: &[u8]) {
        self.last.extend_from_slice(bytes);
        self.found |= self.last.windows(CDATA.len()).any(|window| window == CDATA);
        self.last.drain(..self.last.len().saturating_sub(CDATA.len() - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_found_wherever_a_piece_ends() {
        let text = b"<Key>abc<![CDATA[def]]></Key>";
        for at in 0..text.len() {
            let mut sought = Sought::default();
            sought.push(&text[..at]);
            sought.push(&text[at..]);
            assert!(sought.found, "{at}");
        }
        let mut sought = Sought::default();
        for piece in [b"<![CDA".as_slice(), b"", b"<![CDATA", b"", b"(["] {
            sought.push(piece);
        }
        assert!(!sought.found);
    }
}
