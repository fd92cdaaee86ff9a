//! E4M3 for FP8 attention: scales, and the append of Q, K and V.

use crate::device::{Device, SEEDS, Stored, random_of};
use cuda_std::E4m3;
use cuda_std::launch::DevicePtr;
use half::{bf16, f16};
use kernels::Rows;
use kernels::attention::sm90::fp8::storage_index;
use kernels::kv_cache::PAGE_SIZE;
use kernels::kv_cache::append_fp8::{AppendFp8, AppendFp8Operands, HeadScales};

const PAGE: usize = PAGE_SIZE as usize;
const NUM_PAGES: usize = 3;
/// What no launch has written.
const UNWRITTEN: u8 = 0x7f;

/// Slots in an order of their own.
fn slots(tokens: usize) -> Vec<u32> {
    (0..tokens).map(|token| (token * 71 % (NUM_PAGES * PAGE)) as u32).collect()
}

fn quant(x: f32, scale: f32) -> u8 {
    let inverse = if scale < f32::MIN_POSITIVE { 0.0 } else { 1.0 / scale };
    E4m3::from_f32(x * inverse).to_bits()
}

/// Appends `tokens` tokens, of which some numbers are beyond the scales.
#[track_caller]
fn check<T: Stored>(tokens: usize, [num_heads, num_kv_heads]: [usize; 2], head_dim: usize) {
    let numbers = |heads: usize, salt: u64| {
        let mut values = random_of::<T>(tokens * heads * head_dim, salt);
        values[3] = T::of(100.0).value();
        values[head_dim - 1] = f32::NAN;
        values[head_dim - 2] = T::of(-1e4).value();
        values
    };
    let scales = |heads: usize, first: f32| -> Vec<f32> {
        (0..heads).map(|head| first / 448.0 / (1.0 + head as f32)).collect()
    };
    let [q, k, v] =
        [(num_heads, 1), (num_kv_heads, 2), (num_kv_heads, 3)].map(|(h, salt)| numbers(h, salt));
    let (q_scale, k_scale) = (scales(num_heads, 1.0), scales(num_kv_heads, 2.0));
    let mut v_scale = scales(num_kv_heads, 0.5);
    v_scale[num_kv_heads - 1] = 0.0;

    let slots = slots(tokens);
    let pool_len = NUM_PAGES * num_kv_heads * PAGE * head_dim;
    let (mut want_k, mut want_v) = (vec![UNWRITTEN; pool_len], vec![UNWRITTEN; pool_len]);
    for (token, &slot) in slots.iter().enumerate() {
        for head in 0..num_kv_heads {
            let page = (slot as usize / PAGE * num_kv_heads + head) * PAGE * head_dim;
            for column in 0..head_dim {
                let at = (token * num_kv_heads + head) * head_dim + column;
                let row = slot as usize % PAGE;
                want_k[page + row * head_dim + column] = quant(k[at], k_scale[head]);
                let index = storage_index(row as u32) as usize;
                want_v[page + column * PAGE + index] = quant(v[at], v_scale[head]);
            }
        }
    }
    let want_q: Vec<u8> =
        q.iter().enumerate().map(|(i, &x)| quant(x, q_scale[i / head_dim % num_heads])).collect();

    for seed in SEEDS {
        let mut device = Device::default();
        let rows = |device: &mut Device, name: &str, x: &[f32], heads: usize| {
            let max_len = (tokens + 40) * heads * head_dim;
            Rows::new(device.partly_written::<T>(name, x, max_len), heads * head_dim)
        };
        let unwritten = |device: &mut Device, name: &str, len: usize| -> DevicePtr<E4m3> {
            DevicePtr::new(device.bytes(name, &vec![UNWRITTEN; len]).0)
        };
        let q_len = tokens * num_heads * head_dim;
        let operands = AppendFp8Operands {
            slot_mapping: device.u32s("slot_mapping", &slots),
            q: rows(&mut device, "q", &q, num_heads),
            k: rows(&mut device, "k", &k, num_kv_heads),
            v: rows(&mut device, "v", &v, num_kv_heads),
            q_scale: device.f32s("q_scale", &q_scale),
            k_scale: device.f32s("k_scale", &k_scale),
            v_scale: device.f32s("v_scale", &v_scale),
            q_out: Rows::new(unwritten(&mut device, "q_out", q_len), num_heads * head_dim),
            k_pool: unwritten(&mut device, "k_pool", pool_len),
            v_pool: unwritten(&mut device, "v_pool", pool_len),
        };
        let num_tokens = device.u32s("num_tokens", &[tokens as u32]);
        let append = AppendFp8 { max_tokens: tokens + 40, num_heads, num_kv_heads, head_dim };
        device.run(append.launch(num_tokens, &operands), seed);
        for (name, ptr, want) in [
            ("q", operands.q_out.ptr, &want_q),
            ("k", operands.k_pool, &want_k),
            ("v", operands.v_pool, &want_v),
        ] {
            let words = device.read_u32(DevicePtr::new(ptr.0), want.len() / 4);
            let got: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let wrong = got.iter().zip(want).position(|(got, want)| got != want);
            assert_eq!(wrong, None, "{name}, {tokens} tokens of {head_dim} columns");
        }

        // Scales are raised, by whichever tokens there are; NaN counts for nothing.
        let scale = device.f32s("scale", &vec![1e-3; num_heads]);
        let scales = HeadScales { max_tokens: tokens + 40, num_heads, head_dim };
        device.run(scales.launch(num_tokens, operands.q, scale), seed);
        for (head, got) in device.read_f32(scale, num_heads).into_iter().enumerate() {
            let of_head = |i: &usize| i / head_dim % num_heads == head;
            let values = (0..q.len()).filter(of_head).map(|i| q[i].abs());
            let want = values.fold(0.0, f32::max) * (1.0 / 448.0);
            assert_eq!(got, want.max(1e-3), "scale of head {head}");
        }
    }
}

#[test]
fn tokens_around_a_block() {
    for tokens in [1, 31, 33, 65] {
        check::<f16>(tokens, [2, 1], 64);
    }
}

#[test]
fn heads_and_types() {
    check::<f32>(5, [7, 1], 128);
    check::<f16>(40, [4, 2], 96);
    check::<bf16>(3, [2, 2], 256);
    check::<bf16>(3, [1, 1], 16);
}
