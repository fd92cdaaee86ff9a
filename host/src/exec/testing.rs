//! What the tests of executors share.

use crate::plan::{
    Bounds, Constant, Dtype, KvHeads, KvLayout, KvStorage, Numerics, Op, Plan, PlanBuilder, Rows,
    Weight,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// `len` values in -1 .. 1.
pub fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// Embedding, RoPE, the rows of logits and their largest: a vocabulary of 10, positions to 99, a
/// cache of 4 pages.
pub fn plan() -> Plan {
    let bounds = Bounds {
        max_tokens: 8,
        max_seqs: 2,
        max_q_len: 8,
        max_logit_rows: 2,
        max_kv_len: 100,
        mixed: false,
    };
    let kv = KvLayout {
        layers: vec![KvHeads { num_kv_heads: 1, head_dim: 4 }],
        num_pages: 4,
        windows: None,
        dtype: Dtype::F32,
        storage: KvStorage::default(),
    };
    let mut plan = PlanBuilder::new();
    let table = plan.weight(Weight::whole("embedding", 10, 4, Dtype::F32));
    let data = vec![0.0; 400].into();
    let rope = plan.constant(Constant { name: "rope".into(), rows: 100, cols: 4, data });
    let x = plan.activation("x", Rows::Tokens, 4, Dtype::F32);
    let last = plan.activation("last", Rows::Logits, 4, Dtype::F32);
    let next = plan.activation("next", Rows::Logits, 1, Dtype::U32);
    plan.op(Op::Embedding { table, out: x, scale: 1.0 });
    plan.op(Op::Rope { x, table: rope, head_dim: 4 });
    plan.op(Op::GatherRows { x, out: last });
    plan.op(Op::Sample { x: last, out: next });
    plan.finish(&Numerics::default(), bounds, kv, last, next).unwrap()
}
