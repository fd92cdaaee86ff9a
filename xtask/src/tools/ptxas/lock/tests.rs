use super::*;

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn text(lines: &[&str]) -> String {
    let lines = lines.iter().map(|line| line.replace("HASH", HASH) + "\n").collect::<String>();
    format!("{ABOUT}checks ptxas=1 rules=2\n{lines}")
}

const ADD: &str = "sm_80 add_f32 HASH registers=16 shared=0 f32=2 other=4";
const GEMV: &str = "sm_90a gemv_f16 HASH registers=40 shared=256 f16=3 LDG.E.NA=16";

fn lock(lines: &[&str]) -> Lock {
    Lock::parse(&text(lines)).unwrap()
}

fn error(text: &str) -> String {
    format!("{:#}", Lock::parse(text).unwrap_err())
}

#[test]
fn what_is_written_is_read_again() {
    let text = text(&[ADD, GEMV]);
    let lock = Lock::parse(&text).unwrap();
    assert_eq!(lock.checks, "checks ptxas=1 rules=2");
    assert_eq!(lock.entries.len(), 2);
    let counts = &lock.entries.values().next_back().unwrap().counts;
    let want = [("registers", 40), ("shared", 256), ("f16", 3), ("LDG.E.NA", 16)];
    assert!(counts.iter().map(|(name, count)| (&**name, *count)).eq(want));
    assert_eq!(lock.to_string(), text);
}

#[test]
fn a_file_that_is_missing_holds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kernels.lock");
    assert_eq!(Lock::read(&path).unwrap(), Lock::default());
    fs::write(&path, text(&[ADD])).unwrap();
    assert_eq!(Lock::read(&path).unwrap(), lock(&[ADD]));
}

#[test]
fn malformed_lines_are_refused_by_their_number() {
    let line = ABOUT.lines().count() + 2;
    for (fault, why) in [
        ("", "not a kernel's line"),
        ("<<<<<<< ours", "not a kernel's line"),
        ("sm_80 add_f32", "not a kernel's line"),
        ("add_f32 sm_80 HASH registers=16 shared=0", "not a kernel's line"),
        ("sm_80 add_f32 0123 registers=16 shared=0", "not a SHA-256: 0123"),
        ("sm_80 add_f32 HASH registers=16 shared", "not a name with its number"),
        ("sm_80 add_f32 HASH registers=16 shared=-1", "not a name with its number"),
        ("sm_80 add_f32 HASH registers=16 shared=0 =1", "not a name with its number"),
        ("sm_80 add_f32 HASH shared=0 registers=16", "no registers"),
    ] {
        let error = error(&text(&[fault, GEMV]));
        assert!(error.starts_with(&format!("line {line}: ")) && error.contains(why), "{error}");
    }
}

#[test]
fn lines_out_of_their_order_are_refused() {
    for lines in [&[GEMV, ADD][..], &[ADD, ADD, GEMV]] {
        let error = error(&text(lines));
        assert!(error.contains("add_f32 sm_80 is there twice, or not in its place"), "{error}");
    }
}

#[test]
fn a_file_that_was_cut_or_edited_is_refused() {
    let whole = text(&[ADD, GEMV]);
    for (edited, why) in [
        (whole[..whole.len() - 1].to_owned(), "not as `cargo xtask ptxas --bless` writes it"),
        (whole.replace("=16 ", "=+16 "), "not as `cargo xtask ptxas --bless` writes it"),
        (whole.replace("# What", "# Which"), "not the first lines of a lock file"),
        (ABOUT.to_owned(), "no line with the tools and rules"),
        (String::new(), "not the first lines of a lock file"),
    ] {
        assert!(error(&edited).contains(why), "{}", error(&edited));
    }
}

#[test]
fn a_kernel_is_held_by_its_hash_its_expected_instructions_and_the_checks() {
    let kernel = Kernel::new("sm_90a", "gemv_f16", ".entry gemv_f16".to_owned());
    let lines = |counts: &str| {
        text(&[&format!("sm_90a gemv_f16 {} registers=40 shared=0 {counts}", kernel.hash)])
    };
    let holds = |text: &str, checks| Lock::parse(text).unwrap().holds(&kernel, checks);
    let right = lines("f16=3 LDG.E.NA=16");
    assert!(holds(&right, "checks ptxas=1 rules=2"));
    assert!(!holds(&right, "checks ptxas=1 rules=3"));
    assert!(!holds(&right.replace(&kernel.hash, HASH), "checks ptxas=1 rules=2"));
    assert!(!holds(&right.replace("gemv_f16", "gemv_bf16"), "checks ptxas=1 rules=2"));
    // The table has had another row for this kernel.
    for counts in ["f16=3", "f16=3 HMMA=16", "f16=3 HMMA=1 LDG.E.NA=16"] {
        assert!(!holds(&lines(counts), "checks ptxas=1 rules=2"), "{counts}");
    }
}

#[test]
fn differences_name_what_changed() {
    let old = lock(&[ADD, GEMV]);
    assert!(old.differences(&old).is_empty());
    let spilled = GEMV.replace("=40", "=48").replace("f16=3", "f32=5");
    let other_hash = ADD.replace("HASH", &HASH.replace('0', "f"));
    for (lines, want) in [
        (&[ADD][..], "gemv_f16 sm_90a: no such kernel any more"),
        (&[ADD, &spilled], "gemv_f16 sm_90a: registers 40 -> 48, f32 5, f16 3 -> none"),
        (&[ADD, "sm_80 b HASH registers=1 shared=0", GEMV], "b sm_80: new, registers 1, shared 0"),
    ] {
        assert_eq!(old.differences(&lock(lines)), [want]);
    }
    let other_ptx = lock(&[&other_hash, GEMV]);
    assert!(old.differences(&other_ptx).is_empty());
    assert_eq!((old.num_other_ptx(&other_ptx), old.num_other_ptx(&old)), (1, 0));
    let other_checks = Lock { checks: "checks ptxas=2".to_owned(), ..old.clone() };
    let want = "checks ptxas=1 rules=2 -> checks ptxas=2";
    assert_eq!(old.differences(&other_checks), [want]);
}
