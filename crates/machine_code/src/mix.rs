//! How many instructions of each class a kernel has, as they stand in its text: one in a loop counts
//! once.

mod machine_code;
mod ptx;

use crate::{expected::instruction, ptx::Code};

/// What an instruction is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Matrix products: `mma`, `wgmma`.
    Tensor,
    /// Copies that do not go through registers: `cp.async`, TMA.
    AsyncCopy,
    /// Loads from global memory, or from a generic address.
    GlobalLoad,
    /// Stores there, and atomics.
    GlobalStore,
    /// Loads from shared memory, `ldmatrix` among them.
    SharedLoad,
    /// Stores there, `stmatrix` and atomics among them.
    SharedStore,
    /// Loads from local memory.
    LocalLoad,
    /// Stores there.
    LocalStore,
    /// Arithmetic in f32.
    F32,
    /// Arithmetic in f16 or bf16.
    F16,
    /// Arithmetic and logic of integers, addresses among them.
    Integer,
    /// Branches, ends, and their bookkeeping.
    Control,
    /// Barriers, fences, and waits for copies and matrix products.
    Barrier,
    /// Moves, conversions, shuffles, constants, f64.
    Other,
}

impl Class {
    /// All of them, in this order.
    pub const ALL: [Class; 14] = [
        Class::Tensor,
        Class::AsyncCopy,
        Class::GlobalLoad,
        Class::GlobalStore,
        Class::SharedLoad,
        Class::SharedStore,
        Class::LocalLoad,
        Class::LocalStore,
        Class::F32,
        Class::F16,
        Class::Integer,
        Class::Control,
        Class::Barrier,
        Class::Other,
    ];

    /// Name of the class in output.
    pub fn name(self) -> &'static str {
        match self {
            Class::Tensor => "tensor",
            Class::AsyncCopy => "async_copy",
            Class::GlobalLoad => "global_load",
            Class::GlobalStore => "global_store",
            Class::SharedLoad => "shared_load",
            Class::SharedStore => "shared_store",
            Class::LocalLoad => "local_load",
            Class::LocalStore => "local_store",
            Class::F32 => "f32",
            Class::F16 => "f16",
            Class::Integer => "integer",
            Class::Control => "control",
            Class::Barrier => "barrier",
            Class::Other => "other",
        }
    }
}

/// Instructions by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mix([u32; Class::ALL.len()]);

impl Mix {
    /// Instructions of a kernel's PTX.
    pub fn from_ptx(ptx: &str) -> Self {
        let code = Code::parse(ptx);
        code.instructions.iter().map(|instruction| ptx::class(&instruction.opcode)).collect()
    }

    /// Instructions of machine code, as nvdisasm prints it, without `NOP`, which fills gaps.
    pub fn from_machine_code(code: &str) -> Self {
        let mnemonics = code.lines().filter_map(instruction);
        // Data of other sections: directives such as `.word`.
        let mnemonics = mnemonics.filter(|name| !name.starts_with('.') && *name != "NOP");
        mnemonics.map(machine_code::class).collect()
    }

    /// Instructions of a class.
    pub fn count(&self, class: Class) -> u32 {
        self.0[class as usize]
    }

    /// Instructions of all classes.
    pub fn total(&self) -> u32 {
        self.0.iter().sum()
    }
}

impl FromIterator<Class> for Mix {
    fn from_iter<I: IntoIterator<Item = Class>>(classes: I) -> Self {
        let mut mix = Mix::default();
        for class in classes {
            mix.0[class as usize] += 1;
        }
        mix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The classes that are there, in the order of [`Class::ALL`].
    fn counts(mix: Mix) -> Vec<(Class, u32)> {
        let all = Class::ALL.map(|class| (class, mix.count(class)));
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Counted by hand: see the files.
    #[test]
    fn recorded_texts_have_the_counts_of_a_hand() {
        let ptx = Mix::from_ptx(include_str!("../tests/fixtures/mix.ptx"));
        let want = [
            (Class::Tensor, 1),
            (Class::AsyncCopy, 2),
            (Class::GlobalLoad, 1),
            (Class::GlobalStore, 2),
            (Class::SharedLoad, 2),
            (Class::SharedStore, 1),
            (Class::F32, 2),
            (Class::F16, 1),
            (Class::Integer, 3),
            (Class::Control, 2),
            (Class::Barrier, 3),
            (Class::Other, 5),
        ];
        assert_eq!(counts(ptx), want);
        let code = Mix::from_machine_code(include_str!("../tests/fixtures/serialised.sass"));
        let want = [
            (Class::Tensor, 1),
            (Class::GlobalStore, 1),
            (Class::F32, 1),
            (Class::Control, 2),
            (Class::Barrier, 3),
            (Class::Other, 5),
        ];
        assert_eq!(counts(code), want);
        let code = Mix::from_machine_code(include_str!("../tests/fixtures/waiting_input.sass"));
        let want = [
            (Class::GlobalLoad, 2),
            (Class::GlobalStore, 1),
            (Class::F16, 1),
            (Class::Integer, 4),
            (Class::Control, 4),
            (Class::Other, 6),
        ];
        assert_eq!(counts(code), want);
        assert_eq!(code.total(), 18);
    }
}
