//! Gated DeltaNet: the convolution before it, and the delta rule with a state for each sequence.

pub mod chunk;
pub mod conv;
pub mod rule;

#[cfg(not(target_arch = "nvptx64"))]
pub use seqs::StateSeqs;

#[cfg(not(target_arch = "nvptx64"))]
mod seqs {
    use cuda_std::launch::DevicePtr;

    /// The sequences of a step, and where their states are: step inputs.
    #[derive(Clone, Copy, Debug)]
    pub struct StateSeqs {
        /// Number of sequences.
        pub num_seqs: DevicePtr<u32>,
        /// First row of each, and the number of rows.
        pub cu_seqlens_q: DevicePtr<u32>,
        /// Positions of each, the step's included: as many as rows at the start of a sequence.
        pub kv_lens: DevicePtr<u32>,
        /// `[num_seqs, 2]`: slots that the state of each is read from and written to, 8-byte aligned.
        pub slots: DevicePtr<u32>,
    }
}
