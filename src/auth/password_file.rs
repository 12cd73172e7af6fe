//! Changes to a password file, line by line, on behalf of an operator.
//!
//! Knows files; must not know how a password was asked for.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::file::{self, FileError};
use super::password::{self, Entry};
use super::password_hash::{Hash, HashingError};
use super::password_verifier::{Verifier, VerifierError, prepare};

/// A password file that is being changed. All lines but those of the changed user stay as they are, right or not.
///
/// While it is open no one else can open it, so that no change is lost.
#[derive(Debug)]
pub struct PasswordFile {
    path: PathBuf,
    /// Holds the lock.
    directory: File,
    /// Whose the file is, where it exists.
    owner: Option<(u32, u32)>,
    content: Vec<u8>,
}

/// Why a password file stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The file cannot be read.
    #[error(transparent)]
    Unreadable(#[from] FileError),
    /// There is no file, and none was to be created.
    #[error("{}: there is no such file; create it with --create", .0.display())]
    Missing(PathBuf),
    /// No line can hold that user name.
    #[error(
        "the user name is empty, longer than 65,535 bytes, begins with `#`, begins or ends with a blank, or contains `:` or a control \
         character"
    )]
    UserName,
    /// The password is empty or too long for MQTT.
    #[error("the password must have 1 to 65,535 bytes")]
    Password,
    /// SCRAM clients would send another user name.
    #[error("SCRAM clients prepare user names (RFC 4013), and none sends this one as it stands; choose another one")]
    ScramUserName,
    /// No hash could be made.
    #[error(transparent)]
    Hashing(#[from] HashingError),
    /// No verifier could be made.
    #[error(transparent)]
    Verifier(#[from] VerifierError),
    /// The file, or its directory, cannot be written.
    #[error("{}: cannot be written: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
}

impl PasswordFile {
    /// Opens the file at `path`, waiting while someone else has it open. A symbolic link stands for the file it names.
    ///
    /// # Errors
    /// It cannot be read, or does not exist while `create` is false.
    pub fn open(path: &Path, create: bool) -> Result<Self, EditError> {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let unwritable = |source| EditError::Unwritable { path: path.clone(), source };
        let directory = File::open(directory_of(&path)).map_err(unwritable)?;
        directory.lock().map_err(unwritable)?;
        let (content, owner) = match file::read(&path) {
            Ok(content) => (content, fs::metadata(&path).ok().map(|metadata| (metadata.uid(), metadata.gid()))),
            Err(fault) if fault.is_missing() && create => (Vec::new(), None),
            Err(fault) if fault.is_missing() => return Err(EditError::Missing(path)),
            Err(fault) => return Err(fault.into()),
        };
        Ok(Self { path, directory, owner, content })
    }

    /// Gives `username` this password, in place of the one that it may have: its hash, and with `scram` a verifier too. True if the user is
    /// new.
    ///
    /// # Errors
    /// The name or the password cannot be used.
    pub fn set(&mut self, username: &str, password: &[u8], scram: bool) -> Result<bool, EditError> {
        if password.is_empty() || password.len() > usize::from(u16::MAX) {
            return Err(EditError::Password);
        }
        let mut entry = format!("{username}:{}", Hash::create(password)?);
        if entry_of(entry.as_bytes(), username).is_none() {
            return Err(EditError::UserName);
        }
        if scram {
            if prepare(username.as_bytes()).as_deref() != Some(username) {
                return Err(EditError::ScramUserName);
            }
            entry = format!("{entry}:{}", Verifier::create(password)?.to_text());
        }
        let mut new = Some(entry);
        self.content =
            edited(&self.content, username, |ending| new.take().map(|entry| [entry.as_bytes(), ending].concat()));
        let Some(entry) = new else { return Ok(false) };
        if !self.content.is_empty() && !self.content.ends_with(b"\n") {
            self.content.push(b'\n');
        }
        self.content.extend_from_slice(entry.as_bytes());
        self.content.push(b'\n');
        Ok(true)
    }

    /// Whether `username` has a SCRAM verifier.
    #[must_use]
    pub fn has_verifier(&self, username: &str) -> bool {
        let lines = self.content.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&self.content);
        lines.split(|byte| *byte == b'\n').any(|line| entry_of(line, username) == Some(true))
    }

    /// Removes `username`. False if there is no such user.
    pub fn remove(&mut self, username: &str) -> bool {
        let mut found = false;
        self.content = edited(&self.content, username, |_| {
            found = true;
            None
        });
        found
    }

    /// What a broker would say against the file as it is now: other lines may have been wrong before.
    #[must_use]
    pub fn fault(&self) -> Option<FileError> {
        password::Passwords::parse(&self.content, &self.path).err()
    }

    /// Replaces the file by what it is now: at no time is there half a file, and when this returns it is on the disk. The file can
    /// be read by its owner alone (mode 0600), who stays the same.
    ///
    /// # Errors
    /// The directory or the file cannot be written. The old file then stays.
    pub fn save(self) -> Result<(), EditError> {
        self.replace().map_err(|source| EditError::Unwritable { path: self.path, source })
    }

    fn replace(&self) -> io::Result<()> {
        let mut new = tempfile::Builder::new().prefix(".passwd-").tempfile_in(directory_of(&self.path))?; // mode 0600
        new.write_all(&self.content)?;
        if let Some((user, group)) = self.owner {
            let metadata = new.as_file().metadata()?;
            if (metadata.uid(), metadata.gid()) != (user, group) {
                std::os::unix::fs::fchown(new.as_file(), Some(user), Some(group))?;
            }
        }
        new.as_file().sync_all()?;
        new.persist(&self.path)?;
        self.directory.sync_all()
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// `content` with each line of `username` replaced by what `change` makes of its line ending.
fn edited(content: &[u8], username: &str, mut change: impl FnMut(&[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let (mark, lines) = match content.strip_prefix(BYTE_ORDER_MARK) {
        Some(lines) => (BYTE_ORDER_MARK, lines),
        None => (&b""[..], content),
    };
    let mut edited = mark.to_vec();
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        if is_line_of(line, username) {
            let ending = line.get(line.trim_ascii_end().len()..).unwrap_or_default();
            edited.extend(change(ending).unwrap_or_default());
        } else {
            edited.extend_from_slice(line);
        }
    }
    edited
}

/// Whether the line names `username`, whatever its hash is.
fn is_line_of(line: &[u8], username: &str) -> bool {
    let line = line.trim_ascii();
    let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
    !line.starts_with(b"#") && line.contains(&b':') && name.trim_ascii_end() == username.as_bytes()
}

/// Whether the one user of that name that a broker finds in `text` has a verifier; none where it finds something else.
fn entry_of(text: &[u8], username: &str) -> Option<bool> {
    let lines = file::lines(text, Path::new("")).ok()?;
    let [line] = lines.as_slice() else { return None };
    match password::entry(line) {
        Ok(Some(Entry { name, verifier, .. })) if name == username => Some(verifier.is_some()),
        _ => None,
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::auth::Passwords;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// Case D07: passwords are bytes of any value and length.
    #[test]
    fn users_come_change_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("users");
        assert!(matches!(PasswordFile::open(&path, false), Err(EditError::Missing(_))));

        let longest = vec![0xff; 65_535];
        let mut file = PasswordFile::open(&path, true).unwrap();
        assert!(file.set("a", b"ab", false).unwrap());
        assert!(file.set("b c", &longest, false).unwrap());
        assert!(!path.exists(), "nothing is written before save");
        file.save().unwrap();
        assert_eq!(mode(&path), 0o600);
        let users = Passwords::load(&path).unwrap();
        assert!(users.verify("a", b"ab") && !users.verify("a", b"ab\0c") && !users.verify("a", b"ab\0"));
        assert!(users.verify("b c", &longest) && !users.verify("b c", &longest[1..]) && !users.verify("none", b"ab"));

        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        let mut file = PasswordFile::open(&link, true).unwrap();
        assert!(!file.set("a", b"\0", false).unwrap());
        assert!(file.remove("b c") && !file.remove("b c") && !file.remove("b"));
        file.save().unwrap();
        assert_eq!(mode(&path), 0o600);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let users = Passwords::load(&path).unwrap();
        assert!(users.verify("a", b"\0") && !users.verify("a", b"") && users.len() == 1);
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn other_lines_stay_as_they_are() {
        let cases = [
            ("# c\n\n x : y \nu:old\nz", "# c\n\n x : y \nNEW\nz", "# c\n\n x : y \nz"),
            ("u:old\r\n#u:x\r\nu2:y\r\n", "NEW\r\n#u:x\r\nu2:y\r\n", "#u:x\r\nu2:y\r\n"),
            ("\u{feff}u : old", "\u{feff}NEW", "\u{feff}"),
            ("u:1\na:2\nu:3\n", "NEW\na:2\n", "a:2\n"),
            ("a:1", "a:1\nNEW\n", "a:1"),
            ("u\n:u\n", "u\n:u\nNEW\n", "u\n:u\n"),
            ("", "NEW\n", ""),
        ];
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("users");
        for (before, with, without) in cases {
            fs::write(&path, before).unwrap();
            let mut file = PasswordFile::open(&path, false).unwrap();
            file.set("u", b"password", false).unwrap();
            let after = String::from_utf8(file.content.clone()).unwrap();
            let start = after.find("u:$argon2id$").unwrap();
            let new = after[start..].lines().next().unwrap();
            assert_eq!(after.replace(new, "NEW"), with, "{before:?}");
            drop(file);
            let mut file = PasswordFile::open(&path, false).unwrap();
            file.remove("u");
            assert_eq!(String::from_utf8(file.content.clone()).unwrap(), without, "{before:?}");
        }
    }

    /// A verifier goes with the password that it was made of.
    #[test]
    fn verifiers_come_change_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("users");
        let mut file = PasswordFile::open(&path, true).unwrap();
        file.content.extend_from_slice(BYTE_ORDER_MARK);
        assert!(file.set("u", b"password", true).unwrap() && file.has_verifier("u") && !file.has_verifier("v"));
        let text = String::from_utf8(file.content.clone()).unwrap();
        assert!(text.starts_with("\u{feff}\nu:$argon2id$") && text.contains(":SCRAM-SHA-256$15000:"), "{text}");
        let users = Passwords::parse(&file.content, &path).unwrap();
        assert!(users.verify("u", b"password") && users.verifier("u").verify(b"password"));
        assert!(!file.set("u", b"changed", true).unwrap() && file.has_verifier("u"));
        let users = Passwords::parse(&file.content, &path).unwrap();
        assert!(users.verifier("u").verify(b"changed") && !users.verifier("u").verify(b"password"));
        assert!(!file.set("u", b"password", false).unwrap() && !file.has_verifier("u"));
        assert!(!file.set("u", b"password", true).unwrap() && file.remove("u") && !file.has_verifier("u"));
        for password in [&b"\xff"[..], b"a\0", "\u{ad}".as_bytes()] {
            assert!(matches!(file.set("u", password, true), Err(EditError::Verifier(_))), "{password:?}");
            assert!(file.set("v", password, false).is_ok());
        }
        assert!(matches!(file.set("I\u{ad}X", b"password", true), Err(EditError::ScramUserName)));
        assert!(file.fault().is_none());
    }

    #[test]
    fn what_no_line_can_hold_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = PasswordFile::open(&directory.path().join("users"), true).unwrap();
        let long = "x".repeat(65_536);
        for name in ["", "a:b", ":", "#a", " a", "a ", "a\tb\n", "a\nb", "a\r", "a\0", "\u{feff}a", long.as_str()] {
            assert!(matches!(file.set(name, b"password", false), Err(EditError::UserName)), "{name:?}");
        }
        for password in [&b""[..], &[1; 65_536]] {
            assert!(matches!(file.set("a", password, false), Err(EditError::Password)));
        }
        assert!(file.content.is_empty() && file.fault().is_none());
        assert!(matches!(PasswordFile::open(directory.path(), true), Err(EditError::Unreadable(_))));
    }
}
