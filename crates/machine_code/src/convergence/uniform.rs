//! Which bits of which registers may differ between the threads of a group.

use super::flow::Flow;
use super::reaching::Reaching;
use super::value::Value;
use crate::ptx::{Code, Instruction, is_register};
use std::collections::{HashMap, HashSet};

/// Threads that execute an instruction together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    Warp,
    Warpgroup,
}

impl Group {
    /// The bits of the thread's index in which the group's threads differ.
    fn thread_bits(self) -> u64 {
        match self {
            Group::Warp => 31,
            Group::Warpgroup => 127,
        }
    }
}

/// What is known of all registers.
pub struct Values<'a> {
    reaching: &'a Reaching,
    /// By instruction, of the registers that it writes.
    by_write: HashMap<usize, Vec<(&'a str, Value)>>,
    /// Instructions that not all threads of a group may execute, or not as often.
    dependent: HashSet<usize>,
    group: Group,
    max_threads: u64,
}

/// Analyses the registers of `code`, to a fixed point.
pub fn values<'a>(code: &'a Code, flow: &Flow, reaching: &'a Reaching, group: Group) -> Values<'a> {
    let (by_write, dependent) = Default::default();
    let max_threads = code.max_threads;
    let mut values = Values { reaching, by_write, dependent, group, max_threads };
    let mut branches = HashSet::new();
    loop {
        while (0..code.instructions.len()).fold(false, |more, at| values.execute(code, at) | more) {
        }
        let found = values.divergent_branches(code);
        let fresh: Vec<usize> =
            found.into_iter().filter(|&branch| branches.insert(branch)).collect();
        if fresh.is_empty() {
            return values;
        }
        for branch in fresh {
            values.dependent.extend(differing_writes(code, flow, reaching, branch));
        }
    }
}

/// The writes after which a register may differ between the threads that took one side of `branch` and the other: not those
/// that both sides have, as the compiler copies the end of a loop into both.
fn differing_writes(code: &Code, flow: &Flow, reaching: &Reaching, branch: usize) -> Vec<usize> {
    let block = code.block_of(branch);
    let blocks = flow.dependent_blocks(block);
    let is_loop = blocks.contains(&block);
    let join = flow.join(block).filter(|_| !is_loop);
    let is_inside = |write: &usize| blocks.contains(&code.block_of(*write));
    let is_in_both = |name: &str| {
        let Some(join) = join else { return false };
        let before = blocks.iter().copied().chain([block]).filter(|&b| flow.has_edge(b, join));
        let ends: Option<Vec<Vec<usize>>> = before.map(|b| reaching.at_end(b, name)).collect();
        let writes = ends.unwrap_or_default().concat();
        let are_equal = |write: &usize| reaching.are_equal(code, writes[0], *write);
        // An earlier write may be that of another iteration.
        let is_recent = |write: &usize| is_inside(write) || code.block_of(*write) == block;
        !writes.is_empty() && writes.iter().all(|write| is_recent(write) && are_equal(write))
    };
    let is_read_outside =
        |at: usize, name: &str| reaching.readers(at, name).any(|reader| !is_inside(&reader));
    let differs = |at: &usize| {
        let mut written = code.instructions[*at].written();
        written.any(|name| is_loop || is_read_outside(*at, name) && !is_in_both(name))
    };
    flow.dependent_instructions(code, branch).filter(differs).collect()
}

impl<'a> Values<'a> {
    /// Whether the instruction has a predicate that may differ between the threads of a group.
    pub fn has_divergent_guard(&self, code: &Code, at: usize) -> bool {
        let guard = code.instructions[at].guard.as_ref();
        guard.is_some_and(|guard| self.of(at, guard).differ != 0)
    }

    /// The conditional branches and returns whose condition may differ.
    pub fn divergent_branches(&self, code: &Code) -> Vec<usize> {
        let differs = |at: &usize| {
            let one = &code.instructions[*at];
            (one.is_branch() || one.is_return()) && self.has_divergent_guard(code, *at)
        };
        (0..code.instructions.len()).filter(differs).collect()
    }

    /// An operand of instruction `at`.
    fn of(&self, at: usize, operand: &str) -> Value {
        if let Some(value) = constant(operand) {
            return Value::constant(value);
        }
        let lanes = self.group.thread_bits();
        match operand {
            // A block of one dimension.
            "%tid.x" => {
                let zero = !(self.max_threads.next_power_of_two() - 1);
                Value { differ: lanes & !zero, zero }
            }
            "%laneid" => Value { differ: 31, zero: !31 },
            "%warpid" => Value { differ: lanes >> 5, zero: 0 },
            _ if operand.starts_with("%clock") || operand.starts_with("%lanemask") => Value::ANY,
            _ if operand.starts_with('[') || operand.starts_with('{') => {
                let values = Instruction::names(operand).map(|name| self.of(at, name));
                match values.fold(Value::NONE, Value::join).differ {
                    0 => Value::UNIFORM,
                    _ => Value::ANY,
                }
            }
            _ if is_register(operand) => {
                let writes = self.reaching.writes(at, operand).iter();
                writes.map(|&write| self.written(write, operand)).fold(Value::NONE, Value::join)
            }
            // A parameter or a symbol.
            _ => Value::UNIFORM,
        }
    }

    /// What instruction `write` writes to a register, as far as is known.
    fn written(&self, write: usize, register: &str) -> Value {
        if self.dependent.contains(&write) {
            return Value::ANY;
        }
        let values = self.by_write.get(&write).into_iter().flatten();
        let mut of_register = values.filter(|(name, _)| *name == register);
        of_register.next().map_or(Value::NONE, |&(_, value)| value)
    }

    /// Adds what an instruction writes; whether that is more than was known.
    fn execute(&mut self, code: &'a Code, at: usize) -> bool {
        let one = &code.instructions[at];
        let predicated = self.has_divergent_guard(code, at);
        let value = |place| if predicated { Value::ANY } else { self.result(one, at, place) };
        let written = one.written().enumerate().map(|(place, name)| (name, value(place)));
        let written: Vec<_> =
            written.map(|(name, value)| (name, value.join(self.written(at, name)))).collect();
        if written.is_empty() || self.by_write.get(&at) == Some(&written) {
            return false;
        }
        self.by_write.insert(at, written);
        true
    }

    /// What an instruction writes to its `place`-th register.
    fn result(&self, one: &Instruction, at: usize, place: usize) -> Value {
        let words: Vec<&str> = one.opcode.split('.').collect();
        let sources: Vec<Value> =
            one.operands.iter().skip(1).map(|operand| self.of(at, operand)).collect();
        let bits = words.iter().rev().find_map(|word| width(word)).unwrap_or(64);
        let is_uniform = sources.iter().all(|source| source.differ == 0);
        let any = if is_uniform { Value::UNIFORM } else { Value::ANY };
        let by = || one.operands.get(2).and_then(|operand| constant(operand)).map(|by| by as u32);
        let value = match (words[0], &sources[..]) {
            ("mov" | "cvta", [source]) => *source,
            ("cvt", [source]) => converted(&words, *source),
            ("and", [a, b]) => a.and(*b),
            ("or" | "xor", [a, b]) => a.bitwise(*b),
            ("not", [a]) => Value { differ: a.differ, zero: 0 },
            ("selp", [a, b, condition]) if condition.differ == 0 => a.join(*b),
            ("add", [a, b]) if is_integer(&words) => a.sum(*b),
            ("mul", [a, b]) if is_integer(&words) && !words.contains(&"hi") => product(one, *a, *b),
            ("mad", [a, b, c]) if is_integer(&words) && !words.contains(&"hi") => {
                product(one, *a, *b).sum(*c)
            }
            ("shl", [a, _]) if by().is_some() => a.shifted_left(by().unwrap_or(0)),
            ("shr", [a, _]) if by().is_some() => {
                let sign = 1 << (bits - 1);
                if words[1].starts_with('s') && a.zero & sign == 0 {
                    any
                } else {
                    a.shifted_right(by().unwrap_or(0))
                }
            }
            ("bfe", [a, _, _]) => match (by(), one.operands.get(3).and_then(|c| constant(c))) {
                (Some(from), Some(len)) => a.shifted_right(from).truncated(len as u32),
                _ => any,
            },
            ("setp", [a, b]) => match compares_as_one(words[1], *a, *b, one) {
                true => Value::UNIFORM,
                false => Value::ANY,
            },
            ("shfl", [source, lane, ..]) => {
                let from_one = words.contains(&"idx") && lane.differ == 0;
                let of_warp = self.group == Group::Warp && from_one;
                if source.differ == 0 || of_warp { Value::UNIFORM } else { Value::ANY }
            }
            ("vote" | "redux", _) if self.group == Group::Warp => Value::UNIFORM,
            ("match", _) if self.group == Group::Warp && words[1] == "all" => Value::UNIFORM,
            ("elect", _) if place == 0 && self.group == Group::Warp => Value::UNIFORM,
            _ if differs_always(&words) => Value::ANY,
            _ => any,
        };
        if words[0] == "mul" && words.contains(&"wide") || words[0] == "cvt" || words[0] == "setp" {
            return value;
        }
        value.truncated(bits)
    }
}

/// Results that differ between threads whatever the operands: of instructions whose threads have a part each, and of
/// those that may see memory at different times.
fn differs_always(words: &[&str]) -> bool {
    let parts = [
        "ldmatrix",
        "movmatrix",
        "mma",
        "wgmma",
        "atom",
        "match",
        "elect",
        "activemask",
        "vote",
        "redux",
    ];
    parts.contains(&words[0]) || matches!(words, ["mbarrier", "test_wait" | "try_wait", ..])
}

fn is_integer(words: &[&str]) -> bool {
    words.last().is_some_and(|word| ["u", "s", "b"].iter().any(|kind| word.starts_with(kind)))
}

/// Bits of a type.
fn width(word: &str) -> Option<u32> {
    match word {
        "pred" => Some(1),
        _ => ["u", "s", "b", "f"].iter().find_map(|kind| word.strip_prefix(kind)?.parse().ok()),
    }
}

/// A conversion between integers; of other types nothing is known.
fn converted(words: &[&str], source: Value) -> Value {
    let types: Vec<&str> = words.iter().copied().filter(|word| width(word).is_some()).collect();
    let [to, from] = types[..] else {
        return if source.differ == 0 { Value::UNIFORM } else { Value::ANY };
    };
    let (to_bits, from_bits) = (width(to).unwrap_or(64), width(from).unwrap_or(64));
    let source_bits = source.truncated(from_bits);
    let is_unsigned = from.starts_with('u') || source_bits.zero >> (from_bits - 1) & 1 == 1;
    let is_integer = !to.starts_with('f') && !from.starts_with('f');
    match source_bits.differ {
        _ if is_integer && (is_unsigned || to_bits <= from_bits) => source_bits.truncated(to_bits),
        0 => Value::UNIFORM,
        _ => Value::ANY,
    }
}

/// A product; by a power of two it is a shift.
fn product(one: &Instruction, a: Value, b: Value) -> Value {
    let factor = one.operands.get(2).and_then(|operand| constant(operand));
    match factor.filter(|factor| factor.is_power_of_two()) {
        Some(factor) => a.shifted_left(factor.trailing_zeros()),
        None => a.product(b),
    }
}

/// Whether a comparison has one result in all threads: of operands that do not differ, or where one is a constant at the
/// border of the range over which the other differs, as in `tid < 64`.
fn compares_as_one(comparison: &str, a: Value, b: Value, one: &Instruction) -> bool {
    if a.differ | b.differ == 0 {
        return true;
    }
    let Some(bound) = one.operands.get(2).and_then(|operand| constant(operand)) else {
        return false;
    };
    let range = u64::MAX.checked_shl(64 - a.differ.leading_zeros()).unwrap_or(0);
    match comparison {
        "lt" | "ge" | "lo" | "hs" => bound & !range == 0,
        "le" | "gt" | "ls" | "hi" => bound.wrapping_add(1) & !range == 0,
        _ => false,
    }
}

/// The number that an operand is; floating-point ones as any other.
fn constant(operand: &str) -> Option<u64> {
    let digits = operand.strip_suffix('U').unwrap_or(operand);
    if let Some(hex) = digits.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    digits.parse::<i64>().map(|value| value as u64).or_else(|_| digits.parse()).ok()
}
