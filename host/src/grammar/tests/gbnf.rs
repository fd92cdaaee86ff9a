//! GBNF beside regular expressions of the same texts, and by hand where there are none.

use super::*;
use fancy_regex::Regex;

/// A grammar, and its texts as a regular expression.
const SAME: [(&str, &str); 10] = [
    // Texts that begin alike: nothing is matched greedily.
    (r#"root ::= "ab" | [a-b]* "c""#, r"^(ab|[ab]*c)$"),
    (r#"root ::= ("a" | "ab") ("b" | "bc")"#, r"^(a|ab)(b|bc)$"),
    (r#"root ::= [a-c]+ "bc" [a-c]?"#, r"^[a-c]+bc[a-c]?$"),
    (
        "# three rules\nroot ::= some-x{2,3} y? # a comment\nsome-x ::=\n  \"a\" |\n  \"b\"\n\ny ::= [^ab]",
        r"^[ab]{2,3}[^ab]?$",
    ),
    (r#"root ::= "a"{2} .{0,1}"#, r"^a{2}(?s:.)?$"),
    (r#"root ::= ("b" "a"{1,})* "" ("c" | "")"#, r"^(ba+)*c?$"),
    (r#"root ::= "\x61\u0062" | "\"" [\]\n\"-]"#, "^(ab|\"[\\]\n\"-])$"),
    ("root ::= (\n  a |\n  \"c\"\n) a\na ::= [^\\x61-\\U00000062]", "^[^ab]{2}$"),
    ("root ::= [^]?", r"^(?s:.)?$"),
    (r#"root ::= "a"{,2} "b""#, r"^a{0,2}b$"),
];

const ALPHABET: [&str; 5] = ["a", "b", "c", "\"", "\n"];

/// Whether texts that begin with these pieces are in the grammar, and whether this one is.
fn accepts(model: &Model, grammar: &Grammar, pieces: &[&str]) -> (bool, bool) {
    let text = model.text().unwrap();
    let mut state = grammar.begin();
    for piece in pieces {
        for id in text.tokenizer.encode(piece, false).unwrap() {
            // Where nothing more may come, ends alone are allowed, and anything is accepted.
            if !tokens(&state.allowed().unwrap()).contains(&id) {
                return (false, false);
            }
            state.accept(id).unwrap();
        }
    }
    let allowed = tokens(&state.allowed().unwrap());
    (true, allowed.iter().any(|token| text.stop_tokens.contains(token)))
}

#[test]
fn a_grammar_has_the_texts_of_a_regular_expression() {
    let model = model();
    let compiler = compiler(&model);
    for (gbnf, regex) in SAME {
        let grammar = compiler.gbnf(gbnf).unwrap_or_else(|error| panic!("{gbnf}: {error}"));
        let regex = Regex::new(regex).unwrap();
        // All texts of up to four pieces; after one that cannot go on there is none.
        let mut texts = vec![(Vec::new(), true)];
        let mut num_accepted = 0;
        for _ in 0..=4 {
            let mut longer = Vec::new();
            for (pieces, can_go_on) in texts {
                let (can_go_on, is_whole) = match can_go_on {
                    true => accepts(&model, &grammar, &pieces),
                    false => (false, false),
                };
                let text = pieces.concat();
                assert_eq!(is_whole, regex.is_match(&text).unwrap(), "{gbnf}: {text:?}");
                num_accepted += usize::from(is_whole);
                longer.extend(ALPHABET.map(|piece| ([&pieces[..], &[piece]].concat(), can_go_on)));
            }
            texts = longer;
        }
        assert!(num_accepted > 1, "{gbnf}: {num_accepted}");
    }
}

#[test]
fn rules_may_be_recursive_and_tokens_have_names() {
    let model = model();
    let compiler = compiler(&model);
    let nested = compiler.gbnf("root ::= pair | \"\"\npair ::= \"(\" root \")\"").unwrap();
    for (text, is_whole) in [("", true), ("(())", true), ("(()", false), ("()(", false)] {
        assert_eq!(accepts(&model, &nested, &[text]).1, is_whole, "{text}");
    }
    let named = compiler.gbnf("root ::= <|im_start|> \"a\"").unwrap();
    assert!(accepts(&model, &named, &["<|im_start|>", "a"]).1);
    assert!(!accepts(&model, &named, &["<", "|", "im"]).0);
}

#[test]
fn what_is_no_gbnf_says_where() {
    let model = model();
    let compiler = compiler(&model);
    let nested = format!("root ::= {}\"a\"", "(".repeat(100_000));
    for (gbnf, why) in [
        ("", "there is no rule `root`"),
        ("top ::= \"a\"", "there is no rule `root`"),
        ("root ::= x", "there is no rule `x`"),
        ("root ::= root", "no text is of it"),
        ("root ::= \"a\"\nroot ::= \"b\"", "rule `root` is there twice"),
        ("root = \"a\"", "expected ::= before"),
        ("root ::= \"a", "has no end"),
        ("root ::= [a", "has no end"),
        ("root ::= []", "no characters"),
        ("root ::= [b-a]", "is empty"),
        ("root ::= (\"a\"", "expected )"),
        ("root ::= \"\\q\"", "expected an escape"),
        ("root ::= \"\\ud800\"", "expected an escape"),
        ("root ::= \"a\"{2,1}", "is no number of repetitions"),
        ("root ::= \"a\"{65536}", "is no number of repetitions"),
        ("root ::= \"a\"{2", "expected `}`"),
        ("root ::= <a b>", "is no token"),
        ("root ::= !<a>", "tokens are"),
        ("root ::= \"a\" ? ?\n*", "expected a rule's name"),
        (&nested, "more than 200 groups"),
    ] {
        let error = compiler.gbnf(gbnf).unwrap_err().to_string();
        let shown: String = gbnf.chars().take(40).collect();
        assert!(error.contains(why) && error.lines().count() == 1, "{shown}: {error}");
    }
}
