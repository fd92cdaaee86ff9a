//! A case on the emulator.

use simt::{Init, Memory};

use crate::{Buffer, Case, Pointers};

/// Runs `case` on the emulator, in the order of threads that follows from `seed`; gives the outputs.
///
/// # Errors
/// The [`simt::Fault`] of the kernel, as text.
pub fn emulate(case: &Case, seed: u64) -> Result<Vec<Vec<u8>>, String> {
    let mut memory = Memory::new();
    let pointers = case.buffers.iter().enumerate().map(|(index, buffer)| {
        let init = match buffer {
            Buffer::In(bytes) => Init::Bytes(bytes),
            Buffer::Out(want) => Init::Poisoned(want.num_bytes()),
        };
        memory.alloc(format!("buffer {index}"), init)
    });
    let pointers = Pointers(pointers.collect());
    let launch = (case.launch)(&pointers);
    launch.emulate(&mut memory, seed).map_err(|fault| fault.to_string())?;
    let outputs = case.buffers.iter().zip(&pointers.0).filter_map(|(buffer, &address)| {
        let Buffer::Out(want) = buffer else { return None };
        let mut bytes = vec![0; want.num_bytes()];
        Some(memory.read(address, &mut bytes).map(|()| bytes).map_err(|error| error.to_string()))
    });
    outputs.collect()
}
