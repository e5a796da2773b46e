//! Files that browsers show: a page that speaks to the routes. They are the same for everybody, so no guard stands before them; what
//! they ask for passes the guard.

use axum::Router;
use axum::http::{HeaderName, header};
use axum::routing::get;

/// A file that is served as it is.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Where: `/`, or a path that no route has.
    pub path: &'static str,
    /// What it is, such as `text/css; charset=utf-8`.
    pub media_type: &'static str,
    /// All of it.
    pub content: &'static [u8],
}

/// A page may run, load and ask for what is this server's; no other site's page has it in a frame, loads a part of it, or holds its
/// window. A browser asks for its files each time: the
/// next start may have newer ones.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// The routes of these.
pub(crate) fn routes(pages: &'static [Page]) -> Router {
    let route = |router: Router, page: &'static Page| {
        let answer = async || ([(header::CONTENT_TYPE, page.media_type)], HEADERS, page.content);
        router.route(page.path, get(answer))
    };
    pages.iter().fold(Router::new(), route)
}
