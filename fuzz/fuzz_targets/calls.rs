//! Any text is an answer, with calls or without; it is the same answer if it comes in two parts.
#![no_main]

use halfwarp::server::fuzzing::calls;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let [options, at, text @ ..] = bytes else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (format, is_single) = (usize::from(options & 3), options & 4 != 0);
    let (first, second) = text.split_at(text.floor_char_boundary(usize::from(*at)));
    let whole = calls(format, is_single, [text]);
    assert_eq!(calls(format, is_single, [first, second]), whole);
});
