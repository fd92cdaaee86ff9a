//! Launches and bytes, and that every form computes the same.

use super::*;
use crate::exec::emulated::EmulatedExecutor;

const TINY: ModelShape = ModelShape {
    name: "tiny",
    hidden_size: 64,
    num_heads: 4,
    num_kv_heads: 2,
    head_dim: 16,
    intermediate_size: 96,
    qkv_bias: true,
};

fn counted(part: Part, shape: ModelShape, rows: usize) -> Vec<Row> {
    count(part, shape, rows, Precision::F16, Target::Sm90a).unwrap()
}

fn launches(part: Part, rows: usize) -> Vec<usize> {
    counted(part, ModelShape::QWEN, rows).iter().map(|row| row.launches).collect()
}

#[test]
fn each_form_has_its_launches() {
    assert_eq!(launches(Part::NormGemm, 1), [1, 2]);
    assert_eq!(launches(Part::GemmSwiglu, 1), [1, 2]);
    assert_eq!(launches(Part::Attention, 1), [1, 3]);
    assert_eq!(launches(Part::Layer, 1), [5, 12, 14]);
    // No kernel fuses a norm for so many rows; prefill appends by itself.
    assert_eq!(launches(Part::NormGemm, 32), [2, 2]);
    assert_eq!(launches(Part::GemmSwiglu, 32), [1, 2]);
    assert_eq!(launches(Part::Layer, 32), [7, 12, 14]);
    assert_eq!(launches(Part::Layer, 512), [8, 12, 14]);
}

/// What a fusion does not store is written and read once less, and nothing else changes.
#[test]
fn bytes_are_those_that_are_not_stored() {
    let ModelShape { hidden_size, intermediate_size, num_heads, .. } = ModelShape::QWEN;
    for (part, stored) in [
        (Part::NormGemm, 2 * hidden_size),
        (Part::GemmSwiglu, 2 * 2 * intermediate_size),
        (Part::Attention, num_heads * CONTEXT * (4 + 2)),
    ] {
        let rows = counted(part, ModelShape::QWEN, 1);
        let [fused, unfused] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(unfused.read_bytes, fused.read_bytes + stored, "{part:?}");
        assert_eq!(unfused.written_bytes, fused.written_bytes + stored, "{part:?}");
        assert_eq!(unfused.weight_bytes, fused.weight_bytes, "{part:?}");
    }
    let qkv = &counted(Part::NormGemm, ModelShape::QWEN, 1)[0];
    let vectors = hidden_size + 1152;
    assert_eq!(qkv.weight_bytes, 2 * 1152 * hidden_size + 4 * vectors);
}

/// On the emulator, with the caches filled as they are on a GPU.
#[test]
fn every_form_computes_the_same() {
    let precision = Precision::F16;
    for part in Part::ALL {
        let bench = Bench { part, shape: TINY, rows: 2, precision, context: 66, copies: 2 };
        let mut fused: Option<Vec<f32>> = None;
        for &form in part.forms() {
            let largest = bench.plan(form, bench.largest_bounds(), 2).unwrap();
            let mut device = EmulatedExecutor::open(None, &largest, &WEIGHTS).unwrap();
            bench.fill_cache(&mut device, form).unwrap();
            let plan = bench.plan(form, bench.step_bounds(), 3).unwrap();
            let prepared = device.prepare(&plan).unwrap();
            let got = device.run(prepared, &bench.step(), Want::Logits).unwrap().logits;
            let fused = fused.get_or_insert_with(|| got.clone());
            let pairs = got.iter().zip(&*fused).map(|(&got, &fused)| (got, fused.into()));
            check_error(&bench.name(form), relative_error(pairs), ERROR_BOUND).unwrap();
        }
    }
}
