//! Appends to the paged cache.

pub mod quants;

use crate::harness::*;
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::element::{NarrowedFrom, Number};
use kernels::kv_cache::{KvAppend, PAGE_SIZE};
use kernels::qk_norm::QkNorm;
use kernels::rms_norm::RmsNorm;
use kernels::rope::Rope;
use kernels::rope_append::{RopeAppend, RopeAppendOperands};
use oracle::{Approx, Element, Matrix, Pages, Rng, rope};

const PAGE: usize = PAGE_SIZE as usize;
const NUM_PAGES: usize = 3;
const MAX_POSITIONS: usize = 11;

/// Heads of Q and of K, columns of a head, and those of them that are rotated.
type Shape = (usize, usize, usize, usize);

/// Normalises heads of Q and of K in place, as launches of their own.
pub fn norm_heads<T: HostElement>(
    device: &mut Device,
    num_tokens: DevicePtr<u32>,
    (max_rows, group_size): (usize, usize),
    norm: QkNorm,
    [q, k]: [(Rows<T>, usize); 2],
    seed: u64,
) {
    for ((x, num_groups), weight) in [(q, norm.q), (k, norm.k)] {
        let rms_norm = RmsNorm { max_rows, num_groups, group_size, eps: norm.eps };
        if num_groups > 0 {
            device.run(rms_norm.launch(num_tokens, x, weight, x), seed);
        }
    }
}

/// Tokens on their way to these slots: rows of Q, K and V side by side, with NaN on either side.
struct Case<'a> {
    shape: Shape,
    slots: &'a [u32],
    margin: usize,
    qkv: Matrix,
    table: Vec<f32>,
}

/// What there is afterwards: Q, K and V, and both pools.
struct Outcome {
    qkv: Vec<f32>,
    pools: [Vec<f32>; 2],
}

impl<'a> Case<'a> {
    /// Tokens of random elements, exact in `T`.
    fn random<T: Element>(shape: Shape, slots: &'a [u32], seed: u64) -> Self {
        let (num_heads, num_kv_heads, head_dim, rotary_dim) = shape;
        // Aligned rows, or not.
        let margin = if head_dim.is_multiple_of(8) { 8 } else { 1 };
        let end = margin + (num_heads + 2 * num_kv_heads) * head_dim;
        let mut rng = Rng::new(seed);
        let qkv = Matrix::new(slots.len(), end + margin, |_, column| {
            let is_inside = (margin..end).contains(&column);
            if is_inside { T::rounded(rng.float()).into() } else { f64::NAN }
        });
        Case { shape, slots, margin, qkv, table: random(MAX_POSITIONS * rotary_dim, seed + 100) }
    }

    fn positions(&self) -> Vec<u32> {
        (0..self.slots.len()).map(|token| ((token * 7 + 3) % MAX_POSITIONS) as u32).collect()
    }

    fn pages(&self) -> Pages {
        let (_, num_kv_heads, head_dim, _) = self.shape;
        Pages::descending(&[NUM_PAGES * PAGE], PAGE, num_kv_heads, head_dim)
    }

    /// What is left by one launch, or where not `fused` by a rotation and an append, and by norms of
    /// the heads before them if there are any.
    fn run<T: HostElement, C: HostElement + NarrowedFrom<T>>(
        &self,
        fused: bool,
        has_norm: bool,
        seed: u64,
    ) -> Outcome {
        let (num_heads, num_kv_heads, head_dim, rotary_dim) = self.shape;
        let (tokens, max_tokens) = (self.slots.len(), self.slots.len() + 1);
        let mut device = Device::default();
        let num_tokens = device.u32s("num_tokens", &[tokens as u32]);
        let positions = device.u32s("positions", &self.positions());
        let slot_mapping = device.u32s("slot_mapping", self.slots);
        let table = device.f32s("table", &self.table);
        let stride = self.qkv.cols;
        let qkv = device.matrix::<T>("qkv", &self.qkv, (stride, max_tokens));
        let elems = self.pages().elems();
        let [k_pool, v_pool] = ["k_pool", "v_pool"].map(|name| device.poisoned::<C>(name, elems));
        let [q, k, v] = [0, num_heads, num_heads + num_kv_heads]
            .map(|head| Rows::new(qkv.ptr.add(self.margin + head * head_dim), stride));
        let [q_norm, k_norm] =
            [7, 8].map(|salt| device.f32s("norm weight", &random(head_dim, salt)));
        let norm = if has_norm { QkNorm { q: q_norm, k: k_norm, eps: 0.1 } } else { QkNorm::NONE };
        if has_norm && !fused {
            let (sizes, heads) = ((tokens, head_dim), [(q, num_heads), (k, num_kv_heads)]);
            norm_heads(&mut device, num_tokens, sizes, norm, heads, seed);
        }
        if fused {
            let append = RopeAppend { max_tokens, num_heads, num_kv_heads, head_dim, rotary_dim };
            let operands = RopeAppendOperands {
                positions,
                slot_mapping,
                table,
                norm,
                q,
                k,
                v,
                k_pool,
                v_pool,
            };
            device.run(append.launch(num_tokens, &operands), seed);
        } else {
            let num_heads = num_heads + num_kv_heads;
            let rope = Rope { max_tokens, num_heads, head_dim, rotary_dim };
            if rotary_dim > 0 {
                device.run(rope.launch(num_tokens, positions, table, q), seed);
            }
            let append = KvAppend { max_tokens, num_kv_heads, head_dim };
            let launch = if T::DTYPE == C::DTYPE {
                let [k, v] = [k, v].map(|x| rows_at(x.ptr.0, stride));
                append.launch(num_tokens, slot_mapping, k, v, k_pool, v_pool)
            } else {
                let [k, v] = [k, v].map(|x| rows_at(x.ptr.0, stride));
                append.launch_from_f32(num_tokens, slot_mapping, k, v, k_pool, v_pool)
            };
            device.run(launch, seed);
        }
        let qkv = device.read_rows(qkv, [tokens, max_tokens], stride);
        Outcome { qkv, pools: [k_pool, v_pool].map(|pool| device.read(pool, elems)) }
    }

    /// The rows with Q rotated, and K and V in their slots, rotated and as they are; K's rows
    /// are rotated, too, by a rotation of its own.
    fn oracle(&self, fused: bool) -> (Vec<Approx>, [Vec<Approx>; 2]) {
        let (num_heads, num_kv_heads, head_dim, rotary_dim) = self.shape;
        let exact = |x: &f64| Approx::exact(*x);
        let (mut rows, pages) =
            (self.qkv.values.iter().map(exact).collect::<Vec<_>>(), self.pages());
        let mut pools = [(); 2].map(|()| vec![Approx::exact(f64::NAN); pages.elems()]);
        for (token, (&slot, position)) in self.slots.iter().zip(self.positions()).enumerate() {
            let angles = &self.table[position as usize * rotary_dim..][..rotary_dim];
            for head in 0..num_heads + 2 * num_kv_heads {
                let column = self.margin + head * head_dim;
                let values = &self.qkv.row(token)[column..][..head_dim];
                let floats: Vec<f32> = values.iter().map(|&x| x as f32).collect();
                let rotated = rope(&floats, angles);
                if head < num_heads || (!fused && head < num_heads + num_kv_heads) {
                    rows[token * self.qkv.cols + column..][..head_dim].copy_from_slice(&rotated);
                }
                if let Some(kv_head) = head.checked_sub(num_heads) {
                    let at = pages.row_of_slot(slot as usize, kv_head % num_kv_heads);
                    let unrotated: Vec<Approx> = values.iter().map(exact).collect();
                    let is_k = kv_head < num_kv_heads;
                    let row = if is_k { &rotated } else { &unrotated };
                    pools[usize::from(!is_k)][at..][..head_dim].copy_from_slice(row);
                }
            }
        }
        (rows, pools)
    }
}

/// One launch and two against the oracle, and bit by bit against each other.
fn check<T: HostElement, C: HostElement + NarrowedFrom<T>>(shape: Shape, slots: &[u32], seed: u64) {
    let case = Case::random::<T>(shape, slots, seed);
    let name = format!("{shape:?}, {} tokens, {:?} to {:?}", slots.len(), T::DTYPE, C::DTYPE);
    let [fused, unfused] = [true, false].map(|fused| {
        let got = case.run::<T, C>(fused, false, seed);
        let (rows, [keys, values]) = case.oracle(fused);
        assert_right(&format!("rows of {name}"), &got.qkv, &stored::<T>(rows));
        // By two launches K is rounded to its own type before.
        let keys = if fused { keys } else { stored::<T>(keys) };
        assert_right(&format!("keys of {name}"), &got.pools[0], &stored::<C>(keys));
        assert_eq!(bits(&got.pools[1]), bits(&rounded::<C>(&values)), "values of {name}");
        got
    });
    for (fused, unfused) in fused.pools.iter().zip(&unfused.pools) {
        assert_eq!(bits(fused), bits(unfused), "{name}");
    }
    check_normed::<T, C>(&case, &name, seed);
}

/// With QK-norm, the bits of the norms, which have an oracle of their own, the rotation and the
/// append; K and V of the rows stay as they are.
fn check_normed<T: HostElement, C: HostElement + NarrowedFrom<T>>(
    case: &Case,
    name: &str,
    seed: u64,
) {
    let (num_heads, _, head_dim, _) = case.shape;
    if case.slots.is_empty() {
        return;
    }
    let [fused, unfused] = [true, false].map(|fused| case.run::<T, C>(fused, true, seed));
    for (fused, unfused) in fused.pools.iter().zip(&unfused.pools) {
        assert_eq!(bits(fused), bits(unfused), "{name}, normalised");
    }
    let stride = case.qkv.cols;
    for (at, (&got, row)) in fused.qkv.iter().zip(&case.qkv.values).enumerate() {
        let is_q = (case.margin..case.margin + num_heads * head_dim).contains(&(at % stride));
        let want = if is_q { unfused.qkv[at] } else { *row as f32 };
        assert_eq!(got.to_bits(), want.to_bits(), "{name}, normalised: element {at}");
    }
}

/// Exact results, rounded.
fn rounded<C: Element>(values: &[Approx]) -> Vec<f32> {
    values.iter().map(|want| C::rounded(want.value as f32)).collect()
}

/// Tokens, both sides of pages' ends, the first and the last slot, and a full pool; no tokens.
#[test]
fn tokens_reach_their_pages_and_slots() {
    let last = NUM_PAGES as u32 * PAGE_SIZE - 1;
    let many = (PAGE_SIZE - 9..PAGE_SIZE + 8).rev().chain([0, last]).collect::<Vec<_>>();
    let all = (0..=last).rev().collect::<Vec<_>>();
    let cases: [(Shape, &[u32]); 8] = [
        ((14, 2, 64, 64), &[PAGE_SIZE + 40]),
        ((14, 2, 64, 64), &[]),
        ((0, 2, 16, 0), &[2 * PAGE_SIZE + 5, 17, PAGE_SIZE + 40, 18]),
        ((1, 3, 8, 4), &[PAGE_SIZE - 1, PAGE_SIZE, 2 * PAGE_SIZE - 1, 2 * PAGE_SIZE]),
        ((2, 1, 16, 16), &many),
        ((0, 1, 24, 0), &[last, 0]),
        ((0, 1, 8, 2), &all),
        ((1, 1, 256, 64), &[3]),
    ];
    for ((shape, slots), seed) in cases.into_iter().flat_map(|c| simt::seeds().map(move |s| (c, s)))
    {
        check_all(shape, slots, seed);
    }
}

/// `check` for every pair of types.
fn check_all(shape: Shape, slots: &[u32], seed: u64) {
    check::<f32, f32>(shape, slots, seed);
    check::<f16, f16>(shape, slots, seed);
    check::<bf16, bf16>(shape, slots, seed);
    check::<f32, f16>(shape, slots, seed);
    check::<f32, bf16>(shape, slots, seed);
}

#[test]
fn every_head_dim_and_rotary_dim() {
    // Those of models; pairs that are no vectors while heads are; odd ones; more vectors than a
    // block has threads; no heads of Q, and no columns that are rotated.
    for shape in [
        (9, 3, 64, 64),
        (4, 4, 96, 96),
        (4, 4, 96, 72),
        (3, 1, 80, 32),
        (1, 1, 256, 64),
        (1, 1, 2, 2),
        (3, 2, 5, 4),
        (2, 2, 7, 2),
        (2, 1, 12, 6),
        (2, 2, 24, 20),
        (2, 1, 32, 12),
        (40, 10, 128, 128),
        (0, 2, 16, 16),
        (2, 2, 16, 0),
        (0, 32, 96, 0),
        (0, 5, 3, 0),
    ] {
        check_all(shape, &[2 * PAGE_SIZE + 5, 17, PAGE_SIZE + 40], 1);
    }
}

/// Zeros, infinities; ties of f16 (1 + 2^-11) and of bf16 (1 + 2^-8) to the even number below and
/// above, and just beside one; the largest f16 and bf16, what still rounds to them and what
/// overflows; subnormal numbers and ties with zero.
const NUMBERS: [u32; 24] = [
    0x0000_0000,
    0x8000_0000,
    0xbf80_0000,
    0x7f80_0000,
    0xff80_0000,
    0x3f80_1000,
    0x3f80_3000,
    0x3f80_1001,
    0x3f80_8000,
    0x3f81_8000,
    0x3f80_8001,
    0x477f_e000,
    0x477f_efff,
    0x477f_f000,
    0xc77f_f000,
    0x7f7f_7fff,
    0x7f7f_ffff,
    0x3880_0000,
    0x387f_c000,
    0x3380_0000,
    0x3300_0000,
    0x3300_0001,
    0x0001_0000,
    0x0000_8000,
];

/// What they become in f16 and bf16.
const F16S: [u16; 24] = [
    0x0000, 0x8000, 0xbc00, 0x7c00, 0xfc00, 0x3c00, 0x3c02, 0x3c01, 0x3c04, 0x3c0c, 0x3c04, 0x7bff,
    0x7bff, 0x7c00, 0xfc00, 0x7c00, 0x7c00, 0x0400, 0x03ff, 0x0001, 0x0000, 0x0001, 0x0000, 0x0000,
];
const BF16S: [u16; 24] = [
    0x0000, 0x8000, 0xbf80, 0x7f80, 0xff80, 0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x4780,
    0x4780, 0x4780, 0xc780, 0x7f7f, 0x7f80, 0x3880, 0x3880, 0x3380, 0x3300, 0x3300, 0x0001, 0x0000,
];

#[test]
fn conversion_rounds_every_class_to_nearest_even() {
    let numbers = NUMBERS.map(|bits| f64::from(f32::from_bits(bits)));
    // Q none, K the numbers and NaN, V the same.
    let mut case = Case::random::<f32>((0, 1, 32, 0), &[7], 0);
    case.qkv.values[case.margin..][..64].fill(f64::NAN);
    for start in [0, 32] {
        case.qkv.values[case.margin + start..][..24].copy_from_slice(&numbers);
    }
    for fused in [true, false] {
        for pool in case.run::<f32, f16>(fused, false, 1).pools {
            assert_eq!(
                bits(&pool[7 * 32..][..24]),
                F16S.map(|x| f16::from_bits(x).value().to_bits())
            );
        }
        for pool in case.run::<f32, bf16>(fused, false, 1).pools {
            let want = BF16S.map(|x| bf16::from_bits(x).value().to_bits());
            assert_eq!(bits(&pool[7 * 32..][..24]), want);
        }
    }
}

#[test]
fn launches_cover_tokens_and_heads() {
    let append = |max_tokens, num_kv_heads| {
        let append = KvAppend { max_tokens, num_kv_heads, head_dim: 80 };
        append.launch(ptr(9), ptr(8), rows::<f32>(1040), rows(1040), ptr(2), ptr(3))
    };
    assert_eq!(of(append(4, 3)), ("kv_append_f32", [4, 1, 1], 128, 0));
    assert_eq!(of(append(4, 13)), ("kv_append_f32", [4, 2, 1], 128, 0));
    assert!(is_nothing(append(0, 4)));
    fn name<C: Number>(from_f32: bool) -> &'static str {
        let append = KvAppend { max_tokens: 1, num_kv_heads: 1, head_dim: 64 };
        let [k_pool, v_pool] = [ptr::<C>(2), ptr(3)];
        of(if from_f32 {
            append.launch_from_f32(ptr(9), ptr(8), rows(64), rows(64), k_pool, v_pool)
        } else {
            append.launch(ptr(9), ptr(8), rows(64), rows(64), k_pool, v_pool)
        })
        .0
    }
    assert_eq!([name::<f16>(false), name::<f16>(true)], ["kv_append_f16", "kv_append_f32_f16"]);
    assert_eq!([name::<bf16>(false), name::<bf16>(true)], ["kv_append_bf16", "kv_append_f32_bf16"]);
    assert_eq!([name::<f32>(false), name::<f32>(true)], ["kv_append_f32"; 2]);

    let of_heads = |max_tokens, num_heads, [head_dim, rotary_dim]: [usize; 2], norm| {
        let append = RopeAppend { max_tokens, num_heads, num_kv_heads: 2, head_dim, rotary_dim };
        let [q, k, v] = [(); 3].map(|()| rows::<f32>(18 * 64));
        let (positions, slot_mapping, table) = (ptr(8), ptr(7), ptr(6));
        let (k_pool, v_pool) = (ptr::<f16>(2), ptr(3));
        let operands =
            RopeAppendOperands { positions, slot_mapping, table, norm, q, k, v, k_pool, v_pool };
        append.launch(ptr(9), &operands)
    };
    let append = |max_tokens, num_heads, rotary_dim| {
        of_heads(max_tokens, num_heads, [64, rotary_dim], QkNorm::NONE)
    };
    // 16 heads of 4 vectors of pairs, and 2 of V of 8.
    assert_eq!(of(append(7, 14, 64)), ("rope_append_f32_f16", [7, 1, 1], 128, 0));
    assert_eq!(of(append(7, 27, 64)).1, [7, 2, 1]);
    // 14 + 2 heads of a vector, and 2 of 6 of K and 8 of V.
    assert_eq!(of(append(1, 14, 16)).1, [1, 1, 1]);
    assert!(is_nothing(append(0, 14, 64)));
    assert_eq!([66, 63].map(|wrong| refused(append(7, 14, wrong)).0), ["rotary_dim"; 2]);
    assert_eq!(refused(append(1, usize::MAX, 64)).0, "row width");
    // With a norm 27 + 2 + 2 heads of 4 lanes, or of 8: 2 vectors of pairs, 4 of the rest.
    let normed = |sizes| of_heads(7, 27, sizes, QkNorm { q: ptr(1), k: ptr(2), eps: 0.0 });
    assert_eq!(of(normed([64, 64])), ("norm_rope_append_f32_f16", [7, 1, 1], 128, 0));
    assert_eq!(of(normed([64, 32])).1, [7, 2, 1]);
    assert_eq!([[264, 264], [256, 2]].map(|wrong| refused(normed(wrong)).0), ["head_dim"; 2]);
}
