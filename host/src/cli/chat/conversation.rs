//! The messages of a chat, and which of them fit into the model's context.

use halfwarp::Message;

/// A system prompt, then turns of the user and of the assistant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    system: Option<Message>,
    /// `user`, `assistant`, `user`, ...; an unanswered question is the last one.
    turns: Vec<Message>,
}

impl Conversation {
    /// A conversation with no turn yet.
    pub fn new(system: Option<&str>) -> Self {
        let mut conversation = Conversation::default();
        conversation.set_system(system);
        conversation
    }

    /// Replaces the system prompt; the turns stay.
    pub fn set_system(&mut self, system: Option<&str>) {
        self.system = system.map(|text| Message::new("system", text));
    }

    /// The user's next turn. It replaces a question that has no answer.
    pub fn ask(&mut self, question: &str) {
        if self.has_question() {
            self.turns.pop();
        }
        self.turns.push(Message::new("user", question));
    }

    /// The assistant's answer to the last question, and what it thought before; templates as a rule leave out what was
    /// thought in earlier turns.
    pub fn answer(&mut self, answer: &str, reasoning: &str) {
        let mut message = Message::new("assistant", answer);
        if !reasoning.is_empty() {
            message.fields.insert("reasoning_content".to_owned(), reasoning.into());
        }
        self.turns.push(message);
    }

    /// Removes the last answer, so that its question can be answered again. Whether there is a question.
    pub fn regenerate(&mut self) -> bool {
        if !self.has_question() {
            self.turns.pop();
        }
        self.has_question()
    }

    /// Removes every turn; the system prompt stays.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// The messages in order, as a chat template takes them.
    pub fn messages(&self) -> Vec<Message> {
        self.system.iter().chain(&self.turns).cloned().collect()
    }

    /// Removes the oldest questions and their answers until `len`, the tokens of the rendered conversation, is at most
    /// `max_len`. The system prompt and the last question stay, even where they are too long. Returns how many
    /// questions were removed.
    ///
    /// # Errors
    /// Errors of `len`.
    pub fn drop_oldest<E>(
        &mut self,
        max_len: usize,
        mut len: impl FnMut(&[Message]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let mut num_dropped = 0;
        while self.turns.len() > 2 && len(&self.messages())? > max_len {
            self.turns.drain(..2);
            num_dropped += 1;
        }
        Ok(num_dropped)
    }

    fn has_question(&self) -> bool {
        self.turns.last().is_some_and(|message| message.role == "user")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn contents(conversation: &Conversation) -> Vec<String> {
        let short = |message: Message| format!("{}:{}", &message.role[..1], message.content.text());
        conversation.messages().into_iter().map(short).collect()
    }

    /// `s:be brief u:1 a:one u:2 a:two u:3`.
    fn three_questions() -> Conversation {
        let mut conversation = Conversation::new(Some("be brief"));
        for (question, answer) in [("1", "one"), ("2", "two")] {
            conversation.ask(question);
            conversation.answer(answer, "");
        }
        conversation.ask("3");
        conversation
    }

    /// A token a message.
    fn drop_oldest(conversation: &mut Conversation, max_len: usize) -> usize {
        conversation.drop_oldest(max_len, |all| Ok::<_, Infallible>(all.len())).unwrap()
    }

    #[test]
    fn the_oldest_turns_are_dropped_in_pairs_and_never_the_system_prompt() {
        let mut conversation = three_questions();
        assert_eq!(drop_oldest(&mut conversation, 6), 0);
        assert_eq!(drop_oldest(&mut conversation, 5), 1);
        assert_eq!(contents(&conversation), ["s:be brief", "u:2", "a:two", "u:3"]);
        assert_eq!(drop_oldest(&mut conversation, 0), 1);
        assert_eq!(contents(&conversation), ["s:be brief", "u:3"]);
        assert_eq!(drop_oldest(&mut conversation, 0), 0, "the last question stays");
    }

    #[test]
    fn an_answer_is_made_again_from_its_question() {
        let mut conversation = three_questions();
        conversation.answer("three", "");
        assert!(conversation.regenerate());
        assert_eq!(conversation, three_questions());
        assert!(conversation.regenerate(), "the question has no answer yet");
        assert_eq!(conversation, three_questions());
        assert!(!Conversation::new(Some("be brief")).regenerate());
    }

    #[test]
    fn a_question_without_an_answer_is_replaced() {
        let mut conversation = three_questions();
        conversation.ask("4");
        assert_eq!(contents(&conversation).last().unwrap(), "u:4");
        assert_eq!(conversation.messages().len(), 6);
    }

    #[test]
    fn the_system_prompt_outlives_the_turns() {
        let mut conversation = three_questions();
        conversation.clear();
        assert_eq!(contents(&conversation), ["s:be brief"]);
        conversation.set_system(None);
        assert!(conversation.messages().is_empty());
    }
}
