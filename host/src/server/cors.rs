//! Cross-origin requests: none, unless the server's options name origins.

use axum::http::{HeaderValue, Method};
use std::time::Duration;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

/// How long a browser may keep the answer to a preflight request.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// Whether a browser would send this as an origin, or it is `*`, for all of them.
pub fn is_origin(origin: &str) -> bool {
    let host = origin.split_once("://").map_or("", |(_, host)| host);
    let is_plain = |char: char| char.is_ascii_graphic() && !"/?#@,\"*".contains(char);
    origin == "*" || (!host.is_empty() && host.chars().all(is_plain))
}

/// Lets pages of `origins` talk to the server: `None` if there are none. What is no origin is left out.
pub(super) fn layer(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let values = origins.iter().filter(|origin| is_origin(origin));
    let values: Vec<HeaderValue> = values.filter_map(|origin| origin.parse().ok()).collect();
    let allowed = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::from(Any),
        false => AllowOrigin::list(values),
    };
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // Clients of OpenAI's library send headers of their own.
        .allow_headers(AllowHeaders::mirror_request())
        .max_age(MAX_AGE);
    Some(layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_a_scheme_and_a_host_and_no_path() {
        for good in
            ["*", "https://chat.example", "http://127.0.0.1:3000", "app://local", "http://[::1]:80"]
        {
            assert!(is_origin(good), "{good}");
        }
        for bad in [
            "",
            "example.com",
            "https://",
            "https://a/",
            "https://a/b",
            "https://*.a",
            "https://a b",
            "https://é",
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
    }
}
