//! The installed NCCL, of which no GPU is asked. Where there is none, each test is reported as ignored, by name.

use cuda_loader::nccl::{Nccl, NcclError};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let nccl = Nccl::open();
    let absent = match &nccl {
        Err(error @ (NcclError::Missing(_) | NcclError::Multicast { .. })) => {
            eprintln!("{error}");
            true
        }
        _ => false,
    };
    let trial = |name: &str, test: fn(&Nccl) -> Result<(), Failed>| {
        let nccl = nccl.clone();
        Trial::test(name, move || test(&nccl?)).with_ignored_flag(absent)
    };
    let trials = vec![
        trial("nccl_has_a_version_and_all_functions", has_a_version),
        trial("nccl_makes_identifiers_without_a_gpu", makes_identifiers),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn has_a_version(nccl: &Nccl) -> Result<(), Failed> {
    println!("NCCL {} ({})", nccl.version(), nccl.library().display());
    let version = nccl.version();
    (version.major == 2 && version.minor >= 27)
        .then_some(())
        .ok_or_else(|| format!("NCCL {version}").into())
}

fn makes_identifiers(nccl: &Nccl) -> Result<(), Failed> {
    let [first, second] = [nccl.unique_id()?, nccl.unique_id()?];
    let zero = first.to_bytes().iter().all(|&byte| byte == 0);
    (!zero && first != second).then_some(()).ok_or_else(|| "the identifiers are equal".into())
}
