//! The grammar of gpt-oss' channels.

use super::arguments::schema;
use super::{OptionalCalls, RequiredCalls, Rules, lead};
use crate::text::Tokenizer;
use crate::text::answer::mark::Mark;

/// What the prompt has of an answer's first message.
const START: &str = "<|start|>assistant";

/// What is before the recipient of a call, in its two places.
const COMMENTARY: &str = "<|channel|>commentary";

impl Rules<'_> {
    /// gpt-oss' channels.
    pub(super) fn channels(mut self, calls: RequiredCalls<'_>) -> String {
        let thinks = self.literal("<|channel|>analysis<|message|>");
        let text = self.text_until(&Mark::text("<|end|>"), None);
        let next = self.literal("<|start|>assistant");
        let mut functions = Vec::new();
        for (index, tool) in calls.tools.iter().enumerate() {
            let (rule, function) = (format!("function_{index}"), &tool["function"]);
            let name = function["name"].as_str().unwrap_or_default();
            let head =
                format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>");
            let head = self.literal(&head);
            let schema = schema(&function["parameters"]);
            self.text +=
                &format!("{rule}: {head} arguments_{index}\narguments_{index}: %json {schema}\n");
            functions.push(rule);
        }
        let functions = functions.join(" | ");
        format!("start: ({thinks} {text} {next})? ({functions})\n{}", self.text)
    }

    /// Calls from the recipient on, which stands before the channel or in it.
    pub(super) fn optional_channels(
        tokenizer: &Tokenizer,
        calls: RequiredCalls<'_>,
    ) -> OptionalCalls {
        let triggers = [COMMENTARY, START].map(|before| format!("{before} to=functions."));
        let [inside, before] = triggers.each_ref();
        let lark = |heads: &[(&str, &str)], lead: &str| {
            let mut rules = Rules::new(tokenizer);
            let mut functions = Vec::new();
            for (index, tool) in calls.tools.iter().enumerate() {
                let function = &tool["function"];
                let name = function["name"].as_str().unwrap_or_default();
                let heads = heads.iter().map(|(before, after)| {
                    format!(
                        "{} {}",
                        rules.literal(&format!("{before}{name}")),
                        rules.literal(after)
                    )
                });
                let heads = heads.collect::<Vec<String>>().join(" | ");
                let (schema, message) =
                    (schema(&function["parameters"]), rules.literal("<|message|>"));
                rules.text += &format!(
                    "function_{index}: ({heads}) kind? {message} arguments_{index}\n\
                     arguments_{index}: %json {schema}\n"
                );
                functions.push(format!("function_{index}"));
            }
            let constrain = rules.literal("<|constrain|>");
            rules.text += &format!("kind: \" \"? {constrain}? \"json\"\n");
            format!("{} ({})\n{}", rules.start(lead), functions.join(" | "), rules.text)
        };
        let begun = calls.prompt.trim_end().ends_with(START).then(|| {
            let rest = before.strip_prefix(START).unwrap_or_default();
            (START.to_owned(), lark(&[(rest, COMMENTARY)], ""))
        });
        let lark = lark(&[(inside, ""), (before, COMMENTARY)], &lead('<'));
        OptionalCalls { triggers: triggers.to_vec(), is_first: false, lark, begun }
    }
}
