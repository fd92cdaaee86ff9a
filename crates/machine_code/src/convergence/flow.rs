//! Control flow: which instructions depend on a branch.

use crate::ptx::Code;
use std::ops::Range;

/// The graph of a kernel's basic blocks.
pub struct Flow {
    successors: Vec<Vec<usize>>,
    /// By block, the first one that all paths from it to the end of the thread pass; the number of blocks is the end.
    postdominators: Vec<usize>,
}

impl Flow {
    /// The graph without the paths that never end, such as those to a trap of the panic handler.
    pub fn of(code: &Code) -> Self {
        let end = code.blocks.len();
        let ends = ends(code);
        let successors: Vec<Vec<usize>> = code
            .blocks
            .iter()
            .map(|block| {
                let blocks = block.successors.iter().copied().filter(|&next| ends[next]);
                let mut successors: Vec<usize> = blocks.collect();
                let last = &code.instructions[block.instructions.end - 1];
                if last.is_return() || block.successors.is_empty() {
                    successors.push(end);
                }
                successors
            })
            .collect();
        let postdominators = postdominators(&successors);
        Flow { successors, postdominators }
    }

    /// The blocks between a block and the one that all paths from it pass again: those that are executed or not, or more or
    /// less often, as its branch says.
    pub fn dependent_blocks(&self, block: usize) -> Vec<usize> {
        let join = self.postdominators[block];
        let mut found = vec![false; self.successors.len()];
        let mut open = self.successors[block].clone();
        while let Some(next) = open.pop() {
            if next != join && next < found.len() && !std::mem::replace(&mut found[next], true) {
                open.extend(&self.successors[next]);
            }
        }
        (0..found.len()).filter(|&block| found[block]).collect()
    }

    /// The first block that all paths from `block` pass; none if that is the end of the thread.
    pub fn join(&self, block: usize) -> Option<usize> {
        Some(self.postdominators[block]).filter(|&join| join < self.successors.len())
    }

    /// Whether `next` may follow `block`.
    pub fn has_edge(&self, block: usize, next: usize) -> bool {
        self.successors[block].contains(&next)
    }

    /// The instructions that depend on `branch`, the last one of its block.
    pub fn dependent_instructions<'a>(
        &self,
        code: &'a Code,
        branch: usize,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let blocks = &code.blocks;
        let block = code.block_of(branch);
        let instructions =
            move |block: usize| -> Range<usize> { blocks[block].instructions.clone() };
        self.dependent_blocks(block).into_iter().flat_map(instructions)
    }
}

/// The blocks from which a `ret` or `exit` is reached.
fn ends(code: &Code) -> Vec<bool> {
    let blocks = &code.blocks;
    let last = |block: usize| &code.instructions[blocks[block].instructions.end - 1];
    let mut ends: Vec<bool> = (0..blocks.len())
        .map(|block| blocks[block].successors.is_empty() && !last(block).opcode.starts_with("trap"))
        .collect();
    loop {
        let reaches = |block: &usize| blocks[*block].successors.iter().any(|&next| ends[next]);
        let more: Vec<usize> = (0..blocks.len()).filter(|&b| !ends[b]).filter(reaches).collect();
        if more.is_empty() {
            return ends;
        }
        more.into_iter().for_each(|block| ends[block] = true);
    }
}

/// The immediate postdominators, by Cooper, Harvey and Kennedy on the reversed graph; the end for blocks that reach none.
fn postdominators(successors: &[Vec<usize>]) -> Vec<usize> {
    let end = successors.len();
    let mut predecessors = vec![Vec::new(); end + 1];
    for (block, next) in successors.iter().enumerate() {
        next.iter().for_each(|&next| predecessors[next].push(block));
    }
    let order = postorder(&predecessors, end);
    let mut rank = vec![usize::MAX; end + 1];
    order.iter().enumerate().for_each(|(position, &block)| rank[block] = position);
    let mut result = vec![None; end + 1];
    result[end] = Some(end);
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for &block in order.iter().rev().filter(|&&block| block != end) {
            let known = successors[block].iter().copied().filter(|&next| result[next].is_some());
            let join = known.reduce(|mut a, mut b| {
                while a != b {
                    while rank[a] < rank[b] {
                        a = result[a].unwrap_or(end);
                    }
                    while rank[b] < rank[a] {
                        b = result[b].unwrap_or(end);
                    }
                }
                a
            });
            if join.is_some() && result[block] != join {
                result[block] = join;
                changed = true;
            }
        }
    }
    result.into_iter().take(end).map(|join| join.unwrap_or(end)).collect()
}

/// The nodes that are reached from `root`, each after those that it reaches first.
fn postorder(edges: &[Vec<usize>], root: usize) -> Vec<usize> {
    let mut order = Vec::new();
    let mut seen = vec![false; edges.len()];
    let mut open = vec![(root, 0)];
    seen[root] = true;
    while let Some((node, next)) = open.last_mut() {
        match edges[*node].get(*next) {
            Some(&to) => {
                *next += 1;
                if !std::mem::replace(&mut seen[to], true) {
                    open.push((to, 0));
                }
            }
            None => {
                order.push(*node);
                open.pop();
            }
        }
    }
    order
}
