//! `Precompiled` normalizers: SentencePiece's table of replacements, as `sentencepiece` compiles
//! it.
//!
//! The length of a double-array trie, the trie, then the replacements, each ended by a zero. The
//! library follows it without a look at its bounds; so all that can be reached is walked here.
//!
//! Source: `src/normalizer.cc` of SentencePiece, `darts.h`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::error::TextError;

/// Longest table in Base64: NFKC with what SentencePiece adds has 320,000.
const MAX_TABLE_BYTES: usize = 4 << 20;

/// Longest replacement, in bytes: those of NFKC have 33.
const MAX_REPLACEMENT_BYTES: usize = 256;

/// Refuses a table that leads out of its bounds, or makes texts longer by more than any real one.
pub(super) fn check(charsmap: &Json) -> Result<(), TextError> {
    let text = charsmap.as_str().ok_or_else(|| refuse("is missing"))?;
    if text.len() > MAX_TABLE_BYTES {
        return Err(refuse(&format!("is over {MAX_TABLE_BYTES} bytes long")));
    }
    let bytes = STANDARD.decode(text).map_err(|_| refuse("is not Base64"))?;
    check_bytes(&bytes)
}

/// [`check`] of a table that is not in Base64.
pub(super) fn check_bytes(bytes: &[u8]) -> Result<(), TextError> {
    if bytes.len() > MAX_TABLE_BYTES {
        return Err(refuse(&format!("is over {MAX_TABLE_BYTES} bytes long")));
    }
    Table::split(bytes).and_then(|table| table.walk()).ok_or_else(|| refuse("is corrupt"))
}

fn refuse(reason: &str) -> TextError {
    TextError::Vocabulary(format!("its precompiled_charsmap {reason}"))
}

struct Table<'a> {
    units: Vec<u32>,
    replacements: &'a str,
}

impl<'a> Table<'a> {
    fn split(bytes: &'a [u8]) -> Option<Self> {
        let (trie_bytes, rest) = bytes.split_first_chunk()?;
        let trie_bytes = usize::try_from(u32::from_le_bytes(*trie_bytes)).ok()?;
        let (units, _) = rest.get(..trie_bytes)?.as_chunks();
        let units = units.iter().copied().map(u32::from_le_bytes).collect();
        // What is left of a length that is no multiple of four belongs to the replacements.
        let replacements = str::from_utf8(rest.get(trie_bytes / 4 * 4..)?).ok()?;
        Some(Self { units, replacements })
    }

    /// Follows every key of the trie.
    fn walk(&self) -> Option<()> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let root = offset(*self.units.first()?);
        let mut seen = vec![false; self.units.len().next_power_of_two()];
        *seen.get_mut(root)? = true;
        let mut open = vec![root];
        while let Some(node) = open.pop() {
            for byte in 1..=255 {
                let at = node ^ byte;
                let unit = *self.units.get(at)?;
                // The sign bit is part of the label, so that a leaf has none.
                if (unit & (1 << 31 | 0xFF)) as usize != byte {
                    continue;
                }
                let next = at ^ offset(unit);
                if unit >> 8 & 1 == 1 {
                    self.check_replacement(*self.units.get(next)?)?;
                }
                let seen = seen.get_mut(next)?;
                if !*seen {
                    *seen = true;
                    open.push(next);
                }
            }
        }
        Some(())
    }

    fn check_replacement(&self, leaf: u32) -> Option<()> {
        let text = self.replacements.get((leaf & !(1 << 31)) as usize..)?;
        let len = text.find('\0').unwrap_or(text.len());
        (len <= MAX_REPLACEMENT_BYTES).then_some(())
    }
}
