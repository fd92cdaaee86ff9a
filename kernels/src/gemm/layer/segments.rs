//! A weight by rows that are stored alike.

use crate::gemm::quantised::BlockFormat;
use half::f16;

/// Rows of a tile of blocks.
pub(super) const TILE_ROWS: usize = gpu_types::TILE_ROWS as usize;

/// Rows of a weight that begin with a tile of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of rows.
    pub rows: usize,
    /// The format of their tiles; `None` where they are rows in f16.
    pub format: Option<BlockFormat>,
}

/// Consecutive rows of a weight that are stored alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First row of the segment.
    pub start: usize,
    /// Number of rows.
    pub rows: usize,
    /// As [`Part::format`].
    pub format: Option<BlockFormat>,
    /// First byte in the weight.
    pub offset_bytes: usize,
}

/// The segments of a weight of `k` columns, from the first row on.
pub fn segments(parts: &[Part], k: usize) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let (mut start, mut offset_bytes) = (0, 0);
    for &Part { rows, format } in parts {
        match segments.last_mut() {
            // Tiles follow each other without a gap, if the last one is full.
            Some(last) if last.format == format && last.rows.is_multiple_of(TILE_ROWS) => {
                last.rows += rows;
            }
            _ => segments.push(Segment { start, rows, format, offset_bytes }),
        }
        start += rows;
        offset_bytes += match format {
            // What has no whole number of blocks in a row is refused when it is launched.
            Some(format) => format.packed_bytes(rows, k).unwrap_or(0),
            None => rows * k * size_of::<f16>(),
        };
    }
    segments
}

/// The format of a weight of which the first half of the rows is a gate for the second, if one
/// kernel computes both: they are stored alike, each in tiles of its own.
pub(super) fn gated_format(parts: &[Part]) -> Option<BlockFormat> {
    let half = parts.iter().map(|part| part.rows).sum::<usize>() / 2;
    let is_apart =
        half.is_multiple_of(TILE_ROWS) || matches!(parts, [gate, _] if gate.rows == half);
    let first = parts.first()?.format;
    let are_alike = parts.iter().all(|part| part.format == first);
    first.filter(|_| is_apart && are_alike)
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q4: Option<BlockFormat> = Some(BlockFormat::Q4_K);
    const Q6: Option<BlockFormat> = Some(BlockFormat::Q6_K);

    fn parts(parts: &[(usize, Option<BlockFormat>)]) -> Vec<Part> {
        parts.iter().map(|&(rows, format)| Part { rows, format }).collect()
    }

    /// As Q4_K_M stores Q, K and V, and as a model with few rows may.
    #[test]
    fn rows_that_are_stored_alike_are_one_segment() {
        let found = |rows: &[(usize, Option<BlockFormat>)]| -> Vec<_> {
            let segments = segments(&parts(rows), 512).into_iter();
            segments.map(|s| (s.start, s.rows, s.format, s.offset_bytes)).collect()
        };
        assert_eq!(
            found(&[(64, Q4), (32, Q4), (32, Q6), (8, None)]),
            [
                (0, 96, Q4, 0),
                (96, 32, Q6, 96 * 2 * 144),
                (128, 8, None, 96 * 2 * 144 + 32 * 2 * 210),
            ]
        );
        // Eight rows of padding are between them.
        assert_eq!(found(&[(24, Q4), (16, Q4)]), [(0, 24, Q4, 0), (24, 16, Q4, 32 * 2 * 144)]);
    }

    #[test]
    fn a_gate_has_the_format_of_what_it_is_for() {
        let found = |rows: &[(usize, Option<BlockFormat>)]| gated_format(&parts(rows));
        assert_eq!(found(&[(24, Q4), (24, Q4)]), Q4);
        assert_eq!(found(&[(64, Q4)]), Q4);
        assert_eq!(found(&[(48, Q4)]), None, "the halves share a tile");
        assert_eq!(found(&[(32, Q4), (32, Q6)]), None);
        assert_eq!(found(&[(32, Q4), (32, None)]), None);
        assert_eq!(found(&[(32, None), (32, None)]), None);
    }
}
