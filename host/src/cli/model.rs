//! Which model, and on what.

use super::{failure::Failure, terminal};
use clap::ValueEnum;
use halfwarp::{
    Accumulate, Device, Engine, EngineOptions, Gemm, Model, Precision, Request, Target,
};
use model_cache::{DEFAULT, FetchedModel, MODELS};
use std::{path::PathBuf, sync::Arc};

/// The arguments that name a model.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// A Hugging Face directory, a .gguf file, or the name of a fetched model [default: the fetched one]
    #[arg(short, long)]
    model: Option<PathBuf>,
}

/// The arguments that say how a model runs.
#[derive(clap::Args)]
pub struct EngineArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Positions that a sequence can have [default: 4096, or the model's if that is less]
    #[arg(short, long = "ctx-size", value_name = "CTX")]
    pub context: Option<usize>,
    /// auto, cpu, cuda, cuda:N or emulated (the GPU's kernels on the CPU, checked: slow)
    #[arg(long, default_value = "auto")]
    device: Device,
    /// What weights, KV cache and operands are kept in; sums, norms and softmax are in f32
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    /// Who computes linear layers on a GPU
    #[arg(long, value_enum, default_value_t = GemmArg::Halfwarp)]
    gemm: GemmArg,
    /// What our kernels sum products of f16 in, where there are more than a few rows
    #[arg(long, value_enum, default_value_t = AccumulateArg::F32)]
    accumulate: AccumulateArg,
    /// Whose kernels to run, on a GPU or emulated [default: the newest that the device can run]
    #[arg(long, value_enum)]
    target: Option<TargetArg>,
    /// The same logits, bit for bit, whatever else runs and however a prompt is cut into steps
    #[arg(long)]
    batch_invariant: bool,
}

/// Who computes linear layers.
#[derive(Clone, Copy, ValueEnum)]
pub enum GemmArg {
    /// The kernels of this program
    Halfwarp,
    /// NVIDIA's cuBLAS, where it is installed
    Cublas,
    /// cuBLAS with sums in f16, of f16 operands alone
    CublasF16,
}

impl From<GemmArg> for Gemm {
    fn from(gemm: GemmArg) -> Self {
        match gemm {
            GemmArg::Halfwarp => Gemm::Halfwarp,
            GemmArg::Cublas => Gemm::Cublas,
            GemmArg::CublasF16 => Gemm::CublasF16,
        }
    }
}

/// What products are summed in.
#[derive(Clone, Copy, ValueEnum)]
pub enum AccumulateArg {
    /// Exact products, sums of 24 bits
    F32,
    /// Sums of 11 bits up to 65504
    F16,
}

impl From<AccumulateArg> for Accumulate {
    fn from(accumulate: AccumulateArg) -> Self {
        match accumulate {
            AccumulateArg::F32 => Accumulate::F32,
            AccumulateArg::F16 => Accumulate::F16,
        }
    }
}

/// What kernels are compiled for.
#[derive(Clone, Copy, ValueEnum)]
pub enum TargetArg {
    /// Compute capability 8.0 and newer
    #[value(name = "sm_80")]
    Sm80,
    /// Compute capability 9.0: H100, H200
    #[value(name = "sm_90a")]
    Sm90a,
}

impl From<TargetArg> for Target {
    fn from(target: TargetArg) -> Self {
        match target {
            TargetArg::Sm80 => Target::Sm80,
            TargetArg::Sm90a => Target::Sm90a,
        }
    }
}

/// A type to compute in.
#[derive(Clone, Copy, ValueEnum)]
enum Dtype {
    /// The reference
    F32,
    /// Half of the memory; weights up to 65504
    F16,
    /// Half of the memory; the range of f32, 8 significant bits
    Bf16,
}

impl From<Dtype> for Precision {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Precision::F32,
            Dtype::F16 => Precision::F16,
            Dtype::Bf16 => Precision::BF16,
        }
    }
}

impl ModelArgs {
    /// Opens the model: its configuration, its tokenizer, and where its weights are.
    pub fn open(&self) -> Result<Arc<Model>, Failure> {
        Ok(Arc::new(Model::open(self.path()?)?))
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        let name = match &self.model {
            Some(path) if path.exists() => return Ok(path.clone()),
            Some(name) => name.to_string_lossy(),
            None => DEFAULT.name.into(),
        };
        let Some(model) = FetchedModel::named(&name) else {
            let known: Vec<_> = MODELS.iter().map(|model| model.name).collect();
            return Err(Failure::Input(format!(
                "{name}: no such directory or file\nthe models to fetch are: {}",
                known.join(", ")
            )));
        };
        let cache = model_cache::cache_dir().map_err(|error| Failure::Input(error.to_string()))?;
        let path = model.path(&cache);
        if !path.exists() {
            return Err(Failure::Input(format!(
                "{name} is not in {}\nto fetch it: cargo xtask setup",
                cache.display()
            )));
        }
        Ok(path)
    }
}

impl EngineArgs {
    /// Puts `model` on the device, if it can take `request`; with a progress bar where there is a terminal.
    pub fn engine_for(&self, request: &Request, model: &Arc<Model>) -> Result<Engine, Failure> {
        self.options(self.context).check_request(model, request)?;
        self.engine(model, self.context)
    }

    /// Puts `model` on the device, for `max_seqs` sequences of `context` positions at once.
    pub fn engine_of(
        &self,
        model: &Arc<Model>,
        context: usize,
        max_seqs: usize,
    ) -> Result<Engine, Failure> {
        let options = EngineOptions { max_seqs, ..self.options(Some(context)) };
        Ok(Engine::with_progress(Arc::clone(model), options, terminal::loading_bar())?)
    }

    /// Puts `model` on the device, with `context` positions a sequence.
    pub fn engine(&self, model: &Arc<Model>, context: Option<usize>) -> Result<Engine, Failure> {
        let (model, options) = (Arc::clone(model), self.options(context));
        Ok(Engine::with_progress(model, options, terminal::loading_bar())?)
    }

    fn options(&self, context: Option<usize>) -> EngineOptions {
        let (device, precision, gemm) =
            (self.device, Precision::from(self.dtype).into(), self.gemm.into());
        EngineOptions {
            device,
            precision,
            gemm,
            accumulate: self.accumulate.into(),
            target: self.target.map(Target::from),
            batch_invariant: self.batch_invariant,
            context,
            ..EngineOptions::default()
        }
    }
}
