//! Any bytes are an index or an error; in an index, no shard is outside of its directory.
#![no_main]

use std::path::Path;

use halfwarp::weights::index;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(weight_map) = index::parse(bytes) else { return };
    let dir = Path::new("/model");
    for shard in weight_map.values() {
        assert_eq!(dir.join(shard).parent(), Some(dir));
        assert_eq!(dir.join(shard).file_name(), Some(shard.as_ref()));
    }
});
