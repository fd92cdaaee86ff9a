//! cuda_loader
