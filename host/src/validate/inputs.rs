//! What both settings run: a text, prompts cut from it, and the prompt of the haiku.

use super::{ValidateError, haiku};
use crate::exec::Device;
use crate::{Message, Model};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The beginning of Alice's Adventures in Wonderland, by Lewis Carroll (1865): in the public
/// domain.
const ALICE: &str = include_str!("../../../tests/fixtures/novel.txt");

/// Room for the haiku below which there is none.
const MIN_HAIKU_TOKENS: usize = 16;

/// What is run, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The prompt of the latency.
    pub prompt: usize,
    /// Tokens that are generated after it.
    pub new: usize,
    /// How often; 0 where times mean nothing.
    pub repetitions: usize,
    /// The text, at most.
    pub text: usize,
    /// The beginning of the text whose values are compared layer by layer.
    pub observed: usize,
    /// The haiku, at most.
    pub haiku: usize,
}

impl Sizes {
    /// A prompt of 512 and 128 new tokens, less where the model allows no context of 640. The
    /// emulator, which is slow, runs little, and is not timed.
    pub fn new(device: Device, max_position_embeddings: usize) -> Self {
        let context = max_position_embeddings.clamp(2, 512 + 128);
        let new = (context / 4).clamp(1, 128);
        let prompt = context - new;
        if device == Device::Emulated {
            let prompt = prompt.min(48);
            return Sizes { prompt, new: 16, repetitions: 0, text: 48, observed: 16, haiku: 16 };
        }
        let repetitions = if device.runs_kernels() { 5 } else { 3 };
        Sizes { prompt, new, repetitions, text: 1024, observed: 64.min(prompt), haiku: 64 }
    }

    /// Positions of a sequence: of a prompt with its new tokens, and of a window of the text.
    pub fn context(&self) -> usize {
        self.prompt + self.new
    }
}

/// What the logits are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// The beginning of a novel.
    Alice,
    /// Random tokens: the model has no tokenizer.
    Random,
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Text::Alice => "Alice's Adventures in Wonderland (Lewis Carroll, 1865)",
            Text::Random => "random tokens (the model has no tokenizer)",
        })
    }
}

/// What both settings run.
pub struct Inputs {
    pub sizes: Sizes,
    pub source: Text,
    /// The tokens of the text.
    pub text: Vec<u32>,
    /// The prompt of the haiku, or why there is none.
    pub haiku: Result<HaikuPrompt, String>,
}

/// A prompt that asks for a haiku.
pub struct HaikuPrompt {
    pub word: &'static str,
    pub tokens: Vec<u32>,
    /// What the tokens spell.
    pub text: String,
}

impl Inputs {
    pub fn new(model: &Model, sizes: Sizes, seed: u64) -> Result<Self, ValidateError> {
        let Some(text) = model.text() else {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let vocab_size = model.config().vocab_size as u32;
            return Ok(Inputs {
                sizes,
                source: Text::Random,
                text: (0..sizes.text).map(|_| rng.random_range(0..vocab_size)).collect(),
                haiku: Err("the model has no tokenizer".to_owned()),
            });
        };
        let mut tokens = text.tokenizer.encode(ALICE, true)?;
        tokens.truncate(sizes.text);
        let word = haiku::word(seed);
        let prompt = match &text.chat_template {
            Some(template) => {
                let rendered =
                    template.render(&[Message::new("user", haiku::prompt(word))], true)?;
                // The template writes the special tokens itself.
                text.tokenizer.encode(&rendered, false)?
            }
            None => text.tokenizer.encode(&format!("{}\n\n", haiku::prompt(word)), true)?,
        };
        let haiku = match prompt.len() + MIN_HAIKU_TOKENS <= sizes.context() {
            true => {
                let text = text.tokenizer.decode(&prompt, true);
                Ok(HaikuPrompt { word, text, tokens: prompt })
            }
            false => Err(format!(
                "its prompt of {} tokens leaves no room in the context of {}",
                prompt.len(),
                sizes.context()
            )),
        };
        Ok(Inputs { sizes, source: Text::Alice, text: tokens, haiku })
    }

    /// The text in windows of a context; each of two tokens or more.
    pub fn windows(&self) -> impl Iterator<Item = &[u32]> {
        self.text.chunks(self.sizes.context()).filter(|window| window.len() > 1)
    }

    /// The beginning of the text.
    pub fn observed(&self) -> &[u32] {
        &self.text[..self.sizes.observed.min(self.text.len())]
    }

    /// The prompt of repetition `index`: the text from another token on each time, so that no
    /// repetition finds a prompt in the cache; from the beginning again after its end.
    pub fn prompt(&self, index: usize) -> Vec<u32> {
        self.text.iter().copied().cycle().skip(index).take(self.sizes.prompt).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fit_the_model() {
        let sizes = |device, max| {
            let sizes = Sizes::new(device, max);
            (sizes.prompt, sizes.new, sizes.context())
        };
        assert_eq!(sizes(Device::Cpu, 8192), (512, 128, 640));
        assert_eq!(sizes(Device::Cpu, 512), (384, 128, 512));
        assert_eq!(sizes(Device::Cpu, 40), (30, 10, 40));
        assert_eq!(sizes(Device::Cpu, 2), (1, 1, 2));
        assert!(Sizes::new(Device::Emulated, 8192).context() <= 64);
        assert_eq!(Sizes::new(Device::Cpu, 40).observed, 30);
    }

    #[test]
    fn prompts_differ_from_the_first_token_on() {
        let sizes = Sizes::new(Device::Cpu, 40);
        let text = (0..20).collect();
        let haiku = Err(String::new());
        let inputs = Inputs { sizes, source: Text::Alice, text, haiku };
        assert_eq!(inputs.prompt(0)[..2], [0, 1]);
        assert_eq!(inputs.prompt(3)[..2], [3, 4]);
        assert_eq!(inputs.prompt(3).len(), 30);
        assert_eq!(inputs.prompt(0)[19..22], [19, 0, 1]);
    }
}
