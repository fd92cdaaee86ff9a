//! The report of a validation, in Markdown; every figure as CSV.

mod csv;
mod haiku;
mod layers;
mod logits;
mod numbers;
mod page;
mod speed;
mod summary;
#[cfg(test)]
mod tests;

pub(super) use self::numbers::median;

use self::page::Page;
use super::Report;

/// Where, when and how a report was made: what the library does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The command line.
    pub command: String,
    /// The model, as a user calls it.
    pub model: String,
    /// Version and commit of halfwarp.
    pub version: String,
    /// The GPU's driver.
    pub driver: Option<String>,
    /// The GPU's clocks.
    pub clocks: Option<String>,
    /// Date and time.
    pub date: String,
}

/// A picture of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// File of the picture, beside the report.
    pub file: String,
}

impl Report {
    /// The report as Markdown, with links to `plots`.
    pub fn markdown(&self, conditions: &Conditions, plots: &[Plot]) -> String {
        let [reference, candidate] = self.names();
        let mut page = Page::default();
        page.line(&format!("# {}: {candidate} beside {reference}\n", conditions.model));
        self.verdict(&mut page);
        self.conditions(&mut page, conditions);
        self.speed_and_memory(&mut page);
        self.logits(&mut page);
        self.layers(&mut page);
        for Plot { title, file } in plots {
            page.line(&format!("![{title}]({file})\n"));
        }
        self.haiku(&mut page);
        page.0.truncate(page.0.trim_end().len());
        page.0 + "\n"
    }

    /// Every figure, a row each: `section,setting,layer,place,figure,value,unit`.
    pub fn csv(&self) -> String {
        csv::write(self)
    }

    fn verdict(&self, page: &mut Page) {
        let breaches = self.breaches();
        match breaches.len() {
            0 => return page.line("**Passed**: every bound holds.\n"),
            1 => page.line("**Failed**: a bound is broken.\n"),
            n => page.line(&format!("**Failed**: {n} bounds are broken.\n")),
        }
        for breach in breaches {
            page.line(&format!("- {breach}"));
        }
        page.line("");
    }

    fn conditions(&self, page: &mut Page, conditions: &Conditions) {
        let Conditions { command, version, driver, clocks, date, .. } = conditions;
        page.head(&["", ""]);
        page.row(&["command", &format!("`{command}`")]);
        page.row(&["device", &self.device]);
        for (name, value) in [("driver", driver), ("clocks", clocks)] {
            if let Some(value) = value {
                page.row(&[name, value]);
            }
        }
        page.row(&["halfwarp", version]);
        page.row(&["date", date]);
        page.line("");
    }
}
