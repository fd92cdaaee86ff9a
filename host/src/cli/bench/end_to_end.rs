//! `halfwarp bench` of a model.

use super::{
    baseline,
    output::{Format, Printer},
};
use crate::cli::{failure::Failure, model::EngineArgs};
use halfwarp::{
    Engine, EngineError, Model, Precision,
    bench::{
        end_to_end::{self, Config, EndToEndError, Test},
        record::Record,
    },
    plan::PAGE_SIZE,
};
use std::{num::NonZeroUsize, path::PathBuf, sync::Arc};

/// Contexts are rounded up to so many positions: tests of about one length share an engine, and
/// what else is asked for changes no row.
const CONTEXT_STEP: usize = 512;

/// Arguments of `halfwarp bench` for a model.
#[derive(clap::Args)]
pub struct EndToEndArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// Tokens of a prompt, or several with commas between them; 0 times no prompt
    #[arg(short = 'p', long, value_name = "P", value_delimiter = ',', help_heading = "Tests")]
    n_prompt: Vec<usize>,
    /// Tokens to generate; 0 times no generation
    #[arg(short, long, value_name = "N", value_delimiter = ',', help_heading = "Tests")]
    n_gen: Vec<usize>,
    /// Tokens of a prompt and tokens to generate after it; repeat it for more
    #[arg(long, value_name = "P,N", value_parser = prompt_and_gen, help_heading = "Tests")]
    pg: Vec<(usize, usize)>,
    /// Tokens in the cache before: a multiple of 64, as pages of it are reused as a whole
    #[arg(
        short = 'd',
        long,
        value_name = "D",
        value_delimiter = ',',
        default_value = "0",
        value_parser = depth,
        help_heading = "Tests"
    )]
    n_depth: Vec<usize>,
    /// Sequences that run at once
    #[arg(
        long,
        value_name = "S",
        value_delimiter = ',',
        default_value = "1",
        help_heading = "Tests"
    )]
    sequences: Vec<NonZeroUsize>,
    /// Repetitions to time, after one that is not counted
    #[arg(short, long, value_name = "R", default_value = "5", help_heading = "Tests")]
    repetitions: NonZeroUsize,
    /// How rows are printed
    #[arg(short, long, value_enum, default_value_t = Format::Md, help_heading = "Output")]
    output: Format,
    /// Rows that an earlier -o jsonl wrote: print each test's time over theirs, and exit with 1 if
    /// one is slower by more than 2 % and twice the standard deviation of the difference
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, help_heading = "Output")]
    baseline: Option<PathBuf>,
}

/// A value of `-d`.
fn depth(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n_depth) if n_depth.is_multiple_of(PAGE_SIZE) => Ok(n_depth),
        Ok(_) => Err(format!("expected a multiple of {PAGE_SIZE}, the positions of a page")),
        Err(error) => Err(error.to_string()),
    }
}

/// The value of `--pg`.
fn prompt_and_gen(text: &str) -> Result<(usize, usize), &'static str> {
    let (n_prompt, n_gen) = text.split_once(',').ok_or(EXPECTED)?;
    match (n_prompt.parse(), n_gen.parse()) {
        (Ok(n_prompt), Ok(n_gen)) if n_prompt > 0 && n_gen > 0 => Ok((n_prompt, n_gen)),
        _ => Err(EXPECTED),
    }
}

/// What [`prompt_and_gen`] takes.
const EXPECTED: &str = "expected two numbers above 0, such as 512,128";

/// Times every test, and prints its row at once where the format allows.
pub fn run(args: &EndToEndArgs) -> Result<(), Failure> {
    let baseline = args.baseline.as_deref().map(baseline::read).transpose()?;
    let name = args.engine.model_name()?;
    let model = args.engine.open_model()?;
    let tests = args.tests()?;
    let contexts =
        tests.iter().map(|test| args.context(&model, test)).collect::<Result<Vec<_>, Failure>>()?;
    let mut printer = Printer::new(args.output, &tests);
    let mut records = Vec::new();
    let mut loaded: Option<((usize, usize), Engine, Config)> = None;
    let sizes: Vec<(usize, usize)> =
        tests.iter().zip(contexts).map(|(test, context)| (context, test.sequences)).collect();
    let positions = args.cache_positions(&tests, &sizes);
    for ((test, size), positions) in tests.into_iter().zip(sizes).zip(positions) {
        // The memory of the last engine is free before the next is loaded.
        let (_, engine, config) = match loaded.take_if(|(loaded, ..)| *loaded == size) {
            Some(same) => loaded.insert(same),
            None => {
                drop(loaded.take());
                let engine = args.engine.engine_with_cache(&model, size, positions)?;
                let config = args.config(&name, &model, &engine)?;
                loaded.insert((size, engine, config))
            }
        };
        let repetitions = args.repetitions.get();
        let row = end_to_end::measure(engine, config.clone(), test, repetitions);
        let row = row.map_err(failure)?;
        records.extend(Record::of(&row));
        printer.print(row)?;
    }
    printer.finish()?;
    match baseline {
        Some(baseline) => baseline::report(&records, &baseline),
        None => Ok(()),
    }
}

impl EndToEndArgs {
    /// Every combination, in llama-bench's order: of the lengths that are given, where a 0 stands for none.
    fn tests(&self) -> Result<Vec<Test>, Failure> {
        let is_given = |counts: &[usize]| counts.iter().any(|&count| count > 0);
        let (prompts, gens) = match (is_given(&self.n_prompt), is_given(&self.n_gen)) {
            (false, false) if self.pg.is_empty() => {
                let or_default = |counts: &[usize], default| match counts.is_empty() {
                    true => vec![default],
                    false => Vec::new(),
                };
                (or_default(&self.n_prompt, 512), or_default(&self.n_gen, 128))
            }
            _ => (self.n_prompt.clone(), self.n_gen.clone()),
        };
        let prompts = prompts.into_iter().map(|n_prompt| (n_prompt, 0));
        let gens = gens.into_iter().map(|n_gen| (0, n_gen));
        let sizes = prompts.chain(gens).chain(self.pg.iter().copied());
        let sizes: Vec<(usize, usize)> = sizes.filter(|&size| size != (0, 0)).collect();
        if sizes.is_empty() {
            let what = "-p 0 -n 0: there is nothing to time\ngive a number above 0 to one of them";
            return Err(Failure::Input(what.to_owned()));
        }
        let mut tests = Vec::new();
        for sequences in self.sequences.iter().map(|n| n.get()) {
            for &n_depth in &self.n_depth {
                let test = |&(n_prompt, n_gen)| Test { n_prompt, n_gen, n_depth, sequences };
                tests.extend(sizes.iter().map(test));
            }
        }
        Ok(tests)
    }

    /// Positions of the cache of each test's engine: those that the tests of its size fill, in
    /// whole pages; `None` for full contexts, if these are given.
    fn cache_positions(&self, tests: &[Test], sizes: &[(usize, usize)]) -> Vec<Option<usize>> {
        let filled = |test: &Test| {
            let of_one = test.context().div_ceil(PAGE_SIZE).saturating_mul(PAGE_SIZE);
            test.sequences.saturating_mul(of_one)
        };
        let of_size = |size: &(usize, usize)| {
            let alike = tests.iter().zip(sizes).filter(|(_, other)| *other == size);
            alike.map(|(test, _)| filled(test)).max().filter(|_| self.engine.context.is_none())
        };
        sizes.iter().map(of_size).collect()
    }

    /// Positions of the sequences of an engine for `test`.
    fn context(&self, model: &Model, test: &Test) -> Result<usize, Failure> {
        let (needed, max) = (test.context(), model.config().max_position_embeddings);
        let name = test.name();
        if needed > max {
            return Err(Failure::Input(format!(
                "{name} needs a context of {needed} positions: the model allows at most {max}"
            )));
        }
        match self.engine.context {
            None => Ok(needed.next_multiple_of(CONTEXT_STEP).min(max)),
            Some(0) => Ok(max),
            Some(context) if context < needed => Err(Failure::Input(format!(
                "--ctx-size {context}: {name} needs {needed} positions\nleave it out, or choose smaller tests"
            ))),
            Some(context) => Ok(context),
        }
    }

    fn config(&self, name: &str, model: &Arc<Model>, engine: &Engine) -> Result<Config, Failure> {
        let bytes = |numerics: &_| model.weight_bytes(numerics).map_err(EngineError::from);
        Ok(Config {
            model: name.to_owned(),
            model_size_bytes: bytes(engine.numerics())?,
            n_params: bytes(&Precision::F32.into())? / size_of::<f32>(),
            device: engine.describe_device(),
            gpu: self.engine.gpu_name()?,
            dtype: self.engine.dtype_name(engine)?,
            batch_invariant: self.engine.batch_invariant,
        })
    }
}

/// How a test failed, for the command line.
pub fn failure(error: EndToEndError) -> Failure {
    match error {
        EndToEndError::Engine(error) => error.into(),
        wrong => Failure::Environment(wrong.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: EndToEndArgs,
    }

    /// Prompts and generated tokens of the tests that `words` ask for.
    fn sizes(words: &str) -> Option<Vec<(usize, usize)>> {
        let line = Line::parse_from(["bench"].into_iter().chain(words.split_whitespace()));
        let tests = line.args.tests().ok()?;
        Some(tests.iter().map(|test| (test.n_prompt, test.n_gen)).collect())
    }

    /// The cache of an engine is that of the largest of its tests.
    #[test]
    fn a_cache_has_the_pages_that_are_filled() {
        let line = Line::parse_from(["bench", "-p", "512", "-n", "128", "--sequences", "2,3"]);
        let tests = line.args.tests().unwrap();
        let sizes: Vec<_> = tests.iter().map(|test| (512, test.sequences)).collect();
        let positions = line.args.cache_positions(&tests, &sizes);
        assert_eq!(positions, [1024, 1024, 1536, 1536].map(Some));
        let line = Line::parse_from(["bench", "-n", "128", "-d", "512", "--sequences", "256"]);
        let tests = line.args.tests().unwrap();
        assert_eq!(line.args.cache_positions(&tests, &[(1024, 256)]), [Some(256 * 640)]);
        let line = Line::parse_from(["bench", "-n", "128", "-c", "2048"]);
        assert_eq!(line.args.cache_positions(&tests, &[(2048, 256)]), [None]);
    }

    #[test]
    fn zero_stands_for_no_test_as_in_llama_bench() {
        for (words, want) in [
            ("", Some(vec![(512, 0), (0, 128)])),
            ("-p 0", Some(vec![(0, 128)])),
            ("-n 0", Some(vec![(512, 0)])),
            ("-p 0 -n 32", Some(vec![(0, 32)])),
            ("-p 64,0,128 -n 0", Some(vec![(64, 0), (128, 0)])),
            ("-p 64", Some(vec![(64, 0)])),
            ("-p 0 -n 0 --pg 8,4", Some(vec![(8, 4)])),
            ("-p 0 -n 0", None),
        ] {
            assert_eq!(sizes(words), want, "{words}");
        }
    }
}
