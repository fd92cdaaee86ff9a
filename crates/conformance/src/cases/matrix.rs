//! Matrices of 8 x 8 elements of 16 bits, element by element.

use conformance_kernels::matrix::{
    NUM_ROWS, NUM_STORED_ROWS, NUM_WORDS, matrix_load, matrix_store, stored_row,
};

use crate::inputs::{blocks, random_words, words_of_halves};
use crate::{Buffer, Case, Want};

/// The forms of both instructions: number of matrices, transposition, and index of the first word.
const FORMS: [(usize, bool, usize); 6] =
    [(1, false, 0), (2, false, 1), (4, false, 3), (1, true, 7), (2, true, 8), (4, true, 10)];

/// A matrix transposed in registers.
const TRANSPOSED: (usize, bool, usize) = (1, true, 14);

/// Row and column of half `half` of a lane's word of a matrix: the figure of the ISA page.
fn place(lane: usize, half: usize, transposed: bool) -> (usize, usize) {
    let (row, column) = (lane / 4, lane % 4 * 2 + half);
    if transposed { (column, row) } else { (row, column) }
}

fn halves(seed: u64, len: usize) -> Vec<u16> {
    random_words(seed).map(|word| word as u16).take(len).collect()
}

/// Rows in arbitrary order in shared memory.
pub fn load() -> Case {
    let x = halves(60, NUM_ROWS as usize * 8);
    let rows: Vec<u32> = (0..32).map(|lane| (13 * lane + 7) % NUM_ROWS).collect();
    let mut wanted = Vec::new();
    for lane in 0..32 {
        for (count, transposed, _) in FORMS.into_iter().chain([TRANSPOSED]) {
            for matrix in 0..count {
                wanted.extend([0, 1].map(|half| {
                    let (row, column) = place(lane, half, transposed);
                    x[rows[8 * matrix + row] as usize * 8 + column]
                }));
            }
        }
    }
    let buffers = vec![
        Buffer::words(&words_of_halves(&x)),
        Buffer::words(&rows),
        Buffer::Out(Want::Words(words_of_halves(&wanted))),
    ];
    Case::new("matrix_load", buffers, |p| {
        matrix_load::Args { x: p.at(0), rows: p.at(1), out: p.at(2) }.launch(blocks(1, 32))
    })
}

/// Every element is stored to its row, whichever lane passes the address.
pub fn store() -> Case {
    let x = halves(61, 32 * NUM_WORDS as usize * 2);
    let mut wanted = vec![0; NUM_STORED_ROWS as usize * 8];
    let mut first_row = 0;
    for (count, transposed, first_word) in FORMS {
        for matrix in 0..count {
            for (lane, half) in (0..32).flat_map(|lane| [(lane, 0), (lane, 1)]) {
                let (row, column) = place(lane, half, transposed);
                let named_by = (8 * matrix + row) as u32;
                let row = first_row + stored_row(named_by, 8 * count as u32) as usize;
                let word = lane * NUM_WORDS as usize + first_word + matrix;
                wanted[row * 8 + column] = x[2 * word + half];
            }
        }
        first_row += 8 * count;
    }
    let buffers = vec![
        Buffer::words(&words_of_halves(&x)),
        Buffer::Out(Want::Words(words_of_halves(&wanted))),
    ];
    Case::new("matrix_store", buffers, |p| {
        matrix_store::Args { x: p.at(0), out: p.at(1) }.launch(blocks(1, 32))
    })
}
