//! TMA copies of boxes, against copies of one element at a time.

use cuda_std::bulk::CacheHint;
use cuda_std::launch::{DevicePtr, Geometry, Launch};
use cuda_std::prelude::*;
use cuda_std::tensor_map::{Element, EncodedTensorMap, L2Promotion, Swizzle, TensorMapSpec};
use simt::{Init, Memory};

/// Threads of a block.
const THREADS: u32 = 32;

fn geometry(blocks: u32) -> Geometry {
    Geometry { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared_bytes: 32 << 10 }
}

/// How a kernel of [`boxes`] moves the box at `coords`.
const LOAD: u32 = 0;
const STORE: u32 = 1;
const REDUCE_ADD: u32 = 2;

/// Kernels that load a box of `bytes` to `words`, or store or reduce it from there.
macro_rules! boxes {
    ($name:ident, [$($coord:ident),+], $load:ident, $store:ident, $add:ident) => {
        #[kernel(launch_bounds(THREADS), instances($load = <0>, $store = <1>, $add = <2>))]
        unsafe fn $name<const HOW: u32>(
            bytes: u32,
            map: TensorMap,
            $($coord: i32,)+
            words: GlobalMut<u32>
        ) {
            // SAFETY: a box of `bytes`, and a barrier.
            unsafe {
                let barrier = Mbarrier::new(shared_array![u64; 1]);
                let smem: Shared<u32> = dynamic_shared_mem();
                let lane = warp::lane_id();
                map.prefetch();
                if HOW == LOAD {
                    if lane == 0 {
                        barrier.init(1);
                        fence::mbarrier_init();
                    }
                    thread::sync_threads();
                    if lane == 0 {
                        barrier.arrive_expect_tx(bytes);
                        let hint = CacheHint::EvictLast;
                        bulk::tensor_load(smem, map, [$($coord),+], barrier, hint);
                    }
                    barrier.wait(0);
                }
                let mut i = lane;
                while i < bytes / 4 {
                    if HOW == LOAD {
                        words.set(i as usize, smem.get(i));
                    } else {
                        smem.set(i, words.get(i as usize));
                    }
                    i += THREADS;
                }
                if HOW != LOAD {
                    fence::proxy_async_shared();
                    thread::sync_threads();
                    if lane == 0 {
                        if HOW == STORE {
                            bulk::tensor_store(map, [$($coord),+], smem);
                        } else {
                            bulk::tensor_reduce_add(map, [$($coord),+], smem);
                        }
                        bulk::commit_group();
                        bulk::wait_group::<0>();
                    }
                }
            }
        }
    };
}

boxes!(box_1d, [a], load_1d, store_1d, reduce_add_1d);
boxes!(box_2d, [a, b], load_2d, store_2d, reduce_add_2d);
boxes!(box_3d, [a, b, c], load_3d, store_3d, reduce_add_3d);
boxes!(box_4d, [a, b, c, d], load_4d, store_4d, reduce_add_4d);

/// The launch that moves the box at `at` between the tensor and `words`.
fn launch(
    how: u32,
    blocks: u32,
    map: EncodedTensorMap,
    spec: &TensorMapSpec,
    at: &[i32],
    words: u64,
) -> Launch {
    let (geometry, words) = (geometry(blocks), DevicePtr::new(words));
    let bytes = spec.box_bytes() as u32;
    macro_rules! launch {
        ($name:ident, $load:ident, $store:ident, $add:ident, $($coord:ident),+) => {{
            let instances = [$name::Instance::$load, $name::Instance::$store, $name::Instance::$add];
            $name::Args { bytes, map, $($coord,)+ words }.launch(instances[how as usize], geometry)
        }};
    }
    match *at {
        [a] => launch!(box_1d, load_1d, store_1d, reduce_add_1d, a),
        [a, b] => launch!(box_2d, load_2d, store_2d, reduce_add_2d, a, b),
        [a, b, c] => launch!(box_3d, load_3d, store_3d, reduce_add_3d, a, b, c),
        [a, b, c, d] => launch!(box_4d, load_4d, store_4d, reduce_add_4d, a, b, c, d),
        _ => unreachable!("boxes of 1 to 4 dimensions"),
    }
}

/// Byte offset of every element of the box at `at`: in shared memory, and in the tensor, `None` out
/// of bounds.
fn elements(spec: &TensorMapSpec, at: &[i32]) -> Vec<(usize, Option<usize>)> {
    let size = spec.element.size_bytes();
    let mut index = vec![0; at.len()];
    let mut elements = Vec::new();
    for linear in 0..spec.box_dims.iter().product::<u32>() {
        let mut rest = linear;
        for (index, &dim) in index.iter_mut().zip(&spec.box_dims) {
            *index = i64::from(rest % dim);
            rest /= dim;
        }
        let mut global = Some(0);
        for (axis, &index) in index.iter().enumerate() {
            let stride = if axis == 0 { size } else { spec.strides_bytes[axis - 1] };
            let place = index + i64::from(at[axis]);
            let inside = (0..spec.dims[axis] as i64).contains(&place);
            global = global.filter(|_| inside).map(|sum| sum + place as u64 * stride);
        }
        let shared = swizzled(spec.swizzle, u64::from(linear) * size);
        elements.push((shared as usize, global.map(|offset| offset as usize)));
    }
    elements
}

/// Byte offset in shared memory: the eight 16-byte chunks of each 128 bytes are permuted by the
/// index of the 128 bytes. For rows of 128 bytes it is xored modulo 8; for 64 bytes modulo 4 within
/// a half, which changes every 2 rows; for 32 bytes modulo 2 within a pair.
fn swizzled(swizzle: Swizzle, offset: u64) -> u64 {
    let (line, chunk, byte) = (offset / 128, offset / 16 % 8, offset % 16);
    let chunk = match swizzle {
        Swizzle::None => chunk,
        Swizzle::B32 => chunk / 2 * 2 + (chunk + line) % 2,
        Swizzle::B64 => chunk / 4 * 4 + ((chunk % 4) ^ (line % 4)),
        Swizzle::B128 => chunk ^ (line % 8),
    };
    line * 128 + chunk * 16 + byte
}

/// Bytes of a tensor, from its first element to its last, and 32 more.
fn tensor_bytes(spec: &TensorMapSpec) -> usize {
    let outer = spec.strides_bytes.iter().zip(&spec.dims[1..]);
    let last: u64 = outer.map(|(stride, dim)| stride * (dim - 1)).sum();
    (last + spec.dims[0] * spec.element.size_bytes() + 32) as usize
}

fn spec(
    element: Element,
    swizzle: Swizzle,
    dims: &[u64],
    strides_bytes: &[u64],
    box_dims: &[u32],
) -> TensorMapSpec {
    let (dims, strides_bytes, box_dims) =
        (dims.to_vec(), strides_bytes.to_vec(), box_dims.to_vec());
    let l2_promotion = L2Promotion::default();
    TensorMapSpec { address: 0, element, dims, strides_bytes, box_dims, swizzle, l2_promotion }
}

/// Boxes of every rank, element and swizzle, with coordinates: inside, across each edge, and out of
/// bounds.
fn cases() -> Vec<(TensorMapSpec, Vec<Vec<i32>>)> {
    use Element::*;
    use Swizzle::{B32, B64, B128};
    vec![
        (
            spec(F32, Swizzle::None, &[100], &[], &[32]),
            vec![vec![0], vec![-4], vec![88], vec![100]],
        ),
        (spec(U8, Swizzle::None, &[300], &[], &[256]), vec![vec![16], vec![-240], vec![-256]]),
        (
            spec(F16, B128, &[200, 40], &[416], &[64, 32]),
            vec![vec![0, 0], vec![64, 8], vec![152, 20], vec![-8, -7], vec![0, 40], vec![192, 39]],
        ),
        (spec(Bf16, B64, &[64, 33], &[128], &[32, 24]), vec![vec![32, 16], vec![40, 9]]),
        (spec(U16, B32, &[48, 20], &[96], &[16, 20]), vec![vec![16, 0], vec![40, -2]]),
        (
            spec(U32, B128, &[32, 9, 5], &[144, 1312], &[32, 4, 3]),
            vec![vec![0, 3, 1], vec![-16, 7, 3], vec![0, -4, 0]],
        ),
        // An outer dimension with a smaller stride: heads outside tokens.
        (
            spec(F16, B128, &[64, 10, 3, 2], &[384, 128, 3840], &[64, 8, 1, 2]),
            vec![vec![0, 0, 2, 0], vec![0, 5, 1, 0], vec![-8, -1, 0, 1]],
        ),
        (spec(U64, B128, &[16, 3, 2, 2], &[128, 384, 768], &[16, 2, 2, 2]), vec![vec![0, 1, 0, 1]]),
    ]
}

/// Allocates the tensor with these bytes; returns its map.
fn place(memory: &mut Memory, spec: &mut TensorMapSpec, bytes: &[u8]) -> EncodedTensorMap {
    spec.address = memory.alloc("tensor", Init::Bytes(bytes));
    spec.check().unwrap();
    spec.emulated()
}

/// Nonzero bytes, no two adjacent ones equal.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (1 + (i * 37 + i / 251 * 11 + seed) % 255) as u8).collect()
}

#[test]
fn a_loaded_box_is_swizzled_and_zero_out_of_bounds() {
    for (mut spec, corners) in cases() {
        let tensor = pattern(tensor_bytes(&spec), 0);
        let size = spec.element.size_bytes() as usize;
        for (at, seed) in corners.iter().flat_map(|at| simt::seeds().map(move |seed| (at, seed))) {
            let mut memory = Memory::new();
            let map = place(&mut memory, &mut spec, &tensor);
            let out = memory.alloc("out", Init::Poisoned(spec.box_bytes() as usize));
            launch(LOAD, 1, map, &spec, at, out).emulate(&mut memory, seed).unwrap();
            let mut got = vec![0; spec.box_bytes() as usize];
            memory.read(out, &mut got).unwrap();
            let mut want = vec![0; got.len()];
            for (shared, global) in elements(&spec, at) {
                if let Some(global) = global {
                    want[shared..shared + size].copy_from_slice(&tensor[global..global + size]);
                }
            }
            assert_eq!(got, want, "{spec:?} at {at:?}");
        }
    }
}

/// Coordinates that GPUs reject, or with which they write more than the box.
#[test]
fn rejects_rows_off_16_bytes_and_stores_out_of_bounds() {
    let spec = |width| spec(Element::F16, Swizzle::B128, &[width, 40], &[416], &[64, 32]);
    let run = |how, width, at: [i32; 2]| {
        let (mut spec, mut memory) = (spec(width), Memory::new());
        let tensor = pattern(tensor_bytes(&spec), 0);
        let map = place(&mut memory, &mut spec, &tensor);
        let image = memory.alloc("image", Init::Bytes(&pattern(spec.box_bytes() as usize, 1)));
        launch(how, 1, map, &spec, &at, image).emulate(&mut memory, 0)
    };
    let error = |how, width, at| run(how, width, at).unwrap_err().to_string();
    for how in [LOAD, STORE, REDUCE_ADD] {
        let error = error(how, 200, [33, 0]);
        assert!(error.contains("byte 66 of a row: expected a multiple of 16"), "{error}");
    }
    for (how, at) in [(STORE, [-8, 0]), (REDUCE_ADD, [0, -7])] {
        let error = error(how, 200, at);
        assert!(error.contains("expected 0 or more; of the tensor at"), "{error}");
    }
    for how in [STORE, REDUCE_ADD] {
        let error = error(how, 203, [192, 0]);
        assert!(error.contains("past the end of rows of 406 bytes"), "{error}");
    }
    // A load, and stores that end before the row's end or after it.
    for (how, at) in [(LOAD, 192), (STORE, 136), (STORE, 208)] {
        run(how, 203, [at, 0]).unwrap();
    }
}

#[test]
fn a_stored_box_changes_only_elements_in_bounds() {
    for (mut spec, mut corners) in cases() {
        corners.retain(|at| at.iter().all(|&at| at >= 0));
        let tensor = pattern(tensor_bytes(&spec), 0);
        let source = pattern(spec.box_bytes() as usize, 100);
        let size = spec.element.size_bytes() as usize;
        for (at, seed) in corners.iter().flat_map(|at| simt::seeds().map(move |seed| (at, seed))) {
            let mut memory = Memory::new();
            let map = place(&mut memory, &mut spec, &tensor);
            let from = memory.alloc("from", Init::Bytes(&source));
            launch(STORE, 1, map, &spec, at, from).emulate(&mut memory, seed).unwrap();
            let mut got = vec![0; tensor.len()];
            memory.read(spec.address, &mut got).unwrap();
            let mut want = tensor.clone();
            for (shared, global) in elements(&spec, at) {
                if let Some(global) = global {
                    want[global..global + size].copy_from_slice(&source[shared..shared + size]);
                }
            }
            assert_eq!(got, want, "{spec:?} at {at:?}");
        }
    }
}

/// Small integers as elements, whose sums are exact in every type.
fn numbers(element: Element, len: usize, seed: usize) -> Vec<u8> {
    let number = |i: usize| (i * 7 + seed) % 30;
    let bytes = |i: usize| -> Vec<u8> {
        match element {
            Element::F32 => (number(i) as f32).to_le_bytes().to_vec(),
            Element::F16 => half::f16::from_f32(number(i) as f32).to_le_bytes().to_vec(),
            Element::Bf16 => half::bf16::from_f32(number(i) as f32).to_le_bytes().to_vec(),
            Element::U32 => (number(i) as u32).to_le_bytes().to_vec(),
            other => unreachable!("{other:?} is not added"),
        }
    };
    (0..len).flat_map(bytes).collect()
}

/// An element as a number.
fn value(element: Element, bytes: &[u8]) -> f32 {
    match element {
        Element::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
        Element::F16 => half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        Element::Bf16 => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        Element::U32 => u32::from_le_bytes(bytes.try_into().unwrap()) as f32,
        other => unreachable!("{other:?} is not added"),
    }
}

#[test]
fn blocks_reduce_boxes_into_the_same_elements() {
    const BLOCKS: u32 = 3;
    let cases = [
        (spec(Element::F32, Swizzle::None, &[100], &[], &[32]), vec![80]),
        (spec(Element::F16, Swizzle::B128, &[72, 12], &[144], &[64, 8]), vec![16, 6]),
        (spec(Element::Bf16, Swizzle::B64, &[32, 3, 4], &[64, 192], &[32, 2, 2]), vec![0, 2, 1]),
        (
            spec(Element::U32, Swizzle::B32, &[8, 2, 3, 2], &[32, 64, 192], &[8, 2, 2, 2]),
            vec![0; 4],
        ),
    ];
    for (mut spec, at) in cases {
        let (element, size) = (spec.element, spec.element.size_bytes() as usize);
        let tensor = numbers(element, tensor_bytes(&spec) / size, 0);
        let source = numbers(element, spec.box_bytes() as usize / size, 3);
        for seed in simt::seeds() {
            let mut memory = Memory::new();
            let map = place(&mut memory, &mut spec, &tensor);
            let from = memory.alloc("from", Init::Bytes(&source));
            launch(REDUCE_ADD, BLOCKS, map, &spec, &at, from).emulate(&mut memory, seed).unwrap();
            let mut got = vec![0; tensor.len()];
            memory.read(spec.address, &mut got).unwrap();
            let of = |bytes: &[u8], at: usize| value(element, &bytes[at..at + size]);
            let mut want: Vec<f32> =
                (0..tensor.len() / size).map(|i| of(&tensor, i * size)).collect();
            for (shared, global) in elements(&spec, &at) {
                if let Some(global) = global {
                    want[global / size] += BLOCKS as f32 * of(&source, shared);
                }
            }
            let got: Vec<f32> = (0..want.len()).map(|i| of(&got, i * size)).collect();
            assert_eq!(got, want, "{spec:?}");
        }
    }
}
