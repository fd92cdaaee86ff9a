//! Registers of a block, which `setmaxnreg` moves between warps.

use crate::block::Thread;
use crate::fault::FaultKind;
use crate::machine::{At, Machine};
use crate::point::Point;

/// Registers of a multiprocessor.
const NUM_REGISTERS: u32 = 64 * 1024;

/// Most registers of a thread.
const MAX_REGISTERS: u32 = 255;

/// Registers are allocated in multiples of this.
const STEP: u32 = 8;

/// Registers of a thread at the start of a block of `num_threads` that has a multiprocessor for
/// itself.
pub(crate) fn at_start(num_threads: usize) -> u32 {
    (NUM_REGISTERS / num_threads as u32).min(MAX_REGISTERS) / STEP * STEP
}

impl Machine {
    /// `setmaxnreg`: whether the thread has `count` registers now; if not, it waits until other
    /// warps release some.
    pub fn set_registers(
        &mut self,
        count: u32,
        increase: bool,
        location: At,
    ) -> Result<bool, FaultKind> {
        let (place, thread) = self.current;
        let block = &mut self.blocks[place];
        let old = block.threads[thread].registers;
        let fits = count.is_multiple_of(STEP) && (24..=256).contains(&count);
        if !fits || increase && count < old || !increase && count > old {
            return Err(FaultKind::Invalid(format!(
                "setmaxnreg of {count} where the thread has {old}: expected a multiple of {STEP} \
                 from 24 to 256, more to increase and fewer to decrease"
            )));
        }
        let sum = block.registers - old + count;
        if sum > at_start(block.threads.len()) * block.threads.len() as u32 {
            self.wait(Point::Registers, location);
            return Ok(false);
        }
        block.registers = sum;
        block.threads[thread].registers = count;
        if count >= old {
            return Ok(true);
        }
        let waits = |thread: &Thread| matches!(thread.waits, Some((Point::Registers, _)));
        let threads = block.threads.iter().enumerate();
        let waiting: Vec<usize> =
            threads.filter(|(_, thread)| waits(thread)).map(|(index, _)| index).collect();
        self.wake(place, waiting);
        Ok(true)
    }
}
