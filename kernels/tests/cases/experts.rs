//! Mixtures of experts: routers, groups, linear layers of every weight, sums.

mod hopper;
mod norm_route;
mod route;

use super::linear::weights;
use crate::harness::*;
use cuda_std::launch::{DevicePtr, LaunchError};
use cuda_std::tensor_map::TensorMapSpec;
use gpu_types::Activation;
use half::{bf16, f16};
use kernels::Rows;
use kernels::element::Number;
use kernels::gemm::experts::{ExpertLinear, ExpertOperands, ExpertOut, Stored};
use kernels::gemm::quantised::BlockFormat;
use kernels::gemm::{Gpu, SumOrder, Target};
use oracle::{Accumulator, Approx, Linear, Matrix, SUM_ROUNDING, gated};

/// Who goes where.
#[derive(Clone, Copy, Debug)]
enum Choice {
    ToOne,
    Even,
    Uneven,
}

/// A linear layer of experts.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Tokens, and those of the launch.
    tokens: [usize; 2],
    num_experts: usize,
    top_k: usize,
    n: usize,
    k: usize,
    choice: Choice,
    x_by_choice: bool,
    gate: Option<Activation>,
    bias: bool,
    /// Whether outputs are sums, and in f32.
    sums: Option<bool>,
    residual: bool,
    stored: Stored,
    order: SumOrder,
    target: Target,
}

const CASE: Case = Case {
    tokens: [3, 4],
    num_experts: 5,
    top_k: 2,
    n: 40,
    k: 72,
    choice: Choice::Uneven,
    x_by_choice: false,
    gate: None,
    bias: false,
    sums: None,
    residual: false,
    stored: Stored::Dense,
    order: SumOrder::Fastest,
    target: Target::Sm80,
};

impl Case {
    /// The experts of each token, in turn; a token has an expert once.
    fn experts(&self) -> Vec<u32> {
        let (experts, top_k) = (self.num_experts, self.top_k);
        let expert = |token: usize, i: usize| match self.choice {
            Choice::ToOne => (experts - 1 + i) % experts,
            Choice::Even => (token * top_k + i) % experts,
            Choice::Uneven => (token * token % 7 + token / 3 % 2 + i * (experts / top_k)) % experts,
        };
        let at = (0..self.tokens[0]).flat_map(|token| (0..top_k).map(move |i| (token, i)));
        at.map(|(token, i)| expert(token, i) as u32).collect()
    }

    /// The outputs, and the symbols of the kernels.
    fn run<E: HostElement + Number>(&self, seed: u64) -> (Vec<f32>, Vec<&'static str>) {
        let &Case { tokens: [tokens, max_tokens], num_experts, top_k, n, k, .. } = self;
        let experts = self.experts();
        let x_rows = if self.x_by_choice { top_k } else { 1 };
        let x = Matrix::random::<E>(tokens, x_rows * k, 1);
        let shape = [num_experts * n, k];
        let stored_weight = |salt| match self.stored {
            Stored::Dense => (Matrix::random::<E>(shape[0], k, salt), weights::Codes::default()),
            Stored::Tiles(format) => {
                // Those of up differ by their factors.
                let largest = if salt == 2 { 0.1 } else { 0.03 };
                weights::tiles(format, shape, |factor| factor * largest)
            }
            Stored::E4m3 { in_blocks } => weights::e4m3(shape, in_blocks, salt),
        };
        let (weight, codes) = stored_weight(2);
        let (up, up_codes) = stored_weight(3);
        let factors = random(tokens * top_k, 4);
        let biases = [5, 6].map(|salt| random(num_experts * n, salt));

        let mut device = Device::default();
        let memory = |device: &mut Device, matrix: &Matrix, codes: &weights::Codes| {
            let format = match self.stored {
                Stored::Tiles(format) => format,
                Stored::Dense => {
                    let rows = device.matrix::<E>("weight", matrix, (k, shape[0]));
                    return DevicePtr::new(rows.ptr.0);
                }
                Stored::E4m3 { .. } => {
                    let mut bytes = codes.bytes.clone();
                    bytes.resize(bytes.len().next_multiple_of(16), 0);
                    bytes.extend(codes.scales.iter().flat_map(|scale| scale.to_le_bytes()));
                    return device.bytes("weight", &bytes);
                }
            };
            let each = codes.bytes.chunks(codes.bytes.len() / num_experts);
            let packed = each.flat_map(|expert| weights::pack(format, [n, k], expert));
            device.bytes("weight", &packed.collect::<Vec<_>>())
        };
        let (weight_at, up_at) =
            (memory(&mut device, &weight, &codes), memory(&mut device, &up, &up_codes));
        let padded: Vec<u32> = experts.chunks(top_k).flat_map(|row| [row, &[9]].concat()).collect();
        let layer = ExpertLinear {
            max_tokens,
            num_experts,
            top_k,
            n,
            k,
            stored: self.stored,
            gate: self.gate,
            order: self.order,
        };
        let workspace = layer.workspace_bytes(size_of::<E>(), self.sums.is_some());
        let workspace = device.poisoned::<u8>("workspace", workspace).0;
        let width = if self.sums.is_some() { n } else { top_k * n };
        let factors_at = Matrix {
            rows: tokens,
            cols: top_k,
            values: factors.iter().map(|&factor| factor.into()).collect(),
        };
        // What a launch before the previous one has written, for what is launched of one token.
        let [factors_name, experts_name] = match max_tokens {
            1 => ["old factors", "old experts"],
            _ => ["factors", "experts"],
        };
        let factors_at = device.matrix(factors_name, &factors_at, (top_k + 1, max_tokens));
        let out_f32 = device.out::<f32>("out", (width + 8, max_tokens));
        let out = device.out::<E>("out", (width + 8, max_tokens));
        let residual = Matrix::random::<f32>(tokens, n, 7);
        let residual_at =
            self.residual.then(|| device.matrix::<f32>("residual", &residual, (n + 8, max_tokens)));
        let operands = ExpertOperands {
            num_tokens: device.u32s("num_tokens", &[tokens as u32]),
            experts: Rows::new(device.u32s(experts_name, &padded), top_k + 1),
            x: device.matrix::<E>("x", &x, (x_rows * k + 8, max_tokens)),
            x_by_choice: self.x_by_choice,
            weight: weight_at,
            up: up_at,
            bias: match self.bias {
                true => [0, 1].map(|part| device.f32s("bias", &biases[part])),
                false => [DevicePtr::null(); 2],
            },
            residual: residual_at,
            out: match self.sums {
                None => ExpertOut::Products(out),
                Some(false) => ExpertOut::Sums(factors_at, out),
                Some(true) => ExpertOut::SumsF32(factors_at, out_f32),
            },
            workspace,
            is_grouped: false,
        };
        // Fewer SMs than there are tiles: blocks have several.
        let gpu = Gpu { target: self.target, num_sms: 3, overlaps: true };
        let launches = layer.launches(gpu, &operands, &mut TensorMapSpec::emulated);
        let launches = launches.expect("a right shape");
        let symbols = launches.iter().map(|launch| launch.symbol).collect();
        for launch in launches {
            device.run(Ok(Some(launch)), seed);
        }
        let got = match self.sums {
            Some(true) => device.read_rows(out_f32, self.tokens, width),
            _ => device.read_rows(out, self.tokens, width),
        };

        // The same in f64.
        let product_rounding = if self.stored == Stored::Dense { 0.0 } else { E::ROUNDING };
        let product = |choice: usize, weight: &Matrix, bias: &[f32]| -> Vec<Approx> {
            let row = x.row(choice / top_k);
            let row = if self.x_by_choice { &row[choice % top_k * k..][..k] } else { row };
            let first = experts[choice] as usize * n * k;
            let linear = Linear {
                x: &Matrix { rows: 1, cols: k, values: row.to_vec() },
                weight: &Matrix {
                    rows: n,
                    cols: k,
                    values: weight.values[first..][..n * k].to_vec(),
                },
                bias: self.bias.then(|| &bias[experts[choice] as usize * n..][..n]),
                residual: None,
                accumulator: Accumulator::F32,
                product_rounding,
            };
            linear.outputs().into_iter().map(Approx::stored::<E>).collect()
        };
        let products: Vec<Vec<Approx>> = (0..experts.len())
            .map(|choice| match self.gate {
                None => product(choice, &weight, &biases[0]),
                Some(activation) => {
                    let gates = product(choice, &weight, &biases[0]);
                    let parts = gates.into_iter().zip(product(choice, &up, &biases[1]));
                    parts.map(|(gate, up)| gated::<E>(activation, gate, up).stored::<E>()).collect()
                }
            })
            .collect();
        let want: Vec<Approx> = match self.sums {
            None => products.concat(),
            Some(is_f32) => {
                let at = (0..tokens).flat_map(|token| (0..n).map(move |column| (token, column)));
                let sum = |(token, column): (usize, usize)| {
                    let choices = token * top_k..(token + 1) * top_k;
                    let terms = choices.map(|i| (f64::from(factors[i]), products[i][column]));
                    let mut sum = Approx::exact(0.0);
                    if self.residual {
                        sum.value = residual.row(token)[column];
                        sum.bound = SUM_ROUNDING * sum.value.abs();
                    }
                    for (factor, term) in terms {
                        sum.value += factor * term.value;
                        sum.bound += factor.abs() * (term.bound + SUM_ROUNDING * term.value.abs());
                    }
                    if is_f32 { sum } else { sum.stored::<E>() }
                };
                at.map(sum).collect()
            }
        };
        let case = format!("{symbols:?} of {self:?}, seed {seed}");
        assert_right(&case, &got, &want);
        if self.gate.is_none() {
            assert_telling(&case, &want);
        }
        (got, symbols)
    }

    /// Checks it under all seeds.
    fn check<E: HostElement + Number>(&self) {
        simt::seeds().for_each(|seed| drop(self.run::<E>(seed)));
    }
}

const SILU: Option<Activation> = Some(Activation::Silu);
const SWIGLU_OAI: Option<Activation> = Some(Activation::SwigluOai);

#[test]
fn few_choices_match_oracle() {
    for choice in [Choice::ToOne, Choice::Even, Choice::Uneven] {
        // Blocks find their chunks; several of them for one expert.
        let of_ten = Case { tokens: [10, 11], top_k: 5, num_experts: 6, choice, ..CASE };
        for case in [
            CASE,
            Case { choice, k: 1024 + 8, ..CASE },
            Case { order: SumOrder::SmallBatch, ..of_ten },
            Case { order: SumOrder::SmallBatch, gate: SILU, n: 17, ..of_ten },
            Case { order: SumOrder::SmallBatch, gate: SWIGLU_OAI, bias: true, ..of_ten },
            Case { choice, bias: true, sums: Some(true), ..CASE },
            Case { choice, x_by_choice: true, sums: Some(true), n: 130, k: 264, ..CASE },
            Case { choice, residual: true, sums: Some(true), n: 136, ..CASE },
            Case { choice, residual: true, sums: Some(true), n: 33, ..CASE },
            Case { choice, x_by_choice: true, sums: Some(false), top_k: 1, ..CASE },
        ] {
            case.check::<f16>();
            case.check::<bf16>();
        }
    }
    // The shared expert beside as many as there may be.
    let last = Case { tokens: [600; 2], num_experts: 513, top_k: 1, n: 16, k: 8, ..CASE };
    Case { choice: Choice::ToOne, order: SumOrder::SmallBatch, ..last }.run::<f16>(1);
    // No token, and one.
    for tokens in [[0, 1], [1, 1], [1, 40]] {
        let case = Case { tokens, order: SumOrder::SmallBatch, ..CASE };
        case.check::<f16>();
        Case { sums: Some(true), ..case }.check::<bf16>();
    }
}

/// The sum of a token's experts in one launch.
#[test]
fn sums_of_a_token_match_oracle() {
    let one = Case { tokens: [1, 1], x_by_choice: true, sums: Some(true), ..CASE };
    for case in [
        one,
        // Fewer tiles than warps, and more; a choice for every lane.
        Case { top_k: 1, k: 8, residual: true, ..one },
        Case { num_experts: 40, top_k: 32, k: 264, bias: true, ..one },
        Case { num_experts: 9, top_k: 7, k: 1032, n: 33, bias: true, residual: true, ..one },
        Case { tokens: [0, 1], residual: true, bias: true, ..one },
    ] {
        case.check::<f16>();
        case.check::<bf16>();
    }
    for format in BlockFormat::tiled() {
        let k = if format.block_elems() == 256 { 768 } else { 352 };
        let stored = Stored::Tiles(format);
        Case { stored, k, n: 24, top_k: 5, bias: true, ..one }.run::<f16>(1);
        Case { stored, k: 2 * k, n: 40, residual: true, ..one }.run::<f16>(2);
    }
    assert_eq!(one.run::<f16>(1).1, ["experts_f16_sum"]);
    // Where a launch does not add, or must not.
    for other in [
        Case { tokens: [1, 2], ..one },
        Case { num_experts: 40, top_k: 33, ..one },
        Case { order: SumOrder::SmallBatch, ..one },
        Case { sums: Some(false), ..one },
        Case { x_by_choice: false, ..one },
    ] {
        assert_eq!(other.run::<f16>(1).1.len(), 2, "{other:?}");
    }
}

#[test]
fn many_choices_match_oracle() {
    for choice in [Choice::ToOne, Choice::Even, Choice::Uneven] {
        let of_seventy =
            Case { tokens: [70, 75], choice, order: SumOrder::Tiles, num_experts: 3, ..CASE };
        for case in [
            Case { n: 130, k: 328, ..of_seventy },
            Case { n: 72, gate: SILU, ..of_seventy },
            Case { n: 33, gate: SWIGLU_OAI, bias: true, ..of_seventy },
            Case { bias: true, ..of_seventy },
            Case { x_by_choice: true, sums: Some(true), n: 33, ..of_seventy },
            Case { choice, order: SumOrder::Tiles, ..CASE },
        ] {
            case.check::<f16>();
        }
        Case { gate: SILU, ..of_seventy }.check::<bf16>();
    }
}

/// More choices than threads: a launch groups them.
#[test]
fn grouped_choices_match_oracle() {
    let grouped = Case { tokens: [130, 140], n: 24, k: 16, num_experts: 7, ..CASE };
    for choice in [Choice::ToOne, Choice::Even, Choice::Uneven] {
        for order in [SumOrder::SmallBatch, SumOrder::Tiles] {
            let case = Case { choice, order, ..grouped };
            let (_, symbols) = case.run::<f16>(1);
            assert_eq!(symbols[0], "group_experts");
            Case { x_by_choice: true, sums: Some(true), ..case }.check::<f16>();
            Case { tokens: [0, 140], ..case }.run::<bf16>(1);
            Case { tokens: [1, 140], gate: SILU, ..case }.run::<bf16>(1);
        }
    }
}

#[test]
fn experts_in_blocks_match_oracle() {
    for format in BlockFormat::tiled() {
        let k = if format.block_elems() == 256 { 512 } else { 352 };
        let stored = Stored::Tiles(format);
        // Rows of tiles with fewer than 16 rows; a tile with fewer than four units.
        Case { stored, k, n: 24, ..CASE }.run::<f16>(1);
        Case { stored, k, n: 24, gate: SILU, top_k: 1, ..CASE }.run::<f16>(2);
        let many = Case { stored, k, n: 24, order: SumOrder::Tiles, ..CASE };
        Case { tokens: [9, 9], ..many }.run::<f16>(1);
        Case { gate: SILU, ..many }.run::<f16>(2);
        // On Hopper: tiles of a tile that have no rows, and several chunks.
        let hopper = Case { target: Target::Sm90a, tokens: [70, 75], num_experts: 3, ..many };
        Case { gate: SILU, n: 72, ..hopper }.run::<f16>(1);
        Case { bias: true, n: 130, choice: Choice::Even, ..hopper }.run::<f16>(2);
    }
}

#[test]
fn experts_in_e4m3_match_oracle() {
    let [rows, blocks] = [false, true].map(|in_blocks| Stored::E4m3 { in_blocks });
    for (stored, n) in [(rows, 40), (rows, 33), (blocks, 128), (blocks, 256)] {
        // Tiles that are not whole, and blocks that end in one.
        let case = Case { stored, n, k: 336, ..CASE };
        case.run::<f16>(1);
        Case { gate: SILU, top_k: 1, k: 16, ..case }.run::<f16>(2);
        Case { gate: SWIGLU_OAI, bias: true, k: 1024, ..case }.run::<f16>(1);
        Case { tokens: [9, 9], order: SumOrder::Tiles, ..case }.run::<f16>(1);
        Case { gate: SILU, order: SumOrder::Tiles, ..case }.run::<f16>(2);
        let hopper = Case { target: Target::Sm90a, order: SumOrder::Tiles, ..case };
        Case { tokens: [70, 75], num_experts: 3, ..hopper }.run::<f16>(1);
        Case { gate: SILU, choice: Choice::Even, ..hopper }.run::<f16>(2);
        let sum = Case { tokens: [1, 1], x_by_choice: true, sums: Some(true), ..case };
        Case { residual: true, ..sum }.run::<f16>(1);
    }
}

#[test]
fn experts_in_f32_match_oracle() {
    for choice in [Choice::ToOne, Choice::Even, Choice::Uneven] {
        Case { choice, n: 37, k: 41, ..CASE }.check::<f32>();
        Case { choice, bias: true, ..CASE }.check::<f32>();
        Case { choice, x_by_choice: true, sums: Some(true), ..CASE }.check::<f32>();
    }
}

/// A row has the same bits alone, beside others, and in the order of either kernel for any number
/// of rows.
#[test]
fn a_tokens_bits_do_not_depend_on_the_others() {
    let q4_k = Stored::Tiles(BlockFormat::Q4_K);
    for (order, target, stored, k) in [
        (SumOrder::SmallBatch, Target::Sm80, Stored::Dense, 1032),
        (SumOrder::Tiles, Target::Sm80, Stored::Dense, 1032),
        (SumOrder::Tiles, Target::Sm90a, Stored::Dense, 1032),
        (SumOrder::Tiles, Target::Sm90a, q4_k, 768),
    ] {
        let case = Case { order, target, stored, k, sums: Some(true), gate: SILU, ..CASE };
        let rows = |tokens| Case { tokens: [tokens, tokens], ..case }.run::<f16>(1).0;
        let [one, few, many] = [1, 9, 150].map(rows);
        assert_eq!(bits(&one), bits(&few[..one.len()]));
        assert_eq!(bits(&few), bits(&many[..few.len()]));
    }
}

#[test]
fn wrong_layers_are_refused() {
    let layer = ExpertLinear {
        max_tokens: 3,
        num_experts: 8,
        top_k: 2,
        n: 16,
        k: 64,
        stored: Stored::Dense,
        gate: None,
        order: SumOrder::Fastest,
    };
    let refused = |layer: ExpertLinear, x_stride: usize| {
        let operands = ExpertOperands::<f16> {
            num_tokens: DevicePtr::new(256),
            experts: Rows::new(DevicePtr::new(256), 2),
            x: Rows::new(DevicePtr::new(256), x_stride),
            x_by_choice: false,
            weight: DevicePtr::new(256),
            up: DevicePtr::null(),
            bias: [DevicePtr::null(); 2],
            out: ExpertOut::Products(Rows::new(DevicePtr::new(256), 32)),
            residual: None,
            workspace: 256,
            is_grouped: false,
        };
        let launches = layer.launches(Gpu::HOPPER, &operands, &mut TensorMapSpec::emulated);
        match launches {
            Ok(launches) => format!("{} launches", launches.len()),
            Err(LaunchError::Shape { what, .. }) => what.to_owned(),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(refused(layer, 64), "1 launches");
    assert_eq!(refused(ExpertLinear { max_tokens: 0, ..layer }, 64), "0 launches");
    assert_eq!(refused(ExpertLinear { n: 0, ..layer }, 64), "0 launches");
    assert_eq!(refused(layer, 63), "row stride");
    assert_eq!(refused(ExpertLinear { k: 63, ..layer }, 64), "k");
    assert_eq!(refused(ExpertLinear { top_k: 9, ..layer }, 64), "experts of a token");
    assert_eq!(refused(ExpertLinear { top_k: 0, ..layer }, 64), "experts of a token");
    assert_eq!(refused(ExpertLinear { num_experts: 514, ..layer }, 64), "experts");
    let in_blocks = ExpertLinear { stored: Stored::Tiles(BlockFormat::Q4_K), ..layer };
    assert_eq!(refused(in_blocks, 64), "k");
}
