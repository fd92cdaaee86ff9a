//! `halfwarp chat`.

mod conversation;
mod input;
mod remote;

use super::{
    failure::Failure,
    model::EngineArgs,
    prompt::TemplateArgs,
    sampling::SamplingArgs,
    session::{self, End, Reading},
    terminal::{self, Thoughts},
};
use conversation::Conversation;
use halfwarp::{Engine, Model};
use input::{HELP, Input, Reader, Typed};
use std::sync::Arc;

const COMMANDS: &str = "\
In the chat:
  /help lists the commands: /clear, /regenerate, /system TEXT, /exit
  \"\"\" starts and ends a message of several lines
  Ctrl-C stops an answer, Ctrl-D ends the chat

Examples:
  halfwarp chat
  halfwarp chat -m model.gguf --system \"Answer in one sentence.\"
  halfwarp chat --temp 0 -c 0
  halfwarp chat --url http://127.0.0.1:8080 -m qwen3:8b";

/// Arguments of `halfwarp chat`.
#[derive(clap::Args)]
#[command(after_help = COMMANDS)]
pub struct ChatArgs {
    /// The system prompt
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help_heading = "Prompt")]
    system: Option<String>,
    #[command(flatten)]
    remote: remote::RemoteArgs,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Reads a message, answers it, and so on until the input ends.
pub fn run(args: &ChatArgs) -> Result<(), Failure> {
    if let Some(url) = &args.remote.url {
        let mut chat = remote::Remote::open(args, url)?;
        return talk(&mut chat);
    }
    let mut chat = Chat::open(args)?;
    terminal::note(chat.engine.describe_device());
    talk(&mut chat)
}

/// What answers a conversation.
trait Partner {
    fn conversation(&mut self) -> &mut Conversation;

    /// Streams the answer to the last question, and adds it to the conversation. What was said before Ctrl-C counts.
    fn answer(&mut self) -> Result<(), Failure>;
}

fn talk(partner: &mut impl Partner) -> Result<(), Failure> {
    terminal::note("/help lists the commands, Ctrl-D ends the chat");
    let mut reader = Reader::new()?;
    let mut was_cleared = false;
    loop {
        let typed = reader.read()?;
        let is_cleared = matches!(typed, Typed::Cleared);
        match typed {
            Typed::End | Typed::Input(Input::Exit) => return Ok(()),
            Typed::Cleared if was_cleared => return Err(Failure::Interrupted),
            Typed::Cleared => terminal::note("Ctrl-C again ends the chat, and so does Ctrl-D"),
            Typed::Mistake(mistake) => terminal::note(mistake),
            Typed::Input(input) => match take(partner, input) {
                Ok(()) => {}
                // A message that is wrong costs this turn alone.
                Err(failure @ Failure::Input(_)) => {
                    terminal::report(&failure);
                }
                Err(failure) => return Err(failure),
            },
        }
        was_cleared = is_cleared;
    }
}

/// Answers a message, or does what a command says.
fn take(partner: &mut impl Partner, input: Input) -> Result<(), Failure> {
    let conversation = partner.conversation();
    match input {
        Input::Message(message) => {
            conversation.ask(&message);
            partner.answer()?;
        }
        Input::Regenerate if conversation.regenerate() => partner.answer()?,
        Input::Regenerate => terminal::note("there is no question to answer again"),
        Input::System(system) => conversation.set_system(system.as_deref()),
        Input::Clear => conversation.clear(),
        Input::Help => terminal::note(HELP),
        Input::Exit => {}
    }
    Ok(())
}

/// Says that there is no answer to a question.
fn note_stopped() {
    terminal::note("stopped before the answer began: /regenerate asks again");
}

/// A model and what was said with it.
struct Chat<'a> {
    args: &'a ChatArgs,
    model: Arc<Model>,
    engine: Engine,
    conversation: Conversation,
}

impl<'a> Chat<'a> {
    /// Loads the model. One that cannot chat says so before its weights are loaded.
    fn open(args: &'a ChatArgs) -> Result<Self, Failure> {
        let model = args.engine.open_model_with(&args.template.overrides()?)?;
        let conversation = Conversation::new(args.system.as_deref());
        let mut hello = conversation.clone();
        hello.ask("Hello");
        let request =
            args.sampling.request(&model, args.template.render(&model, &hello.messages())?);
        let engine = args.engine.engine_for(&request, &model)?;
        Ok(Chat { args, model, engine, conversation })
    }

    /// As [`Partner::answer`]; returns how long it took.
    fn timed_answer(&mut self) -> Result<session::Timings, Failure> {
        let prompt = self.fitting_prompt()?;
        let request = self.args.sampling.request(&self.model, prompt);
        let format = self.args.template.thinking_format(&self.model);
        let reading = Reading { stop: &self.args.sampling.stop, format: format.as_ref() };
        let mut thoughts = Thoughts::new();
        let generation =
            session::generate(&self.model, &mut self.engine, request, reading, |said| {
                said.print(&mut thoughts)
            })?;
        terminal::print("\n")?;
        let text = generation.text.unwrap_or_default();
        match generation.end {
            End::Interrupted if text.is_empty() && generation.reasoning.is_empty() => {
                note_stopped();
                return Ok(generation.timings);
            }
            End::ContextFull => terminal::note(format_args!(
                "the context of {} tokens is full, the answer ends here: -c 0 makes it as long as \
                 the model allows",
                self.engine.context()
            )),
            End::Stop | End::Length | End::Interrupted => {}
        }
        self.conversation.answer(&text, &generation.reasoning);
        Ok(generation.timings)
    }

    /// The tokens of the conversation, with room for an answer. Where the context is full, the oldest turns go until half
    /// of it is free: the turns that follow then find their prefix in the KV cache, up to the next time.
    fn fitting_prompt(&mut self) -> Result<Vec<u32>, Failure> {
        let context = self.engine.context();
        let answer_len = self.args.sampling.limit().unwrap_or(context).min(context / 4);
        let render = |messages: &[_]| self.args.template.render(&self.model, messages);
        let prompt = render(&self.conversation.messages())?;
        if prompt.len() + answer_len <= context {
            return Ok(prompt);
        }
        let len = |messages: &[_]| render(messages).map(|tokens| tokens.len());
        match self.conversation.drop_oldest(context / 2, len)? {
            0 => {}
            num_dropped => terminal::note(format_args!(
                "the context of {context} tokens is full: forgot the oldest {num_dropped} of the \
                 questions and their answers"
            )),
        }
        render(&self.conversation.messages())
    }
}

impl Partner for Chat<'_> {
    fn conversation(&mut self) -> &mut Conversation {
        &mut self.conversation
    }

    fn answer(&mut self) -> Result<(), Failure> {
        self.timed_answer().map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use halfwarp::plan::PAGE_SIZE;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ChatArgs,
    }

    /// The answers to `questions` of the default model, and how they were computed.
    fn timings(questions: [&str; 2]) -> [session::Timings; 2] {
        let line = ["chat", "--device", "cpu", "--dtype", "f32", "--temp", "0", "-n", "4"];
        let args = Line::parse_from(line).args;
        let mut chat = Chat::open(&args).unwrap();
        questions.map(|question| {
            chat.conversation.ask(question);
            chat.timed_answer().unwrap()
        })
    }

    #[test]
    fn a_turn_computes_only_what_the_last_one_did_not() {
        // Whole pages of 64 tokens are kept.
        let long = "What is the capital of France? ".repeat(12);
        let [first, second] = timings([&long, "And of Spain?"]);
        assert_eq!(first.cache_n, 0);
        assert!(second.cache_n + PAGE_SIZE > first.prompt_n, "{first:?} {second:?}");
        assert!(second.prompt_n < first.prompt_n, "{first:?} {second:?}");
    }
}
