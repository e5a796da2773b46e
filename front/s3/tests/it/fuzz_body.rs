//! What the fuzz target and the fuzz test do with their bytes.

use crate::local::{run, service};
use hyper::http::{HeaderMap, Method, Uri};
use kura_s3::{Service, converse};
use s3s::dto::PutBucketPolicyInput;
use s3s::{S3, S3Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::watch;
use tokio::task::spawn_local;

/// `data` is what a client sends from the first byte on, to a bucket in which everybody may do everything: requests get
/// as far as their signature and their XML let them. The server goes on or hangs up, and the store stays sound.
pub fn ask(data: &[u8]) {
    run(async {
        let (service, store) = service().await;
        open_to_all(&service).await;
        let (ours, theirs) = duplex(1 << 20);
        let (mut hears, mut says) = tokio::io::split(ours);
        let hearing = spawn_local(async move {
            let mut heard = Vec::new();
            // The server may close with bytes unread.
            let _ = hears.read_to_end(&mut heard).await;
            heard
        });
        let sent = data.to_vec();
        let saying = spawn_local(async move {
            let _ = says.write_all(&sent).await;
            let _ = says.shutdown().await;
        });
        let (_stop, stopping) = watch::channel(false);
        converse(theirs, service, stopping).await;
        saying.await.expect("saying does not fail");
        let heard = hearing.await.expect("hearing does not fail");
        assert!(heard.is_empty() || heard.starts_with(b"HTTP/1."), "{}", heard.escape_ascii());
        // Nothing that a client says is the server's fault.
        let blames_itself = heard.windows(13).any(|bytes| bytes == b"HTTP/1.1 500 ");
        assert!(!blames_itself, "{}\n{}", data.escape_ascii(), heard.escape_ascii());
        let violations = store.check_at_once();
        assert!(violations.is_empty(), "{violations:?}");
    });
}

/// A policy that lets everybody do everything.
pub async fn open_to_all(service: &Service) {
    let policy = r#"{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:*",
                     "Resource": ["arn:aws:s3:::demo", "arn:aws:s3:::demo/*"]}]}"#;
    set_policy(service, policy).await;
}

/// Sets the policy of the bucket.
pub async fn set_policy(service: &Service, policy: &str) {
    service.put_bucket_policy(policy_request(policy)).await.expect("the policy");
}

/// What asks to set it.
pub fn policy_request(policy: &str) -> S3Request<PutBucketPolicyInput> {
    let input = PutBucketPolicyInput {
        bucket: "demo".to_owned(),
        policy: policy.to_owned(),
        checksum_algorithm: None,
        confirm_remove_self_bucket_access: None,
        content_md5: None,
        expected_bucket_owner: None,
    };
    S3Request {
        input,
        method: Method::PUT,
        uri: Uri::from_static("/demo?policy"),
        headers: HeaderMap::new(),
        extensions: hyper::http::Extensions::new(),
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    }
}

fn request(line: &str, headers: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    format!("{line} HTTP/1.1\r\nHost: s3\r\n{headers}Content-Length: {len}\r\n\r\n{body}").into_bytes()
}

/// Conversations that mean something.
pub fn seeds() -> Vec<Vec<u8>> {
    let put = request("PUT /demo/a", "x-amz-meta-color: red\r\nContent-Type: text/plain\r\n", "hello");
    let signed = "Authorization: AWS4-HMAC-SHA256 Credential=KURA0123456789ABCDEF/20261122/us-east-1/s3/aws4_request, \
                  SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=00112233445566778899aabbccddeeff\r\n\
                  x-amz-date: 20261122T080000Z\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n";
    let presigned = "/demo/a?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=KURA0123456789ABCDEF%2F20261122%2Fus-east-1\
                     %2Fs3%2Faws4_request&X-Amz-Date=20261122T080000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&\
                     X-Amz-Signature=00112233445566778899aabbccddeeff";
    let chunked = "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nContent-Encoding: aws-chunked\r\n\
                   x-amz-decoded-content-length: 5\r\nx-amz-trailer: x-amz-checksum-crc32\r\n";
    let delete =
        "<Delete><Object><Key>a</Key></Object><Object><Key>b</Key><VersionId>null</VersionId></Object></Delete>";
    let lifecycle = "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status><Filter><Prefix>l/</Prefix></Filter>\
                     <Expiration><Days>3</Days></Expiration></Rule></LifecycleConfiguration>";
    let cors = "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule>\
                </CORSConfiguration>";
    let parts =
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"00\"</ETag></Part></CompleteMultipartUpload>";
    let tags = "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
    let versioning = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let policy = r#"{"Version": "2012-10-17", "Statement": {"Effect": "Deny", "Principal": {"AWS": ["x"]}, "Action": ["s3:Get*"], "Resource": "arn:aws:s3:::demo/*"}}"#;
    vec![
        [put.clone(), request("GET /demo/a", "Range: bytes=1-2\r\nIf-None-Match: \"x\"\r\n", "")].concat(),
        request("PUT /demo/a", signed, "hello"),
        request(&format!("GET {presigned}"), "", ""),
        request("PUT /demo/a", chunked, "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n"),
        [put.clone(), request("POST /demo?delete", "", delete)].concat(),
        [put.clone(), request("PUT /demo/a?tagging", "", tags), request("GET /demo/a?tagging", "", "")].concat(),
        [request("PUT /demo?versioning", "", versioning), put.clone(), request("GET /demo?versions", "", "")].concat(),
        [request("PUT /demo?lifecycle", "", lifecycle), request("GET /demo?lifecycle", "", "")].concat(),
        [request("PUT /demo?cors", "", cors), request("OPTIONS /demo/a", "Origin: http://x\r\n", "")].concat(),
        [request("PUT /demo?policy", "", policy), request("GET /demo?policy", "", "")].concat(),
        [request("POST /demo/m?uploads", "", ""), request("POST /demo/m?uploadId=0", "", parts)].concat(),
        [put, request("PUT /demo/c", "x-amz-copy-source: /demo/a?versionId=null\r\n", "")].concat(),
        // A body that breaks off in its middle, where all of it is wanted at once.
        b"POST /demo?delete HTTP/1.1\r\nHost: s3\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello".to_vec(),
        request("GET /demo?list-type=2&prefix=a&delimiter=%2F&max-keys=7&encoding-type=url&start-after=%00", "", ""),
    ]
}
