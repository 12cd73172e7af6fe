//! Directories that survive a power cut.
//!
//! Must not know what is kept in them.

use std::{
    fs::{DirBuilder, File},
    io::{self, ErrorKind},
    os::unix::fs::DirBuilderExt,
    path::Path,
};

/// Makes `path`, and what it stands in, for this user alone, where it is not there. What is made is on the disk when this returns: files that
/// are synced in a directory whose own entry is not would be lost with it.
///
/// # Errors
/// Those of the file system.
pub fn make_dir(path: &Path) -> io::Result<()> {
    // Of a relative path the last parent is empty.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    if path.is_dir() {
        // It may have been made by a process that was killed before it was on the disk. Who may not read the parent has not made it.
        return match File::open(parent) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
            opened => opened?.sync_all(),
        };
    }
    make_dir(parent)?;
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made?,
    }
    File::open(parent)?.sync_all()
}
