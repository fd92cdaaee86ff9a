//! Every case on the emulator and on a GPU, as `emulated::<case>` and `cuda::<case>`. Without a
//! GPU, or on one that lacks the instructions, a case is reported as ignored, by name.
//!
//! After the results come the GPU's largest deviations where the ISA does not fix the bits.

use std::sync::{Arc, Mutex, PoisonError};

use conformance::{Case, Gpu, cases, emulate, has_kernel};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let gpu = Gpu::open().unwrap_or_else(|error| {
        eprintln!("no GPU: {error}");
        None
    });
    let gpu = gpu.map(Arc::new);
    let deviations = Arc::new(Mutex::new(Vec::new()));
    let mut trials = Vec::new();
    for case in cases::all().into_iter().map(Arc::new) {
        let (name, symbol) = (case.name.clone(), case.symbol());
        let runs = gpu.as_ref().is_some_and(|gpu| gpu.has_kernel(symbol));
        let emulated = Arc::clone(&case);
        trials.push(Trial::test(format!("emulated::{name}"), move || {
            on_emulator(&emulated).map_err(Failed::from)
        }));
        let (gpu, deviations) = (gpu.clone(), Arc::clone(&deviations));
        let trial = Trial::test(format!("cuda::{name}"), move || {
            let gpu = gpu.as_ref().ok_or("there is no GPU")?;
            let lines =
                on_gpu(&case, gpu)?.into_iter().map(|line| format!("{}: {line}", case.name));
            deviations.lock().unwrap_or_else(PoisonError::into_inner).extend(lines);
            Ok(())
        });
        trials.push(trial.with_ignored_flag(!runs));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    let mut deviations = deviations.lock().unwrap_or_else(PoisonError::into_inner);
    deviations.sort();
    deviations.iter().for_each(|line| println!("{line}"));
    conclusion.exit();
}

/// Compares the emulator with the oracle's results, rounded once.
fn on_emulator(case: &Case) -> Result<(), String> {
    if !has_kernel(case.symbol()) {
        return Err(format!("{} was not compiled for any target", case.symbol()));
    }
    for seed in simt::seeds() {
        let outputs = emulate(case, seed).map_err(|fault| format!("seed {seed}: {fault}"))?;
        case.check_emulated(&outputs).map_err(|why| format!("seed {seed}: {why}"))?;
    }
    Ok(())
}

/// Compares the GPU with the emulator and with the oracle; returns its deviations from the oracle.
fn on_gpu(case: &Case, gpu: &Gpu) -> Result<Vec<String>, String> {
    let outputs = gpu.run(case).map_err(|error| error.to_string())?;
    let emulated = emulate(case, 0)?;
    case.compare(&outputs, &emulated).map_err(|why| format!("against the emulator: {why}"))?;
    case.check(&outputs).map_err(|why| format!("against the oracle: {why}"))
}
