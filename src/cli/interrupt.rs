//! Ctrl-C in the middle of a command that makes something: what is unfinished goes, and the process ends.
//!
//! Must not know what is being made.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
    low_level,
};

use super::Failure;

static ENDING: AtomicBool = AtomicBool::new(false);

/// At SIGINT and SIGTERM from now on, removes the file or directory at `path` and ends the process.
///
/// # Errors
/// Signals cannot be received.
pub fn removes(path: &Path) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::failed)?;
    let path = path.to_owned();
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            ENDING.store(true, Ordering::SeqCst);
            remove(&path);
            // Threads that still write are not waited for, nor is what they use taken down under them.
            low_level::exit(INTERRUPTED);
        }
    });
    Ok(())
}

/// Never returns once the process ends: what fails because its files are gone is not told.
pub fn wait_if_ending() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// First out of the way of those who still write into it. What they made meanwhile, here or there, goes too.
fn remove(path: &Path) {
    let mut gone = OsString::from(path);
    gone.push(".interrupted");
    let gone = PathBuf::from(gone);
    let mut is_gone = 0;
    for _ in 0..REMOVE_ATTEMPTS {
        // Fails where nothing is there, or something of it is still being removed.
        let _ = fs::rename(path, &gone);
        let _ = fs::remove_file(&gone).or_else(|_| fs::remove_dir_all(&gone));
        is_gone = if path.exists() || gone.exists() { 0 } else { is_gone + 1 };
        if is_gone == REMOVED {
            return;
        }
        std::thread::yield_now();
    }
}

/// A directory may be made once more by who was just about to write into it.
const REMOVE_ATTEMPTS: u32 = 1000;
/// It is gone if it was not there so often, one time after another.
const REMOVED: u32 = 10;
/// As a shell says it of what SIGINT has ended.
const INTERRUPTED: i32 = 130;
