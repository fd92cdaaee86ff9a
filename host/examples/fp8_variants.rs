//! Times every kernel of small-batch linear layers with a weight in FP8.

use halfwarp::bench::fp8::{Bench, Subject};
use halfwarp::bench::gemm::Shape;
use kernels::gemm::fp8::Fp8SmallKernel;
use kernels::gemm::kernels::{gemv::gemv_16, small_m::gemm_16_small_m};

fn main() {
    let shapes: Vec<[usize; 2]> = std::env::args()
        .skip(1)
        .map(|a| {
            let v: Vec<usize> = a.split('x').map(|x| x.parse().unwrap()).collect();
            [v[0], v[1]]
        })
        .collect();
    let plain = |s: &str| s.contains("e4m3") && !s.contains("norm") && !s.contains("silu");
    for [n, k] in shapes {
        let ms = std::env::var("MS").unwrap_or_else(|_| "1 8 16".into());
        let skip = std::env::var("SKIP").unwrap_or_default();
        for m in ms.split(' ').map(|m| m.parse::<usize>().unwrap()) {
            let subject = Subject {
                gpu: 0,
                kernel: None,
                block_scales: std::env::var("BLOCKS").is_ok(),
                cubin_dir: None,
            };
            let mut bench = Bench::open(&subject, Shape { m, n, k }).unwrap();
            let mut kernels = vec![("chosen".to_owned(), None)];
            if m == 1 {
                for &i in gemv_16::Instance::ALL.iter().filter(|i| plain(i.symbol())) {
                    kernels.push((i.symbol().to_owned(), Some(Fp8SmallKernel::Gemv(i))));
                }
            }
            for &i in gemm_16_small_m::Instance::ALL.iter().filter(|i| plain(i.symbol())) {
                if m <= 8 * i.tiles_m() && (m > 8 || i.tiles_m() == 1) {
                    kernels.push((i.symbol().to_owned(), Some(Fp8SmallKernel::Registers(i))));
                }
            }
            kernels.push(("streamed".to_owned(), Some(Fp8SmallKernel::Streamed)));
            for (name, kernel) in kernels {
                if skip.split(' ').any(|s| !s.is_empty() && name.contains(s)) {
                    continue;
                }
                match bench.measure(kernel) {
                    Ok(row) => println!(
                        "{m:>2} {n:>6} {k:>5} {:>40} {:>7.2} us {:>5.0} GB/s {:.1} % err {:.1e}",
                        name,
                        row.us,
                        row.gbs,
                        row.gbs / 44.0,
                        row.error
                    ),
                    Err(error) => println!("{m} {n} {k} {name} {error}"),
                }
            }
        }
    }
}
