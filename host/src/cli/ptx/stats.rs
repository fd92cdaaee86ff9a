//! `halfwarp ptx stats`.

mod output;

use super::{driver, select, tools};
use crate::cli::{failure::Failure, terminal};
use halfwarp::ptx::Kernel;
use machine_code::{Assembled, BlockResources, Mix, Multiprocessor, Occupancy, Resources, Tools};

/// Arguments of `halfwarp ptx stats`.
#[derive(clap::Args)]
pub struct StatsArgs {
    #[command(flatten)]
    selection: select::Selection,
    /// The device target; occupancy is that of an A100 for sm_80, of an H100 or H200 for sm_90a
    #[arg(long, default_value = "sm_90a")]
    target: String,
    /// Print one JSON object per line
    #[arg(long)]
    jsonl: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "jsonl")]
    csv: bool,
}

/// What is known of a kernel.
struct Stats {
    kernel: &'static Kernel,
    static_shared_bytes: u32,
    dynamic_shared: DynamicShared,
    registers: Option<u32>,
    /// Stack of a thread; of the driver all its local memory.
    stack_bytes: Option<u32>,
    /// Bytes that spills store and load.
    spill_bytes: Option<[u32; 2]>,
    occupancy: Option<Occupancy>,
    mix: Mix,
}

/// Dynamic shared memory of a block.
#[derive(Clone, Copy)]
enum DynamicShared {
    Bytes(u32),
    /// As much as the shapes need: blocks that fit are an upper bound.
    ByShape,
}

/// Where registers, spills and instructions are from.
enum Source {
    Tools(Tools),
    /// The driver of this GPU: no spills, and the instructions of the PTX.
    Driver(String),
    /// The instructions of the PTX, nothing else.
    Ptx,
}

impl Source {
    fn has_machine_code(&self) -> bool {
        matches!(self, Source::Tools(Tools { nvdisasm: Some(_), .. }))
    }
}

/// Prints what is known of the kernels, and how it can become more.
pub fn run(args: &StatsArgs) -> Result<(), Failure> {
    let target = select::target(&args.target)?;
    let kernels = args.selection.of(&[target])?;
    let kernels: Vec<&Kernel> = kernels.into_iter().map(|(_, kernel)| kernel).collect();
    let sm = Multiprocessor::from_target(target.name)
        .ok_or_else(|| Failure::Input(format!("no multiprocessor is known for {}", target.name)))?;
    let (source, stats) = measure(&kernels, target.name, sm)?;
    terminal::print(&match args {
        StatsArgs { jsonl: true, .. } => output::jsonl(&stats, target.name, &source),
        StatsArgs { csv: true, .. } => output::csv(&stats, target.name, &source),
        _ => output::table(&stats, target.name, sm, &source),
    })?;
    if !source.has_machine_code() {
        let missing = match source {
            Source::Tools(_) => "nvdisasm is missing: the instructions are those of the PTX",
            Source::Driver(_) => "ptxas is missing: no spills, and the instructions of the PTX",
            Source::Ptx => "ptxas is missing: no registers, spills, occupancy or machine code",
        };
        terminal::note(format_args!("{missing}; {}", tools::ADVICE));
    }
    Ok(())
}

/// By ptxas if it is there, else by the driver of a GPU, else of the PTX alone.
fn measure(
    kernels: &[&'static Kernel],
    target: &str,
    sm: Multiprocessor,
) -> Result<(Source, Vec<Stats>), Failure> {
    if let Some(tools) = tools::find()? {
        let stats = tools::for_each(kernels, |kernel| {
            let assembled = tools.assemble(&kernel.text(), target)?;
            Ok(Stats::new(kernel).with_assembled(&assembled).with_occupancy(sm))
        })?;
        return Ok((Source::Tools(tools), stats));
    }
    let stats = kernels.iter().map(|kernel| Stats::new(kernel));
    let Some(compiled) = driver::compile(target, kernels)? else {
        return Ok((Source::Ptx, stats.collect()));
    };
    let stats = stats.zip(&compiled.attributes).map(|(stats, attributes)| {
        let (registers, stack_bytes) = (Some(attributes.registers), Some(attributes.local_bytes));
        Stats { registers, stack_bytes, ..stats }.with_occupancy(sm)
    });
    let stats = stats.collect();
    Ok((Source::Driver(compiled.gpu), stats))
}

impl Stats {
    /// What the PTX and the launcher say.
    fn new(kernel: &'static Kernel) -> Self {
        let text = kernel.text();
        let dynamic_shared = match kernels::dynamic_shared_bytes(kernel.symbol) {
            Some(bytes) => DynamicShared::Bytes(bytes as u32),
            None if text.contains(".extern .shared") => DynamicShared::ByShape,
            None => DynamicShared::Bytes(0),
        };
        Stats {
            kernel,
            static_shared_bytes: machine_code::static_shared_bytes(&text),
            dynamic_shared,
            registers: None,
            stack_bytes: None,
            spill_bytes: None,
            occupancy: None,
            mix: Mix::from_ptx(&text),
        }
    }

    fn with_assembled(mut self, assembled: &Assembled) -> Self {
        if let Some(resources) = assembled.resources() {
            let Resources { registers, static_shared_bytes, stack_bytes, .. } = resources;
            self.static_shared_bytes = static_shared_bytes;
            self.registers = Some(registers);
            self.stack_bytes = Some(stack_bytes);
            self.spill_bytes = Some([resources.spill_store_bytes, resources.spill_load_bytes]);
        }
        self.mix = assembled.mix().unwrap_or(self.mix);
        self
    }

    /// With the most blocks that fit, which registers decide too.
    fn with_occupancy(mut self, sm: Multiprocessor) -> Self {
        self.occupancy = self.registers.map(|registers| {
            let dynamic = match self.dynamic_shared {
                DynamicShared::Bytes(bytes) => bytes,
                DynamicShared::ByShape => 0,
            };
            sm.occupancy(&BlockResources {
                threads: self.kernel.max_threads,
                registers,
                shared_bytes: self.static_shared_bytes + dynamic,
            })
        });
        self
    }

    /// `registers` and `shared` where both allow no more blocks.
    fn limits(occupancy: &Occupancy) -> String {
        occupancy.limits.iter().map(|limit| limit.name()).collect::<Vec<_>>().join("+")
    }
}
