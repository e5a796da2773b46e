//! What stands in a request's query: how it is read, and which names mean something in a request that changes something.
//!
//! s3s takes a request whose query has no name that it knows for the plain operation on its path: `DELETE /b?metadataConfiguration`
//! would delete the bucket, and `PUT /b/k?renameObject` store an empty object.

use crate::problem::{problem, unsupported};
use hyper::{Method, Uri};
use percent_encoding::percent_decode_str;
use s3s::{S3ErrorCode, S3Result};

/// What makes a request another one than the plain one on its path, or goes along with that, as s3s 0.14.1 has it in
/// `resolve_route`: what is not supported among it is refused by its operation's name.
const PUT_BUCKET: &[&str] = &[
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "lifecycle",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "tagging",
    "versioning",
    "website",
];
const PUT_OBJECT: &[&str] = &["acl", "legal-hold", "partNumber", "retention", "tagging", "uploadId", "versionId"];
const POST_BUCKET: &[&str] = &["delete", "metadataTable"];
const POST_OBJECT: &[&str] = &["restore", "select", "select-type", "uploadId", "uploads", "versionId"];
const DELETE_BUCKET: &[&str] = &[
    "analytics",
    "cors",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "lifecycle",
    "metadataTable",
    "metrics",
    "ownershipControls",
    "policy",
    "publicAccessBlock",
    "replication",
    "tagging",
    "website",
];
const DELETE_OBJECT: &[&str] = &["tagging", "uploadId", "versionId"];
/// What a bucket has several of, by an `id`.
const WITH_ID: &[&str] = &["analytics", "intelligent-tiering", "inventory", "metrics"];
/// What a version of an object is named with, where something is changed: what is stored is always a new one.
const OF_VERSION: &[&str] = &["acl", "legal-hold", "restore", "retention", "select", "tagging"];
/// The most names in a query: a presigned URL may have metadata there, which has at most 2 KB in S3. Looking for a name in a query
/// takes as long as the query is.
const MOST_NAMES: usize = 128;
/// A signature of version 2, which is refused as such.
const VERSION_2: &[&str] = &["AWSAccessKeyId", "Expires", "Signature"];

/// Names and values of a query, as s3s reads them.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    let plain = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    query.split('&').map(move |pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (plain(name), plain(value))
    })
}

/// The first value of this name.
pub(crate) fn value(query: &str, name: &str) -> Option<String> {
    pairs(query).find(|(own, _)| own == name).map(|(_, value)| value)
}

/// Refuses a query of too many names, and a request that changes something and whose query asks for more than is known here. Names
/// that begin with `x-` are anybody's, as in S3: of a signature (`X-Amz-...`), of an SDK (`x-id`), or for the log.
pub(crate) fn check(method: &Method, uri: &Uri) -> S3Result<()> {
    let query = uri.query().unwrap_or_default();
    if query.split('&').count() > MOST_NAMES {
        let text = format!("a query has at most {MOST_NAMES} names");
        return Err(problem(S3ErrorCode::InvalidArgument, text));
    }
    let is_object = is_of_object(uri.path());
    let known = match (method, is_object) {
        (&Method::PUT, false) => PUT_BUCKET,
        (&Method::PUT, true) => PUT_OBJECT,
        (&Method::POST, false) => POST_BUCKET,
        (&Method::POST, true) => POST_OBJECT,
        (&Method::DELETE, false) => DELETE_BUCKET,
        (&Method::DELETE, true) => DELETE_OBJECT,
        _ => return Ok(()),
    };
    let is_anybodys = |name: &str| name.get(..2).is_some_and(|begin| begin.eq_ignore_ascii_case("x-"));
    let is_one_of_several = |name: &str| name == "id" && WITH_ID.iter().any(|of| value(query, of).is_some());
    let is_known = |name: &str| {
        name.is_empty()
            || is_anybodys(name)
            || is_one_of_several(name)
            || known.contains(&name)
            || VERSION_2.contains(&name)
    };
    if let Some((name, _)) = pairs(query).find(|(name, _)| !is_known(name)) {
        let what = if is_object { "an object" } else { "a bucket" };
        return Err(unsupported(&format!("{method} of {what} with {name:?} in its query")));
    }
    let has = |name: &str| value(query, name).is_some();
    if method != Method::DELETE && is_object && has("versionId") && !OF_VERSION.iter().any(|of| has(of)) {
        return Err(problem(S3ErrorCode::InvalidArgument, "this operation does not take a versionId"));
    }
    if method == Method::PUT && is_object && has("uploadId") != has("partNumber") {
        let text = "a part is stored with both partNumber and uploadId in its query";
        return Err(problem(S3ErrorCode::InvalidArgument, text));
    }
    Ok(())
}

/// True for a path of an object, as s3s reads it.
fn is_of_object(path: &str) -> bool {
    let path = percent_decode_str(path).decode_utf8_lossy();
    path.strip_prefix('/').and_then(|path| path.split_once('/')).is_some_and(|(_, key)| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(method: Method, uri: &str) -> Option<String> {
        let refused = check(&method, &uri.parse().unwrap()).err()?;
        Some(refused.code().as_str().to_owned())
    }

    #[test]
    fn what_nobody_knows_is_not_the_plain_operation() {
        for (method, uri) in [
            (Method::PUT, "/b/new?renameObject"),
            (Method::PUT, "/b/new?x-id=RenameObject&%72enameObject="),
            (Method::PUT, "/b/k?encryption"),
            (Method::PUT, "/b/k?uploads"),
            (Method::PUT, "/b%2Fk?policy"),
            (Method::PUT, "/b?metadataTable"),
            (Method::DELETE, "/b?metadataConfiguration"),
            (Method::DELETE, "/b/?versioning"),
            (Method::DELETE, "/b?uploadId=1"),
            (Method::DELETE, "/b?id=1"),
            (Method::DELETE, "/b/k?retention"),
            (Method::POST, "/b/k?append&position=0"),
            (Method::POST, "/b?metadataConfiguration"),
        ] {
            assert_eq!(code(method, uri).as_deref(), Some("NotImplemented"), "{uri}");
        }
        for uri in ["/b/k?uploadId=1", "/b/k?partNumber=1", "/b/k?upload%49d=1", "/b/k?version%49d=null"] {
            assert_eq!(code(Method::PUT, uri).as_deref(), Some("InvalidArgument"), "{uri}");
        }
        assert_eq!(code(Method::POST, "/b/k?uploads&versionId=1").as_deref(), Some("InvalidArgument"));
    }

    #[test]
    fn a_query_has_an_end() {
        for method in [Method::GET, Method::PUT, Method::DELETE] {
            let query = |names| vec!["x-id"; names].join("&");
            assert_eq!(code(method.clone(), &format!("/b/k?{}", query(MOST_NAMES))), None);
            let refused = code(method, &format!("/b/k?{}", query(MOST_NAMES + 1)));
            assert_eq!(refused.as_deref(), Some("InvalidArgument"));
        }
    }

    #[test]
    fn what_clients_send_goes_on() {
        for (method, uri) in [
            (Method::PUT, "/b/k"),
            (Method::PUT, "/b/k?"),
            (Method::PUT, "/b/k?x-id=PutObject"),
            (Method::PUT, "/b/k?x-id=UploadPart&partNumber=1&uploadId=1"),
            (Method::PUT, "/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=1&x-amz-meta-a=b"),
            (Method::PUT, "/b/k?partNumber=1&upload%49d=1"),
            (Method::PUT, "/b/k?AWSAccessKeyId=K&Expires=1&Signature=1"),
            (Method::PUT, "/b/k?tagging&versionId=null"),
            (Method::PUT, "/b?versioning="),
            (Method::PUT, "/b?x-for-the-log=me"),
            (Method::POST, "/b?delete="),
            (Method::POST, "/b/k?uploads="),
            (Method::DELETE, "/b/k?versionId=null&x-id=DeleteObject"),
            (Method::DELETE, "/b?lifecycle"),
            (Method::DELETE, "/b?metrics&id=1"),
            (Method::GET, "/b/k?metadataConfiguration"),
        ] {
            assert_eq!(code(method, uri), None, "{uri}");
        }
    }
}
