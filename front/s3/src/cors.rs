//! CORS: which pages of other sites may ask. Pure but for the service that it wraps.

use crate::alive::kept_alive;
use crate::body::document::Document;
use crate::body::unread::watch;
use crate::directory::Directory;
use crate::get::{forget_odd_range, say_part};
use crate::meters;
use crate::past::bucket_of;
use crate::problem::unsupported;
use crate::query;
use crate::signed;
use crate::unwelcome;
use crate::wildcard::fits;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use percent_encoding::percent_decode_str;
use s3s::dto::{CORSConfiguration, CORSRule};
use s3s::service::S3Service;
use s3s::{Body, HttpError, HttpResponse, S3Error, S3ErrorCode};
use std::sync::Arc;
use tracing::Instrument;
use uuid::Uuid;

/// The header that has a request's number, which clients tell with an error and the log has in whatever it says of it.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");

/// A service that answers browsers' questions beforehand, and tells them in each answer what their pages may see.
#[derive(Clone)]
pub(crate) struct Cors {
    pub service: S3Service,
    pub directory: Arc<Directory>,
}

impl hyper::service::Service<Request<Incoming>> for Cors {
    type Response = HttpResponse;
    type Error = HttpError;
    type Future = BoxFuture<'static, Result<HttpResponse, HttpError>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let mut meter = Some(meters::Request::begin(request.method()));
        let origin = request.headers().get(header::ORIGIN).cloned();
        let rules = origin.as_ref().and_then(|_| self.rules(request.uri().path()));
        let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_METHOD).cloned();
        let id = Uuid::new_v4().simple().to_string();
        let span = tracing::info_span!("s3", request = %id, method = %request.method(), path = request.uri().path());
        let number = HeaderValue::from_str(&id);
        let numbered = move |mut answer: HttpResponse| {
            if let Ok(number) = number {
                answer.headers_mut().insert(REQUEST_ID, number);
            }
            answer
        };
        if request.method() == Method::OPTIONS {
            let answer = preflight(rules.as_ref(), origin.as_ref(), asked.as_ref(), request.headers());
            return Box::pin(async move { answer.map(numbered).map_err(|error| HttpError::new(error.into())) });
        }
        let (service, method, refusal) = (self.service.clone(), request.method().clone(), refused(&request));
        let answered = async move {
            let document = Document::default();
            let (mut request, rest) = watch(request, document.clone());
            request.extensions_mut().insert(document.clone());
            let uri = request.uri().clone();
            forget_odd_range(request.headers_mut(), &uri);
            let range = request.headers().get(header::RANGE).cloned();
            let mut lifted =
                || signed::lift(request.headers_mut(), &uri).and_then(|()| unwelcome::check(request.headers()));
            let mut answer = if let Some(refusal) = refusal.or_else(|| lifted().err()) {
                // Unread.
                drop(request);
                refusal.to_http_response().map_err(|error| HttpError::new(error.into()))?
            } else if takes_long(&request) {
                // What it came to is known when it has ended, which may be long after its answer began.
                let meter = meter.take();
                let done = async move {
                    let answer = service.call(request).await?;
                    note(meter, &answer);
                    Ok(answer)
                };
                kept_alive(Box::pin(done.in_current_span())).await?
            } else {
                service.call(request).await?
            };
            if let Some(refusal) = document.refusal() {
                answer = refusal.to_http_response().map_err(|error| HttpError::new(error.into()))?;
            }
            if let Some(rest) = rest {
                rest.settle(&mut answer).await;
            }
            say_part(&method, range.as_ref(), &mut answer);
            note(meter, &answer);
            if let (Some(rules), Some(origin)) = (rules, origin)
                && let Some(rule) = matching(&rules, &origin, method.as_str(), None)
            {
                answer.headers_mut().extend(headers(rule, &origin));
            }
            Ok(numbered(answer))
        };
        Box::pin(answered.instrument(span))
    }
}

impl Cors {
    fn rules(&self, path: &str) -> Option<CORSConfiguration> {
        let name = path.trim_start_matches('/').split('/').next()?;
        let name = percent_decode_str(name).decode_utf8().ok()?;
        // A snapshot's bucket is asked by whom the bucket is.
        self.directory.find(bucket_of(&name))?.cors.clone()
    }
}

fn note(meter: Option<meters::Request>, answer: &HttpResponse) {
    if let Some(meter) = meter {
        meter.answered(answer.status());
    }
}

/// What is refused before s3s sees it, as it would take it for something else.
fn refused<B>(request: &Request<B>) -> Option<S3Error> {
    if is_form(request) {
        return Some(unsupported("storing by an HTML form (POST of multipart/form-data)"));
    }
    let checked = query::check(request.method(), request.uri());
    checked.and_then(|()| signed::check_listed(request.headers(), request.uri())).err()
}

/// True for what takes as long as the object is large, or has parts, without a word from the client meanwhile: copies, and uploads that
/// are completed.
fn takes_long<B>(request: &Request<B>) -> bool {
    match *request.method() {
        Method::PUT => request.headers().contains_key("x-amz-copy-source"),
        Method::POST => query::value(request.uri().query().unwrap_or_default(), "uploadId").is_some(),
        _ => false,
    }
}

/// True when a browser's form is sent, to whatever path and with whatever query: s3s takes each for one, and has all of it in
/// memory before anybody is asked who may send it. Also what only begins like its type, as `multipart/form-data+x`.
fn is_form<B>(request: &Request<B>) -> bool {
    const FORM: &[u8] = b"multipart/form-data";
    let is_form =
        |kind: &HeaderValue| kind.as_bytes().get(..FORM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(FORM));
    request.method() == Method::POST && request.headers().get_all(header::CONTENT_TYPE).iter().any(is_form)
}

/// The answer to a browser that asks beforehand.
fn preflight(
    rules: Option<&CORSConfiguration>,
    origin: Option<&HeaderValue>,
    method: Option<&HeaderValue>,
    asked: &HeaderMap,
) -> Result<HttpResponse, S3Error> {
    let (Some(origin), Some(method)) = (origin, method.and_then(|method| method.to_str().ok())) else {
        let text = "OPTIONS requires Origin and Access-Control-Request-Method";
        return S3Error::with_message(S3ErrorCode::InvalidRequest, text).to_http_response();
    };
    let wanted = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
    let Some(rule) = rules.and_then(|rules| matching(rules, origin, method, wanted)) else {
        let text = "CORSResponse: no rule of the bucket allows this";
        return S3Error::with_message(S3ErrorCode::AccessDenied, text).to_http_response();
    };
    let mut answer = HttpResponse::new(Body::empty());
    *answer.status_mut() = StatusCode::OK;
    answer.headers_mut().extend(headers(rule, origin));
    if let Some(wanted) = wanted {
        answer.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    if let Some(seconds) = rule.max_age_seconds {
        answer.headers_mut().insert(header::ACCESS_CONTROL_MAX_AGE, seconds.into());
    }
    Ok(answer)
}

/// The first rule that allows it.
fn matching<'a>(
    rules: &'a CORSConfiguration,
    origin: &HeaderValue,
    method: &str,
    wanted: Option<&HeaderValue>,
) -> Option<&'a CORSRule> {
    let origin = origin.to_str().ok()?;
    let wanted: Vec<String> = match wanted {
        None => Vec::new(),
        Some(wanted) => wanted.to_str().ok()?.split(',').map(|name| name.trim().to_lowercase()).collect(),
    };
    rules.cors_rules.iter().find(|rule| {
        let headers = rule.allowed_headers.as_deref().unwrap_or_default();
        rule.allowed_origins.iter().any(|allowed| fits(allowed, origin, None))
            && rule.allowed_methods.iter().any(|allowed| allowed == method)
            && wanted.iter().all(|name| headers.iter().any(|allowed| fits(&allowed.to_lowercase(), name, None)))
    })
}

/// What an answer says of a rule.
fn headers(rule: &CORSRule, origin: &HeaderValue) -> HeaderMap {
    let any = rule.allowed_origins.iter().any(|allowed| allowed == "*");
    let mut headers = HeaderMap::new();
    headers
        .insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, if any { HeaderValue::from_static("*") } else { origin.clone() });
    if !any {
        headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    let lists: [(HeaderName, Option<&Vec<String>>); 2] = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, Some(&rule.allowed_methods)),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, rule.expose_headers.as_ref()),
    ];
    for (name, list) in lists {
        let Some(list) = list.filter(|list| !list.is_empty()) else { continue };
        if let Ok(value) = list.join(", ").parse() {
            headers.insert(name, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> CORSConfiguration {
        let rule = |origin: &str, method: &str, header: Option<&str>| CORSRule {
            allowed_headers: header.map(|header| vec![header.to_owned()]),
            allowed_methods: vec![method.to_owned()],
            allowed_origins: vec![origin.to_owned()],
            expose_headers: None,
            id: None,
            max_age_seconds: None,
        };
        CORSConfiguration {
            cors_rules: vec![rule("https://*.example", "PUT", Some("x-amz-*")), rule("*", "GET", None)],
        }
    }

    #[test]
    fn the_first_rule_that_allows_it_counts() {
        let rules = rules();
        let found = |origin: &'static str, method: &str, wanted: Option<&'static str>| {
            let wanted = wanted.map(HeaderValue::from_static);
            let rule = matching(&rules, &HeaderValue::from_static(origin), method, wanted.as_ref());
            rule.map(|rule| rule.allowed_origins[0].clone())
        };
        assert_eq!(found("https://a.example", "PUT", Some("X-Amz-Date")).as_deref(), Some("https://*.example"));
        assert_eq!(found("https://a.example", "PUT", Some("x-amz-date, range")), None);
        assert_eq!(found("http://a.example", "PUT", None), None);
        assert_eq!(found("http://a.example", "GET", None).as_deref(), Some("*"));
        assert_eq!(found("http://a.example", "DELETE", None), None);
    }

    #[test]
    fn credentials_are_never_for_everybody() {
        let rules = rules();
        let origin = HeaderValue::from_static("https://a.example");
        let named = headers(&rules.cors_rules[0], &origin);
        assert_eq!(named[header::ACCESS_CONTROL_ALLOW_ORIGIN], origin);
        let anybody = headers(&rules.cors_rules[1], &origin);
        assert_eq!(anybody[header::ACCESS_CONTROL_ALLOW_ORIGIN], "*");
        assert!(!anybody.contains_key(header::ACCESS_CONTROL_ALLOW_CREDENTIALS));
    }
}
