//! The activations of gates: a new one is a row of the table here.

macro_rules! activations {
    ($($(#[$doc:meta])* $activation:ident, $name:literal, in config.json $config_names:expr;)*) => {
        /// The activation of a feed-forward layer's gate: `activation(gate) * up`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Activation {
            $($(#[$doc])* $activation,)*
        }

        impl Activation {
            /// All of them.
            pub const ALL: [Activation; [$($name),*].len()] = [$(Activation::$activation),*];

            /// Name of the activation in symbols.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Activation::$activation => $name,)*
                }
            }

            /// Name of the operation `activation(gate) * up` in reports.
            pub const fn gate_name(self) -> &'static str {
                match self {
                    $(Activation::$activation => concat!($name, "_mul"),)*
                }
            }

            /// Name of that operation and the linear layer after it in reports.
            pub const fn gate_linear_name(self) -> &'static str {
                match self {
                    $(Activation::$activation => concat!($name, "_linear"),)*
                }
            }

            /// Names of the activation in `config.json`; GGUF has none.
            pub const fn config_names(self) -> &'static [&'static str] {
                match self {
                    $(Activation::$activation => &$config_names,)*
                }
            }
        }
    };
}

activations! {
    /// `x * sigmoid(x)`. Source: arXiv:1702.03118.
    Silu, "silu", in config.json ["silu", "swish"];
}

impl Activation {
    /// The one that `config.json` names so.
    pub fn from_config(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|activation| activation.config_names().contains(&name))
    }
}
