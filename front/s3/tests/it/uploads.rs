//! Uploads in parts: completed twice, and beside others who store or abort.

use crate::asked::{Answer, ask, open_service};
use crate::fuzz_body::open_to_all;
use crate::local::{Memory, directory_on, opened, reopened, run};
use crate::rules::follow;
use futures::future::{join, join_all};
use kura_object::{Put, Query, Store};
use kura_s3::Service;
use s3s::crypto::{Checksum as _, Crc32, Md5};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let at = text.find(begin).expect("it is there") + begin.len();
    let len = text[at..].find(end).expect("it ends");
    &text[at..at + len]
}

async fn begin(service: &Service) -> String {
    let answer = ask(service, "POST /demo/m?uploads", "", b"").await;
    between(&answer.text(), "<UploadId>", "</UploadId>").to_owned()
}

async fn complete(service: &Service, id: &str, etag: Option<&str>) -> Answer {
    let etag = etag.map(|etag| format!("<ETag>{etag}</ETag>")).unwrap_or_default();
    let parts =
        format!("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber>{etag}</Part></CompleteMultipartUpload>");
    ask(service, &format!("POST /demo/m?uploadId={id}"), "", parts.as_bytes()).await
}

/// Parts and uploads that are left.
async fn left(store: &Store) -> usize {
    let mut count = 0;
    for name in [".parts", ".uploads/demo"] {
        if let Ok(partition) = store.partition(name.as_bytes()).await {
            let query = Query { versions: true, ..Query::default() };
            count += store.list(partition.id, &query).await.expect("a list").items.len();
        }
    }
    count
}

fn hex(bytes: &[u8]) -> String {
    hex_simd::encode_to_string(bytes, hex_simd::AsciiCase::Lower)
}

#[test]
fn completing_again_is_answered_as_before() {
    run(async {
        let (service, store) = open_service().await;
        let id = begin(&service).await;
        let part = ask(&service, &format!("PUT /demo/m?partNumber=1&uploadId={id}"), "", b"hello").await;
        let etag = part.header("etag").expect("an ETag").to_owned();
        let first = complete(&service, &id, Some(&etag)).await;
        let again = complete(&service, &id, Some(&etag)).await;
        assert_eq!((first.status, again.status), (200, 200), "{again:?}");
        let tag = |answer: &Answer| between(&answer.text(), "<ETag>", "</ETag>").to_owned();
        assert_eq!(tag(&first), tag(&again));
        // Of other parts, or when the object is another one by now, it is not what was completed.
        let other = format!("\"{}\"", "0".repeat(32));
        assert_eq!(complete(&service, &id, Some(&other)).await.status, 404);
        assert_eq!(ask(&service, "PUT /demo/m", "", b"another").await.status, 200);
        assert_eq!(complete(&service, &id, Some(&etag)).await.status, 404);
        assert_eq!(left(&store).await, 0);
    });
}

#[test]
fn an_object_of_parts_is_read_by_their_numbers() {
    run(async {
        let (service, _store) = open_service().await;
        let id = begin(&service).await;
        ask(&service, &format!("PUT /demo/m?partNumber=1&uploadId={id}"), "", b"hello").await;
        assert_eq!(complete(&service, &id, None).await.status, 200);
        for method in ["GET", "HEAD"] {
            let part = ask(&service, &format!("{method} /demo/m?partNumber=1"), "", b"").await;
            assert_eq!((part.status, part.header("content-range")), (206, Some("bytes 0-4/5")), "{part:?}");
            assert_eq!(part.header("x-amz-mp-parts-count"), Some("1"), "{part:?}");
            assert_eq!(ask(&service, &format!("{method} /demo/m?partNumber=2"), "", b"").await.status, 416);
            assert_eq!(ask(&service, &format!("{method} /demo/m"), "", b"").await.header("x-amz-mp-parts-count"), None);
        }
    });
}

#[test]
fn what_reads_many_parts_reads_them_at_once_and_tells_its_client_in_time() {
    run(async {
        let device = Memory::new();
        let (directory, store) = directory_on(&device).await;
        let service = Service::new(directory);
        open_to_all(&service).await;
        let algorithm = "x-amz-checksum-algorithm: CRC32\r\n";
        let id = ask(&service, "POST /demo/m?uploads", algorithm, b"").await.text();
        let id = between(&id, "<UploadId>", "</UploadId>").to_owned();
        for number in 1..=60_u8 {
            let line = format!("PUT /demo/m?partNumber={number}&uploadId={id}");
            assert_eq!(ask(&service, &line, "", &[number; 5000]).await.status, 200);
        }
        store.close().await.expect("it ends");
        let cold = async || Service::new(reopened(&opened(&device).await).await);
        let service = cold().await;
        device.slow_down(Duration::from_secs(20));
        let begun = Instant::now();
        let parts = ask(&service, &format!("GET /demo/m?uploadId={id}"), "", b"").await.text();
        assert_eq!(parts.matches("<ChecksumCRC32>").count(), 60, "{parts}");
        assert!(begun.elapsed() < Duration::from_mins(5), "one after the other: {:?}", begun.elapsed());

        device.slow_down(Duration::ZERO);
        let service = cold().await;
        device.slow_down(Duration::from_secs(20));
        let done = complete(&service, &id, None).await;
        let text = done.text();
        assert_eq!((done.status, text.matches("<?xml").count()), (200, 1), "{done:?}");
        assert!(text.contains("<CompleteMultipartUploadResult") && text.contains("\r\n \r\n"), "no blank: {text}");
    });
}

#[test]
fn parts_that_come_while_an_upload_ends_neither_mix_nor_stay() {
    let (mut completed, mut refused) = (0, 0);
    for order in 0..40_usize {
        run(async {
            let (service, store) = open_service().await;
            let id = begin(&service).await;
            let put = async |number: u8| {
                let line = format!("PUT /demo/m?partNumber={}&uploadId={id}", 1 + number % 2);
                ask(&service, &line, "", &vec![number; 3000 + usize::from(number)]).await
            };
            assert_eq!(put(0).await.status, 200);
            let end = async || {
                for _ in 0..order * 3 {
                    tokio::task::yield_now().await;
                }
                if order.is_multiple_of(4) {
                    ask(&service, &format!("DELETE /demo/m?uploadId={id}"), "", b"").await
                } else {
                    complete(&service, &id, None).await
                }
            };
            let (ended, parts) = join(end(), join_all((2..12).map(&put))).await;
            for part in parts {
                assert!(matches!(part.status, 200 | 404), "{part:?}");
                refused += usize::from(part.status == 404);
            }
            assert!(matches!(ended.status, 200 | 204), "{ended:?}");
            assert_eq!(left(&store).await, 0, "no part stays behind");
            let object = ask(&service, "GET /demo/m", "", b"").await;
            if order.is_multiple_of(4) {
                assert_eq!(object.status, 404);
            } else {
                let of_content = Md5::checksum(&Md5::checksum(&object.body));
                let wanted = format!("\"{}-1\"", hex(&of_content));
                assert_eq!(object.header("etag"), Some(wanted.as_str()), "its bytes are those that it says");
                completed += 1;
            }
            assert!(store.check_at_once().is_empty());
        });
    }
    assert!(completed > 20 && refused > 0, "{completed} completed, {refused} parts came too late");
}

#[test]
fn an_upload_of_a_bucket_that_goes_leaves_nothing() {
    run(async {
        let (directory, store) = crate::local::directory().await;
        let service = Service::new(std::sync::Arc::clone(&directory));
        open_to_all(&service).await;
        let begins = join_all((0..8).map(|_| ask(&service, "POST /demo/m?uploads", "", b"")));
        let (deleted, begun) = join(directory.delete_bucket("demo"), begins).await;
        deleted.expect("the bucket was empty");
        assert!(begun.iter().all(|answer| matches!(answer.status, 200 | 403 | 404)), "{begun:?}");
        assert_eq!(left(&store).await, 0);
        assert!(directory.find("demo").is_none());
    });
}

/// Many uploads wait for the disks together where their bucket goes, and where a rule ends them.
#[test]
fn uploads_end_together() {
    for by_rule in [false, true] {
        run(async {
            let device = Memory::new();
            let (directory, store) = directory_on(&device).await;
            let service = Service::new(Arc::clone(&directory));
            open_to_all(&service).await;
            begin(&service).await;
            begin_many(&store, 300).await;
            let flushes = device.flushes();
            if by_rule {
                let rule = "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status><Filter/><AbortIncompleteMultipartUpload>\
                            <DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule></LifecycleConfiguration>";
                assert_eq!(ask(&service, "PUT /demo?lifecycle", "", rule.as_bytes()).await.status, 200);
                follow(&directory).await;
            } else {
                directory.delete_bucket("demo").await.expect("no object is in it");
            }
            let (left, flushes) = (left(&store).await, device.flushes() - flushes);
            assert!(left <= 2 && flushes < 60, "{left} are left after {flushes} flushes");
        });
    }
}

#[test]
fn parts_whose_upload_is_gone_are_given_back() {
    run(async {
        let (directory, store) = crate::local::directory().await;
        let service = Service::new(std::sync::Arc::clone(&directory));
        open_to_all(&service).await;
        let id = begin(&service).await;
        let part = ask(&service, &format!("PUT /demo/m?partNumber=1&uploadId={id}"), "", b"hello").await;
        assert_eq!((part.status, left(&store).await), (200, 3));
        // As an older build left them: before, between and behind those that are not lost.
        let parts = store.partition(b".parts").await.expect("parts").id;
        for (first, count) in [("0", 1), ("7", 1200), ("g", 2)] {
            for number in 0..count {
                let key = format!("{}/{number:05}", first.repeat(32));
                store
                    .put(parts, key.as_bytes(), Put { content: b"lost".as_slice().into(), ..Put::default() })
                    .await
                    .expect("a part");
            }
        }
        follow(&directory).await;
        assert_eq!(left(&store).await, 3, "what is under way stays, and nothing else");
        assert_eq!(complete(&service, &id, None).await.status, 200);
        assert_eq!(ask(&service, "GET /demo/m", "", b"").await.body, b"hello");
        assert!(store.check_at_once().is_empty());
    });
}

#[test]
fn a_list_of_uploads_loses_none() {
    run(async {
        let (service, store) = open_service().await;
        let oldest = begin(&service).await;
        begin_many(&store, 2100).await;
        let page = async |more: &str| {
            let text = ask(&service, &format!("GET /demo?uploads{more}"), "", b"").await.text();
            let ids: Vec<String> = text.split("<UploadId>").skip(1).map(|rest| rest[..32].to_owned()).collect();
            let next = text.contains("<IsTruncated>true").then(|| {
                let id = between(&text, "<NextUploadIdMarker>", "</NextUploadIdMarker>");
                format!("&key-marker=m&upload-id-marker={id}")
            });
            (ids, next)
        };
        let (mut all, mut more) = (Vec::new(), Some(String::new()));
        while let Some(marker) = more {
            let (ids, next) = page(&marker).await;
            all.extend(ids);
            more = next;
        }
        let begun = (0..2100).map(|number| format!("{number:032x}"));
        let begun: Vec<String> = std::iter::once(oldest.clone()).chain(begun).collect();
        assert!(all == begun, "each once, the oldest first: {all:?}");

        // The last upload of a page is gone when the next page is asked for: what is behind it comes all the same.
        let (first, marker) = page("&max-uploads=1").await;
        assert_eq!(first, [oldest.as_str()]);
        assert_eq!(ask(&service, &format!("DELETE /demo/m?uploadId={oldest}"), "", b"").await.status, 204);
        let (next, _) = page(&marker.expect("there are more")).await;
        assert_eq!(next, all[1..=1000]);
    });
}

/// Puts uploads of the key `m` beside those that clients began.
async fn begin_many(store: &Store, count: u64) {
    let uploads = store.partition(b".uploads/demo").await.expect("uploads").id;
    let begun = (0..count).map(|number| {
        let tag = format!("{number:032x}").into_bytes();
        store.put(uploads, b"m", Put { tag, modified_ms: 1, versioned: true, ..Put::default() })
    });
    assert!(join_all(begun).await.iter().all(Result::is_ok));
}

/// A list of the key's uploads would wait for what is being written.
#[test]
fn an_upload_is_looked_for_in_its_place_alone() {
    run(async {
        let device = Memory::new();
        let (directory, store) = directory_on(&device).await;
        let service = Service::new(directory);
        open_to_all(&service).await;
        let answer = ask(&service, "POST /demo/m?uploads", "x-amz-checksum-algorithm: CRC32\r\n", b"").await;
        let id = between(&answer.text(), "<UploadId>", "</UploadId>").to_owned();
        begin_many(&store, 1100).await;
        device.stall(true);
        let put = ask(&service, "PUT /demo/b", "", b"b");
        let found = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let begun = Instant::now();
            let sha1 = "x-amz-checksum-sha1: qvTGHdzF6KLavt4PO0gs2a6pQ00=\r\n";
            for (key, id, status) in [("m", &id, 400), ("n", &id, 404), ("m", &"0".repeat(32), 404)] {
                let line = format!("PUT /demo/{key}?partNumber=1&uploadId={id}");
                assert_eq!(ask(&service, &line, sha1, b"hello").await.status, status, "{line}");
            }
            assert_eq!(begun.elapsed(), Duration::ZERO, "nobody waits for a put");
        };
        assert_eq!(join(put, found).await.0.status, 503);
        device.stall(false);
        assert_eq!(ask(&service, &format!("DELETE /demo/m?uploadId={id}"), "", b"").await.status, 204);
        assert_eq!(ask(&service, &format!("DELETE /demo/m?uploadId={id}"), "", b"").await.status, 404);
        assert_eq!(left(&store).await, 1000, "a page of the others");
    });
}

#[test]
fn others_go_on_while_very_many_uploads_are_gone_through() {
    run(async {
        let (service, store) = open_service().await;
        begin(&service).await;
        let turns = async || {
            let count = Cell::new(0);
            let others = async {
                loop {
                    tokio::task::yield_now().await;
                    count.set(count.get() + 1);
                }
            };
            tokio::select! {
                page = ask(&service, "GET /demo?uploads&max-uploads=1", "", b"") => assert_eq!(page.status, 200),
                () = others => unreachable!("they go on for ever"),
            }
            count.get()
        };
        let few = turns().await;
        begin_many(&store, 9000).await;
        let many = turns().await;
        assert!(many >= few + 8, "{few} turns of others, and {many} while nine pages are gone through");
    });
}

#[test]
fn pages_of_uploads_of_any_size_come_to_the_same() {
    run(async {
        let (service, _store) = open_service().await;
        let mut begun = Vec::new();
        for key in ["b", "a", "c/1", "b", "d", "a", "c/2", "c/1", "b", "e"] {
            let answer = ask(&service, &format!("POST /demo/{key}?uploads"), "", b"").await.text();
            begun.push((key.to_owned(), between(&answer, "<UploadId>", "</UploadId>").to_owned()));
        }
        begun.sort_by(|(one, _), (other, _)| one.cmp(other));
        let pages = async |asked: &str| {
            let (mut all, mut prefixes, mut more) = (Vec::new(), 0, Some(String::new()));
            while let Some(marker) = more {
                let text = ask(&service, &format!("GET /demo?uploads{asked}{marker}"), "", b"").await.text();
                prefixes += text.matches("<CommonPrefixes>").count();
                let uploads = text.split("<Upload>").skip(1);
                let named = |upload: &str, name: &str| between(upload, &format!("<{name}>"), "<").to_owned();
                all.extend(uploads.map(|upload| (named(upload, "Key"), named(upload, "UploadId"))));
                more = text.contains("<IsTruncated>true").then(|| {
                    let key = between(&text, "<NextKeyMarker>", "<").replace('/', "%2F");
                    let id = text.contains("<NextUploadIdMarker>").then(|| named(&text, "NextUploadIdMarker"));
                    format!("&key-marker={key}&upload-id-marker={}", id.unwrap_or_default())
                });
            }
            (all, prefixes)
        };
        for limit in 1..=11 {
            assert_eq!(pages(&format!("&max-uploads={limit}")).await, (begun.clone(), 0), "{limit}");
            let (all, prefixes) = pages(&format!("&delimiter=%2F&max-uploads={limit}")).await;
            let shown: Vec<_> = begun.iter().filter(|(key, _)| !key.starts_with("c/")).cloned().collect();
            assert_eq!((all, prefixes), (shown, 1), "{limit}");
            let (all, _) = pages(&format!("&prefix=c%2F&max-uploads={limit}")).await;
            assert_eq!(all, begun[5..8], "{limit}");
        }
        let none = ask(&service, "GET /demo?uploads&max-uploads=0", "", b"").await.text();
        assert!(none.contains("<IsTruncated>false") && !none.contains("<Upload>"), "{none}");
    });
}

#[test]
fn what_is_said_of_an_object_that_is_completed_holds_or_it_is_not() {
    run(async {
        let (service, _store) = open_service().await;
        let id = begin(&service).await;
        let line = format!("PUT /demo/m?partNumber=1&uploadId={id}");
        assert_eq!(ask(&service, &line, "x-amz-checksum-crc32: NhCmhg==\r\n", b"hello").await.status, 200);
        let complete = async |headers: &str, part: &str| {
            let parts = format!(
                "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber>{part}</Part></CompleteMultipartUpload>"
            );
            ask(&service, &format!("POST /demo/m?uploadId={id}"), headers, parts.as_bytes()).await
        };
        let (right, wrong) = ("<ChecksumCRC32>NhCmhg==</ChecksumCRC32>", "<ChecksumCRC32>AAAAAA==</ChecksumCRC32>");
        let unknown = "<ChecksumSHA1>qvTGHdzF6KLavt4PO0gs2a6pQ00=</ChecksumSHA1>";
        for (headers, part, code) in [
            ("x-amz-mp-object-size: 6\r\n", right, "InvalidRequest"),
            ("x-amz-checksum-crc32: NhCmhg==\r\n", right, "InvalidRequest"),
            ("", wrong, "InvalidPart"),
            ("", unknown, "InvalidPart"),
        ] {
            let answer = complete(headers, part).await;
            assert_eq!(answer.status, 400, "{headers} {part}: {answer:?}");
            assert!(answer.text().contains(&format!("<Code>{code}</Code>")), "{headers} {part}: {}", answer.text());
        }
        assert_eq!(ask(&service, "GET /demo/m", "", b"").await.status, 404);
        for again in 0..2 {
            assert_eq!(complete("x-amz-mp-object-size: 6\r\n", right).await.status, 400, "{again}");
            let answer = complete("x-amz-mp-object-size: 5\r\n", right).await;
            assert_eq!(answer.status, 200, "{again}: {answer:?}");
        }
        assert_eq!(ask(&service, "GET /demo/m", "", b"").await.body, b"hello");
    });
}

#[test]
fn an_upload_of_very_many_parts_is_aborted_in_a_small_store() {
    run(async {
        let (service, store) = open_service().await;
        let id = begin(&service).await;
        let parts = store.partition(b".parts").await.expect("parts").id;
        for number in 1..=1200 {
            let part = Put { content: b"part".as_slice().into(), ..Put::default() };
            store.put(parts, format!("{id}/{number:05}").as_bytes(), part).await.expect("a part");
        }
        let answer = ask(&service, &format!("DELETE /demo/m?uploadId={id}"), "", b"").await;
        assert_eq!((answer.status, left(&store).await), (204, 0), "{answer:?}");
        assert!(store.check_at_once().is_empty());
    });
}

#[test]
fn a_part_with_another_checksum_than_its_uploads_is_refused() {
    run(async {
        let (service, store) = open_service().await;
        let answer = ask(&service, "POST /demo/m?uploads", "x-amz-checksum-algorithm: CRC32\r\n", b"").await;
        let id = between(&answer.text(), "<UploadId>", "</UploadId>").to_owned();
        let line = format!("PUT /demo/m?partNumber=1&uploadId={id}");
        let sha1 = "x-amz-checksum-sha1: qvTGHdzF6KLavt4PO0gs2a6pQ00=\r\n";
        let crc32 = "x-amz-checksum-crc32: NhCmhg==\r\n";
        // As SDKs send it, with the algorithm and without.
        for headers in [
            "x-amz-sdk-checksum-algorithm: SHA1\r\n",
            "x-amz-trailer: x-amz-checksum-sha1\r\n",
            sha1,
            &format!("x-amz-sdk-checksum-algorithm: SHA1\r\n{sha1}"),
            &format!("x-amz-sdk-checksum-algorithm: CRC32\r\n{crc32}{sha1}"),
        ] {
            let answer = ask(&service, &line, headers, b"hello").await;
            assert_eq!((answer.status, left(&store).await), (400, 2), "{headers}: {answer:?}");
            assert!(answer.text().contains("<Code>InvalidRequest</Code>"), "{headers}: {}", answer.text());
        }
        for headers in ["", crc32, &format!("x-amz-sdk-checksum-algorithm: CRC32\r\n{crc32}")] {
            assert_eq!(ask(&service, &line, headers, b"hello").await.status, 200, "{headers}");
        }
        assert_eq!(complete(&service, &id, None).await.status, 200);
    });
}

#[test]
fn a_checksum_of_checksums_is_taken_without_the_count_of_parts() {
    run(async {
        let (service, _store) = open_service().await;
        let answer = ask(&service, "POST /demo/m?uploads", "x-amz-checksum-algorithm: CRC32\r\n", b"").await;
        let id = between(&answer.text(), "<UploadId>", "</UploadId>").to_owned();
        assert_eq!(ask(&service, &format!("PUT /demo/m?partNumber=1&uploadId={id}"), "", b"hello").await.status, 200);
        let complete = async |sum: &str| {
            let part = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part></CompleteMultipartUpload>";
            let headers = format!("x-amz-checksum-crc32: {sum}\r\n");
            ask(&service, &format!("POST /demo/m?uploadId={id}"), &headers, part.as_bytes()).await
        };
        let sum = base64_simd::STANDARD.encode_to_string(Crc32::checksum(&Crc32::checksum(b"hello")));
        for wrong in [format!("{sum}-2"), format!("{sum}-"), sum[..4].to_owned(), "AAAAAA==".to_owned()] {
            let answer = complete(&wrong).await;
            assert!(answer.status == 400 && answer.text().contains("<Code>BadDigest</Code>"), "{wrong}: {answer:?}");
        }
        // The first completes it; the others are answered as it was, or refused as before.
        for (said, status) in [(&sum, 200), (&sum, 200), (&format!("{sum}-1"), 200), (&format!("{sum}-2"), 400)] {
            let answer = complete(said).await;
            assert_eq!(answer.status, status, "{said}: {answer:?}");
        }
    });
}
