//! Matrices of 8 x 8 elements of 16 bits between shared memory and the fragments of a warp: how the
//! operands of [`crate::mma`] come into registers. The whole warp calls these functions, converged.
//!
//! A row is 16 bytes, anywhere in shared memory: lane `i` gives the address of row `i % 8` of matrix
//! `i / 8`. Of one matrix lanes 0 to 7 give addresses, of two 0 to 15, of four all; those of the other
//! lanes are not looked at. Word `j` of what a lane gets, or gives, is its part of matrix `j`: of lane
//! `l` the elements `[l / 4, 2 * (l % 4)]` and `[l / 4, 2 * (l % 4) + 1]`, the latter in the upper
//! half; in the transposed forms `[2 * (l % 4), l / 4]` and `[2 * (l % 4) + 1, l / 4]`.

use crate::Shared;
#[cfg(target_arch = "nvptx64")]
use crate::warp::stay_converged;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Bytes of an element.
const ELEMENT_BYTES: u32 = 2;

/// `mnemonic, number of matrices, "registers" (words): name, name with an index, instruction`.
macro_rules! load {
    ($(
        $(#[$meta:meta])*
        $mnemonic:literal, $count:literal, $registers:literal ($($word:ident)+):
        $name:ident, $name_at:ident, $instruction:ident;
    )*) => { $(
        $(#[$meta])*
        #[doc = concat!("\n\nPTX `", $mnemonic, "`.")]
        ///
        /// # Safety
        /// 1. The rows are in the memory that the view stands for, and 16-byte aligned.
        /// 2. They are written, and no thread writes them at the same time.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $name<T: Copy>(row: Shared<T>) -> [u32; $count] {
            // SAFETY: the caller's promise.
            unsafe { $instruction::<0>(row.element(0)) }
        }

        #[doc = concat!("[`", stringify!($name), "`] of the rows that start `INDEX` elements on, the")]
        /// index part of the instruction: it takes no register.
        ///
        /// # Safety
        #[doc = concat!("As [`", stringify!($name), "`].")]
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $name_at<const INDEX: u32, T: Copy>(row: Shared<T>) -> [u32; $count] {
            const { assert!(size_of::<T>() == ELEMENT_BYTES as usize, "elements of 16 bits") };
            // SAFETY: the caller's promise.
            unsafe { $instruction::<INDEX>(row.element(0)) }
        }

        instruction! {
            $mnemonic => unsafe fn $instruction<const INDEX: u32>(row: u32) -> [u32; $count] {
                $(let $word;)+
                stay_converged();
                asm!(concat!($mnemonic, " ", $registers, ", [{row} + {offset}];"),
                    $($word = out(reg32) $word,)+ row = in(reg32) row,
                    offset = const INDEX * ELEMENT_BYTES,
                    options(readonly, nostack, preserves_flags));
                [$($word),+]
            } host {
                emulated::load($mnemonic, row.wrapping_add(INDEX * ELEMENT_BYTES))
            }
        }
    )* };
}

load! {
    /// The fragment of one matrix.
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16", 1, "{{{a}}}" (a):
    load_x1, load_x1_at, ldmatrix_x1;

    /// The fragments of two matrices.
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16", 2, "{{{a}, {b}}}" (a b):
    load_x2, load_x2_at, ldmatrix_x2;

    /// The fragments of four matrices.
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16", 4, "{{{a}, {b}, {c}, {d}}}" (a b c d):
    load_x4, load_x4_at, ldmatrix_x4;

    /// The fragment of one matrix, transposed.
    "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16", 1, "{{{a}}}" (a):
    load_x1_trans, load_x1_trans_at, ldmatrix_x1_trans;

    /// The fragments of two matrices, each transposed.
    "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", 2, "{{{a}, {b}}}" (a b):
    load_x2_trans, load_x2_trans_at, ldmatrix_x2_trans;

    /// The fragments of four matrices, each transposed.
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 4, "{{{a}, {b}, {c}, {d}}}" (a b c d):
    load_x4_trans, load_x4_trans_at, ldmatrix_x4_trans;
}

/// `mnemonic, number of matrices, "registers" (words): name, instruction`.
macro_rules! store {
    ($(
        $(#[$meta:meta])*
        $mnemonic:literal, $count:literal, $registers:literal ($($word:ident)+):
        $name:ident, $instruction:ident;
    )*) => { $(
        $(#[$meta])*
        #[doc = concat!("\n\nPTX `", $mnemonic, "`.")]
        ///
        /// # Safety
        /// 1. The rows are in the memory that the view stands for, and 16-byte aligned.
        /// 2. No two of them overlap, and no thread reads or writes them at the same time.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $name<T: Copy>(row: Shared<T>, words: [u32; $count]) {
            // SAFETY: the caller's promise.
            unsafe { $instruction(row.element(0), words) }
        }

        instruction! {
            $mnemonic => unsafe fn $instruction(row: u32, words: [u32; $count]) {
                let [$($word),+] = words;
                stay_converged();
                asm!(concat!($mnemonic, " [{row}], ", $registers, ";"),
                    row = in(reg32) row, $($word = in(reg32) $word,)+
                    options(nostack, preserves_flags));
            } host {
                emulated::store($mnemonic, row, words)
            }
        }
    )* };
}

store! {
    /// Writes the rows of one matrix (SM 90).
    "stmatrix.sync.aligned.m8n8.x1.shared.b16", 1, "{{{a}}}" (a): store_x1, stmatrix_x1;

    /// Writes the rows of two matrices (SM 90).
    "stmatrix.sync.aligned.m8n8.x2.shared.b16", 2, "{{{a}, {b}}}" (a b): store_x2, stmatrix_x2;

    /// Writes the rows of four matrices (SM 90).
    "stmatrix.sync.aligned.m8n8.x4.shared.b16", 4, "{{{a}, {b}, {c}, {d}}}" (a b c d):
    store_x4, stmatrix_x4;

    /// Writes the rows of one matrix, from a transposed fragment (SM 90).
    "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16", 1, "{{{a}}}" (a):
    store_x1_trans, stmatrix_x1_trans;

    /// Writes the rows of two matrices, from transposed fragments (SM 90).
    "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16", 2, "{{{a}, {b}}}" (a b):
    store_x2_trans, stmatrix_x2_trans;

    /// Writes the rows of four matrices, from transposed fragments (SM 90).
    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 4, "{{{a}, {b}, {c}, {d}}}" (a b c d):
    store_x4_trans, stmatrix_x4_trans;
}

/// A lane accesses the row whose address it gives; then, or before, the warp exchanges words.
#[cfg(not(target_arch = "nvptx64"))]
mod emulated {
    use crate::warp::{FULL_MASK, lane_id};
    use simt::Space;
    use simt::device::{Words, collective};

    /// Half of a word of a lane.
    type Half = (usize, usize, usize);

    /// The elements of `count` matrices: where they are in the fragments, and in the rows.
    fn elements(count: usize, mnemonic: &str) -> impl Iterator<Item = (Half, Half)> {
        let trans = mnemonic.contains(".trans");
        (0..32 * count * 2).map(move |i| {
            let (lane, matrix, half) = (i / 2 / count, i / 2 % count, i % 2);
            let (group, pair) = (lane / 4, 2 * (lane % 4));
            let (row, column) = if trans { (pair + half, group) } else { (group, pair + half) };
            ((lane, matrix, half), (8 * matrix + row, column / 2, column % 2))
        })
    }

    /// Moves 16 bits each, from the first place to the second.
    fn exchange(lanes: &mut [Words; 32], moves: impl Iterator<Item = (Half, Half)>) {
        let brought = std::mem::take(lanes);
        for ((lane, word, half), (to_lane, to_word, to_half)) in moves {
            let bits = brought[lane][word] >> (16 * half) & 0xffff;
            lanes[to_lane][to_word] |= bits << (16 * to_half);
        }
    }

    /// Whether the own lane gives an address.
    #[track_caller]
    fn has_row(count: usize) -> bool {
        (lane_id() as usize) < 8 * count
    }

    #[track_caller]
    pub fn load<const COUNT: usize>(mnemonic: &'static str, row: u32) -> [u32; COUNT] {
        let mut words = [0; 4];
        if has_row(COUNT) {
            // SAFETY: any 16 bytes are four words.
            words = unsafe { crate::emulated::load(Space::Shared, u64::from(row), 16) };
        }
        let fragment = collective(mnemonic, FULL_MASK, &words, |lanes| {
            exchange(lanes, elements(COUNT, mnemonic).map(|(fragment, row)| (row, fragment)));
        });
        std::array::from_fn(|matrix| fragment[matrix])
    }

    #[track_caller]
    pub fn store<const COUNT: usize>(mnemonic: &'static str, row: u32, fragment: [u32; COUNT]) {
        let [a, b, c, d, ..] = collective(mnemonic, FULL_MASK, &fragment, |lanes| {
            exchange(lanes, elements(COUNT, mnemonic));
        });
        if has_row(COUNT) {
            // SAFETY: four words are 16 bytes.
            unsafe { crate::emulated::store(Space::Shared, u64::from(row), 16, [a, b, c, d]) }
        }
    }
}
