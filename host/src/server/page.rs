//! The page to chat, and its tab of live figures. Nothing is built and nothing is loaded from elsewhere.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};

/// The page's own scripts and styles, and this server: nothing else, in no frame. No text becomes HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' \
                      data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Path, media type and text of each file.
const FILES: [(&str, &str, &str); 10] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/style.css", CSS, include_str!("page/style.css")),
    ("/app.js", JAVASCRIPT, include_str!("page/app.js")),
    ("/api.js", JAVASCRIPT, include_str!("page/api.js")),
    ("/copy.js", JAVASCRIPT, include_str!("page/copy.js")),
    ("/figures.js", JAVASCRIPT, include_str!("page/figures.js")),
    ("/markdown.js", JAVASCRIPT, include_str!("page/markdown.js")),
    ("/picker.js", JAVASCRIPT, include_str!("page/picker.js")),
    ("/settings.js", JAVASCRIPT, include_str!("page/settings.js")),
    ("/store.js", JAVASCRIPT, include_str!("page/store.js")),
];

/// The files of the page. They need no key: the page asks for it.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.into_iter().fold(Router::new(), |router, (path, media_type, text)| {
        router.route(path, get(async move || file(media_type, text)))
    })
}

fn file(media_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, media_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Another version of the binary has another page.
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
