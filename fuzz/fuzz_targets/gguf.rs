//! Any bytes are a GGUF file or an error; in a file, every tensor is inside it.
#![no_main]

use halfwarp::weights::{TensorDtype, gguf};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = gguf::parse(bytes) else { return };
    for info in file.tensors.values() {
        let stored = &bytes[info.range.clone()];
        if let TensorDtype::Known(dtype) = info.dtype {
            assert_eq!(dtype.bytes(info.shape.iter().product()), Some(stored.len()));
        }
    }
});
