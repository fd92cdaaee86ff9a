//! The command line.

use crate::backend::BackendOptions;
use clap::ValueEnum;
use dynamo_backend_common::{CommonArgs, DisaggregationMode, WorkerConfig};
use halfwarp::weights::Origin;
use halfwarp::{
    CacheType, Device, EngineOptions, KvStorage, Model, OpenError, Precision, PrecisionChoice,
};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;

/// What the frontend reads besides config.json: without one of these it never offers the model, and says so in its log alone.
const FRONTEND_FILES: [&str; 2] = ["tokenizer.json", "tokenizer_config.json"];

/// Serves a model as a worker of NVIDIA Dynamo: `python -m dynamo.frontend` is what clients talk to.
#[derive(clap::Parser, Debug)]
#[command(name = "halfwarp-dynamo", version)]
pub struct Args {
    /// A Hugging Face directory. The frontend reads config.json, tokenizer.json and tokenizer_config.json there
    #[arg(short, long, value_name = "DIR")]
    model: PathBuf,
    /// What clients call the model [default: the name of its directory]
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Tokens of the context, prompt and answer together; 0 for the model's own [default: the model's, or what the memory has
    /// room for]
    #[arg(short, long = "ctx-size", value_name = "CTX")]
    context: Option<usize>,
    /// Where to run: auto, cpu, cuda, cuda:N, cuda:N,M (GPUs that share the model)
    #[arg(long, default_value = "auto")]
    device: Device,
    /// GPUs that share the model, from the chosen one on [default: as many as --device names]
    #[arg(long, visible_alias = "tp", value_name = "N")]
    tensor_parallel_size: Option<NonZeroUsize>,
    /// Type of operands, and that weights are converted to
    #[arg(long, value_enum, default_value_t = Dtype::Auto)]
    dtype: Dtype,
    /// How keys and values are stored [default: in the type of --dtype]
    #[arg(long, value_enum, value_name = "TYPE")]
    kv_cache_dtype: Option<KvDtype>,
    /// Requests that run at once [default: 64 on a GPU, else 8]
    #[arg(long, value_name = "N")]
    max_num_seqs: Option<NonZeroUsize>,
    /// Tokens of a step, of all requests together [default: 4096 on a GPU, less where its memory is short or on a CPU]
    #[arg(long, value_name = "N")]
    max_num_batched_tokens: Option<NonZeroUsize>,
    /// Tokens that the KV cache holds, of all requests together [default: room for --max-num-seqs contexts; without -c as much
    /// of that as the memory has]
    #[arg(long, value_name = "N")]
    kv_cache_tokens: Option<NonZeroUsize>,
    /// Share of the device's memory that this process may take
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    gpu_memory_utilization: f64,
    /// The same logits, bit for bit, whatever else is in the batch
    #[arg(long)]
    batch_invariant: bool,
    #[command(flatten, next_help_heading = "Dynamo")]
    common: CommonArgs,
}

/// A type to compute in.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Dtype {
    /// The fastest type that keeps the model's accuracy on the device
    Auto,
    F32,
    F16,
    Bf16,
    /// Linear layers' weights in E4M3, all else in f16
    Fp8,
}

impl From<Dtype> for PrecisionChoice {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Auto => PrecisionChoice::Auto,
            Dtype::F32 => Precision::F32.into(),
            Dtype::F16 => Precision::F16.into(),
            Dtype::Bf16 => Precision::BF16.into(),
            Dtype::Fp8 => PrecisionChoice::Fp8,
        }
    }
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum KvDtype {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(alias = "fp8_e4m3")]
    Fp8,
    #[value(name = "q4_0")]
    Q4_0,
}

impl From<KvDtype> for CacheType {
    fn from(dtype: KvDtype) -> Self {
        match dtype {
            KvDtype::F32 => CacheType::F32,
            KvDtype::F16 => CacheType::F16,
            KvDtype::Bf16 => CacheType::BF16,
            KvDtype::Q8_0 => CacheType::Q8_0,
            KvDtype::Fp8 => CacheType::Fp8,
            KvDtype::Q4_0 => CacheType::Q4_0,
        }
    }
}

/// What is wrong with a command line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArgsError {
    /// There is no such model, or it cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Not what Dynamo's frontend can read.
    #[error(
        "{}: a GGUF file has no config.json and tokenizer.json, which Dynamo's frontend reads\n\
         give a Hugging Face directory with safetensors",
        .0.display()
    )]
    Gguf(PathBuf),
    /// A file that the frontend cannot do without.
    #[error("{}: there is no {file}, which Dynamo's frontend reads", dir.display())]
    NoFile {
        /// The model's directory.
        dir: PathBuf,
        /// The name of the file.
        file: &'static str,
    },
    /// A role that this worker does not have.
    #[error(
        "--disaggregation-mode {0}: halfwarp has no transfer of keys and values between workers\n\
         leave the option out: every worker computes prompts and answers"
    )]
    Disaggregated(String),
    /// A part of Dynamo that this worker does not take part in.
    #[error("{0}: halfwarp does not support it, leave the option out")]
    Unsupported(&'static str),
}

impl Args {
    /// Opens the model, without its weights: what the backend and Dynamo's runtime are started with.
    ///
    /// # Errors
    /// One of each variant of [`ArgsError`].
    pub fn open(self) -> Result<(BackendOptions, WorkerConfig), ArgsError> {
        self.check()?;
        let model = Arc::new(Model::open(&self.model)?);
        let dir = match model.checkpoint().origin() {
            Origin::HuggingFace { dir, .. } => absolute(dir).unwrap_or_else(|_| dir.clone()),
            _ => return Err(ArgsError::Gguf(self.model)),
        };
        if let Some(&file) = FRONTEND_FILES.iter().find(|file| !dir.join(file).is_file()) {
            return Err(ArgsError::NoFile { dir, file });
        }
        let engine = self.engine_options();
        let model_name = self.served_model_name.unwrap_or_else(|| name_of(&dir));
        let path = dir.to_string_lossy().into_owned();
        let config = worker_config(self.common, path, &model_name);
        Ok((BackendOptions { model, model_name, engine }, config))
    }

    fn check(&self) -> Result<(), ArgsError> {
        let CommonArgs { disaggregation_mode, route_to_encoder, enable_rl, .. } = &self.common;
        if *disaggregation_mode != DisaggregationMode::Aggregated {
            return Err(ArgsError::Disaggregated(disaggregation_mode.to_string()));
        }
        match () {
            () if *route_to_encoder => Err(ArgsError::Unsupported("--route-to-encoder")),
            () if *enable_rl => Err(ArgsError::Unsupported("--enable-rl")),
            () => Ok(()),
        }
    }

    fn engine_options(&self) -> EngineOptions {
        let default_seqs = if self.device.runs_kernels() { 64 } else { 8 };
        let kv = self.kv_cache_dtype.map(CacheType::from);
        EngineOptions {
            device: self.device,
            tensor_parallel_size: self.tensor_parallel_size.unwrap_or_else(|| {
                NonZeroUsize::new(self.device.num_named()).unwrap_or(NonZeroUsize::MIN)
            }),
            precision: self.dtype.into(),
            batch_invariant: self.batch_invariant,
            kv: KvStorage { k: kv, v: kv },
            context: self.context,
            max_seqs: self.max_num_seqs.map_or(default_seqs, NonZeroUsize::get),
            max_tokens: self.max_num_batched_tokens.map(NonZeroUsize::get),
            cache_positions: self.kv_cache_tokens.map(NonZeroUsize::get),
            gpu_memory_utilization: self.gpu_memory_utilization,
            ..EngineOptions::default()
        }
    }
}

fn name_of(dir: &Path) -> String {
    dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned()
}

fn worker_config(common: CommonArgs, model_path: String, model_name: &str) -> WorkerConfig {
    WorkerConfig {
        namespace: common.namespace,
        component: common.component,
        endpoint: common.endpoint,
        endpoint_types: common.endpoint_types,
        custom_jinja_template: common.custom_jinja_template,
        tool_call_parser: common.dyn_tool_call_parser,
        reasoning_parser: common.dyn_reasoning_parser,
        exclude_tools_when_tool_choice_none: common.exclude_tools_when_tool_choice_none,
        runtime: common.runtime,
        model_name: model_path,
        served_model_name: Some(model_name.to_owned()),
        metrics_labels: vec![("model".to_owned(), model_name.to_owned())],
        ..WorkerConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    const GOLDENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens");

    fn args(words: &[&str]) -> Args {
        let words = ["halfwarp-dynamo", "-m"].iter().chain(words);
        Args::try_parse_from(words).unwrap()
    }

    fn error(words: &[&str]) -> String {
        args(words).open().err().unwrap().to_string()
    }

    #[test]
    fn what_cannot_be_served_is_said_in_two_lines() {
        let (hf, gguf) = (format!("{GOLDENS}/llama-gqa"), format!("{GOLDENS}/gguf/qwen3.gguf"));
        for (words, why) in [
            (&["/nope"][..], "no such file"),
            (&[&gguf], "a GGUF file has no config.json"),
            (&[&hf], "there is no tokenizer.json"),
            (&[&hf, "--disaggregation-mode", "prefill"], "no transfer of keys and values"),
            (&[&hf, "--enable-rl"], "--enable-rl"),
        ] {
            let message = error(words);
            assert!(message.contains(why) && message.lines().count() <= 2, "{message}");
        }
    }

    #[test]
    fn options_reach_the_engine() {
        let open = args(&["m", "--device", "cpu"]).engine_options();
        assert_eq!((open.max_seqs, open.context, open.max_tokens), (8, None, None));
        let named = args(&[
            "m",
            "--device",
            "cuda:1",
            "--tp",
            "2",
            "-c",
            "100",
            "--dtype",
            "bf16",
            "--kv-cache-dtype",
            "q8_0",
            "--max-num-batched-tokens",
            "512",
            "--kv-cache-tokens",
            "4096",
        ])
        .engine_options();
        assert_eq!((named.device, named.tensor_parallel_size.get()), (Device::Cuda(1), 2));
        assert_eq!((named.context, named.max_tokens), (Some(100), Some(512)));
        assert_eq!((named.max_seqs, named.cache_positions), (64, Some(4096)));
        assert_eq!(named.precision, Precision::BF16.into());
        assert_eq!(named.kv.k, Some(CacheType::Q8_0));
    }
}
