//! Linear layers of prompts and batches whose weight stays quantised.

use super::blocks::{elements, in_blocks_of};
use super::{CASE, Case, Operands, Out, SM80};
use crate::device::SEEDS;
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use half::f16;
use kernels::Rows;
use kernels::gemm::quantised::prompt::QuantisedPrompt;
use kernels::gemm::quantised::{BlockFormat, QuantisedOperands};
use kernels::gemm::{Gpu, Input16, Out16, SumOrder};

/// One SM, for which the large tiles are chosen, and as many as there are for small ones.
const ONE_SM: Gpu = Gpu { num_sms: 1, ..Gpu::HOPPER };

const GPUS: [Gpu; 3] = [ONE_SM, Gpu::HOPPER, SM80];

/// Between the tiles of 64 and of 128 rows, with a part of a tile of columns.
const PROMPT: Case = Case { num_rows: 66, max_rows: 66, n: 24, gpu: Gpu::HOPPER, ..CASE };

impl Case {
    fn prompt(&self) -> QuantisedPrompt {
        let &Case { format, max_rows, n, k, out, .. } = self;
        let (gated, order) = (out == Out::Gated, SumOrder::Fastest);
        QuantisedPrompt { max_rows, n, k, format, gated, order }
    }

    fn run_prompt(&self, operands: &Operands, seed: u64) -> Vec<f32> {
        self.run_with(operands, seed, |num_rows, operands| {
            let maps = &mut TensorMapSpec::emulated;
            self.prompt().launch(self.gpu, num_rows, operands, maps)
        })
    }

    /// An element may be off by a share of the largest one of its row.
    fn check_prompt(&self, seed: u64) {
        let operands = self.operands();
        let bound = if self.out == Out::Gated { 4e-3 } else { 1e-3 };
        let got = self.run_prompt(&operands, seed);
        self.check_outputs(&got, &operands, bound);
        assert!(self.out == Out::Gated || self.error(&got, &operands) < 1e-3, "{self:?}");
    }

    /// The relative error of all outputs.
    fn error(&self, got: &[f32], operands: &Operands) -> f64 {
        let square = |terms: &mut dyn Iterator<Item = f64>| terms.map(|x| x * x).sum::<f64>();
        let want = self.oracle(operands);
        let off = square(&mut want.iter().zip(got).map(|(want, &got)| f64::from(got) - want));
        (off / square(&mut want.iter().copied())).sqrt()
    }
}

#[test]
fn every_format_and_tile_matches_oracle() {
    for (seed, format) in BlockFormat::tiled().enumerate() {
        for (at, num_rows) in [17, 64, 129].into_iter().enumerate() {
            let max_rows = num_rows + 3 * (seed % 2);
            let out = [Out::Residual, Out::Half, Out::Gated][(seed / 3 + at) % 3];
            let gpu = GPUS[(seed + at) % 3];
            let n = [130, 20, 72][at];
            let with_bias = at % 2 == 0;
            let case = Case { format, num_rows, max_rows, n, with_bias, out, gpu, ..PROMPT };
            case.check_prompt(seed as u64);
        }
    }
}

#[test]
fn every_length_of_k_matches_oracle() {
    let lengths = [32, 64, 96, 256, 288, 896, 1312];
    for (seed, (k, format)) in lengths.into_iter().zip(in_blocks_of(32).cycle()).enumerate() {
        for gpu in GPUS {
            Case { format, k, gpu, ..PROMPT }.check_prompt(seed as u64);
        }
    }
    let lengths = [256, 1280, 10_240];
    for (seed, (format, k)) in in_blocks_of(256).zip(lengths.into_iter().cycle()).enumerate() {
        Case { format, k, num_rows: 17, ..PROMPT }.check_prompt(seed as u64);
    }
}

/// Products that round nowhere but in the weight: each output is an element of it, rounded to f16
/// as a dense copy has it.
#[test]
fn elements_are_those_of_a_dense_copy() {
    for format in BlockFormat::tiled() {
        let case = Case { format, num_rows: 256, max_rows: 256, k: 256, n: 16, ..PROMPT };
        let case = Case { out: Out::Half, with_bias: false, ..case };
        let mut operands = case.operands();
        for (at, x) in operands.x.iter_mut().enumerate() {
            *x = f16::from_f32(if at / 256 == at % 256 { 1.0 } else { 0.0 });
        }
        let got = case.run_prompt(&operands, 1);
        let weight = elements(format, &operands.stored);
        for (at, &got) in got.iter().enumerate() {
            let want = weight[at % 16 * 256 + at / 16];
            let off = (f64::from(got) - want).abs();
            assert!(off <= want.abs() / 2048.0 + 1e-6, "{format:?} {at}: {got}, not {want}");
        }
    }
}

#[test]
fn outputs_that_are_not_aligned_match_oracle() {
    for out in [Out::Residual, Out::Half, Out::Gated] {
        Case { n: 33, num_rows: 18, out, ..PROMPT }.check_prompt(3);
    }
}

#[test]
fn the_order_of_threads_changes_no_bit() {
    for gpu in GPUS {
        let case = Case { num_rows: 18, max_rows: 70, n: 132, k: 1280, gpu, ..PROMPT };
        let operands = case.operands();
        let runs: Vec<Vec<f32>> = SEEDS.map(|seed| case.run_prompt(&operands, seed)).collect();
        assert!(runs.iter().all(|run| *run == runs[0]));
    }
}

#[test]
fn no_rows_are_computed_without_rows() {
    let case = Case { num_rows: 0, ..PROMPT };
    assert!(case.run_prompt(&case.operands(), 0).is_empty());
}

/// Without such an order the number of rows chooses between the instances.
#[test]
fn in_a_given_order_rows_have_the_same_bits_in_any_number_of_them() {
    for gpu in GPUS {
        for order in [SumOrder::Tiles, SumOrder::SmallBatch] {
            let all = Case { k: 1024, gpu, ..PROMPT };
            let operands = all.operands();
            let run = |num_rows| {
                let case = Case { num_rows, max_rows: num_rows, ..all };
                let prompt = QuantisedPrompt { order, ..case.prompt() };
                case.run_with(&operands, 1, |num_rows, operands| {
                    prompt.launch(gpu, num_rows, operands, &mut TensorMapSpec::emulated)
                })
            };
            let (few, many) = (run(3), run(66));
            assert!(many.starts_with(&few), "{order:?} on {gpu:?}");
        }
    }
}

#[test]
fn rejects_what_no_kernel_takes() {
    let error = |prompt: QuantisedPrompt, out| {
        let x = Rows::new(DevicePtr::new(16), 512);
        let weight = DevicePtr::new(32);
        let x = Input16::Half(x);
        let operands = QuantisedOperands { x, weight, bias: None, residual: None, out };
        let maps = &mut |_: &TensorMapSpec| EncodedTensorMap::NONE;
        let launch: Result<Option<Launch>, LaunchError> =
            prompt.launch(SM80, DevicePtr::new(64), &operands, maps);
        launch.map(|_| ()).unwrap_err().to_string()
    };
    let (f32s, prompt) = (Out16::F32(Rows::new(DevicePtr::new(48), 64)), PROMPT.prompt());
    let gated = QuantisedPrompt { gated: true, ..prompt };
    assert_eq!(error(gated, f32s), "output bits is 32: expected 16 with a gate");
    let short = QuantisedPrompt { k: 896, ..prompt };
    assert_eq!(error(short, f32s), "k is 896: expected a multiple of 256");
}
