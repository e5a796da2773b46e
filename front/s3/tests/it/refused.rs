//! Requests that are answered otherwise than s3s would by itself, and what the rest of the answer says.

use crate::asked::{ask, open_service};
use crate::fuzz_body::set_policy;
use crate::local::run;

/// Everybody may read objects, and nothing else.
const READ_ONLY: &str = r#"{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject",
                           "Resource": "arn:aws:s3:::demo/*"}]}"#;

#[test]
fn metadata_that_s3s_panics_at_is_refused() {
    run(async {
        let (service, _store) = open_service().await;
        assert_eq!(ask(&service, "PUT /demo/a", "", b"a").await.status, 200);
        let copied = "x-amz-copy-source: /demo/a\r\nx-amz-metadata-directive: REPLACE\r\n";
        for (line, headers) in [("PUT /demo/b", ""), ("POST /demo/b?uploads", ""), ("PUT /demo/b", copied)] {
            for value in ["=?=", "=?utf-8?q?a?= =?="] {
                let answer = ask(&service, line, &format!("{headers}x-amz-meta-a: {value}\r\n"), b"").await;
                assert_eq!(answer.status, 400, "{line} {value}: {answer:?}");
                assert!(answer.text().contains("<Code>InvalidArgument</Code>"), "{}", answer.text());
            }
        }
        assert_eq!(ask(&service, "PUT /demo/b", "x-amz-meta-a: =?utf-8?q?a?=\r\n", b"").await.status, 200);
        assert_eq!(ask(&service, "GET /demo/b", "", b"").await.header("x-amz-meta-a"), Some("a"));
    });
}

#[test]
fn what_is_not_supported_is_refused_by_its_header() {
    run(async {
        let (service, _store) = open_service().await;
        for header in [
            "x-amz-grant-write-acp: id=1",
            "x-amz-object-lock-retain-until-date: 2030-01-01T00:00:00Z",
            "x-amz-server-side-encryption: AES256",
        ] {
            for line in ["PUT /demo/a", "PUT /demo/a?acl", "PUT /other"] {
                let answer = ask(&service, line, &format!("{header}\r\n"), b"").await;
                assert_eq!(answer.status, 501, "{line} with {header}: {answer:?}");
            }
        }
        let named = ask(&service, "PUT /demo/a?versionId=null", "", b"").await;
        assert_eq!(named.status, 400, "what is stored is a new version: {named:?}");
        for text in ["0", "Fri, 1 Sep 2023 08:00:00 GMT"] {
            let dated = ask(&service, "PUT /demo/a", &format!("Expires: {text}\r\n"), b"").await;
            assert_eq!(dated.status, 400, "{text}: {dated:?}");
        }
        let both = "If-Match: *\r\nIf-None-Match: *\r\n";
        assert_eq!(ask(&service, "PUT /demo/a", "", b"first").await.status, 200);
        assert_eq!(ask(&service, "PUT /demo/a", both, b"second").await.status, 501);
        assert_eq!(ask(&service, "GET /demo/a", "", b"").await.body, b"first");
    });
}

#[test]
fn who_may_not_list_is_not_told_which_keys_there_are() {
    run(async {
        let (service, _store) = open_service().await;
        assert_eq!(ask(&service, "PUT /demo/a", "", b"a").await.status, 200);
        assert_eq!(ask(&service, "GET /demo/none", "", b"").await.status, 404);
        set_policy(&service, READ_ONLY).await;
        assert_eq!(ask(&service, "GET /demo/a", "", b"").await.status, 200);
        for verb in ["GET", "HEAD"] {
            assert_eq!(ask(&service, &format!("{verb} /demo/none"), "", b"").await.status, 403, "{verb}");
        }
        // Its list of keys is not even read where none of them could be deleted.
        let refused = ask(&service, "POST /demo?delete", "", b"<Delete><Object><Key>a</Key></Object></Delete>").await;
        assert_eq!(refused.status, 403, "{refused:?}");
        // Nor does a link say as what an object is shown.
        let shown = ask(&service, "GET /demo/a?response-content-type=text%2Fhtml", "", b"").await;
        assert_eq!(shown.status, 400, "{shown:?}");
        assert!(shown.text().contains("<Code>InvalidRequest</Code>"), "{}", shown.text());
    });
}

#[test]
fn answers_without_a_body_say_what_those_with_one_do() {
    run(async {
        let (service, _store) = open_service().await;
        let put = ask(&service, "PUT /demo/a", "Cache-Control: max-age=60\r\n", b"0123456789").await;
        let etag = put.header("etag").expect("an ETag").to_owned();
        let same = ask(&service, "GET /demo/a", &format!("If-None-Match: {etag}\r\n"), b"").await;
        assert_eq!((same.status, same.header("etag")), (304, Some(etag.as_str())));
        assert_eq!(same.header("cache-control"), Some("max-age=60"));
        let part = ask(&service, "HEAD /demo/a", "Range: bytes=2-4\r\n", b"").await;
        assert_eq!((part.status, part.header("content-range")), (206, Some("bytes 2-4/10")));
        let browser = "Origin: http://a\r\nAccess-Control-Request-Method: GET\r\n";
        let asked = ask(&service, "OPTIONS /demo/a", browser, b"").await;
        assert!(asked.header("x-amz-request-id").is_some(), "{asked:?}");
        let versioning = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
        assert_eq!(ask(&service, "PUT /demo?versioning", "", versioning).await.status, 200);
        assert_eq!(ask(&service, "DELETE /demo/a", "", b"").await.status, 204);
        let gone = ask(&service, "GET /demo/a", "", b"").await;
        assert_eq!((gone.status, gone.header("x-amz-delete-marker")), (404, Some("true")));
        assert_eq!(gone.header("content-type"), Some("application/xml"));
    });
}
