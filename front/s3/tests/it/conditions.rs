//! What a request makes depend on what is there, and what is not supported of it: nothing happens in spite of it.

use crate::asked::{Answer, ask, open_service};
use crate::fuzz_body::open_to_all;
use crate::local::{Memory, directory_on, run};
use futures::future::join_all;
use kura_s3::Service;

/// An answer's status, and its error's code.
pub async fn code(service: &Service, line: &str, headers: &str, body: &[u8]) -> (u16, String) {
    let answer = ask(service, line, headers, body).await;
    let text = answer.text();
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    (answer.status, code.map_or_else(String::new, |(code, _)| code.to_owned()))
}

pub fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

async fn content(service: &Service, key: &str) -> Vec<u8> {
    let Answer { status, body, .. } = ask(service, &format!("GET /demo/{key}"), "", b"").await;
    if status == 200 { body } else { Vec::new() }
}

#[test]
fn a_copy_keeps_what_its_conditions_keep() {
    run(async {
        let (service, _store) = open_service().await;
        ask(&service, "PUT /demo/from", "", b"new").await;
        let etag = ask(&service, "PUT /demo/to", "", b"old").await.header("etag").expect("an ETag").to_owned();
        let copy = async |key: &str, condition: &str| {
            let headers = format!("x-amz-copy-source: /demo/from\r\n{condition}\r\n");
            code(&service, &format!("PUT /demo/{key}"), &headers, b"").await
        };
        for held in ["If-None-Match: *", "If-Match: \"00000000000000000000000000000000\""] {
            assert_eq!(copy("to", held).await, refused(412, "PreconditionFailed"), "{held}");
        }
        assert_eq!(copy("to", &format!("If-None-Match: {etag}")).await, refused(501, "NotImplemented"));
        assert_eq!(copy("to", "If-Match: *\r\nIf-Match: *").await, refused(400, "InvalidArgument"));
        assert_eq!(content(&service, "to").await, b"old");
        assert_eq!(copy("to", &format!("If-Match: {etag}")).await.0, 200);
        assert_eq!(copy("other", "If-None-Match: *").await.0, 200);
        assert_eq!((content(&service, "to").await, content(&service, "other").await), (b"new".into(), b"new".into()));
    });
}

#[test]
fn a_put_under_a_condition_tells_a_quicker_one_from_a_store_that_stalls() {
    run(async {
        let device = Memory::new();
        let (directory, store) = directory_on(&device).await;
        let service = Service::new(directory);
        open_to_all(&service).await;
        let etag = ask(&service, "PUT /demo/a", "", b"old").await.header("etag").expect("an ETag").to_owned();
        let put = async |condition: &str| code(&service, "PUT /demo/a", &format!("{condition}\r\n"), b"new").await;
        device.stall(true);
        for condition in [format!("If-Match: {etag}"), "If-Match: *".to_owned()] {
            assert_eq!(put(&condition).await, refused(503, "ServiceUnavailable"), "{condition}");
        }
        device.stall(false);
        assert_eq!(content(&service, "a").await, b"old");
        // Those that wait for the first to be durable both look at what that stored, and one of them is quicker.
        let mut told = join_all(["If-Match: *"; 3].map(&put)).await;
        told.sort();
        assert_eq!(told.pop(), Some(refused(409, "ConditionalRequestConflict")));
        assert!(told.iter().all(|(status, _)| *status == 200), "{told:?}");
        assert!(store.check_at_once().is_empty());
    });
}

#[test]
fn of_many_keys_none_is_deleted_under_a_condition() {
    run(async {
        let (service, _store) = open_service().await;
        let time = "<LastModifiedTime>Sun, 22 Nov 2020 08:00:00 GMT</LastModifiedTime>";
        for condition in ["<ETag>\"00\"</ETag>", "<Size>3</Size>", time] {
            for key in ["a", "b"] {
                ask(&service, &format!("PUT /demo/{key}"), "", b"kept").await;
            }
            let keys =
                format!("<Delete><Object><Key>a</Key>{condition}</Object><Object><Key>b</Key></Object></Delete>");
            let answer = ask(&service, "POST /demo?delete", "", keys.as_bytes()).await;
            let text = answer.text();
            assert_eq!(text.matches("<Code>NotImplemented</Code>").count(), 1, "{condition}: {text}");
            assert_eq!(content(&service, "a").await, b"kept", "{condition}");
            assert_eq!(content(&service, "b").await, b"", "{condition}");
        }
    });
}

#[test]
fn a_body_in_chunks_that_nobody_takes_apart_is_refused() {
    run(async {
        let (service, _store) = open_service().await;
        let begun = ask(&service, "POST /demo/a?uploads", "", b"").await.text();
        let id = begun.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once('<')).expect("an upload").0;
        let chunks = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n";
        let trailer =
            "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nx-amz-trailer: x-amz-checksum-crc32\r\n";
        let signed = "x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\n";
        let encoded = "Content-Encoding: gzip, aws-chunked\r\nx-amz-decoded-content-length: 5\r\n";
        for headers in [trailer, signed, encoded] {
            for line in ["PUT /demo/a".to_owned(), format!("PUT /demo/a?partNumber=1&uploadId={id}")] {
                assert_eq!(code(&service, &line, headers, chunks).await, refused(501, "NotImplemented"), "{headers}");
            }
        }
        assert_eq!(content(&service, "a").await, b"");
        assert!(!ask(&service, &format!("GET /demo/a?uploadId={id}"), "", b"").await.text().contains("<Part>"));
    });
}
