//! Linear layers of 16-bit operands, by every tile of the kernels for sm_90a.

use crate::device::{SEEDS, random};
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{TensorMapPtr, TensorMapSpec};
use half::{bf16, f16};
use kernels::Rows;
use kernels::gemm::{Gpu, Linear16, Linear16Operands, Out16, TILE_CONFIGS, TileConfig};
use kernels::tile::element::Operand16;
use simt::{Init, Memory};

/// What stands behind the rows that exist, and in outputs before a launch.
const STALE: u8 = 0xff;

/// A linear layer in a launch for `max_rows`.
#[derive(Clone, Copy, Debug)]
struct Case {
    num_rows: usize,
    max_rows: usize,
    n: usize,
    k: usize,
    /// Elements that strides of the operands have more than their rows; a multiple of 8.
    pad: usize,
    /// The same of outputs and residual.
    out_pad: usize,
    with_bias: bool,
    out: Out,
    num_sms: usize,
}

/// What the outputs are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Out {
    Half,
    F32,
    /// With a residual at another place.
    Residual,
    /// With a residual at the same place.
    InPlace,
}

/// A layer of whole tiles, a block each.
const WHOLE: Case = Case {
    num_rows: 128,
    max_rows: 128,
    n: 128,
    k: 128,
    pad: 0,
    out_pad: 0,
    with_bias: false,
    out: Out::Half,
    num_sms: 132,
};

fn config(block: [usize; 2], cluster: [usize; 2]) -> &'static TileConfig {
    let mut configs = TILE_CONFIGS.iter();
    configs.find(|config| config.block == block && config.cluster == cluster).expect("a tile")
}

/// Elements of an operand, their bytes, and their values in f64.
struct Matrix {
    bytes: Vec<u8>,
    values: Vec<f64>,
}

/// `rows` rows of which `num_rows` exist, `stride` elements apart.
fn operand<E: Operand16>(rows: usize, num_rows: usize, stride: usize, salt: u64) -> Matrix {
    let elements = random(rows * stride, salt).into_iter().map(E::narrow);
    let values: Vec<f64> = elements.map(|element| f64::from(element.widen())).collect();
    // The elements are the upper halves, or known to `half`, of f32: exact both ways.
    let mut bytes: Vec<u8> = values
        .iter()
        .flat_map(|&value| (E::narrow_pair(value as f32, 0.0) as u16).to_le_bytes())
        .collect();
    bytes[2 * num_rows * stride..].fill(STALE);
    Matrix { bytes, values }
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Operands of a case in the emulator's memory, and what its outputs should be.
struct Setup<E> {
    memory: Memory,
    num_rows: DevicePtr<u32>,
    operands: Linear16Operands<E>,
    /// By row and column: the output, and the sum of all magnitudes in it.
    want: Vec<[f64; 2]>,
}

impl<E: Operand16> Setup<E> {
    fn new(case: &Case, salt: u64) -> Self {
        let &Case { num_rows, max_rows, n, k, pad, out_pad, with_bias, out, .. } = case;
        let (stride, out_stride) = (k + pad, n + out_pad);
        let x = operand::<E>(max_rows, num_rows, stride, salt + 1);
        let weight = operand::<E>(n, n, stride, salt + 2);
        let (bias, residual) = (random(n, salt + 3), random(max_rows * out_stride, salt + 4));
        let with_residual = matches!(out, Out::Residual | Out::InPlace);
        let want = (0..num_rows * n).map(|at| {
            let (row, column) = (at / n, at % n);
            let a = &x.values[row * stride..][..k];
            let b = &weight.values[column * stride..][..k];
            let bias = if with_bias { f64::from(bias[column]) } else { 0.0 };
            let at = row * out_stride + column;
            let residual = if with_residual { f64::from(residual[at]) } else { 0.0 };
            let sum: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            let magnitude: f64 = a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum();
            [sum + bias + residual, magnitude + bias.abs() + residual.abs()]
        });
        let want = want.collect();
        let mut memory = Memory::new();
        let mut rows = |name: &str, bytes: &[u8]| memory.alloc(name, Init::Bytes(bytes));
        let x = Rows::new(DevicePtr::new(rows("x", &x.bytes)), stride);
        let weight = Rows::new(DevicePtr::new(rows("weight", &weight.bytes)), stride);
        let bias = with_bias.then(|| DevicePtr::new(rows("bias", &f32s(&bias))));
        let residual = with_residual
            .then(|| Rows::new(DevicePtr::new(rows("residual", &f32s(&residual))), out_stride));
        let out_bytes = max_rows * out_stride * if out == Out::Half { 2 } else { 4 };
        let out_ptr = rows("out", &vec![STALE; out_bytes]);
        let out = match (out, residual) {
            (Out::Half, _) => Out16::Half(Rows::new(DevicePtr::new(out_ptr), out_stride)),
            (Out::InPlace, Some(residual)) => Out16::F32(residual),
            _ => Out16::F32(Rows::new(DevicePtr::new(out_ptr), out_stride)),
        };
        let num_rows = DevicePtr::new(rows("num_rows", &(num_rows as u32).to_le_bytes()));
        let operands = Linear16Operands { x, weight, bias, residual, out };
        Setup { memory, num_rows, operands, want }
    }

    /// Runs the launch that `launch` makes; gives its symbol.
    fn run(
        &mut self,
        seed: u64,
        launch: impl FnOnce(
            DevicePtr<u32>,
            &Linear16Operands<E>,
            &mut dyn FnMut(&TensorMapSpec) -> TensorMapPtr,
        ) -> Result<Option<Launch>, LaunchError>,
    ) -> &'static str {
        let memory = &mut self.memory;
        let mut maps = |spec: &TensorMapSpec| {
            spec.check().expect("a tensor map");
            TensorMapPtr(memory.alloc("map", Init::Bytes(&spec.emulated())))
        };
        let launch = launch(self.num_rows, &self.operands, &mut maps);
        let launch = launch.expect("a right shape").expect("something to do");
        launch
            .emulate(&mut self.memory, seed)
            .unwrap_or_else(|fault| panic!("{}, seed {seed}: {fault}", launch.symbol));
        launch.symbol
    }

    /// The outputs of all rows, `None` for those that nothing has written.
    fn outputs(&self, case: &Case) -> Vec<Option<f64>> {
        let (address, stride, size) = match self.operands.out {
            Out16::Half(out) => (out.ptr.0, out.row_stride, 2),
            Out16::F32(out) => (out.ptr.0, out.row_stride, 4),
        };
        let mut bytes = vec![0; case.max_rows * stride * size];
        self.memory.read(address, &mut bytes).expect("the output");
        let element = |bytes: &[u8]| match *bytes {
            [STALE, ..] if bytes.iter().all(|&byte| byte == STALE) => None,
            [lo, hi] => Some(E::widen_pair(u32::from(u16::from_le_bytes([lo, hi])))[0].into()),
            _ => Some(f32::from_le_bytes(bytes.try_into().expect("four bytes")).into()),
        };
        bytes.chunks(size).map(element).collect()
    }
}

/// Fails where an output is wrong, or one is written that does not exist.
fn assert_right<E: Operand16>(case: &Case, name: &str, setup: &Setup<E>) {
    let stride = case.n + case.out_pad;
    // Of the rounding to 11 or 8 bits at the end.
    let unit = match case.out {
        Out::Half if E::narrow(1.001).widen() == 1.0 => 2f64.powi(-8),
        Out::Half => 2f64.powi(-11),
        _ => 0.0,
    };
    for (at, got) in setup.outputs(case).into_iter().enumerate() {
        let (row, column) = (at / stride, at % stride);
        if row >= case.num_rows || column >= case.n {
            let is_left = case.out == Out::InPlace || got.is_none();
            assert!(is_left, "{name} of {case:?} has written [{row}, {column}]");
            continue;
        }
        let [want, magnitude] = setup.want[row * case.n + column];
        let bound = 1e-6 * magnitude + unit * want.abs() + 1e-7;
        let is_close = got.is_some_and(|got| (got - want).abs() <= bound);
        assert!(is_close, "{name} of {case:?}: [{row}, {column}] is {got:?}, not {want}");
    }
}

fn check_of<E: Operand16>(case: &Case, tile: &TileConfig, seed: u64) {
    let mut setup = Setup::<E>::new(case, seed);
    let linear = Linear16 { max_rows: case.max_rows, n: case.n, k: case.k };
    let name = setup.run(seed, |num_rows, operands, maps| {
        linear.launch_tiles(tile, case.num_sms, num_rows, operands, maps)
    });
    assert_right(case, name, &setup);
}

/// Runs a case by a tile, for f16 and for bf16.
fn check(case: &Case, tile: &TileConfig, seed: u64) {
    check_of::<f16>(case, tile, seed);
    check_of::<bf16>(case, tile, seed);
}

/// Runs shapes around the edges of a tile, every kind of output among them.
fn check_edges(tile: &TileConfig) {
    let [block_m, block_n] = tile.block;
    for seed in SEEDS {
        let one = Case { num_rows: block_m, max_rows: block_m, n: block_n, k: 64, ..WHOLE };
        check(&one, tile, seed);
        // One more of everything, of the k of a second stage 8.
        let more = Case {
            num_rows: block_m + 1,
            max_rows: block_m + 9,
            n: block_n + 1,
            k: 72,
            pad: 8,
            out_pad: 3,
            with_bias: true,
            ..WHOLE
        };
        check(&more, tile, seed);
        check(&Case { out: Out::Residual, ..more }, tile, seed);
        // One less, in place; 16-bit outputs whose rows are aligned.
        let less = Case {
            num_rows: block_m - 1,
            max_rows: block_m,
            n: block_n - 8,
            k: 56,
            with_bias: seed == 1,
            ..WHOLE
        };
        check(&less, tile, seed);
        check(&Case { out: Out::InPlace, ..less }, tile, seed);
        check(&Case { num_rows: 17, n: block_n - 1, out: Out::F32, ..less }, tile, seed);
        check(&Case { num_rows: 1, n: 8, k: 8, ..less }, tile, seed);
    }
}

#[test]
fn tile_128x256_matches_oracle() {
    check_edges(config([128, 256], [1, 1]));
}

#[test]
fn tile_128x256_pair_matches_oracle() {
    check_edges(config([128, 256], [2, 1]));
}

#[test]
fn tile_256x128_matches_oracle() {
    check_edges(config([256, 128], [1, 1]));
}

#[test]
fn tile_256x128_pair_matches_oracle() {
    check_edges(config([256, 128], [1, 2]));
}

#[test]
fn tile_128x128_matches_oracle() {
    check_edges(config([128, 128], [1, 1]));
}

#[test]
fn tile_64x128_matches_oracle() {
    check_edges(config([64, 128], [1, 1]));
}

/// Blocks with several tiles each: stages and staging go round, and the last tiles are ragged.
#[test]
fn persistent_blocks_match_oracle() {
    for tile in &TILE_CONFIGS {
        let [block_m, block_n] = tile.block;
        let [cluster_m, cluster_n] = tile.cluster;
        for seed in SEEDS {
            let case = Case {
                num_rows: 2 * cluster_m * block_m + 5,
                max_rows: 3 * cluster_m * block_m,
                n: cluster_n * block_n + 8,
                k: 64 * (2 + seed as usize) + 8,
                with_bias: true,
                num_sms: 2 * cluster_m * cluster_n,
                ..WHOLE
            };
            check_of::<f16>(&case, tile, seed);
            check_of::<f16>(&Case { out: Out::InPlace, ..case }, tile, seed);
        }
    }
}

/// The emulator of issue 3 has to do a block of 128 x 128 x 256 in less than two seconds.
#[test]
fn a_block_of_128x128x256_matches_oracle() {
    let case = Case { k: 256, num_sms: 1, ..WHOLE };
    for seed in SEEDS {
        check_of::<f16>(&case, config([128, 128], [1, 1]), seed);
    }
}

/// A launch for rows that there are none of stores nothing.
#[test]
fn no_rows_store_nothing() {
    for tile in &TILE_CONFIGS {
        check_of::<f16>(&Case { num_rows: 0, with_bias: true, ..WHOLE }, tile, 1);
        check_of::<f16>(&Case { num_rows: 0, out: Out::F32, ..WHOLE }, tile, 1);
    }
}

/// An output is the same, to the bit, whatever the tile and the number of rows.
#[test]
fn outputs_do_not_depend_on_the_tile() {
    let case = Case { k: 200, n: 136, out: Out::Residual, with_bias: true, ..WHOLE };
    let linear = Linear16 { max_rows: case.max_rows, n: case.n, k: case.k };
    let outputs = TILE_CONFIGS.each_ref().map(|tile| {
        let mut setup = Setup::<f16>::new(&case, 7);
        setup.run(2, |num_rows, operands, maps| {
            linear.launch_tiles(tile, 2, num_rows, operands, maps)
        });
        setup.outputs(&case)
    });
    assert!(outputs.iter().all(|other| *other == outputs[0]));
}

/// Real shapes, by the tiles that are chosen for them.
#[test]
fn chosen_tiles_match_oracle() {
    for (num_rows, n, k) in [(33, 1152, 896), (7, 136, 64)] {
        let case = Case { num_rows, max_rows: num_rows, n, k, with_bias: true, ..WHOLE };
        let linear = Linear16 { max_rows: num_rows, n, k };
        let mut setup = Setup::<bf16>::new(&case, 3);
        let name = setup.run(1, |num_rows, operands, maps| {
            linear.launch(Gpu::HOPPER, num_rows, operands, maps)
        });
        assert_eq!(name, "gemm_bf16_sm90_64x128");
        assert_right(&case, name, &setup);
    }
}
