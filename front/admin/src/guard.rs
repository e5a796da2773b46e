//! Who may speak to the REST door.
//!
//! With a token, whoever shows it. Without one, only a listener that is reached from this machine is open (the server
//! refuses any other at its start), and then a browser is the danger: a page of another site must not reach the door
//! through the user's browser. Such a page is told by its `Origin`, or, where it made its own name resolve to loopback,
//! by the `Host` it asks for.

use crate::{Problem, ProblemKind};
use axum::extract::Request;
use axum::http::{HeaderMap, header, uri::Authority};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// The secret that opens the door; never printed.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// The token `secret`.
    pub fn new(secret: &str) -> Self {
        Self(secret.into())
    }

    /// The `Authorization` header that shows it.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }

    fn is(&self, shown: &str) -> bool {
        self.0.as_bytes().ct_eq(shown.as_bytes()).into()
    }
}

impl std::str::FromStr for Token {
    type Err = String;

    /// What a user says the token is, which goes into a header; the error does not repeat it.
    fn from_str(secret: &str) -> Result<Self, String> {
        if !secret.is_empty() && secret.chars().all(|letter| letter.is_ascii_graphic()) {
            return Ok(Self::new(secret));
        }
        Err("a token has letters, digits and signs, no spaces and no line's end".to_owned())
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Lets requests with the token through, and `/healthz`, which tells nothing.
pub(crate) async fn by_token(token: Token, request: Request, next: Next) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.split_once(' '));
    let valid = shown.is_some_and(|(scheme, secret)| scheme.eq_ignore_ascii_case("bearer") && token.is(secret.trim()));
    if valid || request.uri().path() == "/healthz" {
        return next.run(request).await;
    }
    Problem::new(ProblemKind::Unauthorized, "the request carries no valid token").into_response()
}

/// Lets requests through that do not come from a page of another site.
pub(crate) async fn by_site(request: Request, next: Next) -> Response {
    match foreign_site(request.headers()) {
        None => next.run(request).await,
        Some(why) => Problem::new(ProblemKind::Forbidden, why).into_response(),
    }
}

fn foreign_site(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let host = text(header::HOST).unwrap_or_default();
    if !names_this_machine(&host) {
        return Some(format!("the request asks for host {host:?}: use localhost or an IP address, or set admin.token"));
    }
    let origin = text(header::ORIGIN)?;
    let own = origin.split_once("://").is_some_and(|(_, authority)| authority == host);
    (!own).then(|| format!("the request comes from a page of another site: {origin:?}"))
}

/// True for `localhost` and for IP addresses, which no foreign name server can make point here.
fn names_this_machine(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: &str, origin: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_pages_of_this_machine_reach_an_open_door() {
        let cases = [
            ("127.0.0.1:7400", None, true),
            ("[::1]:7400", None, true),
            ("localhost:7400", Some("http://localhost:7400"), true),
            ("localhost:7400", Some("http://localhost:3000"), false),
            ("127.0.0.1:7400", Some("https://evil.example"), false),
            ("127.0.0.1:7400", Some("null"), false),
            ("evil.example:7400", None, false),
            ("127.0.0.1.evil.example", None, false),
        ];
        for (host, origin, allowed) in cases {
            assert_eq!(foreign_site(&headers(host, origin)).is_none(), allowed, "{host} {origin:?}");
        }
        assert!(foreign_site(&HeaderMap::new()).is_some());
    }
}
