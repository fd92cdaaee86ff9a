//! That the plans of the bench compute what is verified, and that rows are the peers'.

use super::*;
use crate::exec::cpu::CpuExecutor;
use crate::plan::ArenaLayout;

fn shape(step: Step) -> Shape {
    Shape { batch: 2, num_heads: 4, num_kv_heads: 2, head_dim: 16, step }
}

/// What the plan of a bench puts out, and its errors: as it is, and of a wrong output.
fn errors(bench: &Bench, open: impl Fn(&Plan) -> Result<Box<dyn Executor>, ExecError>) -> [f64; 2] {
    let largest = bench.plan(bench.largest_bounds(), 5).unwrap();
    let mut executor = open(&largest).unwrap();
    let sequences = Sequences::new(bench.shape);
    bench.fill_cache(&mut *executor, &sequences).unwrap();
    let plan = executor.prepare(&bench.plan(bench.step_bounds(), 5).unwrap()).unwrap();
    let mut got = executor.run(plan, &sequences.step(), Want::Logits).unwrap().logits;
    bench.check_finite(&got).unwrap();
    let error = |got: &[f32]| bench.sampled_error(&largest, &sequences, got).unwrap();
    let right = error(&got);
    got.rotate_left(1);
    [right, error(&got)]
}

/// The plan that is timed on a GPU gives what is verified, and another output is found.
#[test]
fn the_plan_computes_what_is_verified() {
    let steps = [
        Step::Prefill { seq_len: 70, causal: true },
        Step::Prefill { seq_len: 70, causal: false },
        Step::Decode { kv_len: 1 },
        Step::Decode { kv_len: FILL_TOKENS + 70 },
    ];
    for step in steps {
        for precision in Precision::ALL {
            for timed in [Timed::Attention, Timed::KvAppend] {
                let bench = Bench { shape: shape(step), precision, timed, copies: 2 };
                let [right, wrong] =
                    errors(&bench, |plan| Ok(Box::new(CpuExecutor::open(plan, &WEIGHTS)?)));
                assert!(right <= bench.error_bound(), "{step:?} {precision} {timed:?}: {right:e}");
                assert!(wrong > 0.1, "{step:?} {precision} {timed:?}: {wrong:e}");
            }
        }
    }
}

/// The kernels themselves take the plans: as on a GPU, and checked.
#[test]
#[cfg(feature = "emulator")]
fn the_kernels_compute_what_is_verified() {
    use crate::exec::emulated::EmulatedExecutor;
    for step in [Step::Prefill { seq_len: 20, causal: true }, Step::Decode { kv_len: 70 }] {
        for timed in [Timed::Attention, Timed::KvAppend] {
            let bench = Bench { shape: shape(step), precision: Precision::F16, timed, copies: 2 };
            let [right, wrong] =
                errors(&bench, |plan| Ok(Box::new(EmulatedExecutor::open(None, plan, &WEIGHTS)?)));
            assert!(right <= bench.error_bound(), "{step:?} {timed:?}: {right:e}");
            assert!(wrong > 0.1, "{step:?} {timed:?}: {wrong:e}");
        }
    }
}

/// Two rounds have a round of what is timed more than one has, and nothing else.
#[test]
fn rounds_differ_in_what_is_timed() {
    for (timed, name) in [(Timed::Attention, "attention"), (Timed::KvAppend, "kv_append")] {
        let shape = shape(Step::Decode { kv_len: 70 });
        let bench = Bench { shape, precision: Precision::F16, timed, copies: 2 };
        let count = |calls| {
            let plan = bench.plan(bench.step_bounds(), calls).unwrap();
            let count = |is_timed: bool| {
                plan.ops.iter().filter(|op| (op.name() == name) == is_timed).count()
            };
            [count(true), count(false)]
        };
        let [one, two] = [count(9), count(17)];
        assert_eq!([two[0] - one[0], two[1] - one[1]], [8, 0], "{timed:?}");
    }
}

#[test]
fn an_output_that_is_not_finite_is_named() {
    let (shape, timed) = (shape(Step::Decode { kv_len: 1 }), Timed::Attention);
    let bench = Bench { shape, precision: Precision::F16, timed, copies: 1 };
    let mut got = vec![0.0; 2 * 64];
    assert!(bench.check_finite(&got).is_ok());
    got[64] = f32::NAN;
    let error = bench.check_finite(&got).unwrap_err().to_string();
    assert!(error.starts_with("2,4,2,1,16: row 1"), "{error}");
}

/// Keys of a row: the rows of the peers, and all rows of this bench, have the same.
#[test]
fn a_row_has_a_key_for_every_size() {
    let keys = |step| {
        let row = Row {
            op: "",
            implementation: "",
            dtype: String::new(),
            shape: shape(step),
            us: 0.0,
            min_us: 0.0,
            tflops: 0.0,
            gbs: 0.0,
            error: 0.0,
            config: Some("sm_90a"),
            gpu: String::new(),
        };
        let mut keys: Vec<String> =
            serde_json::json!(row).as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys.join(" ")
    };
    assert_eq!(
        keys(Step::Prefill { seq_len: 8, causal: true }),
        "batch causal config dtype error gbs gpu head_dim impl min_us num_heads num_kv_heads \
         op seq_len tflops us"
    );
    assert_eq!(
        keys(Step::Decode { kv_len: 8 }),
        "batch config dtype error gbs gpu head_dim impl kv_len min_us num_heads num_kv_heads \
         op tflops us"
    );
}

#[test]
fn work_is_counted_as_the_peers_count_it() {
    let prefill = |causal| shape(Step::Prefill { seq_len: 8, causal });
    assert_eq!(prefill(false).flops(), (4 * 2 * 4 * 8 * 8 * 16) as f64);
    assert_eq!(prefill(true).flops(), (2 * 2 * 4 * 8 * 8 * 16) as f64);
    assert_eq!(prefill(true).bytes(Dtype::F16), 2 * 2 * 8 * 16 * (2 * 4 + 2 * 2));
    let decode = shape(Step::Decode { kv_len: 8 });
    assert_eq!(decode.flops(), (4 * 2 * 4 * 8 * 16) as f64);
    assert_eq!(decode.bytes(Dtype::F16), 4 * 2 * 2 * 8 * 16);
    assert_eq!(decode.bytes(Dtype::F32), 8 * 2 * 2 * 8 * 16);
}

/// The device is opened with the largest plan, and takes no other one that is larger.
#[test]
fn every_plan_has_room_where_the_largest_has() {
    for shape in prefill_shapes().into_iter().chain(decode_shapes()) {
        let bytes = shape.bytes(Dtype::F16);
        let (precision, timed) = (Precision::F16, Timed::Attention);
        let bench = Bench { shape, precision, timed, copies: num_copies(bytes, MAX_COPIES) };
        let calls = calls_per_round(bench.copies);
        let bytes = |bounds, calls| {
            let plan = bench.plan(bounds, calls).unwrap();
            ArenaLayout::new(&plan).bytes()
        };
        let (step, largest) = (bench.step_bounds(), bench.largest_bounds());
        let room = bytes(largest, 2 * calls + 1);
        for (bounds, calls) in [(step, 2 * calls + 1), (step, calls + 1), (largest, 0)] {
            assert!(bytes(bounds, calls) <= room, "{shape}, {calls} calls");
        }
    }
}
