//! Requests by their numbers: in the head of each answer, in the body of one that is an error, and in whatever is logged while
//! it is made.

use crate::Problem;
use axum::Json;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::Instrument;
use uuid::Uuid;

/// The header that has the number.
const HEADER: &str = "x-request-id";

/// Gives a request its number.
pub(crate) async fn numbered(request: Request, next: Next) -> Response {
    let id = Uuid::new_v4().simple().to_string();
    let span = tracing::info_span!("rest", request = %id, method = %request.method(), path = request.uri().path());
    let mut response = next.run(request).instrument(span).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let told = Json(Problem { request_id: Some(id.clone()), ..problem }).into_response();
        *response.body_mut() = told.into_body();
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, id);
    }
    response
}
