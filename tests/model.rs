//! Plans against transformers: every golden, through a naive interpreter of plans in f32.

use halfwarp::exec::WeightSource;
use halfwarp::model::Model;
use halfwarp::plan::{Attention, Bounds, Op, Plan, Rows, View, WeightId};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// Runs a plan for one sequence from its first position, with no paging and no batching.
struct Interpreter<'a> {
    plan: &'a Plan,
    weights: Vec<Vec<f32>>,
    tokens: &'a [u32],
    tensors: Vec<Vec<f32>>,
    /// K and V of each layer, `[tokens, num_kv_heads * head_dim]`.
    cache: BTreeMap<usize, (Vec<f32>, Vec<f32>)>,
}

impl<'a> Interpreter<'a> {
    /// Logits of every token, `[tokens, vocab_size]`.
    fn logits(model: &Model, plan: &'a Plan, tokens: &'a [u32]) -> Vec<f32> {
        let read = |weight| {
            let mut bytes = vec![0; halfwarp::plan::Weight::bytes(weight)];
            model.checkpoint().read(weight, &mut bytes).unwrap();
            bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let weights = plan.weights.iter().map(read).collect();
        // What nobody wrote poisons what is computed from it.
        let tensors = plan.tensors.iter().map(|t| vec![f32::NAN; tokens.len() * t.width]).collect();
        let mut run = Interpreter { plan, weights, tokens, tensors, cache: BTreeMap::new() };
        plan.ops.iter().for_each(|op| run.op(op));
        run.read(plan.logits)
    }

    fn read(&self, view: View) -> Vec<f32> {
        let width = self.plan.tensor(view.tensor).width;
        let rows = self.tensors[view.tensor.0].chunks(width);
        rows.flat_map(|row| row[view.start..][..view.width].to_vec()).collect()
    }

    fn write(&mut self, view: View, data: &[f32]) {
        let width = self.plan.tensor(view.tensor).width;
        let rows = self.tensors[view.tensor.0].chunks_mut(width).zip(data.chunks(view.width));
        rows.for_each(|(row, data)| row[view.start..][..view.width].copy_from_slice(data));
    }

    fn weight(&self, id: WeightId) -> &[f32] {
        &self.weights[id.0]
    }

    fn op(&mut self, op: &Op) {
        match *op {
            Op::Embedding { table, out } => {
                let table = self.weight(table);
                let row = |&token: &u32| table[token as usize * out.width..][..out.width].to_vec();
                let data: Vec<f32> = self.tokens.iter().flat_map(row).collect();
                self.write(out, &data);
            }
            Op::RmsNorm { x, weight, out, eps } => {
                let weight = self.weight(weight);
                let norm = |group: &[f32]| -> Vec<f32> {
                    let mean = group.iter().map(|x| x * x).sum::<f32>() / group.len() as f32;
                    let scale = 1.0 / (mean + eps).sqrt();
                    group.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
                };
                let data: Vec<f32> = self.read(x).chunks(weight.len()).flat_map(norm).collect();
                self.write(out, &data);
            }
            Op::Linear { x, weight, bias, residual, out } => {
                let weight = self.weight(weight);
                let product = |row: &[f32]| -> Vec<f32> {
                    let dot = |w: &[f32]| row.iter().zip(w).map(|(x, w)| x * w).sum();
                    weight.chunks(x.width).map(dot).collect()
                };
                let mut data: Vec<f32> = self.read(x).chunks(x.width).flat_map(product).collect();
                if let Some(bias) = bias {
                    let bias = self.weight(bias).iter().cycle();
                    data.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                }
                if let Some(residual) = residual {
                    let residual = self.read(residual);
                    data.iter_mut().zip(residual).for_each(|(y, r)| *y += r);
                }
                self.write(out, &data);
            }
            Op::Rope { x, table, head_dim } => {
                let table = self.plan.constant(table);
                let half = table.cols / 2;
                let mut data = self.read(x);
                for (position, row) in data.chunks_mut(x.width).enumerate() {
                    let (cos, sin) =
                        table.data[position * table.cols..][..table.cols].split_at(half);
                    for head in row.chunks_mut(head_dim) {
                        for i in 0..half {
                            let (a, b) = (head[i], head[i + half]);
                            head[i] = a * cos[i] - b * sin[i];
                            head[i + half] = b * cos[i] + a * sin[i];
                        }
                    }
                }
                self.write(x, &data);
            }
            Op::KvAppend { layer, k, v } => {
                let kv = (self.read(k), self.read(v));
                self.cache.insert(layer, kv);
            }
            Op::Attention(attention) => {
                let data = self.attention(&attention);
                self.write(attention.out, &data);
            }
            Op::SiluMul { gate, up, out } => {
                let (gate, up) = (self.read(gate), self.read(up));
                let silu = |x: f32| x / (1.0 + (-x).exp());
                let data: Vec<f32> = gate.iter().zip(up).map(|(g, u)| silu(*g) * u).collect();
                self.write(out, &data);
            }
            Op::GatherRows { x, out } => {
                let data = self.read(x);
                self.write(out, &data);
            }
            Op::Argmax { .. } => {}
        }
    }

    fn attention(&self, op: &Attention) -> Vec<f32> {
        let (q, (k, v)) = (self.read(op.q), &self.cache[&op.layer]);
        let (d, group) = (op.head_dim, op.num_heads / op.num_kv_heads);
        let mut out = vec![0.0; q.len()];
        for (t, out) in out.chunks_mut(op.num_heads * d).enumerate() {
            let first = op.window.map_or(0, |window| (t + 1).saturating_sub(window));
            for (head, out) in out.chunks_mut(d).enumerate() {
                let q = &q[(t * op.num_heads + head) * d..][..d];
                let row = |j: usize| (j * op.num_kv_heads + head / group) * d;
                let score = |j: usize| -> f32 {
                    let dot: f32 = q.iter().zip(&k[row(j)..]).map(|(q, k)| q * k).sum();
                    dot * op.softmax_scale
                };
                let scores: Vec<f32> = (first..=t).map(score).collect();
                let max = scores.iter().copied().fold(f32::MIN, f32::max);
                let sum: f32 = scores.iter().map(|s| (s - max).exp()).sum();
                for (j, score) in (first..=t).zip(scores) {
                    let p = (score - max).exp() / sum;
                    out.iter_mut().zip(&v[row(j)..]).for_each(|(o, v)| *o += p * v);
                }
            }
        }
        out
    }
}

/// `|got - want| / |want|`.
fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = &mut got.iter().zip(want).map(|(g, w)| f64::from(*g) - f64::from(*w));
    norm(difference) / norm(&mut want.iter().map(|w| f64::from(*w)))
}

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens")
}

/// Every golden's model, in each of its formats, and what is expected of it.
fn golden_models() -> Vec<(PathBuf, PathBuf)> {
    let in_dir = |dir: PathBuf| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let expected = |name: &OsStr| goldens().join(name).join("expected.safetensors");
    let dirs = in_dir(goldens()).filter(|dir| dir.join("config.json").exists());
    let files = in_dir(goldens().join("gguf"));
    dirs.map(|dir| (expected(dir.file_name().unwrap()), dir))
        .chain(files.map(|file| (expected(file.file_stem().unwrap()), file)))
        .map(|(expected, model)| (model, expected))
        .collect()
}

#[test]
fn logits_match_transformers() {
    let models = golden_models();
    assert!(models.len() >= 19, "goldens are missing: {models:?}");
    for (path, expected) in models {
        let model = Model::open(&path).unwrap_or_else(|error| panic!("{error}"));
        check_logits(&model, &expected, |_| ());
        assert_eq!(model.stop_tokens(), [2]);
    }
}

/// The logits that were given came from a model that was cast by `.half().float()`. That rounds the frequencies of RoPE
/// to f16 together with the weights, which no checkpoint asks for: transformers loading these directories in float32 is
/// 4.7e-4 to 8.3e-4 away from them.
#[test]
fn given_logits_match_with_rounded_frequencies() {
    for name in ["llama-gqa", "phi3", "qwen2"] {
        let model = Model::open(goldens().join(name)).unwrap();
        let given = goldens().join(name).join("given.safetensors");
        check_logits(&model, &given, |plan| round_frequencies(&model, plan));
    }
}

/// Compares the logits of `model`'s plan, once `change` was made to it, with those in the file `expected`.
fn check_logits(model: &Model, expected: &Path, change: impl Fn(&mut Plan)) {
    let file = std::fs::read(expected).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let words = |name| -> Vec<[u8; 4]> {
        let data = tensors.tensor(name).unwrap().data();
        data.chunks(4).map(|bytes| bytes.try_into().unwrap()).collect()
    };
    let tokens: Vec<u32> = words("input_ids").into_iter().map(u32::from_le_bytes).collect();
    let want: Vec<f32> = words("logits").into_iter().map(f32::from_le_bytes).collect();
    let mut plan = model.plan(bounds(tokens.len()), 2).unwrap();
    change(&mut plan);
    let error = relative_error(&Interpreter::logits(model, &plan, &tokens), &want);
    println!("{}: {error:.2e}", expected.display());
    assert!(error < 1e-5, "{}: relative error {error:.2e}", expected.display());
}

/// Replaces the table of RoPE by one of frequencies rounded to f16.
fn round_frequencies(model: &Model, plan: &mut Plan) {
    let table = &mut plan.constants[0];
    let frequencies = model.config().rope.inv_freq(table.rows);
    let angle = |position: usize, f: &f32| position as f32 * half::f16::from_f32(*f).to_f32();
    let row = |position: usize| {
        let angles = frequencies.iter().map(move |f| angle(position, f));
        angles.clone().map(f32::cos).chain(angles.map(f32::sin)).collect::<Vec<f32>>()
    };
    table.data = (0..table.rows).flat_map(row).collect();
}

/// One sequence of `len` new tokens, all of whose logits are wanted.
fn bounds(len: usize) -> Bounds {
    Bounds { max_tokens: len, max_seqs: 1, max_q_len: len, max_logit_rows: len, max_kv_len: len }
}

#[test]
fn the_memory_is_that_of_the_plan() {
    for golden in ["llama-gqa", "phi3-partial-rotary", "qwen2-window"] {
        let model = Model::open(goldens().join(golden)).unwrap();
        let bounds = Bounds { max_seqs: 3, max_kv_len: 200, ..bounds(32) };
        let plan = model.plan(bounds, 12).unwrap();
        assert_eq!(model.memory(bounds, 12).unwrap(), plan.memory(), "{golden}");
        assert!(model.memory(Bounds { max_kv_len: 0, ..bounds }, 12).is_err());
    }
}

#[test]
fn the_final_norm_runs_on_gathered_rows_only() {
    let model = Model::open(goldens().join("llama-gqa")).unwrap();
    let plan = model.plan(bounds(8), 1).unwrap();
    let of_logits = |view: View| plan.tensor(view.tensor).rows == Rows::Logits;
    let behind = plan.ops.iter().skip_while(|op| !matches!(op, Op::GatherRows { .. })).skip(1);
    let reads: Vec<View> = behind.flat_map(|op| op.reads()).collect();
    assert!(reads.len() == 3 && reads.into_iter().all(of_logits));
}

#[test]
fn plans_of_one_context_share_their_table() {
    let model = Model::open(goldens().join("llama-gqa")).unwrap();
    let table = |max_tokens| {
        let bounds = Bounds { max_tokens, max_q_len: max_tokens, ..bounds(64) };
        model.plan(bounds, 1).unwrap().constants[0].data.clone()
    };
    assert!(Arc::ptr_eq(&table(64), &table(1)));
    assert_eq!(model.plan(bounds(65), 2).unwrap().constants[0].rows, 65);
}

#[test]
fn a_context_beyond_the_model_is_an_error() {
    let model = Model::open(goldens().join("llama-gqa")).unwrap();
    for len in [0, 513, usize::MAX] {
        let error = model.plan(bounds(len), 1).unwrap_err().to_string();
        let expected = format!("a context of {len} positions: this model takes 1 to 512");
        assert_eq!(error, expected);
    }
}

/// Golden `name` with `field` of its config.json set to `value`.
fn changed(name: &str, field: &str, value: serde_json::Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in goldens().join(name).read_dir().unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let path = dir.path().join("config.json");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config[field] = value;
    std::fs::write(path, config.to_string()).unwrap();
    dir
}

/// What is wrong with golden `name` after `field` of its config.json was set to `value`.
fn error_with(name: &str, field: &str, value: serde_json::Value) -> String {
    Model::open(changed(name, field, value).path()).unwrap_err().to_string()
}

/// transformers 5.17 warns and computes the same logits.
#[test]
fn an_output_projection_of_its_own_is_not_tied() {
    let golden = goldens().join("llama-bias");
    assert!(!Model::open(&golden).unwrap().config().tie_word_embeddings);
    let dir = changed("llama-bias", "tie_word_embeddings", true.into());
    let model = Model::open(dir.path()).unwrap();
    check_logits(&model, &golden.join("expected.safetensors"), |_| ());
}

/// As Qwen3's embedding models are saved; transformers 5.17 loads them for generation all the same.
#[test]
fn names_may_lack_the_prefix_of_the_model() {
    for name in ["llama-bias", "phi3-partial-rotary"] {
        let dir = changed(name, "architectures", serde_json::Value::Null);
        let path = dir.path().join("model.safetensors");
        let file = std::fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let bare = tensors.iter().map(|(name, tensor)| (name.trim_start_matches("model."), tensor));
        std::fs::remove_file(&path).unwrap();
        safetensors::serialize_to_file(bare, None, &path).unwrap();
        let model = Model::open(dir.path()).unwrap();
        check_logits(&model, &goldens().join(name).join("expected.safetensors"), |_| ());
    }
}

#[test]
fn rejects_a_checkpoint_that_its_configuration_does_not_fit() {
    for (name, field, value, expected) in [
        ("llama-gqa", "vocab_size", 255, "`model.embed_tokens.weight` has shape [256, 128]"),
        ("llama-gqa", "intermediate_size", 353, "makes it [353, 128]"),
        ("llama-gqa", "num_hidden_layers", 3, "`model.layers.2.input_layernorm.weight` is missing"),
        ("llama-gqa", "head_dim", 32, "`model.layers.0.self_attn.q_proj.weight` has shape"),
        ("phi3", "num_key_value_heads", 1, "`model.layers.0.self_attn.qkv_proj.weight` has shape"),
        ("llama-gqa", "max_position_embeddings", 0, "`max_position_embeddings` is 0"),
    ] {
        let error = error_with(name, field, value.into());
        assert!(error.contains(expected), "`{error}` does not say `{expected}`");
    }
    for (name, field, missing) in [
        ("llama-gqa", "attention_bias", "`model.layers.0.self_attn.q_proj.bias`"),
        ("llama-gqa", "mlp_bias", "`model.layers.0.mlp.gate_proj.bias`"),
    ] {
        let error = error_with(name, field, true.into());
        assert!(error.contains(missing), "`{error}` does not say `{missing}`");
    }
    let untied = error_with("qwen3", "tie_word_embeddings", false.into());
    assert!(untied.contains("`lm_head.weight` is missing"), "{untied}");
}
