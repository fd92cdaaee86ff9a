//! Memory of other devices: messages whose flag comes with the data, in one store.
//!
//! A kernel gets the memory of a peer as a view, like its own. Accesses of two devices are ordered
//! by atomic operations and fences of [`Scope::System`](crate::atomic::Scope) alone. Where latency
//! counts, a message needs no order: each 8 bytes of it are 4 bytes of data and a flag, and arrive
//! together. (NCCL calls the protocol LL.)
//!
//! ```
//! use cuda_std::peer;
//! use cuda_std::prelude::*;
//!
//! /// Sends two words to a peer, and waits for the peer's.
//! unsafe fn exchange(theirs: GlobalMut<u64>, own: GlobalMut<u64>, data: [u32; 2]) -> [u32; 2] {
//!     // SAFETY: a line each, of zeros before, which nothing else writes.
//!     unsafe {
//!         peer::store_flagged(theirs, 0, data, 1);
//!         let mut spins = peer::SpinLimit::new();
//!         loop {
//!             if let Some(received) = peer::load_flagged(own, 0, 1) {
//!                 return received;
//!             }
//!             spins.wait();
//!         }
//!     }
//! }
//! ```

use crate::GlobalMut;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Words of 8 bytes of a line.
pub const LINE_WORDS: usize = 2;

/// Bytes of a line: 8 of data.
pub const LINE_BYTES: usize = 8 * LINE_WORDS;

/// Looks at a peer's flag before the peer is given up. A look is a load that other devices see: twenty seconds on an
/// H200.
const MAX_LOOKS: u32 = 1 << 27;

/// For how long a thread waits for a peer: one that has died or hangs must not keep the others forever.
///
/// Looks are counted, not nanoseconds: reading a clock takes longer than the load that is waited for.
#[derive(Clone, Copy, Debug)]
pub struct SpinLimit {
    looks: u32,
}

impl SpinLimit {
    /// That of one wait.
    #[inline(always)]
    #[expect(clippy::new_without_default, reason = "a wait has a start")]
    pub const fn new() -> Self {
        SpinLimit { looks: 0 }
    }

    /// To be called after each look that found nothing. When there were too many, the launch ends with an error.
    #[inline(always)]
    #[track_caller]
    pub fn wait(&mut self) {
        self.looks += 1;
        if self.looks >= MAX_LOOKS {
            give_up();
        }
    }
}

#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn give_up() {
    // SAFETY: `trap` has no operands.
    unsafe { core::arch::nvptx::trap() }
}

#[cfg(not(target_arch = "nvptx64"))]
#[track_caller]
fn give_up() {
    panic!("a peer has not answered {MAX_LOOKS} looks: it has ended, or makes other launches");
}

instruction! {
    /// Stores line `index` of 16 bytes: two words of data, each with `flag` in the upper half of
    /// its 8 bytes. Either 8 bytes become visible at once, to all devices, and nothing else is
    /// ordered. NCCL's `storeLL`.
    ///
    /// # Safety
    /// 1. The line is inside the memory of the view, 16-byte aligned.
    /// 2. Threads that access it at the same time do so by [`load_flagged`].
    "st.relaxed.sys.global.v2.b64" => pub unsafe fn store_flagged(
        lines: GlobalMut<u64>,
        index: usize,
        data: [u32; 2],
        flag: u32
    ) {
        let line = lines.as_ptr().wrapping_add(LINE_WORDS * index);
        let [a, b] = data;
        asm!("{{ .reg .b64 a, b; mov.b64 a, {{{a}, {flag}}}; mov.b64 b, {{{b}, {flag}}};",
            "st.relaxed.sys.global.v2.b64 [{line}], {{a, b}}; }}",
            line = in(reg64) line, a = in(reg32) a, b = in(reg32) b, flag = in(reg32) flag,
            options(nostack, preserves_flags))
    } host {
        let line = lines.as_ptr().wrapping_add(LINE_WORDS * index).addr() as u64;
        emulated::store_flagged(line, data, flag)
    }

    /// Loads line `index`: its data, if both of its flags are `flag` already; to be called until
    /// they are. It orders no other accesses. NCCL's `readLL`.
    ///
    /// A line may be stored again only once its message has been received, in an order that the
    /// sender knows of. The emulator takes the first load that finds both flags as the reception.
    ///
    /// # Safety
    /// 1. The line is inside the memory of the view, 16-byte aligned.
    /// 2. Threads that access it at the same time do so by [`store_flagged`].
    "ld.relaxed.sys.global.v2.b64" => pub unsafe fn load_flagged(
        lines: GlobalMut<u64>,
        index: usize,
        flag: u32
    ) -> Option<[u32; 2]> {
        let line = lines.as_ptr().wrapping_add(LINE_WORDS * index);
        let (a, b, a_flag, b_flag): (u32, u32, u32, u32);
        asm!("{{ .reg .b64 a, b; ld.relaxed.sys.global.v2.b64 {{a, b}}, [{line}];",
            "mov.b64 {{{a}, {a_flag}}}, a; mov.b64 {{{b}, {b_flag}}}, b; }}",
            line = in(reg64) line, a = out(reg32) a, b = out(reg32) b,
            a_flag = out(reg32) a_flag, b_flag = out(reg32) b_flag,
            options(nostack, preserves_flags));
        if a_flag == flag && b_flag == flag { Some([a, b]) } else { None }
    } host {
        let line = lines.as_ptr().wrapping_add(LINE_WORDS * index).addr() as u64;
        emulated::load_flagged(line, flag)
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod emulated {
    use simt::{Space, device};

    const WORD_BYTES: usize = 8;

    /// The two words of a line are accessed in either order.
    fn in_some_order() -> [usize; 2] {
        if device::flip() { [0, 1] } else { [1, 0] }
    }

    fn word(line: u64, half: usize) -> (Space, u64) {
        (Space::Global, line + (WORD_BYTES * half) as u64)
    }

    #[track_caller]
    pub fn store_flagged(line: u64, data: [u32; 2], flag: u32) {
        device::check_alignment(Space::Global, line, super::LINE_BYTES);
        for half in in_some_order() {
            let value = u64::from(flag) << 32 | u64::from(data[half]);
            let order = (device::Order::Relaxed, device::Scope::System);
            device::atomic(word(line, half), WORD_BYTES, order, |_| Some(value));
        }
    }

    #[track_caller]
    pub fn load_flagged(line: u64, flag: u32) -> Option<[u32; 2]> {
        device::check_alignment(Space::Global, line, super::LINE_BYTES);
        let mut data = [None; 2];
        for half in in_some_order() {
            let value =
                device::poll(word(line, half), WORD_BYTES, |value| value >> 32 == u64::from(flag));
            data[half] = value.map(|value| value as u32);
        }
        let received = [data[0]?, data[1]?];
        device::receive(word(line, 0), WORD_BYTES);
        device::receive(word(line, 1), WORD_BYTES);
        Some(received)
    }
}
