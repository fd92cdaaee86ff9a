//! A kernel, its buffers, and what it should write.

use cuda_std::launch::{DevicePtr, Launch};

use crate::Want;

/// One run of one kernel.
pub struct Case {
    /// The name of its tests.
    pub name: &'static str,
    /// The memory that it works on.
    pub buffers: Vec<Buffer>,
    /// Its launch on the buffers.
    pub launch: fn(&Pointers) -> Launch,
}

/// A piece of global memory, aligned to 256 bytes.
pub enum Buffer {
    /// What the kernel reads.
    In(Vec<u8>),
    /// What the kernel writes; nothing has written it before.
    Out(Want),
}

impl Buffer {
    /// An input of these words.
    pub fn words(words: &[u32]) -> Self {
        Buffer::In(words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    /// Its length.
    pub fn num_bytes(&self) -> usize {
        match self {
            Buffer::In(bytes) => bytes.len(),
            Buffer::Out(want) => want.num_bytes(),
        }
    }
}

/// The addresses of a case's buffers.
pub struct Pointers(pub(crate) Vec<u64>);

impl Pointers {
    /// The buffer listed `index`th, of elements `T`.
    pub fn at<T>(&self, index: usize) -> DevicePtr<T> {
        DevicePtr::new(self.0[index])
    }
}

impl Case {
    /// The PTX entry that it launches.
    pub fn symbol(&self) -> &'static str {
        (self.launch)(&Pointers(vec![0; self.buffers.len()])).symbol
    }

    /// What the outputs, in their order, should be.
    pub fn wants(&self) -> impl Iterator<Item = &Want> {
        self.buffers.iter().filter_map(|buffer| match buffer {
            Buffer::In(_) => None,
            Buffer::Out(want) => Some(want),
        })
    }

    /// Holds the outputs of a run against what the oracle says.
    ///
    /// # Errors
    /// The first element that differs, with output, index, and both values.
    pub fn check(&self, outputs: &[Vec<u8>]) -> Result<(), String> {
        Self::check_all(self.wants(), outputs)
    }

    /// Holds the outputs of a run against those of another: bits where the ISA fixes them, else
    /// within the bound that the oracle is held to.
    ///
    /// # Errors
    /// As [`Case::check`].
    pub fn compare(&self, outputs: &[Vec<u8>], peer: &[Vec<u8>]) -> Result<(), String> {
        let wants: Vec<Want> =
            self.wants().zip(peer).map(|(want, bytes)| want.with_values(bytes)).collect();
        Self::check_all(wants.iter(), outputs)
    }

    fn check_all<'a>(
        wants: impl Iterator<Item = &'a Want>,
        outputs: &[Vec<u8>],
    ) -> Result<(), String> {
        for (index, (want, got)) in wants.zip(outputs).enumerate() {
            want.check(got).map_err(|why| format!("output {index}, {why}"))?;
        }
        Ok(())
    }
}
