//! What a GPU's own counters say of a step's traffic: NVIDIA Nsight Compute runs this program
//! again, for one step, and the kernels that it saw are those of the step's operations, in order.

use crate::cli::failure::Failure;
use halfwarp::profile::{OpProfile, Traffic};
use std::io::Read;
use std::process::{Command, Stdio};
use std::{env, io};

const NCU: &str = "ncu";
const METRICS: [&str; 2] = ["dram__bytes_read.sum", "dram__bytes_write.sum"];

/// Whether ncu is there.
///
/// # Errors
/// [`Failure::Environment`] if it is not.
pub fn check() -> Result<(), Failure> {
    match Command::new(NCU).arg("--version").stdout(Stdio::null()).status() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Failure::Environment(format!(
                "--counters: {NCU} is not in the PATH\ninstall NVIDIA Nsight Compute, or leave --counters out"
            )))
        }
        _ => Ok(()),
    }
}

/// Reads the counters of a step into `ops`: `collect` is the argument that makes this program run
/// that step alone and print how many kernels each operation has.
///
/// # Errors
/// [`Failure::Environment`] if ncu is not there, cannot read the counters, or saw other kernels.
pub fn read(collect: &str, ops: &mut [OpProfile]) -> Result<(), Failure> {
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::Environment(format!("--counters: cannot run {NCU}: {error}"))
    };
    let log = tempfile::NamedTempFile::new().map_err(|error| cannot(&error))?;
    let program = env::current_exe().map_err(|error| cannot(&error))?;
    let output = Command::new(NCU)
        .args(["--csv", "--page", "raw", "--print-units", "base", "--metrics", &METRICS.join(",")])
        // Every kernel starts with empty caches, at the clocks that it would have.
        .args(["--cache-control", "all", "--clock-control", "none"])
        .args(["--profile-from-start", "off", "--log-file"])
        .arg(log.path())
        .arg(program)
        .args(env::args_os().skip(1))
        .args(["--collect", collect])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| cannot(&error))?;
    let mut table = String::new();
    log.reopen()
        .and_then(|mut log| log.read_to_string(&mut table))
        .map_err(|error| cannot(&error))?;
    if !output.status.success() {
        let why = table.lines().find(|line| line.contains("ERR")).unwrap_or("it failed");
        return Err(cannot(&why));
    }
    let num_kernels: Vec<usize> =
        serde_json::from_slice(&output.stdout).map_err(|error| cannot(&error))?;
    let kernels = parse(&table).map_err(|why| cannot(&why))?;
    assign(ops, &num_kernels, &kernels).map_err(|why| cannot(&why))
}

/// The traffic of each kernel in a table of ncu, in order.
fn parse(table: &str) -> Result<Vec<Traffic>, String> {
    // Messages of ncu's come before the header.
    let start = table.find("\"ID\"").ok_or("it wrote no table of kernels")?;
    let mut reader = csv::Reader::from_reader(&table.as_bytes()[start..]);
    let header = reader.headers().map_err(|error| error.to_string())?.clone();
    let column = |name: &str| {
        let found = header.iter().position(|column| column == name);
        found.ok_or_else(|| format!("its table has no {name}"))
    };
    let (id, [read, written]) = (column("ID")?, [column(METRICS[0])?, column(METRICS[1])?]);
    let mut kernels = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        // A row of units follows the header.
        if record.get(id).is_none_or(str::is_empty) {
            continue;
        }
        let bytes = |column: usize| {
            let value = record.get(column).unwrap_or_default().replace(',', "");
            let bytes =
                value.parse::<f64>().map_err(|_| format!("`{value}` is no number of bytes"))?;
            Ok::<_, String>(bytes.round() as usize)
        };
        kernels.push(Traffic { read_bytes: bytes(read)?, written_bytes: bytes(written)? });
    }
    Ok(kernels)
}

/// Gives each operation the traffic of its kernels.
fn assign(ops: &mut [OpProfile], num_kernels: &[usize], kernels: &[Traffic]) -> Result<(), String> {
    let expected: usize = num_kernels.iter().sum();
    if expected != kernels.len() || num_kernels.len() != ops.len() {
        return Err(format!("it saw {} kernels, the step has {expected}", kernels.len()));
    }
    let mut rest = kernels;
    for (op, &count) in ops.iter_mut().zip(num_kernels) {
        let (of_op, others) = rest.split_at(count);
        op.counted = Some(Traffic {
            read_bytes: of_op.iter().map(|kernel| kernel.read_bytes).sum(),
            written_bytes: of_op.iter().map(|kernel| kernel.written_bytes).sum(),
        });
        rest = others;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
==PROF== Connected to process 4242
\"ID\",\"Process ID\",\"Kernel Name\",\"dram__bytes_read.sum\",\"dram__bytes_write.sum\"
\"\",\"\",\"\",\"byte\",\"byte\"
\"0\",\"4242\",\"gather_rows(unsigned, int)\",\"1,152\",\"0\"
\"1\",\"4242\",\"gemv\",\"67,108,864.00\",\"512\"
\"2\",\"4242\",\"combine\",\"4,096\",\"2,048\"
";

    fn ops(count: usize) -> Vec<OpProfile> {
        let op = OpProfile {
            index: 0,
            op: "linear",
            subject: "x".to_owned(),
            layer: None,
            us: 1.0,
            spread_us: 0.0,
            read_bytes: 0,
            written_bytes: 0,
            flops: 0,
            counted: None,
        };
        vec![op; count]
    }

    #[test]
    fn an_operation_has_the_traffic_of_its_kernels() {
        let kernels = parse(TABLE).unwrap();
        let mut ops = ops(3);
        assign(&mut ops, &[1, 0, 2], &kernels).unwrap();
        let traffic = |read_bytes, written_bytes| Some(Traffic { read_bytes, written_bytes });
        let counted: Vec<_> = ops.iter().map(|op| op.counted).collect();
        assert_eq!(counted, [traffic(1152, 0), traffic(0, 0), traffic(67_108_864 + 4096, 2560)]);
    }

    #[test]
    fn a_table_of_something_else_is_refused() {
        let kernels = parse(TABLE).unwrap();
        let error = assign(&mut ops(2), &[1, 1], &kernels).unwrap_err();
        assert_eq!(error, "it saw 3 kernels, the step has 2");
        assert!(parse("==ERROR== ERR_NVGPUCTRPERM").unwrap_err().contains("no table"));
        let error = parse(&TABLE.replace("dram__bytes_read.sum", "other")).unwrap_err();
        assert!(error.contains("no dram__bytes_read.sum"), "{error}");
        assert!(parse(&TABLE.replace("1,152", "n/a")).unwrap_err().contains("`n/a`"));
    }
}
