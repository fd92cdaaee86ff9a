//! Which writes of a register reach a read of it.
//!
//! LLVM gives one register to values that never meet, as to the tile of a producer and that of a consumer.

use crate::ptx::{Code, is_register};
use std::collections::HashMap;

/// The writes and reads of each register by instruction, and which of them reach which.
pub struct Reaching {
    registers: HashMap<String, Register>,
    /// By instruction and register, the writes that reach a read; of registers with several.
    reads: HashMap<(usize, String), Vec<usize>>,
    /// By block, the writes that reach its end; of registers with several.
    ends: Vec<Set>,
}

#[derive(Default)]
struct Register {
    writes: Vec<usize>,
    readers: Vec<usize>,
    /// The number of the first write in a set, if there are several.
    first: Option<usize>,
}

/// A set of writes, a bit each.
type Set = Vec<u64>;

impl Reaching {
    pub fn of(code: &Code) -> Self {
        let mut registers: HashMap<String, Register> = HashMap::new();
        for (at, one) in code.instructions.iter().enumerate() {
            for name in one.written() {
                registers.entry(name.to_owned()).or_default().writes.push(at);
            }
            for name in one.read() {
                registers.entry(name.to_owned()).or_default().readers.push(at);
            }
        }
        let mut num_writes = 0;
        for register in registers.values_mut().filter(|register| register.writes.len() > 1) {
            register.first = Some(num_writes);
            num_writes += register.writes.len();
        }
        let starts = at_starts(code, &registers, num_writes);
        let (mut reads, mut ends) = (HashMap::new(), Vec::new());
        for (block, mut set) in code.blocks.iter().zip(starts) {
            for at in block.instructions.clone() {
                for name in code.instructions[at].read() {
                    if let Some(writes) = registers[name].writes_in(&set) {
                        reads.insert((at, name.to_owned()), writes);
                    }
                }
                write(code, at, &registers, &mut set);
            }
            ends.push(set);
        }
        Reaching { registers, reads, ends }
    }

    /// The writes that reach the read of a register by instruction `at`.
    pub fn writes(&self, at: usize, name: &str) -> &[usize] {
        match self.registers.get(name) {
            Some(register) if register.first.is_none() => &register.writes,
            _ => self.reads.get(&(at, name.to_owned())).map_or(&[], Vec::as_slice),
        }
    }

    /// The instructions that read what instruction `write` writes to a register.
    pub fn readers(&self, write: usize, name: &str) -> impl Iterator<Item = usize> {
        let readers = self.registers.get(name).into_iter().flat_map(|register| &register.readers);
        readers.copied().filter(move |&at| self.writes(at, name).contains(&write))
    }

    /// The writes of a register with several that reach the end of a block.
    pub fn at_end(&self, block: usize, name: &str) -> Option<Vec<usize>> {
        self.registers.get(name)?.writes_in(&self.ends[block])
    }

    /// Whether two instructions compute the same from the same values.
    pub fn are_equal(&self, code: &Code, a: usize, b: usize) -> bool {
        const PURE: [&str; 16] = [
            "mov", "add", "sub", "mul", "mad", "min", "max", "and", "or", "xor", "not", "shl",
            "shr", "setp", "selp", "cvt",
        ];
        if a == b {
            return true;
        }
        let [one, other] = [a, b].map(|at| &code.instructions[at]);
        let name = one.opcode.split('.').next().unwrap_or_default();
        let alike = one.opcode == other.opcode && one.operands.len() == other.operands.len();
        let unguarded = one.guard.is_none() && other.guard.is_none();
        let mut operands = one.operands.iter().zip(&other.operands).skip(1);
        alike
            && unguarded
            && PURE.contains(&name)
            && operands.all(|(x, y)| {
                if !is_register(x) || !is_register(y) {
                    return x == y;
                }
                match (self.writes(a, x), self.writes(b, y)) {
                    (x_writes, y_writes) if x == y && x_writes == y_writes => true,
                    // Two registers, both written before: no cycle.
                    (&[x], &[y]) if x < a && y < b => self.are_equal(code, x, y),
                    _ => false,
                }
            })
    }
}

impl Register {
    /// Writes that are in a set, of a register with several.
    fn writes_in(&self, set: &Set) -> Option<Vec<usize>> {
        let first = self.first?;
        let is_in = |number: usize| set[number / 64] >> (number % 64) & 1 == 1;
        let writes = self.writes.iter().enumerate().filter(|(i, _)| is_in(first + i));
        Some(writes.map(|(_, &at)| at).collect())
    }
}

/// By block, the writes that reach its start.
fn at_starts(code: &Code, registers: &HashMap<String, Register>, num_writes: usize) -> Vec<Set> {
    let mut starts = vec![vec![0; num_writes.div_ceil(64)]; code.blocks.len()];
    let mut open: Vec<usize> = (0..code.blocks.len()).rev().collect();
    while let Some(block) = open.pop() {
        let mut set = starts[block].clone();
        for at in code.blocks[block].instructions.clone() {
            write(code, at, registers, &mut set);
        }
        for &next in &code.blocks[block].successors {
            let mut grows = false;
            for (known, more) in starts[next].iter_mut().zip(&set) {
                grows |= more & !*known != 0;
                *known |= more;
            }
            if grows {
                open.push(next);
            }
        }
    }
    starts
}

/// Passes instruction `at`: its writes replace those before them, unless it has a predicate.
fn write(code: &Code, at: usize, registers: &HashMap<String, Register>, set: &mut Set) {
    let one = &code.instructions[at];
    for register in one.written().map(|name| &registers[name]) {
        let Some(first) = register.first else { continue };
        for (number, &write) in (first..).zip(&register.writes) {
            if write == at {
                set[number / 64] |= 1 << (number % 64);
            } else if one.guard.is_none() {
                set[number / 64] &= !(1 << (number % 64));
            }
        }
    }
}
