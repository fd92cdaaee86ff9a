//! Which model runs, and on what.

use super::{choices, failure::Failure, pull, terminal};
use halfwarp::exec::{Collectives, GpuOptions, default_cubin_dir};
use halfwarp::profile::Roofline;
use halfwarp::{
    Accumulate, AttentionForm, CacheType, Device, Engine, EngineError, EngineOptions, Fusion, Gemm,
    KvStorage, Model, ModelOverrides, Precision, PrecisionChoice, Request, Target, exec::cuda,
    models,
};
use std::{num::NonZeroUsize, ops::ControlFlow, path::PathBuf, sync::Arc};

/// The arguments that name a model.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A Hugging Face directory, a .gguf file, or the name of a fetched or pulled model [default:
    /// smollm2-135m-instruct]
    #[arg(short, long, value_hint = clap::ValueHint::AnyPath)]
    model: Option<PathBuf>,
    /// A model of the Hugging Face Hub, pulled if it is not in the cache; -hf is the same
    #[arg(long, alias = "hf-repo", value_name = "ORG/NAME[:QUANT]", conflicts_with = "model")]
    hf: Option<String>,
}

/// The arguments that say how a model runs.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Device")]
pub struct EngineArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the context, prompt and answer together; 0 for the model's own [default: the
    /// model's, or what the memory has room for]
    #[arg(short, long = "ctx-size", value_name = "CTX", help_heading = "Model")]
    pub context: Option<usize>,
    /// Where to run: auto, cpu, cuda, cuda:N, cuda:N,M (GPUs that share the model), or emulated
    /// (the GPU kernels on the CPU, checked: slow)
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Threads of the CPU [default: one for each core]
    #[arg(short, long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Type of KV cache and operands, and that weights are converted to: auto keeps blocks as they
    /// are stored, and on the CPU 16 bits. Accumulators, norms and softmax are f32 in every type
    #[arg(long, value_parser = choices::dtype(), default_value = "auto")]
    dtype: PrecisionChoice,
    /// How keys are stored [default: in the type of --dtype]
    #[arg(long, value_parser = choices::cache_type(), value_name = "TYPE")]
    cache_type_k: Option<CacheType>,
    /// How values are stored, likewise
    #[arg(long, value_parser = choices::cache_type(), value_name = "TYPE")]
    cache_type_v: Option<CacheType>,
    /// How keys and values are stored: vLLM's name for both options
    #[arg(
        long,
        value_parser = choices::cache_type(),
        value_name = "TYPE",
        hide_possible_values = true,
        conflicts_with_all = ["cache_type_k", "cache_type_v"]
    )]
    kv_cache_dtype: Option<CacheType>,
    /// GPUs that share the model, from the chosen one on: each has its heads, columns of the MLP
    /// and logits [default: as many as --device names]
    #[arg(long, visible_alias = "tp", value_name = "N")]
    tensor_parallel_size: Option<NonZeroUsize>,
    /// Which kernels add over GPUs that share the model
    #[arg(long, value_parser = choices::collectives(), default_value = "auto")]
    collectives: Collectives,
    /// Which GEMM kernels run the linear layers on a GPU
    #[arg(long, value_parser = choices::gemm(), default_value = "halfwarp")]
    gemm: Gemm,
    /// Accumulators of f16 GEMMs with more than 16 rows, on a GPU
    #[arg(long, value_parser = choices::accumulate(), default_value = "f32")]
    accumulate: Accumulate,
    /// Target of the GPU kernels [default: the newest that the device runs]
    #[arg(long, value_parser = choices::target())]
    target: Option<Target>,
    /// Share of the GPU's memory that this process may take: without -c the KV cache takes what the
    /// model leaves of it, up to the model's context. On the CPU, of the memory that is available
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    gpu_memory_utilization: f64,
    /// The same logits, bit for bit, whatever else is in the batch and however a prompt is chunked
    #[arg(long)]
    pub batch_invariant: bool,
    /// Fused kernels: on, off, or those that are on:
    /// norm_gemm,gemm_swiglu,rope_append,residual,qk_norm,shared_expert
    #[arg(long, value_name = "FUSION", default_value_t = Fusion::ALL)]
    fusion: Fusion,
    /// How attention is computed
    #[arg(long, value_parser = choices::attention(), default_value = "flash")]
    attention: AttentionForm,
}

/// The sizes of an engine that serves, as [`EngineOptions`] has them; `max_seqs` is 64 on a GPU and
/// else 8 by default.
#[cfg(feature = "server")]
pub struct Serving {
    pub max_seqs: Option<usize>,
    pub max_tokens: Option<usize>,
    pub long_prefill_token_threshold: Option<NonZeroUsize>,
    pub cache_positions: Option<usize>,
}

impl ModelArgs {
    /// Opens the model: its configuration, its tokenizer, and where its weights are.
    ///
    /// # Errors
    /// [`Failure::Input`] for a model that is not found or cannot be used.
    pub fn open(&self) -> Result<Arc<Model>, Failure> {
        self.open_with(&ModelOverrides::default())
    }

    /// Opens the model, with `overrides` in the place of what is its own.
    ///
    /// # Errors
    /// As [`ModelArgs::open`].
    pub fn open_with(&self, overrides: &ModelOverrides) -> Result<Arc<Model>, Failure> {
        let model = Model::open_with(self.path()?, overrides)?;
        for warning in model.text().into_iter().flat_map(|text| &text.warnings) {
            terminal::note(format_args!("warning: {warning}"));
        }
        Ok(Arc::new(model))
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        match (&self.model, &self.hf) {
            (_, Some(model)) => pull::find_or_pull(model),
            (Some(model), None) => Ok(models::resolve(model)?),
            (None, None) => Ok(models::default_model()?),
        }
    }

    /// The name of the model's directory, or of its file without the extension; `NAME` for
    /// safetensors that were pulled.
    ///
    /// # Errors
    /// [`Failure::Input`] for a model that is not found.
    pub fn name(&self) -> Result<String, Failure> {
        let path = self.path()?;
        let path = std::path::absolute(&path).unwrap_or(path);
        let is_dir = path.is_dir();
        if let Some(repo) = hub::RepoId::from_snapshot(&path).filter(|_| is_dir) {
            return Ok(repo.name().to_owned());
        }
        let split = path.file_name().and_then(|name| models::split_name(name.to_str()?));
        if let Some(name) = split.filter(|_| !is_dir) {
            return Ok(name.to_owned());
        }
        let name = if is_dir { path.file_name() } else { path.file_stem() };
        Ok(name.unwrap_or(path.as_os_str()).to_string_lossy().into_owned())
    }
}

/// Starts the threads of the CPU: one for each core, if their number is not given.
///
/// # Errors
/// [`Failure::Environment`] if the system refuses them.
pub fn start_threads(num_threads: Option<NonZeroUsize>) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(usize::MAX, NonZeroUsize::get);
    if let Some(threads) = num_threads.map(NonZeroUsize::get).filter(|threads| *threads > cores) {
        terminal::note(format_args!(
            "warning: {threads} threads share {cores} cores and wait for each other: -t {cores} is faster"
        ));
    }
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(num_threads.map_or(0, NonZeroUsize::get))
        .build_global();
    pool.map_err(|error| Failure::Environment(format!("cannot start threads: {error}")))
}

impl EngineArgs {
    /// Starts the threads, and opens the model.
    ///
    /// # Errors
    /// [`Failure::Environment`] if the system refuses the threads; [`Failure::Input`] as
    /// [`ModelArgs::open`].
    pub fn open_model(&self) -> Result<Arc<Model>, Failure> {
        self.open_model_with(&ModelOverrides::default())
    }

    /// Starts the threads, and opens the model as [`ModelArgs::open_with`].
    ///
    /// # Errors
    /// As [`EngineArgs::open_model`].
    pub fn open_model_with(&self, overrides: &ModelOverrides) -> Result<Arc<Model>, Failure> {
        start_threads(self.threads)?;
        let model = self.model.open_with(overrides)?;
        for ignored in &model.generation_config().ignored {
            terminal::note(format_args!("warning: {ignored}"));
        }
        Ok(model)
    }

    /// Loads `model` on the device, if it can take `request`.
    ///
    /// # Errors
    /// [`Failure::Input`] for a request or options that are wrong, [`Failure::Environment`] for no
    /// memory or device.
    pub fn engine_for(&self, request: &Request, model: &Arc<Model>) -> Result<Engine, Failure> {
        self.options(self.context).check_request(model, request)?;
        self.engine(model, self.context)
    }

    /// Whether a model is named, and not the default meant.
    #[cfg(feature = "server")]
    pub fn names_model(&self) -> bool {
        self.model.model.is_some() || self.model.hf.is_some()
    }

    /// The model as it is named, where one is.
    pub fn given_name(&self) -> Option<String> {
        self.model.model.as_ref().map(|name| name.to_string_lossy().into_owned())
    }

    /// Starts the threads of the CPU, as [`start_threads`].
    ///
    /// # Errors
    /// As [`start_threads`].
    #[cfg(feature = "server")]
    pub fn start_threads(&self) -> Result<(), Failure> {
        start_threads(self.threads)
    }

    /// The name of the model's directory, or of its file without the extension.
    ///
    /// # Errors
    /// [`Failure::Input`] for a model that is not found.
    pub fn model_name(&self) -> Result<String, Failure> {
        self.model.name()
    }

    /// The same, in another type.
    pub fn in_dtype(&self, dtype: PrecisionChoice) -> Self {
        EngineArgs { dtype, ..self.clone() }
    }

    /// The limits of the device, by measurement, with operands of `precision`.
    ///
    /// # Errors
    /// [`Failure::Environment`] for no memory or device.
    pub fn roofline(&self, precision: Precision) -> Result<Roofline, Failure> {
        let EngineArgs { gemm, target, .. } = *self;
        let options =
            GpuOptions { gemm, target, cubin_dir: default_cubin_dir(), ..GpuOptions::default() };
        Ok(Roofline::measure(self.device, &options, precision)?)
    }

    /// The name of the GPU that runs the model, if one does.
    ///
    /// # Errors
    /// [`Failure::Environment`] if the driver does not say it.
    pub fn gpu_name(&self) -> Result<Option<String>, Failure> {
        match self.device.cuda_ordinal() {
            Some(ordinal) => Ok(Some(cuda::free_memory(ordinal)?.device)),
            None => Ok(None),
        }
    }

    /// What `engine` computes in: `f16_acc16` where it also accumulates in f16. Where most weights
    /// are kept in blocks, their format: `q4_k`.
    ///
    /// # Errors
    /// [`Failure::Input`] for a model that has no plan.
    pub fn dtype_name(&self, engine: &Engine) -> Result<String, Failure> {
        let (precision, numerics) = (engine.precision(), engine.numerics());
        let storage = engine.model().weight_dtype(numerics).map_err(EngineError::from)?;
        Ok(match (storage, self.accumulate, self.gemm) {
            (Some(storage), ..) if storage.is_fp8() || storage.block_elems() > 1 => {
                storage.to_string().to_lowercase()
            }
            (_, Accumulate::F16, _) | (.., Gemm::CublasF16) => format!("{precision}_acc16"),
            _ => precision.to_string(),
        })
    }

    /// Loads `model` for `max_seqs` sequences of `context` positions at once, in steps of at most
    /// `max_tokens` tokens if that is given.
    ///
    /// # Errors
    /// As [`EngineArgs::engine_for`].
    pub fn engine_of(
        &self,
        model: &Arc<Model>,
        context: usize,
        max_seqs: usize,
        max_tokens: Option<usize>,
    ) -> Result<Engine, Failure> {
        load(model, EngineOptions { max_seqs, max_tokens, ..self.options(Some(context)) })
    }

    /// Loads `model` for so many positions of so many sequences, with a cache of `positions`, if
    /// they are given, in place of full contexts.
    ///
    /// # Errors
    /// As [`EngineArgs::engine_for`].
    pub fn engine_with_cache(
        &self,
        model: &Arc<Model>,
        (context, max_seqs): (usize, usize),
        positions: Option<usize>,
    ) -> Result<Engine, Failure> {
        let options = self.options(Some(context));
        load(model, EngineOptions { max_seqs, cache_positions: positions, ..options })
    }

    /// Loads `model` for one sequence, in whose steps the input of each tensor is seen.
    ///
    /// # Errors
    /// As [`EngineArgs::engine_for`].
    pub fn observed_engine(&self, model: &Arc<Model>, len: usize) -> Result<Engine, Failure> {
        let mut options = EngineOptions { max_seqs: 1, ..self.options(Some(len)) };
        options.max_tokens = Some(len);
        options.fusion.shared_expert = false;
        load(model, options)
    }

    /// Loads `model` to serve many sequences at once.
    ///
    /// # Errors
    /// As [`EngineArgs::engine_for`].
    #[cfg(feature = "server")]
    pub fn serving_engine(&self, model: &Arc<Model>, sizes: Serving) -> Result<Engine, Failure> {
        load(model, self.serving_options(sizes))
    }

    /// How an engine is set up that serves many sequences at once.
    #[cfg(feature = "server")]
    pub fn serving_options(&self, sizes: Serving) -> EngineOptions {
        let default = if self.device.runs_kernels() { 64 } else { 8 };
        let Serving { max_seqs, max_tokens, long_prefill_token_threshold, cache_positions } = sizes;
        EngineOptions {
            max_seqs: max_seqs.unwrap_or(default),
            max_tokens,
            long_prefill_token_threshold,
            cache_positions,
            ..self.options(self.context)
        }
    }

    /// Loads `model` for sequences of `context` positions.
    ///
    /// # Errors
    /// As [`EngineArgs::engine_for`].
    pub fn engine(&self, model: &Arc<Model>, context: Option<usize>) -> Result<Engine, Failure> {
        load(model, self.options(context))
    }

    fn options(&self, context: Option<usize>) -> EngineOptions {
        EngineOptions {
            device: self.device,
            tensor_parallel_size: self.tensor_parallel_size.unwrap_or_else(|| {
                NonZeroUsize::new(self.device.num_named()).unwrap_or(NonZeroUsize::MIN)
            }),
            collectives: self.collectives,
            precision: self.dtype,
            gemm: self.gemm,
            accumulate: self.accumulate,
            target: self.target,
            batch_invariant: self.batch_invariant,
            gpu_memory_utilization: self.gpu_memory_utilization,
            fusion: self.fusion,
            attention: self.attention,
            kv: KvStorage {
                k: self.cache_type_k.or(self.kv_cache_dtype),
                v: self.cache_type_v.or(self.kv_cache_dtype),
            },
            context,
            ..EngineOptions::default()
        }
    }
}

/// With a progress bar on stderr, and what the user should know about the result.
fn load(model: &Arc<Model>, options: EngineOptions) -> Result<Engine, Failure> {
    let bar = terminal::loading_bar();
    let report = |done, total| {
        bar(done, total);
        ControlFlow::Continue(())
    };
    let engine = Engine::with_progress(Arc::clone(model), options, report)?;
    for note in engine.notes() {
        terminal::note(note);
    }
    Ok(engine)
}
