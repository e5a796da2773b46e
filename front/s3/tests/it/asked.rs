//! Requests, and what they are answered.

use crate::fuzz_body::{open_to_all, set_policy};
use crate::local::{run, service};
use kura_object::Store;
use kura_s3::{Service, converse};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::watch;
use tokio::task::spawn_local;

/// An answer: its status, its head and its body.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let own = |line: &&str| line.split_once(':').is_some_and(|(own, _)| own.eq_ignore_ascii_case(name));
        self.head.lines().find(own).and_then(|line| Some(line.split_once(':')?.1.trim()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A service on a new store, with a bucket `demo` in which everybody may do everything.
pub async fn open_service() -> (Service, Store) {
    let (service, store) = service().await;
    open_to_all(&service).await;
    (service, store)
}

/// Asks on a connection of its own.
pub async fn ask(service: &Service, line: &str, headers: &str, body: &[u8]) -> Answer {
    let len = body.len();
    let head = format!("{line} HTTP/1.1\r\nHost: s3\r\nConnection: close\r\n{headers}Content-Length: {len}\r\n\r\n");
    say(service, [head.as_bytes(), body].concat()).await
}

/// Says this on a connection of its own, and hears one answer, behind which it ends.
pub async fn say(service: &Service, all: Vec<u8>) -> Answer {
    let (ours, theirs) = duplex(1 << 20);
    let service = service.clone();
    let serving = spawn_local(async move {
        let (_stop, stopping) = watch::channel(false);
        converse(theirs, service, stopping).await;
    });
    let (mut hears, mut says) = tokio::io::split(ours);
    let saying = spawn_local(async move {
        // A refusal may come before all is said.
        let _ = says.write_all(&all).await;
        says
    });
    let mut heard = Vec::new();
    let _ = hears.read_to_end(&mut heard).await;
    drop(saying.await);
    serving.await.expect("the connection ends");
    let end = heard.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("an answer has a head");
    let head = String::from_utf8_lossy(&heard[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head, body: heard[end + 4..].to_vec() }
}

#[test]
fn a_browsers_form_is_refused_by_name() {
    run(async {
        let (service, store) = open_service().await;
        let form = "Content-Type: multipart/form-data; boundary=x\r\n";
        let fields = b"--x\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\na\r\n--x\r\n\
                       Content-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nhello\r\n--x--\r\n";
        let longer = "Content-Type: Multipart/Form-Data+x; boundary=x\r\n";
        for path in ["/demo", "/demo/", "/demo?x", "/demo?delete", "/demo/a", "/demo/a?uploads", "/nowhere?x", "/"] {
            for form in [form, longer] {
                let answer = ask(&service, &format!("POST {path}"), form, fields).await;
                assert_eq!(answer.status, 501, "{path}: {answer:?}");
                assert!(answer.text().contains("<Code>NotImplemented</Code>"), "{path}: {}", answer.text());
                assert!(answer.text().contains("HTML form"), "{path}: {}", answer.text());
            }
        }
        // What clients say of the list of keys to delete.
        let delete = b"<Delete><Object><Key>a</Key></Object></Delete>";
        for kind in ["", "application/xml", "text/xml", "application/octet-stream", "application/x-www-form-urlencoded"]
        {
            let kind = if kind.is_empty() { String::new() } else { format!("Content-Type: {kind}\r\n") };
            let answer = ask(&service, "POST /demo?delete", &kind, delete).await;
            assert_eq!(answer.status, 200, "{kind}: {answer:?}");
        }
        assert!(store.check_at_once().is_empty());
    });
}

#[test]
fn a_policy_for_objects_does_not_open_their_versions() {
    run(async {
        let (service, _store) = open_service().await;
        let versioning = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
        assert_eq!(ask(&service, "PUT /demo?versioning", "", versioning).await.status, 200);
        let put = ask(&service, "PUT /demo/a", "", b"secret").await;
        let version = put.header("x-amz-version-id").expect("a version").to_owned();
        assert_eq!(ask(&service, "PUT /demo/a", "", b"public").await.status, 200);
        let policy = r#"{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject",
                         "Resource": "arn:aws:s3:::demo/*"}]}"#;
        set_policy(&service, policy).await;
        assert_eq!(ask(&service, "GET /demo/a", "", b"").await.body, b"public");
        for name in ["versionId", "version%49d", "%76ersionId", "version%49%64"] {
            let answer = ask(&service, &format!("GET /demo/a?{name}={version}"), "", b"").await;
            assert_eq!(answer.status, 403, "{name}: {answer:?}");
            let answer = ask(&service, &format!("GET /demo/a?x-id=GetObject&{name}={version}"), "", b"").await;
            assert_eq!(answer.status, 403, "{name}: {answer:?}");
        }
        let every_key = policy.replace(r#""*", "Action""#, r#"{"AWS": "arn:aws:iam:::user/*"}, "Action""#);
        set_policy(&service, &every_key).await;
        assert_eq!(ask(&service, "GET /demo/a", "", b"").await.status, 403, "nobody without a key");
    });
}

#[test]
fn if_range_asks_for_all_of_another_object() {
    run(async {
        let (service, _store) = open_service().await;
        let put = ask(&service, "PUT /demo/a", "", b"0123456789").await;
        let etag = put.header("etag").expect("an ETag").to_owned();
        let get = ask(&service, "GET /demo/a", "", b"").await;
        let modified = get.header("last-modified").expect("a time").to_owned();
        let other = "Sun, 22 Nov 2020 08:00:00 GMT".to_owned();
        let cases = [
            (etag.clone(), 206),
            (modified, 206),
            (format!("W/{etag}"), 200),
            ("\"00000000000000000000000000000000\"".to_owned(), 200),
            (other, 200),
            ("nonsense".to_owned(), 200),
        ];
        for (value, status) in cases {
            let headers = format!("Range: bytes=2-4\r\nIf-Range: {value}\r\n");
            let answer = ask(&service, "GET /demo/a", &headers, b"").await;
            let body: &[u8] = if status == 206 { b"234" } else { b"0123456789" };
            assert_eq!((answer.status, answer.body.as_slice()), (status, body), "{value}");
            assert_eq!(answer.header("content-range").is_some(), status == 206, "{value}");
            let head = ask(&service, "HEAD /demo/a", &headers, b"").await;
            assert_eq!(head.header("content-range").is_some(), status == 206, "{value}");
        }
        // A range that another state of the object has is not refused.
        let headers = "Range: bytes=100-200\r\nIf-Range: \"x\"\r\n";
        assert_eq!(ask(&service, "GET /demo/a", headers, b"").await.status, 200);
    });
}

#[test]
fn what_nobody_knows_is_not_the_plain_operation() {
    run(async {
        let (service, _store) = open_service().await;
        let begun = ask(&service, "POST /demo/a?uploads", "", b"").await.text();
        let id = begun.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once('<')).expect("an upload").0;
        assert_eq!(ask(&service, &format!("DELETE /demo/a?uploadId={id}"), "", b"").await.status, 204);
        for line in ["DELETE /demo?metadataConfiguration", "DELETE /demo?versioning"] {
            assert_eq!(ask(&service, line, "", b"").await.status, 501, "{line}");
        }
        assert_eq!(ask(&service, "PUT /demo/a", "", b"kept").await.status, 200, "the bucket is there");
        let rename = "x-amz-rename-source: /demo/b\r\n";
        for (line, headers, status) in [
            ("PUT /demo/a?renameObject", rename, 501),
            (&format!("PUT /demo/a?uploadId={id}"), "", 400),
            ("PUT /demo/a?partNumber=1", "", 400),
            ("DELETE /demo/a?retention", "", 501),
        ] {
            let answer = ask(&service, line, headers, b"").await;
            assert_eq!(answer.status, status, "{line}: {answer:?}");
            assert_eq!(ask(&service, "GET /demo/a", "", b"").await.body, b"kept", "{line}");
        }
        assert_eq!(ask(&service, "PUT /demo/a?x-id=PutObject", "", b"new").await.status, 200);
        assert_eq!(ask(&service, "GET /demo/a", "", b"").await.body, b"new");
    });
}
