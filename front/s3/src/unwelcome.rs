//! Headers with which nothing is done: those that ask for what is not supported, where an object would be stored otherwise than its
//! client believes, and those that s3s cannot read.

use crate::list::OWNER;
use crate::problem::{problem, unsupported};
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use s3s::{S3ErrorCode, S3Result};

/// How the names of headers begin that ask for what is not supported, the values with which they do not, and what that is; the longer
/// beginnings come first.
const UNSUPPORTED: &[(&str, &[&str], &str)] = &[
    // Everything is its owner's.
    ("x-amz-acl", &["private", "bucket-owner-full-control"], "an ACL other than private"),
    ("x-amz-copy-source-server-side-encryption-", &[], "encryption with keys of the client"),
    ("x-amz-grant-", &[], "granting by header"),
    ("x-amz-object-lock-", &[], "object lock"),
    ("x-amz-server-side-encryption-customer-", &[], "encryption with keys of the client"),
    ("x-amz-server-side-encryption", &[], "server-side encryption"),
    ("x-amz-storage-class", &["STANDARD"], "a storage class other than STANDARD"),
    ("x-amz-write-offset-bytes", &[], "writing at an offset"),
];
/// Headers that say whom a bucket must belong to.
const OWNERS: [&str; 2] = ["x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"];
/// Metadata at which s3s 0.14.1 panics: a word that both begins and ends as an encoded one does, and has no room to do both.
const NO_WORD: &str = "=?=";

/// Refuses a request of such headers.
pub(crate) fn check(headers: &HeaderMap) -> S3Result<()> {
    for (name, value) in headers {
        let is_one_of = |allowed: &[&str]| allowed.iter().any(|allowed| value == allowed);
        let asks = UNSUPPORTED.iter().find(|(begin, ..)| name.as_str().starts_with(begin));
        if let Some((_, _, what)) = asks.filter(|(_, allowed, _)| !is_one_of(allowed)) {
            return Err(unsupported(what));
        }
        if OWNERS.contains(&name.as_str()) && value != OWNER {
            let text = format!("{name}: every bucket here belongs to {OWNER}");
            return Err(problem(S3ErrorCode::AccessDenied, text));
        }
        if is_no_word(name, value) {
            let text = format!("{name}: {NO_WORD} is no encoded word");
            return Err(problem(S3ErrorCode::InvalidArgument, text));
        }
    }
    Ok(())
}

fn is_no_word(name: &HeaderName, value: &HeaderValue) -> bool {
    name.as_str().starts_with("x-amz-meta-")
        && String::from_utf8_lossy(value.as_bytes()).split_whitespace().any(|word| word == NO_WORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(name: &'static str, value: &str) -> Option<String> {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        let refused = check(&[(HeaderName::from_static(name), value)].into_iter().collect()).err()?;
        Some(refused.code().as_str().to_owned())
    }

    #[test]
    fn what_is_not_supported_is_refused_by_its_beginning() {
        for (name, value) in [
            ("x-amz-grant-write-acp", "id=1"),
            ("x-amz-object-lock-retain-until-date", "2030-01-01T00:00:00Z"),
            ("x-amz-server-side-encryption", "AES256"),
            ("x-amz-server-side-encryption-customer-key", "a"),
            ("x-amz-copy-source-server-side-encryption-customer-key", "a"),
        ] {
            assert_eq!(code(name, value).as_deref(), Some("NotImplemented"), "{name}");
        }
        for name in ["x-amz-date", "x-amz-meta-x-amz-grant-read", "x-amz-copy-source"] {
            assert_eq!(code(name, "a"), None, "{name}");
        }
    }

    #[test]
    fn what_is_so_anyhow_may_be_asked_for() {
        let refused = Some("NotImplemented");
        for (name, value, expected) in [
            ("x-amz-acl", "private", None),
            ("x-amz-acl", "bucket-owner-full-control", None),
            ("x-amz-acl", "public-read", refused),
            ("x-amz-storage-class", "STANDARD", None),
            ("x-amz-storage-class", "GLACIER", refused),
            ("x-amz-write-offset-bytes", "0", refused),
            ("x-amz-expected-bucket-owner", "kura", None),
            ("x-amz-expected-bucket-owner", "111122223333", Some("AccessDenied")),
            ("x-amz-source-expected-bucket-owner", "", Some("AccessDenied")),
        ] {
            assert_eq!(code(name, value).as_deref(), expected, "{name}: {value}");
        }
    }

    #[test]
    fn what_s3s_panics_at_does_not_come_to_it() {
        for value in ["=?=", " =?= ", "=?utf-8?q?a?= =?=", "=?=\u{2003}=?="] {
            assert_eq!(code("x-amz-meta-a", value).as_deref(), Some("InvalidArgument"), "{value:?}");
        }
        for value in ["=?", "?=", "=??=", "=?utf-8?q?a?=", "a=?=", "=?=b"] {
            assert_eq!(code("x-amz-meta-a", value), None, "{value:?}");
        }
        assert_eq!(code("x-amz-tagging", "=?="), None);
    }
}
