//! kv_append: what reaches the paged pools, and that nothing else is touched.

use crate::device::{Device, SEEDS, Stored, random_of};
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::kv_cache::{KvAppend, PAGE_SIZE};

const PAGE: usize = PAGE_SIZE as usize;
const NUM_PAGES: usize = 3;

/// Tokens to append: their K and V, `[slots, num_kv_heads * head_dim]`, and where they go.
struct Append<'a> {
    num_kv_heads: usize,
    head_dim: usize,
    slots: &'a [u32],
    k: Vec<f32>,
    v: Vec<f32>,
}

impl<'a> Append<'a> {
    /// Random tokens, exact in `C`.
    fn random<C: Stored>(
        (num_kv_heads, head_dim): (usize, usize),
        slots: &'a [u32],
        seed: u64,
    ) -> Self {
        let len = slots.len() * num_kv_heads * head_dim;
        let (k, v) = (random_of::<C>(len, seed + 1), random_of::<C>(len, seed + 2));
        Append { num_kv_heads, head_dim, slots, k, v }
    }

    /// The pools after the append of what is `C` already, or still f32.
    fn run<C: Stored>(&self, from_f32: bool, seed: u64) -> [Vec<f32>; 2] {
        let &Append { num_kv_heads, head_dim, slots, .. } = self;
        let width = num_kv_heads * head_dim;
        let mut device = Device::default();
        let num_tokens = device.u32s("num_tokens", &[slots.len() as u32]);
        let slots_ptr = device.u32s("slot_mapping", slots);
        let pool_elems = NUM_PAGES * PAGE * width;
        let k_pool: DevicePtr<C> = device.poisoned("k_pool", pool_elems);
        let v_pool: DevicePtr<C> = device.poisoned("v_pool", pool_elems);
        // Room for one token more than there is.
        let append = KvAppend { max_tokens: slots.len() + 1, num_kv_heads, head_dim };
        let launch = if from_f32 {
            let k = Rows::new(device.f32s("k", &self.k), width);
            let v = Rows::new(device.f32s("v", &self.v), width);
            append.launch_from_f32(num_tokens, slots_ptr, k, v, k_pool, v_pool)
        } else {
            let k = Rows::new(device.numbers::<C>("k", &self.k), width);
            let v = Rows::new(device.numbers::<C>("v", &self.v), width);
            append.launch(num_tokens, slots_ptr, k, v, k_pool, v_pool)
        };
        device.run(launch, seed);
        [k_pool, v_pool].map(|pool| device.read(pool, pool_elems))
    }

    /// Fails unless each pool holds the tokens, rounded by `half`, and NaN everywhere else.
    fn check<C: Stored>(&self, from_f32: bool, seed: u64) {
        let width = self.num_kv_heads * self.head_dim;
        for (pool, x) in self.run::<C>(from_f32, seed).iter().zip([&self.k, &self.v]) {
            let mut want = vec![f32::NAN; pool.len()];
            for (token, slot) in self.slots.iter().map(|slot| *slot as usize).enumerate() {
                for column in 0..width {
                    let head = slot / PAGE * self.num_kv_heads + column / self.head_dim;
                    let row = head * PAGE + slot % PAGE;
                    let value = C::of(x[token * width + column]).value();
                    want[row * self.head_dim + column % self.head_dim] = value;
                }
            }
            for (at, (got, want)) in pool.iter().zip(&want).enumerate() {
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "element {at} is {got}, not {want}");
            }
        }
    }
}

/// `check` for every pair of types.
fn check_all(shape: (usize, usize), slots: &[u32], seed: u64) {
    Append::random::<f32>(shape, slots, seed).check::<f32>(false, seed);
    Append::random::<f16>(shape, slots, seed).check::<f16>(false, seed);
    Append::random::<bf16>(shape, slots, seed).check::<bf16>(false, seed);
    Append::random::<f32>(shape, slots, seed).check::<f16>(true, seed);
    Append::random::<f32>(shape, slots, seed).check::<bf16>(true, seed);
}

#[test]
fn tokens_reach_their_pages_and_slots() {
    for seed in SEEDS {
        check_all((2, 16), &[2 * PAGE_SIZE + 5, 17, PAGE_SIZE + 40, 18], seed);
    }
}

#[test]
fn both_sides_of_a_page_boundary() {
    for seed in SEEDS {
        check_all((3, 8), &[PAGE_SIZE - 1, PAGE_SIZE, 2 * PAGE_SIZE - 1, 2 * PAGE_SIZE], seed);
    }
}

#[test]
fn the_first_and_the_last_slot_of_the_pool() {
    let last = NUM_PAGES as u32 * PAGE_SIZE - 1;
    for seed in SEEDS {
        check_all((1, 24), &[last, 0], seed);
        // A full pool.
        check_all((1, 8), &(0..=last).rev().collect::<Vec<_>>(), seed);
    }
}

#[test]
fn every_head_dim() {
    // Those of models, more vectors than a block has threads, and what is no vector.
    for shape in [(2, 64), (32, 96), (3, 128), (1, 256), (5, 3), (3, 12)] {
        check_all(shape, &[PAGE_SIZE + 1, 3], 1);
    }
}

/// What a number becomes, as bits, of every class: `(f32, f16, bf16)`.
const CONVERSIONS: [(u32, u16, u16); 24] = [
    // Zeros, one, infinities.
    (0x0000_0000, 0x0000, 0x0000),
    (0x8000_0000, 0x8000, 0x8000),
    (0xbf80_0000, 0xbc00, 0xbf80),
    (0x7f80_0000, 0x7c00, 0x7f80),
    (0xff80_0000, 0xfc00, 0xff80),
    // Ties of f16 to the even one below and above, and just beside one: 1 + 2^-11, 1 + 3 * 2^-11.
    (0x3f80_1000, 0x3c00, 0x3f80),
    (0x3f80_3000, 0x3c02, 0x3f80),
    (0x3f80_1001, 0x3c01, 0x3f80),
    // Ties of bf16: 1 + 2^-8, 1 + 3 * 2^-8.
    (0x3f80_8000, 0x3c04, 0x3f80),
    (0x3f81_8000, 0x3c0c, 0x3f82),
    (0x3f80_8001, 0x3c04, 0x3f81),
    // The largest f16, what still rounds to it, and the first that overflows.
    (0x477f_e000, 0x7bff, 0x4780),
    (0x477f_efff, 0x7bff, 0x4780),
    (0x477f_f000, 0x7c00, 0x4780),
    (0xc77f_f000, 0xfc00, 0xc780),
    // The largest bf16, and what overflows it.
    (0x7f7f_7fff, 0x7c00, 0x7f7f),
    (0x7f7f_ffff, 0x7c00, 0x7f80),
    // The smallest normal f16, the largest subnormal one, the smallest, and a tie with zero.
    (0x3880_0000, 0x0400, 0x3880),
    (0x387f_c000, 0x03ff, 0x3880),
    (0x3380_0000, 0x0001, 0x3380),
    (0x3300_0000, 0x0000, 0x3300),
    (0x3300_0001, 0x0001, 0x3300),
    // Subnormal f32: a subnormal bf16, and a tie with zero.
    (0x0001_0000, 0x0000, 0x0001),
    (0x0000_8000, 0x0000, 0x0000),
];

#[test]
fn conversion_rounds_every_class_to_nearest_even() {
    let mut k: Vec<f32> = CONVERSIONS.iter().map(|(bits, _, _)| f32::from_bits(*bits)).collect();
    k.extend([f32::NAN; 8]);
    let v = k.iter().rev().copied().collect();
    let append = Append { num_kv_heads: 1, head_dim: k.len(), slots: &[7], k, v };
    let bits = |pool: &[f32]| -> Vec<u32> {
        let row = &pool[7 * append.head_dim..][..CONVERSIONS.len()];
        row.iter().map(|value| value.to_bits()).collect()
    };
    let [f16_k, _] = append.run::<f16>(true, 0);
    let want = CONVERSIONS.map(|(_, bits, _)| f16::from_bits(bits).to_f32().to_bits());
    assert_eq!(bits(&f16_k), want);
    let [bf16_k, _] = append.run::<bf16>(true, 0);
    let want = CONVERSIONS.map(|(_, _, bits)| bf16::from_bits(bits).to_f32().to_bits());
    assert_eq!(bits(&bf16_k), want);
    // V, NaN, and the crate `half` on all.
    append.check::<f16>(true, 1);
    append.check::<bf16>(true, 1);
}
