//! Gated DeltaNet: its convolution and its recurrence, each over a whole sequence.

/// What [`delta_rule`] is of.
pub struct Gated<'a> {
    /// `[num_tokens, num_k_heads * k_dim]`.
    pub q: &'a [f32],
    /// As `q`.
    pub k: &'a [f32],
    /// `[num_tokens, num_heads * v_dim]`.
    pub v: &'a [f32],
    /// `[num_tokens, 2 * num_heads]`: b of each head, then a of each.
    pub gates: &'a [f32],
    /// `[num_heads]`, not above 0.
    pub rate: &'a [f32],
    /// `[num_heads]`, added to a.
    pub bias: &'a [f32],
    /// `num_heads`, `num_k_heads`, `k_dim`, `v_dim`.
    pub heads: [usize; 4],
    /// Whether heads that share a key are `num_k_heads` apart; else they are neighbours.
    pub is_tiled: bool,
}

/// `out[t, c] = silu(sum_j weight[c, j] * x[t - taps + 1 + j, c])`, of zeros before the start.
pub fn causal_conv(x: &[f32], weight: &[f32], taps: usize) -> Vec<f64> {
    let channels = weight.len() / taps;
    let at = |t: usize, c: usize| {
        let before = |j: usize| (t + j + 1).checked_sub(taps);
        let product =
            |j: usize| Some(f64::from(x[before(j)? * channels + c] * weight[c * taps + j]));
        let sum: f64 = (0..taps).filter_map(product).sum();
        sum / (1.0 + (-sum).exp())
    };
    (0..x.len()).map(|i| at(i / channels, i % channels)).collect()
}

/// The outputs, `[num_tokens, num_heads * v_dim]`, and the last state, `[num_heads, k_dim, v_dim]`.
pub fn delta_rule(of: &Gated) -> (Vec<f64>, Vec<f64>) {
    let [num_heads, num_k_heads, k_dim, v_dim] = of.heads;
    let num_tokens = of.gates.len() / (2 * num_heads);
    let mut out = vec![0.0; num_tokens * num_heads * v_dim];
    let mut states = vec![0.0; num_heads * k_dim * v_dim];
    for (head, state) in states.chunks_mut(k_dim * v_dim).enumerate() {
        let k_head = if of.is_tiled { head % num_k_heads } else { head * num_k_heads / num_heads };
        let (rate, bias) = (f64::from(of.rate[head]), f64::from(of.bias[head]));
        for t in 0..num_tokens {
            let unit = |x: &[f32]| -> Vec<f64> {
                let x = x[(t * num_k_heads + k_head) * k_dim..][..k_dim].iter();
                let x: Vec<f64> = x.map(|&x| f64::from(x)).collect();
                let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / length).collect()
            };
            let (q, k) = (unit(of.q), unit(of.k));
            let gate = |i: usize| f64::from(of.gates[(2 * t + i) * num_heads + head]);
            let beta = 1.0 / (1.0 + (-gate(0)).exp());
            let decay = (rate * (gate(1) + bias).exp().ln_1p()).exp();
            state.iter_mut().for_each(|s| *s *= decay);
            for i in 0..v_dim {
                let place = (t * num_heads + head) * v_dim + i;
                let known: f64 = (0..k_dim).map(|j| state[j * v_dim + i] * k[j]).sum();
                let delta = beta * (f64::from(of.v[place]) - known);
                (0..k_dim).for_each(|j| state[j * v_dim + i] += k[j] * delta);
                let read: f64 = (0..k_dim).map(|j| state[j * v_dim + i] * q[j]).sum();
                out[place] = read / (k_dim as f64).sqrt();
            }
        }
    }
    (out, states)
}
