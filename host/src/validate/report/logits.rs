//! Differences of the logits.

use super::numbers::scientific;
use super::page::Page;
use crate::validate::Report;

impl Report {
    /// Differences of the logits beside their bounds.
    pub(super) fn logits(&self, page: &mut Page) {
        let (limits, logits) = (&self.limits, &self.logits);
        page.line("## Logits\n");
        page.line(&format!(
            "On {} positions of {}, in windows of {} tokens.\n",
            logits.positions.len(),
            self.text,
            self.sizes.context()
        ));
        page.head(&["", "", "bound"]);
        let at_most = |limit: f64| format!("at most {}", scientific(limit));
        page.row(&[
            "relative error: norm of the difference over norm of the reference",
            &scientific(logits.error()),
            &at_most(limits.logits_error),
        ]);
        let mut worst = |name: &str, (position, value): (usize, f64)| {
            page.row(&[name, &format!("{} (position {position})", scientific(value)), ""]);
        };
        worst("- of the worst position", logits.worst(|at| at.error()));
        worst("largest difference", logits.worst(|at| at.max_abs));
        worst("- over max(1, abs(reference))", logits.worst(|at| at.max_relative));
        worst("largest difference of a probability", logits.worst(|at| at.max_probability));
        worst("largest KL divergence, nats", logits.worst(|at| at.kl));
        page.row(&[
            "mean KL divergence, nats",
            &scientific(logits.mean_kl()),
            &at_most(limits.mean_kl),
        ]);
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        page.row(&["the most likely token is the same", &percent(logits.agreement()), ""]);
        page.row(&[
            "- where the reference has a clear one",
            &percent(logits.clear_agreement(limits.min_lead())),
            &format!("at least {}", percent(limits.min_agreement)),
        ]);
        if let (Some([r, c]), Some(change)) = (logits.perplexity(), self.perplexity_change()) {
            page.row(&[
                "perplexity",
                &format!("{r:.4}, then {c:.4}: off by {}", percent(change)),
                &format!("at most {}", percent(limits.perplexity_change)),
            ]);
        }
        page.line("");
    }
}
