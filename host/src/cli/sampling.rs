//! How the next token is chosen, and when an answer ends. Names are llama.cpp's.

use clap::builder::NonEmptyStringValueParser;
use halfwarp::{GenerationConfig, Model, Request, Sampling};
use rand::RngExt;
use serde_json::{Map, Value};
use std::str::FromStr;

/// The values that a model may come with. Where none is given, its generation_config.json or GGUF metadata says it.
#[derive(clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct ValuesArgs {
    /// Temperature; 0 always takes the most likely token [default: the model's, else 0.8, or 1 in serve]
    #[arg(long, visible_alias = "temperature", value_name = "T", allow_negative_numbers = true)]
    temp: Option<f32>,
    /// Choose among the K most likely tokens; 0 for all [default: the model's, else 40, or 0 in serve]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Choose among the most likely tokens that together have probability P [default: the model's, else 0.95, or 1 in serve]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Choose among tokens at least P times as likely as the most likely one [default: the model's, else 0.05, or 0 in serve]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Divide the logits of tokens in the prompt and the answer by X; 1 is off [default: the model's, else 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
}

impl ValuesArgs {
    /// The values that are given.
    pub fn values(&self) -> GenerationConfig {
        let mut values = GenerationConfig::default();
        values.temperature = self.temp;
        values.top_k = self.top_k;
        values.top_p = self.top_p;
        values.min_p = self.min_p;
        values.repetition_penalty = self.repeat_penalty;
        values
    }
}

/// The arguments of sampling.
#[derive(clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    #[command(flatten)]
    values: ValuesArgs,
    /// Subtract X from the logit of each token that the answer has already, -2 to 2 [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtract X times the count of a token in the answer from its logit, -2 to 2 [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Add BIAS to the logit of token ID (-100 to 100, or -inf to forbid it); repeat it for more
    #[arg(long, value_name = "ID=BIAS")]
    logit_bias: Vec<LogitBias>,
    /// The same seed gives the same text [default: a new one each time]
    #[arg(short, long, value_name = "N")]
    seed: Option<u64>,
    /// Tokens to generate at most; -1 for as many as the context holds [default: -1]
    #[arg(
        short,
        long = "n-predict",
        visible_alias = "predict",
        value_name = "N",
        allow_negative_numbers = true
    )]
    n: Option<Limit>,
    /// End the answer before TEXT; repeat it for more
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
}

impl SamplingArgs {
    /// A request that continues `prompt`: the flags, then the model's values, then llama.cpp's.
    pub fn request(&self, model: &Model, prompt: Vec<u32>) -> Request {
        let default = model.generation_config().sampling(Sampling::LLAMA_CPP);
        let default = self.values.values().sampling(default);
        let sampling = Sampling {
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            logit_bias: self.logit_bias.iter().map(|bias| (bias.token, bias.bias)).collect(),
            seed: self.seed.unwrap_or_else(|| rand::rng().random::<u32>().into()),
            ..default
        };
        let max_new_tokens = self.n.and_then(|limit| limit.0);
        Request { max_new_tokens, sampling, ..model.request(prompt) }
    }

    /// The fields of a request to a server, of the flags that are given.
    pub fn fields(&self) -> Map<String, Value> {
        let values = self.values.values();
        let logit_bias =
            self.logit_bias.iter().map(|it| (it.token.to_string(), it.bias.max(-100.0).into()));
        let logit_bias: Map<String, Value> = logit_bias.collect();
        let fields = [
            ("temperature", values.temperature.map(Value::from)),
            ("top_k", values.top_k.map(Value::from)),
            ("top_p", values.top_p.map(Value::from)),
            ("min_p", values.min_p.map(Value::from)),
            ("repetition_penalty", values.repetition_penalty.map(Value::from)),
            ("presence_penalty", self.presence_penalty.map(Value::from)),
            ("frequency_penalty", self.frequency_penalty.map(Value::from)),
            ("logit_bias", Some(Value::from(logit_bias)).filter(|_| !self.logit_bias.is_empty())),
            ("seed", self.seed.map(Value::from)),
            ("max_tokens", self.limit().map(Value::from)),
            ("stop", Some(Value::from(self.stop.clone())).filter(|_| !self.stop.is_empty())),
        ];
        let given = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        given.collect()
    }

    /// Tokens of an answer at most, where there is a limit.
    pub fn limit(&self) -> Option<usize> {
        self.n.and_then(|limit| limit.0)
    }
}

/// `--n-predict`: a number of tokens; none for -1.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Limit(Option<usize>);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("-1", _) => Ok(Limit(None)),
            (_, Ok(limit)) => Ok(Limit(Some(limit))),
            _ => Err("expected a number of tokens, or -1 for no limit".to_owned()),
        }
    }
}

/// `--logit-bias`: `ID=BIAS`, or llama.cpp's `ID+BIAS` and `ID-BIAS`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LogitBias {
    token: u32,
    bias: f32,
}

impl FromStr for LogitBias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text.find(['=', '+', '-']).map(|at| text.split_at(at));
        let parsed = split.and_then(|(id, bias)| {
            let bias: f32 = bias.strip_prefix('=').unwrap_or(bias).parse().ok()?;
            Some(LogitBias { token: id.parse().ok()?, bias })
        });
        parsed.ok_or_else(|| "expected a token id and a number, such as 42=-1.5".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_is_written_in_our_way_or_llama_cpps() {
        let bias = |text: &str| text.parse::<LogitBias>().ok().map(|bias| (bias.token, bias.bias));
        assert_eq!(bias("42=1.5"), Some((42, 1.5)));
        assert_eq!(bias("42=-1.5"), Some((42, -1.5)));
        assert_eq!(bias("42+1"), Some((42, 1.0)));
        assert_eq!(bias("42-1"), Some((42, -1.0)));
        assert_eq!(bias("42-inf"), Some((42, f32::NEG_INFINITY)));
        for text in ["", "42", "=1", "42=", "42==1", "42=+-1", "x=1", "-1=2", "42=1,43=2"] {
            assert_eq!(bias(text), None, "{text:?}");
        }
    }

    #[test]
    fn minus_one_is_no_limit() {
        let limit = |text: &str| text.parse::<Limit>().ok().map(|limit| limit.0);
        assert_eq!(limit("-1"), Some(None));
        assert_eq!(limit("0"), Some(Some(0)));
        assert_eq!(limit("7"), Some(Some(7)));
        for text in ["-2", "", "x", "1.5"] {
            assert_eq!(limit(text), None, "{text:?}");
        }
    }
}
