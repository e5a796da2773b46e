//! What requests may say in their queries, and whether in a body: what the description of the routes declares, and nothing else.
//! So no route does work for a client that asked for something it does not know, such as a dry run.

use crate::routes::{drain, incoming};
use crate::{Problem, ProblemKind};
use axum::body::HttpBody;
use axum::extract::{MatchedPath, Query, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn, PathItem};
use utoipa::openapi::{OpenApi, RefOr};

/// What requests may have, by method and route.
#[derive(Clone)]
pub(crate) struct Declared(Arc<BTreeMap<(String, String), Takes>>);

struct Takes {
    /// The names that its query may have.
    names: Vec<String>,
    body: bool,
}

impl Declared {
    /// Those of the routes that are described.
    pub(crate) fn by(api: &OpenApi) -> Self {
        let of = |(path, item): (&String, &PathItem)| {
            let operations = [
                (Method::GET, &item.get),
                (Method::PUT, &item.put),
                (Method::POST, &item.post),
                (Method::PATCH, &item.patch),
                (Method::DELETE, &item.delete),
            ];
            let named = |(method, operation): (Method, &Option<Operation>)| {
                let operation = operation.as_ref()?;
                let takes = Takes { names: names(operation), body: operation.request_body.is_some() };
                Some(((method.to_string(), path.clone()), takes))
            };
            operations.into_iter().filter_map(named).collect::<Vec<_>>()
        };
        Self(Arc::new(api.paths.paths.iter().flat_map(of).collect()))
    }

    fn refuse(&self, request: &Request) -> Result<(), Problem> {
        let Some(route) = request.extensions().get::<MatchedPath>() else { return Ok(()) };
        // What is said of a HEAD is said of its GET.
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        let Some(takes) = self.0.get(&(method.to_string(), route.as_str().to_owned())) else { return Ok(()) };
        let Query(said) = Query::<Vec<(String, String)>>::try_from_uri(request.uri())?;
        let known = if takes.names.is_empty() { "nothing".to_owned() } else { takes.names.join(", ") };
        let text = if let Some((unknown, _)) = said.iter().find(|(name, _)| !takes.names.contains(name)) {
            format!("the query says {unknown:?}: {method} takes {known} there")
        } else if !takes.body && !request.body().is_end_stream() {
            format!("there is a body: {method} takes none there, and {known} in its query")
        } else {
            return Ok(());
        };
        Err(Problem::new(ProblemKind::Invalid, format!("{}: {text}", request.uri().path())))
    }
}

fn names(operation: &Operation) -> Vec<String> {
    let in_query = |parameter: &RefOr<Parameter>| match parameter {
        RefOr::T(one) if one.parameter_in == ParameterIn::Query => Some(one.name.clone()),
        _ => None,
    };
    operation.parameters.iter().flatten().filter_map(in_query).collect()
}

/// Lets requests through that say what their route declares.
pub(crate) async fn as_declared(State(declared): State<Declared>, request: Request, next: Next) -> Response {
    match declared.refuse(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            drain(&mut incoming(request.into_body())).await;
            problem.into_response()
        }
    }
}
