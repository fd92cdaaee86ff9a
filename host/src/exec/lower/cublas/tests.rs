//! Which part of a linear layer is cuBLAS's, and that the parts together are the layer: a stand-in
//! multiplies in the emulator's memory, and our kernels run after it.

use super::*;
use crate::exec::lower::{Addresses, lower_with, workspace_bytes};
use crate::exec::testing::random;
use crate::plan::{
    Bounds, KvHeads, KvLayout, KvStorage, Rows, StepLayout, Tensor, TensorId, View, WeightId,
    testing,
};
use kernels::gemm::Gpu;
use simt::{Init, Memory};

const MAX_TOKENS: usize = 5;
const NUM_TOKENS: usize = 3;
const N: usize = 24;
const K: usize = 40;
/// Columns before those that the operation sees.
const MARGIN: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Residual {
    None,
    Other,
    /// The residual is where the output goes.
    InPlace,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    gemm: Gemm,
    operands: Dtype,
    out: Dtype,
    has_bias: bool,
    residual: Residual,
}

/// A plan of one linear layer: activation 0 is x, 1 the output, 2 another residual; weight 1 is the
/// bias.
fn plan(case: &Case) -> Plan {
    let tensor = |name: &str, width, dtype| Tensor {
        name: name.to_owned(),
        layer: None,
        rows: Rows::Tokens,
        width: MARGIN + width,
        dtype,
    };
    let view = |index, width| View { tensor: TensorId(index), start: MARGIN, width };
    let out = view(1, N);
    let residual = match case.residual {
        Residual::None => None,
        Residual::Other => Some(view(2, N)),
        Residual::InPlace => Some(out),
    };
    let bias = case.has_bias.then_some(WeightId(1));
    let bounds = Bounds { max_logit_rows: 1, max_kv_len: 64, ..Bounds::one_sequence(MAX_TOKENS) };
    let kv = KvLayout {
        layers: vec![KvHeads { num_kv_heads: 1, head_dim: 1 }; 0],
        num_pages: 1,
        windows: None,
        dtype: Dtype::F32,
        storage: KvStorage::default(),
    };
    let mut plan = testing::empty(bounds, kv);
    plan.tensors = vec![
        tensor("x", K, case.operands),
        tensor("out", N, case.out),
        tensor("residual", N, Dtype::F32),
    ];
    let weight = Weight::whole("weight", N, K, case.operands);
    plan.weights = vec![weight, Weight::whole("bias", 1, N, Dtype::F32)];
    let linear = Linear { bias, residual, ..Linear::new(view(0, K), WeightId(0), out) };
    plan.ops = vec![Op::Linear(linear)];
    (plan.output, plan.next_tokens) = (out, Some(out));
    plan
}

fn tasks(case: &Case, plan: &Plan, addresses: &Addresses) -> Result<Vec<Task>, ExecError> {
    let libraries = case.gemm.into();
    let tasks = lower_with(libraries, plan, addresses, Gpu::HOPPER, |spec| Ok(spec.emulated()))?;
    Ok(tasks.into_iter().flatten().collect())
}

/// A task in words.
fn describe(task: &Task) -> String {
    match task {
        Task::Launch(launch) => launch.symbol.to_owned(),
        Task::Gemm(gemm) => {
            let GemmEx { operands, output, compute, accumulate, .. } = gemm;
            let add = if *accumulate { "+=" } else { "=" };
            format!("{output:?} {add} {operands:?} in {compute:?}")
        }
        Task::AllReduce(sum) => unreachable!("{sum:?} in a plan of one rank"),
    }
}

/// GEMM, operands, output, whether there is a bias, residual; and the tasks.
type Form = (Gemm, Dtype, Dtype, bool, Residual, &'static [&'static str]);

/// Every form that a linear layer may have, and what it becomes.
const FORMS: &[Form] = {
    use Dtype::{BF16, F16, F32};
    use Gemm::{Cublas, CublasF16};
    use Residual::{InPlace, None, Other};
    &[
        (Cublas, F32, F32, false, None, &["F32 = F32 in F32"]),
        (Cublas, F32, F32, false, Other, &["F32 = F32 in F32", "gemm_epilogue_f32"]),
        (Cublas, F32, F32, false, InPlace, &["F32 += F32 in F32"]),
        (Cublas, F32, F32, true, None, &["F32 = F32 in F32", "gemm_epilogue_f32"]),
        (Cublas, F32, F32, true, Other, &["F32 = F32 in F32", "gemm_epilogue_f32"]),
        (Cublas, F32, F32, true, InPlace, &["F32 += F32 in F32", "gemm_epilogue_f32"]),
        (Cublas, F16, F16, false, None, &["F16 = F16 in F32"]),
        (Cublas, F16, F16, true, None, &["F32 = F16 in F32", "gemm_epilogue_f32_f16"]),
        (Cublas, F16, F32, false, None, &["F32 = F16 in F32"]),
        (Cublas, F16, F32, false, InPlace, &["F32 += F16 in F32"]),
        (Cublas, F16, F32, true, Other, &["F32 = F16 in F32", "gemm_epilogue_f32"]),
        (Cublas, BF16, BF16, false, None, &["Bf16 = Bf16 in F32"]),
        (Cublas, BF16, BF16, true, None, &["F32 = Bf16 in F32", "gemm_epilogue_f32_bf16"]),
        (Cublas, BF16, F32, false, InPlace, &["F32 += Bf16 in F32"]),
        (CublasF16, F16, F16, false, None, &["F16 = F16 in F16"]),
        (CublasF16, F16, F16, true, None, &["F16 = F16 in F16", "gemm_epilogue_f16"]),
        (CublasF16, F16, F32, false, None, &["F16 = F16 in F16", "gemm_epilogue_f16_f32"]),
        (CublasF16, F16, F32, true, Other, &["F16 = F16 in F16", "gemm_epilogue_f16_f32"]),
        (CublasF16, F16, F32, true, InPlace, &["F16 = F16 in F16", "gemm_epilogue_f16_f32"]),
    ]
};

fn forms() -> impl Iterator<Item = (Case, &'static [&'static str])> {
    FORMS.iter().map(|&(gemm, operands, out, has_bias, residual, tasks)| {
        (Case { gemm, operands, out, has_bias, residual }, tasks)
    })
}

#[test]
fn a_layer_is_a_product_and_what_cublas_cannot() {
    for (case, wanted) in forms() {
        let plan = plan(&case);
        let device = Device::new(&case, &plan);
        let tasks = tasks(&case, &plan, &device.addresses).unwrap();
        assert_eq!(tasks.iter().map(describe).collect::<Vec<_>>(), wanted, "{case:?}");
    }
}

#[test]
fn the_parts_together_are_the_layer() {
    for (case, _) in forms() {
        let plan = plan(&case);
        let mut device = Device::new(&case, &plan);
        for task in tasks(&case, &plan, &device.addresses).unwrap() {
            match task {
                Task::Launch(launch) => _ = launch.emulate(&mut device.memory, 0).unwrap(),
                Task::Gemm(gemm) => multiply(&mut device.memory, &gemm),
                Task::AllReduce(sum) => unreachable!("{sum:?} in a plan of one rank"),
            }
        }
        device.check(&case);
    }
}

#[test]
fn without_rows_there_is_nothing_to_do() {
    let (case, _) = forms().last().unwrap();
    let mut plan = plan(&case);
    plan.bounds.max_tokens = 0;
    let device = Device::new(&case, &plan);
    assert_eq!(tasks(&case, &plan, &device.addresses).unwrap(), []);
}

#[test]
fn rejects_what_cublas_does_not_take() {
    let case = Case {
        gemm: Gemm::CublasF16,
        operands: Dtype::BF16,
        out: Dtype::BF16,
        has_bias: false,
        residual: Residual::None,
    };
    let error = |case: &Case, change: &dyn Fn(&mut Plan)| {
        let mut plan = plan(case);
        let addresses = Device::new(case, &plan).addresses;
        change(&mut plan);
        tasks(case, &plan, &addresses).unwrap_err().to_string()
    };
    assert!(
        error(&case, &|_| {})
            .starts_with("cublas-f16 accumulates in f16, for operands in F16 alone")
    );
    let case = Case { gemm: Gemm::Cublas, ..case };
    let stored = error(&case, &|plan| plan.weights[0].parts[0].storage = Dtype::Q8_0);
    assert_eq!(stored, "linear by cuBLAS: `weight` is stored as Q8_0, x as BF16");
    let many = error(&case, &|plan| plan.bounds.max_tokens = 1 << 31);
    assert_eq!(many, "linear by cuBLAS: rows is 2147483648: expected at most 2147483647");
}

/// The memory of a plan, with numbers from -1 to 1 in what the step reads, and nothing in the rest.
struct Device {
    memory: Memory,
    addresses: Addresses,
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    residual: Vec<f32>,
}

impl Device {
    fn new(case: &Case, plan: &Plan) -> Self {
        let mut memory = Memory::new();
        let mut layer = |name: &str, seed, rows: usize, width: usize, dtype: Dtype| {
            let values: Vec<f32> =
                random(seed, rows * width).into_iter().map(|x| rounded(x, dtype)).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|&value| bytes_of(value, dtype)).collect();
            (values, memory.alloc(name, Init::Bytes(&bytes)))
        };
        let (x, x_at) = layer("x", 1, NUM_TOKENS, MARGIN + K, case.operands);
        let (weight, weight_at) = layer("weight", 2, N, K, case.operands);
        let (bias, bias_at) = layer("bias", 3, 1, N, Dtype::F32);
        let (residual, residual_at) = layer("residual", 4, NUM_TOKENS, MARGIN + N, Dtype::F32);
        let mut step = vec![0; plan.step_layout().len];
        step[StepLayout::NUM_TOKENS] = NUM_TOKENS as u32;
        let step = memory.alloc("step", Init::Bytes(bytemuck::cast_slice(&step)));

        // Room for rows that the step does not have; nothing has written them.
        let mut roomy = |index: usize, from: Option<u64>| {
            let Tensor { name, width, dtype, .. } = &plan.tensors[index];
            let row_bytes = width * dtype.block_bytes();
            let at = memory.alloc(name, Init::Poisoned(MAX_TOKENS * row_bytes));
            if let Some(from) = from {
                let mut bytes = vec![0; NUM_TOKENS * row_bytes];
                memory.read(from, &mut bytes).unwrap();
                memory.write(at, &bytes).unwrap();
            }
            at
        };
        let in_place = (case.residual == Residual::InPlace).then_some(residual_at);
        let tensors = vec![roomy(0, Some(x_at)), roomy(1, in_place), roomy(2, Some(residual_at))];
        let workspace_bytes = workspace_bytes(plan, case.gemm);
        let addresses = Addresses {
            weights: vec![weight_at, bias_at],
            constants: vec![],
            kv_pools: vec![],
            states: vec![],
            tensors,
            step,
            workspace: memory.alloc("workspace", Init::Poisoned(workspace_bytes)),
            drawn: 0,
            counters: 0,
            ranks: Vec::new(),
        };
        Device { memory, addresses, x, weight, bias, residual }
    }

    /// The output is within the roundings of its own and of a matrix product of 16 bits.
    fn check(&self, case: &Case) {
        let unit = |dtype| match dtype {
            Dtype::F16 => 2f64.powi(-11),
            Dtype::BF16 => 2f64.powi(-8),
            _ => 2f64.powi(-21),
        };
        let stride = MARGIN + N;
        let got = read(&self.memory, self.addresses.tensors[1], NUM_TOKENS * stride, case.out);
        for (row, column) in (0..NUM_TOKENS).flat_map(|row| (0..N).map(move |n| (row, n))) {
            let x = &self.x[row * (MARGIN + K) + MARGIN..][..K];
            let weight = &self.weight[column * K..][..K];
            let pairs = x.iter().zip(weight);
            let product: f64 = pairs.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
            let mut wanted = product;
            if case.has_bias {
                wanted += f64::from(self.bias[column]);
            }
            if case.residual != Residual::None {
                wanted += f64::from(self.residual[row * stride + MARGIN + column]);
            }
            let got = f64::from(got[row * stride + MARGIN + column]);
            let of_product = if case.gemm == Gemm::CublasF16 { unit(Dtype::F16) } else { 0.0 };
            let bound = unit(case.out) * (1.0 + wanted.abs()) + of_product * product.abs();
            assert!(
                (got - wanted).abs() <= bound,
                "{case:?} [{row}, {column}]: {got}, not {wanted}"
            );
        }
    }
}

/// What `cublasGemmEx` is documented to do, rounded once.
fn multiply(memory: &mut Memory, gemm: &GemmEx) {
    let dtype = |data_type| match data_type {
        DataType::F32 => Dtype::F32,
        DataType::F16 => Dtype::F16,
        DataType::Bf16 => Dtype::BF16,
    };
    let (operands, output) = (dtype(gemm.operands), dtype(gemm.output));
    let [m, n, k] = [gemm.m, gemm.n, gemm.k].map(|size| size as usize);
    let at = |matrix: (u64, i32), row: usize, dtype: Dtype| {
        matrix.0 + (row * matrix.1 as usize * dtype.block_bytes()) as u64
    };
    let b: Vec<Vec<f32>> =
        (0..n).map(|row| read(memory, at(gemm.b, row, operands), k, operands)).collect();
    for row in 0..m {
        let a = read(memory, at(gemm.a, row, operands), k, operands);
        let before = read(memory, at(gemm.c, row, output), n, output);
        let rows = b.iter().zip(before).map(|(b, before)| {
            let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
            let sum: f64 = products.sum();
            (sum + if gemm.accumulate { f64::from(before) } else { 0.0 }) as f32
        });
        let bytes: Vec<u8> = rows.flat_map(|sum| bytes_of(sum, output)).collect();
        memory.write(at(gemm.c, row, output), &bytes).unwrap();
    }
}

/// NaN where nothing was written: cuBLAS multiplies all rows of the bounds, also those that a step
/// does not have.
fn read(memory: &Memory, address: u64, len: usize, dtype: Dtype) -> Vec<f32> {
    let mut bytes = vec![0; len * dtype.block_bytes()];
    memory.read_or_poison(address, &mut bytes).unwrap();
    match dtype {
        Dtype::F16 => bytes.as_chunks().0.iter().map(|&x| f16::from_ne_bytes(x).to_f32()).collect(),
        Dtype::BF16 => {
            bytes.as_chunks().0.iter().map(|&x| bf16::from_ne_bytes(x).to_f32()).collect()
        }
        _ => bytes.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x)).collect(),
    }
}

fn bytes_of(value: f32, dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F16 => f16::from_f32(value).to_ne_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f32(value).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    }
}

fn rounded(value: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_f32(value).to_f32(),
        Dtype::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}
