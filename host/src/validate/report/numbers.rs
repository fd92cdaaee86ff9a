//! Numbers as a reader of the report sees them.

/// The middle one; of an even number the upper of the two.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// The least and the most.
pub fn range(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (least, most)
}

/// Two digits: `1.5e-3`; 0 as `0`.
pub fn scientific(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { format!("{value:.1e}") }
}

/// Three digits at least: `0.123`, `12.3`, `65504`.
pub fn size(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        ..0.001 => scientific(value),
        ..1.0 => format!("{value:.3}"),
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        ..1e6 => format!("{value:.0}"),
        _ => scientific(value),
    }
}

/// `1.83x`.
pub fn ratio(value: f64) -> String {
    format!("{value:.2}x")
}

/// `-48.1 %`; nothing for a change from 0.
pub fn percent_change(from: f64, to: f64) -> String {
    if from == 0.0 { String::new() } else { format!("{:+.1} %", 100.0 * (to / from - 1.0)) }
}

/// Bytes in MiB.
pub fn mib(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// `5, 7, 5`.
pub fn joined(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    numbers.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[]), None);
        assert_eq!(range(&[3.0, 1.0, 2.0]), (1.0, 3.0));
        assert_eq!([0.0, 0.00153, f64::INFINITY].map(scientific), ["0", "1.5e-3", "inf"]);
        assert_eq!(
            [0.0, 2e-5, 0.1234, 1.0, 12.34].map(size),
            ["0", "2.0e-5", "0.123", "1.00", "12.3"]
        );
        assert_eq!([65504.0, 3.4e38, f64::INFINITY].map(size), ["65504", "3.4e38", "inf"]);
        assert_eq!(percent_change(2.0, 1.0), "-50.0 %");
        assert_eq!(percent_change(0.0, 0.0), "");
        assert_eq!(mib(3 << 19), "1.5 MiB");
    }
}
