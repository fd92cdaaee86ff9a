use super::*;
use lock::Key;

const CHECKS: &str = "checks ptxas=1";

fn kernel(symbol: &str, ptx: &str) -> Kernel {
    Kernel::new("sm_90a", symbol, ptx.to_owned())
}

/// An assembler that gives 32 registers, and refuses PTX that spills.
fn outcome_of(kernel: &Kernel) -> Outcome {
    match kernel.ptx.contains("spill") {
        true => Err(vec!["4 bytes spill stores".to_owned()]),
        false => {
            let counts = [("registers", 32), ("shared", 0)];
            let counts = counts.map(|(name, count)| (name.to_owned(), count)).to_vec();
            Ok(Entry { hash: kernel.hash.clone(), counts })
        }
    }
}

/// Checks `kernels`; what was assembled, the lock, and the faults but those of the table of mnemonics.
fn checked(
    recorded: &Lock,
    checks: &str,
    kernels: &[Kernel],
    all: bool,
) -> (Vec<String>, Lock, Vec<String>) {
    let mut assembled = Vec::new();
    let assemble = |kernels: &[&Kernel]| {
        assembled = kernels.iter().map(|kernel| kernel.key.symbol.clone()).collect();
        Ok(kernels.iter().map(|kernel| outcome_of(kernel)).collect())
    };
    let Checked { lock, mut faults, num_assembled } =
        check(recorded, checks, kernels, all, assemble).unwrap();
    assert_eq!(num_assembled, assembled.len());
    faults.retain(|fault| !fault.contains("no such kernel"));
    (assembled, lock, faults)
}

/// The lock of two kernels, and they.
fn recorded() -> (Lock, [Kernel; 2]) {
    let kernels = [kernel("a", "mov"), kernel("b", "add")];
    let (assembled, lock, faults) = checked(&Lock::default(), CHECKS, &kernels, false);
    assert_eq!(assembled, ["a", "b"]);
    assert!(faults.is_empty() && lock.entries.len() == 2);
    (lock, kernels)
}

#[test]
fn nothing_is_assembled_without_a_change() {
    let (lock, kernels) = recorded();
    let no_tools = |_: &[&Kernel]| panic!("the tools are not needed");
    let same = check(&lock, CHECKS, &kernels, false, no_tools).unwrap();
    assert_eq!((same.lock, same.num_assembled), (lock, 0));
}

#[test]
fn what_changed_is_assembled_and_is_a_difference() {
    let (lock, [a, b]) = recorded();
    let (assembled, new, faults) =
        checked(&lock, CHECKS, &[a, kernel("b", "sub"), kernel("c", "mul")], false);
    assert_eq!(assembled, ["b", "c"]);
    assert!(faults.is_empty());
    // Of `b` there is as much as before.
    assert_eq!(lock.differences(&new).len(), 1);
    assert_eq!(lock.num_other_ptx(&new), 2);
    let key = |symbol: &str| Key { target: "sm_90a".to_owned(), symbol: symbol.to_owned() };
    assert_ne!(new.entries[&key("b")].hash, b.hash);
    assert_eq!(new.entries[&key("a")], lock.entries[&key("a")]);
}

#[test]
fn a_kernel_with_a_fault_gets_no_entry() {
    let (lock, [a, _]) = recorded();
    let (assembled, new, faults) = checked(&lock, CHECKS, &[a, kernel("b", "spill")], false);
    assert_eq!(assembled, ["b"]);
    assert_eq!(faults, ["b sm_90a: 4 bytes spill stores"]);
    assert_eq!(new.entries.len(), 1);
}

#[test]
fn a_kernel_that_is_no_more_leaves_the_lock() {
    let (lock, [a, _]) = recorded();
    let (assembled, new, _) = checked(&lock, CHECKS, &[a], false);
    assert!(assembled.is_empty());
    assert_eq!(lock.differences(&new), ["b sm_90a: no such kernel any more"]);
}

#[test]
fn other_tools_or_rules_assemble_every_kernel() {
    let (lock, kernels) = recorded();
    let (assembled, new, _) = checked(&lock, "checks ptxas=2", &kernels, false);
    assert_eq!(assembled, ["a", "b"]);
    assert_eq!(lock.differences(&new), ["checks ptxas=1 -> checks ptxas=2"]);
}

#[test]
fn all_finds_a_number_that_was_edited() {
    let (lock, kernels) = recorded();
    let mut edited = lock.clone();
    edited.entries.values_mut().next().unwrap().counts[0].1 = 16;
    let (assembled, same, _) = checked(&edited, CHECKS, &kernels, false);
    assert!(assembled.is_empty() && same == edited);
    let (assembled, new, _) = checked(&edited, CHECKS, &kernels, true);
    assert_eq!(assembled, ["a", "b"]);
    assert_eq!(edited.differences(&new), ["a sm_90a: registers 16 -> 32"]);
}

#[test]
fn options_are_named() {
    let parse = |words: &[&str]| Options::parse(words).map(|o| (o.all, o.bless));
    assert_eq!(parse(&[]), Some((false, false)));
    assert_eq!(parse(&["--bless"]), Some((false, true)));
    assert_eq!(parse(&["--bless", "--all"]), Some((true, true)));
    assert_eq!(parse(&["--blessed"]), None);
}
