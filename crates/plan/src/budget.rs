//! The memory budget: what a model takes while it runs, and what would fit.

use super::{Constant, PAGE_SIZE, Plan};

/// Bytes that a model takes on a device while it runs.
///
/// `memory_budget` of the executors makes it, before anything is allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Weights, as the executor stores them.
    pub weight_bytes: usize,
    /// The KV cache.
    pub kv_bytes: usize,
    /// Recurrent states.
    pub state_bytes: usize,
    /// Activations of the largest step.
    pub activation_bytes: usize,
    /// What one operation needs for itself: partial results of splits, counters, and the workspace
    /// of cuBLAS where it is used.
    pub workspace_bytes: usize,
    /// Inputs of a step with the work lists of its attention, and tables such as that of RoPE.
    pub buffer_bytes: usize,
    /// Machine code of the kernels, by an estimate; 0 on the CPU.
    pub module_bytes: usize,
    /// CUDA graphs, by an estimate; 0 on the CPU.
    pub graph_bytes: usize,
    /// What the process's CUDA context takes, as measured; 0 on the CPU.
    pub context_bytes: usize,
    /// Positions of one sequence: the context.
    pub max_kv_len: usize,
    /// Positions of the KV cache, in whole pages.
    pub kv_positions: usize,
}

impl MemoryBudget {
    /// What every executor takes for `plan` alike, with nothing for its steps.
    pub fn of_model(plan: &Plan) -> Self {
        MemoryBudget {
            weight_bytes: plan.weight_bytes(),
            kv_bytes: plan.kv.bytes(),
            state_bytes: plan.states.bytes(),
            buffer_bytes: plan.constants.iter().map(Constant::bytes).sum(),
            max_kv_len: plan.bounds.max_kv_len,
            kv_positions: plan.kv.num_pages * PAGE_SIZE,
            ..MemoryBudget::default()
        }
    }

    /// All of it.
    pub fn total_bytes(&self) -> usize {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// What two ranks take that have the same memory.
    #[must_use]
    pub fn together(self, other: Self) -> Self {
        MemoryBudget {
            weight_bytes: self.weight_bytes + other.weight_bytes,
            kv_bytes: self.kv_bytes + other.kv_bytes,
            state_bytes: self.state_bytes + other.state_bytes,
            activation_bytes: self.activation_bytes + other.activation_bytes,
            workspace_bytes: self.workspace_bytes + other.workspace_bytes,
            buffer_bytes: self.buffer_bytes + other.buffer_bytes,
            module_bytes: self.module_bytes + other.module_bytes,
            graph_bytes: self.graph_bytes + other.graph_bytes,
            context_bytes: self.context_bytes + other.context_bytes,
            ..self
        }
    }

    /// Each part, and what it is called.
    pub fn parts(&self) -> [(&'static str, usize); 9] {
        [
            ("weights", self.weight_bytes),
            ("KV cache", self.kv_bytes),
            ("recurrent states", self.state_bytes),
            ("activations", self.activation_bytes),
            ("workspace", self.workspace_bytes),
            ("buffers", self.buffer_bytes),
            ("modules", self.module_bytes),
            ("graphs", self.graph_bytes),
            ("CUDA context", self.context_bytes),
        ]
    }
}

impl std::fmt::Display for MemoryBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = self.parts().map(|(name, bytes)| (name.to_owned(), bytes));
        parts[1].0 = format!("KV cache of {} positions", self.kv_positions);
        write_sum(f, &parts)
    }
}

/// Bytes that an executor takes, as it or the driver counts them: to compare with the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// What the executor has allocated by itself: all that [`MemoryBudget`] counts exactly.
    pub buffer_bytes: usize,
    /// What loading machine code took; 0 on the CPU.
    pub module_bytes: usize,
    /// What CUDA graphs and their first runs took; 0 on the CPU.
    pub graph_bytes: usize,
    /// What the process's CUDA context takes; 0 on the CPU.
    pub context_bytes: usize,
}

impl MemoryUse {
    /// All of it.
    pub fn total_bytes(&self) -> usize {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    fn parts(&self) -> [(String, usize); 4] {
        [
            ("allocated".to_owned(), self.buffer_bytes),
            ("modules".to_owned(), self.module_bytes),
            ("graphs".to_owned(), self.graph_bytes),
            ("CUDA context".to_owned(), self.context_bytes),
        ]
    }
}

impl std::fmt::Display for MemoryUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_sum(f, &self.parts())
    }
}

/// The sum, and in parentheses its parts that are not 0.
fn write_sum(f: &mut std::fmt::Formatter<'_>, parts: &[(String, usize)]) -> std::fmt::Result {
    let total = parts.iter().map(|(_, bytes)| bytes).sum();
    let parts = parts.iter().filter(|&&(_, bytes)| bytes > 0);
    let parts: Vec<String> = parts.map(|(name, bytes)| format!("{name} {}", Gib(*bytes))).collect();
    write!(f, "{} ({})", Gib(total), parts.join(", "))
}

/// A model that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetError {
    /// The device.
    pub device: String,
    /// What is needed.
    pub budget: Box<MemoryBudget>,
    /// Bytes that are missing.
    pub short_bytes: usize,
    /// Bytes that the model may take.
    pub room_bytes: usize,
    /// What would fit.
    pub fits: Fits,
}

/// What would fit into the memory, in positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fits {
    /// No page of the cache: maybe not even the weights.
    Nothing,
    /// A context of so many.
    Context(usize),
    /// A KV cache of so many, the context as it is.
    Cache(usize),
    /// A KV cache of so many, which is shorter than the context: both have to be made so small.
    ContextAndCache(usize),
}

impl std::error::Error for BudgetError {}

impl std::fmt::Display for BudgetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "the model needs {}: {} more than the {} that it may take on {}",
            self.budget,
            Gib(self.short_bytes),
            Gib(self.room_bytes),
            self.device
        )?;
        match self.fits {
            Fits::Nothing => {
                write!(f, "no context would fit: choose a smaller model or another device")
            }
            Fits::Context(len) => write!(f, "a context of {len} positions would fit"),
            Fits::Cache(len) => write!(f, "a KV cache of {len} positions would fit"),
            Fits::ContextAndCache(len) => {
                write!(f, "a context and a KV cache of {len} positions would fit")
            }
        }
    }
}

/// Bytes, printed in GiB, or in MiB under a tenth of one.
struct Gib(usize);

impl std::fmt::Display for Gib {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gib = self.0 as f64 / (1u64 << 30) as f64;
        if gib < 0.1 { write!(f, "{:.1} MiB", gib * 1024.0) } else { write!(f, "{gib:.2} GiB") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_in_the_sum_and_in_the_text() {
        let budget = MemoryBudget {
            weight_bytes: 1 << 30,
            kv_bytes: 2 << 30,
            state_bytes: 256 << 30,
            activation_bytes: 4 << 30,
            workspace_bytes: 8 << 30,
            buffer_bytes: 16 << 30,
            module_bytes: 32 << 30,
            graph_bytes: 64 << 30,
            context_bytes: 128 << 30,
            max_kv_len: 100,
            kv_positions: 128,
        };
        assert_eq!(budget.total_bytes(), 511 << 30);
        assert_eq!(
            budget.to_string(),
            "511.00 GiB (weights 1.00 GiB, KV cache of 128 positions 2.00 GiB, recurrent states 256.00 GiB, \
             activations 4.00 GiB, workspace 8.00 GiB, buffers 16.00 GiB, modules 32.00 GiB, graphs 64.00 GiB, \
             CUDA context 128.00 GiB)"
        );
        let cpu = MemoryBudget { weight_bytes: 1 << 20, ..MemoryBudget::default() };
        assert_eq!(cpu.to_string(), "1.0 MiB (weights 1.0 MiB)");
    }
}
