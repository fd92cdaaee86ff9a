//! `halfwarp`: large language models on NVIDIA GPUs, and on the CPU where there is none.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
