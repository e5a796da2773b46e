//! What a signature must be besides right: of version 4, over all headers that change what is done, and not for ever.
//!
//! s3s holds a signature against the headers that it lists, and then does what all headers say: whoever has another's
//! presigned URL could add what turns a put into a copy.

use crate::problem::{custom, problem};
use crate::query::{pairs, value};
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode, Uri};
use s3s::{S3ErrorCode, S3Result};

/// The longest time for which a URL may be presigned: a week, as in S3.
const EXPIRES_MOST_SECONDS: u64 = 604_800;
/// The most headers that a signature may be over: more than a request has here.
const SIGNED_MOST: usize = 128;
/// Before the names of headers that change what is done.
const AMZ: &str = "x-amz-";
/// What a presigned URL has of these in its query stays there: it is of the signature, of the SDK, or of a body that nobody knew
/// when the URL was made. The checksums that the JavaScript SDK puts there are those of nothing, and S3 takes no notice either.
const STAYS: [&str; 13] = [
    "x-amz-algorithm",
    "x-amz-checksum-crc",
    "x-amz-checksum-sha",
    "x-amz-content-sha256",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-decoded-content-length",
    "x-amz-expires",
    "x-amz-sdk-",
    "x-amz-security-token",
    "x-amz-signature",
    "x-amz-signedheaders",
    "x-amz-trailer",
];

/// Adds what a presigned URL says in place of headers, as those of the JavaScript SDK do: metadata, tags, an access list. It is
/// signed as all of the URL is.
pub(crate) fn lift(headers: &mut HeaderMap, uri: &Uri) -> S3Result<()> {
    let query = uri.query().unwrap_or_default();
    if value(query, "X-Amz-Signature").is_none() {
        return Ok(());
    }
    let mut lifted = HeaderMap::new();
    for (name, value) in pairs(query) {
        let name = name.to_ascii_lowercase();
        if !name.starts_with(AMZ) || STAYS.iter().any(|stays| name.starts_with(stays)) || headers.contains_key(&name) {
            continue;
        }
        match (HeaderName::try_from(&name), HeaderValue::try_from(value)) {
            (Ok(name), Ok(value)) => drop(lifted.append(name, value)),
            _ => {
                let text = format!("{name} in the query of a presigned URL is no header");
                return Err(problem(S3ErrorCode::InvalidArgument, text));
            }
        }
    }
    headers.extend(lifted);
    Ok(())
}

/// True when a presigned URL says all that these headers do.
fn is_in_url(query: &str, headers: &HeaderMap, name: &str) -> bool {
    let said = |value: &HeaderValue| {
        pairs(query).any(|(own, said)| own.eq_ignore_ascii_case(name) && said.as_bytes() == value.as_bytes())
    };
    headers.get_all(name).iter().all(said)
}

/// Refuses a request whose signature is right, but of version 2, for longer than a week, or not over all of its
/// `x-amz-` headers.
pub(crate) fn check(headers: &HeaderMap, uri: &Uri) -> S3Result<()> {
    let query = uri.query().unwrap_or_default();
    // s3s looks for version 2 first.
    if value(query, "Signature").is_some() || authorization(headers).starts_with("AWS ") {
        let text = "signatures of version 2 are not taken, as they never expire: use version 4 (AWS4-HMAC-SHA256)";
        return Err(problem(S3ErrorCode::InvalidRequest, text));
    }
    let presigned = value(query, "X-Amz-Signature").is_some();
    if presigned {
        let expires = value(query, "X-Amz-Expires").and_then(|text| text.parse::<u64>().ok());
        if expires.is_none_or(|seconds| seconds > EXPIRES_MOST_SECONDS) {
            let text = format!("X-Amz-Expires must be less than a week (in seconds) that is {EXPIRES_MOST_SECONDS}");
            return Err(custom("AuthorizationQueryParametersError", StatusCode::BAD_REQUEST, text));
        }
    }
    let listed = listed(headers, query);
    let unsigned = |name: &&str| {
        // The hash of a body that nobody knew when the URL was presigned.
        let is_of_body = presigned && *name == "x-amz-content-sha256";
        let is_in_url = presigned && is_in_url(query, headers, name);
        name.starts_with(AMZ) && !is_of_body && !is_in(&listed, name) && !is_in_url
    };
    let unsigned: Vec<&str> = headers.keys().map(HeaderName::as_str).filter(unsigned).collect();
    if unsigned.is_empty() {
        return Ok(());
    }
    let text = format!("There were headers present in the request which were not signed: {}", unsigned.join(", "));
    Err(problem(S3ErrorCode::AccessDenied, text))
}

/// Refuses a signature over more headers than a request has: s3s gathers them, one named again and again as well, before it holds the
/// signature against them.
pub(crate) fn check_listed(headers: &HeaderMap, uri: &Uri) -> S3Result<()> {
    let names = listed(headers, uri.query().unwrap_or_default()).split(';').count();
    if names <= SIGNED_MOST {
        return Ok(());
    }
    let text = format!("a signature is over {SIGNED_MOST} headers at most, not {names}");
    Err(problem(S3ErrorCode::InvalidArgument, text))
}

/// True when a header of this name is signed.
pub(crate) fn covers(name: &str, headers: &HeaderMap, uri: &Uri) -> bool {
    is_in(&listed(headers, uri.query().unwrap_or_default()), name)
}

/// The names of the headers that are signed, as s3s reads them: a URL's signature goes before the head's.
fn listed(headers: &HeaderMap, query: &str) -> String {
    if value(query, "X-Amz-Signature").is_some() {
        return value(query, "X-Amz-SignedHeaders").unwrap_or_default();
    }
    let mut parts = authorization(headers).split(',').map(str::trim_start);
    parts.find_map(|part| part.strip_prefix("SignedHeaders=")).unwrap_or_default().to_owned()
}

fn is_in(listed: &str, name: &str) -> bool {
    listed.split(';').any(|own| own == name)
}

fn authorization(headers: &HeaderMap) -> &str {
    let value = headers.get(AUTHORIZATION).and_then(|value| std::str::from_utf8(value.as_bytes()).ok());
    value.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION_4: &str = "AWS4-HMAC-SHA256 Credential=K/20261122/us-east-1/s3/aws4_request, \
                             SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=00";

    fn code(uri: &str, headers: &[(&'static str, &'static str)]) -> Option<String> {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let refused = check(&headers.collect(), &uri.parse().unwrap()).err()?;
        Some(refused.code().as_str().to_owned())
    }

    #[test]
    fn headers_that_change_what_is_done_are_signed() {
        let denied = Some("AccessDenied".to_owned());
        let signed = [("authorization", VERSION_4), ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), ("x-amz-date", "d")];
        assert_eq!(code("/b/k", &signed), None);
        for added in ["x-amz-copy-source", "X-Amz-Copy-Source", "x-amz-tagging", "x-amz-meta-a"] {
            assert_eq!(code("/b/k", &[&signed[..], &[(added, "/b/other")]].concat()), denied, "{added}");
        }
        assert_eq!(
            code("/b/k", &[&signed[..], &[("content-type", "text/plain"), ("range", "bytes=0-1")]].concat()),
            None
        );
        // A list in other letters is none to s3s either.
        let shouted: &str = VERSION_4.replace("x-amz-date", "X-Amz-Date").leak();
        assert_eq!(code("/b/k", &[("authorization", shouted), ("x-amz-date", "d")]), denied);
    }

    #[test]
    fn a_presigned_urls_list_is_read_in_any_encoding() {
        let url = |listed: &str| format!("/b/k?X-Amz-Expires=60&X-Amz-SignedHeaders={listed}&X-Amz-Signature=00");
        let denied = Some("AccessDenied".to_owned());
        let copy = ("x-amz-copy-source", "/b/other");
        assert_eq!(code(&url("host"), &[("x-amz-content-sha256", "UNSIGNED-PAYLOAD")]), None);
        assert_eq!(code(&url("host"), &[copy]), denied);
        assert_eq!(code(&url("host").replace("X-Amz-Signature", "X-Amz-%53ignature"), &[copy]), denied);
        // What else is in the request does not add to the list.
        let all = ("authorization", "AWS4-HMAC-SHA256 Credential=K, SignedHeaders=x-amz-copy-source, Signature=00");
        assert_eq!(code(&url("host"), &[copy, all]), denied);
        for listed in ["host;x-amz-copy-source", "host%3Bx-amz-copy-source", "host%3Bx-amz-copy%2dsource"] {
            assert_eq!(code(&url(listed), &[copy]), None, "{listed}");
        }
    }

    #[test]
    fn what_a_url_says_in_place_of_headers_is_signed() {
        let url = "/b/k?X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Content-Sha256=UNSIGNED-PAYLOAD&X-Amz-Meta-a=b%20c\
                   &x-amz-%74agging=k%3Dv&x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32\
                   &x-amz-checksum-mode=ENABLED";
        let lifted = |url: &str, headers: &[(&'static str, &'static str)]| {
            let own = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            let mut all: HeaderMap = own.collect();
            lift(&mut all, &url.parse().unwrap()).map(|()| all)
        };
        assert!(lifted(url, &[]).unwrap().is_empty(), "it is not signed");
        let signed = format!("{url}&X-Amz-Signature=00");
        let headers = lifted(&signed, &[]).unwrap();
        assert_eq!(headers.len(), 3, "{headers:?}");
        assert_eq!(headers["x-amz-checksum-mode"], "ENABLED");
        assert_eq!(headers["x-amz-meta-a"], "b c");
        assert_eq!(headers["x-amz-tagging"], "k=v");
        assert!(check(&headers, &signed.parse().unwrap()).is_ok());
        // Whoever says it, too, says nothing new; what is said otherwise, or besides, is not signed.
        assert_eq!(code(&signed, &[("x-amz-meta-a", "b c")]), None);
        let headers = lifted(&signed, &[("x-amz-meta-a", "other")]).unwrap();
        assert_eq!(headers["x-amz-meta-a"], "other");
        assert!(check(&headers, &signed.parse().unwrap()).is_err());
        for added in [("x-amz-meta-a", "other"), ("x-amz-meta-b", "b c"), ("x-amz-acl", "public-read")] {
            assert_eq!(code(&signed, &[added]).as_deref(), Some("AccessDenied"), "{added:?}");
            assert_eq!(code(&signed, &[("x-amz-meta-a", "b c"), added]).as_deref(), Some("AccessDenied"), "{added:?}");
        }
        for odd in ["x-amz-meta-a=b%0Ac", "x-amz-meta-%C3%BC=b", "x-amz-meta-a%3A=b"] {
            assert!(lifted(&format!("{signed}&{odd}").replace("X-Amz-Meta-a", "x"), &[]).is_err(), "{odd}");
        }
    }

    #[test]
    fn a_presigned_url_is_good_for_a_week() {
        let url = |seconds: &str| format!("/b/k?X-Amz-%45xpires={seconds}&X-Amz-SignedHeaders=host&X-Amz-Signature=00");
        assert_eq!(code(&url("604800"), &[]), None);
        for seconds in ["604801", "60480100000000000000000"] {
            assert_eq!(code(&url(seconds), &[]).as_deref(), Some("AuthorizationQueryParametersError"), "{seconds}");
        }
    }

    #[test]
    fn signatures_of_version_2_are_refused() {
        let refused = Some("InvalidRequest".to_owned());
        assert_eq!(code("/b/k", &[("authorization", "AWS KURA:c2lnbmF0dXJl")]), refused);
        for signature in ["Signature", "%53ignature"] {
            let url = format!("/b/k?AWSAccessKeyId=KURA&Expires=99999999999&{signature}=c2ln");
            assert_eq!(code(&url, &[]), refused);
            assert_eq!(code(&format!("{url}&X-Amz-Signature=00"), &[("authorization", VERSION_4)]), refused);
        }
    }

    #[test]
    fn a_signature_is_over_no_more_headers_than_there_are() {
        let check = |names: usize| {
            let listed = vec!["a"; names].join(";");
            let head = format!("AWS4-HMAC-SHA256 Credential=K, SignedHeaders={listed}, Signature=00");
            let headers = [(AUTHORIZATION, HeaderValue::try_from(head).unwrap())].into_iter().collect();
            let url = format!("/b/k?X-Amz-SignedHeaders={listed}&X-Amz-Signature=00");
            [check_listed(&headers, &Uri::from_static("/b/k")), check_listed(&HeaderMap::new(), &url.parse().unwrap())]
        };
        assert!(check(SIGNED_MOST).iter().all(Result::is_ok));
        assert!(check(SIGNED_MOST + 1).iter().all(Result::is_err));
    }
}
