//! PTX as instructions and basic blocks.

use std::collections::HashMap;

/// The instructions of a kernel, in the order of the text.
pub struct Code {
    pub instructions: Vec<Instruction>,
    /// Basic blocks: their instructions, ascending and without gaps.
    pub blocks: Vec<Block>,
    /// Most threads of a block.
    pub max_threads: u64,
    /// Branches whose label is not in the text.
    pub lost_branches: Vec<String>,
}

/// One instruction.
pub struct Instruction {
    /// Line of the text, from 1.
    pub line: usize,
    pub text: String,
    /// The register of its predicate.
    pub guard: Option<String>,
    pub opcode: String,
    /// Registers (those of an `asm!` by a name of their own), constants, addresses in brackets, vectors in braces.
    pub operands: Vec<String>,
}

/// A basic block.
pub struct Block {
    pub instructions: std::ops::Range<usize>,
    /// The blocks that may follow; none at the end of the thread.
    pub successors: Vec<usize>,
}

impl Instruction {
    /// The names in an operand: of a vector its elements, of an address its registers.
    pub fn names(operand: &str) -> impl Iterator<Item = &str> {
        operand.split(|c: char| "{}[]|,+ \t".contains(c)).filter(|name| !name.is_empty())
    }

    /// The registers that the instruction may write: those of its first operand, unless that is an address.
    pub fn written(&self) -> impl Iterator<Item = &str> {
        let writes = !self.is_branch() && !self.opcode.starts_with("bar");
        let first = self.operands.first().filter(|first| writes && !first.starts_with('['));
        first.into_iter().flat_map(|first| Self::names(first)).filter(|name| is_register(name))
    }

    /// The registers that the instruction reads, its predicate among them. An accumulator of `wgmma`, which it reads too, is
    /// not.
    pub fn read(&self) -> impl Iterator<Item = &str> {
        let written = usize::from(self.written().next().is_some());
        let names = self.operands.iter().skip(written).flat_map(|operand| Self::names(operand));
        self.guard.as_deref().into_iter().chain(names).filter(|name| is_register(name))
    }

    pub fn is_branch(&self) -> bool {
        self.opcode == "bra" || self.opcode.starts_with("bra.")
    }

    /// Whether the thread ends here.
    pub fn is_return(&self) -> bool {
        ["ret", "ret.uni", "exit"].contains(&&*self.opcode)
    }

    /// Whether the next instruction follows only if the predicate, if any, is false.
    fn is_last(&self) -> bool {
        self.is_branch() || self.is_return() || self.opcode == "trap"
    }
}

impl Code {
    /// The basic block of an instruction.
    pub fn block_of(&self, at: usize) -> usize {
        self.blocks.partition_point(|block| block.instructions.start <= at) - 1
    }

    /// Parses the text of one kernel.
    pub fn parse(ptx: &str) -> Self {
        let mut parser = Parser::default();
        let mut max_threads = 1024;
        let mut in_body = false;
        for (index, line) in ptx.lines().enumerate() {
            let line = line.split("//").next().unwrap_or_default().trim();
            if let Some((_, bounds)) = line.split_once(".maxntid") {
                let threads = bounds.trim().split(',').next().and_then(|x| x.trim().parse().ok());
                max_threads = threads.unwrap_or(max_threads);
            }
            let was_in_body = in_body;
            in_body |= line.starts_with('{') || line.ends_with('{');
            if was_in_body {
                parser.line(index + 1, line);
            }
        }
        parser.finish(max_threads)
    }
}

#[derive(Default)]
struct Parser {
    instructions: Vec<Instruction>,
    /// The instruction that a label stands before.
    labels: HashMap<String, usize>,
    /// Open scopes of `asm!`: their number, and the names that each declares.
    scopes: Vec<(usize, Vec<String>)>,
    num_scopes: usize,
    /// A statement that is not ended.
    open: String,
}

impl Parser {
    fn line(&mut self, number: usize, line: &str) {
        let mut rest = line;
        while !rest.is_empty() {
            if self.open.is_empty() {
                rest = rest.trim_start();
                if let Some(inner) = rest.strip_prefix('{') {
                    self.num_scopes += 1;
                    self.scopes.push((self.num_scopes, Vec::new()));
                    rest = inner;
                    continue;
                }
                if let Some(outer) = rest.strip_prefix('}') {
                    self.scopes.pop();
                    rest = outer;
                    continue;
                }
                if let Some((label, after)) = label(rest) {
                    let label = self.declare(label);
                    self.labels.insert(label, self.instructions.len());
                    rest = after;
                    continue;
                }
            }
            match rest.split_once(';') {
                Some((end, after)) => {
                    self.open.push_str(end);
                    let statement = std::mem::take(&mut self.open);
                    self.statement(number, statement.trim());
                    rest = after;
                }
                None => {
                    self.open.push_str(rest);
                    self.open.push(' ');
                    rest = "";
                }
            }
        }
    }

    fn statement(&mut self, line: usize, statement: &str) {
        if let Some(declared) = statement.strip_prefix(".reg") {
            for name in declared.split([' ', '\t', ',']).filter(|name| !name.starts_with('.')) {
                self.declare(name);
            }
            return;
        }
        if statement.is_empty() || statement.starts_with('.') {
            return;
        }
        let (guard, rest) = match statement.strip_prefix('@') {
            Some(guarded) => {
                let (guard, rest) = guarded.split_once([' ', '\t']).unwrap_or((guarded, ""));
                (Some(self.resolve(guard.trim_start_matches('!'))), rest.trim_start())
            }
            None => (None, statement),
        };
        let (opcode, operands) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
        let operands = split_operands(operands).map(|operand| self.resolve_all(operand)).collect();
        let text = statement.split_whitespace().collect::<Vec<_>>().join(" ");
        self.instructions.push(Instruction {
            line,
            text,
            guard,
            opcode: opcode.to_owned(),
            operands,
        });
    }

    /// A name of the innermost scope, made different from those of others.
    fn declare(&mut self, name: &str) -> String {
        match self.scopes.last_mut() {
            Some((scope, names)) => {
                names.push(name.to_owned());
                format!("{name}#{scope}")
            }
            None => name.to_owned(),
        }
    }

    fn resolve(&self, name: &str) -> String {
        let declares = |(_, names): &&(usize, Vec<String>)| names.iter().any(|other| other == name);
        match self.scopes.iter().rev().find(declares) {
            Some((scope, _)) => format!("{name}#{scope}"),
            None => name.to_owned(),
        }
    }

    /// `operand` with its names resolved.
    fn resolve_all(&self, operand: &str) -> String {
        if self.scopes.is_empty() {
            return operand.to_owned();
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_$%.".contains(c);
        let mut resolved = String::new();
        let mut rest = operand;
        while let Some(start) = rest.find(is_name) {
            let end = rest[start..].find(|c| !is_name(c)).map_or(rest.len(), |len| start + len);
            resolved.push_str(&rest[..start]);
            resolved.push_str(&self.resolve(&rest[start..end]));
            rest = &rest[end..];
        }
        resolved + rest
    }

    fn finish(self, max_threads: u64) -> Code {
        let target = |instruction: &Instruction| {
            let label = instruction.operands.first()?;
            self.labels.get(label).copied()
        };
        let mut starts: Vec<usize> = self.labels.values().copied().collect();
        starts.push(0);
        for (at, instruction) in self.instructions.iter().enumerate() {
            if instruction.is_last() {
                starts.push(at + 1);
            }
        }
        let len = self.instructions.len();
        starts.retain(|&start| start < len);
        starts.sort_unstable();
        starts.dedup();
        let block_of = |at: usize| starts.partition_point(|&start| start <= at) - 1;
        let ends = starts.iter().skip(1).copied().chain([len]);
        let blocks = starts.iter().zip(ends).map(|(&start, end)| {
            let last = &self.instructions[end - 1];
            let next = (end < len).then(|| block_of(end));
            let taken = if last.is_branch() { target(last).filter(|&at| at < len) } else { None };
            let falls = last.guard.is_some() || !last.is_last();
            let mut successors: Vec<usize> = taken.map(block_of).into_iter().collect();
            successors.extend(next.filter(|_| falls));
            successors.dedup();
            Block { instructions: start..end, successors }
        });
        let blocks = blocks.collect();
        let branches = self.instructions.iter().filter(|instruction| instruction.is_branch());
        let lost = branches.filter(|branch| target(branch).is_none());
        let lost_branches = lost.map(|branch| branch.text.clone()).collect();
        Code { instructions: self.instructions, blocks, max_threads, lost_branches }
    }
}

/// Whether `name` is a register, also one of an `asm!`.
pub fn is_register(name: &str) -> bool {
    name.starts_with('%') || name.contains('#')
}

/// The label that `text` starts with, and what follows it.
fn label(text: &str) -> Option<(&str, &str)> {
    let (label, rest) = text.split_once(':')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_$".contains(c);
    // The two colons of `shared::cta`.
    let is_label = !label.is_empty() && label.chars().all(is_name) && !rest.starts_with(':');
    is_label.then_some((label, rest))
}

/// The operands, at the commas outside of brackets and braces.
fn split_operands(operands: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let parts = operands.split(move |c: char| {
        match c {
            '[' | '{' | '(' => depth += 1,
            ']' | '}' | ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|operand| !operand.is_empty())
}
