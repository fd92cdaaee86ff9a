//! Reading the small files beside the weights.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Bytes of such a file at most: the largest tokenizers have some tens of millions.
const MAX_LEN: u64 = 1 << 28;

/// The bytes of the regular file `path`: a pipe would wait for its writer, a device could go on without end.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_LEN + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_LEN {
        let reason = format!("over {} MiB, too large for what it is", MAX_LEN >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}
