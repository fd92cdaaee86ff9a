//! rope_append: against an oracle in f64, against rope and kv_append bit by bit, and that nothing
//! else is touched.

use crate::device::{Device, SEEDS, Stored, assert_stored, random, random_of};
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::element::NarrowedFrom;
use kernels::kv_cache::{KvAppend, PAGE_SIZE};
use kernels::rope::Rope;
use kernels::rope_append::{RopeAppend, RopeAppendOperands};

const PAGE: usize = PAGE_SIZE as usize;
const NUM_PAGES: usize = 3;
const MAX_POSITIONS: usize = 11;

/// Heads of Q and of K, columns of a head, and those of them that are rotated.
type Shape = (usize, usize, usize, usize);

/// Tokens on their way: their rows of Q, K and V side by side, positions and slots.
struct Case {
    shape: Shape,
    stride: usize,
    qkv: Vec<f32>,
    table: Vec<f32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
}

/// What there is afterwards: the rows, and both pools.
struct Outcome {
    qkv: Vec<f32>,
    pools: [Vec<f32>; 2],
}

impl Case {
    /// Tokens of random elements, exact in `T`, for these slots.
    fn random<T: Stored>(shape: Shape, slots: &[u32], seed: u64) -> Self {
        let (num_heads, num_kv_heads, head_dim, rotary_dim) = shape;
        // Eight columns before Q and after V, or one: aligned, or not.
        let margin = if head_dim.is_multiple_of(8) { 16 } else { 2 };
        let stride = (num_heads + 2 * num_kv_heads) * head_dim + margin;
        let position = |token: usize| ((token * 7 + 3) % MAX_POSITIONS) as u32;
        Case {
            shape,
            stride,
            // Room for one token more than there is.
            qkv: random_of::<T>((slots.len() + 1) * stride, seed + 1),
            table: random(MAX_POSITIONS * rotary_dim, seed + 2),
            positions: (0..slots.len()).map(position).collect(),
            slots: slots.to_vec(),
        }
    }

    /// The first column of Q, of K and of V.
    fn columns(&self) -> [usize; 3] {
        let (num_heads, num_kv_heads, head_dim, _) = self.shape;
        let q = (self.stride - (num_heads + 2 * num_kv_heads) * head_dim) / 2;
        [q, q + num_heads * head_dim, q + (num_heads + num_kv_heads) * head_dim]
    }

    /// What is left by one launch, or where not `fused` by the two that it replaces.
    fn run<T: Stored, C: Stored + NarrowedFrom<T>>(&self, fused: bool, seed: u64) -> Outcome {
        let (num_heads, num_kv_heads, head_dim, rotary_dim) = self.shape;
        let max_tokens = self.slots.len() + 1;
        let mut device = Device::default();
        let num_tokens = device.u32s("num_tokens", &[self.slots.len() as u32]);
        let positions = device.u32s("positions", &self.positions);
        let slot_mapping = device.u32s("slot_mapping", &self.slots);
        let table = device.f32s("table", &self.table);
        let qkv = device.numbers::<T>("qkv", &self.qkv);
        let pool_elems = NUM_PAGES * PAGE * num_kv_heads * head_dim;
        let k_pool: DevicePtr<C> = device.poisoned("k_pool", pool_elems);
        let v_pool: DevicePtr<C> = device.poisoned("v_pool", pool_elems);
        let [q, k, v] = self.columns().map(|column| Rows::new(qkv.add(column), self.stride));
        if fused {
            let append = RopeAppend { max_tokens, num_heads, num_kv_heads, head_dim, rotary_dim };
            let operands =
                RopeAppendOperands { positions, slot_mapping, table, q, k, v, k_pool, v_pool };
            device.run(append.launch(num_tokens, &operands), seed);
        } else {
            let num_heads = num_heads + num_kv_heads;
            let rope = Rope { max_tokens, num_heads, head_dim, rotary_dim };
            device.run(rope.launch(num_tokens, positions, table, q), seed);
            append(&mut device, self, [num_tokens, slot_mapping], [k, v], [k_pool, v_pool], seed);
        }
        Outcome {
            qkv: device.read(qkv, self.qkv.len()),
            pools: [k_pool, v_pool].map(|pool| device.read(pool, pool_elems)),
        }
    }

    /// Element `i` of a head in row `token`, from `column` on, rotated.
    fn rotated(&self, token: usize, column: usize, i: usize) -> f64 {
        let rotary_dim = self.shape.3;
        let half = rotary_dim / 2;
        let x = |i: usize| f64::from(self.qkv[token * self.stride + column + i]);
        if i >= rotary_dim {
            return x(i);
        }
        let angle = self.positions[token] as usize * rotary_dim + i % half;
        let (cos, sin) = (f64::from(self.table[angle]), f64::from(self.table[angle + half]));
        if i < half { x(i) * cos - x(i + half) * sin } else { x(i) * cos + x(i - half) * sin }
    }

    /// The rows with Q rotated, and K and V in their slots, rotated and as they are.
    fn oracle(&self) -> ([Vec<f64>; 2], Vec<f64>) {
        let (num_heads, num_kv_heads, head_dim, _) = self.shape;
        let [q, k, v] = self.columns();
        let mut rows: Vec<f64> = self.qkv.iter().map(|&x| f64::from(x)).collect();
        let mut pools =
            [(); 2].map(|()| vec![f64::NAN; NUM_PAGES * PAGE * num_kv_heads * head_dim]);
        for (token, slot) in self.slots.iter().map(|&slot| slot as usize).enumerate() {
            for (head, i) in (0..num_heads).flat_map(|h| (0..head_dim).map(move |i| (h, i))) {
                let column = q + head * head_dim;
                rows[token * self.stride + column + i] = self.rotated(token, column, i);
            }
            for (head, i) in (0..num_kv_heads).flat_map(|h| (0..head_dim).map(move |i| (h, i))) {
                let row = (slot / PAGE * num_kv_heads + head) * PAGE + slot % PAGE;
                let at = row * head_dim + i;
                pools[0][at] = self.rotated(token, k + head * head_dim, i);
                pools[1][at] = f64::from(self.qkv[token * self.stride + v + head * head_dim + i]);
            }
        }
        (pools, rows)
    }
}

/// The append of rows that are of the cache's type, or f32.
fn append<T: Stored, C: Stored>(
    device: &mut Device,
    case: &Case,
    [num_tokens, slot_mapping]: [DevicePtr<u32>; 2],
    [k, v]: [Rows<T>; 2],
    [k_pool, v_pool]: [DevicePtr<C>; 2],
    seed: u64,
) {
    let (_, num_kv_heads, head_dim, _) = case.shape;
    let append = KvAppend { max_tokens: case.slots.len() + 1, num_kv_heads, head_dim };
    let launch = if T::DTYPE == C::DTYPE {
        let [k, v] = [k, v].map(|x| Rows::new(DevicePtr::new(x.ptr.0), x.row_stride));
        append.launch(num_tokens, slot_mapping, k, v, k_pool, v_pool)
    } else {
        let [k, v] = [k, v].map(|x| Rows::new(DevicePtr::new(x.ptr.0), x.row_stride));
        append.launch_from_f32(num_tokens, slot_mapping, k, v, k_pool, v_pool)
    };
    device.run(launch, seed);
}

fn check<T: Stored, C: Stored + NarrowedFrom<T>>(shape: Shape, slots: &[u32], seed: u64) {
    let case = Case::random::<T>(shape, slots, seed);
    let name = format!("{shape:?}, {} tokens, {:?} to {:?}", slots.len(), T::DTYPE, C::DTYPE);
    let fused = case.run::<T, C>(true, seed);
    let ([keys, values], rows) = case.oracle();
    assert_stored::<T>(&format!("rows of {name}"), &fused.qkv, &rows, 1e-6);
    assert_stored::<C>(&format!("keys of {name}"), &fused.pools[0], &keys, 1e-6);
    assert_stored::<C>(&format!("values of {name}"), &fused.pools[1], &values, 0.0);
    if shape.3 == 0 {
        return;
    }

    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let unfused = case.run::<T, C>(false, seed);
    for (pool, unfused) in fused.pools.iter().zip(&unfused.pools) {
        assert_eq!(bits(pool), bits(unfused), "{name}");
    }
    let [_, k, v] = case.columns();
    let rotated_k = |at: &usize| (k..v).contains(&(at % case.stride));
    for at in (0..fused.qkv.len()).filter(|at| !rotated_k(at)) {
        assert_eq!(fused.qkv[at].to_bits(), unfused.qkv[at].to_bits(), "{name}, element {at}");
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
fn one_token() {
    for seed in SEEDS {
        check_all((14, 2, 64, 64), &[PAGE_SIZE + 40], seed);
    }
}

#[test]
fn no_token() {
    check_all((14, 2, 64, 64), &[], 1);
}

#[test]
fn many_tokens_on_both_sides_of_a_page_boundary() {
    let slots: Vec<u32> =
        (PAGE_SIZE - 9..PAGE_SIZE + 8).rev().chain([0, 3 * PAGE_SIZE - 1]).collect();
    for seed in SEEDS {
        check_all((2, 1, 16, 16), &slots, seed);
    }
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
    ] {
        check_all(shape, &[2 * PAGE_SIZE + 5, 17, PAGE_SIZE + 40], 1);
    }
}
