//! A kernel, its buffers, and its expected outputs.

use std::convert::Infallible;

use cuda_std::launch::{DevicePtr, Launch};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};

use crate::Want;

/// One run of one kernel.
pub struct Case {
    /// The name of its tests.
    pub name: String,
    /// The buffers that it accesses.
    pub buffers: Vec<Buffer>,
    launch: Box<dyn Fn(&Pointers) -> Launch + Send + Sync>,
}

/// A buffer of global memory, aligned to 256 bytes, or a tensor map.
pub enum Buffer {
    /// An input of the kernel.
    In(Vec<u8>),
    /// An output of the kernel, uninitialised.
    Out(Want),
    /// Input and output of the kernel, with its initial bytes.
    InOut(Vec<u8>, Want),
    /// The tensor map of the buffer of this index, which precedes it in the list; its address
    /// replaces the address in the specification.
    TensorMap(usize, TensorMapSpec),
}

impl Buffer {
    /// An input of these words.
    pub fn words(words: &[u32]) -> Self {
        Buffer::In(bytes(words))
    }

    /// Words that the kernel changes to other words.
    pub fn changed(before: &[u32], after: Vec<u32>) -> Self {
        Self::changed_to(before, Want::Words(after))
    }

    /// Words that the kernel changes to `after`.
    pub fn changed_to(before: &[u32], after: Want) -> Self {
        Buffer::InOut(bytes(before), after)
    }

    /// The expected contents after the kernel, for an output.
    pub fn want(&self) -> Option<&Want> {
        match self {
            Buffer::In(_) | Buffer::TensorMap(..) => None,
            Buffer::Out(want) | Buffer::InOut(_, want) => Some(want),
        }
    }
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The launch arguments of a case's buffers.
pub struct Pointers(Vec<Placed>);

enum Placed {
    /// Address of a buffer of memory.
    Address(u64),
    Map(EncodedTensorMap),
}

impl Pointers {
    /// Places the buffers in order: `place` returns the address of each buffer of memory, `encode`
    /// encodes the tensor maps.
    pub(crate) fn of<E>(
        buffers: &[Buffer],
        mut place: impl FnMut(&Buffer) -> Result<u64, E>,
        encode: impl Fn(&TensorMapSpec) -> Result<EncodedTensorMap, E>,
    ) -> Result<Self, E> {
        let mut pointers = Pointers(Vec::new());
        for buffer in buffers {
            let placed = if let Buffer::TensorMap(of, spec) = buffer {
                let address = pointers.address(*of);
                Placed::Map(encode(&TensorMapSpec { address, ..spec.clone() })?)
            } else {
                Placed::Address(place(buffer)?)
            };
            pointers.0.push(placed);
        }
        Ok(pointers)
    }

    /// Buffer `index`, of elements `T`.
    pub fn at<T>(&self, index: usize) -> DevicePtr<T> {
        DevicePtr::new(self.address(index))
    }

    /// Buffer `index`, a tensor map.
    pub fn map(&self, index: usize) -> EncodedTensorMap {
        match self.0[index] {
            Placed::Map(map) => map,
            Placed::Address(_) => panic!("buffer {index} is not a tensor map"),
        }
    }

    /// The address of buffer `index`.
    pub(crate) fn address(&self, index: usize) -> u64 {
        match self.0[index] {
            Placed::Address(address) => address,
            Placed::Map(_) => panic!("buffer {index} is a tensor map"),
        }
    }
}

impl Case {
    /// The case `name`: a launch on `buffers`.
    pub fn new(
        name: impl Into<String>,
        buffers: Vec<Buffer>,
        launch: impl Fn(&Pointers) -> Launch + Send + Sync + 'static,
    ) -> Self {
        Case { name: name.into(), buffers, launch: Box::new(launch) }
    }

    /// Launch of the case on the buffers at `pointers`.
    pub fn launch(&self, pointers: &Pointers) -> Launch {
        (self.launch)(pointers)
    }

    /// The PTX entry that it launches.
    pub fn symbol(&self) -> &'static str {
        let encode = |_: &TensorMapSpec| Ok(EncodedTensorMap::NONE);
        let Ok(nowhere) = Pointers::of(&self.buffers, |_| Ok::<u64, Infallible>(0), encode);
        self.launch(&nowhere).symbol
    }

    /// The expected outputs, in order.
    pub fn wants(&self) -> impl Iterator<Item = &Want> {
        self.buffers.iter().filter_map(Buffer::want)
    }

    /// Compares the outputs of a run with the oracle's. Returns a line with the largest deviation
    /// for each output that need not be bit-exact.
    ///
    /// # Errors
    /// The first element that differs, with output, index, and both values.
    pub fn check(&self, outputs: &[Vec<u8>]) -> Result<Vec<String>, String> {
        Self::check_all(self.wants(), outputs)
    }

    /// Compares the emulator's outputs with the oracle's, rounded once.
    ///
    /// # Errors
    /// As [`Case::check`].
    pub fn check_emulated(&self, outputs: &[Vec<u8>]) -> Result<(), String> {
        let wants: Vec<Want> = self.wants().map(Want::emulated).collect();
        Self::check_all(wants.iter(), outputs).map(|_| ())
    }

    /// Compares the outputs of a run with those of another: bit-exact where the ISA fixes the bits,
    /// otherwise within the oracle's bound.
    ///
    /// # Errors
    /// As [`Case::check`].
    pub fn compare(&self, outputs: &[Vec<u8>], peer: &[Vec<u8>]) -> Result<(), String> {
        let wants: Vec<Want> =
            self.wants().zip(peer).map(|(want, bytes)| want.with_values(bytes)).collect();
        Self::check_all(wants.iter(), outputs).map(|_| ())
    }

    fn check_all<'a>(
        wants: impl Iterator<Item = &'a Want>,
        outputs: &[Vec<u8>],
    ) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        for (index, (want, got)) in wants.zip(outputs).enumerate() {
            let name = |why| format!("output {index}, {why}");
            lines.extend(want.check(got).map_err(name)?.into_iter().map(name));
        }
        Ok(lines)
    }
}
