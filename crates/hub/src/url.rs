//! The little of addresses that the hub's API needs.

use ureq::http::Uri;

/// Where a request goes: scheme, host and port.
pub(crate) type Origin = (String, String, u16);

/// The origin of an `http` or `https` address.
pub(crate) fn origin(url: &str) -> Option<Origin> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let default_port = match &scheme[..] {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
    Some((scheme, host, uri.port_u16().unwrap_or(default_port)))
}

/// What `location`, of a redirect, means at `base`.
pub(crate) fn join(base: &str, location: &str) -> Option<String> {
    if origin(location).is_some() {
        return Some(location.to_owned());
    }
    let scheme_end = base.find("://")?;
    let path_start = base[scheme_end + 3..].find('/').map_or(base.len(), |at| scheme_end + 3 + at);
    let joined = if location.starts_with("//") {
        format!("{}:{location}", &base[..scheme_end])
    } else if location.starts_with('/') {
        format!("{}{location}", &base[..path_start])
    } else {
        let path = base.split(['?', '#']).next()?;
        format!("{}/{location}", &path[..path.rfind('/').filter(|&at| at >= path_start)?])
    };
    origin(&joined).map(|_| joined)
}

/// `text` with everything escaped that a path may not have; `/` stays if `keep_slash`.
pub(crate) fn escape(text: &str, keep_slash: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(byte.into());
            }
            b'/' if keep_slash => escaped.push('/'),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_relative_or_not() {
        let base = "https://hub.example/a/resolve/main/b?x=/y";
        for (location, expected) in [
            ("/c/d?e=1", "https://hub.example/c/d?e=1"),
            ("c", "https://hub.example/a/resolve/main/c"),
            ("//cdn.example/c", "https://cdn.example/c"),
            ("http://cdn.example:8080/c", "http://cdn.example:8080/c"),
        ] {
            assert_eq!(join(base, location).as_deref(), Some(expected), "{location}");
        }
        assert_eq!(join(base, "//"), None);
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        assert_eq!(origin("https://Hub.example/a"), origin("https://hub.example:443"));
        for other in ["http://hub.example", "https://hub.example:8443", "https://hub.example.evil"]
        {
            assert_ne!(origin("https://hub.example"), origin(other), "{other}");
        }
        assert_ne!(origin("https://hub.example@evil"), origin("https://hub.example"));
        for none in ["hub.example", "ftp://hub.example", "/a", "https://", ""] {
            assert_eq!(origin(none), None, "{none}");
        }
    }

    #[test]
    fn what_a_path_may_not_have_is_escaped() {
        assert_eq!(escape("a b/c+d.gguf", true), "a%20b/c%2Bd.gguf");
        assert_eq!(escape("refs/pr/1", false), "refs%2Fpr%2F1");
    }
}
