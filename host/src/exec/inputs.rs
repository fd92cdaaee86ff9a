//! What every executor checks before a step: that its inputs stay inside the plan and the cache.

use super::ExecError;
use crate::plan::{Attention, DRAWN, Op, PAGE_SIZE, Plan, StepInputs};

/// Checks `inputs` against the bounds, the vocabulary, the position tables and the cache of `plan`;
/// those that are [`DRAWN`] tokens against the `num_drawn` of the step before.
///
/// # Errors
/// [`ExecError::Step`], naming the first value that is out of bounds.
pub fn check(plan: &Plan, inputs: &StepInputs, num_drawn: usize) -> Result<(), ExecError> {
    shapes(inputs)?;
    if !inputs.fits(&plan.bounds) {
        let (tokens, seqs) = (inputs.num_tokens(), inputs.num_seqs());
        let (rows, edits) = (inputs.logit_rows.len(), inputs.edits.len());
        return step_error(format!(
            "{tokens} tokens in {seqs} sequences, {rows} logit rows, {edits} edits: beyond {:?}",
            plan.bounds
        ));
    }
    let (mut num_ids, mut num_positions) = (usize::MAX, usize::MAX);
    for op in &plan.ops {
        match *op {
            Op::Embedding { table, .. } => num_ids = num_ids.min(plan.weight(table).rows),
            Op::Rope { table, .. } | Op::AddTable { table, .. } => {
                num_positions = num_positions.min(plan.constant(table).rows);
            }
            _ => {}
        }
        if let Some(append) = op.rope_append() {
            num_positions = num_positions.min(plan.constant(append.table).rows);
        }
    }
    let is_drawn = |&&id: &&u32| id & DRAWN != 0 && ((id & !DRAWN) as usize) < num_drawn;
    let is_unknown = |id: &&u32| !is_drawn(id) && **id as usize >= num_ids;
    if let Some(id) = inputs.token_ids.iter().find(is_unknown) {
        return step_error(format!("token id {id} is not below {num_ids}"));
    }
    below("position", &inputs.positions, num_positions)?;
    for with_window in [false, true] {
        let num_pages = plan.kv.num_pages_of(with_window);
        below("slot", inputs.slots(with_window), num_pages * PAGE_SIZE)?;
        let reach = if with_window { reach(plan) } else { usize::MAX };
        for (seq, pages) in inputs.tables(with_window).iter().enumerate() {
            let first_new = inputs.kv_lens[seq] - q_len(inputs, seq);
            let first_seen = (first_new as usize + 1).saturating_sub(reach);
            below("page", &pages[first_seen / PAGE_SIZE..], num_pages)?;
        }
    }
    if plan.states.num_layers > 0 {
        below("state", inputs.state_slots.as_flattened(), plan.states.num_slots)?;
    }
    below("logit row", &inputs.logit_rows, inputs.num_tokens())?;
    let edited: Vec<u32> = inputs.edits.iter().map(|edit| edit.token).collect();
    below("edited token", &edited, plan.output.width)
}

/// How far layers with a window see.
fn reach(plan: &Plan) -> usize {
    let attention = plan.ops.iter().filter_map(attention);
    let windows = attention.filter(|op| plan.kv.has_window(op.layer)).filter_map(|op| op.window);
    windows.max().unwrap_or(usize::MAX)
}

/// The attention that `op` is a part of.
fn attention(op: &Op) -> Option<&Attention> {
    match op {
        Op::AttentionScores(op) | Op::AttentionSoftmax(op) | Op::AttentionValues(op) => {
            Some(&op.attention)
        }
        _ => op.attention(),
    }
}

/// New tokens of a sequence.
fn q_len(inputs: &StepInputs, seq: usize) -> u32 {
    inputs.cu_seqlens_q[seq + 1] - inputs.cu_seqlens_q[seq]
}

/// Whether the lengths of the arrays agree with each other.
fn shapes(inputs: &StepInputs) -> Result<(), ExecError> {
    let (tokens, seqs) = (inputs.num_tokens(), inputs.num_seqs());
    let cu_seqlens_q = &inputs.cu_seqlens_q;
    if inputs.positions.len() != tokens || inputs.slot_mapping.len() != tokens {
        return step_error(format!("positions or slots are not those of {tokens} tokens"));
    }
    if cu_seqlens_q.len() != seqs + 1
        || cu_seqlens_q[0] != 0
        || cu_seqlens_q[seqs] as usize != tokens
        || !cu_seqlens_q.is_sorted()
    {
        return step_error(format!("cu_seqlens_q does not divide {tokens} tokens in {seqs}"));
    }
    if inputs.sampling.len() != inputs.logit_rows.len() {
        let (rows, ways) = (inputs.logit_rows.len(), inputs.sampling.len());
        return step_error(format!("{rows} logit rows are sampled in {ways} ways"));
    }
    if inputs.edit_ends.len() != inputs.logit_rows.len()
        || !inputs.edit_ends.is_sorted()
        || inputs.edit_ends.last().is_some_and(|&end| end != inputs.edits.len())
    {
        let (rows, edits) = (inputs.logit_rows.len(), inputs.edits.len());
        return step_error(format!("edit_ends does not divide {edits} edits in {rows} logit rows"));
    }
    if inputs.state_slots.len() != seqs {
        return step_error(format!("{} states for {seqs}", inputs.state_slots.len()));
    }
    if inputs.block_tables.len() != seqs {
        return step_error(format!("{} block tables for {seqs}", inputs.block_tables.len()));
    }
    let lens = |tables: &[Vec<u32>]| tables.iter().map(Vec::len).collect::<Vec<_>>();
    if !inputs.window_tables.is_empty()
        && (inputs.window_slot_mapping.len() != tokens
            || lens(&inputs.window_tables) != lens(&inputs.block_tables))
    {
        return step_error("slots or block tables of windows are not as those of other layers");
    }
    for (seq, pages) in inputs.block_tables.iter().enumerate() {
        let kv_len = inputs.kv_lens[seq] as usize;
        let q_len = (cu_seqlens_q[seq + 1] - cu_seqlens_q[seq]) as usize;
        if kv_len < q_len || pages.len() != kv_len.div_ceil(PAGE_SIZE) {
            return step_error(format!(
                "sequence {seq}: {q_len} new tokens, {kv_len} positions, {} pages",
                pages.len()
            ));
        }
    }
    Ok(())
}

fn below(what: &str, values: &[u32], bound: usize) -> Result<(), ExecError> {
    match values.iter().find(|&&value| value as usize >= bound) {
        Some(value) => step_error(format!("{what} {value} is not below {bound}")),
        None => Ok(()),
    }
}

fn step_error<T>(message: impl Into<String>) -> Result<T, ExecError> {
    Err(ExecError::Step(message.into()))
}

#[cfg(test)]
mod tests {
    use super::super::testing::plan;
    use super::*;
    use crate::exec::{LogitEdit, RowSampling};
    use crate::plan::NO_PAGE;

    fn inputs() -> StepInputs {
        let mut inputs = StepInputs::new();
        inputs.push_sequence(&[1, 2, 9], 0, &[0], 2..3);
        inputs.push_sequence(&[3], 99, &[3, 2], 0..1);
        inputs.state_slots = vec![[1, 1], [1, 0]];
        inputs
    }

    #[test]
    fn inputs_within_every_bound_pass() {
        assert!(check(&plan(), &inputs(), 0).is_ok());
        assert!(check(&plan(), &StepInputs::new(), 0).is_ok());
    }

    #[test]
    fn drawn_tokens_are_those_of_the_step_before() {
        let mut inputs = inputs();
        inputs.token_ids[1] = DRAWN | 2;
        assert!(check(&plan(), &inputs, 3).is_ok());
        let error = check(&plan(), &inputs, 2).unwrap_err().to_string();
        assert_eq!(error, "step inputs: token id 2147483650 is not below 10");
    }

    fn edit(token: u32) -> LogitEdit {
        LogitEdit { token, bias: 1.0, divisor: 1.0, penalty: 0.0 }
    }

    /// How the error starts, and how the inputs are spoiled.
    type Fault = (&'static str, fn(&mut StepInputs));

    /// Each value and each length that is wrong is an error that names it, never a panic.
    #[test]
    fn inputs_beyond_a_bound_are_named() {
        let faults: [Fault; 22] = [
            ("token id 10", |inputs| inputs.token_ids[1] = 10),
            ("position 100", |inputs| inputs.positions[3] = 100),
            ("slot 256", |inputs| inputs.slot_mapping[0] = 256),
            ("logit row 4", |inputs| inputs.logit_rows[0] = 4),
            ("page 4", |inputs| inputs.block_tables[1][1] = 4),
            ("state 2", |inputs| inputs.state_slots[1][0] = 2),
            ("1 states for 2", |inputs| inputs.state_slots.truncate(1)),
            ("positions or slots", |inputs| inputs.positions.truncate(3)),
            ("positions or slots", |inputs| inputs.slot_mapping.push(0)),
            ("cu_seqlens_q", |inputs| inputs.cu_seqlens_q[1] = 5),
            ("cu_seqlens_q", |inputs| inputs.cu_seqlens_q.clear()),
            ("cu_seqlens_q", |inputs| inputs.cu_seqlens_q[0] = 1),
            ("2 logit rows are sampled in 1 ways", |inputs| inputs.sampling.truncate(1)),
            ("1 block tables", |inputs| inputs.block_tables.truncate(1)),
            ("sequence 0", |inputs| inputs.kv_lens[0] = 2),
            ("sequence 1", |inputs| inputs.block_tables[1].truncate(1)),
            ("slots or block tables of windows", |inputs| inputs.window_tables = vec![vec![0]]),
            ("slots or block tables of windows", |inputs| {
                inputs.window_tables = inputs.block_tables.clone();
            }),
            ("page 4294967295", |inputs| {
                inputs.window_slot_mapping = inputs.slot_mapping.clone();
                inputs.window_tables = inputs.block_tables.clone();
                inputs.window_tables[1][1] = NO_PAGE;
            }),
            ("edit_ends does not divide 1 edits", |inputs| {
                inputs.edits.push(edit(1));
            }),
            ("edited token 8", |inputs| inputs.edit_last_row(&[edit(8)])),
            ("4 tokens in 2 sequences", |inputs| {
                (inputs.logit_rows, inputs.sampling) = (vec![0; 3], vec![RowSampling::GREEDY; 3]);
                inputs.edit_ends = vec![0; 3];
            }),
        ];
        for (start, spoil) in faults {
            let mut inputs = inputs();
            spoil(&mut inputs);
            let mut plan = plan();
            (plan.states.num_layers, plan.states.num_slots) = (1, 2);
            let message = check(&plan, &inputs, 0).unwrap_err().to_string();
            assert!(message.starts_with(&format!("step inputs: {start}")), "{message}");
        }
    }
}
