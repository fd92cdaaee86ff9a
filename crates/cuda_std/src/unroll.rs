//! Loops that must be written out.

/// `for i in 0..len`, written out; `len` is a constant, at most 16, and so is `i` in the body.
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
    ($i:ident in 0..$len:expr, $body:block) => {
        const { assert!($len <= 16, "`unroll!` writes out at most 16 rounds") };
        $crate::unroll!(@step $i, 0, $len, $body);
        $crate::unroll!(@step $i, 1, $len, $body);
        $crate::unroll!(@step $i, 2, $len, $body);
        $crate::unroll!(@step $i, 3, $len, $body);
        $crate::unroll!(@step $i, 4, $len, $body);
        $crate::unroll!(@step $i, 5, $len, $body);
        $crate::unroll!(@step $i, 6, $len, $body);
        $crate::unroll!(@step $i, 7, $len, $body);
        $crate::unroll!(@step $i, 8, $len, $body);
        $crate::unroll!(@step $i, 9, $len, $body);
        $crate::unroll!(@step $i, 10, $len, $body);
        $crate::unroll!(@step $i, 11, $len, $body);
        $crate::unroll!(@step $i, 12, $len, $body);
        $crate::unroll!(@step $i, 13, $len, $body);
        $crate::unroll!(@step $i, 14, $len, $body);
        $crate::unroll!(@step $i, 15, $len, $body);
    };
    (@step $i:ident, $value:literal, $len:expr, $body:block) => {
        if $value < $len {
            #[allow(non_upper_case_globals)]
            const $i: usize = $value;
            $body
        }
    };
}
