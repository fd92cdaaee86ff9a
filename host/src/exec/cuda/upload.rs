//! Brings weights to the device: read by all threads into one pinned buffer, while the other is
//! being copied.

use cust::event::{Event, EventFlags};
use cust::memory::LockedBuffer;
use cust::stream::Stream;
use rayon::prelude::*;

use super::device::failed;
use super::memory::{DeviceMemory, pinned};
use crate::exec::{ExecError, WeightSource, layout};
use crate::plan::{Plan, Weight};

/// Weights are read together until they are this large: enough for all threads, and for the bus to
/// be at full speed.
const BATCH_BYTES: usize = 32 << 20;

/// Weights that follow each other on the device, and are read and copied together.
#[derive(Debug, PartialEq, Eq)]
struct Batch {
    /// First weight, and the one after the last.
    weights: std::ops::Range<usize>,
    /// First byte on the device.
    start: usize,
    /// Bytes to its last weight's end.
    bytes: usize,
}

/// Uploads all weights and tables of `plan`.
pub fn parameters(
    plan: &Plan,
    source: &dyn WeightSource,
    memory: &mut DeviceMemory,
    stream: &Stream,
) -> Result<(), ExecError> {
    let tables = plan.constants.iter().zip(&memory.layout.constants);
    let uploaded = tables.map(|(constant, &offset)| {
        let table = bytemuck::cast_slice(&constant.data);
        // SAFETY: the plan outlives the copy, which is waited for below.
        unsafe { memory.parameters.write_async(offset, table, stream) }
    });
    let uploaded: Result<(), ExecError> = uploaded.collect();
    stream.synchronize().map_err(failed("uploading the tables"))?;
    uploaded?;
    let sizes: Vec<usize> = plan.weights.iter().map(Weight::bytes).collect();
    let offsets = &memory.layout.weights;
    let batches = batches(offsets, &sizes);
    let bytes = batches.iter().map(|batch| batch.bytes).max().unwrap_or(0);
    let mut staging = Vec::new();
    for _ in 0..batches.len().min(2) {
        staging.push(Staging { buffer: pinned(bytes)?, copied: event()? });
    }
    let uploaded = batches.iter().enumerate().try_for_each(|(index, batch)| {
        let staging = &mut staging[index % 2];
        staging.copied.synchronize().map_err(failed("waiting for a copy"))?;
        read(plan, source, offsets, batch, &mut staging.buffer)?;
        // SAFETY: the buffer is pinned; it is written again, or freed, only after the copy, which
        // is waited for above and below. No kernel has been launched that could read the weights.
        unsafe {
            memory.parameters.write_async(batch.start, &staging.buffer[..batch.bytes], stream)?;
        }
        staging.copied.record(stream).map_err(failed("recording an event"))
    });
    stream.synchronize().map_err(failed("uploading the weights"))?;
    uploaded
}

struct Staging {
    buffer: LockedBuffer<u8>,
    /// Done once the device has copied the buffer; an event that was never recorded is done.
    copied: Event,
}

fn event() -> Result<Event, ExecError> {
    Event::new(EventFlags::DISABLE_TIMING).map_err(failed("making an event"))
}

/// Groups weights into batches of at least [`BATCH_BYTES`], but for the last.
fn batches(offsets: &[usize], sizes: &[usize]) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for (weight, (&offset, &size)) in offsets.iter().zip(sizes).enumerate() {
        match batches.last_mut().filter(|batch| batch.bytes < BATCH_BYTES) {
            Some(batch) => {
                batch.weights.end = weight + 1;
                batch.bytes = offset + size - batch.start;
            }
            None => batches.push(Batch { weights: weight..weight + 1, start: offset, bytes: size }),
        }
    }
    batches
}

/// Reads the weights of `batch` into `buffer`, each at its distance from the first.
fn read(
    plan: &Plan,
    source: &dyn WeightSource,
    offsets: &[usize],
    batch: &Batch,
    mut buffer: &mut [u8],
) -> Result<(), ExecError> {
    let mut parts = Vec::new();
    let mut position = batch.start;
    for weight in batch.weights.clone() {
        let size = plan.weights[weight].bytes();
        let (part, rest) = buffer.split_at_mut(offsets[weight] - position + size);
        parts.push((&plan.weights[weight], &mut part[offsets[weight] - position..]));
        position = offsets[weight] + size;
        buffer = rest;
    }
    parts.into_par_iter().try_for_each(|(weight, out)| layout::read("host", weight, source, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_cover_every_weight_once() {
        let sizes = [100, BATCH_BYTES, 7, BATCH_BYTES - 300, 5, 6];
        let mut offsets = vec![0];
        for size in &sizes {
            offsets.push((offsets[offsets.len() - 1] + size).next_multiple_of(256));
        }
        offsets.pop();
        let batches = batches(&offsets, &sizes);
        let ranges: Vec<_> = batches.iter().map(|batch| batch.weights.clone()).collect();
        assert_eq!(ranges, [0..2, 2..5, 5..6]);
        for batch in &batches {
            assert_eq!(batch.start, offsets[batch.weights.start]);
            let last = batch.weights.end - 1;
            assert_eq!(batch.start + batch.bytes, offsets[last] + sizes[last]);
        }
    }

    #[test]
    fn no_weights_are_no_batches() {
        assert_eq!(batches(&[], &[]), []);
    }
}
