//! Signatures of version 4, in a header, over the whole body.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

/// An access key.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub id: String,
    pub secret: String,
}

const REGION: &str = "us-east-1";

/// A request: its verb, its path (which needs no escapes), and of its body the length in bytes and the hash.
pub struct Request<'a> {
    pub verb: &'a str,
    pub path: &'a str,
    pub len: usize,
    pub sum: &'a str,
}

/// The head of a request, signed now: good for a quarter of an hour.
pub fn signed(credentials: &Credentials, at: SocketAddr, request: &Request<'_>) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    signed_at(credentials, &at.to_string(), request, &stamp(since))
}

fn signed_at(credentials: &Credentials, host: &str, request: &Request<'_>, time: &str) -> String {
    let Request { verb, path, len, sum } = request;
    let Credentials { id, secret } = credentials;
    let day = &time[..8];
    let names = "host;x-amz-content-sha256;x-amz-date";
    let canonical =
        format!("{verb}\n{path}\n\nhost:{host}\nx-amz-content-sha256:{sum}\nx-amz-date:{time}\n\n{names}\n{sum}");
    let scope = format!("{day}/{REGION}/s3/aws4_request");
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
    let key = [day, REGION, "s3", "aws4_request"]
        .iter()
        .fold(format!("AWS4{secret}").into_bytes(), |key, word| mac(&key, word));
    let signature = hex(&mac(&key, &text));
    format!(
        "{verb} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len}\r\nx-amz-content-sha256: {sum}\r\nx-amz-date: {time}\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}\r\n\r\n"
    )
}

/// The hash of a body, as signatures have it.
pub fn content_sum(body: &[u8]) -> String {
    hex(&Sha256::digest(body))
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    hex_simd::encode_to_string(bytes, hex_simd::AsciiCase::Lower)
}

/// Seconds since 1970 as `20130524T000000Z`.
fn stamp(since_s: u64) -> String {
    let (days, second) = (since_s / 86400, since_s % 86400);
    // Days of the civil calendar, in years that begin in March: a leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(stamp(0), "19700101T000000Z");
        assert_eq!(stamp(951_827_696), "20000229T123456Z");
        assert_eq!(stamp(1_369_353_600), "20130524T000000Z");
    }

    #[test]
    fn a_request_is_signed_as_the_protocol_has_it() {
        // The key and the time are those of the protocol's own examples; a signer of another hand gave the signature.
        let credentials = Credentials {
            id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
        };
        let request = Request { verb: "PUT", path: "/bench/4/00-000001", len: 4, sum: &content_sum(b"body") };
        let head = signed_at(&credentials, "127.0.0.1:9000", &request, "20130524T000000Z");
        assert!(
            head.contains("Signature=efc3278d15aa37afe009e0bfb2ae006e8567996bd59b5048c348c3a3e41676df\r\n"),
            "{head}"
        );
    }
}
