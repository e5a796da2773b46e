//! Errors on the wire.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kura_block::{Error, Kind};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What to do about a [`Problem`]; the engine's kinds and the door's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemKind {
    /// A passing state: the same request may succeed later.
    Retry,
    /// No space is left.
    Full,
    /// Another owner serves this now.
    Fenced,
    /// The stored bytes are not what was written and no good copy is left.
    Corrupt,
    /// A disk does not do its work.
    Device,
    /// The request makes no sense here.
    Invalid,
    /// The thing named does not exist.
    Missing,
    /// The thing named exists already.
    Exists,
    /// The thing is in use.
    Busy,
    /// The thing may be read, not written.
    ReadOnly,
    /// The request carries no valid credential.
    Unauthorized,
    /// The request comes from a page of another site.
    Forbidden,
}

/// An error: the body of every answer whose status is 400 or above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{error}")]
pub struct Problem {
    /// What to do about it.
    pub kind: ProblemKind,
    /// What went wrong and where: one line.
    pub error: String,
    /// What to do, where that follows from the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The request that met it, as the server's log names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl Problem {
    /// A problem of the given kind, with that kind's remedy. `error` is one line.
    pub fn new(kind: ProblemKind, error: impl Into<String>) -> Self {
        Self { kind, error: error.into(), remedy: kind.remedy().map(str::to_owned), request_id: None }
    }
}

impl ProblemKind {
    fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::Retry => "try again in a moment",
            Self::Fenced => "ask the controller that owns it now",
            Self::Corrupt => "restore it from a copy, and run `kura check` to see what else is affected",
            Self::Device => "see `kura disk list`, and replace the disk",
            Self::Unauthorized => {
                "show the server's admin.token: `kura` takes it as KURA_TOKEN or --token, others send `Authorization: Bearer TOKEN`"
            }
            // What is full says of what, and what makes room.
            Self::Full
            | Self::Busy
            | Self::ReadOnly
            | Self::Invalid
            | Self::Missing
            | Self::Exists
            | Self::Forbidden => {
                return None;
            }
        })
    }

    fn status(self) -> StatusCode {
        match self {
            Self::Retry | Self::Fenced => StatusCode::SERVICE_UNAVAILABLE,
            Self::Full => StatusCode::INSUFFICIENT_STORAGE,
            Self::Corrupt | Self::Device => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Missing => StatusCode::NOT_FOUND,
            Self::Exists | Self::Busy => StatusCode::CONFLICT,
            Self::ReadOnly | Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
        }
    }
}

impl From<Kind> for ProblemKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Retry => Self::Retry,
            Kind::Full => Self::Full,
            Kind::Fenced => Self::Fenced,
            Kind::Corrupt => Self::Corrupt,
            Kind::Device => Self::Device,
            Kind::Invalid => Self::Invalid,
            Kind::Missing => Self::Missing,
            Kind::Exists => Self::Exists,
            Kind::Busy => Self::Busy,
            Kind::ReadOnly => Self::ReadOnly,
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::new(error.kind().into(), error.to_string())
    }
}

macro_rules! rejections {
    ($($rejection:ty),*) => {
        $(impl From<$rejection> for Problem {
            fn from(rejection: $rejection) -> Self {
                Self::new(ProblemKind::Invalid, rejection.body_text())
            }
        })*
    };
}
rejections!(JsonRejection, PathRejection, QueryRejection);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.kind.status(), Json(&self)).into_response();
        let header = match self.kind {
            ProblemKind::Retry => Some((header::RETRY_AFTER, "1")),
            ProblemKind::Unauthorized => Some((header::WWW_AUTHENTICATE, "Bearer")),
            _ => None,
        };
        if let Some((name, value)) = header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        // For whoever knows the request's number.
        response.extensions_mut().insert(self);
        response
    }
}
