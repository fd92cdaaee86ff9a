//! `ldmatrix` and `stmatrix`: 8 x 8 matrices of 16-bit elements between shared memory and
//! registers; `movmatrix`: transposes one in registers.
//!
//! The results are the fragments that [`crate::mma`] takes. The whole warp calls these functions,
//! converged.
//!
//! A row is 16 bytes, anywhere in shared memory. Lane `i` passes the address of row `i % 8` of
//! matrix `i / 8`: lanes 0 to 7 for one matrix, 0 to 15 for two, all for four; the addresses of
//! other lanes are ignored. Word `j` of a lane is its part of matrix `j`. Lane `l` holds the
//! elements `[l / 4, 2 * (l % 4)]` and `[l / 4, 2 * (l % 4) + 1]`, the second in the upper half of
//! the word; in the transposed forms `[2 * (l % 4), l / 4]` and `[2 * (l % 4) + 1, l / 4]`.

use crate::Shared;
#[cfg(target_arch = "nvptx64")]
use crate::warp::stay_converged;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Bytes of an element.
const ELEMENT_BYTES: u32 = 2;

/// `mnemonic, number of matrices, "registers" (words), documentation: name, name with an index,
/// instruction`.
macro_rules! load {
    ($(
        $mnemonic:tt, $count:literal, $registers:literal ($($word:ident)+), $doc:literal:
        $name:ident, $name_at:ident, $instruction:ident;
    )*) => { $(
        #[doc = $doc]
        #[doc = ptx!($mnemonic)]
        ///
        /// # Safety
        /// 1. The rows are inside the memory of the view, and 16-byte aligned.
        /// 2. They are written, and no thread writes them at the same time.
        #[inline(always)]
        #[track_caller]
        pub unsafe fn $name<T: Copy>(row: Shared<T>) -> [u32; $count] {
            // SAFETY: the caller's promise.
            unsafe { $instruction::<0>(row.element(0)) }
        }

        #[doc = concat!("[`", stringify!($name), "`] of the rows `INDEX` elements further on; the")]
        /// index is an immediate of the instruction and takes no register.
        #[doc = ptx!($mnemonic)]
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
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16", 1, "{{{a}}}" (a),
    "Loads one matrix.": load_x1, load_x1_at, ldmatrix_x1;

    "ldmatrix.sync.aligned.m8n8.x2.shared.b16", 2, "{{{a}, {b}}}" (a b),
    "Loads two matrices.": load_x2, load_x2_at, ldmatrix_x2;

    "ldmatrix.sync.aligned.m8n8.x4.shared.b16", 4, "{{{a}, {b}, {c}, {d}}}" (a b c d),
    "Loads four matrices.": load_x4, load_x4_at, ldmatrix_x4;

    "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16", 1, "{{{a}}}" (a),
    "Loads one matrix, transposed.": load_x1_trans, load_x1_trans_at, ldmatrix_x1_trans;

    "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", 2, "{{{a}, {b}}}" (a b),
    "Loads two matrices, each transposed.": load_x2_trans, load_x2_trans_at, ldmatrix_x2_trans;

    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 4, "{{{a}, {b}, {c}, {d}}}" (a b c d),
    "Loads four matrices, each transposed.": load_x4_trans, load_x4_trans_at, ldmatrix_x4_trans;
}

instruction! {
    /// Transposes a matrix, of which each lane holds a word, in registers.
    "movmatrix.sync.aligned.m8n8.trans.b16" => pub fn transpose(word: u32) -> u32 {
        let result: u32;
        stay_converged();
        asm!("movmatrix.sync.aligned.m8n8.trans.b16 {}, {};", out(reg32) result, in(reg32) word,
            options(nostack, preserves_flags));
        result
    } host {
        emulated::transpose(word)
    }
}

/// `mnemonic, number of matrices, "registers" (words), documentation: name, instruction`.
macro_rules! store {
    ($(
        $mnemonic:tt, $count:literal, $registers:literal ($($word:ident)+), $doc:literal:
        $name:ident, $instruction:ident;
    )*) => { $(
        #[doc = $doc]
        #[doc = ptx!($mnemonic)]
        ///
        /// # Safety
        /// 1. The rows are inside the memory of the view, and 16-byte aligned.
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
    "stmatrix.sync.aligned.m8n8.x1.shared.b16", 1, "{{{a}}}" (a),
    "Stores one matrix.": store_x1, stmatrix_x1;

    "stmatrix.sync.aligned.m8n8.x2.shared.b16", 2, "{{{a}, {b}}}" (a b),
    "Stores two matrices.": store_x2, stmatrix_x2;

    "stmatrix.sync.aligned.m8n8.x4.shared.b16", 4, "{{{a}, {b}, {c}, {d}}}" (a b c d),
    "Stores four matrices.": store_x4, stmatrix_x4;

    "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16", 1, "{{{a}}}" (a),
    "Stores one matrix from a transposed fragment.": store_x1_trans, stmatrix_x1_trans;

    "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16", 2, "{{{a}, {b}}}" (a b),
    "Stores two matrices from transposed fragments.": store_x2_trans, stmatrix_x2_trans;

    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 4, "{{{a}, {b}, {c}, {d}}}" (a b c d),
    "Stores four matrices from transposed fragments.": store_x4_trans, stmatrix_x4_trans;
}

/// Each lane accesses the row whose address it passes; the warp exchanges words after a load,
/// before a store.
#[cfg(not(target_arch = "nvptx64"))]
mod emulated {
    use crate::warp::{FULL_MASK, lane_id};
    use simt::Space;
    use simt::device::{Words, collective};

    /// Half of a word of a lane: lane, word, half.
    type Half = (usize, usize, usize);

    /// The elements of `count` matrices: their place in the fragments, and their place in the rows.
    fn elements(count: usize, mnemonic: &str) -> impl Iterator<Item = (Half, Half)> {
        let trans = mnemonic.contains(".trans");
        (0..32 * count * 2).map(move |i| {
            let (lane, matrix, half) = (i / 2 / count, i / 2 % count, i % 2);
            let (group, pair) = (lane / 4, 2 * (lane % 4));
            let (row, column) = if trans { (pair + half, group) } else { (group, pair + half) };
            ((lane, matrix, half), (8 * matrix + row, column / 2, column % 2))
        })
    }

    /// Applies `moves`, each of 16 bits from the first place to the second.
    fn exchange(lanes: &mut [Words; 32], moves: impl Iterator<Item = (Half, Half)>) {
        let sources = std::mem::take(lanes);
        for ((lane, word, half), (to_lane, to_word, to_half)) in moves {
            let bits = sources[lane][word] >> (16 * half) & 0xffff;
            lanes[to_lane][to_word] |= bits << (16 * to_half);
        }
    }

    /// Whether this lane passes an address.
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
    pub fn transpose(word: u32) -> u32 {
        let mnemonic = "movmatrix.sync.aligned.m8n8.trans.b16";
        let words = collective(mnemonic, FULL_MASK, &[word], |lanes| {
            let place = |row: usize, column: usize| (4 * row + column / 2, 0, column % 2);
            let places = (0..64).map(|i| (i / 8, i % 8));
            exchange(lanes, places.map(|(row, column)| (place(row, column), place(column, row))));
        });
        words[0]
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
