//! The step buffer of the executors that run the kernels: the inputs of a step, and after them the
//! work lists of its attention and the slots of recurrent states.
//!
//! A work list is `[num_prefill_items, num_decode_items, 0, 0]`, then its items of prefill, then
//! those of decode, each kind with room for its upper bound. All attention of a plan that differs
//! in its layer alone shares one.

use kernels::attention::{Attention, ItemWords, SeqLens};
use kernels::gemm::Gpu;
use kernels::sampling::LOGIT_EDIT_LEN;

use crate::plan::{Dtype, Op, Plan, StepInputs, StepLayout};

/// Elements of an item.
const ITEM_LEN: usize = size_of::<ItemWords>() / size_of::<u32>();

/// Elements before the items.
const HEADER_LEN: usize = 4;

/// Where everything is in the step buffer of a plan, in `u32` elements.
#[derive(Clone, Debug)]
pub struct StepBuffer {
    /// The inputs.
    pub inputs: StepLayout,
    work_lists: Vec<WorkList>,
    /// [`StepInputs::state_slots`], of plans with recurrent states.
    pub state_slots: usize,
    /// [`StepInputs::edits`]; last, as most steps have none.
    pub edits: usize,
    gpu: Gpu,
    dtype: Dtype,
    len: usize,
}

/// A work list, for all operations with this launcher.
#[derive(Clone, Copy, Debug)]
pub struct WorkList {
    attention: Attention,
    start: usize,
    max_prefill_items: usize,
}

impl WorkList {
    /// Element that holds the number of items of prefill.
    pub fn num_prefill_items(&self) -> usize {
        self.start
    }

    /// Element that holds the number of items of decode.
    pub fn num_decode_items(&self) -> usize {
        self.start + 1
    }

    /// First element of the items of prefill.
    pub fn prefill_items(&self) -> usize {
        self.start + HEADER_LEN
    }

    /// First element of the items of decode.
    pub fn decode_items(&self) -> usize {
        self.prefill_items() + self.max_prefill_items * ITEM_LEN
    }
}

impl StepBuffer {
    /// The step buffer of `plan` on a `gpu`.
    pub fn new(plan: &Plan, gpu: Gpu) -> Self {
        let (inputs, dtype) = (plan.step_layout(), super::cache_dtype(plan));
        let (mut work_lists, mut len) = (Vec::<WorkList>::new(), inputs.len);
        for op in plan.ops.iter().filter_map(Op::attention) {
            let attention = super::launcher(plan, op);
            if work_lists.iter().all(|list| list.attention != attention) {
                let max_prefill_items = attention.max_prefill_items(gpu, dtype);
                let list = WorkList { attention, start: len, max_prefill_items };
                let max_decode_items = attention.max_decode_items(gpu, dtype);
                len = list.decode_items() + max_decode_items * ITEM_LEN;
                work_lists.push(list);
            }
        }
        let state_slots = len.next_multiple_of(4);
        if plan.states.num_layers > 0 {
            len = state_slots + 2 * plan.bounds.max_seqs;
        }
        let edits = len.next_multiple_of(4);
        let len = edits + plan.bounds.max_edits() * LOGIT_EDIT_LEN;
        StepBuffer { inputs, work_lists, state_slots, edits, gpu, dtype, len }
    }

    /// Bytes of the step buffer of `plan`, and of every plan of its model with no larger bounds,
    /// whether it decodes or not.
    pub fn max_bytes(plan: &Plan, gpu: Gpu) -> usize {
        let mut plan = plan.clone();
        plan.bounds.mixed = true;
        StepBuffer::new(&plan, gpu).len * size_of::<u32>()
    }

    /// Elements of the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The work list of the operations with the launcher `attention`, which are the plan's.
    pub fn work_list(&self, attention: &Attention) -> WorkList {
        let list = self.work_lists.iter().find(|list| list.attention == *attention);
        *list.expect("a launcher of the plan's operations")
    }

    /// Writes a step of `plan` into `buffer`, which has [`StepBuffer::len`] elements; returns how
    /// many of them the kernels read.
    ///
    /// # Panics
    /// If the step does not fit the plan's bounds.
    pub fn write(&self, plan: &Plan, inputs: &StepInputs, buffer: &mut [u32]) -> usize {
        inputs.write(&self.inputs, &plan.bounds, buffer);
        let mut end = self.inputs.len;
        let seqs = seq_lens(inputs);
        for list in &self.work_lists {
            let prefill = list.attention.prefill_items(self.gpu, self.dtype, &seqs);
            let decode = list.attention.decode_items(self.gpu, self.dtype, &seqs);
            let mut put = |start: usize, values: &[u32]| {
                buffer[start..][..values.len()].copy_from_slice(values);
                if !values.is_empty() {
                    end = end.max(start + values.len());
                }
            };
            put(list.start, &[prefill.len() as u32, decode.len() as u32, 0, 0]);
            put(list.prefill_items(), prefill.as_flattened());
            put(list.decode_items(), decode.as_flattened());
        }
        if plan.states.num_layers > 0 {
            let slots = inputs.state_slots.as_flattened();
            buffer[self.state_slots..][..slots.len()].copy_from_slice(slots);
            end = self.state_slots + slots.len();
        }
        if !inputs.edits.is_empty() {
            let (places, _) = buffer[self.edits..].as_chunks_mut();
            places.iter_mut().zip(&inputs.edits).for_each(|(place, edit)| *place = edit.words());
            end = self.edits + inputs.edits.len() * LOGIT_EDIT_LEN;
        }
        end
    }
}

/// The lengths of each sequence of a step.
fn seq_lens(inputs: &StepInputs) -> Vec<SeqLens> {
    let q_lens = inputs.cu_seqlens_q.windows(2).map(|ends| ends[1] - ends[0]);
    q_lens.zip(&inputs.kv_lens).map(|(q_len, &kv_len)| SeqLens { q_len, kv_len }).collect()
}
