//! Buffers, launches and comparison.

use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use kernels::Rows;
use kernels::attention::AttentionElement;
use kernels::gemm::{Gpu, Target};
use oracle::{Approx, Element, Matrix, Rng};
use simt::{Init, Memory, Report};

/// What a launcher returns.
pub type Launched = Result<Option<Launch>, LaunchError>;

/// A number that kernels store, as the crate `half` has it.
pub trait HostElement: AttentionElement + Element {}

impl<T: AttentionElement + Element> HostElement for T {}

/// A Hopper GPU with the kernels of every GPU.
pub const SM_80: Gpu = Gpu { target: Target::Sm80, ..Gpu::HOPPER };

/// An A100.
pub const A100: Gpu = Gpu { target: Target::Sm80, num_sms: 108, overlaps: false };

/// The buffers that no launch of a step writes, or none but this one, or one before the previous
/// launch: kernels may read them before they wait for that.
const CONSTANTS: [&str; 26] = [
    "bias",
    "norm weight",
    "scales",
    "table",
    "weight",
    "num_rows",
    "num_items",
    "items",
    "num_tokens",
    "num_seqs",
    "positions",
    "slot_mapping",
    "token_ids",
    "logit_rows",
    "sampling",
    "cu_seqlens_q",
    "kv_lens",
    "block_table",
    "work list",
    "own k_pool",
    "own v_pool",
    "own state",
    "seq_ids",
    "slots",
    "old experts",
    "old factors",
];

/// The emulator's memory.
#[derive(Default)]
pub struct Device {
    pub memory: Memory,
    /// The buffers that a launch before may have written.
    activations: Vec<u64>,
}

impl Device {
    fn alloc<T>(&mut self, name: &str, init: Init<'_>) -> DevicePtr<T> {
        let address = self.memory.alloc(name, init);
        if !CONSTANTS.contains(&name) {
            self.activations.push(address);
        }
        DevicePtr::new(address)
    }

    /// A buffer of these floats.
    pub fn f32s(&mut self, name: &str, values: &[f32]) -> DevicePtr<f32> {
        self.numbers(name, values)
    }

    /// A buffer of these numbers.
    pub fn u32s(&mut self, name: &str, values: &[u32]) -> DevicePtr<u32> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.alloc(name, Init::Bytes(&bytes))
    }

    /// A buffer of these bytes.
    pub fn bytes<T>(&mut self, name: &str, bytes: &[u8]) -> DevicePtr<T> {
        self.alloc(name, Init::Bytes(bytes))
    }

    /// A buffer of these numbers, rounded.
    pub fn numbers<T: Element>(&mut self, name: &str, values: &[f32]) -> DevicePtr<T> {
        self.partly_written(name, values, values.len())
    }

    /// A buffer of `len` elements that starts with `values`; the rest is unwritten.
    pub fn partly_written<T: Element>(
        &mut self,
        name: &str,
        values: &[f32],
        len: usize,
    ) -> DevicePtr<T> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| T::of(*value).bytes()).collect();
        let buffer = self.poisoned(name, len);
        self.write(buffer, &bytes);
        buffer
    }

    /// A buffer of `len` elements that nothing has written: each float is a NaN.
    pub fn poisoned<T>(&mut self, name: &str, len: usize) -> DevicePtr<T> {
        self.alloc(name, Init::Poisoned(size_of::<T>() * len))
    }

    /// The rows of a matrix at a stride, NaN between them; those up to `max_rows` are unwritten.
    pub fn matrix<T: Element>(
        &mut self,
        name: &str,
        matrix: &Matrix,
        (stride, max_rows): (usize, usize),
    ) -> Rows<T> {
        let row = |row| {
            let gap = vec![f32::NAN; stride - matrix.cols];
            let values: Vec<f32> = matrix.row(row).iter().map(|&value| value as f32).collect();
            [values, gap].concat()
        };
        let values: Vec<f32> = (0..matrix.rows).flat_map(row).collect();
        Rows::new(self.partly_written(name, &values, max_rows * stride), stride)
    }

    /// Rows at a stride that nothing has written.
    pub fn out<T>(&mut self, name: &str, (stride, max_rows): (usize, usize)) -> Rows<T> {
        Rows::new(self.poisoned(name, max_rows * stride), stride)
    }

    /// Writes the start of a buffer.
    pub fn write<T>(&mut self, ptr: DevicePtr<T>, bytes: &[u8]) {
        self.memory.write(ptr.0, bytes).expect("a buffer that has room for the values");
    }

    /// Runs a launch that there must be, which starts before those before it have ended, as every
    /// kernel of a step must let it.
    pub fn run(&mut self, launch: Launched, seed: u64) -> Report {
        let launch = made(launch);
        let symbol = launch.symbol;
        assert!(launch.overlaps, "{symbol} does not wait for the launches before it");
        self.run_next(launch, seed)
    }

    /// Runs a launch. If it starts before those before it have ended, they may have written all
    /// that are not constants.
    pub fn run_next(&mut self, launch: Launch, seed: u64) -> Report {
        if launch.overlaps {
            for &address in &self.activations {
                self.memory.assume_written(address).expect("a buffer");
            }
            self.memory.overlap_next_launch();
        }
        let report = launch.emulate(&mut self.memory, seed);
        report.unwrap_or_else(|fault| panic!("{}, seed {seed}: {fault}", launch.symbol))
    }

    /// [`Device::run`] of a launch without bank conflicts; its symbol.
    pub fn run_smoothly(&mut self, launch: Launched, seed: u64) -> &'static str {
        let launch = made(launch);
        let symbol = symbol(&launch);
        let report = self.run(Ok(Some(launch)), seed);
        assert_eq!(report.bank_conflicts, 0, "{symbol}");
        symbol
    }

    /// `len` bytes.
    pub fn read_bytes<T>(&self, ptr: DevicePtr<T>, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_or_poison(ptr.0, &mut bytes).expect("a buffer of that length");
        bytes
    }

    /// `len` numbers.
    pub fn read_u32(&self, ptr: DevicePtr<u32>, len: usize) -> Vec<u32> {
        let bytes = self.read_bytes(ptr, 4 * len);
        bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// `len` numbers, exactly.
    pub fn read<T: Element>(&self, ptr: DevicePtr<T>, len: usize) -> Vec<f32> {
        let bytes = self.read_bytes(ptr, size_of::<T>() * len);
        bytes.chunks_exact(size_of::<T>()).map(|bytes| T::from_bytes(bytes).value()).collect()
    }

    /// The first `num_rows` rows of `n` columns. All else up to `max_rows` must be NaN still.
    #[track_caller]
    pub fn read_rows<T: Element>(
        &self,
        rows: Rows<T>,
        [num_rows, max_rows]: [usize; 2],
        n: usize,
    ) -> Vec<f32> {
        let all = self.read(rows.ptr, max_rows * rows.row_stride);
        let mut values = Vec::new();
        for (at, value) in all.into_iter().enumerate() {
            let (row, column) = (at / rows.row_stride, at % rows.row_stride);
            if row < num_rows && column < n {
                values.push(value);
            } else {
                assert!(value.is_nan(), "[{row}, {column}] of {num_rows} x {n} is {value}");
            }
        }
        values
    }
}

/// Fails where a kernel may not have given `got`, and names the worst element.
#[track_caller]
pub fn assert_right(case: &str, got: &[f32], want: &[Approx]) {
    assert_eq!(got.len(), want.len(), "{case}");
    let off = |at: &usize| {
        let (got, Approx { value, bound }) = (f64::from(got[*at]), want[*at]);
        let excess = (got - value).abs() / bound.max(f64::MIN_POSITIVE);
        if excess.is_nan() { f64::INFINITY } else { excess }
    };
    let wrong: Vec<usize> = (0..got.len()).filter(|&at| !want[at].accepts(got[at])).collect();
    let worst = wrong.iter().max_by(|a, b| off(a).total_cmp(&off(b)));
    if let Some(&worst) = worst {
        let (wrong, want) = (wrong.len(), want[worst]);
        panic!("{case}: element {worst} is {}, not {want:?}; {wrong} are wrong", got[worst]);
    }
}

/// Fails unless most results differ from zero by more than their bounds: else a kernel that writes
/// zeros would pass.
#[track_caller]
pub fn assert_telling(case: &str, want: &[Approx]) {
    let telling = want.iter().filter(|want| want.value.is_nan() || want.value.abs() > want.bound);
    let telling = telling.count();
    assert!(telling >= want.len() * 4 / 5, "{case}: {telling} of {} tell", want.len());
}

/// Results stored as `T`.
pub fn stored<T: Element>(want: Vec<Approx>) -> Vec<Approx> {
    want.into_iter().map(Approx::stored::<T>).collect()
}

/// Floats from -1 to 1, other ones for another `salt`.
pub fn random(len: usize, salt: u64) -> Vec<f32> {
    Rng::new(salt).floats(len)
}

/// [`random`], rounded to `T`.
pub fn random_of<T: Element>(len: usize, salt: u64) -> Vec<f32> {
    random(len, salt).into_iter().map(T::rounded).collect()
}

/// The numbers' bits, NaN being equal to NaN.
pub fn bits(values: &[f32]) -> Vec<u32> {
    let canonical = |value: &f32| if value.is_nan() { f32::NAN } else { *value };
    values.iter().map(|value| canonical(value).to_bits()).collect()
}

/// Fails unless `run` gives the same numbers under every seed.
#[track_caller]
pub fn assert_same_bits(case: &str, run: impl Fn(u64) -> Vec<f32>) {
    let mut runs = simt::seeds().map(|seed| bits(&run(seed)));
    let first = runs.next().expect("a seed");
    assert!(runs.all(|run| run == first), "{case}");
}

/// The emulator's tensor map, which the driver would accept.
pub fn tensor_map(spec: &TensorMapSpec) -> EncodedTensorMap {
    spec.check().expect("a tensor map");
    spec.emulated()
}

/// The symbol of a launch.
pub fn symbol(launch: &Launch) -> &'static str {
    launch.symbol
}

/// The launch that there must be.
#[track_caller]
pub fn made(launch: Launched) -> Launch {
    launch.expect("a right shape").expect("something to do")
}

/// The symbol of a launch, empty if there is nothing to do.
#[track_caller]
pub fn symbol_of(launch: Launched) -> &'static str {
    launch.expect("a right shape").as_ref().map_or("", symbol)
}

/// Symbol, grid, threads and shared memory of a launch that there must be.
#[track_caller]
pub fn of(launch: Launched) -> (&'static str, [u32; 3], u32, u32) {
    let launch = made(launch);
    let Geometry { grid, block, shared_bytes } = launch.geometry;
    assert_eq!(block[1..], [1, 1]);
    assert_eq!(launch.arg_offsets.first(), Some(&0));
    (symbol(&launch), grid, block[0], shared_bytes)
}

/// Whether there is nothing to launch.
pub fn is_nothing(launch: Launched) -> bool {
    launch == Ok(None)
}

/// What a launcher refuses, and its value.
#[track_caller]
pub fn refused(launch: Launched) -> (&'static str, usize) {
    match launch {
        Err(LaunchError::Shape { what, value, .. }) => (what, value),
        other => panic!("{other:?}"),
    }
}

/// A launcher's error.
#[track_caller]
pub fn error(launch: Launched) -> String {
    launch.map(|_| ()).unwrap_err().to_string()
}

/// A device address that starts an allocation.
pub fn ptr<T>(at: u64) -> DevicePtr<T> {
    DevicePtr::new(at * 0x1000)
}

/// Rows at an address that starts an allocation.
pub fn rows<T>(row_stride: usize) -> Rows<T> {
    Rows::new(ptr(1), row_stride)
}

/// Rows at any address.
pub fn rows_at<T>(address: u64, row_stride: usize) -> Rows<T> {
    Rows::new(DevicePtr::new(address), row_stride)
}
