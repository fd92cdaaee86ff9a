//! Operations in which all ranks take part.

use super::RankStep;
use crate::plan::{AllReduce, Op, View};

/// Runs operation `index` of every rank, which is a collective one.
pub fn run(ranks: &mut [RankStep], index: usize) {
    let views: Vec<(View, View)> = ranks
        .iter()
        .map(|rank| match rank.plan.ops[index] {
            Op::AllReduce(AllReduce { x, residual: None, .. }) => (x, x),
            Op::AllGather { x, out, .. } => (x, out),
            ref op => unreachable!("the CPU has no {}", op.name()),
        })
        .collect();
    let sent = ranks.iter().zip(&views).map(|(rank, &(x, _))| rank.frame.rows(x).to_vec());
    let sent: Vec<Vec<f32>> = sent.collect();
    let received = match ranks[0].plan.ops[index] {
        Op::AllReduce(_) => sum(sent),
        _ => side_by_side(&sent, views.iter().map(|(x, _)| x.width)),
    };
    for (rank, (_, out)) in ranks.iter_mut().zip(views) {
        rank.frame.write(out, None, |rows, _| {
            rows.for_each(|row, columns| {
                columns.copy_from_slice(&received[row * out.width..][..out.width]);
            });
        });
    }
}

/// The sum of what the ranks have, in their order.
fn sum(sent: Vec<Vec<f32>>) -> Vec<f32> {
    let add = |mut sum: Vec<f32>, x: Vec<f32>| {
        sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
        sum
    };
    sent.into_iter().reduce(add).unwrap_or_default()
}

/// Rows of `widths` elements of each rank, side by side.
fn side_by_side(sent: &[Vec<f32>], widths: impl Iterator<Item = usize>) -> Vec<f32> {
    let mut rows: Vec<_> =
        sent.iter().zip(widths).map(|(rows, width)| rows.chunks_exact(width)).collect();
    let mut all = Vec::with_capacity(sent.iter().map(Vec::len).sum());
    while let Some(first) = rows[0].next() {
        all.extend_from_slice(first);
        rows[1..].iter_mut().filter_map(Iterator::next).for_each(|row| all.extend_from_slice(row));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_summed_in_order_and_put_side_by_side() {
        let sent = [vec![1e8, 1.0], vec![1.0, 2.0], vec![-1e8, 3.0]];
        assert_eq!(sum(sent.to_vec()), [0.0, 6.0], "in f32, from the first rank on");
        let sent = [vec![1.0, 2.0, 5.0, 6.0], vec![3.0, 7.0]];
        assert_eq!(side_by_side(&sent, [2, 1].into_iter()), [1.0, 2.0, 3.0, 5.0, 6.0, 7.0]);
        assert!(side_by_side(&[vec![], vec![]], [2, 1].into_iter()).is_empty());
    }
}
