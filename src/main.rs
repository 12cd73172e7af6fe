//! The program: parses the command line, runs it, sets the exit code. Must not know what a command does.

use std::process::ExitCode;

use clap::Parser;
use pinnace::cli::Cli;

/// Messages are made on one thread and freed on another, where the system's allocator is slow.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // The only provider of the program; an error means that it is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    cli.run()
}
