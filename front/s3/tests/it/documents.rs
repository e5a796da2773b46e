//! Bodies that say what to do: held against what is said of them, and read as a whole or not at all.

use crate::asked::{ask, open_service, say};
use crate::fuzz_body::open_to_all;
use crate::local::{run, service};
use s3s::crypto::{Checksum as _, Crc32, Md5};

fn base64(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(bytes)
}

#[test]
fn a_document_that_is_not_what_its_head_says_does_nothing() {
    run(async {
        let (service, store) = open_service().await;
        assert_eq!(ask(&service, "PUT /demo/a", "", b"kept").await.status, 200);
        let delete = b"<Delete><Object><Key>a</Key></Object></Delete>".as_slice();
        let tags = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
        for (line, body) in [("POST /demo?delete", delete), ("PUT /demo?tagging", tags)] {
            for (headers, code) in [
                (format!("Content-MD5: {}\r\n", base64(&Md5::checksum(b"other"))), "BadDigest"),
                (format!("x-amz-checksum-crc32: {}\r\n", base64(&Crc32::checksum(b"other"))), "BadDigest"),
                ("Content-MD5: nonsense\r\n".to_owned(), "InvalidDigest"),
            ] {
                let answer = ask(&service, line, &headers, body).await;
                assert_eq!(answer.status, 400, "{line}: {answer:?}");
                assert!(answer.text().contains(&format!("<Code>{code}</Code>")), "{line}: {}", answer.text());
            }
        }
        assert_eq!(ask(&service, "GET /demo/a", "", b"").await.body, b"kept");
        assert_eq!(ask(&service, "GET /demo?tagging", "", b"").await.status, 404);
        let (md5, crc32) = (base64(&Md5::checksum(delete)), base64(&Crc32::checksum(delete)));
        let right = format!("Content-MD5: {md5}\r\nx-amz-checksum-crc32: {crc32}\r\n");
        assert_eq!(ask(&service, "POST /demo?delete", &right, delete).await.status, 200);
        assert_eq!(ask(&service, "GET /demo/a", "", b"").await.status, 404);
        assert!(store.check_at_once().is_empty());
    });
}

#[test]
fn a_document_with_cdata_is_refused() {
    run(async {
        let (service, _store) = open_service().await;
        assert_eq!(ask(&service, "PUT /demo/abc", "", b"kept").await.status, 200);
        for before in ["", &" ".repeat(300_000)] {
            let delete = format!("<Delete>{before}<Object><Key>abc<![CDATA[def]]></Key></Object></Delete>");
            let answer = ask(&service, "POST /demo?delete", "", delete.as_bytes()).await;
            assert_eq!(answer.status, 400, "{answer:?}");
            assert!(answer.text().contains("<Code>MalformedXML</Code>"), "{}", answer.text());
        }
        assert_eq!(ask(&service, "GET /demo/abc", "", b"").await.body, b"kept");
        // What is none may have it in its text.
        let content = b"<a><![CDATA[b]]></a>";
        assert_eq!(ask(&service, "PUT /demo/abc", "", content).await.status, 200);
        assert_eq!(ask(&service, "GET /demo/abc", "", b"").await.body, content);
        let policy = br#"{"Statement": [{"Sid": "<![CDATA[", "Effect": "Allow", "Principal": "*", "Action": "s3:*",
                         "Resource": ["arn:aws:s3:::demo", "arn:aws:s3:::demo/*"]}]}"#;
        let answer = ask(&service, "PUT /demo?policy", "", policy).await;
        assert!(!answer.text().contains("CDATA"), "{answer:?}");
    });
}

#[test]
fn a_document_in_chunks_is_refused() {
    run(async {
        let (service, _store) = open_service().await;
        let chunked =
            "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nx-amz-trailer: x-amz-checksum-crc32\r\n";
        let answer = ask(&service, "POST /demo?delete", chunked, b"0\r\n\r\n").await;
        assert_eq!(answer.status, 501, "{answer:?}");
    });
}

#[test]
fn a_list_of_keys_is_read_only_where_somebody_may_delete_one() {
    run(async {
        let (service, _store) = service().await;
        let long = [b"<Delete><Object><Key>a</Key></Object>".as_slice(), &vec![b' '; 2 << 20], b"</Delete>"].concat();
        for path in ["/demo", "/nowhere", "/demo@monday"] {
            let answer = ask(&service, &format!("POST {path}?delete"), "", &long).await;
            assert_eq!(answer.status, 403, "{path}: {answer:?}");
        }
        open_to_all(&service).await;
        assert_eq!(ask(&service, "POST /demo?delete", "", &long).await.status, 200);
    });
}

#[test]
fn a_document_has_a_limit_that_an_upload_of_all_parts_keeps() {
    run(async {
        let (service, _store) = open_service().await;
        let begun = ask(&service, "POST /demo/a?uploads", "", b"").await.text();
        let id = begun.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once('<')).expect("an upload").0;
        let parts = (1..=10_000).map(|number| {
            let sums = [("CRC32", 8), ("CRC32C", 8), ("CRC64NVME", 12), ("SHA1", 28), ("SHA256", 44)];
            let sums = sums.map(|(name, len)| format!("<Checksum{name}>{}</Checksum{name}>", "A".repeat(len)));
            let etag = format!("<ETag>&quot;{number:032x}&quot;</ETag>");
            format!("<Part>{etag}<PartNumber>{number}</PartNumber>{}</Part>", sums.concat())
        });
        let parts = parts.collect::<String>();
        let complete = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let line = format!("POST /demo/a?uploadId={id}");
        let answer = ask(&service, &line, "", complete.as_bytes()).await;
        assert!(answer.text().contains("<Code>InvalidPart</Code>"), "{}", answer.text());
        let long = vec![b' '; 5 << 20];
        for line in [line.as_str(), "POST /demo?delete", "PUT /demo?tagging"] {
            let answer = ask(&service, line, "", &long).await;
            assert!(answer.text().contains("<Code>MaxMessageLengthExceeded</Code>"), "{line}: {}", answer.text());
        }
        // Also where nobody says how long it is.
        let head = "POST /demo?delete HTTP/1.1\r\nHost: s3\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n500000\r\n";
        let answer = say(&service, [head.as_bytes(), &long, b"\r\n0\r\n\r\n"].concat()).await;
        assert!(answer.text().contains("<Code>MaxMessageLengthExceeded</Code>"), "{}", answer.text());
    });
}
