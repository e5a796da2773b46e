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
            let text = "no space is left: delete objects, or add a disk";
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

/// The store is closed.
pub(crate) fn stopped() -> Error {
    Error::retry("the object store is closed: is the server shutting down?")
}
