//! Requests that are signed, and what a signature covers.

use crate::asked::{Answer, ask, say};
use crate::local::{directory, run};
use kura_s3::{Directory, Key, NewKey, Service};
use s3s::crypto::{Checksum as _, Sha256};
use s3s::dto::{Timestamp, TimestampFormat};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

/// Whoever signs with a key.
pub struct Signer(Arc<Key>);

fn hex(bytes: &[u8]) -> String {
    hex_simd::encode_to_string(bytes, hex_simd::AsciiCase::Lower)
}

fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let padded = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(key).for_each(|(own, byte)| *own ^= byte);
        block
    };
    let inner = Sha256::checksum(&[&padded(0x36), text].concat());
    Sha256::checksum(&[&padded(0x5c)[..], &inner].concat())
}

fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if is_plain {
            out.push(byte.into());
        } else {
            write!(out, "%{byte:02X}").expect("a string takes it");
        }
        out
    })
}

/// Such as 20261122T080000Z: now, by the machine's clock, as s3s reads that.
fn now() -> String {
    let mut text = Vec::new();
    Timestamp::from(SystemTime::now()).format(TimestampFormat::DateTime, &mut text).expect("a time");
    let text = String::from_utf8(text).expect("text").replace(['-', ':'], "");
    text[..15].to_owned() + "Z"
}

impl Signer {
    /// With a new key that may do everything.
    pub async fn new(directory: &Arc<Directory>) -> Self {
        Self(directory.create_key(NewKey::default()).await.expect("a key"))
    }

    fn credential(&self, date: &str) -> String {
        format!("{}/{}/us-east-1/s3/aws4_request", self.0.id, &date[..8])
    }

    fn signature(&self, date: &str, request: &str) -> String {
        let scope = format!("{}/us-east-1/s3/aws4_request", &date[..8]);
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::checksum(request.as_bytes())));
        let first = hmac(format!("AWS4{}", self.0.secret).as_bytes(), &date.as_bytes()[..8]);
        let key = [b"us-east-1".as_slice(), b"s3", b"aws4_request"].iter().fold(first, |key, part| hmac(&key, part));
        hex(&hmac(&key, text.as_bytes()))
    }

    /// A presigned URL: its path and its query, in which these stand as well.
    pub fn url(&self, method: &str, path: &str, with: &[(&str, &str)]) -> String {
        let (date, mut all) = (now(), with.to_vec());
        let credential = self.credential(&date);
        all.extend([("X-Amz-Algorithm", "AWS4-HMAC-SHA256"), ("X-Amz-Credential", &credential), ("X-Amz-Date", &date)]);
        all.extend([("X-Amz-Expires", "60"), ("X-Amz-SignedHeaders", "host")]);
        let mut pairs: Vec<_> =
            all.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
        pairs.sort();
        let query = pairs.join("&");
        let request = format!("{method}\n{path}\n{query}\nhost:s3\n\nhost\nUNSIGNED-PAYLOAD");
        format!("{path}?{query}&X-Amz-Signature={}", self.signature(&date, &request))
    }

    /// The headers of a request, and what signs them. Names are in lower case; the query is as it is signed.
    pub fn headers(&self, method: &str, (path, query): (&str, &str), hash: &str, with: &[(&str, &str)]) -> String {
        let (date, mut all) = (now(), with.to_vec());
        all.extend([("host", "s3"), ("x-amz-content-sha256", hash), ("x-amz-date", &date)]);
        all.sort_unstable();
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let canonical = all.iter().map(|(name, value)| format!("{name}:{value}\n"));
        let canonical = canonical.collect::<Vec<_>>().concat();
        let request = format!("{method}\n{path}\n{query}\n{canonical}\n{names}\n{hash}");
        let signature = self.signature(&date, &request);
        let sent = all.iter().filter(|(name, _)| *name != "host").map(|(name, value)| format!("{name}: {value}\r\n"));
        let credential = self.credential(&date);
        sent.collect::<String>()
            + &format!(
                "Authorization: AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}\r\n"
            )
    }
}

/// A service, and somebody with a key to it.
pub async fn signing() -> (Service, Signer) {
    let (directory, _store) = directory().await;
    let signer = Signer::new(&directory).await;
    (Service::new(directory), signer)
}

#[test]
fn what_a_presigned_url_says_in_place_of_headers_is_done() {
    run(async {
        let (service, signer) = signing().await;
        let ask_by = async |method: &str, with: &[(&str, &str)], headers: &str, body: &[u8]| -> Answer {
            let url = signer.url(method, "/demo/a", with);
            ask(&service, &format!("{method} {url}"), headers, body).await
        };
        // As the JavaScript SDK makes it.
        let with = [
            ("x-amz-meta-color", "dark red"),
            ("x-amz-tagging", "k=v"),
            ("x-amz-storage-class", "STANDARD"),
            ("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD"),
            ("x-amz-checksum-crc32", "AAAAAA=="),
            ("x-amz-sdk-checksum-algorithm", "CRC32"),
            ("x-id", "PutObject"),
        ];
        let put = ask_by("PUT", &with, "", b"hello").await;
        assert_eq!(put.status, 200, "{put:?}");
        let get = ask_by("GET", &[], "", b"").await;
        assert_eq!((get.body.as_slice(), get.header("x-amz-meta-color")), (b"hello".as_slice(), Some("dark red")));
        assert_eq!(get.header("x-amz-tagging-count"), Some("1"), "{get:?}");
        assert_eq!(ask_by("PUT", &with, "x-amz-meta-color: dark red\r\n", b"hello").await.status, 200);
        assert_eq!(ask_by("PUT", &with, "x-amz-meta-color: blue\r\n", b"hello").await.status, 403);
        assert_eq!(ask_by("PUT", &with, "x-amz-meta-size: huge\r\n", b"hello").await.status, 403);
        for (name, value) in [("x-amz-acl", "public-read"), ("x-amz-storage-class", "GLACIER")] {
            assert_eq!(ask_by("PUT", &[(name, value)], "", b"other").await.status, 501, "{name}");
        }
        assert_eq!(ask_by("PUT", &[("x-amz-meta-a", "b\nc")], "", b"other").await.status, 400);
        assert_eq!(ask_by("GET", &[], "", b"").await.body, b"hello");
        let shown = ask_by("GET", &[("response-content-type", "image/png")], "", b"").await;
        assert_eq!((shown.status, shown.header("content-type")), (200, Some("image/png")), "{shown:?}");
        // What is added to a URL that was signed without it does not count.
        let url = signer.url("PUT", "/demo/a", &[]) + "&x-amz-meta-a=b";
        assert_eq!(ask(&service, &format!("PUT {url}"), "", b"other").await.status, 403);
    });
}

/// Stores an object by a body in chunks whose head says this; without `len`, the body comes in chunks of HTTP besides.
async fn put_chunked(
    (service, signer): (&Service, &Signer),
    with: &[(&str, &str)],
    body: &[u8],
    has_length: bool,
) -> Answer {
    let hash = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
    let headers = signer.headers("PUT", ("/demo/a", ""), hash, with);
    if has_length {
        return ask(service, "PUT /demo/a", &headers, body).await;
    }
    let head =
        format!("PUT /demo/a HTTP/1.1\r\nHost: s3\r\nConnection: close\r\n{headers}Transfer-Encoding: chunked\r\n\r\n");
    let framed = [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n0\r\n\r\n"].concat();
    say(service, [head.as_bytes(), &framed].concat()).await
}

#[test]
fn what_the_head_says_of_a_body_in_chunks_holds() {
    run(async {
        let (service, signer) = signing().await;
        let by = (&service, &signer);
        let trailer = ("x-amz-trailer", "x-amz-checksum-crc32");
        let with = |len: &'static str| [trailer, ("x-amz-decoded-content-length", len)];
        let whole = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n".as_slice();
        let wrong = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n".as_slice();
        let silent = b"5\r\nhello\r\n0\r\n\r\n".as_slice();
        let other = b"5\r\nhello\r\n0\r\nx-amz-checksum-sha1:qvTGHdzF6KLavt4PO0gs2a6pQ00=\r\n\r\n".as_slice();
        let odd = b"5 \r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n".as_slice();
        for has_length in [true, false] {
            for (len, body, code) in [
                ("6", whole, "IncompleteBody"),
                ("4", whole, "IncompleteBody"),
                ("5", wrong, "BadDigest"),
                ("5", silent, "MalformedTrailerError"),
                ("5", other, "MalformedTrailerError"),
                ("5", odd, "InvalidRequest"),
                ("5", &whole[..10], "MalformedTrailerError"),
            ] {
                let answer = put_chunked(by, &with(len), body, has_length).await;
                let what = format!("{len} of {}, {has_length}", body.escape_ascii());
                assert_eq!(answer.status, 400, "{what}: {answer:?}");
                assert!(answer.text().contains(&format!("<Code>{code}</Code>")), "{what}: {}", answer.text());
            }
            let answer = put_chunked(by, &with("5"), whole, has_length).await;
            assert_eq!((answer.status, answer.header("x-amz-checksum-crc32")), (200, Some("NhCmhg==")), "{answer:?}");
        }
    });
}
