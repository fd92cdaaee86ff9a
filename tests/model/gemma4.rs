//! Gemma 4: that each golden shows what its layers have of their own, and what their cache holds.

use super::{bounds, goldens, logits_error};
use halfwarp::Model;
use halfwarp::plan::{KvHeads, Numerics, Op, PAGE_SIZE, Plan};

/// What is changed in the plan of a golden.
type Fault = (&'static str, &'static str, fn(&mut Plan));

/// The attention of the last layer that reads keys and values of `cached`, of which it is
/// another's.
fn last_reader(plan: &mut Plan, cached: usize) -> &mut usize {
    let attentions = plan.ops.iter_mut().rev().filter_map(|op| match op {
        Op::Attention(attention) if attention.layer == cached => Some(&mut attention.layer),
        _ => None,
    });
    attentions.into_iter().next().unwrap()
}

fn remove(plan: &mut Plan, is_it: impl Fn(&Plan, &Op) -> bool) {
    let kept = plan.ops.iter().filter(|op| !is_it(plan, op)).cloned().collect();
    assert_ne!(plan.ops, kept, "nothing is removed");
    plan.ops = kept;
}

/// Replaces the table of the layers without a window by that of other frequencies.
fn rotate(plan: &mut Plan, frequency: impl Fn(usize) -> f32) {
    let table = &mut plan.constants[1];
    let (rows, half) = (table.rows, table.cols / 2);
    let angles = (0..rows).map(|p| (0..half).map(|i| p as f32 * frequency(i)).collect::<Vec<_>>());
    table.data = angles
        .flat_map(|row| {
            row.iter().map(|a| a.cos()).chain(row.iter().map(|a| a.sin())).collect::<Vec<_>>()
        })
        .collect();
}

#[test]
fn what_layers_have_of_their_own_shows_in_the_logits() {
    let faults: &[Fault] = &[
        ("gemma4", "the factors of layers", |plan| {
            remove(plan, |_, op| matches!(op, Op::Scale { indices: None, .. }));
        }),
        ("gemma4", "the norm of values", |plan| {
            remove(plan, |plan, op| match op {
                Op::RmsNorm { x, out, weight, .. } => {
                    x == out && plan.weight(*weight).name.ends_with("v_norm")
                }
                _ => false,
            });
        }),
        ("gemma4", "a quarter of the frequencies of a head", |plan| {
            rotate(plan, |i| 1e6f32.powf(-(i as f32) / 16.0));
        }),
        ("gemma4", "frequencies that are those of a whole head", |plan| {
            rotate(plan, |i| if i < 4 { 1e6f32.powf(-(i as f32) / 4.0) } else { 0.0 });
        }),
        ("gemma4-e", "the source of shared keys", |plan| *last_reader(plan, 2) = 0),
        ("gemma4-e", "the part of the layer's inputs", |plan| {
            let gates = plan.ops.iter_mut().filter_map(|op| match op {
                // Columns of what all layers have.
                Op::Gate { up, .. } if up.width == 16 => Some(up),
                _ => None,
            });
            gates.into_iter().nth(3).unwrap().start -= 16;
        }),
        ("gemma4-e", "the norm of the projected inputs", |plan| {
            let eps = plan.ops.iter_mut().find_map(|op| match op {
                Op::RmsNorm { x, eps, .. } if x.width == 7 * 16 => Some(eps),
                _ => None,
            });
            *eps.unwrap() *= 1e6;
        }),
        ("gemma4-moe", "the factors of experts", |plan| {
            remove(plan, |_, op| matches!(op, Op::Scale { indices: Some(_), .. }));
        }),
    ];
    for (golden, what, fault) in faults {
        let model = Model::open(goldens().join(golden)).unwrap();
        let expected = goldens().join(golden).join("expected.safetensors");
        let error = logits_error(&model, &expected, fault);
        println!("{golden}, {what}: {error:.1e}");
        assert!(error > 1e-3, "{golden} does not show {what}: {error:.1e}");
    }
}

/// Pools are of the size of the layer's heads, and layers that read others' have none.
#[test]
fn the_cache_has_the_heads_of_each_layer() {
    let heads = |num_kv_heads, head_dim| KvHeads { num_kv_heads, head_dim };
    let (local, alone) = (heads(2, 16), heads(1, 32));
    for (name, layers) in [
        ("gemma4", vec![local, alone, local, alone]),
        ("gguf/gemma4.gguf", vec![local, alone, local, alone]),
        ("gemma4-e", vec![local, heads(2, 32), local]),
        ("gguf/gemma4-e.gguf", vec![local, heads(2, 32), local]),
        ("gemma4-moe", vec![local, alone]),
    ] {
        let model = Model::open(goldens().join(name)).unwrap();
        let plan = model.plan(&Numerics::default(), bounds(4), 3).unwrap();
        assert_eq!(plan.kv.layers, layers, "{name}");
        let width: usize = layers.iter().map(|heads| 2 * heads.width()).sum();
        assert_eq!(plan.kv.bytes(), 3 * PAGE_SIZE * width * size_of::<f32>(), "{name}");
    }
}
