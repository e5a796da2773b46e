//! What an object is besides its bytes, as the store has it: attributes, the tag, the version.
//!
//! Attributes have the names of S3's headers: `content-type`, `x-amz-meta-color`, `x-amz-checksum-crc32`. The tag, which
//! lists show without a read, is the `ETag`: 16 bytes of MD5, then, of an upload in parts, their number in 2 bytes.

use crate::checksums::{checksum_of, values};
use crate::problem::problem;
use kura_object::{Attributes, Stat, Version, Which};
use s3s::dto::{Checksum, ChecksumType, ETag, Metadata, Timestamp, TimestampFormat};
use s3s::{S3ErrorCode, S3Result};
use std::time::{Duration, UNIX_EPOCH};

/// Before the names of users' own metadata.
const USER: &str = "x-amz-meta-";
/// What those may take together, as in S3.
const USER_LIMIT_BYTES: usize = 2048;
/// The version that is put without versioning.
const NULL: &str = "null";

/// What an object is that was stored without a type, as in S3.
pub(crate) const UNTYPED: &str = "binary/octet-stream";
pub(crate) const EXPIRES: &str = "expires";
pub(crate) const REDIRECT: &str = "x-amz-website-redirect-location";
pub(crate) const TAGGING: &str = "x-amz-tagging";

/// The headers of a request that are kept, by the names of S3's inputs.
macro_rules! kept_headers {
    ($input:expr) => {{
        let input = &$input;
        let texts = [
            ("content-type", &input.content_type),
            ("cache-control", &input.cache_control),
            ("content-disposition", &input.content_disposition),
            ("content-encoding", &input.content_encoding),
            ("content-language", &input.content_language),
            ($crate::meta::REDIRECT, &input.website_redirect_location),
        ];
        $crate::meta::keep(&texts, input.expires.as_ref(), input.metadata.as_ref())
    }};
}

/// Shows what was kept in an output of S3's.
macro_rules! show_headers {
    ($output:expr, $attributes:expr) => {{
        let (output, attributes) = (&mut $output, &$attributes);
        let kind = $crate::meta::text(attributes, "content-type");
        output.content_type = Some(kind.unwrap_or_else(|| $crate::meta::UNTYPED.to_owned()));
        output.cache_control = $crate::meta::text(attributes, "cache-control");
        output.content_disposition = $crate::meta::text(attributes, "content-disposition");
        output.content_encoding = $crate::meta::text(attributes, "content-encoding");
        output.content_language = $crate::meta::text(attributes, "content-language");
        output.website_redirect_location = $crate::meta::text(attributes, $crate::meta::REDIRECT);
        output.expires = $crate::meta::expires(attributes);
        output.metadata = $crate::meta::user(attributes);
    }};
}

pub(crate) use {kept_headers, show_headers};

/// Attributes of these headers and the user's own metadata.
pub(crate) fn keep(
    texts: &[(&str, &Option<String>)],
    expires: Option<&Timestamp>,
    user: Option<&Metadata>,
) -> S3Result<Attributes> {
    let mut attributes = Attributes::new();
    for (name, value) in texts {
        let Some(value) = value else { continue };
        // How the body came is not what it is.
        let value = if *name == "content-encoding" { without_chunked(value) } else { value.clone() };
        if !value.is_empty() {
            attributes.insert((*name).to_owned(), value.into_bytes());
        }
    }
    if let Some(expires) = expires {
        let mut text = Vec::new();
        expires
            .format(TimestampFormat::HttpDate, &mut text)
            .map_err(|error| problem(S3ErrorCode::InvalidArgument, format!("Expires: {error}")))?;
        attributes.insert(EXPIRES.to_owned(), text);
    }
    let mut user_bytes = 0;
    for (name, value) in user.into_iter().flatten() {
        user_bytes += name.len() + value.len();
        attributes.insert(format!("{USER}{name}"), value.clone().into_bytes());
    }
    if user_bytes > USER_LIMIT_BYTES {
        let text = format!("metadata takes at most {USER_LIMIT_BYTES} bytes, not {user_bytes}");
        return Err(problem(S3ErrorCode::MetadataTooLarge, text));
    }
    Ok(attributes)
}

fn without_chunked(encodings: &str) -> String {
    let kept: Vec<&str> = encodings.split(',').map(str::trim).filter(|encoding| *encoding != "aws-chunked").collect();
    kept.join(",")
}

/// An attribute that is text.
pub(crate) fn text(attributes: &Attributes, name: &str) -> Option<String> {
    attributes.get(name).map(|value| String::from_utf8_lossy(value).into_owned())
}

pub(crate) fn expires(attributes: &Attributes) -> Option<Timestamp> {
    Timestamp::parse(TimestampFormat::HttpDate, &text(attributes, EXPIRES)?).ok()
}

/// The user's own metadata.
pub(crate) fn user(attributes: &Attributes) -> Option<Metadata> {
    let named = attributes.iter().filter_map(|(name, value)| Some((name.strip_prefix(USER)?, value)));
    let user: Metadata =
        named.map(|(name, value)| (name.to_owned(), String::from_utf8_lossy(value).into_owned())).collect();
    (!user.is_empty()).then_some(user)
}

/// The attributes that checksums are kept as.
pub(crate) fn of_checksum(checksum: &Checksum) -> Attributes {
    values(checksum).map(|(algorithm, value)| (algorithm.header.to_owned(), value.clone().into_bytes())).collect()
}

/// The checksums that were kept.
pub(crate) fn checksum(attributes: &Attributes) -> Checksum {
    checksum_of(|header| text(attributes, header))
}

/// What kind of checksum was kept.
pub(crate) fn checksum_type(attributes: &Attributes) -> Option<ChecksumType> {
    match text(attributes, "x-amz-checksum-type")?.as_str() {
        ChecksumType::COMPOSITE => Some(ChecksumType::from_static(ChecksumType::COMPOSITE)),
        _ => Some(ChecksumType::from_static(ChecksumType::FULL_OBJECT)),
    }
}

/// Of an upload in parts, their number.
pub(crate) fn parts_count(tag: &[u8]) -> Option<i32> {
    let parts = tag.get(16..)?.try_into().ok()?;
    Some(i32::from(u16::from_le_bytes(parts)))
}

/// The `ETag` that a tag is.
pub(crate) fn etag(tag: &[u8]) -> ETag {
    let Some((md5, parts)) = tag.split_at_checked(16) else { return ETag::Strong(hex(tag)) };
    let text = match parts.try_into() {
        Ok(parts) => format!("{}-{}", hex(md5), u16::from_le_bytes(parts)),
        Err(_) => hex(md5),
    };
    ETag::Strong(text)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    hex_simd::encode_to_string(bytes, hex_simd::AsciiCase::Lower)
}

/// A time as S3 tells it.
pub(crate) fn timestamp(ms: u64) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_millis(ms))
}

/// A version as clients name it.
pub(crate) fn version_id(stat: &Stat) -> String {
    if stat.unversioned { NULL.to_owned() } else { version_text(stat.version, stat.modified_ms) }
}

/// Digits of a version's number and, behind them, of the time it was made.
const VERSION_DIGITS: (usize, usize) = (16, 12);

pub(crate) fn version_text(Version(number): Version, modified_ms: u64) -> String {
    let (numbers, times) = VERSION_DIGITS;
    format!("{number:0numbers$x}{modified_ms:0times$x}")
}

/// The version that a client names.
pub(crate) fn which(version_id: Option<&str>) -> S3Result<Which> {
    match version_id {
        None => Ok(Which::Latest),
        Some(NULL) => Ok(Which::Unversioned),
        Some(text) => version(text)
            .map(|(number, modified_ms)| Which::Version { number, modified_ms })
            .ok_or_else(|| problem(S3ErrorCode::InvalidArgument, format!("{text:?} is no version of an object"))),
    }
}

/// The version that is named by this text: its number, and when it was made.
pub(crate) fn version(text: &str) -> Option<(Version, u64)> {
    let (numbers, times) = VERSION_DIGITS;
    if text.len() != numbers + times || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let digits = |text| u64::from_str_radix(text, 16).ok();
    Some((Version(digits(&text[..numbers])?), digits(&text[numbers..])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_tells_its_parts() {
        assert_eq!(etag(&[0xab; 16]).value(), "ab".repeat(16));
        let mut tag = vec![1; 16];
        tag.extend_from_slice(&300u16.to_le_bytes());
        assert_eq!(etag(&tag).value(), format!("{}-300", "01".repeat(16)));
    }

    #[test]
    fn versions_have_names_that_are_read_again() {
        assert_eq!(which(None).unwrap(), Which::Latest);
        assert_eq!(which(Some("null")).unwrap(), Which::Unversioned);
        let made = Which::Version { number: Version(77), modified_ms: 1_700_000_000_000 };
        assert_eq!(which(Some(&version_text(Version(77), 1_700_000_000_000))).unwrap(), made);
        for bad in ["", "77", "0000000000000077", &format!("{:027}z", 0), &format!("+{:027}", 0), &"ünicode".repeat(4)]
        {
            assert!(which(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn how_a_body_came_is_not_kept() {
        assert_eq!(without_chunked("aws-chunked"), "");
        assert_eq!(without_chunked("aws-chunked, gzip"), "gzip");
    }

    #[test]
    fn metadata_has_a_limit() {
        let user = |bytes| Metadata::from([("a".to_owned(), "b".repeat(bytes))]);
        assert!(keep(&[], None, Some(&user(2047))).is_ok());
        assert_eq!(*keep(&[], None, Some(&user(2048))).unwrap_err().code(), S3ErrorCode::MetadataTooLarge);
    }
}
