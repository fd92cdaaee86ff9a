//! One content: fetched into its `.incomplete` file, verified, and only then given its name.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    thread,
};

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::{
    Checksum, Event, FileInfo, FileName, Hub, HubError, RepoId, Retry,
    cache::{Folder, make_dir, remove_file},
};

const BUFFER_BYTES: usize = 256 << 10;

/// A file on a hub.
pub(crate) struct Source<'a> {
    pub hub: &'a dyn Hub,
    pub repo: &'a RepoId,
    pub commit: &'a str,
    pub file: &'a FileName,
    pub info: &'a FileInfo,
}

/// Fetches the content of `source`, unless it is there, while no other process does.
pub(crate) fn fetch(
    source: &Source<'_>,
    folder: &Folder,
    retry: Retry,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<(), HubError> {
    let etag = &source.info.etag;
    let file = source.file.as_str();
    let _lock = folder.lock(etag, || tell(Event::Waiting { file }))?;
    let blob = folder.blob(etag);
    if let Ok(found) = fs::metadata(&blob)
        && found.is_file()
        && source.info.bytes.is_none_or(|bytes| bytes == found.len())
    {
        tell(Event::Present { file, bytes: found.len() });
        return Ok(());
    }
    make_dir(&folder.dir().join("blobs"))?;
    let mut part = Part::open(folder.incomplete(etag), source.info)?;
    tell(Event::Started { file, bytes: source.info.bytes, received: part.len });
    part.fill(source, retry, tell)?;
    part.verify(file, source.info)?;
    part.file.sync_all().map_err(HubError::at(&part.path))?;
    fs::rename(&part.path, &blob).map_err(HubError::at(&blob))?;
    tell(Event::Verified { file, checksum: source.info.checksum() });
    Ok(())
}

/// What has come of a content.
struct Part {
    path: PathBuf,
    file: File,
    len: u64,
    hash: Hash,
}

/// Why the filling stopped: the hub's side may be tried again, the disk's not.
enum Stop {
    Broken(String),
    Failed(HubError),
}

impl Part {
    /// What an interrupted fetch has left, else an empty file.
    fn open(path: PathBuf, info: &FileInfo) -> Result<Part, HubError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(HubError::at(&path))?;
        let len = file.metadata().map_err(HubError::at(&path))?.len();
        let mut part = Part { path, file, len, hash: Hash::new(info) };
        // The SHA-1 of a Git blob begins with its length: without it, nothing can be taken up.
        if len == 0 || info.bytes.is_none_or(|bytes| len > bytes) {
            part.restart(info)?;
        } else {
            part.hash_existing()?;
        }
        Ok(part)
    }

    fn restart(&mut self, info: &FileInfo) -> Result<(), HubError> {
        self.file.set_len(0).map_err(HubError::at(&self.path))?;
        self.file.seek(SeekFrom::Start(0)).map_err(HubError::at(&self.path))?;
        (self.len, self.hash) = (0, Hash::new(info));
        Ok(())
    }

    fn hash_existing(&mut self) -> Result<(), HubError> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match self.file.read(&mut buffer).map_err(HubError::at(&self.path))? {
                0 => return Ok(()),
                len => self.hash.update(&buffer[..len]),
            }
        }
    }

    /// Fetches what is missing, again from where it broke. Only attempts that bring nothing count.
    fn fill(
        &mut self,
        source: &Source<'_>,
        retry: Retry,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), HubError> {
        let file = source.file.as_str();
        let mut attempt = 0;
        loop {
            let before = self.len;
            let why = match self.receive(source, tell) {
                Ok(()) => return Ok(()),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Broken(why)) => why,
            };
            attempt = if self.len > before { 1 } else { attempt + 1 };
            if attempt >= retry.attempts {
                return Err(HubError::Cut { file: file.to_owned(), received: self.len, why });
            }
            tell(Event::Again { file, why: &why });
            thread::sleep(retry.pause * (1 << attempt.min(5)) / 2);
        }
    }

    /// One request, to its end or to where it breaks.
    fn receive(
        &mut self,
        source: &Source<'_>,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), Stop> {
        let Source { hub, repo, commit, file, info } = *source;
        if info.bytes == Some(self.len) && self.len > 0 {
            return Ok(());
        }
        let mut body = match hub.open(repo, commit, file, self.len) {
            Ok(body) => body,
            Err(HubError::Status { status: 416, .. }) if self.len > 0 => {
                self.restart(info).map_err(Stop::Failed)?;
                return Err(Stop::Broken("the hub has no such range".to_owned()));
            }
            Err(error) if error.is_transient() => return Err(Stop::Broken(error.to_string())),
            Err(error) => return Err(Stop::Failed(error)),
        };
        if body.offset != self.len {
            self.restart(info).map_err(Stop::Failed)?;
        }
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let len = match body.reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Stop::Broken(error.to_string())),
            };
            if info.bytes.is_some_and(|bytes| self.len + len as u64 > bytes) {
                let what =
                    format!("more comes than the {} bytes announced", info.bytes.unwrap_or(0));
                return Err(Stop::Failed(self.refuse(file.as_str(), what)));
            }
            let written = self.file.write_all(&buffer[..len]);
            written.map_err(|source| Stop::Failed(HubError::at(&self.path)(source)))?;
            self.hash.update(&buffer[..len]);
            self.len += len as u64;
            tell(Event::Received { file: file.as_str(), received: self.len });
        }
        match info.bytes {
            Some(bytes) if self.len < bytes => {
                Err(Stop::Broken(format!("it ended {} bytes early", bytes - self.len)))
            }
            _ => Ok(()),
        }
    }

    fn verify(&mut self, file: &str, info: &FileInfo) -> Result<(), HubError> {
        match self.hash.finish(&self.path)? {
            Some(found) if found != info.etag => {
                let what = format!("its checksum is {found}, not {}", info.etag);
                Err(self.refuse(file, what))
            }
            _ => Ok(()),
        }
    }

    /// Removes what has come: it is not what was announced.
    fn refuse(&self, file: &str, what: String) -> HubError {
        match remove_file(&self.path) {
            Ok(()) => HubError::Wrong { file: file.to_owned(), what },
            Err(error) => error,
        }
    }
}

/// A checksum while it is computed.
enum Hash {
    Sha256(Sha256),
    GitBlob(Sha1),
    /// A Git blob whose length is not known before its end.
    GitBlobAtEnd,
    None,
}

impl Hash {
    fn new(info: &FileInfo) -> Hash {
        match (info.checksum(), info.bytes) {
            (Checksum::Sha256, _) => Hash::Sha256(Sha256::new()),
            (Checksum::GitBlob, Some(bytes)) => Hash::GitBlob(git_blob(bytes)),
            (Checksum::GitBlob, None) => Hash::GitBlobAtEnd,
            (Checksum::None, _) => Hash::None,
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hash::Sha256(hash) => hash.update(bytes),
            Hash::GitBlob(hash) => hash.update(bytes),
            Hash::GitBlobAtEnd | Hash::None => {}
        }
    }

    /// The checksum in hexadecimal, of a content in `path`.
    fn finish(&mut self, path: &Path) -> Result<Option<String>, HubError> {
        Ok(match self {
            Hash::Sha256(hash) => Some(hex(&hash.finalize_reset())),
            Hash::GitBlob(hash) => Some(hex(&hash.finalize_reset())),
            Hash::GitBlobAtEnd => {
                // Only small files are not in Git LFS.
                let content = fs::read(path).map_err(HubError::at(path))?;
                let mut hash = git_blob(content.len() as u64);
                hash.update(&content);
                Some(hex(&hash.finalize()))
            }
            Hash::None => None,
        })
    }
}

fn git_blob(bytes: u64) -> Sha1 {
    let mut hash = Sha1::new();
    hash.update(format!("blob {bytes}\0"));
    hash
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
