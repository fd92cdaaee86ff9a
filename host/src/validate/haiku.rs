//! The haiku test: a random word, a prompt that names it, and what the model makes of it in both
//! settings.

use super::logits::LogitComparison;
use crate::engine::{FinishReason, SamplingError};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Common words, of one or two syllables.
const WORDS: [&str; 64] = [
    "apple", "autumn", "bell", "bird", "boat", "bread", "bridge", "candle", "cat", "city", "clock",
    "cloud", "coffee", "crow", "dawn", "desert", "door", "dust", "fire", "fish", "flower",
    "forest", "frog", "garden", "glass", "grass", "hill", "honey", "horse", "island", "kitchen",
    "ladder", "lake", "lantern", "leaf", "letter", "market", "mirror", "moon", "mountain", "music",
    "night", "ocean", "paper", "pebble", "rain", "river", "road", "salt", "shadow", "silver",
    "sky", "snow", "spider", "spring", "stone", "storm", "summer", "thunder", "train", "tree",
    "wind", "window", "winter",
];

/// Syllables of the lines of a haiku.
const SYLLABLES: [usize; 3] = [5, 7, 5];

/// What a haiku has to answer to, drawn by `seed`.
pub fn word(seed: u64) -> &'static str {
    WORDS[ChaCha8Rng::seed_from_u64(seed).random_range(0..WORDS.len())]
}

/// What a user would ask for.
pub fn prompt(word: &str) -> String {
    format!(
        "Write a haiku about the word \"{word}\". Answer with its three lines and nothing else."
    )
}

/// What one setting generated.
#[derive(Clone, Debug, PartialEq)]
pub struct Haiku {
    /// The generated tokens.
    pub tokens: Vec<u32>,
    /// Text of the tokens.
    pub text: String,
    /// Why there are no more tokens, or why no other could be chosen.
    pub end: Result<FinishReason, SamplingError>,
    /// The text of a second generation from the same prompt and seed.
    pub repeated: String,
}

impl Haiku {
    /// What is wrong with the text, if anything is.
    fn fault(&self) -> Option<String> {
        if let Err(error) = &self.end {
            return Some(error.to_string());
        }
        // The limit of tokens may cut a character.
        let text = match self.end {
            Ok(FinishReason::Length) => self.text.trim_end_matches(char::REPLACEMENT_CHARACTER),
            _ => &self.text,
        };
        match text {
            text if text.trim().is_empty() => Some("the text is empty".to_owned()),
            text if text.contains(char::REPLACEMENT_CHARACTER) => {
                Some("the text has bytes that are not UTF-8".to_owned())
            }
            _ => None,
        }
    }
}

/// The haiku test of two settings.
#[derive(Clone, Debug, PartialEq)]
pub struct HaikuTest {
    /// The word.
    pub word: &'static str,
    /// Seed of the word and of sampling.
    pub seed: u64,
    /// The text that the tokens of the prompt spell, special tokens left out.
    pub prompt: String,
    /// Haikus of reference and candidate.
    pub haikus: [Haiku; 2],
    /// Logits of both where the reference chose its tokens, both reading the reference's tokens
    /// (teacher forcing).
    pub forced: LogitComparison,
}

/// A check of the haiku test.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What must hold.
    pub what: String,
    /// How it does not, if it does not.
    pub fault: Option<String>,
}

impl HaikuTest {
    /// What must hold; `max_probability` bounds the difference of a token's probability under
    /// teacher forcing.
    pub fn checks(&self, names: &[String; 2], max_probability: f64) -> Vec<Check> {
        let mut checks = vec![Check {
            what: "the word in the prompt reached the model".to_owned(),
            fault: (!self.prompt.contains(self.word))
                .then(|| format!("the tokens of the prompt do not spell \"{}\"", self.word)),
        }];
        for (haiku, name) in self.haikus.iter().zip(names) {
            checks.push(Check {
                what: format!("{name}: the text is not empty, and valid"),
                fault: haiku.fault(),
            });
            checks.push(Check {
                what: format!("{name}: the same seed gives the same text"),
                fault: (haiku.text != haiku.repeated).then(|| "the texts differ".to_owned()),
            });
        }
        let [reference, candidate] = names;
        let (position, worst) = self.forced.worst(|at| at.max_probability);
        checks.push(Check {
            what: format!(
                "{candidate} follows {reference} under teacher forcing: no probability differs by \
                 more than {max_probability}"
            ),
            fault: (worst > max_probability)
                .then(|| format!("by {worst:.1e} at token {} of the haiku", position + 1)),
        });
        checks
    }
}

/// Whether `text` has `word` as a word of its own or the beginning of one (`storms`).
pub fn uses_word(text: &str, word: &str) -> bool {
    let text = text.to_lowercase();
    text.split(|char: char| !char.is_alphanumeric()).any(|other| other.starts_with(word))
}

/// Syllables of each line that has letters.
pub fn syllables_by_line(text: &str) -> Vec<usize> {
    let lines = text.lines().filter(|line| line.chars().any(char::is_alphabetic));
    lines.map(|line| line.split_whitespace().map(syllables).sum()).collect()
}

/// Whether the lines have 5, 7 and 5 syllables.
pub fn is_5_7_5(text: &str) -> bool {
    syllables_by_line(text) == SYLLABLES
}

/// An estimate for English: groups of vowels, without a silent `e` at the end.
fn syllables(word: &str) -> usize {
    let word: String = word.to_lowercase().chars().filter(|char| char.is_alphabetic()).collect();
    let is_vowel = |char: char| "aeiouy".contains(char);
    let groups = word.split(|char| !is_vowel(char)).filter(|group| !group.is_empty()).count();
    let is_silent = word.ends_with('e') && !word.ends_with("le") && groups > 1;
    match groups - usize::from(is_silent) {
        0 => usize::from(!word.is_empty()),
        count => count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::logits::Position;

    const OLD_POND: &str =
        "An old silent pond.\nA frog jumps into the pond,\nsplash! Silence again.";

    fn haiku() -> Haiku {
        let text = OLD_POND.to_owned();
        let end = Ok(FinishReason::StopToken);
        Haiku { tokens: vec![1, 2], repeated: text.clone(), text, end }
    }

    fn test() -> HaikuTest {
        let forced = LogitComparison { positions: vec![Position::default(); 2] };
        let prompt = prompt("frog");
        HaikuTest { word: "frog", seed: 7, prompt, haikus: [haiku(), haiku()], forced }
    }

    /// What each check that fails says.
    fn faults(test: &HaikuTest) -> Vec<String> {
        let names = ["f32", "f16"].map(str::to_owned);
        let checks = test.checks(&names, 1e-2).into_iter();
        checks.filter_map(|check| Some(format!("{}: {}", check.what, check.fault?))).collect()
    }

    #[test]
    fn each_check_can_fail() {
        assert_eq!(faults(&test()), [""; 0]);
        let fault = |spoil: fn(&mut HaikuTest)| {
            let mut test = test();
            spoil(&mut test);
            let [fault] = &faults(&test)[..] else { panic!("{:?}", faults(&test)) };
            fault.clone()
        };
        let lost = fault(|test| test.prompt = "Write a haiku.".to_owned());
        assert!(lost.ends_with("do not spell \"frog\""), "{lost}");
        let empty = fault(|test| {
            test.haikus[0].text = " \n".to_owned();
            test.haikus[0].repeated = " \n".to_owned();
        });
        assert_eq!(empty, "f32: the text is not empty, and valid: the text is empty");
        let invalid = fault(|test| {
            test.haikus[1].text.push('\u{FFFD}');
            test.haikus[1].repeated.push('\u{FFFD}');
        });
        assert!(invalid.starts_with("f16: ") && invalid.ends_with("not UTF-8"), "{invalid}");
        let broken = fault(|test| {
            test.haikus[1].end = Err(SamplingError::NotFinite { token: 5 });
        });
        assert!(broken.contains("token 5"), "{broken}");
        let drawn = fault(|test| test.haikus[1].repeated.push('!'));
        assert_eq!(drawn, "f16: the same seed gives the same text: the texts differ");
        let apart = fault(|test| test.forced.positions[1].max_probability = 0.02);
        assert!(apart.ends_with("by 2.0e-2 at token 2 of the haiku"), "{apart}");
    }

    #[test]
    fn a_character_that_the_limit_cut_is_no_fault() {
        let mut haiku = haiku();
        haiku.text.push('\u{FFFD}');
        assert!(haiku.fault().is_some());
        haiku.end = Ok(FinishReason::Length);
        assert_eq!(haiku.fault(), None);
        haiku.text = "\u{FFFD}".to_owned();
        assert_eq!(haiku.fault().unwrap(), "the text is empty");
    }

    #[test]
    fn a_seed_draws_its_word() {
        assert_eq!(word(3), word(3));
        let words: std::collections::HashSet<_> = (0..1000).map(word).collect();
        assert_eq!(words.len(), WORDS.len(), "every word can come");
        assert!(prompt("moon").contains("\"moon\""));
    }

    #[test]
    fn words_and_syllables() {
        assert!(uses_word(OLD_POND, "frog") && uses_word("Frogs!", "frog"));
        assert!(!uses_word("a bullfrog", "frog") && !uses_word("", "frog"));
        for (word, count) in
            [("pond", 1), ("silence", 2), ("apple", 2), ("the", 1), ("I", 1), ("hmm", 1), ("--", 0)]
        {
            assert_eq!(syllables(word), count, "{word}");
        }
        assert_eq!(syllables_by_line(OLD_POND), [5, 7, 5]);
        assert!(is_5_7_5(OLD_POND) && !is_5_7_5("An old silent pond."));
    }
}
