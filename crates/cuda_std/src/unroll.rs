//! Loops that must be written out.

/// `for i in 0..end`, written out; `end` is a constant, at most 16, and so is `i` in the body.
///
/// An array of a thread lives in registers only if every index into it is a constant in the machine code. LLVM unrolls a
/// loop with a small body by itself, one with a large body not. The compiler sees the body 16 times (4 times for a literal
/// 4), so that it should be short, and call a function where it contains another `unroll!`.
///
/// ```
/// let mut sums = [0; 4];
/// cuda_std::unroll!(i in 0..4, {
///     sums[i] += i;
/// });
/// assert_eq!(sums, [0, 1, 2, 3]);
/// ```
#[macro_export]
macro_rules! unroll {
    ($i:ident in 0..4, $body:block) => {
        $crate::unroll!(@step $i, 0, 4, $body);
        $crate::unroll!(@step $i, 1, 4, $body);
        $crate::unroll!(@step $i, 2, 4, $body);
        $crate::unroll!(@step $i, 3, 4, $body);
    };
    ($i:ident in 0..$end:expr, $body:block) => {
        const { assert!($end <= 16, "`unroll!` writes out at most 16 rounds") };
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
        // Rounds past the end are never run: an index that is out of bounds there is none.
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
