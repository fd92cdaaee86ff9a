//! Experts by `wgmma`.

use super::{CASE, Case, Choice, SILU, SWIGLU_OAI};
use half::{bf16, f16};
use kernels::gemm::experts::Stored;
use kernels::gemm::quantised::BlockFormat;
use kernels::gemm::{SumOrder, Target};

#[test]
fn choices_on_hopper_match_oracle() {
    let of_seventy = Case {
        tokens: [70, 75],
        order: SumOrder::Tiles,
        num_experts: 3,
        target: Target::Sm90a,
        ..CASE
    };
    for choice in [Choice::ToOne, Choice::Even, Choice::Uneven] {
        let of_seventy = Case { choice, ..of_seventy };
        for case in [
            // Several tiles a block, k beyond the stages, columns that end inside of an MMA.
            Case { n: 300, k: 328, ..of_seventy },
            Case { n: 136, gate: SILU, ..of_seventy },
            Case { n: 104, gate: SWIGLU_OAI, bias: true, ..of_seventy },
            Case { bias: true, ..of_seventy },
            Case { x_by_choice: true, sums: Some(true), n: 33, ..of_seventy },
            Case { tokens: [1, 2], ..of_seventy },
            Case { tokens: [0, 75], ..of_seventy },
            Case { tokens: [130, 140], n: 64, ..of_seventy },
            Case { tokens: [190, 300], n: 64, gate: SILU, ..of_seventy },
            Case { tokens: [300, 300], n: 64, ..of_seventy },
        ] {
            case.check::<f16>();
        }
        Case { gate: SILU, ..of_seventy }.check::<bf16>();
    }
    let (_, symbols) = of_seventy.run::<f16>(1);
    assert_eq!(symbols, ["group_experts", "experts_f16_wgmma"]);
}

/// Every number of columns of the MMAs, tiles of several experts a block, and all about a gate.
#[test]
fn experts_in_blocks_on_hopper_match_oracle() {
    let hopper = Case {
        stored: Stored::Tiles(BlockFormat::MXFP4),
        order: SumOrder::Tiles,
        target: Target::Sm90a,
        k: 352,
        n: 300,
        num_experts: 3,
        ..CASE
    };
    for choice in [Choice::ToOne, Choice::Even, Choice::Uneven] {
        for tokens in [[0, 5], [1, 5], [40, 60], [90, 96], [120, 310]] {
            let case = Case { choice, tokens, ..hopper };
            case.run::<f16>(1);
            Case { gate: SWIGLU_OAI, bias: true, n: 104, ..case }.run::<f16>(2);
            Case { x_by_choice: true, sums: Some(true), n: 33, k: 32, ..case }.run::<f16>(1);
        }
    }
    let (_, symbols) = Case { tokens: [40, 40], ..hopper }.run::<f16>(1);
    assert_eq!(symbols, ["group_experts", "experts_mxfp4_wgmma"]);
}
