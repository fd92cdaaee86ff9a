//! The recurrent states of sequences, beside the paged KV cache.

/// How much of sequences is kept between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSize {
    /// Pages of each pool of the KV cache, of layers without a window.
    pub num_pages: usize,
    /// Pages of each pool of layers with one.
    pub num_window_pages: usize,
    /// Sequences that have a recurrent state at a time, in models that have one.
    pub num_states: usize,
}

impl From<usize> for CacheSize {
    /// So many pages, and a state for each: no sequence has less than a page.
    fn from(num_pages: usize) -> Self {
        CacheSize { num_pages, num_window_pages: num_pages, num_states: num_pages }
    }
}

/// Layout and size of the recurrent states.
///
/// Each layer has two pools of f32: the last inputs of the convolution, oldest first, `[num_slots,
/// conv_len, conv_channels]`, and the states of the delta rule, `[num_slots, num_heads, k_dim,
/// v_dim]`. A sequence owns a slot. What it holds counts from the second step of the sequence on:
/// one whose first new token is at position 0 begins with zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// Layers that have a state.
    pub num_layers: usize,
    /// Sequences that have one at a time.
    pub num_slots: usize,
    /// Channels of the convolution.
    pub conv_channels: usize,
    /// Inputs of the convolution that are kept: one less than it has taps.
    pub conv_len: usize,
    /// Value heads.
    pub num_heads: usize,
    /// Elements of a key.
    pub k_dim: usize,
    /// Elements of a value.
    pub v_dim: usize,
}

impl StateLayout {
    /// Elements that a sequence has in a layer, of the convolution and of the delta rule.
    pub fn slot_elems(&self) -> [usize; 2] {
        [self.conv_len * self.conv_channels, self.num_heads * self.k_dim * self.v_dim]
    }

    /// Bytes of the two pools of a layer.
    pub fn pool_bytes(&self) -> [usize; 2] {
        self.slot_elems().map(|elems| self.num_slots * elems * size_of::<f32>())
    }

    /// Bytes of all states.
    pub fn bytes(&self) -> usize {
        self.num_layers * self.pool_bytes().iter().sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Qwen3.5-35B-A3B: 30 layers of 32 heads, and of 8192 channels.
    #[test]
    fn bytes_are_those_of_all_layers_and_slots() {
        let layout = StateLayout {
            num_layers: 30,
            num_slots: 2,
            conv_channels: 8192,
            conv_len: 3,
            num_heads: 32,
            k_dim: 128,
            v_dim: 128,
        };
        assert_eq!(layout.pool_bytes(), [(2 * 3 * 32) << 10, (2 * 2) << 20]);
        assert_eq!(layout.bytes(), 2 * (62_914_560 + 30 * 98_304));
        assert_eq!(StateLayout::default().bytes(), 0);
    }
}
