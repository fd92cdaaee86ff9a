//! How the next token is chosen; names and defaults are llama.cpp's.

use halfwarp::Sampling;
use rand::RngExt;

/// The arguments of sampling.
#[derive(clap::Args)]
pub struct SamplingArgs {
    /// Temperature; 0 takes the most likely token
    #[arg(long, default_value_t = 0.8, value_name = "T")]
    temp: f32,
    /// Choose among the K most likely tokens; 0 for all
    #[arg(long, default_value_t = 40, value_name = "K")]
    top_k: usize,
    /// Choose among the most likely tokens that together have probability P
    #[arg(long, default_value_t = 0.95, value_name = "P")]
    top_p: f32,
    /// Choose among tokens at least P times as likely as the most likely one
    #[arg(long, default_value_t = 0.05, value_name = "P")]
    min_p: f32,
    /// Make tokens less likely that have been seen; 1 is off
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    repeat_penalty: f32,
    /// The same seed gives the same text [default: another one each time]
    #[arg(short, long, value_name = "N")]
    seed: Option<u64>,
}

impl SamplingArgs {
    /// What the engine is asked for.
    pub fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            seed: self.seed.unwrap_or_else(|| rand::rng().random::<u32>().into()),
            ..Sampling::default()
        }
    }
}
