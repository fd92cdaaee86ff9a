//! The hub over HTTP.
//!
//! Not by the crate `hf-hub` 0.5: it verifies nothing, appends to a part whatever the server
//! answers, checks no file name, and panics at a redirect with no address.

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use ureq::{
    Agent,
    http::{HeaderMap, Response},
    tls::{RootCerts, TlsConfig},
};

use crate::{
    Body, Checksum, FileInfo, FileName, Hub, HubError, RepoId, RepoInfo, Settings,
    url::{self, Origin},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long nothing may come.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_REDIRECTS: usize = 8;
/// A repository of 10,000 files takes 2 MB.
const MAX_LISTING_BYTES: u64 = 32 << 20;

/// A hub at an address.
pub struct Client {
    agent: Agent,
    endpoint: String,
    origin: Origin,
    token: Option<String>,
}

/// What came, after redirects.
struct Answer {
    response: Response<ureq::Body>,
    /// `x-linked-etag` of the last response that has it, redirects included.
    linked_etag: Option<String>,
    /// `x-linked-size` of the last response that has it, redirects included.
    linked_bytes: Option<String>,
}

/// How connections are encrypted: servers are vouched for by those whom the system trusts.
pub fn tls_config() -> TlsConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    TlsConfig::builder()
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(RootCerts::PlatformVerifier)
        .build()
}

#[derive(Clone, Copy, PartialEq)]
enum Method {
    Head,
    Get { offset: u64 },
}

#[derive(Deserialize)]
struct Listing {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Client {
    /// A hub at the address and with the token of `settings`. Nothing is requested yet.
    ///
    /// # Errors
    /// [`HubError::Endpoint`] for what is no address.
    pub fn new(settings: &Settings) -> Result<Client, HubError> {
        let endpoint = settings.endpoint.clone();
        let origin = url::origin(&endpoint).ok_or(HubError::Endpoint(endpoint.clone()))?;
        // Redirects are followed here: the token goes to the hub alone, and its headers are read on the way.
        let config = Agent::config_builder()
            .user_agent(concat!("halfwarp/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .tls_config(tls_config())
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .build();
        Ok(Client { agent: config.into(), endpoint, origin, token: settings.token.clone() })
    }

    /// Requests `url` of the hub.
    fn send(&self, method: Method, url: String) -> Result<Answer, HubError> {
        let mut url = url;
        let (mut linked_etag, mut linked_bytes) = (None, None);
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_once(method, &url)?;
            let (headers, origin) = (response.headers(), url::origin(&url));
            linked_etag = header(headers, "x-linked-etag").or(linked_etag);
            linked_bytes = header(headers, "x-linked-size").or(linked_bytes);
            let location =
                header(headers, "location").filter(|_| response.status().is_redirection());
            let Some(location) = location else {
                return Ok(Answer { response, linked_etag, linked_bytes });
            };
            let next = url::join(&url, &location);
            let next = next.ok_or_else(|| answer(&url, "a redirect to no address".to_owned()))?;
            let next_origin = url::origin(&next);
            let has_etag = || linked_etag.is_some() || header(headers, "etag").is_some();
            if method == Method::Head && next_origin != origin && has_etag() {
                // Another host stores the content; what the hub says of it is all here. A mirror
                // that says nothing sends on to the host that does: there without the token.
                return Ok(Answer { response, linked_etag, linked_bytes });
            }
            if is_https(&origin) && !is_https(&next_origin) {
                return Err(answer(&url, "a redirect from https to http".to_owned()));
            }
            url = next;
        }
        Err(answer(&url, format!("more than {MAX_REDIRECTS} redirects")))
    }

    fn send_once(&self, method: Method, url: &str) -> Result<Response<ureq::Body>, HubError> {
        let mut request = match method {
            Method::Head => self.agent.head(url),
            Method::Get { .. } => self.agent.get(url),
        };
        if let Method::Get { offset: offset @ 1.. } = method {
            request = request.header("Range", format!("bytes={offset}-"));
        }
        if let Some(token) = &self.token
            && url::origin(url).as_ref() == Some(&self.origin)
        {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|source| HubError::Network {
            url: without_query(url).to_owned(),
            source: Box::new(source),
        })
    }

    /// Nothing for a status of success, else why there is none.
    fn check(&self, repo: &RepoId, url: &str, answer: &Answer) -> Result<(), HubError> {
        let status = answer.response.status();
        let (repo, endpoint) = (repo.clone(), self.endpoint.clone());
        let code = header(answer.response.headers(), "x-error-code").unwrap_or_default();
        match status.as_u16() {
            _ if status.is_success() || status.is_redirection() => Ok(()),
            status @ (401 | 403) => {
                let has_token = self.token.is_some();
                Err(HubError::Access { repo, endpoint, status, has_token })
            }
            404 if code.is_empty() || code == "RepoNotFound" => {
                Err(HubError::NotFound { repo, endpoint })
            }
            status => Err(HubError::Status { url: without_query(url).to_owned(), status }),
        }
    }

    fn resolve_url(&self, repo: &RepoId, commit: &str, file: &FileName) -> String {
        let file = url::escape(file.as_str(), true);
        format!("{}/{repo}/resolve/{}/{file}", self.endpoint, url::escape(commit, false))
    }
}

impl Hub for Client {
    fn repo(&self, repo: &RepoId, revision: &str) -> Result<RepoInfo, HubError> {
        let escaped = url::escape(revision, false);
        let url = format!("{}/api/models/{repo}/revision/{escaped}", self.endpoint);
        let mut got = self.send(Method::Get { offset: 0 }, url.clone())?;
        let code = header(got.response.headers(), "x-error-code");
        if got.response.status() == 404 && code.as_deref() == Some("RevisionNotFound") {
            return Err(HubError::NoRevision { repo: repo.clone(), revision: revision.to_owned() });
        }
        self.check(repo, &url, &got)?;
        let text = got.response.body_mut().with_config().limit(MAX_LISTING_BYTES).read_to_vec();
        let text =
            text.map_err(|source| HubError::Network { url: url.clone(), source: source.into() })?;
        let listing: Listing = serde_json::from_slice(&text)
            .map_err(|error| answer(&url, format!("not a list of files: {error}")))?;
        if listing.sha.len() != 40 || !listing.sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(answer(&url, format!("the commit is {:?}", listing.sha)));
        }
        let names: Vec<_> = listing.siblings.into_iter().map(|file| file.rfilename).collect();
        Ok(RepoInfo { commit: listing.sha, files: FileName::all(repo, &names)? })
    }

    fn file(&self, repo: &RepoId, commit: &str, file: &FileName) -> Result<FileInfo, HubError> {
        let url = self.resolve_url(repo, commit, file);
        let got = self.send(Method::Head, url.clone())?;
        self.check(repo, &url, &got)?;
        let headers = got.response.headers();
        let etag = got.linked_etag.or_else(|| header(headers, "etag"));
        let etag = etag.as_deref().and_then(normalized);
        let etag = etag.ok_or_else(|| answer(&url, "an answer with no usable ETag".to_owned()))?;
        // The length of a redirect's own text is not that of the file.
        let own =
            || header(headers, "content-length").filter(|_| got.response.status().is_success());
        let bytes = got.linked_bytes.or_else(own).and_then(|bytes| bytes.parse().ok());
        let info = FileInfo { etag, bytes };
        if bytes.is_none() && info.checksum() == Checksum::None {
            return Err(answer(&url, "an answer with neither checksum nor length".to_owned()));
        }
        Ok(info)
    }

    fn open(
        &self,
        repo: &RepoId,
        commit: &str,
        file: &FileName,
        offset: u64,
    ) -> Result<Body, HubError> {
        let url = self.resolve_url(repo, commit, file);
        let got = self.send(Method::Get { offset }, url.clone())?;
        self.check(repo, &url, &got)?;
        let offset = match got.response.status().as_u16() {
            206 => {
                let range = header(got.response.headers(), "content-range").unwrap_or_default();
                let start = range.strip_prefix("bytes ").and_then(|range| range.split_once('-'));
                match start.and_then(|(start, _)| start.parse::<u64>().ok()) {
                    Some(start) if start == offset => offset,
                    _ => return Err(answer(&url, format!("not the range asked for: {range:?}"))),
                }
            }
            200 => 0,
            status => return Err(HubError::Status { url, status }),
        };
        Ok(Body { offset, reader: Box::new(got.response.into_body().into_reader()) })
    }
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// An etag without `W/` and quotes, if it can be the name of a file.
fn normalized(etag: &str) -> Option<String> {
    let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = (1..=128).contains(&etag.len())
        && etag.bytes().all(is_allowed)
        && !etag.starts_with('.')
        && !etag.ends_with(".incomplete");
    is_name.then(|| etag.to_owned())
}

fn is_https(origin: &Option<Origin>) -> bool {
    origin.as_ref().is_some_and(|(scheme, ..)| scheme == "https")
}

/// Addresses of stored content carry their signature in the query.
fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

fn answer(url: &str, what: String) -> HubError {
    HubError::Answer { url: without_query(url).to_owned(), what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_is_a_name_or_refused() {
        assert_eq!(normalized("\"ab12\"").as_deref(), Some("ab12"));
        assert_eq!(normalized("W/\"ab-12\"").as_deref(), Some("ab-12"));
        for etag in ["", "\"\"", "../x", "a/b", ".", "..", "a b", "x.incomplete", "a\\b"] {
            assert_eq!(normalized(etag), None, "{etag}");
        }
        assert_eq!(normalized(&"a".repeat(129)), None);
    }
}
