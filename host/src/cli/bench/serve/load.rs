//! The clients: a thread each, which sends one request after another.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Token ids of prompts: words in the vocabulary of every model.
const PROMPT_IDS: std::ops::Range<u32> = 1000..9000;

/// The requests of a run.
pub struct Load {
    /// The server's address, before `/v1`.
    pub base: String,
    pub api_key: Option<String>,
    pub num_prompts: usize,
    /// Requests per second; all at once without one.
    pub rate: Option<f64>,
    pub concurrency: usize,
    pub input_len: usize,
    pub output_len: usize,
    pub prefix_len: usize,
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: Option<usize>,
    pub seed: u64,
    /// Whether token ids are asked for beside the texts.
    pub token_ids: bool,
}

/// What a client saw of an answer; times are from the sending of the request on.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// When each piece of text came.
    pub texts: Vec<Duration>,
    /// When the answer ended.
    pub whole: Duration,
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}

impl Answer {
    /// When the first text came.
    pub fn first(&self) -> Option<Duration> {
        self.texts.first().copied()
    }

    /// The time of each token after the first.
    pub fn per_token(&self) -> Option<Duration> {
        let (first, last) = (self.texts.first()?, self.texts.last()?);
        let tokens =
            u32::try_from(self.completion_tokens).ok()?.checked_sub(1).filter(|&n| n > 0)?;
        Some((*last - *first) / tokens)
    }

    /// The times from one text to the next.
    pub fn between(&self) -> impl Iterator<Item = Duration> {
        self.texts.windows(2).map(|pair| pair[1] - pair[0])
    }
}

/// A request: when it is sent at the earliest, and its prompt.
struct Arrival {
    at: Duration,
    prompt: Vec<u32>,
}

impl Load {
    fn agent(&self) -> ureq::Agent {
        ureq::Agent::config_builder().http_status_as_error(false).build().into()
    }

    /// The first model that the server lists.
    pub fn first_model(&self) -> Result<String, String> {
        let mut request = self.agent().get(format!("{}/v1/models", self.base));
        if let Some(key) = &self.api_key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let response = request.call().map_err(|error| error.to_string())?;
        let models = body(response)?;
        let id = models["data"][0]["id"].as_str();
        id.map(str::to_owned).ok_or_else(|| "it lists no model".to_owned())
    }

    /// Sends all requests; returns the answers, and how long they took together.
    pub fn run(&self, model: &str) -> (Vec<Result<Answer, String>>, Duration) {
        let arrivals = self.arrivals();
        let next = AtomicUsize::new(0);
        let answers = Mutex::new(Vec::new());
        let start = Instant::now();
        thread::scope(|scope| {
            for _ in 0..self.concurrency.min(self.num_prompts) {
                scope.spawn(|| {
                    let agent = self.agent();
                    while let Some(arrival) = arrivals.get(next.fetch_add(1, Ordering::Relaxed)) {
                        thread::sleep(arrival.at.saturating_sub(start.elapsed()));
                        let answer = self.ask(&agent, model, &arrival.prompt);
                        answers.lock().expect("no thread panics").push(answer);
                    }
                });
            }
        });
        (answers.into_inner().expect("no thread panics"), start.elapsed())
    }

    fn arrivals(&self) -> Vec<Arrival> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut ids =
            |len: usize| -> Vec<u32> { (0..len).map(|_| rng.random_range(PROMPT_IDS)).collect() };
        let prefix = ids(self.prefix_len);
        let prompts: Vec<Vec<u32>> = (0..self.num_prompts)
            .map(|_| [prefix.clone(), ids(self.input_len - self.prefix_len)].concat())
            .collect();
        let mut at = 0.0;
        let mut arrival = |prompt| {
            let arrival = Arrival { at: Duration::from_secs_f64(at), prompt };
            // The gaps of a Poisson process are exponentially distributed.
            at += self.rate.map_or(0.0, |rate| -(1.0 - rng.random::<f64>()).ln() / rate);
            arrival
        };
        prompts.into_iter().map(&mut arrival).collect()
    }

    fn ask(&self, agent: &ureq::Agent, model: &str, prompt: &[u32]) -> Result<Answer, String> {
        let mut request = json!({
            "model": model,
            "prompt": prompt,
            "max_tokens": self.output_len,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "ignore_eos": true,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let Some(top_k) = self.top_k {
            request["top_k"] = top_k.into();
        }
        if self.token_ids {
            request["return_token_ids"] = true.into();
        }
        let mut post = agent
            .post(format!("{}/v1/completions", self.base))
            .header("Content-Type", "application/json");
        if let Some(key) = &self.api_key {
            post = post.header("Authorization", format!("Bearer {key}"));
        }
        let start = Instant::now();
        let response = post.send(request.to_string().as_bytes()).map_err(|e| e.to_string())?;
        if !response.status().is_success() {
            return Err(body(response).err().unwrap_or_else(|| "it refuses".to_owned()));
        }
        let lines = BufReader::new(response.into_body().into_reader()).lines();
        answer(lines, || start.elapsed())
    }
}

/// The body of a response, or the message of its error.
fn body(response: ureq::http::Response<ureq::Body>) -> Result<Value, String> {
    let status = response.status();
    let text = response.into_body().read_to_string().map_err(|error| error.to_string())?;
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    if status.is_success() {
        return Ok(value);
    }
    let message = value["error"]["message"].as_str().unwrap_or_default();
    Err(format!("{status}: {message}"))
}

/// Reads the events of an answer.
fn answer(
    lines: impl Iterator<Item = std::io::Result<String>>,
    now: impl Fn() -> Duration,
) -> Result<Answer, String> {
    let (mut texts, mut usage) = (Vec::new(), Value::Null);
    for line in lines {
        let line = line.map_err(|error| error.to_string())?;
        let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
        if data == "[DONE]" {
            let count = |name: &str| usage[name].as_u64().unwrap_or_default() as usize;
            return Ok(Answer {
                // Of a server that says no usage.
                completion_tokens: if usage.is_null() {
                    texts.len()
                } else {
                    count("completion_tokens")
                },
                prompt_tokens: count("prompt_tokens"),
                texts,
                whole: now(),
            });
        }
        let chunk: Value = serde_json::from_str(data).map_err(|error| error.to_string())?;
        if let Some(message) = chunk["error"]["message"].as_str() {
            return Err(message.to_owned());
        }
        let choice = &chunk["choices"][0];
        let has_text = choice["text"].as_str().is_some_and(|text| !text.is_empty());
        if has_text || choice["token_ids"].as_array().is_some_and(|ids| !ids.is_empty()) {
            texts.push(now());
        }
        if chunk["usage"].is_object() {
            usage = chunk["usage"].clone();
        }
    }
    Err("the stream ends too early".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn load() -> Load {
        Load {
            base: String::new(),
            api_key: None,
            num_prompts: 1000,
            rate: Some(4.0),
            concurrency: 8,
            input_len: 10,
            output_len: 2,
            prefix_len: 6,
            temperature: 0.0,
            top_p: 1.0,
            top_k: None,
            seed: 7,
            token_ids: false,
        }
    }

    #[test]
    fn requests_arrive_at_their_rate_and_share_a_prefix() {
        let arrivals = load().arrivals();
        assert_eq!(arrivals.len(), 1000);
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
        let seconds = arrivals[999].at.as_secs_f64();
        assert!((225.0..275.0).contains(&seconds), "{seconds}");
        for pair in arrivals.windows(2) {
            assert_eq!(pair[0].prompt[..6], pair[1].prompt[..6]);
            assert_ne!(pair[0].prompt[6..], pair[1].prompt[6..]);
            assert_eq!(pair[0].prompt.len(), 10);
        }
        let at_once = Load { rate: None, ..load() }.arrivals();
        assert!(at_once.iter().all(|arrival| arrival.at == Duration::ZERO));
    }

    #[test]
    fn an_answer_is_its_events() {
        let time = Cell::new(0);
        let now = || {
            time.set(time.get() + 10);
            Duration::from_millis(time.get())
        };
        let read = |lines: &str| answer(lines.lines().map(|line| Ok(line.to_owned())), now);
        let got = read(
            "data: {\"choices\": [{\"text\": \"a\"}], \"usage\": null}\n\n: alive\n\n\
             data: {\"choices\": [{\"text\": \"\"}]}\n\ndata: {\"choices\": [{\"text\": \"b\"}]}\n\n\
             data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 4, \"completion_tokens\": 3}}\n\ndata: [DONE]\n",
        );
        let ms = Duration::from_millis;
        let want = Answer {
            texts: vec![ms(10), ms(20)],
            whole: ms(30),
            prompt_tokens: 4,
            completion_tokens: 3,
        };
        assert_eq!(got, Ok(want));
        assert_eq!(read("data: {\"error\": {\"message\": \"broken\"}}"), Err("broken".to_owned()));
        assert_eq!(read("data: {\"choices\": []}"), Err("the stream ends too early".to_owned()));
    }
}
