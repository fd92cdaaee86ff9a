//! halfwarp
fn main() {}
