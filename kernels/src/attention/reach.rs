//! Which keys a query sees, in the terms of the kernels' mask: `position - window < key <= position`.

/// The keys that queries see. In attention that is not causal a window `w` reaches to both sides:
/// the query at `p` sees the keys `p - w < key < p + w`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    pub causal: bool,
    pub window: Option<usize>,
}

impl Reach {
    /// The window of the mask.
    pub fn mask_window(&self) -> Option<usize> {
        match self.window {
            Some(window) if !self.causal => Some(window.saturating_mul(2) - 1),
            window => window,
        }
    }

    /// The mask's window as an argument: a larger one than it holds never masks.
    pub fn window_arg(&self) -> u32 {
        self.mask_window().map_or(u32::MAX, |window| window.min(u32::MAX as usize) as u32)
    }

    /// The mask's position of the query at `position` of `kv_len`: its own; the last one, which
    /// sees all; or that of the last key of a window to both sides.
    pub fn mask_position(&self, position: u32, kv_len: u32) -> u32 {
        match self.window {
            _ if self.causal => position,
            None => kv_len - 1,
            Some(window) => position + (window.min(kv_len as usize) as u32).saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_shows_the_keys_within_reach() {
        let kv_len = 9;
        for (causal, window) in [(true, None), (true, Some(3)), (false, None)]
            .into_iter()
            .chain([1, 2, 4, 8, 9, 10, 100].map(|window| (false, Some(window))))
        {
            let reach = Reach { causal, window };
            for (query, key) in (0..kv_len).flat_map(|q| (0..kv_len).map(move |key| (q, key))) {
                let position = reach.mask_position(query, kv_len);
                let is_masked_in = key <= position && position - key < reach.window_arg();
                let distance = query.abs_diff(key) as usize;
                let is_seen = (!causal || key <= query) && window.is_none_or(|w| distance < w);
                assert_eq!(is_masked_in, is_seen, "{reach:?}: query {query}, key {key}");
            }
        }
    }
}
