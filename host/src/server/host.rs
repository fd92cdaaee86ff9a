//! Hosts by which clients call the server, against DNS rebinding.
//!
//! The owner of a web page chooses the address of its name, and may change it to 127.0.0.1 while the page is open: a browser
//! then lets the page read this server's answers as those of its own origin. The `Host` of the requests is still the page's.

use super::ServerOptions;
use super::error::ApiError;
use axum::http::{Request, StatusCode, Version, header};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a name in the DNS at most.
const MAX_NAME_BYTES: usize = 253;

/// Whether this is the name or the address of a host, without a scheme and a port.
pub fn is_host(host: &str) -> bool {
    Host::parse(host).is_some()
}

/// A host as a URL has it.
#[derive(Debug, PartialEq, Eq)]
enum Host {
    /// IPv4 where it is mapped to IPv6.
    Address(IpAddr),
    /// In lower case, without the dot of the root.
    Name(String),
}

impl Host {
    /// A name, or an address with or without brackets.
    fn parse(host: &str) -> Option<Self> {
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if let Ok(address) = bracketed.unwrap_or(host).parse::<Ipv6Addr>() {
            return Some(Host::Address(address.to_canonical()));
        }
        let name = host.strip_suffix('.').unwrap_or(host);
        if let Ok(address) = name.parse::<Ipv4Addr>() {
            return Some(Host::Address(address.into()));
        }
        // Browsers send other characters as Punycode.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_plain);
        is_name.then(|| Host::Name(name.to_ascii_lowercase()))
    }

    /// The host of `host [":" port]`: RFC 9110, section 7.2.
    fn from_authority(authority: &str) -> Option<Self> {
        let end = match authority.strip_prefix('[') {
            // The colons of IPv6 are between brackets.
            Some(_) => authority.find(']')? + 1,
            None => authority.find(':').unwrap_or(authority.len()),
        };
        let (host, port) = authority.split_at(end);
        let digits = port.strip_prefix(':').unwrap_or(port);
        let is_port = port.is_empty() || port.starts_with(':');
        let is_authority = is_port && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_authority { Self::parse(host) } else { None }
    }

    /// Whether browsers resolve it to this machine, whatever the DNS says.
    fn is_loopback(&self) -> bool {
        match self {
            Host::Address(address) => address.is_loopback(),
            Host::Name(name) => name == "localhost",
        }
    }
}

/// Hosts of which a request has to have one, beside those of the loopback interface.
#[derive(Debug)]
pub(super) struct AllowedHosts(Vec<Host>);

impl AllowedHosts {
    /// For a server that was told to listen at `host` and listens at `address`. `None` if every host is allowed: the server
    /// asks for a key, or other machines reach it anyway, by names that it does not know; and no option names hosts.
    pub fn new(host: &str, address: IpAddr, options: &ServerOptions) -> Option<Self> {
        let address = address.to_canonical();
        let is_private = address.is_loopback() && options.api_keys.is_empty();
        if !is_private && options.allowed_hosts.is_empty() {
            return None;
        }
        let named = options.allowed_hosts.iter().map(String::as_str).chain([host]);
        let hosts = named.filter_map(Host::parse).chain([Host::Address(address)]);
        Some(AllowedHosts(hosts.collect()))
    }

    /// # Errors
    /// 403 for another host. 400 for what is no host, and for none in HTTP/1.1, as RFC 9112, section 3.2, asks for.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let Some(authority) = authority(request)? else { return Ok(()) };
        let host = Host::from_authority(authority).ok_or_else(no_host)?;
        if host.is_loopback() || self.0.contains(&host) {
            return Ok(());
        }
        let host = match host {
            Host::Address(address) => address.to_string(),
            Host::Name(name) => name,
        };
        let message = format!(
            "this server is not called `{host}`: if that is meant to reach it, start it with --allowed-host {host}"
        );
        Err(ApiError::status(StatusCode::FORBIDDEN, message).with_code("host_not_allowed"))
    }
}

/// Whom a request is for: the authority of its URI (HTTP/2, proxies), else its `Host`. `None` in HTTP/1.0 without either,
/// which no browser sends.
fn authority<B>(request: &Request<B>) -> Result<Option<&str>, ApiError> {
    if let Some(authority) = request.uri().authority() {
        return Ok(Some(authority.as_str()));
    }
    let mut values = request.headers().get_all(header::HOST).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().map(Some).map_err(|_| no_host()),
        (None, _) if request.version() < Version::HTTP_11 => Ok(None),
        _ => Err(no_host()),
    }
}

fn no_host() -> ApiError {
    ApiError::invalid("the request has to have one Host header, HOST or HOST:PORT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(api_key: Option<&str>, allowed_hosts: &[&str]) -> ServerOptions {
        ServerOptions {
            api_keys: api_key.map(str::to_owned).into_iter().collect(),
            allowed_hosts: allowed_hosts.iter().map(|&host| host.to_owned()).collect(),
            ..ServerOptions::default()
        }
    }

    fn allowed(host: &str, address: &str, options: &ServerOptions) -> Option<AllowedHosts> {
        AllowedHosts::new(host, address.parse().unwrap(), options)
    }

    /// The status of a request whose `Host` headers are `hosts`.
    fn status(allowed: &AllowedHosts, version: Version, uri: &str, hosts: &[&[u8]]) -> u16 {
        let mut request = Request::builder().version(version).uri(uri);
        for &host in hosts {
            request = request.header("Host", host);
        }
        let checked = allowed.check(&request.body(()).unwrap());
        checked.map_or_else(|error| error.status.as_u16(), |()| 200)
    }

    #[test]
    fn a_host_is_a_name_or_an_address_without_a_port() {
        for good in ["chat.example", "CHAT_1.example.", "10.0.0.1", "::1", "[fe80::1]", "0x7f.1"] {
            assert!(is_host(good), "{good}");
        }
        for bad in
            ["", ".", "*", "a:80", "http://a", "a/b", "a b", "é", "[::1", "::1]", "[1.2.3.4]"]
        {
            assert!(!is_host(bad), "{bad}");
        }
        assert!(is_host(&"a".repeat(253)) && !is_host(&"a".repeat(254)));
    }

    #[test]
    fn a_local_server_is_called_by_the_names_of_its_machine() {
        let options = options(None, &["Chat.Example", "[fd00::1]", "10.0.0.1"]);
        let hosts = allowed("mybox", "127.0.1.1", &options).unwrap();
        let status = |host: &str| status(&hosts, Version::HTTP_11, "/", &[host.as_bytes()]);
        for good in [
            "localhost",
            "localhost:8080",
            "localhost:",
            "LocalHost.:80",
            "127.0.0.1",
            "127.255.0.9:1",
            "127.0.0.1.",
            "[::1]",
            "[::1]:8080",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]:80",
            "MYBOX:8080",
            "chat.example:443",
            "chat.example.",
            "[FD00:0::1]:80",
            "10.0.0.1",
        ] {
            assert_eq!(status(good), 200, "{good}");
        }
        for foreign in [
            "evil.com",
            "evil.com:80",
            "localhost.evil.com",
            "127.0.0.1.evil.com",
            "evil.localhost",
            "notlocalhost",
            "localhost..",
            "a.chat.example",
            "example",
            "0x7f.1",
            "127.1",
            "2130706433",
            "0177.0.0.1",
            "128.0.0.1",
            "0.0.0.0",
            "10.0.0.2",
            "[::]",
            "[::2]:80",
            "[::ffff:10.0.0.2]",
        ] {
            assert_eq!(status(foreign), 403, "{foreign}");
        }
        for malformed in [
            "",
            ":8080",
            ".",
            "::1",
            "[::1",
            "[::1]x",
            "[::1]:x",
            "[localhost]",
            "[127.0.0.1]",
            "[fe80::1%25lo]",
            "localhost:80:80",
            "localhost:x",
            "localhost:-1",
            "user@localhost",
            "localhost@evil.com",
            "localhost:80@evil.com",
            "evil.com#localhost",
            "localhost, evil.com",
            "localhost/",
            "http://localhost",
        ] {
            assert_eq!(status(malformed), 400, "{malformed}");
        }
        assert_eq!(status(&"a".repeat(254)), 400);
    }

    #[test]
    fn a_request_has_one_host() {
        let hosts = allowed("127.0.0.1", "127.0.0.1", &options(None, &[])).unwrap();
        let (old, new) = (Version::HTTP_10, Version::HTTP_11);
        let (good, bad) = (&b"localhost"[..], &b"evil.com"[..]);
        for (version, uri, headers, wanted) in [
            (new, "/", &[][..], 400),
            (old, "/", &[], 200),
            (old, "/", &[bad], 403),
            (new, "/", &[good, good], 400),
            (old, "/", &[good, bad], 400),
            (new, "/", &["é".as_bytes()], 400),
            // The URI counts: RFC 9112, section 3.2.2.
            (new, "http://evil.com/", &[good], 403),
            (new, "http://localhost:8080/", &[good], 200),
            (Version::HTTP_2, "https://localhost/", &[], 200),
            (Version::HTTP_2, "https://evil.com:8080/", &[], 403),
            (Version::HTTP_2, "https://localhost@evil.com/", &[], 400),
        ] {
            assert_eq!(status(&hosts, version, uri, headers), wanted, "{version:?} {uri}");
        }
    }

    #[test]
    fn hosts_count_where_there_is_neither_a_key_nor_another_machine_or_some_are_named() {
        let (open, key) = (options(None, &[]), options(Some("key"), &[]));
        for address in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"] {
            assert!(allowed("localhost", address, &open).is_some(), "{address}");
            assert!(allowed("localhost", address, &key).is_none(), "{address}");
        }
        for address in ["0.0.0.0", "::", "192.168.0.7", "::ffff:192.168.0.7"] {
            assert!(allowed(address, address, &open).is_none(), "{address}");
        }
        for (api_key, address) in [(Some("key"), "127.0.0.1"), (None, "192.168.0.7")] {
            let hosts = allowed("box.lan", address, &options(api_key, &["chat.example"])).unwrap();
            for (host, wanted) in [
                ("chat.example", 200),
                ("box.lan", 200),
                (address, 200),
                ("localhost", 200),
                ("192.168.0.8", 403),
                ("evil.com", 403),
            ] {
                let status = status(&hosts, Version::HTTP_11, "/", &[host.as_bytes()]);
                assert_eq!(status, wanted, "{address} {host}");
            }
        }
        // What is no host allows none.
        let hosts = allowed("0.0.0.0", "0.0.0.0", &options(None, &["*"])).unwrap();
        assert_eq!(status(&hosts, Version::HTTP_11, "/", &[b"evil.com"]), 403);
    }
}
