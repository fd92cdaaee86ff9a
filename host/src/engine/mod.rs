//! Requests: batching, the paged KV cache, sampling, scheduling.
