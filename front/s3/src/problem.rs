//! The store's errors in S3's words.

use hyper::StatusCode;
use kura_block::{Error, Kind};
use s3s::{S3Error, S3ErrorCode};

/// An error of this code, with a line that says what and what to do.
pub(crate) fn problem(code: S3ErrorCode, text: impl Into<String>) -> S3Error {
    S3Error::with_message(code, text.into())
}

/// The same of a code that s3s does not know.
pub(crate) fn custom(code: &'static str, status: StatusCode, text: impl Into<String>) -> S3Error {
    let mut error = problem(S3ErrorCode::Custom(code.into()), text);
    error.set_status_code(status);
    error
}

/// What is not supported, by name.
pub(crate) fn unsupported(what: &str) -> S3Error {
    problem(S3ErrorCode::NotImplemented, format!("{what} is not supported"))
}

/// What a client is told of an error of the store that says nothing of the object.
pub(crate) fn refusal(error: Error) -> S3Error {
    match error.kind() {
        Kind::Full => {
            let text = "no space is left: delete objects, and snapshots of volume objects, or add a disk, and the store grows \
                        with it at the next start";
            custom("InsufficientStorage", StatusCode::INSUFFICIENT_STORAGE, text)
        }
        Kind::Retry | Kind::Fenced => problem(S3ErrorCode::ServiceUnavailable, error.to_string()),
        Kind::Invalid => problem(S3ErrorCode::InvalidRequest, error.to_string()),
        Kind::ReadOnly => problem(S3ErrorCode::AccessDenied, error.to_string()),
        // That it is gone, of what was found just now: another request was quicker.
        Kind::Missing | Kind::Exists | Kind::Busy => problem(S3ErrorCode::OperationAborted, error.to_string()),
        Kind::Corrupt | Kind::Device => {
            tracing::error!(%error, "S3: the object store failed");
            problem(S3ErrorCode::InternalError, error.to_string())
        }
    }
}

/// The same where `Missing` means the object.
pub(crate) fn of_object(error: Error) -> S3Error {
    if error.kind() == Kind::Missing { S3ErrorCode::NoSuchKey.into() } else { refusal(error) }
}

/// An answer of S3's as an error of the store's, for whoever does not speak S3.
pub(crate) fn from_s3(error: S3Error) -> Error {
    let text = error.message().map_or_else(|| error.code().as_str().to_owned(), str::to_owned);
    let status = error.status_code().or_else(|| error.code().status_code()).unwrap_or_default();
    match status {
        StatusCode::NOT_FOUND => Error::missing(text),
        StatusCode::PRECONDITION_FAILED => Error::exists(text),
        StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE => Error::retry(text),
        StatusCode::INSUFFICIENT_STORAGE => Error::full(text),
        StatusCode::FORBIDDEN => Error::read_only(text),
        status if status.is_client_error() => Error::invalid(text),
        _ => Error::device(text),
    }
}

/// The store is closed.
pub(crate) fn stopped() -> Error {
    Error::retry("the object store is closed: is the server shutting down?")
}
