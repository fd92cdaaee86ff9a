//! `halfwarp ptx stats`, `dump`, `diff` and `check`, without tools and with programs that answer as
//! the tools do.

use crate::support::{halfwarp, stderr, stdout};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};
use tempfile::TempDir;

/// The binary on a machine without ptxas and without a GPU.
fn bare(args: &[&str]) -> Command {
    let mut command = halfwarp(args);
    command.env("HALFWARP_PTXAS", "").env("HALFWARP_NVDISASM", "");
    command.env("CUDA_VISIBLE_DEVICES", "");
    command
}

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Programs in place of the tools: what they print does not depend on what they read.
#[cfg(unix)]
struct Tools(TempDir);

#[cfg(unix)]
impl Tools {
    const REPORT: &str = "ptxas info    : Function properties for k\n    \
        0 bytes stack frame, SPILLS bytes spill stores, SPILLS bytes spill loads\n\
        ptxas info    : Used 65 registers, used 1 barriers, 64 bytes smem\n";

    const CODE: &str = "        /*0000*/                   FADD R1, R2, R3 ;\n        \
        /*0010*/             @!P0  LDG.E.128 R4, desc[UR4][R2.64] ;\n        \
        /*0020*/                   EXIT ;\n        /*0030*/                   NOP;\n";

    fn new(spill_bytes: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let report = Self::REPORT.replace("SPILLS", &spill_bytes.to_string());
        let to = |name: &str| if name == "ptxas" { ">&2" } else { "" };
        for (name, text) in [("ptxas", &*report), ("nvdisasm", Self::CODE)] {
            use std::os::unix::fs::PermissionsExt;
            let path = dir.path().join(name);
            let script = format!("#!/bin/sh\ncat {} <<'EOF'\n{text}EOF\n", to(name));
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Tools(dir)
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = halfwarp(args);
        for (variable, name) in [("HALFWARP_PTXAS", "ptxas"), ("HALFWARP_NVDISASM", "nvdisasm")] {
            command.env(variable, self.0.path().join(name));
        }
        command.output().unwrap()
    }
}

#[test]
fn stats_need_no_tools() {
    let output =
        bare(&["ptx", "stats", "sample_maximum", "gemm_f32_64x64", "--jsonl"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("HALFWARP_PTXAS"), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1);
    let rows: Vec<Value> =
        printed(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = rows.iter().map(|row| row["kernel"].as_str().unwrap()).collect();
    assert_eq!(names, ["gemm_f32_64x64", "gemm_f32_64x64_unaligned", "sample_maximum_f32"]);
    for row in &rows {
        assert_eq!(row["instructions_of"], "ptx");
        assert_eq!(row["registers"], Value::Null);
        assert!(row["instructions"].as_u64() > Some(100));
    }
    assert!(rows[0]["async_copy"].as_u64() > Some(0) && rows[0]["f32"].as_u64() > Some(100));
    // Four stages of 64 + 64 rows of 16 words.
    assert_eq!(rows[0]["dynamic_shared_bytes"], 4 * 128 * 16 * 4);
    let table = bare(&["ptx", "stats", "sample_maximum"]).output().unwrap();
    assert!(printed(&table).lines().count() == 4, "{}", printed(&table));
}

#[test]
#[cfg(unix)]
fn stats_are_what_the_tools_say() {
    let output = Tools::new(8).run(&["ptx", "stats", "sample_maximum", "gemv_f16?norm", "--csv"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let text = printed(&output);
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let cell = |row: usize, name: &str| {
        rows[row][rows[0].iter().position(|head| *head == name).expect(name)]
    };
    assert_eq!([cell(1, "kernel"), cell(2, "kernel")], ["gemv_f16_norm", "sample_maximum_f32"]);
    for (name, gemv, maximum) in [
        ("registers", "65", "65"),
        ("static_shared_bytes", "64", "64"),
        ("dynamic_shared_bytes", "", "0"),
        ("spill_load_bytes", "8", "8"),
        // 2,304 registers a warp: 28 warps, of 1,024 threads no block, of 160 threads five.
        ("blocks_per_sm", "5", "0"),
        ("occupancy_is_upper_bound", "true", "false"),
        ("limit", "registers", "registers"),
        ("instructions_of", "machine_code", "machine_code"),
        ("instructions", "3", "3"),
        ("f32", "1", "1"),
        ("global_load", "1", "1"),
    ] {
        assert_eq!([cell(1, name), cell(2, name)], [gemv, maximum], "{name}");
    }
    // 32,768 bytes of tiles, 64 more and 1,024 of the system are 33,920 in units of 128: six
    // of 228 KiB.
    let tiled = printed(&Tools::new(0).run(&["ptx", "stats", "gemm_f32_64x64_unaligned", "--csv"]));
    assert!(tiled.contains(",65,64,32768,0,0,0,6,24,37.5,false,shared,machine_code,"), "{tiled}");
    let table = printed(&Tools::new(0).run(&["ptx", "stats", "gemv_f16_norm"]));
    assert!(table.contains("H100") && table.contains("<=39%"), "{table}");
}

#[test]
fn check_without_tools_says_what_was_not_checked() {
    let output = bare(&["ptx", "check", "--family", "sampling"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report = printed(&output);
    for part in ["not checked assembler", "not checked machine code", "HALFWARP_PTXAS"] {
        assert!(report.contains(part), "{report}");
    }
    assert!(report.ends_with("0 of 6 kernels for sm_80 and sm_90a break a rule\n"), "{report}");
}

#[test]
#[cfg(unix)]
fn check_finds_spills_and_missing_instructions() {
    let args = ["ptx", "check", "gemv_f16", "--target", "sm_90a"];
    let output = Tools::new(8).run(&args);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let report = printed(&output);
    assert!(report.contains("gemv_f16 sm_90a: k: 0 bytes stack frame, 8 bytes spill"), "{report}");
    assert!(report.contains("gemv_f16 sm_90a: no LDG.E.NA in the machine code"), "{report}");
    assert!(report.ends_with("9 of 9 kernels for sm_90a break a rule\n"), "{report}");
    let maximum = Tools::new(0).run(&["ptx", "check", "sample_maximum"]);
    assert!(maximum.status.success(), "{}", printed(&maximum));
}

#[test]
#[cfg(unix)]
fn a_text_that_ptxas_refuses_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| {
        build(&dir.path().join(name), [("a", &format!("\t{name};\n")), ("b", "\tret;\n")])
    });
    let refused = |args: &[&str], code: i32| {
        let output = halfwarp(args).env("HALFWARP_PTXAS", "/bin/false").output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).ends_with("/bin/false\n"), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 2);
        assert!(output.stdout.is_empty());
        stderr(&output)
    };
    assert!(refused(&["ptx", "diff", &old, &new], 2).contains("sm_90a/a.ptx"));
    refused(&["ptx", "stats", "sample_maximum"], 1);
    refused(&["ptx", "check", "sample_maximum"], 1);
}

/// A build of two kernels.
fn build(dir: &Path, kernels: [(&str, &str); 2]) -> String {
    let target = dir.join("sm_90a");
    fs::create_dir_all(&target).unwrap();
    for (symbol, body) in kernels {
        let text = format!(".visible .entry {symbol}() {{\n{body}\tret;\n}}\n");
        fs::write(target.join(format!("{symbol}.ptx")), text).unwrap();
    }
    dir.to_str().unwrap().to_owned()
}

#[test]
fn diff_names_what_was_added_removed_and_changed() {
    let dir = tempfile::tempdir().unwrap();
    let add = "\tadd.s32 \t%r1, %r2, %r3;\n";
    let old = build(&dir.path().join("old"), [("a", add), ("b", add)]);
    let same =
        build(&dir.path().join("same"), [("a", "\tadd.s32 %r1, %r2, %r3; // sum\n"), ("b", add)]);
    let new =
        build(&dir.path().join("new"), [("a", "\tfma.rn.f32 %f1, %f2, %f3, %f4;\n"), ("c", add)]);

    let output = bare(&["ptx", "diff", &old, &same]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(printed(&output), "2 kernels: 0 removed, 0 added, 0 changed\n");

    let output = bare(&["ptx", "diff", &old, &new]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "");
    assert_eq!(
        printed(&output),
        "removed  sm_90a b\nadded    sm_90a c\n\
         changed  sm_90a a: PTX instructions 2 -> 2 (f32 +1, integer -1)\n\
         3 kernels: 1 removed, 1 added, 1 changed\n"
    );
}

#[test]
fn a_dump_is_this_program() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump");
    let path = path.to_str().unwrap();
    stdout(&["ptx", "dump", path]);
    let output = bare(&["ptx", "diff", path]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    fs::remove_file(dir.path().join("dump/sm_80/sample_maximum_f32.ptx")).unwrap();
    let output = bare(&["ptx", "diff", path]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        printed(&output).starts_with("added    sm_80 sample_maximum_f32\n"),
        "{}",
        printed(&output)
    );
}
