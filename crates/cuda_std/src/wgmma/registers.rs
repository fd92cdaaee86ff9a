//! The registers of an accumulator by number: what is written out because no register can be
//! indexed.

/// `$callback!([n, wide], [registers], $args)` for the accumulator of `$count` registers: `n` are
/// its columns if a register holds one sum, `wide` if it holds two, `[registers]` the numbers of
/// its registers. A new width is one more line here.
#[rustfmt::skip]
macro_rules! match_registers {
    ($count:ident, $callback:ident $args:tt) => {
        match $count {
            4 => $callback!([8, 16], [0 1 2 3], $args),
            8 => $callback!([16, 32], [0 1 2 3 4 5 6 7], $args),
            16 => $callback!([32, 64], [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15], $args),
            32 => $callback!([64, 128], [
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30
                31
            ], $args),
            48 => $callback!([96, 192], [
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30
                31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47
            ], $args),
            64 => $callback!([128, 256], [
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30
                31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58
                59 60 61 62 63
            ], $args),
            96 => $callback!([192, 384], [
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30
                31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58
                59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86
                87 88 89 90 91 92 93 94 95
            ], $args),
            128 => $callback!([256, 512], [
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30
                31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58
                59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86
                87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110
                111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127
            ], $args),
            _ => panic!("no accumulator has so many registers: half or a quarter of its columns"),
        }
    };
}
