//! `--baseline`.

use crate::cli::{failure::Failure, terminal};
use halfwarp::bench::record::{Record, Verdict, compare};
use std::{fmt::Display, fs, path::Path};

/// Reads the rows of an earlier run.
///
/// # Errors
/// [`Failure::Input`] if there are none.
pub fn read(path: &Path) -> Result<Vec<Record>, Failure> {
    let wrong =
        |error: &dyn Display| Failure::Input(format!("--baseline {}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
    Record::parse_lines(&text).map_err(|error| wrong(&error))
}

/// Says on stderr how `records` are beside `baseline`.
///
/// # Errors
/// [`Failure::Found`] if a row is slower, [`Failure::Input`] if none has a counterpart.
pub fn report(records: &[Record], baseline: &[Record]) -> Result<(), Failure> {
    let (mut num_compared, mut num_slower) = (0, 0);
    for (name, verdict) in compare(records, baseline) {
        num_slower += usize::from(matches!(verdict, Verdict::Slower(_)));
        num_compared += usize::from(matches!(verdict, Verdict::Same(_) | Verdict::Slower(_)));
        terminal::note(match verdict {
            Verdict::Same(ratio) => format!("{name}: {ratio:.3}x the baseline's time"),
            Verdict::Slower(ratio) => format!("{name}: {ratio:.3}x the baseline's time: slower"),
            Verdict::Other(keys) => format!("{name}: not compared, the baseline's has {keys}"),
            Verdict::New => format!("{name}: not in the baseline"),
            Verdict::Missing => format!("{name}: in the baseline alone"),
        });
    }
    match (num_compared, num_slower) {
        (0, _) => Err(Failure::Input("--baseline: no row could be compared".to_owned())),
        (_, 0) => Ok(()),
        (_, n) => {
            terminal::note(format_args!("{n} of {num_compared} rows are slower"));
            Err(Failure::Found)
        }
    }
}
