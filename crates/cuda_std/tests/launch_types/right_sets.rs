use cuda_std::instance_set;
use cuda_std::prelude::*;

mod sets {
    cuda_std::instance_set! {
        /// Bytes and words.
        pub(crate) INTS = [u8, u32 as "word"];
    }
}

use sets::INTS;

instance_set! {
    /// Columns of a block.
    pub(crate) COLUMNS = [64, 128];
}

#[kernel(
    launch_bounds(C, 1),
    instances(E in INTS, C in COLUMNS, sum_{E}_{C} = <E, C>, except(sum_u8_128), sum_wide = <u64, 64>)
)]
pub unsafe fn sum<E, const C: u32>(out: GlobalMut<u32>) {
    let _ = (out.address(), size_of::<E>());
}

macro_rules! sizes {
    ([$($ty:ty $(as $text:literal)?),*] $more:expr) => { [$(size_of::<$ty>()),*, $more] };
}

fn main() {
    use sum::Instance;
    let symbols: Vec<_> = Instance::ALL.iter().map(|instance| instance.symbol()).collect();
    assert_eq!(symbols, ["sum_u8_64", "sum_word_64", "sum_word_128", "sum_wide"]);
    assert_eq!(Instance::sum_word_128.c(), 128);
    assert_eq!(INTS! { sizes 9 }, [1, 4, 9]);
}
