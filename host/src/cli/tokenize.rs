//! `halfwarp tokenize`.

use super::{
    failure::Failure,
    model::ModelArgs,
    prompt::{ConversationArgs, PromptArgs, text},
    terminal,
};
use halfwarp::Tokenizer;

const EXAMPLES: &str = "\
Examples:
  halfwarp tokenize -p \"Hello world\"
  halfwarp tokenize --chat -p \"Hello world\" --pieces
  halfwarp tokenize --tokens 19556,905";

/// Arguments of `halfwarp tokenize`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct TokenizeArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    chat: ConversationArgs,
    #[command(flatten)]
    model: ModelArgs,
    /// One line per token: its id and its text
    #[arg(long, help_heading = "Output")]
    pieces: bool,
}

/// Prints the prompt's token ids as `--tokens` takes them; for `--tokens` the text.
pub fn run(args: &TokenizeArgs) -> Result<(), Failure> {
    let model = args.model.open_with(&args.chat.overrides()?)?;
    let tokenizer = &text(&model)?.tokenizer;
    let ids = args.prompt.chat_token_ids(&args.chat, &model)?;
    check(tokenizer, &ids)?;
    if args.pieces {
        let line = |&id: &u32| format!("{id:>6}  {:?}\n", tokenizer.decode(&[id], false));
        return terminal::print(&ids.iter().map(line).collect::<String>());
    }
    if args.prompt.given_tokens().is_some() {
        return terminal::print(&format!("{}\n", tokenizer.decode(&ids, false)));
    }
    let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
    terminal::print(&format!("{}\n", ids.join(",")))
}

/// Whether the tokenizer has every one of `ids`.
fn check(tokenizer: &Tokenizer, ids: &[u32]) -> Result<(), Failure> {
    match ids.iter().position(|&id| tokenizer.id_to_token(id).is_none()) {
        Some(index) => Err(Failure::Input(format!(
            "--tokens: the tokenizer has no token {} (number {} of the list), it has {} tokens",
            ids[index],
            index + 1,
            tokenizer.vocab_size()
        ))),
        None => Ok(()),
    }
}
