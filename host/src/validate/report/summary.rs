//! A report in a few lines.

use super::numbers::{mib, percent_change, ratio, scientific};
use super::page::Page;
use crate::validate::Report;

impl Report {
    /// The report in a few lines, for a terminal.
    pub fn summary(&self) -> String {
        let [reference, candidate] = self.names();
        let mut page = Page::default();
        page.line(&format!("{candidate} beside {reference} on {}", self.device));
        let [r, c] = &self.runs;
        if let (Some(ms_r), Some(ms_c)) = (r.median_first_token_ms(), c.median_first_token_ms()) {
            let gain = ratio(ms_r / ms_c);
            page.line(&format!("first token {ms_r:.1} ms, then {ms_c:.1} ms: {gain}"));
        }
        if let (Some(rate_r), Some(rate_c)) = (r.median_tokens_per_s(), c.median_tokens_per_s()) {
            let gain = ratio(rate_c / rate_r);
            page.line(&format!("throughput  {rate_r:.1} tok/s, then {rate_c:.1} tok/s: {gain}"));
        }
        if let Some(note) = self.untimed() {
            page.line(&format!("times       {note}"));
        }
        let bytes = [r, c].map(|run| run.measured_bytes);
        let change = percent_change(bytes[0] as f64, bytes[1] as f64);
        page.line(&format!("memory      {}, then {}: {change}", mib(bytes[0]), mib(bytes[1])));
        page.line(&format!(
            "logits      relative error {}, most likely token the same at {:.1} %",
            scientific(self.logits.error()),
            100.0 * self.logits.agreement()
        ));
        if let Some([of_reference, of_candidate]) = self.logits.perplexity() {
            page.line(&format!("perplexity  {of_reference:.4}, then {of_candidate:.4}"));
        }
        for finding in self.findings() {
            page.line(&format!("layers      {finding}"));
        }
        if let Ok(test) = &self.haiku {
            let text = test.haikus[1].text.trim().lines().map(str::trim).collect::<Vec<_>>();
            page.line(&format!("haiku       {}: {}", test.word, text.join(" / ")));
        }
        match &self.breaches()[..] {
            [] => page.line("passed      every bound holds"),
            breaches => {
                breaches.iter().for_each(|breach| page.line(&format!("FAILED      {breach}")));
            }
        }
        page.0
    }
}
