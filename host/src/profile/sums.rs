//! Sums of a step's operations: by what they compute, and by layer.

use super::{OpProfile, Rated, StepProfile};
use serde::Serialize;

/// The operations of a step that compute the same in each layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpSum {
    /// What they do.
    pub op: &'static str,
    /// What of a layer they compute.
    pub subject: String,
    /// How many they are.
    pub count: usize,
    /// Time that they take, in microseconds.
    pub us: f64,
    /// Bytes that they read and write.
    pub bytes: usize,
    /// Floating-point operations that they do.
    pub flops: usize,
}

impl Rated for OpSum {
    fn us(&self) -> f64 {
        self.us
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn flops(&self) -> usize {
        self.flops
    }
}

/// The operations of a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerSum {
    /// The layer; `None` for what comes before the first and after the last.
    pub layer: Option<usize>,
    /// Time of the layer's operations, in microseconds.
    pub us: f64,
}

impl StepProfile {
    /// Sums by operation, the longest first.
    pub fn by_op(&self) -> Vec<OpSum> {
        let mut sums: Vec<OpSum> = Vec::new();
        for profile in &self.ops {
            let OpProfile { op, subject, us, flops, .. } = profile;
            let found = sums.iter().position(|sum| (sum.op, &sum.subject) == (*op, subject));
            let index = found.unwrap_or(sums.len());
            if found.is_none() {
                let (op, subject) = (*op, subject.clone());
                sums.push(OpSum { op, subject, count: 0, us: 0.0, bytes: 0, flops: 0 });
            }
            let sum = &mut sums[index];
            sum.count += 1;
            sum.us += us;
            sum.bytes += profile.bytes();
            sum.flops += flops;
        }
        sums.sort_by(|a, b| b.us.total_cmp(&a.us));
        sums
    }

    /// Sums by layer, in order; what is of no layer comes last.
    pub fn by_layer(&self) -> Vec<LayerSum> {
        let num_layers = self.ops.iter().filter_map(|op| op.layer).max().map_or(0, |max| max + 1);
        let layers = (0..num_layers).map(Some).chain([None]);
        layers
            .map(|layer| {
                let ops = self.ops.iter().filter(|op| op.layer == layer);
                // The sum of no numbers would be -0.
                LayerSum { layer, us: ops.fold(0.0, |us, op| us + op.us) }
            })
            .collect()
    }
}
