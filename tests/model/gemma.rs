//! Gemma: what a golden's logits do not tell apart.

use super::{bounds, changed, goldens};
use halfwarp::Model;
use halfwarp::plan::{Numerics, Op, PlanOutput, Precision, Rank};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use std::path::Path;

/// As the models were trained, and as transformers computes: a table in bf16 is multiplied by a
/// factor that is rounded to bf16, one in f16 by the exact one.
#[test]
fn the_factor_of_an_embedding_in_bf16_is_rounded() {
    let scale = |path: &Path| {
        let model = Model::open(path).unwrap();
        let plan = model.plan(&Precision::F16.into(), bounds(4), 1).unwrap();
        let Op::Embedding { scale, .. } = plan.ops[0] else { panic!("{:?}", plan.ops[0]) };
        scale
    };
    assert_eq!(scale(&goldens().join("gemma3")), 96f32.sqrt());
    assert_eq!(scale(&goldens().join("gguf/gemma3.gguf")), 96f32.sqrt());
    let dir = changed("gemma3", "dtype", "bfloat16".into());
    let path = dir.path().join("model.safetensors");
    let file = std::fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let in_bf16 = |data: &[u8]| -> Vec<u8> {
        let halves = data.chunks(2).map(|half| half::f16::from_le_bytes([half[0], half[1]]));
        halves.flat_map(|half| half::bf16::from_f32(half.into()).to_le_bytes()).collect()
    };
    let named = tensors
        .iter()
        .map(|(name, tensor)| (name, tensor.shape().to_vec(), in_bf16(tensor.data())));
    let rounded: Vec<_> = named.collect();
    let tensors = rounded.iter().map(|(name, shape, data)| {
        (*name, TensorView::new(safetensors::Dtype::BF16, shape.clone(), data).unwrap())
    });
    std::fs::remove_file(&path).unwrap();
    safetensors::serialize_to_file(tensors, None, &path).unwrap();
    assert_eq!(scale(dir.path()), 9.8125);
}

/// Every rank caps its own logits, and the norms after the branches are of the sums of all ranks.
#[test]
fn caps_are_where_logits_are_made() {
    let model = Model::open(goldens().join("gemma2")).unwrap();
    for world in [1, 2] {
        let rank = Rank { index: 0, world };
        let plan = model.plan_of(rank, PlanOutput::Logits, &Numerics::default(), bounds(4), 1);
        let names: Vec<&str> = plan.unwrap().ops.iter().map(Op::name).collect();
        let wanted: &[&str] = match world {
            1 => &["linear", "softcap", "sample"],
            _ => &["linear", "softcap", "all_gather", "sample"],
        };
        assert!(names.ends_with(wanted), "{names:?}");
        let after = if world == 1 { "linear" } else { "all_reduce" };
        let norms = names.windows(3).filter(|ops| *ops == [after, "rms_norm", "add"]).count();
        assert_eq!(norms, 6, "{names:?}");
    }
}
