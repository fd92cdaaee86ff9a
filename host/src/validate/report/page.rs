//! Markdown as it is written.

use std::fmt::Write;

/// A page of Markdown.
#[derive(Default)]
pub struct Page(pub String);

impl Page {
    /// A line.
    pub fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    /// The head of a table.
    pub fn head(&mut self, cells: &[&str]) {
        self.row(cells);
        self.row(&vec!["---"; cells.len()]);
    }

    /// A row of a table.
    pub fn row(&mut self, cells: &[&str]) {
        for cell in cells {
            // A text of the model or of a path ends neither cell nor row.
            let cell = cell.replace('|', "\\|").replace(['\n', '\r'], " ");
            write!(self.0, "| {cell} ").expect("a String takes everything");
        }
        self.line("|");
    }
}
