//! How a model computes, as far as a validation varies it.

use crate::plan::{AttentionForm, Fusion, KvStorage, Precision};
use std::fmt;
use std::str::FromStr;

/// How a model computes, as far as a validation varies it.
///
/// As text the precision, or `fp8` for linear layers' weights in E4M3 beside operands in f16, and
/// what is not as usual: `f16`, `f16+fusion=off`,
/// `f32+attention=materialized`, `f16+kv=q8_0`, `f16+kv=q8_0/q4_0` (keys, then values).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Element types of weights and activations, and of the KV cache if `kv` leaves it open.
    pub precision: Precision,
    /// Whether the weights of linear layers are in E4M3.
    pub fp8: bool,
    /// Which neighbouring operations run as one kernel.
    pub fusion: Fusion,
    /// How attention is computed.
    pub attention: AttentionForm,
    /// How the KV cache is stored.
    pub kv: KvStorage,
}

/// The text of weights in E4M3.
const FP8: &str = "fp8";

/// A text that is no [`Settings`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?}: f32, f16, bf16 or fp8, and after a + each fusion=on|off|NAMES, \
     attention=flash|materialized, kv=TYPE or kv=K/V"
)]
pub struct UnknownSettings(String);

impl From<Precision> for Settings {
    /// With everything else as usual.
    fn from(precision: Precision) -> Self {
        let (fusion, attention) = (Fusion::default(), AttentionForm::default());
        Settings { precision, fp8: false, fusion, attention, kv: KvStorage::default() }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Settings { precision, fp8, fusion, attention, kv } = self;
        match fp8 {
            true => f.write_str(FP8)?,
            false => write!(f, "{precision}")?,
        }
        if fusion != Fusion::default() {
            write!(f, "+fusion={fusion}")?;
        }
        if attention == AttentionForm::Materialized {
            write!(f, "+attention=materialized")?;
        }
        if kv != KvStorage::default() {
            write!(f, "+kv={kv}")?;
        }
        Ok(())
    }
}

impl FromStr for Settings {
    type Err = UnknownSettings;

    fn from_str(text: &str) -> Result<Self, UnknownSettings> {
        let unknown = || UnknownSettings(text.to_owned());
        let mut parts = text.split('+');
        let first = parts.next().unwrap_or_default();
        let fp8 = first == FP8;
        let name = if fp8 { "f16" } else { first };
        let precision = Precision::ALL.into_iter().find(|precision| precision.to_string() == name);
        let mut settings = Settings { fp8, ..Settings::from(precision.ok_or_else(unknown)?) };
        for part in parts {
            match part.split_once('=') {
                Some(("fusion", value)) => {
                    settings.fusion = value.parse().map_err(|_| unknown())?;
                }
                Some(("attention", "flash")) => settings.attention = AttentionForm::Flash,
                Some(("attention", "materialized")) => {
                    settings.attention = AttentionForm::Materialized;
                }
                Some(("kv", value)) => settings.kv = value.parse().map_err(|_| unknown())?,
                _ => return Err(unknown()),
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::CacheType;

    #[test]
    fn a_text_names_what_is_not_as_usual() {
        let settings = |text: &str| text.parse::<Settings>();
        let usual = Settings::from(Precision::F16);
        assert_eq!(settings("f16"), Ok(usual));
        assert_eq!(settings("f16+fusion=off"), Ok(Settings { fusion: Fusion::NONE, ..usual }));
        let both = Settings {
            precision: Precision::BF16,
            fusion: Fusion { residual: true, ..Fusion::NONE },
            attention: AttentionForm::Materialized,
            ..usual
        };
        assert_eq!(settings("bf16+attention=materialized+fusion=residual"), Ok(both));
        let q8_0 = Settings { kv: CacheType::Q8_0.into(), ..usual };
        let mixed = KvStorage { k: Some(CacheType::Q8_0), v: Some(CacheType::Q4_0) };
        assert_eq!(settings("f16+kv=q8_0"), Ok(q8_0));
        assert_eq!(settings("f16+kv=q8_0/q4_0"), Ok(Settings { kv: mixed, ..usual }));
        let fp8 = Settings { fp8: true, ..usual };
        assert_eq!(settings("fp8"), Ok(fp8));
        assert_eq!(settings("fp8+kv=q8_0"), Ok(Settings { fp8: true, ..q8_0 }));
        for settings in [usual, both, q8_0, fp8, Settings { kv: mixed, ..both }] {
            assert_eq!(settings.to_string().parse(), Ok(settings));
        }
        for wrong in
            ["", "f8", "f16+", "f16+fusion=some", "f16+attention=slow", "f16+kv=q5_0", "fusion=off"]
        {
            assert!(settings(wrong).is_err(), "{wrong:?}");
        }
    }
}
