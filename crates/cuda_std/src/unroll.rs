//! Full unrolling of loops.

/// `for i in 0..end`, fully unrolled; `end` is a constant of at most 16, and `i` is a constant in
/// the body.
///
/// A thread's array stays in registers only if every index into it is a constant in the machine
/// code. LLVM unrolls small loop bodies on its own, but not large ones. The macro expands the body
/// 16 times (4 times for a literal 4): keep it short, and move a nested `unroll!` into a function.
///
/// ```
/// let mut acc = [0; 4];
/// cuda_std::unroll!(i in 0..4, {
///     acc[i] += i;
/// });
/// assert_eq!(acc, [0, 1, 2, 3]);
/// ```
#[macro_export]
macro_rules! unroll {
    ($i:ident in 0..2, $body:block) => {
        $crate::unroll!(@step $i, 0, 2, $body);
        $crate::unroll!(@step $i, 1, 2, $body);
    };
    ($i:ident in 0..4, $body:block) => {
        $crate::unroll!(@step $i, 0, 4, $body);
        $crate::unroll!(@step $i, 1, 4, $body);
        $crate::unroll!(@step $i, 2, 4, $body);
        $crate::unroll!(@step $i, 3, 4, $body);
    };
    ($i:ident in 0..$end:expr, $body:block) => {
        const { assert!($end <= 16, "`unroll!` expands at most 16 iterations") };
        $crate::unroll!(@step $i, 0, $end, $body);
        $crate::unroll!(@step $i, 1, $end, $body);
        $crate::unroll!(@step $i, 2, $end, $body);
        $crate::unroll!(@step $i, 3, $end, $body);
        $crate::unroll!(@step $i, 4, $end, $body);
        $crate::unroll!(@step $i, 5, $end, $body);
        $crate::unroll!(@step $i, 6, $end, $body);
        $crate::unroll!(@step $i, 7, $end, $body);
        $crate::unroll!(@step $i, 8, $end, $body);
        $crate::unroll!(@step $i, 9, $end, $body);
        $crate::unroll!(@step $i, 10, $end, $body);
        $crate::unroll!(@step $i, 11, $end, $body);
        $crate::unroll!(@step $i, 12, $end, $body);
        $crate::unroll!(@step $i, 13, $end, $body);
        $crate::unroll!(@step $i, 14, $end, $body);
        $crate::unroll!(@step $i, 15, $end, $body);
    };
    (@step $i:ident, $value:literal, $end:expr, $body:block) => {
        // Iterations past the end never run: their out-of-bounds indices are not accessed.
        #[allow(unconditional_panic, clippy::out_of_bounds_indexing)]
        {
            if $value < $end {
                #[allow(non_upper_case_globals)]
                const $i: usize = $value;
                $body
            }
        }
    };
}
