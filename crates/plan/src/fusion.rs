//! Which fusions a plan may make.

use std::fmt;
use std::str::FromStr;

/// The fusions that a plan may make, each by its name. An executor makes those of them that it has
/// a kernel for; what is off runs as operations of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fusion {
    /// RMSNorm as the operand of the linear layer after it, or with a router and its choice.
    pub norm_gemm: bool,
    /// The SwiGLU gate as the epilogue of the linear layer of gate and up.
    pub gemm_swiglu: bool,
    /// RoPE of Q and K with the append of K and V, and both with the attention of a decode step.
    pub rope_append: bool,
    /// The residual as the epilogue of the linear layer, norm or gate that is added to it.
    pub residual: bool,
    /// RMSNorm of the heads of Q and K with their RoPE and append, where those are fused.
    pub qk_norm: bool,
    /// The expert that every token goes to as one more of those that are chosen.
    pub shared_expert: bool,
}

/// A name that is no fusion's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fusion {0:?}: on, off, or some of {names} separated by commas", names = Fusion::NAMES.join(", "))]
pub struct UnknownFusion(String);

impl Fusion {
    /// Every fusion.
    pub const ALL: Fusion = Fusion {
        norm_gemm: true,
        gemm_swiglu: true,
        rope_append: true,
        residual: true,
        qk_norm: true,
        shared_expert: true,
    };

    /// No fusion.
    pub const NONE: Fusion = Fusion {
        norm_gemm: false,
        gemm_swiglu: false,
        rope_append: false,
        residual: false,
        qk_norm: false,
        shared_expert: false,
    };

    /// The names of the fusions.
    pub const NAMES: [&str; 6] =
        ["norm_gemm", "gemm_swiglu", "rope_append", "residual", "qk_norm", "shared_expert"];

    fn get_mut(&mut self, name: &str) -> Option<&mut bool> {
        let Fusion { norm_gemm, gemm_swiglu, rope_append, residual, qk_norm, shared_expert } = self;
        let all = [norm_gemm, gemm_swiglu, rope_append, residual, qk_norm, shared_expert];
        let fusions = Self::NAMES.into_iter().zip(all);
        fusions.into_iter().find(|&(other, _)| other == name).map(|(_, is_on)| is_on)
    }
}

impl Default for Fusion {
    fn default() -> Self {
        Fusion::ALL
    }
}

impl FromStr for Fusion {
    type Err = UnknownFusion;

    /// `on`, `off`, or the names of the fusions that are on, separated by commas.
    fn from_str(text: &str) -> Result<Self, UnknownFusion> {
        let mut fusion = match text {
            "on" => return Ok(Fusion::ALL),
            _ => Fusion::NONE,
        };
        for name in text.split(',').filter(|_| text != "off") {
            *fusion.get_mut(name).ok_or_else(|| UnknownFusion(name.to_owned()))? = true;
        }
        Ok(fusion)
    }
}

impl fmt::Display for Fusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fusion = *self;
        let is_on = |name: &&str| fusion.get_mut(name).is_some_and(|is_on| *is_on);
        match *self {
            Fusion::ALL => f.write_str("on"),
            Fusion::NONE => f.write_str("off"),
            _ => f.write_str(&Self::NAMES.into_iter().filter(is_on).collect::<Vec<_>>().join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_what_is_on() {
        let fusion = |text: &str| text.parse::<Fusion>();
        assert_eq!(fusion("on"), Ok(Fusion::ALL));
        assert_eq!(fusion("off"), Ok(Fusion::NONE));
        assert_eq!(fusion("residual"), Ok(Fusion { residual: true, ..Fusion::NONE }));
        let two = Fusion { norm_gemm: true, rope_append: true, ..Fusion::NONE };
        assert_eq!(fusion("rope_append,norm_gemm"), Ok(two));
        for wrong in ["", "all", "on,off", "norm_gemm,", "Residual"] {
            assert!(fusion(wrong).is_err(), "{wrong:?}");
        }
        let error = fusion("norm_gemm,gate").unwrap_err().to_string();
        assert!(error.starts_with("fusion \"gate\": on, off, or some of norm_gemm, "), "{error}");
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for bits in 0..64 {
            let mut fusion = Fusion::NONE;
            for (bit, name) in Fusion::NAMES.into_iter().enumerate() {
                *fusion.get_mut(name).unwrap() = bits >> bit & 1 == 1;
            }
            assert_eq!(fusion.to_string().parse(), Ok(fusion));
        }
    }
}
