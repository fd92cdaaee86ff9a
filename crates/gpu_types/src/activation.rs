//! The activations of gates: a new one is a row of the table here.

macro_rules! activations {
    ($($(#[$doc:meta])* $activation:ident, $name:literal, in config.json $config_names:expr;)*
     @ of rows alone: $($(#[$row_doc:meta])* $row:ident, $row_name:literal;)*) => {
        /// The activation of a feed-forward layer's gate: `activation(gate) * up`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Activation {
            $($(#[$doc])* $activation,)*
            $($(#[$row_doc])* $row,)*
        }

        impl Activation {
            /// All of them.
            pub const ALL: [Activation; [$($name,)* $($row_name),*].len()] =
                [$(Activation::$activation,)* $(Activation::$row),*];

            /// Activations that kernels fuse with linear layers that are no experts'.
            pub const FUSED: [Activation; [$($name),*].len()] = [$(Activation::$activation),*];

            /// Name of the activation in symbols.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Activation::$activation => $name,)*
                    $(Activation::$row => $row_name,)*
                }
            }

            /// Name of the operation `activation(gate) * up` in reports.
            pub const fn gate_name(self) -> &'static str {
                match self {
                    $(Activation::$activation => concat!($name, "_mul"),)*
                    $(Activation::$row => concat!($row_name, "_mul"),)*
                }
            }

            /// Name of that operation and the linear layer after it in reports.
            pub const fn gate_linear_name(self) -> &'static str {
                match self {
                    $(Activation::$activation => concat!($name, "_linear"),)*
                    $(Activation::$row => concat!($row_name, "_linear"),)*
                }
            }

            /// Names of the activation in `config.json`; GGUF has none.
            pub const fn config_names(self) -> &'static [&'static str] {
                match self {
                    $(Activation::$activation => &$config_names,)*
                    $(Activation::$row => &[],)*
                }
            }
        }
    };
}

activations! {
    /// `x * sigmoid(x)`. Source: arXiv:1702.03118.
    Silu, "silu", in config.json ["silu", "swish"];
    /// GELU by its approximation with tanh: `x * sigmoid(2 * u)`, where `u` is
    /// `SLOPE * (x + CUBIC * x^3)`, of [`Activation::GELU_SLOPE`] and [`Activation::GELU_CUBIC`]. Source: arXiv:1606.08415.
    GeluTanh, "gelu_tanh", in config.json ["gelu_pytorch_tanh"];
    @ of rows alone:
    /// The gate of gpt-oss: with `g = min(gate, LIMIT)` and `u = clamp(up, -LIMIT, LIMIT)` the gate is
    /// `g * sigmoid(ALPHA * g) * (u + 1)`, of [`Activation::SWIGLU_LIMIT`] and
    /// [`Activation::SWIGLU_ALPHA`].
    SwigluOai, "swiglu_oai";
}

impl Activation {
    /// `sqrt(2 / pi)`, of [`Activation::GeluTanh`].
    pub const GELU_SLOPE: f32 = 0.797_884_6;
    /// Multiplies the cube in [`Activation::GeluTanh`].
    pub const GELU_CUBIC: f32 = 0.044_715;
    /// Multiplies the sigmoid's argument in [`Activation::SwigluOai`].
    pub const SWIGLU_ALPHA: f32 = 1.702;
    /// Bound of gate and up in [`Activation::SwigluOai`].
    pub const SWIGLU_LIMIT: f32 = 7.0;

    /// The one that `config.json` names so.
    pub fn from_config(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|activation| activation.config_names().contains(&name))
    }
}
