//! The class of a PTX instruction.

use super::Class;

/// The class of `opcode`, modifiers included: `ld.global.v4.b32`.
pub fn class(opcode: &str) -> Class {
    let parts: Vec<&str> = opcode.split('.').collect();
    let has = |part: &str| parts.contains(&part);
    match parts[0] {
        "mma" => Class::Tensor,
        "wgmma" if has("mma_async") => Class::Tensor,
        "wgmma" | "bar" | "barrier" | "mbarrier" | "fence" | "membar" => Class::Barrier,
        "cp" if ["commit_group", "wait_group", "wait_all", "mbarrier", "arrive"]
            .iter()
            .any(|wait| has(wait)) =>
        {
            Class::Barrier
        }
        "cp" if has("async") => Class::AsyncCopy,
        "st" if has("async") => Class::AsyncCopy,
        "ldmatrix" => Class::SharedLoad,
        "stmatrix" => Class::SharedStore,
        "ld" | "ldu" => load(&parts),
        "st" | "atom" | "red" => store(&parts),
        "bra" | "brx" | "ret" | "exit" | "call" | "trap" | "nanosleep" | "griddepcontrol"
        | "setmaxnreg" => Class::Control,
        name if ARITHMETIC.contains(&name) => number(&parts),
        name if INTEGER.contains(&name) && !has("pred") => Class::Integer,
        _ => Class::Other,
    }
}

/// Instructions of integers and of floats: the type is the last part that names one.
const ARITHMETIC: &[&str] = &[
    "add", "sub", "mul", "mad", "fma", "div", "rem", "abs", "neg", "min", "max", "sqrt", "rsqrt",
    "rcp", "sin", "cos", "lg2", "ex2", "tanh", "setp", "set", "copysign", "slct", "addc", "subc",
    "madc",
];

/// Instructions of integers and bits alone; of predicates they are none of these.
const INTEGER: &[&str] = &[
    "and", "or", "xor", "not", "cnot", "lop3", "shl", "shr", "shf", "bfe", "bfi", "bfind", "brev",
    "popc", "clz", "bmsk", "szext", "fns", "dp4a", "dp2a", "sad", "mul24", "mad24",
];

fn load(parts: &[&str]) -> Class {
    match space(parts) {
        "param" | "const" => Class::Other,
        "shared" => Class::SharedLoad,
        "local" => Class::LocalLoad,
        _ => Class::GlobalLoad,
    }
}

fn store(parts: &[&str]) -> Class {
    match space(parts) {
        "param" => Class::Other,
        "shared" => Class::SharedStore,
        "local" => Class::LocalStore,
        _ => Class::GlobalStore,
    }
}

/// The state space; a generic address has none.
fn space<'a>(parts: &[&'a str]) -> &'a str {
    let spaces = ["param", "const", "shared", "local", "global"];
    let names = parts.iter().map(|part| part.split("::").next().unwrap_or_default());
    names.into_iter().find(|name| spaces.contains(name)).unwrap_or_default()
}

fn number(parts: &[&str]) -> Class {
    for part in parts.iter().rev() {
        match *part {
            "f32" => return Class::F32,
            "f16" | "f16x2" | "bf16" | "bf16x2" => return Class::F16,
            "f64" => return Class::Other,
            _ => {}
        }
    }
    Class::Integer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_have_the_class_of_what_they_do() {
        for (opcode, want) in [
            ("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16", Class::Tensor),
            ("wgmma.wait_group.sync.aligned", Class::Barrier),
            ("cp.async.cg.shared.global", Class::AsyncCopy),
            ("cp.async.commit_group", Class::Barrier),
            ("cp.async.mbarrier.arrive.noinc.shared.b64", Class::Barrier),
            ("cp.async.bulk.wait_group.read", Class::Barrier),
            (
                "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes",
                Class::AsyncCopy,
            ),
            (
                "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
                Class::AsyncCopy,
            ),
            (
                "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group",
                Class::AsyncCopy,
            ),
            ("ld.param.b64", Class::Other),
            ("ld.global.L1::no_allocate.v4.b32", Class::GlobalLoad),
            ("ld.b32", Class::GlobalLoad),
            ("ld.shared::cluster.b32", Class::SharedLoad),
            ("st.local.v2.b32", Class::LocalStore),
            ("atom.global.add.u32", Class::GlobalStore),
            ("fma.rn.f32", Class::F32),
            ("fma.rn.bf16x2", Class::F16),
            ("fma.rn.f64", Class::Other),
            ("mad.wide.u32", Class::Integer),
            ("setp.lt.f32", Class::F32),
            ("and.pred", Class::Other),
            ("and.b32", Class::Integer),
            ("cvt.rn.f16x2.f32", Class::Other),
            ("bra.uni", Class::Control),
        ] {
            assert_eq!(class(opcode), want, "{opcode}");
        }
    }
}
