use super::*;

/// A kernel of 128 threads around `body`; `%p1` is `tid == 5`, `%p2` is `n == 5`, `%p3` is `tid < 64`.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90a\n.visible .entry k(\n\t.param .u32 n\n)\n.maxntid 128, 1, 1\n{{\n\
         \t.reg .pred \t%p<9>;\n\tld.param.b32 \t%r1, [n];\n\tmov.u32 \t%r2, %tid.x;\n\
         \tsetp.eq.s32 \t%p1, %r2, 5;\n\tsetp.eq.s32 \t%p2, %r1, 5;\n\tsetp.lt.u32 \t%p3, %r2, 64;\n\
         {body}\n$L__END:\n\tret;\n}}\n"
    )
}

/// What JumpThreading makes of `if c { a } barrier(); if c { b }`: the barrier is in both sides.
fn copied(condition: &str, barrier: &str) -> String {
    kernel(&format!(
        "\t@{condition} bra \t$L__A;\n\tactivemask.b32 \t%r3;\n\t// begin inline asm\n\t{barrier};\n\
         \t// end inline asm\n\tbra.uni \t$L__JOIN;\n$L__A:\n\tst.shared.b32 \t[%r9], %r2;\n\t{barrier};\n\
         $L__JOIN:\n\tst.shared.b32 \t[%r9], %r1;"
    ))
}

const BARRIERS: [&str; 5] = [
    "bar.sync \t0",
    "barrier.cluster.wait.acquire.aligned",
    "shfl.sync.bfly.b32 \t%r4, %r2, 1, 31, -1",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0}, {%r1}, {%r2}, {%f0}",
    "wgmma.wait_group.sync.aligned 0",
];

#[test]
fn an_instruction_in_both_sides_of_a_divergent_branch_is_a_fault() {
    for barrier in BARRIERS {
        let faults = faults(&copied("%p1", barrier));
        assert_eq!(faults.len(), 2, "{barrier}: {faults:?}");
        assert!(faults[0].contains("`@%p1 bra $L__A` (line 14) may differ"), "{faults:?}");
        assert!(faults[0].contains("(line 17)"), "{faults:?}");
        assert!(faults[1].contains("(line 22)"), "{faults:?}");
    }
}

#[test]
fn a_uniform_branch_is_right() {
    for barrier in BARRIERS {
        assert_eq!(faults(&copied("%p2", barrier)), [""; 0], "{barrier}");
    }
}

#[test]
fn a_branch_between_warps_is_one_within_a_warpgroup() {
    for barrier in BARRIERS {
        let of_warpgroups = usize::from(barrier.starts_with("wgmma"));
        let faults = faults(&copied("%p3", barrier));
        assert_eq!(faults.len(), 2 * of_warpgroups, "{barrier}: {faults:?}");
        assert!(faults.iter().all(|fault| fault.contains("of a warpgroup")), "{faults:?}");
    }
}

#[test]
fn an_instruction_after_the_sides_is_right() {
    let after = "\t@%p1 bra \t$L__A;\n\tst.shared.b32 \t[%r9], %r2;\n$L__A:\n\tbar.sync \t0;";
    assert_eq!(faults(&kernel(after)), [""; 0]);
}

#[test]
fn a_predicate_that_differs_is_a_fault() {
    let found = faults(&kernel("\t@%p1 bar.sync \t0;\n\t@%p2 bar.sync \t0;"));
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("`@%p1 bar.sync 0` (line 14), as its predicate"), "{found:?}");
}

#[test]
fn a_thread_that_returns_before_is_a_fault() {
    assert_eq!(faults(&kernel("\t@%p1 bra \t$L__END;\n\tbar.sync \t0;")).len(), 1);
    assert_eq!(faults(&kernel("\t@%p1 ret;\n\tbar.sync \t0;")).len(), 1);
    // Threads of a panic do not come back.
    let panics =
        "\t@%p1 bra \t$L__TRAP;\n\tbar.sync \t0;\n\tbra.uni \t$L__END;\n$L__TRAP:\n\ttrap;";
    assert_eq!(faults(&kernel(panics)), [""; 0]);
}

#[test]
fn a_loop_of_as_many_iterations_in_all_threads_is_right() {
    let of = |bound: &str| {
        kernel(&format!(
            "\tmov.b32 \t%r5, 0;\n$L__LOOP:\n\tbar.sync \t0;\n\tadd.s32 \t%r5, %r5, 1;\n\
             \tsetp.lt.u32 \t%p4, %r5, {bound};\n\t@%p4 bra \t$L__LOOP;"
        ))
    };
    assert_eq!(faults(&of("%r1")), [""; 0]);
    assert_eq!(faults(&of("%r2")).len(), 1);
}

#[test]
fn a_value_of_one_side_differs_after_it() {
    let value = |condition: &str| {
        kernel(&format!(
            "\tmov.b32 \t%r5, 0;\n\t@{condition} bra \t$L__A;\n\tmov.b32 \t%r5, 1;\n$L__A:\n\
             \tsetp.eq.s32 \t%p4, %r5, 0;\n\t@%p4 bra \t$L__END;\n\tbar.sync \t0;"
        ))
    };
    assert_eq!(faults(&value("%p2")), [""; 0]);
    assert_eq!(faults(&value("%p1")).len(), 1);
}

#[test]
fn a_register_of_two_values_is_two() {
    // The second value of %r5 is written on a path of its own, which does not reach the branch.
    let two = "\tmov.b32 \t%r5, 1;\n\t@%p1 bra \t$L__A;\n\tbra.uni \t$L__B;\n$L__A:\n\tmov.b32 \t%r5, %r2;\n\
        \tst.shared.b32 \t[%r9], %r5;\n\tmov.b32 \t%r5, 1;\n$L__B:\n\tmov.b32 \t%r5, %r1;\n\
        \tsetp.eq.s32 \t%p4, %r5, 0;\n\t@%p4 bra \t$L__END;\n\tbar.sync \t0;";
    assert_eq!(faults(&kernel(two)), [""; 0]);
}

#[test]
fn a_value_that_both_sides_compute_is_one() {
    // The end of a loop, copied into both sides of a branch.
    let of = |other: &str| {
        kernel(&format!(
            "\tmov.b32 \t%r5, 0;\n\tmov.b32 \t%r6, 0;\n$L__LOOP:\n\tbar.sync \t0;\n\tadd.s32 \t%r7, %r5, 1;\n\
             \t@%p1 bra \t$L__A;\n\tsetp.eq.s32 \t%p5, %r7, 4;\n\tselp.b32 \t%r6, 0, %r7, %p5;\n\
             \tmov.b32 \t%r5, %r7;\n\tbra.uni \t$L__NEXT;\n$L__A:\n\tst.shared.b32 \t[%r9], %r2;\n{other}\n\
             $L__NEXT:\n\tadd.s32 \t%r8, %r5, %r6;\n\tsetp.lt.u32 \t%p4, %r8, %r1;\n\t@%p4 bra \t$L__LOOP;"
        ))
    };
    let same =
        "\tsetp.eq.s32 \t%p6, %r7, 4;\n\tselp.b32 \t%r6, 0, %r7, %p6;\n\tmov.b32 \t%r5, %r7;";
    assert_eq!(faults(&of(same)), [""; 0]);
    // One side has it before the branch.
    let before = "\tmov.b32 \t%r5, 0;\n$L__LOOP:\n\tbar.sync \t0;\n\tadd.s32 \t%r7, %r5, 1;\n\tmov.b32 \t%r5, %r7;\n\
        \t@%p1 bra \t$L__NEXT;\n\tst.shared.b32 \t[%r9], %r2;\n\tmov.b32 \t%r5, %r7;\n$L__NEXT:\n\
        \tsetp.lt.u32 \t%p4, %r5, %r1;\n\t@%p4 bra \t$L__LOOP;";
    assert_eq!(faults(&kernel(before)), [""; 0]);
    let other_value = before.replacen("%r5, %r7", "%r5, %r1", 1);
    assert_eq!(faults(&kernel(&other_value)).len(), 1);
    for different in [
        same.replace("%r7, 4", "%r7, 5"),
        same.replace("%r5, %r7", "%r5, %r1"),
        same.replace("\tmov.b32 \t%r5, %r7;", ""),
    ] {
        assert_eq!(faults(&of(&different)).len(), 1, "{different}");
    }
}

#[test]
fn a_wait_in_a_loop_of_asm_is_right() {
    let wait = "\t{\n.reg .pred ended;\nretry:\nmbarrier.try_wait.parity.shared::cta.b64 ended, [%r9], %r1;\n\
        @!ended bra retry;\n}\n\tbar.sync \t0;\n\t{\n.reg .pred ended;\nsetp.ne.b32 ended, %r1, 0;\n\
        @ended bra \t$L__END;\n}\n\tbar.sync \t0;";
    assert_eq!(faults(&kernel(wait)), [""; 0]);
}

#[test]
fn what_is_the_same_in_all_threads_of_a_warp() {
    // Each leaves a value in %r5; `true` if a barrier may depend on it.
    for (is_right, value) in [
        (true, "shr.u32 \t%r5, %r2, 5"),
        (false, "shr.u32 \t%r5, %r2, 4"),
        (true, "and.b32 \t%r5, %r2, 96"),
        (false, "and.b32 \t%r5, %r2, 48"),
        (true, "and.b32 \t%r6, %r2, 96;\n\tadd.s32 \t%r5, %r6, 1"),
        (true, "shl.b32 \t%r6, %r1, 5;\n\tadd.s32 \t%r6, %r6, %r2;\n\tshr.u32 \t%r5, %r6, 5"),
        (false, "shl.b32 \t%r6, %r1, 4;\n\tadd.s32 \t%r6, %r6, %r2;\n\tshr.u32 \t%r5, %r6, 5"),
        (true, "bfe.u32 \t%r5, %r2, 5, 2"),
        (true, "shfl.sync.idx.b32 \t%r5, %r2, 0, 31, -1"),
        (false, "shfl.sync.idx.b32 \t%r5, %r2, %r2, 31, -1"),
        (false, "shfl.sync.bfly.b32 \t%r5, %r2, 1, 31, -1"),
        (true, "vote.sync.ballot.b32 \t%r5, %p1, -1"),
        (true, "ld.shared.b32 \t%r5, [%r1+4]"),
        (false, "ld.shared.b32 \t%r5, [%r2+4]"),
        (false, "atom.relaxed.gpu.global.add.u32 \t%r5, [%rd1], 1"),
        (false, "selp.b32 \t%r5, 1, 0, %p1"),
        (true, "mov.u32 \t%r5, %ctaid.x"),
        (false, "mov.u32 \t%r5, %laneid"),
        (true, "cvt.u64.u32 \t%rd5, %r2;\n\tshr.u64 \t%rd6, %rd5, 5;\n\tcvt.u32.u64 \t%r5, %rd6"),
        (false, "cvt.s64.s32 \t%rd5, %r3;\n\tcvt.u32.u64 \t%r5, %rd5;\n\tadd.s32 \t%r5, %r5, %r2"),
    ] {
        let body = format!(
            "\t{value};\n\tsetp.eq.s32 \t%p4, %r5, 0;\n\t@%p4 bra \t$L__END;\n\tbar.sync \t0;"
        );
        assert_eq!(faults(&kernel(&body)).is_empty(), is_right, "{value}");
    }
    for (is_right, condition) in [
        (true, "lt.u32 \t%p4, %r2, 32"),
        (false, "lt.u32 \t%p4, %r2, 33"),
        (true, "gt.u32 \t%p4, %r2, 31"),
        (false, "gt.u32 \t%p4, %r2, 32"),
        (true, "ge.s32 \t%p4, %r2, 96"),
        (false, "eq.s32 \t%p4, %r2, 32"),
    ] {
        let body = format!("\tsetp.{condition};\n\t@%p4 bra \t$L__END;\n\tbar.sync \t0;");
        assert_eq!(faults(&kernel(&body)).is_empty(), is_right, "{condition}");
    }
}

#[test]
fn masks_of_some_lanes_may_be_those_of_a_branch() {
    for (num_faults, sync) in
        [(1, "bar.warp.sync \t-1"), (0, "bar.warp.sync \t15"), (0, "bar.warp.sync \t%r3")]
    {
        let body = format!("\t@%p1 bra \t$L__END;\n\t{sync};");
        assert_eq!(faults(&kernel(&body)).len(), num_faults, "{sync}");
    }
}

#[test]
fn a_branch_without_its_label_is_a_fault() {
    let found = faults(&kernel("\t@%p2 bra \t$L__NOWHERE;"));
    assert_eq!(found, ["a label is missing: `@%p2 bra $L__NOWHERE`"]);
}
