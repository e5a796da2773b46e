//! What is read, and what policies are asked before.

use crate::asked::{ask, open_service};
use crate::conditions::{code, refused};
use crate::fuzz_body::{open_to_all, set_policy};
use crate::local::{Memory, directory_on, run};
use futures::future::join;
use kura_s3::Service;
use std::time::Duration;
use tokio::time::Instant;

/// A policy that lets everybody do everything with objects but this.
fn all_but(denied: &str) -> String {
    format!(
        r#"{{"Statement": [{{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::demo/*"}},
            {{"Effect": "Deny", "Principal": "*", "Action": "{denied}", "Resource": "arn:aws:s3:::demo/*"}}]}}"#
    )
}

#[test]
fn a_policy_is_asked_about_tags_that_a_copy_keeps() {
    run(async {
        let (service, _store) = open_service().await;
        assert_eq!(ask(&service, "PUT /demo/tagged", "x-amz-tagging: a=b\r\n", b"a").await.status, 200);
        assert_eq!(ask(&service, "PUT /demo/plain", "", b"a").await.status, 200);
        let copy = async |source: &str| {
            code(&service, "PUT /demo/copy", &format!("x-amz-copy-source: /demo/{source}\r\n"), b"").await.0
        };
        let (named, replaced) = ("tagged?versionId=null", "tagged\r\nx-amz-tagging-directive: REPLACE");
        for (denied, tagged, version) in [
            ("s3:GetObjectTagging", 403, 200),
            ("s3:GetObjectVersionTagging", 200, 403),
            ("s3:PutObjectTagging", 403, 403),
            ("s3:PutObjectAcl", 200, 200),
        ] {
            set_policy(&service, &all_but(denied)).await;
            let copies = (copy("tagged").await, copy(named).await, copy(replaced).await, copy("plain").await);
            assert_eq!(copies, (tagged, version, 200, 200), "{denied}");
        }
    });
}

#[test]
fn a_policy_is_asked_about_tags_and_attributes_too() {
    run(async {
        let (service, _store) = open_service().await;
        assert_eq!(ask(&service, "PUT /demo/a", "", b"a").await.status, 200);
        set_policy(&service, &all_but("s3:PutObjectTagging")).await;
        let copied = "x-amz-copy-source: /demo/a\r\n";
        for (line, headers) in [("PUT /demo/b", ""), ("PUT /demo/b", copied), ("POST /demo/b?uploads", "")] {
            let tagged = format!("{headers}x-amz-tagging: a=b\r\n");
            assert_eq!(code(&service, line, &tagged, b"").await, refused(403, "AccessDenied"), "{line} {headers}");
            assert_eq!(code(&service, line, headers, b"").await.0, 200, "{line} {headers}");
        }
        let attributes = "x-amz-object-attributes: ETag\r\n";
        for (denied, status) in [
            ("s3:GetObject", 403),
            ("s3:GetObjectAttributes", 403),
            ("s3:GetObjectVersion", 200),
            ("s3:GetObjectVersionAttributes", 200),
        ] {
            set_policy(&service, &all_but(denied)).await;
            assert_eq!(code(&service, "GET /demo/a?attributes", attributes, b"").await.0, status, "{denied}");
            let of_version = code(&service, "GET /demo/a?attributes&versionId=null", attributes, b"").await;
            assert_eq!(of_version.0, 603 - status, "{denied}");
        }
    });
}

#[test]
fn a_range_of_nothing_and_a_range_that_is_none() {
    run(async {
        let (service, _store) = open_service().await;
        ask(&service, "PUT /demo/a", "", b"0123456789").await;
        ask(&service, "PUT /demo/empty", "", b"").await;
        for range in ["bytes=-5", "bytes=0-", "bytes=0-0"] {
            let range = format!("Range: {range}\r\n");
            assert_eq!(code(&service, "GET /demo/empty", &range, b"").await, refused(416, "InvalidRange"), "{range}");
            assert_eq!(code(&service, "HEAD /demo/empty", &range, b"").await.0, 416, "{range}");
        }
        // Clients that find the size out by a range go by that.
        for (key, size) in [("empty", 0), ("a", 10)] {
            let told = ask(&service, &format!("GET /demo/{key}"), "Range: bytes=10-19\r\n", b"").await;
            assert_eq!(told.header("content-range"), Some(&*format!("bytes */{size}")), "{told:?}");
            assert_eq!(told.header("content-type"), Some("application/xml"), "{told:?}");
            let tells = format!(
                "<RangeRequested>bytes=10-19</RangeRequested><ActualObjectSize>{size}</ActualObjectSize></Error>"
            );
            assert!(told.text().ends_with(&tells), "{}", told.text());
        }
        for range in ["bytes=0-1,4-5", "bytes=5-2", "items=0-1", "nonsense", "bytes=0-1\r\nRange: bytes=4-5"] {
            let answer = ask(&service, "GET /demo/a", &format!("Range: {range}\r\n"), b"").await;
            assert_eq!((answer.status, answer.body.as_slice()), (200, &b"0123456789"[..]), "{range}");
        }
        assert_eq!(ask(&service, "GET /demo/a", "Range: bytes=2-4\r\n", b"").await.body, b"234");
        for method in ["GET", "HEAD"] {
            for (part, status) in [(0, 400), (1, 206), (3, 416)] {
                let line = format!("{method} /demo/a?partNumber={part}");
                assert_eq!(ask(&service, &line, "", b"").await.status, status, "{line}");
            }
            let all = ask(&service, &format!("{method} /demo/a?partNumber=1"), "", b"").await;
            assert_eq!(all.header("content-range"), Some("bytes 0-9/10"), "{all:?}");
            assert_eq!(all.header("x-amz-mp-parts-count"), None, "{all:?}");
            let none = ask(&service, &format!("{method} /demo/empty?partNumber=1"), "", b"").await;
            assert_eq!((none.status, none.header("content-length")), (200, Some("0")), "{none:?}");
            let both = ask(&service, &format!("{method} /demo/a?partNumber=1"), "Range: bytes=0-1\r\n", b"").await;
            assert_eq!(both.status, 400, "{both:?}");
        }
    });
}

#[test]
fn a_delete_marker_takes_no_tags() {
    run(async {
        let (service, _store) = open_service().await;
        let versioning = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
        assert_eq!(ask(&service, "PUT /demo?versioning", "", versioning).await.status, 200);
        ask(&service, "PUT /demo/a", "", b"a").await;
        let deleted = ask(&service, "DELETE /demo/a", "", b"").await;
        let marker = deleted.header("x-amz-version-id").expect("a delete marker").to_owned();
        let tags = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
        let line = format!("/demo/a?tagging&versionId={marker}");
        assert_eq!(code(&service, &format!("PUT {line}"), "", tags).await, refused(405, "MethodNotAllowed"));
        assert_eq!(code(&service, &format!("DELETE {line}"), "", b"").await, refused(405, "MethodNotAllowed"));
        assert_eq!(code(&service, "PUT /demo/a?tagging", "", tags).await, refused(404, "NoSuchKey"));
    });
}

/// A list of the versions that are there would wait for what is being written.
#[test]
fn a_version_that_is_not_there_is_looked_for_in_its_place_alone() {
    run(async {
        let device = Memory::new();
        let (directory, _store) = directory_on(&device).await;
        let service = Service::new(directory);
        open_to_all(&service).await;
        let versioning = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
        assert_eq!(ask(&service, "PUT /demo?versioning", "", versioning).await.status, 200);
        let version = ask(&service, "PUT /demo/a", "", b"a").await.header("x-amz-version-id").expect("one").to_owned();
        ask(&service, "DELETE /demo/a", "", b"").await;
        assert_eq!(ask(&service, &format!("DELETE /demo/a?versionId={version}"), "", b"").await.status, 204);
        device.stall(true);
        let put = ask(&service, "PUT /demo/b", "", b"b");
        let looked = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let begun = Instant::now();
            for line in ["GET /demo/a?", "GET /demo/a?tagging&", "GET /demo/a?attributes&"] {
                let line = format!("{line}versionId={version}");
                let answer = code(&service, &line, "x-amz-object-attributes: ETag\r\n", b"").await;
                assert_eq!(answer, refused(404, "NoSuchVersion"), "{line}");
            }
            assert_eq!(ask(&service, &format!("HEAD /demo/a?versionId={version}"), "", b"").await.status, 404);
            assert_eq!(begun.elapsed(), Duration::ZERO, "nobody waits for a put");
        };
        assert_eq!(join(put, looked).await.0.status, 503);
        device.stall(false);
        // Who names none is told of the delete marker that is the newest.
        for line in ["GET /demo/a", "HEAD /demo/a", "GET /demo/a?tagging"] {
            let answer = ask(&service, line, "", b"").await;
            assert_eq!((answer.status, answer.header("x-amz-delete-marker")), (404, Some("true")), "{line}");
        }
        // That is no shorter key's.
        ask(&service, "DELETE /demo/longer", "", b"").await;
        let answer = ask(&service, "GET /demo/long", "", b"").await;
        assert_eq!((answer.status, answer.header("x-amz-delete-marker")), (404, None));
    });
}

#[test]
fn an_object_without_a_type_is_binary() {
    run(async {
        let (service, _store) = open_service().await;
        assert_eq!(ask(&service, "PUT /demo/plain", "", b"hello").await.status, 200);
        assert_eq!(ask(&service, "PUT /demo/text", "Content-Type: text/plain\r\n", b"hello").await.status, 200);
        assert_eq!(ask(&service, "PUT /demo/copy", "x-amz-copy-source: /demo/plain\r\n", b"").await.status, 200);
        for (key, kind) in [("plain", "binary/octet-stream"), ("text", "text/plain"), ("copy", "binary/octet-stream")] {
            for method in ["GET", "HEAD"] {
                let answer = ask(&service, &format!("{method} /demo/{key}"), "", b"").await;
                assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{method} {key}");
            }
        }
    });
}
