//! The haiku test as it is reported.

use super::numbers::{joined, scientific};
use super::page::Page;
use crate::validate::{Report, haiku};

impl Report {
    /// The haiku test.
    pub(super) fn haiku(&self, page: &mut Page) {
        page.line("## Haiku\n");
        let test = match &self.haiku {
            Ok(test) => test,
            Err(why) => return page.line(&format!("None: {why}.")),
        };
        let names = self.names();
        page.line(&format!("The word is **{}**, drawn by seed {}.\n", test.word, test.seed));
        for (haiku, name) in test.haikus.iter().zip(&names) {
            page.line(&format!("{name}:\n"));
            for line in haiku.text.trim().lines() {
                page.line(&format!("> {}  ", line.trim_end()));
            }
            page.line("");
        }
        page.head(&["check", ""]);
        for check in test.checks(&names, self.limits.haiku_probability) {
            page.row(&[&check.what, check.fault.as_deref().unwrap_or("passed")]);
        }
        page.line("");
        let worst = test.forced.worst(|at| at.max_probability).1;
        page.line(&format!(
            "Under teacher forcing both read the tokens that {} generated, and are compared where it chose each: \
             probabilities differ by at most {}, logits by a relative error of {}.\n",
            names[0],
            scientific(worst),
            scientific(test.forced.error())
        ));
        page.line("Not checked, as a small model may not obey:\n");
        page.head(&["", &names[0], &names[1]]);
        let both = |answer: fn(&str, &str) -> String| {
            [0, 1].map(|of| answer(&test.haikus[of].text, test.word))
        };
        let uses_word = both(|text, word| yes(haiku::uses_word(text, word)).to_owned());
        page.row(&["the text uses the word", &uses_word[0], &uses_word[1]]);
        let syllables = both(|text, _| joined(&haiku::syllables_by_line(text)));
        page.row(&["syllables by line, about; 5, 7, 5 in a haiku", &syllables[0], &syllables[1]]);
        let same = yes(test.haikus[0].text == test.haikus[1].text);
        page.row(&["the text is the same in both", same, same]);
    }
}

fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}
