//! Loops that must be written out.

/// `for i in start..end`, written out; both are constants, `end` at most 16, and so is `i` in the body.
///
/// An array of a thread lives in registers only if every index into it is a constant in the machine code. LLVM unrolls a
/// loop with a small body by itself, one with a large body not.
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
    ($i:ident in $start:literal..$end:expr, $body:block) => {
        const { assert!($end <= 16, "`unroll!` writes out at most 16 rounds") };
        $crate::unroll!(@step $i, 0, $start, $end, $body);
        $crate::unroll!(@step $i, 1, $start, $end, $body);
        $crate::unroll!(@step $i, 2, $start, $end, $body);
        $crate::unroll!(@step $i, 3, $start, $end, $body);
        $crate::unroll!(@step $i, 4, $start, $end, $body);
        $crate::unroll!(@step $i, 5, $start, $end, $body);
        $crate::unroll!(@step $i, 6, $start, $end, $body);
        $crate::unroll!(@step $i, 7, $start, $end, $body);
        $crate::unroll!(@step $i, 8, $start, $end, $body);
        $crate::unroll!(@step $i, 9, $start, $end, $body);
        $crate::unroll!(@step $i, 10, $start, $end, $body);
        $crate::unroll!(@step $i, 11, $start, $end, $body);
        $crate::unroll!(@step $i, 12, $start, $end, $body);
        $crate::unroll!(@step $i, 13, $start, $end, $body);
        $crate::unroll!(@step $i, 14, $start, $end, $body);
        $crate::unroll!(@step $i, 15, $start, $end, $body);
    };
    (@step $i:ident, $value:literal, $start:literal, $end:expr, $body:block) => {
        if $start <= $value && $value < $end {
            #[allow(non_upper_case_globals)]
            const $i: usize = $value;
            $body
        }
    };
}
