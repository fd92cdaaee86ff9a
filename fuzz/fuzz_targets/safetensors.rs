//! Any bytes are a safetensors file or an error; in a file, every tensor is inside it.
#![no_main]

use halfwarp::weights::{TensorDtype, safetensors};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(tensors) = safetensors::parse(bytes) else { return };
    for info in tensors.values() {
        let stored = &bytes[info.range.clone()];
        if let TensorDtype::Known(dtype) = info.dtype {
            assert_eq!(dtype.bytes(info.shape.iter().product()), Some(stored.len()));
        }
    }
});
