//! Elements of operands, and the products of each.

#[cfg(target_arch = "nvptx64")]
use super::descriptor::Major;
use crate::{E4m3, E5m2};
use half::{bf16, f16};
#[cfg(target_arch = "nvptx64")]
use {crate::warp::stay_converged, core::arch::asm};

/// What operands are made of: `f16` and `bf16` (k = 16), [`E4m3`] and [`E5m2`] (k = 32).
pub trait Element: Copy {
    /// The emulator's name of the element.
    #[cfg(not(target_arch = "nvptx64"))]
    const EMULATED: simt::device::Element;

    /// The product of [`InFlight::mma`](super::InFlight::mma).
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

    /// The product of [`InFlight::mma_rs`](super::InFlight::mma_rs).
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

/// One `wgmma.mma_async` of `$n` columns on the registers `[$first $i..]` of `$d`: `$types` are its
/// k and types, `$operands` what stands behind D in it, and `$operand` where that comes from.
#[cfg(target_arch = "nvptx64")]
macro_rules! product {
    (
        $n:literal, [$first:literal $($i:literal)*],
        ($d:ident, $accumulate:ident, $types:literal, $operands:literal, $($operand:tt)*)
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

/// The products of `$element`. Behind `$types` stand the operands of the two forms of the
/// instruction from `scale-d` on, and the transpositions in them.
macro_rules! element {
    (
        $element:ty, $emulated:ident, $types:literal,
        $ss:literal ($($ss_operand:tt)*), $rs:literal ($($rs_operand:tt)*)
    ) => {
        impl Element for $element {
            #[cfg(not(target_arch = "nvptx64"))]
            const EMULATED: simt::device::Element = simt::device::Element::$emulated;

            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            unsafe fn mma<const REGS: usize, A: Major<Self>, B: Major<Self>>(
                d: &mut [f32; REGS],
                a: u64,
                b: u64,
                accumulate: bool,
            ) {
                match_registers!(REGS, product(
                    d, accumulate, $types, $ss,
                    a = in(reg64) a, b = in(reg64) b, $($ss_operand)*
                ))
            }

            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            unsafe fn mma_rs<const REGS: usize, B: Major<Self>>(
                d: &mut [f32; REGS],
                [a0, a1, a2, a3]: [u32; 4],
                b: u64,
                accumulate: bool,
            ) {
                match_registers!(REGS, product(
                    d, accumulate, $types, $rs,
                    a0 = in(reg32) a0, a1 = in(reg32) a1, a2 = in(reg32) a2, a3 = in(reg32) a3,
                    b = in(reg64) b, $($rs_operand)*
                ))
            }
        }
    };
}

/// Elements of 16 bits, whose operands in shared memory can be transposed.
macro_rules! element_16 {
    ($element:ty, $emulated:ident, $types:literal) => {
        element!(
            $element, $emulated, $types,
            "{a}, {b}, accumulate, 1, 1, {transpose_a}, {transpose_b}" (
                transpose_a = const A::TRANSPOSED as u32, transpose_b = const B::TRANSPOSED as u32,
            ),
            "{{{a0}, {a1}, {a2}, {a3}}}, {b}, accumulate, 1, 1, {transpose_b}" (
                transpose_b = const B::TRANSPOSED as u32,
            )
        );
    };
}

/// Elements of 8 bits.
macro_rules! element_8 {
    ($element:ty, $emulated:ident, $types:literal) => {
        element!(
            $element,
            $emulated,
            $types,
            "{a}, {b}, accumulate, 1, 1"(),
            "{{{a0}, {a1}, {a2}, {a3}}}, {b}, accumulate, 1, 1"()
        );
    };
}

element_16!(f16, F16, "k16.f32.f16.f16");
element_16!(bf16, Bf16, "k16.f32.bf16.bf16");
element_8!(E4m3, E4m3, "k32.f32.e4m3.e4m3");
element_8!(E5m2, E5m2, "k32.f32.e5m2.e5m2");
