//! Elements of operands, and their MMA instructions.

use super::accumulator_type::AccumulatorFor;
#[cfg(target_arch = "nvptx64")]
use super::accumulator_type::AccumulatorType;
#[cfg(target_arch = "nvptx64")]
use super::descriptor::Major;
use crate::{E4m3, E5m2};
use half::{bf16, f16};
#[cfg(target_arch = "nvptx64")]
use {crate::warp::stay_converged, core::arch::asm};

/// Element of an operand: `f16` and `bf16` (k = 16), [`E4m3`] and [`E5m2`] (k = 32).
pub trait Element: Copy {
    /// The element in the emulator's types.
    #[cfg(not(target_arch = "nvptx64"))]
    const EMULATED: simt::device::Element;

    /// The instruction of [`InFlight::mma`](super::InFlight::mma).
    ///
    /// # Safety
    /// As there.
    #[cfg(target_arch = "nvptx64")]
    unsafe fn mma<const REGS: usize, A: Major<Self>, B: Major<Self>>(
        d: &mut [f32; REGS],
        a: u64,
        b: u64,
        accumulate: bool,
    );

    /// The instruction of [`InFlight::mma_rs`](super::InFlight::mma_rs).
    ///
    /// # Safety
    /// As there.
    #[cfg(target_arch = "nvptx64")]
    unsafe fn mma_rs<const REGS: usize, B: Major<Self>>(
        d: &mut [f32; REGS],
        a: [u32; 4],
        b: u64,
        accumulate: bool,
    );
}

/// One `wgmma.mma_async` of `$n` columns, or `$wide` with f16 accumulators, on the registers
/// `[$first $i..]` of `$d`. `$types` are its k and types, `$operands` the operands after D, and
/// `$operand` their values.
#[cfg(target_arch = "nvptx64")]
macro_rules! wgmma {
    ([$n:literal, $wide:literal], $registers:tt, (f32, $($args:tt)*)) => {
        wgmma!(@ $n, $registers, $($args)*)
    };
    ([$n:literal, $wide:literal], $registers:tt, (f16, $($args:tt)*)) => {
        wgmma!(@ $wide, $registers, $($args)*)
    };
    (
        @ $n:literal, [$first:literal $($i:literal)*],
        $d:ident, $accumulate:ident, $types:literal, $operands:literal, $($operand:tt)*
    ) => {
        // SAFETY: the caller's promise.
        unsafe {
            stay_converged();
            asm!(
                "{{",
                ".reg .pred accumulate;",
                "setp.ne.b32 accumulate, {accumulate}, 0;",
                concat!(
                    "wgmma.mma_async.sync.aligned.m64n", $n, $types,
                    " {{{", $first, "}", $(", {", $i, "}",)* "}}, ", $operands, ";"
                ),
                "}}",
                inout(reg32) $d[$first], $(inout(reg32) $d[$i],)*
                accumulate = in(reg32) u32::from($accumulate),
                $($operand)*
                options(nostack, preserves_flags)
            );
        }
    };
}

/// `mma` and `mma_rs` of `$element`, accumulated in `$sum`. For each form, `$types` is followed by
/// its operands and by the values of the transpositions among them.
#[cfg(target_arch = "nvptx64")]
macro_rules! mmas {
    (
        $element:ty, $sum:tt, $types:literal,
        $ss:literal ($($ss_operand:tt)*), $rs:literal ($($rs_operand:tt)*)
    ) => {
        #[inline(always)]
        unsafe fn mma<const REGS: usize, A: Major<$element>, B: Major<$element>>(
            d: &mut [<$sum as AccumulatorType>::Register; REGS],
            a: u64,
            b: u64,
            accumulate: bool,
        ) {
            match_registers!(REGS, wgmma($sum,
                d, accumulate, $types, $ss,
                a = in(reg64) a, b = in(reg64) b, $($ss_operand)*
            ))
        }

        #[inline(always)]
        unsafe fn mma_rs<const REGS: usize, B: Major<$element>>(
            d: &mut [<$sum as AccumulatorType>::Register; REGS],
            [a0, a1, a2, a3]: [u32; 4],
            b: u64,
            accumulate: bool,
        ) {
            match_registers!(REGS, wgmma($sum,
                d, accumulate, $types, $rs,
                a0 = in(reg32) a0, a1 = in(reg32) a1, a2 = in(reg32) a2, a3 = in(reg32) a3,
                b = in(reg64) b, $($rs_operand)*
            ))
        }
    };
}

/// MMAs of 16-bit elements, whose operands in shared memory can be transposed.
#[cfg(target_arch = "nvptx64")]
macro_rules! mmas_16 {
    ($element:ty, $sum:tt, $types:literal) => {
        mmas!(
            $element, $sum, $types,
            "{a}, {b}, accumulate, 1, 1, {transpose_a}, {transpose_b}" (
                transpose_a = const A::TRANSPOSED as u32, transpose_b = const B::TRANSPOSED as u32,
            ),
            "{{{a0}, {a1}, {a2}, {a3}}}, {b}, accumulate, 1, 1, {transpose_b}" (
                transpose_b = const B::TRANSPOSED as u32,
            )
        );
    };
}

/// MMAs of 8-bit elements.
#[cfg(target_arch = "nvptx64")]
macro_rules! mmas_8 {
    ($element:ty, $sum:tt, $types:literal) => {
        mmas!(
            $element,
            $sum,
            $types,
            "{a}, {b}, accumulate, 1, 1"(),
            "{{{a0}, {a1}, {a2}, {a3}}}, {b}, accumulate, 1, 1"()
        );
    };
}

/// Elements, and the macro that defines their MMAs.
macro_rules! elements {
    ($($element:ty, $emulated:ident, $mmas:ident $types:literal;)*) => {$(
        impl Element for $element {
            #[cfg(not(target_arch = "nvptx64"))]
            const EMULATED: simt::device::Element = simt::device::Element::$emulated;

            #[cfg(target_arch = "nvptx64")]
            $mmas!($element, f32, $types);
        }
    )*};
}

elements! {
    f16, F16, mmas_16 "k16.f32.f16.f16";
    bf16, Bf16, mmas_16 "k16.f32.bf16.bf16";
    E4m3, E4m3, mmas_8 "k32.f32.e4m3.e4m3";
    E5m2, E5m2, mmas_8 "k32.f32.e5m2.e5m2";
}

impl AccumulatorFor<f16> for f16 {
    #[cfg(target_arch = "nvptx64")]
    mmas_16!(f16, f16, "k16.f16.f16.f16");
}
