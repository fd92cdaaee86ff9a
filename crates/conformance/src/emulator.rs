//! A case on the emulator.

use std::convert::Infallible;

use simt::{Init, Memory};

use crate::{Buffer, Case, Pointers};

/// Runs `case` on the emulator with the schedule of `seed`; returns the outputs.
///
/// # Errors
/// The [`simt::Fault`] of the kernel, as text.
pub fn emulate(case: &Case, seed: u64) -> Result<Vec<Vec<u8>>, String> {
    let mut memory = Memory::new();
    let place = |buffer: &Buffer| -> Result<u64, Infallible> {
        Ok(match buffer {
            Buffer::In(bytes) => memory.alloc("input", Init::Bytes(bytes)),
            Buffer::InOut(bytes, _) => memory.alloc("input and output", Init::Bytes(bytes)),
            Buffer::Out(want) => memory.alloc("output", Init::Poisoned(want.num_bytes())),
            Buffer::TensorMap(..) => unreachable!("tensor maps are not memory"),
        })
    };
    let Ok(pointers) = Pointers::of(&case.buffers, place, |spec| Ok(spec.emulated()));
    let launch = case.launch(&pointers);
    launch.emulate(&mut memory, seed).map_err(|fault| fault.to_string())?;
    let outputs = case.buffers.iter().enumerate().filter_map(|(index, buffer)| {
        let mut bytes = vec![0; buffer.want()?.num_bytes()];
        Some(
            memory
                .read_or_poison(pointers.address(index), &mut bytes)
                .map(|()| bytes)
                .map_err(|error| error.to_string()),
        )
    });
    outputs.collect()
}
