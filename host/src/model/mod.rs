//! Configurations of model families, and the one decoder that turns a configuration into a plan.
