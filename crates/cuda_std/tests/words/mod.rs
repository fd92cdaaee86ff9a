//! Buffers of words.
// Not every test uses both functions.
#![allow(dead_code)]

use simt::{Init, Memory};

/// Allocates a buffer of these words; returns its address.
pub fn alloc(memory: &mut Memory, name: &str, words: &[u32]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    memory.alloc(name, Init::Bytes(&bytes))
}

/// The `len` words at `address`.
pub fn read(memory: &Memory, address: u64, len: usize) -> Vec<u32> {
    let mut bytes = vec![0; 4 * len];
    memory.read(address, &mut bytes).unwrap();
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}
