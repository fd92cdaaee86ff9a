//! `halfwarp bench serve`: load on an OpenAI server, and what its clients see of it.

mod load;

use crate::cli::{failure::Failure, terminal};
use load::{Answer, Load};
use serde::Serialize;
use std::num::NonZeroUsize;
use std::time::Duration;

/// Arguments of `halfwarp bench serve`.
#[derive(clap::Args)]
pub struct BenchServeArgs {
    /// The server: halfwarp's or any other with OpenAI's /v1/completions, over http
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Name of the model [default: the first that the server lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Key of the server
    #[arg(long, value_name = "KEY", env = "HALFWARP_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Requests in all
    #[arg(long, value_name = "N", default_value = "200")]
    num_prompts: NonZeroUsize,
    /// Requests per second on average, arriving as a Poisson process [default: all at once]
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Requests at once at most
    #[arg(long, value_name = "N", default_value = "256")]
    concurrency: NonZeroUsize,
    /// Tokens of a prompt, which are random
    #[arg(long, value_name = "N", default_value = "512")]
    input_len: NonZeroUsize,
    /// Tokens of an answer, end-of-sequence tokens or not
    #[arg(long, value_name = "N", default_value = "128")]
    output_len: NonZeroUsize,
    /// Tokens at the beginning of a prompt that all prompts share
    #[arg(long, value_name = "N", default_value = "0")]
    prefix_len: usize,
    /// Temperature; 0 always takes the most likely token
    #[arg(long, visible_alias = "temperature", value_name = "T", default_value = "0")]
    temp: f32,
    /// Only the most likely tokens that together reach this probability
    #[arg(long, value_name = "P", default_value = "1")]
    top_p: f32,
    /// Only the K most likely tokens, which not every server knows [default: all]
    #[arg(long, value_name = "K")]
    top_k: Option<NonZeroUsize>,
    /// Seed of prompts, arrivals and answers
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Ask for token ids beside the texts, as halfwarp and vLLM give them: of a model with no tokenizer
    #[arg(long)]
    token_ids: bool,
    /// Print one JSON object, with the names of vLLM's `bench serve`
    #[arg(long)]
    jsonl: bool,
}

/// Sends the requests, and prints what came of them.
pub fn run(args: &BenchServeArgs) -> Result<(), Failure> {
    let wrong = |what: String| Err(Failure::Input(what));
    if let Some(rate) = args.rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
        return wrong(format!("--rate {rate}: it has to be above 0"));
    }
    if args.prefix_len > args.input_len.get() {
        return wrong(format!(
            "--prefix-len {}: --input-len is {}",
            args.prefix_len, args.input_len
        ));
    }
    let load = Load {
        base: args.url.trim_end_matches('/').to_owned(),
        api_key: args.api_key.clone(),
        num_prompts: args.num_prompts.get(),
        rate: args.rate,
        concurrency: args.concurrency.get(),
        input_len: args.input_len.get(),
        output_len: args.output_len.get(),
        prefix_len: args.prefix_len,
        temperature: args.temp,
        top_p: args.top_p,
        top_k: args.top_k.map(NonZeroUsize::get),
        seed: args.seed,
        token_ids: args.token_ids,
    };
    let model = match &args.model {
        Some(model) => model.clone(),
        None => load
            .first_model()
            .map_err(|why| Failure::Environment(format!("{}: {why}", args.url)))?,
    };
    let (answers, duration) = load.run(&model);
    let (answered, failed): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    let answered: Vec<Answer> = answered.into_iter().filter_map(Result::ok).collect();
    let report = Report::new(&answered, failed.len(), duration);
    if args.jsonl {
        let json = serde_json::to_string(&report).expect("numbers are JSON");
        terminal::print(&format!("{json}\n"))?;
    } else {
        terminal::print(&report.table())?;
    }
    match failed.into_iter().find_map(Result::err) {
        Some(why) => {
            let num_failed = report.failed;
            Err(Failure::Environment(format!("{num_failed} requests failed, the first: {why}")))
        }
        None => Ok(()),
    }
}

/// The figures of a run, under the names of vLLM's `bench serve`.
#[derive(Debug, Serialize)]
struct Report {
    duration: f64,
    completed: usize,
    failed: usize,
    total_input_tokens: usize,
    total_output_tokens: usize,
    request_throughput: f64,
    output_throughput: f64,
    total_token_throughput: f64,
    /// From sending a request to its first text.
    #[serde(rename = "ttft_ms")]
    first: Spread,
    /// From the first text to the last, over the tokens between.
    #[serde(rename = "tpot_ms")]
    per_token: Spread,
    /// Between one text and the next.
    #[serde(rename = "itl_ms")]
    between: Spread,
    /// From sending a request to the end of its answer.
    #[serde(rename = "e2el_ms")]
    whole: Spread,
}

/// Milliseconds over all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Spread {
    mean: f64,
    median: f64,
    p90: f64,
    p99: f64,
}

impl Spread {
    fn of(times: impl Iterator<Item = Duration>) -> Self {
        let mut ms: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
        if ms.is_empty() {
            return Spread::default();
        }
        ms.sort_by(f64::total_cmp);
        // The nearest rank.
        let rank =
            |share: f64| ms[((share * ms.len() as f64).ceil() as usize).clamp(1, ms.len()) - 1];
        let mean = ms.iter().sum::<f64>() / ms.len() as f64;
        Spread { mean, median: rank(0.5), p90: rank(0.9), p99: rank(0.99) }
    }
}

impl Report {
    fn new(answers: &[Answer], failed: usize, duration: Duration) -> Self {
        let seconds = duration.as_secs_f64();
        let sum = |tokens: fn(&Answer) -> usize| answers.iter().map(tokens).sum::<usize>();
        let total_input_tokens = sum(|answer| answer.prompt_tokens);
        let total_output_tokens = sum(|answer| answer.completion_tokens);
        let per_second = |count: usize| count as f64 / seconds;
        Report {
            duration: seconds,
            completed: answers.len(),
            failed,
            total_input_tokens,
            total_output_tokens,
            request_throughput: per_second(answers.len()),
            output_throughput: per_second(total_output_tokens),
            total_token_throughput: per_second(total_input_tokens + total_output_tokens),
            first: Spread::of(answers.iter().filter_map(Answer::first)),
            per_token: Spread::of(answers.iter().filter_map(Answer::per_token)),
            between: Spread::of(answers.iter().flat_map(Answer::between)),
            whole: Spread::of(answers.iter().map(|answer| answer.whole)),
        }
    }

    fn table(&self) -> String {
        let Report { duration, completed, failed, .. } = self;
        let mut table = format!(
            "requests        {completed} answered, {failed} failed, in {duration:.2} s\n\
             requests/s      {:.2}\n\
             tokens/s        {:.1} generated, {:.1} with prompts\n\n\
             ms                        mean   median      p90      p99\n",
            self.request_throughput, self.output_throughput, self.total_token_throughput
        );
        for (name, Spread { mean, median, p90, p99 }) in [
            ("first token (TTFT)", self.first),
            ("per token (TPOT)", self.per_token),
            ("between tokens (ITL)", self.between),
            ("whole request", self.whole),
        ] {
            table += &format!("{name:<21} {mean:>8.2} {median:>8.2} {p90:>8.2} {p99:>8.2}\n");
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_nearest() {
        let times = (1..=200).rev().map(Duration::from_millis);
        let want = Spread { mean: 100.5, median: 100.0, p90: 180.0, p99: 198.0 };
        assert_eq!(Spread::of(times), want);
        assert_eq!(Spread::of([Duration::from_millis(3)].into_iter()).p99, 3.0);
        assert_eq!(Spread::of(std::iter::empty()), Spread::default());
    }

    #[test]
    fn a_report_counts_tokens_and_times() {
        let ms = |times: [u64; 3]| times.map(Duration::from_millis).to_vec();
        let answers = [
            Answer {
                texts: ms([10, 20, 40]),
                whole: Duration::from_millis(41),
                prompt_tokens: 5,
                completion_tokens: 4,
            },
            Answer {
                texts: vec![],
                whole: Duration::from_millis(9),
                prompt_tokens: 7,
                completion_tokens: 0,
            },
        ];
        let report = Report::new(&answers, 1, Duration::from_secs(2));
        assert_eq!((report.completed, report.failed, report.output_throughput), (2, 1, 2.0));
        assert_eq!((report.total_token_throughput, report.request_throughput), (8.0, 1.0));
        assert_eq!((report.first.mean, report.per_token.mean), (10.0, 10.0));
        assert_eq!((report.between.mean, report.between.p99), (15.0, 20.0));
        assert_eq!((report.whole.mean, report.whole.median), (25.0, 9.0));
        assert!(report.table().contains("2 answered, 1 failed"));
    }
}
