//! `pinnace passwd`: adds, changes and removes users of a password file.
//!
//! Knows terminals; must not know how a password is hashed or stored.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::PathBuf;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::auth::password::{EditError, PasswordFile};

/// Adds a user to a password file, or gives it a new password.
///
/// The password is asked for twice without being shown. Where standard input is no terminal, the password is its bytes up to the
/// first newline, or to the end.
///
/// What is written is an argon2id hash. With `--scram` a SCRAM-SHA-256 verifier stands beside it: with it the user can also log in by
/// the Authentication Method SCRAM-SHA-256 of MQTT 5.0. Neither the hash nor mosquitto's can yield one, so that it takes the password; one
/// that was made before goes with the old password.
///
/// The file is replaced as a whole and can then be read by its owner alone. A running broker takes it up with `pinnace reload`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The password file.
    pub file: PathBuf,
    /// The user name.
    pub user: String,
    /// Create the file if it does not exist.
    #[arg(long, conflicts_with = "delete")]
    pub create: bool,
    /// Write a SCRAM-SHA-256 verifier beside the hash. The password must then be text: UTF-8, without control characters.
    #[arg(long, conflicts_with = "delete")]
    pub scram: bool,
    /// Remove the user.
    #[arg(long)]
    pub delete: bool,
}

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file, the name or the password.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The user that was to be removed is not there.
    #[error("{}: there is no user {user:?}", file.display())]
    UnknownUser {
        /// The file.
        file: PathBuf,
        /// The name.
        user: String,
    },
    /// The password was typed differently the second time.
    #[error("the two passwords differ")]
    Mistyped,
    /// Neither a terminal nor standard input gave a password.
    #[error("the password cannot be read: {0}")]
    Unreadable(#[source] io::Error),
}

/// Runs the command.
///
/// # Errors
/// Why nothing was changed.
pub fn run(args: Args) -> Result<(), Error> {
    if args.delete {
        let mut file = PasswordFile::open(&args.file, false)?;
        if !file.remove(&args.user) {
            return Err(Error::UnknownUser { file: args.file, user: args.user });
        }
        return finish(file, &args.user, "removed");
    }
    drop(PasswordFile::open(&args.file, args.create)?); // before a password is typed in vain
    let password = password()?;
    let mut file = PasswordFile::open(&args.file, args.create)?;
    let had_verifier = file.has_verifier(&args.user);
    let outcome = if file.set(&args.user, &password, args.scram)? { "added" } else { "changed" };
    finish(file, &args.user, outcome)?;
    if had_verifier && !args.scram {
        eprintln!("warning: the user's SCRAM verifier went with the old password; --scram writes a new one");
    }
    Ok(())
}

fn finish(file: PasswordFile, user: &str, outcome: &str) -> Result<(), Error> {
    let fault = file.fault();
    file.save()?;
    println!("user {user:?} {outcome}");
    if let Some(fault) = fault {
        eprintln!("warning: the broker will refuse this file as long as another line is wrong: {fault}");
    }
    Ok(())
}

fn password() -> Result<Vec<u8>, Error> {
    if !io::stdin().is_terminal() {
        return first_line(io::stdin().lock()).map_err(Error::Unreadable);
    }
    let [first, second] = ask_twice().map_err(Error::Unreadable)?;
    if first == second { Ok(first) } else { Err(Error::Mistyped) }
}

fn ask_twice() -> io::Result<[Vec<u8>; 2]> {
    let terminal = Silent::new(File::options().read(true).write(true).open("/dev/tty")?)?;
    let mut input = BufReader::new(&terminal.tty);
    let mut ask = |prompt: &[u8]| {
        (&terminal.tty).write_all(prompt)?;
        first_line(&mut input)
    };
    Ok([ask(b"Password: ")?, ask(b"Password again: ")?])
}

/// A terminal that shows nothing but the ends of lines, until dropped. What was typed, and shown, before is thrown away.
struct Silent {
    tty: File,
    before: Termios,
}

impl Silent {
    fn new(tty: File) -> io::Result<Self> {
        let before = tcgetattr(&tty)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        silent.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(&tty, OptionalActions::Flush, &silent)?;
        Ok(Self { tty, before })
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.tty, OptionalActions::Now, &self.before); // nothing could be done about it
    }
}

/// The bytes before the first newline, and not many more than a password can have.
fn first_line(input: impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    input.take(2 * u64::from(u16::MAX)).read_until(b'\n', &mut line)?;
    line.pop_if(|last| *last == b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_the_bytes_before_the_first_newline() {
        let cases: [(&[u8], &[u8]); 6] = [
            (b"secret\n", b"secret"),
            (b"secret", b"secret"),
            (b"a b\tc\r\nrest\n", b"a b\tc\r"),
            (b"\x00\xff\n", b"\x00\xff"),
            (b"", b""),
            (b"\n\n", b""),
        ];
        for (input, password) in cases {
            assert_eq!(first_line(input).unwrap(), password);
        }
        assert!(
            first_line([b'x'; 200_000].as_slice()).unwrap().len() > usize::from(u16::MAX),
            "too long stays too long"
        );
    }
}
