//! Kernels and launches that must not compile.

#[test]
fn wrong_launches_and_kernels_do_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/launch_types/right*.rs");
    cases.compile_fail("tests/launch_types/wrong_*.rs");
}
