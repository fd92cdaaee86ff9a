//! The values that each operation stores, in two settings: where they overflow, and where they lose
//! precision.

use super::logits::ratio_of_norms;
use crate::plan::{Dtype, Linear, Op, Plan, View};
use half::{bf16, f16};

/// What an operation stored.
#[derive(Clone, Debug, PartialEq)]
pub struct OpOutput {
    /// What it is.
    pub place: OutputName,
    /// Element type of the memory.
    pub dtype: Dtype,
    /// Columns.
    pub width: usize,
    /// `[num_rows, width]`.
    pub values: Vec<f32>,
}

/// A value of a step: what an operation stored in a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputName {
    /// The layer; none before the first and after the last.
    pub layer: Option<usize>,
    /// The operation's result, such as `gate_up`.
    pub name: String,
    /// Whether it is the residual stream, with what the operation added.
    pub is_residual: bool,
}

impl std::fmt::Display for OutputName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layer {layer}, {}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl OutputName {
    /// What `op` stores, and where; `None` for one whose result is no activation of every form.
    pub fn of(plan: &Plan, op: &Op) -> Option<(OutputName, View)> {
        let out = match op {
            // Beside the weights of experts there are their numbers.
            Op::Route(route) => route.weights,
            _ => op.writes().first().copied()?,
        };
        let is_residual =
            matches!(op, Op::Add { .. } | Op::Linear(Linear { residual: Some(_), .. }));
        // The name of a weight says more than that of an activation that others write too.
        let label = match *op {
            // Of the scores of keys that a token does not see nothing is written.
            Op::Sample { .. } | Op::AttentionScores(_) | Op::AttentionSoftmax(_) => return None,
            Op::Linear(Linear { weight, residual: Some(_), .. })
            | Op::RmsNorm { weight, .. }
            | Op::Embedding { table: weight, .. } => &plan.weight(weight).name,
            // As the linear layer that is fused with it.
            Op::Add { x, .. } => &plan.tensor(x.tensor).name,
            _ => &plan.tensor(out.tensor).name,
        };
        let layer = plan.op_layer(op);
        let name = match (op, layer) {
            (Op::Rope { .. } | Op::RopeAppend(_), _) => "rope",
            (_, Some(layer)) => label.strip_prefix(&format!("layers.{layer}.")).unwrap_or(label),
            (_, None) => label,
        };
        Some((OutputName { layer, name: name.to_owned(), is_residual }, out))
    }
}

/// The sizes of values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Magnitude {
    /// Largest finite `|x|`.
    pub max_abs: f64,
    /// Root of the mean of the finite squares.
    pub rms: f64,
    /// Infinite values.
    pub num_inf: usize,
    /// Values that are not a number.
    pub num_nan: usize,
    /// Values at the largest number of the type, to which an operation clamps those beyond it.
    pub num_clamped: usize,
}

impl Magnitude {
    /// The magnitude of `values`, stored as `dtype`.
    pub fn new(values: &[f32], dtype: Dtype) -> Self {
        let largest = largest(dtype);
        let mut magnitude = Magnitude::default();
        let (mut sum, mut count) = (0.0, 0usize);
        for &value in values {
            let size = f64::from(value).abs();
            magnitude.num_nan += usize::from(size.is_nan());
            magnitude.num_inf += usize::from(size.is_infinite());
            if size.is_finite() {
                magnitude.max_abs = magnitude.max_abs.max(size);
                magnitude.num_clamped += usize::from(size == largest);
                sum += size * size;
                count += 1;
            }
        }
        magnitude.rms = (sum / count.max(1) as f64).sqrt();
        magnitude
    }

    /// Whether all values are finite.
    pub fn is_finite(&self) -> bool {
        self.num_inf + self.num_nan == 0
    }

    /// What does not fit into the type, if anything does not: `inf`, `nan`, `clamped`.
    pub fn overflow(&self) -> Option<&'static str> {
        match self {
            _ if self.num_inf > 0 => Some("inf"),
            _ if self.num_nan > 0 => Some("nan"),
            _ if self.num_clamped > 0 => Some("clamped"),
            _ => None,
        }
    }
}

/// The largest finite number of a type.
pub fn largest(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => f16::MAX.to_f64(),
        Dtype::BF16 => bf16::MAX.to_f64(),
        _ => f64::from(f32::MAX),
    }
}

/// The values of one operation in both settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The operation.
    pub place: OutputName,
    /// Element types, of reference and candidate.
    pub dtypes: [Dtype; 2],
    /// Magnitude of the reference's values.
    pub reference: Magnitude,
    /// Magnitude of the candidate's values.
    pub candidate: Magnitude,
    /// Norm of the difference over the norm of the reference; infinite where a value is not finite.
    pub error: f64,
    /// Largest difference of a value.
    pub max_difference: f64,
}

impl Difference {
    /// Compares what both stored; of rows of different widths the columns that both have.
    pub fn new(reference: &OpOutput, candidate: &OpOutput) -> Self {
        let width = reference.width.min(candidate.width).max(1);
        let rows = reference
            .values
            .chunks(reference.width.max(1))
            .zip(candidate.values.chunks(candidate.width.max(1)));
        let pairs = rows.flat_map(|(r, c)| r[..width].iter().zip(&c[..width]));
        let (mut difference, mut norm, mut max_difference) = (0.0, 0.0, 0.0f64);
        for (&r, &c) in pairs {
            let (r, c) = (f64::from(r), f64::from(c));
            let apart = if r.is_finite() && c.is_finite() { (c - r).abs() } else { f64::INFINITY };
            difference += apart * apart;
            norm += if r.is_finite() { r * r } else { 0.0 };
            max_difference = max_difference.max(apart);
        }
        Difference {
            place: reference.place.clone(),
            dtypes: [reference.dtype, candidate.dtype],
            reference: Magnitude::new(&reference.values, reference.dtype),
            candidate: Magnitude::new(&candidate.values, candidate.dtype),
            error: ratio_of_norms(difference, norm),
            max_difference,
        }
    }

    /// How many times larger the values could be in the candidate's type.
    pub fn headroom(&self) -> f64 {
        largest(self.dtypes[1]) / self.candidate.max_abs
    }

    /// What overflowed in the candidate and not in the reference.
    pub fn overflow(&self) -> Option<&'static str> {
        self.candidate.overflow().filter(|_| self.reference.overflow().is_none())
    }
}

/// Compares the values of both settings, in the order of the reference's operations. What a fused
/// operation does not store is left out.
pub fn compare(reference: &[OpOutput], candidate: &[OpOutput]) -> Vec<Difference> {
    let mut others = candidate.iter();
    let found = reference.iter().filter_map(|stored| {
        let mut rest = others.clone();
        let other = rest.find(|other| other.place == stored.place)?;
        others = rest;
        Some(Difference::new(stored, other))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use crate::plan::{Bounds, Numerics, Precision};

    fn stored(name: &str, dtype: Dtype, width: usize, values: &[f32]) -> OpOutput {
        let place = OutputName { layer: Some(1), name: name.to_owned(), is_residual: false };
        OpOutput { place, dtype, width, values: values.to_vec() }
    }

    #[test]
    fn magnitudes_by_hand() {
        let values = [3.0, -4.0, f32::NEG_INFINITY, f32::NAN];
        let magnitude = Magnitude::new(&values, Dtype::F32);
        let rms = (25.0f64 / 2.0).sqrt();
        let want = Magnitude { max_abs: 4.0, rms, num_inf: 1, num_nan: 1, num_clamped: 0 };
        assert_eq!(magnitude, want);
        assert_eq!(magnitude.overflow(), Some("inf"));
        assert_eq!(Magnitude::new(&[f32::NAN], Dtype::F32).overflow(), Some("nan"));
        assert_eq!(Magnitude::new(&[-65504.0], Dtype::F16).overflow(), Some("clamped"));
        assert_eq!(Magnitude::new(&[-65504.0], Dtype::BF16).overflow(), None);
        assert_eq!(Magnitude::new(&[], Dtype::F16), Magnitude::default());
    }

    #[test]
    fn differences_by_hand() {
        let reference = stored("x", Dtype::F32, 2, &[3.0, 4.0, 0.0, 12.0]);
        let candidate = stored("x", Dtype::F16, 2, &[3.0, 4.0, 1.3, 12.0]);
        let difference = Difference::new(&reference, &candidate);
        assert!((difference.error - 0.1).abs() < 1e-7, "{}", difference.error);
        assert!((difference.max_difference - 1.3).abs() < 1e-7);
        assert!((difference.headroom() - 65504.0 / 12.0).abs() < 1e-9);
        assert_eq!(difference.overflow(), None);

        // Of narrower rows the columns that are there.
        let narrow = stored("x", Dtype::F16, 1, &[3.0, 0.0]);
        assert_eq!(Difference::new(&reference, &narrow).error, 0.0);

        let overflown = stored("x", Dtype::F16, 2, &[3.0, f32::INFINITY, 0.0, 12.0]);
        let difference = Difference::new(&reference, &overflown);
        assert_eq!((difference.error, difference.overflow()), (f64::INFINITY, Some("inf")));
        let both = Difference::new(&overflown, &overflown);
        assert_eq!((both.error, both.overflow()), (f64::INFINITY, None));
    }

    #[test]
    fn what_only_one_setting_stores_is_left_out() {
        let of = |names: &[&str]| -> Vec<OpOutput> {
            names.iter().map(|name| stored(name, Dtype::F32, 1, &[1.0])).collect()
        };
        let all = of(&["norm", "qkv", "gate_up", "gated", "down"]);
        let names = |differences: Vec<Difference>| -> Vec<String> {
            differences.into_iter().map(|difference| difference.place.name).collect()
        };
        let fused = of(&["qkv", "gated", "down"]);
        assert_eq!(names(compare(&all, &fused)), ["qkv", "gated", "down"]);
        assert_eq!(names(compare(&fused, &all)), ["qkv", "gated", "down"]);
    }

    /// Every operation of a model has a place of its own, in the layer that it is in.
    #[test]
    fn places_of_a_model() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/qwen3");
        let model = Model::open(golden).unwrap();
        let bounds = Bounds { max_kv_len: 64, ..Bounds::one_sequence(4) };
        let plan = model.plan(&Numerics::from(Precision::F32), bounds, 1).unwrap();
        let places: Vec<OutputName> =
            plan.ops.iter().filter_map(|op| Some(OutputName::of(&plan, op)?.0)).collect();
        let shown: Vec<String> = places.iter().map(OutputName::to_string).collect();
        let in_layer = |layer: usize| {
            let names = [
                "attention_norm",
                "qkv",
                "q_norm",
                "k_norm",
                "rope",
                "attention",
                // By itself, then added to the residual stream.
                "attention_out",
                "attention_out",
                "mlp_norm",
                "gate_up",
                "gated",
                "down",
                "down",
            ];
            names.map(|name| format!("layer {layer}, {name}"))
        };
        let [first, second] = [in_layer(0), in_layer(1)];
        let ends = ["last_hidden", "final_norm", "logits"].map(str::to_owned);
        let want = [&["embedding".to_owned()][..], &first, &second, &ends].concat();
        assert_eq!(shown, want);
        let residual = places.iter().filter(|place| place.is_residual);
        assert_eq!(residual.count(), 4);
    }
}
