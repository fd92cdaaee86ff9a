//! What needs NVIDIA's disassembler, and the assembler of the release that `cargo xtask ptxas`
//! fetches: ignored by name where they are not.

use libtest_mimic::{Arguments, Failed, Trial};
use machine_code::{Mix, ToolError, Tools, faults, planted};

const SPILL: &str = include_str!("../src/planted/spill.ptx");
const SERIALISED: &str = include_str!("../src/planted/serialised.ptx");

/// The release whose spills and instructions are recorded.
const RELEASE: &str = "13.0.88";

fn main() {
    let cache = model_cache::cache_dir().ok();
    let tools = Tools::find(cache.as_deref()).expect("HALFWARP_PTXAS names a program");
    let is_recorded = |tools: &Tools| tools.release().as_deref() == Some(RELEASE);
    let tools = tools.filter(|tools| tools.nvdisasm.is_some() && is_recorded(tools));
    let trial = |name, test: fn(&Tools) -> Result<(), Failed>| {
        let (found, is_missing) = (tools.clone(), tools.is_none());
        let run = move || test(&found.ok_or("needs ptxas 13.0.88 and nvdisasm")?);
        Trial::test(name, run).with_ignored_flag(is_missing)
    };
    let trials = vec![
        trial("planted_faults_are_found", |tools| Ok(planted::check(tools)?)),
        trial("resources_and_mix_are_those_of_the_fixtures", resources_and_mix),
        trial("without_nvdisasm_the_report_is_judged", without_nvdisasm),
        trial("a_text_that_is_no_ptx_is_refused", refused),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn resources_and_mix(tools: &Tools) -> Result<(), Failed> {
    let spill = tools.assemble(SPILL, "sm_90a")?.resources().ok_or("no resources")?;
    assert!(spill.registers == 24 && spill.spill_store_bytes > 0 && spill.stack_bytes > 0);
    let recorded = Mix::from_machine_code(include_str!("fixtures/serialised.sass"));
    assert_eq!(tools.assemble(SERIALISED, "sm_90a")?.mix(), Some(recorded));
    Ok(())
}

fn without_nvdisasm(tools: &Tools) -> Result<(), Failed> {
    let ptxas = Tools { nvdisasm: None, ..tools.clone() };
    let assembled = ptxas.assemble(SERIALISED, "sm_90a")?;
    assert_eq!(assembled.mix(), None);
    let found = faults("gemm_sm80_planted", SERIALISED, Some(&assembled));
    assert!(found.len() == 1 && found[0].contains("(C7517)"), "{found:?}");
    Ok(())
}

fn refused(tools: &Tools) -> Result<(), Failed> {
    let ptx =
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() {\n nonsense;\n}\n";
    let error = tools.assemble(ptx, "sm_90a").err();
    let Some(ToolError::Failed { why, .. }) = error else { panic!("{error:?}") };
    assert!(why.contains("line 5") && why.contains("nonsense"), "{why}");
    Ok(())
}
