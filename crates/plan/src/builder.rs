//! Building a plan operation by operation.

use super::{
    Bounds, Constant, ConstantId, Dtype, KvLayout, Numerics, Op, Plan, PlanError, Rank, Rows,
    StateLayout, Tensor, TensorId, View, Weight, WeightId,
};

/// A plan that is being built: hands out the ids of what is added to it.
#[derive(Debug)]
pub struct PlanBuilder {
    rank: Rank,
    tensors: Vec<Tensor>,
    weights: Vec<Weight>,
    constants: Vec<Constant>,
    ops: Vec<Op>,
    layer: Option<usize>,
    states: StateLayout,
}

impl Default for PlanBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl PlanBuilder {
    /// An empty plan of a model on one device.
    pub fn new() -> Self {
        Self::of_rank(Rank::ALONE)
    }

    /// An empty plan of one of several devices.
    pub fn of_rank(rank: Rank) -> Self {
        let (tensors, weights, constants, ops) = (vec![], vec![], vec![], vec![]);
        let states = StateLayout::default();
        PlanBuilder { rank, tensors, weights, constants, ops, layer: None, states }
    }

    /// Says of which layer of the model the activations are that are added from now on.
    pub fn set_layer(&mut self, layer: Option<usize>) {
        self.layer = layer;
    }

    /// Says what sequences keep beside the cache.
    pub fn set_states(&mut self, states: StateLayout) {
        self.states = states;
    }

    /// Adds an activation; the view is all of its columns.
    pub fn activation(
        &mut self,
        name: impl Into<String>,
        rows: Rows,
        width: usize,
        dtype: Dtype,
    ) -> View {
        self.tensors.push(Tensor { name: name.into(), layer: self.layer, rows, width, dtype });
        View { tensor: TensorId(self.tensors.len() - 1), start: 0, width }
    }

    /// Adds a weight.
    pub fn weight(&mut self, weight: Weight) -> WeightId {
        self.weights.push(weight);
        WeightId(self.weights.len() - 1)
    }

    /// The weight of this name, if it was added.
    pub fn find_weight(&self, name: &str) -> Option<WeightId> {
        self.weights.iter().position(|weight| weight.name == name).map(WeightId)
    }

    /// Adds a table.
    pub fn constant(&mut self, constant: Constant) -> ConstantId {
        self.constants.push(constant);
        ConstantId(self.constants.len() - 1)
    }

    /// Adds an operation after those that are there.
    pub fn op(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// What counts the rows of `view`.
    pub fn rows(&self, view: View) -> Rows {
        self.tensors[view.tensor.0].rows
    }

    /// The element type of `view`'s activation.
    pub fn dtype(&self, view: View) -> Dtype {
        self.tensors[view.tensor.0].dtype
    }

    /// The plan, with its outputs, computed as `numerics` says.
    ///
    /// # Errors
    /// As [`Plan::check`].
    pub fn finish(
        self,
        numerics: &Numerics,
        bounds: Bounds,
        kv: KvLayout,
        output: View,
        next_tokens: impl Into<Option<View>>,
    ) -> Result<Plan, PlanError> {
        let PlanBuilder { rank, tensors, weights, constants, ops, states, .. } = self;
        let (numerics, next_tokens) = (*numerics, next_tokens.into());
        let plan = Plan {
            rank,
            bounds,
            tensors,
            weights,
            constants,
            kv,
            states,
            ops,
            output,
            next_tokens,
            numerics,
        };
        plan.check()?;
        Ok(plan)
    }
}
