//! The PTX ISA's page by instruction: the section that describes it, and what it requires.
//!
//! `ptx!("mnemonic")` is a line of documentation: the mnemonic, linked to its section, the least
//! SM, and, where it matters, which threads execute it converged. A mnemonic without a row here
//! does not compile. `ptx!("row" as "text")` gives the line of a row with a mnemonic of its own.
//!
//! Sections and requirements ("Target ISA Notes") are those of PTX ISA 9.1.

macro_rules! sections {
    ($d:tt $($section:literal, $requires:literal: [$($mnemonic:tt)+];)+) => {
        macro_rules! ptx {
            $($(
                ($mnemonic) => { ptx!($mnemonic as $mnemonic) };
                ($mnemonic as $d($d text:expr),+) => {
                    concat!(
                        "\n\nPTX [`", $d($d text),+,
                        "`](https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#",
                        $section, "), ", $requires, "."
                    )
                };
            )+)+
        }
    };
}

#[rustfmt::skip]
sections! { $
    // Special registers.
    "special-registers-tid", "every SM": ["mov.u32 %tid.x" "mov.u32 %tid.y" "mov.u32 %tid.z"];
    "special-registers-ntid", "every SM": ["mov.u32 %ntid.x" "mov.u32 %ntid.y" "mov.u32 %ntid.z"];
    "special-registers-ctaid", "every SM": [
        "mov.u32 %ctaid.x" "mov.u32 %ctaid.y" "mov.u32 %ctaid.z"
    ];
    "special-registers-nctaid", "every SM": [
        "mov.u32 %nctaid.x" "mov.u32 %nctaid.y" "mov.u32 %nctaid.z"
    ];
    "special-registers-cluster-ctaid", "SM 90": [
        "mov.u32 %cluster_ctaid.x" "mov.u32 %cluster_ctaid.y" "mov.u32 %cluster_ctaid.z"
    ];
    "special-registers-cluster-nctaid", "SM 90": [
        "mov.u32 %cluster_nctaid.x" "mov.u32 %cluster_nctaid.y" "mov.u32 %cluster_nctaid.z"
    ];
    "special-registers-cluster-ctarank", "SM 90": ["mov.u32 %cluster_ctarank"];

    // Arithmetic.
    "floating-point-instructions-fma", "SM 20": ["fma.rn.f32"];
    "floating-point-instructions-max", "every SM": ["max.f32"];
    "floating-point-instructions-min", "every SM": ["min.f32"];
    "floating-point-instructions-ex2", "every SM": ["ex2.approx.ftz.f32"];
    "floating-point-instructions-rcp", "every SM": ["rcp.approx.ftz.f32"];
    "floating-point-instructions-rsqrt", "every SM": ["rsqrt.approx.ftz.f32"];
    "floating-point-instructions-sqrt", "every SM": ["sqrt.approx.ftz.f32"];
    "floating-point-instructions-lg2", "every SM": ["lg2.approx.ftz.f32"];
    "floating-point-instructions-tanh", "SM 75": ["tanh.approx.f32"];
    "floating-point-instructions-sin", "every SM": ["sin.approx.ftz.f32"];
    "floating-point-instructions-cos", "every SM": ["cos.approx.ftz.f32"];
    "half-precision-floating-point-instructions-fma", "SM 53": ["fma.rn.f16x2"];
    "half-precision-floating-point-instructions-fma", "SM 80": ["fma.rn.bf16x2"];
    "half-precision-floating-point-instructions-add", "SM 53": ["add.rn.f16x2"];
    "half-precision-floating-point-instructions-sub", "SM 53": ["sub.rn.f16x2"];
    "half-precision-floating-point-instructions-mul", "SM 53": ["mul.rn.f16x2"];
    "half-precision-floating-point-instructions-max", "SM 80": ["max.f16x2" "max.bf16x2"];
    "half-precision-floating-point-instructions-min", "SM 80": ["min.f16x2" "min.bf16x2"];
    "half-precision-floating-point-instructions-ex2", "SM 75": ["ex2.approx.f16x2"];
    "half-precision-floating-point-instructions-tanh", "SM 75": ["tanh.approx.f16x2"];
    "logic-and-shift-instructions-lop3", "SM 50": ["lop3.b32"];

    // Data movement and conversion.
    "data-movement-and-conversion-instructions-mov", "every SM": [
        "mov.u32 %r, halfwarp_dynamic_shared"
    ];
    "data-movement-and-conversion-instructions-prmt", "SM 20": ["prmt.b32"];
    "data-movement-and-conversion-instructions-cvt", "every SM": [
        "cvt.f32.f16" "cvt.rn.f16.f32" "cvt.rz.f16.f32"
        "cvt.rni.s32.f32" "cvt.rzi.s32.f32" "cvt.rni.u32.f32" "cvt.rzi.u32.f32"
    ];
    "data-movement-and-conversion-instructions-cvt", "SM 80": [
        "cvt.rn.bf16.f32" "cvt.rn.f16x2.f32" "cvt.rn.bf16x2.f32"
    ];
    "data-movement-and-conversion-instructions-cvt", "SM 89": [
        "cvt.rn.satfinite.e4m3x2.f32" "cvt.rn.satfinite.e4m3x2.f32, twice"
        "cvt.rn.satfinite.e5m2x2.f32"
        "cvt.rn.f16x2.e4m3x2" "cvt.rn.f16x2.e5m2x2"
    ];
    "data-movement-and-conversion-instructions-shfl-sync", "SM 30": [
        "shfl.sync.bfly.b32" "shfl.sync.idx.b32" "shfl.sync.up.b32" "shfl.sync.down.b32"
    ];
    "data-movement-and-conversion-instructions-ld", "every SM": ["ld.global" "ld.shared"];
    "data-movement-and-conversion-instructions-ld", "SM 70": [
        "ld.global.L1::no_allocate" "ld.relaxed" "ld.acquire" "ld.relaxed.sys.global.v2.b64"
    ];
    "data-movement-and-conversion-instructions-ld", "SM 90": [
        "ld.shared::cluster.b32" "ld.shared::cluster.v4.b32"
    ];
    "data-movement-and-conversion-instructions-st", "every SM": ["st.global" "st.shared"];
    "data-movement-and-conversion-instructions-st", "SM 70": [
        "st.relaxed" "st.release" "st.relaxed.sys.global.v2.b64"
    ];
    "data-movement-and-conversion-instructions-st", "SM 90": [
        "st.shared::cluster.b32" "st.shared::cluster.v4.b32"
    ];
    "data-movement-and-conversion-instructions-st-async", "SM 90": [
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32"
    ];
    "data-movement-and-conversion-instructions-prefetch-prefetchu", "SM 90": ["prefetch.tensormap"];
    "data-movement-and-conversion-instructions-prefetch-prefetchu", "every SM": [
        "prefetch.global.L1"
    ];
    "data-movement-and-conversion-instructions-mapa", "SM 90": ["mapa.shared::cluster.u32"];

    // Asynchronous copies.
    "data-movement-and-conversion-instructions-cp-async", "SM 80": [
        "cp.async.cg.shared.global 16" "cp.async.cg.shared.global.L2::128B 16"
        "cp.async.ca.shared.global 4"
    ];
    "data-movement-and-conversion-instructions-cp-async-commit-group", "SM 80": [
        "cp.async.commit_group"
    ];
    "data-movement-and-conversion-instructions-cp-async-wait-group", "SM 80": [
        "cp.async.wait_group"
    ];
    "data-movement-and-conversion-instructions-cp-async-bulk", "SM 90": [
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        "cp.async.bulk.global.shared::cta.bulk_group"
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    ];
    "data-movement-and-conversion-instructions-cp-async-bulk-tensor", "SM 90": [
        "cp.async.bulk.tensor.{1..4}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
        "cp.async.bulk.tensor.{1..4}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        "cp.async.bulk.tensor.{1..4}d.global.shared::cta.tile.bulk_group"
    ];
    "data-movement-and-conversion-instructions-cp-reduce-async-bulk-tensor", "SM 90": [
        "cp.reduce.async.bulk.tensor.{1..4}d.global.shared::cta.add.tile.bulk_group"
    ];
    "data-movement-and-conversion-instructions-cp-async-bulk-commit-group", "SM 90": [
        "cp.async.bulk.commit_group"
    ];
    "data-movement-and-conversion-instructions-cp-async-bulk-wait-group", "SM 90": [
        "cp.async.bulk.wait_group PENDING" "cp.async.bulk.wait_group.read PENDING"
    ];

    // Synchronization.
    "parallel-synchronization-and-communication-instructions-bar", "SM 20, each warp converged": [
        "bar.sync 0" "bar.sync ID, NUM_THREADS" "bar.arrive ID, NUM_THREADS"
    ];
    "parallel-synchronization-and-communication-instructions-bar-warp-sync", "SM 30": [
        "bar.warp.sync"
    ];
    "parallel-synchronization-and-communication-instructions-barrier-cluster",
    "SM 90, each warp converged": [
        "barrier.cluster.arrive.release.aligned" "barrier.cluster.arrive.relaxed.aligned"
        "barrier.cluster.wait.acquire.aligned"
    ];
    "parallel-synchronization-and-communication-instructions-membar", "SM 70": ["fence.acq_rel"];
    "parallel-synchronization-and-communication-instructions-membar", "SM 90": [
        "fence.proxy.async" "fence.proxy.async.shared::cta" "fence.proxy.async.global"
        "fence.mbarrier_init.release.cluster"
    ];
    "parallel-synchronization-and-communication-instructions-atom", "SM 70": ["atom"];
    "parallel-synchronization-and-communication-instructions-vote-sync", "SM 30": [
        "vote.sync.all.pred" "vote.sync.any.pred" "vote.sync.ballot.b32"
    ];
    "parallel-synchronization-and-communication-instructions-match-sync", "SM 70": [
        "match.any.sync.b32" "match.all.sync.b32"
    ];
    "parallel-synchronization-and-communication-instructions-redux-sync", "SM 80": [
        "redux.sync.add.s32" "redux.sync.min.u32" "redux.sync.max.u32" "redux.sync.min.s32"
        "redux.sync.max.s32" "redux.sync.and.b32" "redux.sync.or.b32" "redux.sync.xor.b32"
    ];
    "parallel-synchronization-and-communication-instructions-activemask", "SM 30": [
        "activemask.b32"
    ];
    "parallel-synchronization-and-communication-instructions-elect-sync", "SM 90": ["elect.sync"];
    "parallel-synchronization-and-communication-instructions-griddepcontrol", "SM 90": [
        "griddepcontrol.launch_dependents" "griddepcontrol.wait"
    ];
    "parallel-synchronization-and-communication-instructions-mbarrier-init", "SM 80": [
        "mbarrier.init.shared::cta.b64"
    ];
    "parallel-synchronization-and-communication-instructions-mbarrier-inval", "SM 80": [
        "mbarrier.inval.shared::cta.b64"
    ];
    "parallel-synchronization-and-communication-instructions-mbarrier-arrive", "SM 80": [
        "mbarrier.arrive.shared::cta.b64 _"
    ];
    "parallel-synchronization-and-communication-instructions-mbarrier-arrive", "SM 90": [
        "mbarrier.arrive.shared::cta.b64 _, count" "mbarrier.arrive.expect_tx.shared::cta.b64 _"
        "mbarrier.arrive.shared::cluster.b64 _"
    ];
    "parallel-synchronization-and-communication-instructions-mbarrier-expect-tx", "SM 90": [
        "mbarrier.expect_tx.shared::cta.b64"
    ];
    "parallel-synchronization-and-communication-instructions-mbarrier-test-wait-try-wait",
    "SM 80": [
        "mbarrier.test_wait.parity.shared::cta.b64"
    ];
    "parallel-synchronization-and-communication-instructions-mbarrier-test-wait-try-wait",
    "SM 90": [
        "mbarrier.try_wait.parity.shared::cta.b64"
        "mbarrier.try_wait.parity.shared::cta.b64, in a loop"
    ];
    "parallel-synchronization-and-communication-instructions-cp-async-mbarrier-arrive", "SM 80": [
        "cp.async.mbarrier.arrive.shared::cta.b64" "cp.async.mbarrier.arrive.noinc.shared::cta.b64"
    ];
    "miscellaneous-instructions-nanosleep", "SM 70": ["nanosleep.u32"];
    "miscellaneous-instructions-setmaxnreg", "SM 90a, the warpgroup converged": [
        "setmaxnreg.inc.sync.aligned.u32" "setmaxnreg.dec.sync.aligned.u32"
    ];

    // Matrices.
    "warp-level-matrix-instructions-ldmatrix", "SM 75, the warp converged": [
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16" "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16"
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16" "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16"
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16" "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
    ];
    "warp-level-matrix-instructions-movmatrix", "SM 75, the warp converged": [
        "movmatrix.sync.aligned.m8n8.trans.b16"
    ];
    "warp-level-matrix-instructions-stmatrix", "SM 90, the warp converged": [
        "stmatrix.sync.aligned.m8n8.x1.shared.b16" "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16"
        "stmatrix.sync.aligned.m8n8.x2.shared.b16" "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16"
        "stmatrix.sync.aligned.m8n8.x4.shared.b16" "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
    ];
    "warp-level-matrix-instructions-mma", "SM 80, the warp converged": [
        "mma.sync.aligned.m16n8k16.row.col.f32.{f16.f16, bf16.bf16}.f32"
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"
    ];
    "asynchronous-warpgroup-level-matrix-instructions-wgmma-mma",
    "SM 90a, the warpgroup converged": [
        "wgmma.mma_async.sync.aligned"
    ];
    "asynchronous-warpgroup-level-matrix-instructions-wgmma-fence",
    "SM 90a, the warpgroup converged": ["wgmma.fence.sync.aligned"];
    "asynchronous-warpgroup-level-matrix-instructions-wgmma-commit-group",
    "SM 90a, the warpgroup converged": ["wgmma.commit_group.sync.aligned"];
    "asynchronous-warpgroup-level-matrix-instructions-wgmma-wait-group",
    "SM 90a, the warpgroup converged": ["wgmma.wait_group.sync.aligned"];
}
