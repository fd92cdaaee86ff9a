//! Recorded times of `docs/measurements`, which the launchers' choices are held to.

/// The times of one shape by configuration, taken in one run on one card.
pub struct Row {
    /// `[m, n, k]`.
    pub shape: [usize; 3],
    /// Name and microseconds of each configuration that was measured.
    pub times: Vec<(String, f64)>,
}

impl Row {
    /// Microseconds of a configuration, if it was measured.
    pub fn time(&self, name: &str) -> Option<f64> {
        self.times.iter().find(|(of, _)| of == name).map(|(_, us)| *us)
    }

    /// The least time of the configurations that `is_allowed`.
    pub fn best(&self, is_allowed: impl Fn(&str) -> bool) -> f64 {
        let allowed = self.times.iter().filter(|(name, _)| is_allowed(name));
        allowed.map(|(_, us)| *us).fold(f64::INFINITY, f64::min)
    }
}

/// The rows of all tables of a Markdown page whose first column is `m, n, k`; the other columns are
/// configurations, and cells without a figure were not measured.
pub fn rows(page: &str) -> Vec<Row> {
    let (mut names, mut rows) = (Vec::new(), Vec::new());
    for line in page.lines() {
        let Some(line) = line.strip_prefix('|') else {
            names.clear();
            continue;
        };
        let cells: Vec<&str> = line.trim_end().trim_end_matches('|').split('|').collect();
        let (first, cells) = cells.split_first().expect("a first column");
        if first.trim() == "m, n, k" {
            names = cells.iter().map(|cell| cell.trim().to_owned()).collect();
        } else if !names.is_empty() && !first.contains("---") {
            let mut sizes = first.split(',').map(|size| size.trim().parse().expect("a size"));
            let shape = std::array::from_fn(|_| sizes.next().expect("m, n and k"));
            let us = |cell: &&str| cell.trim().trim_matches(['(', ')']).parse().ok();
            let times = names.iter().cloned().zip(cells.iter().map(us));
            let times = times.filter_map(|(name, us)| Some((name, us?))).collect();
            rows.push(Row { shape, times });
        }
    }
    rows
}

#[test]
fn tables_are_read_cell_by_cell() {
    let page = "| m, n, k | a | b |\n| --- | --- | --- |\n| 1, 20, 300 | (1.5) | |\n\n| 4 | 5 |\n";
    let rows = rows(page);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].shape, [1, 20, 300]);
    assert_eq!(rows[0].times, [("a".to_owned(), 1.5)]);
}
