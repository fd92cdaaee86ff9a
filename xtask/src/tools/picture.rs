//! Pictures of a terminal for the README and the book: real commands, run here, and what they printed, as SVGs.

use crate::process;
use anyhow::Result;
use std::{fmt::Write, fs};

/// A picture in `docs/images`.
struct Picture {
    file: &'static str,
    /// Characters of a line; what is longer is broken at spaces.
    columns: usize,
    /// What is shown: the words after `halfwarp`.
    commands: &'static [&'static [&'static str]],
}

const PICTURES: [Picture; 2] = [
    Picture {
        file: "terminal.svg",
        columns: 96,
        commands: &[
            &[
                "generate",
                "--chat",
                "-n",
                "80",
                "--temp",
                "0",
                "-p",
                "In two sentences: why is the sky blue?",
            ],
            &["ptx", "show", "rms_norm_f16_warp"],
        ],
    },
    Picture {
        file: "ptx.svg",
        columns: 176,
        commands: &[
            &["ptx", "stats", "attention_prefill_f16_sm90", "gemv_f16", "sample_maximum"],
            &["ptx", "check", "--family", "attention"],
        ],
    },
];

/// Lines of one command's output; the rest is left out.
const MAX_LINES: usize = 12;

const FONT_SIZE: usize = 14;
const LINE_HEIGHT: usize = 20;
/// Column width of a monospaced font of `FONT_SIZE`, in hundredths of a pixel.
const COLUMN_WIDTH_PERCENT: usize = 843;
const MARGIN: usize = 20;
const TITLE_BAR: usize = 32;

/// A line of the terminal.
enum Line {
    Prompt(String),
    Output(String),
}

/// Writes the pictures.
///
/// # Errors
/// If a command fails or a file cannot be written.
pub fn run() -> Result<()> {
    for Picture { file, columns, commands } in PICTURES {
        let mut lines = Vec::new();
        for words in commands {
            if !lines.is_empty() {
                lines.push(Line::Output(String::new()));
            }
            lines.push(Line::Prompt(process::shell_line("halfwarp", words)));
            lines.extend(output(words, columns)?);
        }
        let path = process::repository().join("docs/images").join(file);
        fs::write(&path, svg(&lines, columns))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// What a command prints, up to `MAX_LINES`.
fn output(words: &[&str], columns: usize) -> Result<Vec<Line>> {
    let printed = process::capture(process::halfwarp(&["--release"])?.args(words))?;
    let text = printed.stdout + &printed.stderr;
    let wrapped: Vec<String> = text.lines().flat_map(|line| wrap(line, columns)).collect();
    let is_cut = wrapped.len() > MAX_LINES;
    let mut lines: Vec<_> = wrapped.into_iter().take(MAX_LINES).map(Line::Output).collect();
    lines.extend(is_cut.then(|| Line::Output("...".to_owned())));
    Ok(lines)
}

/// `line` in lines of at most `columns` characters, broken at spaces.
fn wrap(line: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in line.replace('\t', "    ").split_inclusive(' ') {
        let last = lines.last_mut().expect("there is one from the start");
        if !last.is_empty() && last.chars().count() + word.trim_end().chars().count() > columns {
            lines.push(word.to_owned());
        } else {
            last.push_str(word);
        }
    }
    lines
}

fn svg(lines: &[Line], columns: usize) -> String {
    let width = 2 * MARGIN + columns * COLUMN_WIDTH_PERCENT / 100;
    let height = TITLE_BAR + 2 * MARGIN + lines.len() * LINE_HEIGHT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"halfwarp in a terminal\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1f27\"/>\n"
    );
    for (dot, colour) in ["#ff5f57", "#febc2e", "#28c840"].into_iter().enumerate() {
        let x = MARGIN + 20 * dot;
        writeln!(svg, "<circle cx=\"{x}\" cy=\"18\" r=\"6\" fill=\"{colour}\"/>")
            .expect("a String");
    }
    writeln!(
        svg,
        "<g font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" \
         font-size=\"{FONT_SIZE}\" fill=\"#d7dce5\" xml:space=\"preserve\">"
    )
    .expect("a String");
    for (index, line) in lines.iter().enumerate() {
        let y = TITLE_BAR + MARGIN + index * LINE_HEIGHT;
        let text = match line {
            Line::Prompt(command) => format!(
                "<tspan fill=\"#7ee787\">$</tspan> <tspan fill=\"#ffffff\" font-weight=\"bold\">{}</tspan>",
                escaped(command)
            ),
            Line::Output(text) => escaped(text),
        };
        writeln!(svg, "<text x=\"{MARGIN}\" y=\"{y}\">{text}</text>").expect("a String");
    }
    svg + "</g>\n</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_break_at_spaces_and_markup_is_text() {
        let long = "word ".repeat(40);
        let wrapped = wrap(&long, 96);
        assert!(wrapped.iter().all(|line| line.trim_end().chars().count() <= 96));
        assert_eq!(wrapped.concat(), long);
        assert_eq!(escaped("a <b> & c"), "a &lt;b&gt; &amp; c");
        let picture =
            svg(&[Line::Prompt("halfwarp x".to_owned()), Line::Output("<y>".to_owned())], 96);
        assert!(picture.contains("&lt;y&gt;") && picture.ends_with("</svg>\n"));
    }
}
