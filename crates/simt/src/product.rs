//! `wgmma`: asynchronous MMAs of a warpgroup, and their accumulators.

use std::collections::HashMap;

use crate::access::{By, Span};
use crate::agent::Role;
use crate::clock::WARP_SIZE;
use crate::device::{AccumulatorType, OperandA, Wgmma};
use crate::fault::FaultKind;
use crate::machine::{At, Machine, Space};
use crate::operand::{Matrix, decode, fragment_element, k_of, round_to_f16};
use crate::point::Point;
use crate::shadow::{Agent, Mode};

/// Threads of a warpgroup.
pub(crate) const WARPGROUP: usize = 4 * WARP_SIZE;

/// Rows of D: 16 for each warp.
const M: usize = 64;

/// The accumulators' registers; they cannot be read before the wait for the operations that write
/// them.
#[derive(Default)]
pub(crate) struct Fragments {
    by_key: HashMap<u64, Fragment>,
    next: u64,
}

/// One thread's fragment of an accumulator.
struct Fragment {
    values: Vec<f32>,
    /// The group of the last operation that writes it, and where that was started.
    epoch: u32,
    started: Option<At>,
    /// Extent of k of that operation, and the thread's `wgmma.fence` before it.
    shape: Option<(usize, u32)>,
}

/// The operations that a warpgroup has started.
#[derive(Default)]
pub(crate) struct Products {
    /// Operands of the next one, by thread that has reached it.
    coming: Vec<(usize, Wgmma, u64)>,
    /// Operations that are not finished, in their order.
    started: Vec<Product>,
}

/// An operation that all threads have started: of each thread its registers of A and its
/// accumulator.
struct Product {
    op: Wgmma,
    n: usize,
    registers: Vec<[u32; 4]>,
    keys: Vec<u64>,
}

impl Machine {
    /// The thread's registers `values` become an accumulator fragment; gives its key.
    pub fn start_fragment(&mut self, values: &[f32]) -> u64 {
        let fragments = &mut self.fragments;
        fragments.next += 1;
        let values = values.to_vec();
        let fragment = Fragment { values, epoch: 0, started: None, shape: None };
        fragments.by_key.insert(fragments.next, fragment);
        fragments.next
    }

    /// Reads an accumulator.
    pub fn read_fragment(&mut self, key: u64, values: &mut [f32]) -> Result<(), FaultKind> {
        let thread = self.current.1;
        let done = self.block().threads[thread].products_done;
        let fragment = &self.fragments.by_key[&key];
        if let Some(started) = fragment.started.filter(|_| fragment.epoch > done) {
            return Err(FaultKind::Invalid(format!(
                "an accumulator is read while a wgmma.mma_async may still write it, which was \
                 started at {started}: commit it (wgmma.commit_group) and wait for its group \
                 (wgmma.wait_group)"
            )));
        }
        values.copy_from_slice(&fragment.values);
        Ok(())
    }

    /// The thread reaches a `wgmma.mma_async`; whether all 128 have.
    pub fn come_to_product(
        &mut self,
        op: &Wgmma,
        key: u64,
        location: At,
    ) -> Result<bool, FaultKind> {
        const INSTRUCTION: &str = "wgmma.mma_async";
        let (place, thread) = self.current;
        let warpgroup = thread / WARPGROUP;
        let point = Point::Warpgroup { warpgroup, instruction: INSTRUCTION };
        self.check_converged(point, INSTRUCTION, location)?;
        self.check_registers(op, key, location)?;
        let block = &mut self.blocks[place];
        let Some(products) = block.products.get_mut(warpgroup) else {
            let why = format!("{INSTRUCTION} in a warpgroup of fewer than {WARPGROUP} threads");
            return Err(FaultKind::Invalid(why));
        };
        products.coming.push((thread, *op, key));
        let met = block.meet(thread, (point, WARPGROUP), Default::default(), location);
        let Some(collective) = met else { return Ok(false) };
        let arrived = collective.arrived;
        block.end_collective(collective);
        self.start_product(warpgroup, location)?;
        self.wake(place, arrived.iter().filter(|&other| other != thread));
        Ok(true)
    }

    /// Checks that a `wgmma.fence` orders the thread's registers before the operation: A after it
    /// was written, and the accumulator after an operation of another shape.
    fn check_registers(&mut self, op: &Wgmma, key: u64, location: At) -> Result<(), FaultKind> {
        if let OperandA::Registers { key, .. } = op.a {
            self.read_fragment_a(key, location)?;
        }
        let thread = self.current.1;
        let (k, fences) = (k_of(op.a_element), self.block().threads[thread].product_fences);
        let Some(fragment) = self.fragments.by_key.get_mut(&key) else { return Ok(()) };
        let unordered = |&(other, since): &(usize, u32)| other != k && since == fences;
        if let Some((other, _)) = fragment.shape.replace((k, fences)).filter(unordered) {
            return Err(FaultKind::Invalid(format!(
                "wgmma.mma_async of k = {k} follows one of k = {other} on the same accumulator \
                 with no wgmma.fence between the two"
            )));
        }
        Ok(())
    }

    fn start_product(&mut self, warpgroup: usize, location: At) -> Result<(), FaultKind> {
        let product = self.gather(warpgroup)?;
        self.note_operands(&product, warpgroup, location)?;
        let place = self.current.0;
        for (thread, key) in product.keys.iter().enumerate() {
            let thread = &mut self.blocks[place].threads[warpgroup * WARPGROUP + thread];
            let epoch = thread.products.epoch();
            let fragment = self.fragments.by_key.get_mut(key).expect("`gather` has found it");
            (fragment.epoch, fragment.started) = (epoch, Some(location));
            thread.products.push(());
        }
        self.blocks[place].products[warpgroup].started.push(product);
        if self.rng.flip() {
            self.finish_products(warpgroup)?;
        }
        Ok(())
    }

    /// The operation that all threads have reached, from their operands.
    fn gather(&mut self, warpgroup: usize) -> Result<Product, FaultKind> {
        let invalid = |why: &str| Err(FaultKind::Invalid(format!("wgmma.mma_async {why}")));
        let place = self.current.0;
        let mut coming = std::mem::take(&mut self.blocks[place].products[warpgroup].coming);
        coming.sort_unstable_by_key(|&(thread, ..)| thread);
        let op = coming[0].1;
        let without_registers = |op: &Wgmma| match op.a {
            OperandA::Shared(_) => *op,
            OperandA::Registers { .. } => {
                Wgmma { a: OperandA::Registers { words: [0; 4], key: 0 }, ..*op }
            }
        };
        if coming.iter().any(|(_, other, _)| without_registers(other) != without_registers(&op)) {
            return invalid("with different operands in the threads of a warpgroup");
        }
        let registers = coming.iter().map(|(_, op, _)| match op.a {
            OperandA::Registers { words, .. } => words,
            OperandA::Shared(_) => [0; 4],
        });
        let keys: Vec<u64> = coming.iter().map(|&(.., key)| key).collect();
        let fragments = &self.fragments.by_key;
        let n = fragments.get(&keys[0]).map_or(0, |fragment| fragment.values.len() * 2);
        let is_n = |key| fragments.get(key).is_some_and(|other| other.values.len() * 2 == n);
        if !n.is_multiple_of(8) || !(8..=256).contains(&n) || !keys.iter().all(is_n) {
            return invalid("with an accumulator that is not 64 x n, n = 8, 16, .. 256");
        }
        if k_of(op.a_element) != k_of(op.b_element) {
            return invalid("with A and B of different element sizes");
        }
        Ok(Product { op, n, registers: registers.collect(), keys })
    }

    /// Notes the operation's reads: of each warp its 16 rows of A, and all of B. They count as
    /// those of one lane of the warp, drawn from the seed.
    fn note_operands(
        &mut self,
        product: &Product,
        warpgroup: usize,
        location: At,
    ) -> Result<(), FaultKind> {
        let (place, running) = self.current;
        let component = self.block().agents.component(Role::Products(warpgroup));
        let (a, b) = product.matrices().map_err(FaultKind::Invalid)?;
        for warp in 0..WARPGROUP / WARP_SIZE {
            let thread = warpgroup * WARPGROUP + warp * WARP_SIZE + self.rng.below(WARP_SIZE);
            let epoch = self.blocks[place].threads[thread].products.epoch();
            let agent = Some(Agent { block: self.blocks[place].index, component, epoch });
            let by = By { agent, mode: Mode::Proxy, location };
            self.current.1 = thread;
            if let Some(a) = &a {
                self.note_rows(a, warp * 16..(warp + 1) * 16, by)?;
            }
            self.note_rows(&b, 0..product.n, by)?;
        }
        self.current.1 = running;
        Ok(())
    }

    /// Uninitialised rows are read as NaN: tiles have rows of padding, whose results are never
    /// stored.
    fn note_rows(
        &mut self,
        matrix: &Matrix,
        rows: std::ops::Range<usize>,
        by: By,
    ) -> Result<(), FaultKind> {
        for (address, len) in matrix.runs(rows) {
            self.target(Span::read(Space::Shared, address, len, 1), by)?.note()?;
        }
        Ok(())
    }

    /// Commits the thread's operations as a group.
    pub fn commit_products(&mut self) {
        let thread = self.current.1;
        self.block().threads[thread].products.commit();
    }

    /// Waits until at most `pending` of the newest groups are pending.
    pub fn wait_products(&mut self, pending: usize) -> Result<(), FaultKind> {
        let thread = self.current.1;
        let warpgroup = thread / WARPGROUP;
        let block = self.block();
        let (epoch, _) = block.threads[thread].products.wait(pending);
        if epoch == 0 {
            return Ok(());
        }
        block.threads[thread].products_done = epoch;
        let component = block.agents.component(Role::Products(warpgroup));
        self.clock().learn(component, epoch);
        self.finish_products(warpgroup)
    }

    /// Computes all operations that a warpgroup has started.
    fn finish_products(&mut self, warpgroup: usize) -> Result<(), FaultKind> {
        let place = self.current.0;
        let started = std::mem::take(&mut self.blocks[place].products[warpgroup].started);
        started.iter().try_for_each(|product| self.multiply(product, place))
    }

    fn multiply(&mut self, product: &Product, place: usize) -> Result<(), FaultKind> {
        let (a, b) = product.matrices().map_err(FaultKind::Invalid)?;
        let (k, n) = (k_of(product.op.a_element), product.n);
        let a = match a {
            Some(a) => self.elements(&a, place, M)?,
            None => product.a_of_registers(),
        };
        let b = self.elements(&b, place, n)?;
        let sums = sums_of_products((&a, &b), n, k);
        for (thread, key) in product.keys.iter().enumerate() {
            let Some(fragment) = self.fragments.by_key.get_mut(key) else { continue };
            for (i, value) in fragment.values.iter_mut().enumerate() {
                let row = thread / WARP_SIZE * 16 + thread % WARP_SIZE / 4 + i / 2 % 2 * 8;
                let col = i / 4 * 8 + thread % 4 * 2 + i % 2;
                let sum = sums[row * n + col];
                let old = if product.op.accumulate { f64::from(*value) } else { 0.0 };
                *value = match product.op.sum {
                    AccumulatorType::F32 => (old + sum) as f32,
                    AccumulatorType::F16 => round_to_f16(old + sum),
                };
            }
        }
        Ok(())
    }

    /// The first `rows` rows of a matrix in shared memory.
    fn elements(
        &mut self,
        matrix: &Matrix,
        place: usize,
        rows: usize,
    ) -> Result<Vec<f32>, FaultKind> {
        let k = k_of(matrix.element);
        let mut elements = vec![0.0; rows * k];
        for (i, (address, len)) in matrix.runs(0..rows).into_iter().enumerate() {
            let region = self.region(place, Space::Shared, address)?;
            let at = (address - region.start) as usize;
            let bytes = region.bytes[at..at + len].chunks_exact(32 / k);
            for (j, element) in bytes.enumerate() {
                let (row, col) = matrix.element_of_run(i, j);
                elements[row * k + col] = decode(matrix.element, element);
            }
        }
        Ok(elements)
    }
}

/// `D[M, n] = A * B^T`, accumulated in the order of `k`; a row at a time, so that the host
/// vectorises it.
fn sums_of_products((a, b): (&[f32], &[f32]), n: usize, k: usize) -> Vec<f64> {
    let mut columns = vec![0.0; k * n];
    for (i, &element) in b.iter().enumerate() {
        columns[i % k * n + i / k] = f64::from(element);
    }
    // -0.0 is the neutral element of addition.
    let mut sums = vec![-0.0; M * n];
    for (sums, a) in sums.chunks_exact_mut(n).zip(a.chunks_exact(k)) {
        for (&a, b) in a.iter().zip(columns.chunks_exact(n)) {
            sums.iter_mut().zip(b).for_each(|(sum, &b)| *sum += f64::from(a) * b);
        }
    }
    sums
}

impl Product {
    /// The operands in shared memory.
    fn matrices(&self) -> Result<(Option<Matrix>, Matrix), String> {
        let Wgmma { a, a_element, a_mn_major, b, b_element, b_mn_major, .. } = self.op;
        let a = match a {
            OperandA::Shared(descriptor) => Some(Matrix::new(descriptor, a_element, a_mn_major)?),
            OperandA::Registers { .. } => None,
        };
        Ok((a, Matrix::new(b, b_element, b_mn_major)?))
    }

    /// A, row by row, from the threads' registers.
    fn a_of_registers(&self) -> Vec<f32> {
        let k = k_of(self.op.a_element);
        let mut elements = vec![0.0; M * k];
        for (thread, registers) in self.registers.iter().enumerate() {
            let bytes: Vec<u8> = registers.iter().flat_map(|word| word.to_le_bytes()).collect();
            for i in 0..k / 2 {
                let (row, col) = fragment_element(thread % WARP_SIZE, i, k);
                let element = decode(self.op.a_element, &bytes[i * 32 / k..]);
                elements[(thread / WARP_SIZE * 16 + row) * k + col] = element;
            }
        }
        elements
    }
}
