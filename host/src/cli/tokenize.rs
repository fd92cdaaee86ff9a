//! `halfwarp tokenize`.

use super::{
    failure::Failure,
    model::ModelArgs,
    prompt::{ChatArgs, PromptArgs, text},
    terminal,
};

/// Arguments of `halfwarp tokenize`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    chat: ChatArgs,
    /// One line a token: its id, and the text that it stands for
    #[arg(long)]
    pieces: bool,
}

/// Prints the prompt's token ids as `--tokens` takes them.
pub fn run(args: &Args) -> Result<(), Failure> {
    let model = args.model.open()?;
    let ids = args.prompt.chat_token_ids(&args.chat, &model)?;
    if args.pieces {
        let tokenizer = &text(&model)?.tokenizer;
        let line = |&id: &u32| format!("{id:>6}  {:?}\n", tokenizer.decode(&[id], false));
        return terminal::print(&ids.iter().map(line).collect::<String>());
    }
    let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
    terminal::print(&format!("{}\n", ids.join(",")))
}
