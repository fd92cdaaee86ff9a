//! Asynchronous MMA of a warpgroup: `D[64, n] = A[64, k] * B[n, k]^T (+ D)`.

use super::with;
use crate::fault::FaultKind;
use crate::machine::Machine;
use crate::schedule::{ACTIVE, suspend};
use std::panic::resume_unwind;

/// Element type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// f16, k = 16.
    F16,
    /// bf16, k = 16.
    Bf16,
    /// e4m3, k = 32.
    E4m3,
    /// e5m2, k = 32.
    E5m2,
}

/// Element type of an accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccumulatorType {
    /// f32.
    F32,
    /// f16, with operands of f16.
    F16,
}

/// Operand A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandA {
    /// In shared memory: a matrix descriptor.
    Shared(u64),
    /// In registers: the thread's fragment, see [`FragmentA::operand`].
    Registers {
        /// Registers of the fragment.
        words: [u32; 4],
        /// What the emulator knows it by.
        key: u64,
    },
}

/// One `wgmma.mma_async`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wgmma {
    /// Elements of A.
    pub a_element: Element,
    /// Elements of B.
    pub b_element: Element,
    /// Elements of D.
    pub sum: AccumulatorType,
    /// A.
    pub a: OperandA,
    /// B, a matrix descriptor.
    pub b: u64,
    /// Whether A is MN-major (`imm-trans-a`); 16-bit elements only.
    pub a_mn_major: bool,
    /// Whether B is MN-major (`imm-trans-b`).
    pub b_mn_major: bool,
    /// Whether D is added (`scale-d`).
    pub accumulate: bool,
}

/// A thread's fragment of an accumulator, which the emulator keeps while operations may write it.
#[derive(Clone, Debug, Default)]
pub struct Fragment {
    pub(crate) key: Option<u64>,
}

/// A thread's fragment of an operand A in registers, which are released when it is dropped: a fault
/// while an operation may still read them.
#[derive(Debug)]
pub struct FragmentA {
    words: [u32; 4],
    key: u64,
}

impl FragmentA {
    /// The thread writes the fragment.
    #[track_caller]
    pub fn new(words: [u32; 4]) -> Self {
        let key = with(|machine, location| Ok(machine.write_fragment_a(location)));
        FragmentA { words, key }
    }

    /// The fragment as an operand.
    pub fn operand(&self) -> OperandA {
        OperandA::Registers { words: self.words, key: self.key }
    }
}

impl Drop for FragmentA {
    fn drop(&mut self) {
        // A thread that unwinds has had its fault, or does so after the launch.
        if std::thread::panicking() {
            return;
        }
        let fault = ACTIVE.with_borrow_mut(|active| {
            let machine = active.as_mut()?;
            let released = machine.release_fragment_a(self.key);
            released.err().map(|(kind, written)| machine.fault(kind, written.to_string()))
        });
        if let Some(fault) = fault {
            resume_unwind(Box::new(fault));
        }
    }
}

/// `wgmma.fence`: orders what the thread has written to registers before the operations that follow.
#[track_caller]
pub fn wgmma_fence_registers() {
    with(|machine, _| {
        machine.fence_products();
        Ok(())
    });
}

/// `wgmma.fence`: the thread's registers `values` become an accumulator fragment.
#[track_caller]
pub fn wgmma_fence(values: &[f32]) -> Fragment {
    let start = |machine: &mut Machine, _| {
        machine.fence_products();
        Ok(machine.start_fragment(values))
    };
    Fragment { key: Some(with(start)) }
}

/// `wgmma.mma_async`: all 128 threads of the warpgroup start the same operation.
#[track_caller]
pub fn wgmma(op: &Wgmma, accumulator: &mut Fragment) {
    let is_last = with(|machine, location| {
        let Some(key) = accumulator.key else {
            let why = "wgmma.mma_async before wgmma.fence has seen its accumulator";
            return Err(FaultKind::Invalid(why.to_owned()));
        };
        machine.come_to_product(op, key, location)
    });
    if !is_last {
        suspend();
    }
}

/// `wgmma.commit_group`: commits the operations since the last group as a group.
#[track_caller]
pub fn wgmma_commit_group() {
    with(|machine, _| {
        machine.commit_products();
        Ok(())
    });
}

/// `wgmma.wait_group`: waits until at most `pending` of the newest groups are pending.
#[track_caller]
pub fn wgmma_wait_group(pending: usize) {
    with(|machine, _| machine.wait_products(pending));
}

/// Reads an accumulator to `values`: a fault while an operation may still write it.
#[track_caller]
pub fn wgmma_read(accumulator: &Fragment, values: &mut [f32]) {
    with(|machine, _| accumulator.key.map_or(Ok(()), |key| machine.read_fragment(key, values)));
}
