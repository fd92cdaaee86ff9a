//! Text to tokens and back: tokenizers, chat templates, streaming.
//!
//! ```text
//! messages -> Text::prompt -> Text::encode -> token ids (text: Tokenizer::encode)
//! token id -> TextStream::push -> text, whole characters only
//! ```

pub mod answer;
mod charsmap;
mod detokenize;
mod error;
mod fim;
mod gguf;
mod hf;
mod merges;
mod oniguruma;
mod pipeline;
mod pre_tokenizer;
mod prompt;
mod stop;
mod stop_strings;
mod strftime;
mod template;
mod to_gguf;
mod tokenizer;
mod tokenizer_json;
mod unigram;
mod word_piece;

use std::iter;
use std::path::Path;
use std::sync::OnceLock;

pub use detokenize::TextStream;
pub use error::TextError;
pub(crate) use error::one_line;
pub use fim::{FillInMiddle, Gap};
pub(crate) use hf::read_json;
pub use prompt::ChatPrompt;
pub(crate) use prompt::{Guard, PlainText};
pub use stop_strings::StopStrings;
#[cfg(feature = "cli")]
pub(crate) use strftime::strftime_utc;
pub use template::{ChatTemplate, Content, Message, RenderOptions};
pub(crate) use to_gguf::gguf_tokenizer;
pub use tokenizer::Tokenizer;

use crate::weights::gguf::Metadata;

/// What a checkpoint says about text: its tokenizer, its chat template and where an answer ends.
#[derive(Debug)]
pub struct Text {
    /// Text to token ids and back.
    pub tokenizer: Tokenizer,
    /// How a conversation becomes a prompt; `None` for a base model.
    pub chat_template: Option<ChatTemplate>,
    /// Tokens that end a text: end of sequence, and the end of a turn in the chat template.
    pub stop_tokens: Vec<u32>,
    /// How the model fills in the middle; `None` if it does not.
    pub fill_in_middle: Option<FillInMiddle>,
    /// What is missing or odd in the files and no error, a line each.
    pub warnings: Vec<String>,
    /// Tells what a template writes from what it is given, once there is a chat.
    guard: OnceLock<Result<Guard, String>>,
    /// Encodes texts without control tokens, once there is one.
    plain: OnceLock<Result<PlainText, String>>,
}

impl Text {
    /// Reads `tokenizer.json` and the text files beside it in a Hugging Face directory; `None` if
    /// the directory has no `tokenizer.json`.
    ///
    /// # Errors
    /// [`TextError::Read`] and [`TextError::File`] for a file that can't be read or is malformed.
    pub fn from_dir(dir: &Path) -> Result<Option<Self>, TextError> {
        Self::from_dir_with(dir, None)
    }

    /// [`Text::from_dir`], with the source of another chat template.
    ///
    /// # Errors
    /// As [`Text::from_dir`].
    pub fn from_dir_with(dir: &Path, template: Option<&str>) -> Result<Option<Self>, TextError> {
        let Some(tokenizer) = hf::tokenizer(dir)? else { return Ok(None) };
        let template = hf::chat_template(dir, template)?;
        let stop_tokens = stop::from_dir(dir)?;
        let fill_in_middle = FillInMiddle::from_dir(dir, &tokenizer);
        let text = Self::new(tokenizer, template, stop_tokens);
        Ok(Some(Self { fill_in_middle, ..text }))
    }

    /// Reads the tokenizer inside a GGUF file; `None` if it has none.
    ///
    /// # Errors
    /// [`TextError::Metadata`] for a key that is missing or wrong, [`TextError::TokenizerModel`]
    /// and [`TextError::PreTokenizer`] for a kind that is not known, [`TextError::Vocabulary`] for
    /// tokens and merges that don't fit together.
    pub fn from_gguf(metadata: &Metadata) -> Result<Option<Self>, TextError> {
        Self::from_gguf_with(metadata, None)
    }

    /// [`Text::from_gguf`], with the source of another chat template.
    ///
    /// # Errors
    /// As [`Text::from_gguf`].
    pub fn from_gguf_with(
        metadata: &Metadata,
        template: Option<&str>,
    ) -> Result<Option<Self>, TextError> {
        let Some(tokenizer) = gguf::tokenizer(metadata)? else { return Ok(None) };
        let template = gguf::chat_template(metadata, &tokenizer, template)?;
        let stop_tokens = stop::from_gguf(metadata)?;
        let fill_in_middle = FillInMiddle::from_gguf(metadata, &tokenizer)?;
        let text = Self::new(tokenizer, template, stop_tokens);
        Ok(Some(Self { fill_in_middle, warnings: gguf::warnings(metadata), ..text }))
    }

    fn new(
        tokenizer: Tokenizer,
        chat_template: Option<ChatTemplate>,
        mut stop_tokens: Vec<u32>,
    ) -> Self {
        let end_of_turn =
            chat_template.as_ref().and_then(|template| stop::end_of_turn(template, &tokenizer));
        stop_tokens.extend(end_of_turn.filter(|id| !stop_tokens.contains(id)));
        Self {
            tokenizer,
            chat_template,
            stop_tokens,
            fill_in_middle: None,
            warnings: Vec::new(),
            guard: OnceLock::new(),
            plain: OnceLock::new(),
        }
    }

    /// The prompt of a conversation by the chat template, whose control tokens alone are control tokens.
    ///
    /// # Errors
    /// [`TextError::Template`] if there is no template, and as [`ChatTemplate::render_with`];
    /// [`TextError::Vocabulary`] for a tokenizer whose control tokens can't be told apart.
    pub fn prompt(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
    ) -> Result<ChatPrompt, TextError> {
        let template = self.template()?;
        match options.parse_special_in_content {
            true => template.render_with(messages, options).map(ChatPrompt::parsed),
            false => self.guard(template)?.prompt(messages, options),
        }
    }

    /// The token ids of a prompt; `add_special` as for [`Tokenizer::encode`].
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode(&self, prompt: &ChatPrompt, add_special: bool) -> Result<Vec<u32>, TextError> {
        if prompt.is_parsed() {
            return self.tokenizer.encode(prompt.text(), add_special);
        }
        let ids = self.guard(self.template()?)?.ids(&self.tokenizer, prompt)?;
        Ok(if add_special { self.tokenizer.with_added_around(ids) } else { ids })
    }

    /// Whether each token of a prompt has text from outside, for the messages and options that the prompt was made of;
    /// `None` where the template treats such a text in a way that hides it, or such a text is parsed. `add_special` as
    /// for [`Text::encode`].
    ///
    /// # Errors
    /// As [`Text::prompt`] and [`Text::encode`].
    pub fn outside_tokens(
        &self,
        prompt: &ChatPrompt,
        messages: &[Message],
        options: &RenderOptions<'_>,
        add_special: bool,
    ) -> Result<Option<Vec<bool>>, TextError> {
        if prompt.is_parsed() {
            return Ok(None);
        }
        let guard = self.guard(self.template()?)?;
        let Some(is_outside) = guard.outside(prompt, messages, options)? else { return Ok(None) };
        let encoded = guard.places(&self.tokenizer, prompt)?;
        let is_outside = encoded.iter().map(|(_, place)| is_outside[place.clone()].contains(&true));
        let (before, after) = self.tokenizer.num_added_around(add_special);
        let around = |len| iter::repeat_n(false, len);
        Ok(Some(around(before).chain(is_outside).chain(around(after)).collect()))
    }

    /// The token ids of `text`, in which control tokens that are spelt out are text; `add_special` as for
    /// [`Tokenizer::encode`].
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]; [`TextError::Vocabulary`] for a tokenizer whose control tokens can't be told apart.
    pub fn encode_plain(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        let ids = self.plain()?.encode(&self.tokenizer, text)?;
        Ok(if add_special { self.tokenizer.with_added_around(ids) } else { ids })
    }

    /// The prompt of a gap that the model is to fill in, of `room` tokens at most: see [`FillInMiddle`]; `None` for a model
    /// that does not.
    ///
    /// # Errors
    /// As [`Text::encode_plain`].
    pub fn fill_in(&self, gap: &Gap, room: usize) -> Result<Option<Vec<u32>>, TextError> {
        let Some(form) = &self.fill_in_middle else { return Ok(None) };
        form.prompt(&self.tokenizer, self.plain()?, gap, room).map(Some)
    }

    fn plain(&self) -> Result<&PlainText, TextError> {
        let plain = || PlainText::new(&self.tokenizer).map_err(|error| error.to_string());
        self.plain.get_or_init(plain).as_ref().map_err(|why| TextError::Vocabulary(why.clone()))
    }

    fn template(&self) -> Result<&ChatTemplate, TextError> {
        let template = self.chat_template.as_ref();
        template.ok_or_else(|| TextError::Template("this model has none".to_owned()))
    }

    fn guard(&self, template: &ChatTemplate) -> Result<&Guard, TextError> {
        let guard = || Guard::new(&self.tokenizer, template).map_err(|error| error.to_string());
        self.guard.get_or_init(guard).as_ref().map_err(|why| TextError::Vocabulary(why.clone()))
    }
}

/// A file of `dir` with a tokenizer of another form than `tokenizer.json`, which is not read.
pub fn other_tokenizer(dir: &Path) -> Option<&'static str> {
    let names = ["tokenizer.model", "tekken.json", "vocab.json", "vocab.txt"];
    names.into_iter().find(|name| dir.join(name).exists())
}

/// The `eos_token_id` of a Hugging Face directory, from `generation_config.json`, else
/// `config.json`; empty if neither names one.
///
/// # Errors
/// [`TextError::Read`] and [`TextError::File`] for a file that can't be read or is malformed.
pub fn stop_tokens_from_dir(dir: &Path) -> Result<Vec<u32>, TextError> {
    stop::from_dir(dir)
}

/// The end-of-sequence, end-of-turn and end-of-message tokens that a GGUF file names.
///
/// # Errors
/// [`TextError::Metadata`] for an id that is no integer.
pub fn stop_tokens_from_gguf(metadata: &Metadata) -> Result<Vec<u32>, TextError> {
    stop::from_gguf(metadata)
}
