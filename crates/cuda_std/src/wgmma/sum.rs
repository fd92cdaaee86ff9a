//! What products are summed in.

use super::element::Element;
use crate::{F16x2, convert};
use half::f16;

#[cfg(target_arch = "nvptx64")]
use {super::descriptor::Major, crate::warp::stay_converged, core::arch::asm};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
}

/// What products are summed in: `f32`, or, of products of `f16`, `f16` in half the registers.
pub trait Sum: Copy + sealed::Sealed {
    /// A register of an accumulator: one sum, or two that stand side by side.
    type Register: Copy;
    /// A register of zeros.
    const ZERO: Self::Register;
    /// Sums of a register.
    const PER_REGISTER: usize;
    /// Columns of an accumulator by its registers.
    const COLUMNS: usize = 2 * Self::PER_REGISTER;

    /// The register of the sums `sum(0)` and, if it holds two, `sum(1)`, rounded to nearest.
    fn pack(sum: impl Fn(usize) -> f32) -> Self::Register;

    /// Sum `i` of a register.
    fn unpack(register: Self::Register, i: usize) -> f32;

    /// The emulator's name of it.
    #[cfg(not(target_arch = "nvptx64"))]
    const EMULATED: simt::device::Sum;

    /// `wgmma.fence`, which no access of the registers is moved over.
    #[cfg(target_arch = "nvptx64")]
    fn fence<const REGS: usize>(registers: &mut [Self::Register; REGS]);

    /// `wgmma.wait_group`, likewise.
    #[cfg(target_arch = "nvptx64")]
    fn wait_group<const REGS: usize, const PENDING: u32>(registers: &mut [Self::Register; REGS]);
}

/// What products of elements `E` can be summed in.
pub trait SumOf<E>: Sum {
    /// The product of [`InFlight::mma`](super::InFlight::mma).
    ///
    /// # Safety
    /// As there.
    #[cfg(target_arch = "nvptx64")]
    unsafe fn mma<const REGS: usize, A: Major<E>, B: Major<E>>(
        d: &mut [Self::Register; REGS],
        a: u64,
        b: u64,
        accumulate: bool,
    );

    /// The product of [`InFlight::mma_rs`](super::InFlight::mma_rs).
    ///
    /// # Safety
    /// As there.
    #[cfg(target_arch = "nvptx64")]
    unsafe fn mma_rs<const REGS: usize, B: Major<E>>(
        d: &mut [Self::Register; REGS],
        a: [u32; 4],
        b: u64,
        accumulate: bool,
    );
}

impl<E: Element> SumOf<E> for f32 {
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    unsafe fn mma<const REGS: usize, A: Major<E>, B: Major<E>>(
        d: &mut [f32; REGS],
        a: u64,
        b: u64,
        accumulate: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe { E::mma::<REGS, A, B>(d, a, b, accumulate) }
    }

    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    unsafe fn mma_rs<const REGS: usize, B: Major<E>>(
        d: &mut [f32; REGS],
        a: [u32; 4],
        b: u64,
        accumulate: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe { E::mma_rs::<REGS, B>(d, a, b, accumulate) }
    }
}

/// `$instruction` with all registers of `$registers` as operands that it may change: the compiler
/// moves no access of them over it.
#[cfg(target_arch = "nvptx64")]
macro_rules! instruction_on {
    ($n:tt, [$($i:literal)*], ($registers:expr, $instruction:literal, $($operand:tt)*)) => {
        // SAFETY: it orders accesses of the registers, and changes none.
        unsafe {
            stay_converged();
            asm!(
                concat!($instruction, " //" $(, " {", $i, "}")*),
                $(inout(reg32) $registers[$i],)*
                $($operand)*
                options(nostack, preserves_flags)
            );
        }
    };
}

/// `$sum`s in registers of `$register`, `$per_register` each.
macro_rules! sum {
    (
        $sum:ty, $emulated:ident, $register:ty = $zero:expr, $per_register:literal,
        |$sums:ident| $pack:expr, |$from:ident, $i:ident| $unpack:expr
    ) => {
        impl Sum for $sum {
            type Register = $register;
            const ZERO: $register = $zero;
            const PER_REGISTER: usize = $per_register;
            #[cfg(not(target_arch = "nvptx64"))]
            const EMULATED: simt::device::Sum = simt::device::Sum::$emulated;

            #[inline(always)]
            fn pack($sums: impl Fn(usize) -> f32) -> $register {
                $pack
            }

            #[inline(always)]
            fn unpack($from: $register, $i: usize) -> f32 {
                $unpack
            }

            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            fn fence<const REGS: usize>(registers: &mut [$register; REGS]) {
                match_registers!(REGS, instruction_on(registers, "wgmma.fence.sync.aligned;",));
            }

            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            fn wait_group<const REGS: usize, const PENDING: u32>(
                registers: &mut [$register; REGS],
            ) {
                match_registers!(REGS, instruction_on(
                    registers, "wgmma.wait_group.sync.aligned {pending};", pending = const PENDING,
                ));
            }
        }
    };
}

sum!(f32, F32, f32 = 0.0, 1, |sum| sum(0), |register, _i| register);
sum!(f16, F16, u32 = 0, 2, |sum| convert::f32_to_f16x2(sum(0), sum(1)).to_bits(), |register, i| {
    let pair = F16x2::from_bits(register);
    convert::f16_to_f32(if i == 0 { pair.lo() } else { pair.hi() })
});
