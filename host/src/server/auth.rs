//! Keys of clients.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use subtle::{Choice, ConstantTimeEq};

/// Anthropic's header for a key.
const X_API_KEY: &str = "x-api-key";

/// Whether a request has one of `keys`, as OpenAI's clients send it or as Anthropic's; anyone has if there are none. The time
/// of a comparison depends on the lengths of the keys alone.
pub(super) fn is_allowed(keys: &[String], headers: &HeaderMap) -> bool {
    if keys.is_empty() {
        return true;
    }
    let value = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let bearer = value(header::AUTHORIZATION)
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, given)| given.trim());
    let x_api_key = value(HeaderName::from_static(X_API_KEY)).map(str::trim);
    [bearer, x_api_key].into_iter().flatten().any(|given| is_one_of(keys, given.as_bytes()))
}

fn is_one_of(keys: &[String], given: &[u8]) -> bool {
    let is_equal = |key: &String| key.as_bytes().ct_eq(given);
    keys.iter().map(is_equal).fold(Choice::from(0), |any, one| any | one).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_bearer_token_or_an_x_api_key() {
        let keys = ["one".to_owned(), "two".to_owned()];
        let allowed = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            is_allowed(&keys, &headers)
        };
        for good in ["Bearer one", "bearer two", "Bearer  two "] {
            assert!(allowed(good), "{good}");
        }
        for bad in ["Bearer", "Bearer ", "one", "Basic one", "Bearer onetwo", "Bearer on"] {
            assert!(!allowed(bad), "{bad}");
        }
        assert!(!is_allowed(&keys, &HeaderMap::new()));
        let mut both = HeaderMap::new();
        for (x_api_key, bearer, is_good) in
            [("two", "x", true), ("x", "one", true), ("x", "x", false), ("", "x", false)]
        {
            both.insert(X_API_KEY, x_api_key.parse().unwrap());
            both.insert(header::AUTHORIZATION, format!("Bearer {bearer}").parse().unwrap());
            assert_eq!(is_allowed(&keys, &both), is_good, "{x_api_key} {bearer}");
        }
        assert!(is_allowed(&[], &HeaderMap::new()));
    }
}
