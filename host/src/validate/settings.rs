//! How a model computes, as far as a validation varies it.

use crate::plan::{AttentionForm, Fusion, Precision};
use std::fmt;
use std::str::FromStr;

/// How a model computes, as far as a validation varies it.
///
/// As text the precision, and what is not as usual: `f16`, `f16+fusion=off`,
/// `f32+attention=materialized`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Element types of weights, KV cache and activations.
    pub precision: Precision,
    /// Which neighbouring operations run as one kernel.
    pub fusion: Fusion,
    /// How attention is computed.
    pub attention: AttentionForm,
}

/// A text that is no [`Settings`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?}: f32, f16 or bf16, and after a + each fusion=on|off|NAMES, attention=flash|materialized"
)]
pub struct UnknownSettings(String);

impl From<Precision> for Settings {
    /// With everything else as usual.
    fn from(precision: Precision) -> Self {
        let (fusion, attention) = (Fusion::default(), AttentionForm::default());
        Settings { precision, fusion, attention }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Settings { precision, fusion, attention } = self;
        write!(f, "{precision}")?;
        if fusion != Fusion::default() {
            write!(f, "+fusion={fusion}")?;
        }
        if attention == AttentionForm::Materialized {
            write!(f, "+attention=materialized")?;
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
        let precision = Precision::ALL.into_iter().find(|precision| precision.to_string() == first);
        let mut settings = Settings::from(precision.ok_or_else(unknown)?);
        for part in parts {
            match part.split_once('=') {
                Some(("fusion", value)) => {
                    settings.fusion = value.parse().map_err(|_| unknown())?;
                }
                Some(("attention", "flash")) => settings.attention = AttentionForm::Flash,
                Some(("attention", "materialized")) => {
                    settings.attention = AttentionForm::Materialized;
                }
                _ => return Err(unknown()),
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        };
        assert_eq!(settings("bf16+attention=materialized+fusion=residual"), Ok(both));
        for settings in [usual, both, Precision::F32.into()] {
            assert_eq!(settings.to_string().parse(), Ok(settings));
        }
        for wrong in ["", "f8", "f16+", "f16+fusion=some", "f16+attention=slow", "fusion=off"] {
            assert!(settings(wrong).is_err(), "{wrong:?}");
        }
    }
}
