//! Every case on the emulator and on a GPU, under the names `emulated::<case>` and `cuda::<case>`. Without a GPU, or on
//! one that lacks the instructions, a case is reported as ignored, by name.

use std::sync::Arc;

use conformance::{Case, Gpu, cases, emulate, has_kernel};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let gpu = Gpu::open().unwrap_or_else(|error| {
        eprintln!("no GPU: {error}");
        None
    });
    let gpu = gpu.map(Arc::new);
    let mut trials = Vec::new();
    for case in cases::all().into_iter().map(Arc::new) {
        let (name, symbol) = (case.name, case.symbol());
        let runs = gpu.as_ref().is_some_and(|gpu| gpu.has_kernel(symbol));
        let emulated = Arc::clone(&case);
        trials.push(Trial::test(format!("emulated::{name}"), move || {
            on_emulator(&emulated).map_err(Failed::from)
        }));
        let gpu = gpu.clone();
        let trial = Trial::test(format!("cuda::{name}"), move || match &gpu {
            Some(gpu) => on_gpu(&case, gpu).map_err(Failed::from),
            None => Err("there is no GPU".into()),
        });
        trials.push(trial.with_ignored_flag(!runs));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// The emulator against the oracle.
fn on_emulator(case: &Case) -> Result<(), String> {
    if !has_kernel(case.symbol()) {
        return Err(format!("{} was compiled for no target", case.symbol()));
    }
    for seed in simt::seeds() {
        let outputs = emulate(case, seed).map_err(|fault| format!("seed {seed}: {fault}"))?;
        case.check(&outputs).map_err(|why| format!("seed {seed}: {why}"))?;
    }
    Ok(())
}

/// The GPU against the emulator, and against the oracle.
fn on_gpu(case: &Case, gpu: &Gpu) -> Result<(), String> {
    let outputs = gpu.run(case).map_err(|error| error.to_string())?;
    let emulated = emulate(case, 0)?;
    case.compare(&outputs, &emulated).map_err(|why| format!("against the emulator: {why}"))?;
    case.check(&outputs).map_err(|why| format!("against the oracle: {why}"))
}
