//! Ctrl-C in the middle of a command that makes something: what is unfinished goes, and the command ends.
//!
//! Must not know what is being made.

use std::{
    fs,
    path::{Path, PathBuf},
    process::exit,
};

use tokio::signal::unix::{SignalKind, signal};

use super::Failure;

/// At SIGINT and SIGTERM from now on, removes the file or directory at `path` and ends the process.
///
/// # Errors
/// Signals cannot be received.
pub fn removes(path: &Path) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        let interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
        (interrupt, signal(SignalKind::terminate()).map_err(Failure::failed)?)
    };
    let path: PathBuf = path.to_owned();
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        // Its makers still run, and may add to it: again, and at the worst the next attempt removes it.
        for _ in 0..REMOVE_ATTEMPTS {
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
            if !path.exists() {
                break;
            }
        }
        exit(INTERRUPTED);
    });
    Ok(())
}

const REMOVE_ATTEMPTS: u32 = 10;
/// As a shell says it of what SIGINT has ended.
const INTERRUPTED: i32 = 130;
