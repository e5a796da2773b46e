//! Headers with which nothing is done: those that ask for what is not supported, where an object would be stored otherwise than its
//! client believes, and those that s3s cannot read.

use crate::problem::{problem, unsupported};
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use s3s::{S3ErrorCode, S3Result};

/// How the names of headers begin that ask for what is not supported, and what that is; the longer beginnings come first.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("x-amz-copy-source-server-side-encryption-", "encryption with keys of the client"),
    ("x-amz-grant-", "granting by header"),
    ("x-amz-object-lock-", "object lock"),
    ("x-amz-server-side-encryption-customer-", "encryption with keys of the client"),
    ("x-amz-server-side-encryption", "server-side encryption"),
];
/// Metadata at which s3s 0.14.1 panics: a word that both begins and ends as an encoded one does, and has no room to do both.
const NO_WORD: &str = "=?=";

/// Refuses a request of such headers.
pub(crate) fn check(headers: &HeaderMap) -> S3Result<()> {
    for (name, value) in headers {
        let begins = |(begin, _): &&(&str, &str)| name.as_str().starts_with(begin);
        if let Some((_, what)) = UNSUPPORTED.iter().find(begins) {
            return Err(unsupported(what));
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
        for name in ["x-amz-acl", "x-amz-date", "x-amz-meta-x-amz-grant-read", "x-amz-copy-source"] {
            assert_eq!(code(name, "a"), None, "{name}");
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
