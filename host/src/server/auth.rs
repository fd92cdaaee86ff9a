//! Keys of clients.

use axum::http::{HeaderMap, header};
use subtle::{Choice, ConstantTimeEq};

/// Whether a request has one of `keys`; anyone has if there are none. The time of a comparison depends on the lengths
/// of the keys alone.
pub(super) fn is_allowed(keys: &[String], headers: &HeaderMap) -> bool {
    if keys.is_empty() {
        return true;
    }
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some((scheme, given)) = value.and_then(|value| value.split_once(' ')) else {
        return false;
    };
    let given = given.trim().as_bytes();
    let is_equal = |key: &String| key.as_bytes().ct_eq(given);
    let any = keys.iter().map(is_equal).fold(Choice::from(0), |any, one| any | one);
    scheme.eq_ignore_ascii_case("bearer") && bool::from(any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_bearer_token() {
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
        assert!(is_allowed(&[], &HeaderMap::new()));
    }
}
