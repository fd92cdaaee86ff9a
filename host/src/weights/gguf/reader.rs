//! Reading numbers and strings from untrusted bytes.

use super::GgufError;

/// Reads a file from front to back.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
    /// What is being read, for errors.
    pub reading: String,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, offset: 0, reading: String::from("the file's header") }
    }

    /// Bytes read so far.
    pub fn offset(&self) -> usize {
        self.offset
    }

    fn take(&mut self, needed_bytes: u64) -> Result<&'a [u8], GgufError> {
        let left = &self.bytes[self.offset..];
        let taken = usize::try_from(needed_bytes).ok().and_then(|needed| left.get(..needed));
        let taken = taken.ok_or_else(|| GgufError::Truncated {
            reading: self.reading.clone(),
            offset: self.offset,
            needed_bytes,
            left_bytes: left.len(),
        })?;
        self.offset += taken.len();
        Ok(taken)
    }

    /// The next `N` bytes: those of a little-endian number.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    pub fn u32(&mut self) -> Result<u32, GgufError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, GgufError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: its length, then UTF-8.
    pub fn string(&mut self) -> Result<String, GgufError> {
        let length = self.u64()?;
        let text = str::from_utf8(self.take(length)?);
        text.map(str::to_owned).map_err(|_| GgufError::Utf8 { reading: self.reading.clone() })
    }

    /// A count of things that take at least `min_bytes` each, no more than the rest of the file has
    /// room for and no more than `most`.
    pub fn count(&mut self, min_bytes: usize, most: u64) -> Result<u64, GgufError> {
        let count = self.u64()?;
        let room = (self.bytes.len() - self.offset) / min_bytes;
        let limit = most.min(room as u64);
        if count > limit {
            return Err(GgufError::Count { reading: self.reading.clone(), count, limit });
        }
        Ok(count)
    }
}
