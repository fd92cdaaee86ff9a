//! How an engine is set up.

use super::{EngineError, PrecisionChoice, Request};
use crate::Model;
use crate::exec::{self, Collectives, Device, Gemm, GpuOptions, Target};
use crate::model::{Config, RopeScaling};
use crate::plan::{
    Accumulate, ActivationStorage, AttentionForm, Fusion, KvStorage, Numerics, PAGE_SIZE,
    Precision, WeightStorage,
};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// A context below which a smaller step or precision is better, if the options leave the context
/// open.
pub(super) const DEFAULT_CONTEXT: usize = 4096;
/// The default tokens of a step at most, on the CPU and emulated, and on a GPU whose memory is
/// short.
const MAX_TOKENS: usize = 512;
/// The default tokens of a step at least: a prompt in steps of 128 is computed 30 % slower than in
/// one of 384, in steps of 64 50 % slower, as each step reads and packs all weights (SmolLM2-135M
/// in f32, 2 cores).
const MIN_TOKENS: usize = 128;
/// Operations that a thread of a CPU computes in about a second, by which the default tokens of a
/// step are chosen.
const CPU_FLOP_PER_THREAD: f64 = 4e10;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where it runs.
    pub device: Device,
    /// Devices that share the model: each has its heads, columns of the MLP and tokens of the
    /// vocabulary. 1 by default.
    pub tensor_parallel_size: NonZeroUsize,
    /// What it computes in; [`Engine::precision`](super::Engine::precision) is what was chosen.
    pub precision: PrecisionChoice,
    /// Whose kernels compute linear layers on a GPU.
    pub gemm: Gemm,
    /// Whose kernels add over GPUs that share the model.
    pub collectives: Collectives,
    /// Type of our kernels' accumulators: f16 only for operands in f16, and not in small-batch
    /// kernels (m <= 16).
    pub accumulate: Accumulate,
    /// Target of the kernels, on a GPU or emulated; `None`: the newest that the device can run.
    pub target: Option<Target>,
    /// Whether a request's logits are the same bits whatever runs beside it, and however its prompt
    /// is cut into steps. Prompts and decoding then take turns instead of sharing steps, and some
    /// kernels are not the fastest ones. In 16 bits a GPU decodes at most 64 sequences so, and a
    /// step of more is an error.
    pub batch_invariant: bool,
    /// Which neighbouring operations run as one kernel, where there is one; [`Fusion::ALL`] by
    /// default.
    pub fusion: Fusion,
    /// How attention is computed; its memory is in the budget.
    pub attention: AttentionForm,
    /// How the KV cache is stored; by default in the type of the operands.
    pub kv: KvStorage,
    /// Positions of a sequence, prompt and answer. `Some(0)`: what the model allows. `None`: that
    /// too, or less if the memory has no room for it; a model whose RoPE is LongRoPE gets no more
    /// than the context of its training or 4096, as it computes every position in another way
    /// beyond the former.
    pub context: Option<usize>,
    /// Sequences that run at once; more requests wait.
    pub max_seqs: usize,
    /// Tokens of a step: a longer prompt takes several. `None`: 4096 on a GPU, less if its memory
    /// is short; on the CPU 128 to 512, about what a second is enough for, by the model's size and
    /// the number of threads, so that progress shows and a request can be cancelled.
    pub max_tokens: Option<usize>,
    /// Tokens of one prompt in a step while other sequences decode, which wait for the whole step:
    /// 256 by default. `None`: as many as the step has room for.
    pub long_prefill_token_threshold: Option<NonZeroUsize>,
    /// Whether a batch is made while the one before runs, where that may be, and begins when that
    /// ends ([`Engine::step_while`](super::Engine::step_while)); `None`: on a GPU.
    pub look_ahead: Option<bool>,
    /// Positions of the whole cache, in all sequences; `None`: room for `max_seqs` full contexts,
    /// or as much of that as the memory has if `context` is `None` too. With less, a sequence may
    /// have to wait, or to give its place back and be computed again.
    pub cache_positions: Option<usize>,
    /// The share of the device's memory that this process may take, above 0 and up to 1: weights,
    /// cache and all else of an engine, and the CUDA context. On the CPU of the memory that is
    /// available.
    pub gpu_memory_utilization: f64,
    /// Folder in which the machine code of a GPU's kernels is kept from start to start
    /// ([`GpuOptions::cubin_dir`]); by default [`exec::default_cubin_dir`].
    pub cubin_dir: Option<PathBuf>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            device: Device::Auto,
            tensor_parallel_size: NonZeroUsize::MIN,
            precision: PrecisionChoice::default(),
            gemm: Gemm::default(),
            collectives: Collectives::default(),
            accumulate: Accumulate::default(),
            target: None,
            batch_invariant: false,
            fusion: Fusion::default(),
            attention: AttentionForm::default(),
            kv: KvStorage::default(),
            context: None,
            max_seqs: 1,
            max_tokens: None,
            long_prefill_token_threshold: NonZeroUsize::new(Self::LONG_PREFILL_TOKEN_THRESHOLD),
            look_ahead: None,
            cache_positions: None,
            gpu_memory_utilization: 0.9,
            cubin_dir: exec::default_cubin_dir(),
        }
    }
}

/// Tokens of a step on a GPU of a model that reads texts as a whole: none of them waits for its
/// next token, and the more there are the better matrix products are.
const GPU_ENCODER_TOKENS: usize = 16_384;

impl EngineOptions {
    /// The default tokens of a step on a GPU.
    pub const GPU_MAX_TOKENS: usize = 4096;
    /// The default tokens of one prompt in a step while other sequences decode.
    pub const LONG_PREFILL_TOKEN_THRESHOLD: usize = 256;

    /// Whether [`Engine::add_request`](super::Engine::add_request) of an engine with these options
    /// would take `request`: to know before the weights are loaded.
    ///
    /// # Errors
    /// [`EngineError::Context`] and those of [`Engine::add_request`](super::Engine::add_request).
    pub fn check_request(&self, model: &Model, request: &Request) -> Result<(), EngineError> {
        let config = model.config();
        request.check(config.vocab_size, self.longest_context(config)?)?;
        request.check_pooling(model)
    }

    /// How the model computes in `precision`.
    pub(super) fn numerics(&self, precision: Precision) -> Numerics {
        let &EngineOptions { accumulate, batch_invariant, fusion, attention, kv, .. } = self;
        let weights = match self.precision {
            PrecisionChoice::Fp8 => WeightStorage::Fp8,
            PrecisionChoice::Auto if !self.device.runs_kernels() => WeightStorage::AsStored,
            PrecisionChoice::Auto if self.gemm == Gemm::Halfwarp => WeightStorage::Tiles,
            _ => WeightStorage::Dense,
        };
        let activations = match weights {
            WeightStorage::Tiles | WeightStorage::Fp8
                if self.device.multiplies_fp8(self.target) =>
            {
                ActivationStorage::Fp8
            }
            _ => ActivationStorage::Operand,
        };
        Numerics {
            precision,
            weights,
            activations,
            accumulate,
            batch_invariant,
            fusion,
            attention,
            kv,
        }
    }

    /// Tokens of a step, of a model with `num_weights` weights.
    pub(super) fn max_tokens_for(&self, num_weights: usize, is_causal: bool) -> usize {
        match self.max_tokens {
            Some(max_tokens) => max_tokens,
            None if self.device == Device::Emulated => MAX_TOKENS,
            None if self.device.runs_kernels() && is_causal => Self::GPU_MAX_TOKENS,
            None if self.device.runs_kernels() => GPU_ENCODER_TOKENS,
            None => cpu_tokens(num_weights, rayon::current_num_threads()),
        }
    }

    /// Tokens of the next smaller step than one of `max_tokens`, for which the memory is too short;
    /// none if the options name the size, or it is small already.
    pub(super) fn smaller_step(&self, max_tokens: usize) -> Option<usize> {
        (self.max_tokens.is_none() && max_tokens > MAX_TOKENS).then_some(max_tokens / 2)
    }

    /// Tokens of the smallest step that [`EngineOptions::smaller_step`] comes to from `max_tokens`.
    pub(super) fn smallest_step(&self, max_tokens: usize) -> usize {
        self.smaller_step(max_tokens).map_or(max_tokens, |smaller| self.smallest_step(smaller))
    }

    /// Which kernels run on a GPU.
    pub(super) fn gpu(&self) -> GpuOptions {
        let &EngineOptions { gemm, collectives, target, ref cubin_dir, .. } = self;
        GpuOptions { gemm, collectives, target, cubin_dir: cubin_dir.clone() }
    }

    /// Pages of the cache, for sequences of `context` positions. Sizes are held in 32 bits, as step
    /// inputs are: the memory budget counts with no larger ones.
    pub(super) fn num_pages(&self, context: usize) -> Result<usize, EngineError> {
        let positions = match self.cache_positions {
            Some(positions) => positions.max(context),
            None => context.next_multiple_of(PAGE_SIZE).saturating_mul(self.max_seqs.max(1)),
        };
        let sizes = [("sequences", self.max_seqs), ("positions of the cache", positions)];
        match sizes.into_iter().find(|&(_, asked)| u32::try_from(asked).is_err()) {
            Some((what, asked)) => Err(EngineError::TooMany { what, asked }),
            None => Ok(positions.div_ceil(PAGE_SIZE)),
        }
    }

    /// Tokens after which it is worth a step of its own to keep a recurrent state: on a GPU such a
    /// step of few tokens takes as long as hundreds in a prompt.
    pub(super) fn snapshot_distance(&self) -> usize {
        match self.device.cuda_ordinal() {
            Some(_) => 8 * PAGE_SIZE,
            None => PAGE_SIZE,
        }
    }

    /// [`EngineOptions::look_ahead`].
    pub(super) fn looks_ahead(&self) -> bool {
        self.look_ahead.unwrap_or(self.device.cuda_ordinal().is_some())
    }

    /// Whether the share of the memory is one.
    pub(super) fn check_utilization(&self) -> Result<(), EngineError> {
        match self.gpu_memory_utilization {
            share if share > 0.0 && share <= 1.0 => Ok(()),
            asked => Err(EngineError::Utilization { asked }),
        }
    }

    /// The context of these options, or the longest that the memory may be asked for.
    pub(super) fn longest_context(&self, config: &Config) -> Result<usize, EngineError> {
        let max = match self.max_tokens {
            // A text is read in one step.
            Some(max_tokens) if !config.is_causal => config.max_position_embeddings.min(max_tokens),
            _ => config.max_position_embeddings,
        };
        match self.context {
            None => Ok(config.ropes.iter().fold(max, |len, rope| match rope.scaling {
                RopeScaling::LongRope { original_max_position_embeddings: trained, .. } => {
                    len.min(trained.max(DEFAULT_CONTEXT))
                }
                _ => len,
            })),
            Some(0) => Ok(max),
            Some(asked) if asked > max => Err(EngineError::Context { asked, max }),
            Some(asked) => Ok(asked),
        }
    }
}

/// A power of two of tokens that `num_threads` threads compute in about a second.
fn cpu_tokens(num_weights: usize, num_threads: usize) -> usize {
    let flop_per_token = 2.0 * num_weights.max(1) as f64;
    let tokens = CPU_FLOP_PER_THREAD * num_threads as f64 / flop_per_token;
    let tokens = (tokens as usize).clamp(MIN_TOKENS, MAX_TOKENS);
    1 << tokens.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_on_the_cpu_takes_about_a_second() {
        for (num_weights, num_threads, tokens) in
            [(135e6, 2, 256), (494e6, 2, 128), (1e9, 16, 256), (7e9, 2, 128), (135e6, 64, 512)]
        {
            assert_eq!(cpu_tokens(num_weights as usize, num_threads), tokens, "{num_weights}");
        }
        let exact = EngineOptions { max_tokens: Some(7), ..Default::default() };
        assert_eq!(exact.max_tokens_for(1 << 30, true), 7);
        assert_eq!(exact.smaller_step(4096), None);
        for (device, is_causal, tokens) in [
            (Device::Emulated, true, 512),
            (Device::Emulated, false, 512),
            (Device::Cuda(0), true, 4096),
            (Device::Cuda(0), false, 16_384),
        ] {
            let gpu = EngineOptions { device, ..Default::default() };
            assert_eq!(gpu.max_tokens_for(1 << 30, is_causal), tokens);
        }
    }

    #[test]
    fn weights_stay_in_blocks_unless_a_type_is_named() {
        let weights = |device, precision| {
            let options = EngineOptions { device, precision, ..Default::default() };
            options.numerics(Precision::F32).weights
        };
        assert_eq!(weights(Device::Cpu, PrecisionChoice::Auto), WeightStorage::AsStored);
        assert_eq!(weights(Device::Cpu, Precision::F32.into()), WeightStorage::Dense);
        for device in [Device::Emulated, Device::Cuda(0)] {
            assert_eq!(weights(device, PrecisionChoice::Auto), WeightStorage::Tiles);
            assert_eq!(weights(device, Precision::F16.into()), WeightStorage::Dense);
        }
        for device in [Device::Cpu, Device::Emulated] {
            assert_eq!(weights(device, PrecisionChoice::Fp8), WeightStorage::Fp8);
        }
        let gemm = Gemm::Cublas;
        let cublas = EngineOptions { device: Device::Cuda(0), gemm, ..Default::default() };
        assert_eq!(cublas.numerics(Precision::F16).weights, WeightStorage::Dense);
    }

    #[test]
    fn rows_are_rounded_where_tensor_cores_multiply_e4m3() {
        let activations = |device, precision, target| {
            let options = EngineOptions { device, precision, target, ..Default::default() };
            options.numerics(Precision::F16).activations
        };
        let (fp8, operand) = (ActivationStorage::Fp8, ActivationStorage::Operand);
        let choice = PrecisionChoice::Fp8;
        assert_eq!(activations(Device::Emulated, choice, None), fp8);
        assert_eq!(activations(Device::Emulated, PrecisionChoice::Auto, None), fp8);
        assert_eq!(activations(Device::Emulated, choice, Some(Target::Sm80)), operand);
        assert_eq!(activations(Device::Emulated, Precision::F16.into(), None), operand);
        assert_eq!(activations(Device::Cpu, choice, None), operand);
    }

    /// Beyond the context of its training LongRoPE computes every position in another way.
    #[test]
    fn longrope_is_asked_for_its_trained_context() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
        let mut config = Model::open(golden).unwrap().config().clone();
        let longest = |config: &Config, context| {
            EngineOptions { context, ..Default::default() }.longest_context(config).unwrap()
        };
        config.max_position_embeddings = 131_072;
        assert_eq!(longest(&config, None), 131_072);
        for (trained, default) in [(8192, 8192), (100, 4096)] {
            config.ropes[0].scaling = RopeScaling::LongRope {
                short_factor: vec![],
                long_factor: vec![],
                attention_factor: 1.0,
                original_max_position_embeddings: trained,
            };
            let contexts = [None, Some(0), Some(20_000)].map(|asked| longest(&config, asked));
            assert_eq!(contexts, [default, 131_072, 20_000]);
        }
    }

    #[test]
    fn steps_become_smaller_down_to_what_every_gpu_has_room_for() {
        let options = EngineOptions { device: Device::Cuda(0), ..Default::default() };
        let steps = std::iter::successors(Some(4096), |&tokens| options.smaller_step(tokens));
        assert_eq!(steps.collect::<Vec<_>>(), [4096, 2048, 1024, 512]);
        assert_eq!(options.smallest_step(4096), 512);
    }
}
