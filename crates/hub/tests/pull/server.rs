//! A hub in this process: its API on one port, the storage of its contents on another.

use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, HashMap},
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

pub const REPO: &str = "org/model";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const TOKEN: &str = "hf_secret";

/// A file, and how it is served.
#[derive(Clone, Default)]
pub struct Served {
    pub content: Vec<u8>,
    /// In Git LFS: stored on the other host, named by its SHA-256.
    pub is_lfs: bool,
    /// Sent instead of the content.
    pub body: Option<Vec<u8>>,
    /// The etag, where it is not the checksum.
    pub etag: Option<String>,
    /// After how many bytes each of the next answers ends.
    pub cuts: Vec<usize>,
    /// Answers with the whole content to a request of a range.
    pub has_no_ranges: bool,
}

#[derive(Default)]
pub struct State {
    pub commit: String,
    pub files: BTreeMap<String, Served>,
    /// Status of every answer of the API, with the header X-Error-Code.
    pub status: Option<(u16, &'static str)>,
    /// How many requests are answered with 503 first.
    pub num_unavailable: usize,
    /// A repository by an older name.
    pub renamed_from: Option<&'static str>,
    /// Redirects to itself.
    pub is_loop: bool,
    /// Sends on to the storage with no word on the file.
    pub is_mirror: bool,
    pub requests: Vec<Request>,
}

/// A request that came.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub host: &'static str,
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
}

pub struct Server {
    pub url: String,
    pub state: Arc<Mutex<State>>,
}

/// Status, headers, body, and after how many bytes of it the connection is cut.
type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>, Option<usize>);

impl Server {
    /// A hub with these files; those with a `.gguf` or `.safetensors` name are in Git LFS.
    pub fn new(files: &[(&str, &[u8])]) -> Server {
        let state = State { commit: COMMIT.to_owned(), ..State::default() };
        let state = Arc::new(Mutex::new(state));
        let (api, storage) = (listen(), listen());
        let url = format!("http://{}", api.local_addr().unwrap());
        let storage_url = format!("http://{}", storage.local_addr().unwrap());
        serve(api, "api", Arc::clone(&state), move |state, request| {
            answer_api(state, request, &storage_url)
        });
        serve(storage, "storage", Arc::clone(&state), answer_storage);
        let server = Server { url, state };
        for (name, content) in files {
            server.put(name, content);
        }
        server
    }

    pub fn put(&self, name: &str, content: &[u8]) {
        let is_lfs = name.ends_with(".gguf") || name.ends_with(".safetensors");
        let served = Served { content: content.to_vec(), is_lfs, ..Served::default() };
        self.state.lock().unwrap().files.insert(name.to_owned(), served);
    }

    /// Changes how `name` is served.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Served)) {
        change(self.state.lock().unwrap().files.get_mut(name).unwrap());
    }

    pub fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// The requests that came since the last call.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

pub fn sha256(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

pub fn git_blob(content: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", content.len()));
    hash.update(content);
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn serve(
    listener: TcpListener,
    host: &'static str,
    state: Arc<Mutex<State>>,
    answer: impl Fn(&mut State, &Request) -> Answer + Send + Sync + 'static,
) {
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (state, answer) = (Arc::clone(&state), Arc::clone(&answer));
            // Who pulls may close the connection at any time.
            thread::spawn(move || one_request(stream, host, &state, &*answer));
        }
    });
}

fn one_request(
    mut stream: TcpStream,
    host: &'static str,
    state: &Mutex<State>,
    answer: &dyn Fn(&mut State, &Request) -> Answer,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = HashMap::new();
    for line in lines {
        match line?.split_once(": ") {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.to_owned()),
            None => break,
        };
    }
    let request = Request { host, method, path, headers };
    let (status, headers, body, cut) = {
        let mut state = state.lock().unwrap();
        state.requests.push(request.clone());
        answer(&mut state, &request)
    };
    let mut head = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Content-Length") {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method != "HEAD" {
        stream.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())])?;
    }
    stream.flush()
}

fn error(status: u16, code: &str) -> Answer {
    (status, vec![("X-Error-Code", code.to_owned())], b"no".to_vec(), None)
}

fn answer_api(state: &mut State, request: &Request, storage: &str) -> Answer {
    if let Some((status, code)) = state.status {
        return error(status, code);
    }
    if state.num_unavailable > 0 {
        state.num_unavailable -= 1;
        return error(503, "");
    }
    if state.is_loop {
        return (302, vec![("Location", request.path.clone())], Vec::new(), None);
    }
    if let Some(old) = state.renamed_from
        && request.path.contains(old)
    {
        let location = request.path.replace(old, REPO);
        return (307, vec![("Location", location)], b"moved".to_vec(), None);
    }
    if let Some(revision) = request.path.strip_prefix(&format!("/api/models/{REPO}/revision/")) {
        if ![&state.commit[..], "main", "refs%2Fpr%2F1"].contains(&revision) {
            return error(404, "RevisionNotFound");
        }
        let siblings: Vec<_> =
            state.files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
        let listing = serde_json::json!({ "id": REPO, "sha": state.commit, "siblings": siblings });
        return (200, Vec::new(), listing.to_string().into_bytes(), None);
    }
    let Some(rest) = request.path.strip_prefix(&format!("/{REPO}/resolve/")) else {
        return error(404, "RepoNotFound");
    };
    let (commit, name) = rest.split_once('/').unwrap_or((rest, ""));
    let name = name.replace("%20", " ");
    let Some(file) = state.files.get_mut(&name).filter(|_| commit == state.commit) else {
        return error(404, "EntryNotFound");
    };
    if state.is_mirror {
        let location = format!("{storage}/{name}?signature=secret");
        return (308, vec![("Location", location)], Vec::new(), None);
    }
    let checksum = if file.is_lfs { sha256(&file.content) } else { git_blob(&file.content) };
    let etag = format!("\"{}\"", file.etag.as_ref().unwrap_or(&checksum));
    let mut headers =
        vec![("X-Repo-Commit", state.commit.clone()), ("Accept-Ranges", "bytes".into())];
    if file.is_lfs {
        headers.push(("X-Linked-Etag", etag));
        headers.push(("X-Linked-Size", file.content.len().to_string()));
        headers.push(("ETag", "\"of-the-redirect\"".to_owned()));
        headers.push(("Location", format!("{storage}/{name}?signature=secret")));
        return (302, headers, b"Found. Redirecting".to_vec(), None);
    }
    headers.push(("ETag", etag));
    let (status, more, body, cut) = content(file, request);
    headers.extend(more);
    (status, headers, body, cut)
}

/// Like S3, it refuses what carries a token besides the signature of the address.
fn answer_storage(state: &mut State, request: &Request) -> Answer {
    let Some((path, "signature=secret")) = request.path.split_once('?') else {
        return error(403, "");
    };
    if request.headers.contains_key("authorization") {
        return error(400, "");
    }
    match state.files.get_mut(&path[1..].replace("%20", " ")) {
        Some(file) => {
            let (status, mut headers, body, cut) = content(file, request);
            if state.is_mirror {
                let is_lfs = file.is_lfs;
                let of = if is_lfs { sha256(&file.content) } else { git_blob(&file.content) };
                headers.push(("ETag", format!("\"{of}\"")));
            }
            (status, headers, body, cut)
        }
        None => error(404, ""),
    }
}

fn content(file: &mut Served, request: &Request) -> Answer {
    let body = file.body.clone().unwrap_or_else(|| file.content.clone());
    let is_get = request.method == "GET";
    let cut = (is_get && !file.cuts.is_empty()).then(|| file.cuts.remove(0));
    let range = request.headers.get("range").filter(|_| !file.has_no_ranges);
    let Some(range) = range else { return (200, Vec::new(), body, cut) };
    let start: usize = range.strip_prefix("bytes=").unwrap().trim_end_matches('-').parse().unwrap();
    if start >= body.len() {
        return error(416, "");
    }
    let range = format!("bytes {start}-{}/{}", body.len() - 1, body.len());
    (206, vec![("Content-Range", range)], body[start..].to_vec(), cut)
}
