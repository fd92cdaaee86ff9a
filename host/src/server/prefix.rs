//! A path before all paths of the server, for a proxy that serves others beside it.

use super::error::ApiError;
use axum::Router;
use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

/// Whether `prefix` is one or more segments of a path, each after its slash.
pub fn is_path_prefix(prefix: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-._~".contains(char);
    let is_segment =
        |segment: &str| !matches!(segment, "" | "." | "..") && segment.chars().all(is_plain);
    prefix.strip_prefix('/').is_some_and(|segments| segments.split('/').all(is_segment))
}

/// `router`, whose paths come after `prefix`; there are no others.
pub(super) fn before(prefix: String, router: Router) -> Router {
    Router::new().fallback(async move |request| under(&prefix, router.clone(), request).await)
}

async fn under(prefix: &str, router: Router, mut request: Request) -> Response {
    let not_found = || ApiError::status(StatusCode::NOT_FOUND, "there is no such path");
    let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    match path.strip_prefix(prefix) {
        // What the page loads is beside it.
        Some("") => Redirect::permanent(&format!("{prefix}/")).into_response(),
        Some(rest) if rest.starts_with('/') => {
            let Ok(uri) = rest.parse::<Uri>() else { return not_found().into_response() };
            *request.uri_mut() = uri;
            let Ok(response) = TowerToHyperService::new(router).call(request).await;
            response
        }
        _ => not_found().into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::is_path_prefix;

    #[test]
    fn a_prefix_is_segments_after_slashes() {
        for good in ["/llm", "/a/b.c", "/~x"] {
            assert!(is_path_prefix(good), "{good}");
        }
        for bad in
            ["", "/", "llm", "/llm/", "//x", "/a//b", "/..", "/a/./b", "/a b", "/a?b", "/\u{e4}"]
        {
            assert!(!is_path_prefix(bad), "{bad}");
        }
    }
}
