//! How long an idle model stays.

use std::str::FromStr;
use std::time::Duration;

/// How long an idle model stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// So long after its last request.
    For(Duration),
    /// Until another one needs its room.
    Always,
}

impl KeepAlive {
    /// A negative time is [`KeepAlive::Always`], as Ollama has it.
    pub fn from_seconds(seconds: f64) -> Self {
        match Duration::try_from_secs_f64(seconds) {
            Ok(time) => KeepAlive::For(time),
            // Negative, or longer than anybody waits.
            Err(_) => KeepAlive::Always,
        }
    }
}

impl FromStr for KeepAlive {
    type Err = String;

    /// A duration as Go writes it, such as `5m` and `1h30m`, or seconds.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "it has to be seconds, or a text such as 5m, or -1 for always".to_owned();
        seconds(text).map(KeepAlive::from_seconds).ok_or_else(wrong)
    }
}

/// The seconds of a duration as Go writes it.
fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    if let Ok(seconds) = rest.parse::<u32>() {
        return Some(sign * f64::from(seconds));
    }
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let (number, unit) = rest.split_at(digits);
        let units =
            [("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
        let (name, factor) = units.into_iter().find(|(name, _)| unit.starts_with(name))?;
        sum += number.parse::<f64>().ok()? * factor;
        rest = &unit[name.len()..];
    }
    Some(sign * sum).filter(|_| text.ends_with(|last: char| last.is_ascii_alphabetic()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, wanted) in [
            ("5m", Some(300.0)),
            ("1h30m", Some(5400.0)),
            ("1.5s", Some(1.5)),
            ("300ms", Some(0.3)),
            ("-1", Some(-1.0)),
            ("-1m", Some(-60.0)),
            ("0", Some(0.0)),
            ("10", Some(10.0)),
            ("", None),
            ("-", None),
            ("5 m", None),
            ("m", None),
            ("1x", None),
        ] {
            assert_eq!(seconds(text), wanted, "{text}");
        }
    }

    #[test]
    fn negative_times_are_for_ever() {
        let parse = |text: &str| text.parse::<KeepAlive>();
        assert_eq!(parse("5m"), Ok(KeepAlive::For(Duration::from_secs(300))));
        assert_eq!(parse("0"), Ok(KeepAlive::For(Duration::ZERO)));
        for text in ["-1", "-1m", "100000000000000000000h"] {
            assert_eq!(parse(text), Ok(KeepAlive::Always), "{text}");
        }
        assert!(parse("soon").is_err() && parse("").is_err());
    }
}
