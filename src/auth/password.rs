//! Password files: who has which password.
//!
//! Knows names, hashes and verifiers; must not know connections, nor ever print a password or a hash.
//!
//! A line is `NAME:HASH`, `NAME:HASH:VERIFIER` or `NAME:VERIFIER`; blanks around each count for nothing, and lines that begin with `#` are
//! comments. A hash is mosquitto's `$6$salt$hash` or `$7$iterations$salt$hash`, or an argon2id PHC string, which is what [`PasswordFile`]
//! writes; a verifier is `SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`, PostgreSQL's form. The hash says which password is right,
//! the verifier only where there is no hash. mosquitto reads no further than the second colon. A file with a line of any other kind lets
//! nobody in.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::file::{self, FileError, Line};
use super::password_hash::{Cost, Hash};
use super::password_verifier::{ITERATIONS, PREFIX, SALT_BYTES, prepare};

pub use super::password_file::{EditError, PasswordFile};
pub use super::password_verifier::{Verifier, VerifierError};

/// The users of one password file.
#[derive(Default)]
pub struct Passwords {
    users: HashMap<Box<str>, Hash>,
    verifiers: HashMap<Box<str>, Arc<Verifier>>,
    /// Checked in place of a user that does not exist, so that the answer takes as long.
    stand_in: Option<Hash>,
    /// The iterations, and the bytes of the salt, of most verifiers.
    usual_verifier: Option<(u32, usize)>,
}

impl Passwords {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// It cannot be read, or a line is not right.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        Self::parse(&file::read(path)?, path)
    }

    /// Reads `text`, the content of the file at `path`.
    ///
    /// # Errors
    /// A line is not right.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, FileError> {
        let mut passwords = Self::default();
        let mut first_lines = HashMap::new();
        let mut costs: HashMap<Cost, (usize, Hash)> = HashMap::new();
        let mut kinds: HashMap<(u32, usize), usize> = HashMap::new();
        for line in file::lines(text, path)? {
            let Some(Entry { name, hash, verifier }) = entry(&line)? else { continue };
            if let Some(first) = first_lines.insert(name, line.number) {
                return Err(line.fault(0, format!("this user stands on line {first} already; remove one of the lines")));
            }
            costs.entry(hash.cost()).or_insert_with(|| (0, hash.clone())).0 += 1;
            passwords.users.insert(name.into(), hash);
            if let Some(verifier) = verifier {
                *kinds.entry((verifier.iterations, verifier.salt.len())).or_default() += 1;
                passwords.verifiers.insert(name.into(), verifier);
            }
        }
        // Of those that are equally many, always the same: else a reload would tell the stand-ins from the others.
        passwords.usual_verifier = kinds.into_iter().max_by_key(|(kind, count)| (*count, *kind)).map(|(kind, _)| kind);
        let usual = costs.into_iter().max_by(|(one, (n, _)), (other, (m, _))| (n, one).cmp(&(m, other)));
        passwords.stand_in = usual.map(|(_, (_, hash))| hash);
        Ok(passwords)
    }

    /// How many users there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.users.len()
    }

    /// Whether there is no user.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Whether `password` is that of `username`.
    ///
    /// Takes as long for an unknown user as for a wrong password of most users: milliseconds at full load of a core, and
    /// memory with argon2id. So not on a thread that serves connections, and not many at a time.
    #[must_use]
    pub fn verify(&self, username: &str, password: &[u8]) -> bool {
        match (self.users.get(username), &self.stand_in) {
            (Some(hash), _) => hash.verify(password),
            (None, Some(stand_in)) => {
                std::hint::black_box(stand_in.verify(password));
                false
            }
            (None, None) => false,
        }
    }

    /// The SCRAM verifier of `username`, or what stands in for it where there is none: nothing tells them apart.
    #[must_use]
    pub fn verifier(&self, username: &str) -> Arc<Verifier> {
        let (iterations, salt_bytes) = self.usual_verifier.unwrap_or((ITERATIONS, SALT_BYTES));
        // Made for everybody, so that it takes as long.
        let stand_in = Arc::new(Verifier::stand_in(username, iterations, salt_bytes));
        self.verifiers.get(username).cloned().unwrap_or(stand_in)
    }
}

impl std::fmt::Debug for Passwords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Passwords({} users)", self.users.len())
    }
}

/// What a line says of a user.
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    pub(super) hash: Hash,
    pub(super) verifier: Option<Arc<Verifier>>,
}

/// What `line` says; none on an empty line and a comment.
pub(super) fn entry<'a>(line: &Line<'a>) -> Result<Option<Entry<'a>>, FileError> {
    let text = line.text;
    if text.is_empty() || text.starts_with('#') {
        return Ok(None);
    }
    let Some((name, secrets)) = text.split_once(':') else {
        return Err(line.fault(0, "no colon; write NAME:HASH as `pinnace passwd` does, or remove the line"));
    };
    let name = name.trim_ascii_end();
    let secrets = secrets.trim_ascii_start();
    if name.is_empty() {
        return Err(line.fault(0, "no user name before the colon; write one or remove the line"));
    }
    if name.len() > usize::from(u16::MAX) {
        return Err(line.fault(0, "the user name has more than 65,535 bytes; shorten it"));
    }
    let (hash, verifier) = match secrets.split_once(':').filter(|_| !secrets.starts_with(PREFIX)) {
        Some((hash, verifier)) => (hash.trim_ascii_end(), Some(verifier.trim_ascii_start())),
        None => (secrets, None),
    };
    let fault = |rest: usize, problem: &dyn std::fmt::Display, option: &str| {
        line.fault(text.len() - rest, format!("{problem}; set it with `pinnace passwd {option}FILE NAME`"))
    };
    let hash = Hash::parse(hash).map_err(|problem| fault(secrets.len(), &problem, ""))?;
    let verifier = match (verifier, &hash) {
        (Some(verifier), _) => {
            Some(Arc::new(Verifier::parse(verifier).map_err(|problem| fault(verifier.len(), &problem, "--scram "))?))
        }
        (None, Hash::Scram(verifier)) => Some(verifier.clone()),
        (None, _) => None,
    };
    if verifier.is_some() && prepare(name.as_bytes()).as_deref() != Some(name) {
        return Err(line.fault(0, "no SCRAM client sends this user name as it stands (RFC 4013); rename the user"));
    }
    Ok(Some(Entry { name, hash, verifier }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Passwords, FileError> {
        Passwords::parse(text.as_bytes(), Path::new("users"))
    }

    /// Lines that mosquitto_passwd 2.0.11 wrote.
    #[test]
    fn mosquittos_entries_hold() {
        let users = parse(&format!("# users\n\n{SIX}\n{SEVEN}\n")).unwrap();
        let cases: [(&str, &[u8], bool); 9] = [
            ("six", b"secret", true),
            ("seven", "pässwörd: x".as_bytes(), true),
            ("six", b"secret\0", false),
            ("six", b"secre", false),
            ("six", b"", false),
            ("seven", b"secret", false),
            ("eight", b"secret", false),
            ("", b"secret", false),
            ("# users", b"", false),
        ];
        for (name, password, right) in cases {
            assert_eq!(users.verify(name, password), right, "{name} {password:?}");
        }
        assert_eq!((users.len(), users.is_empty()), (2, false));
        assert_eq!(format!("{users:?}"), "Passwords(2 users)");
        assert!(!parse("").unwrap().verify("", b""), "nobody is let in by an empty file");
    }

    /// Cases D105, D143.
    #[test]
    fn blanks_and_line_ends_change_nothing() {
        for text in [
            format!("{SIX}\r\n{SEVEN}\r\n"),
            format!("\u{feff}  {SIX} \t\n\n\t{SEVEN}"),
            format!("{SEVEN}\n{}", SIX.replacen(':', " \t: ", 1)),
        ] {
            let users = parse(&text).unwrap();
            assert!(users.verify("six", b"secret") && users.verify("seven", "pässwörd: x".as_bytes()), "{text}");
        }
    }

    /// Case D113: nobody is let in by a file with a wrong line, and what is wrong is told without the hash.
    #[test]
    fn a_wrong_line_lets_nobody_in() {
        let (salt, digest) = ("AAAAAAAAAAAAAAAA", format!("{}==", "A".repeat(86)));
        let argon2 = "$argon2id$v=19$m=16,t=1,p=1$AAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA";
        assert!(parse(&format!("a:$6${salt}${digest}\nb:$7$1${salt}${digest}\nc:{argon2}")).is_ok());
        let cases = [
            ("nocolon".to_owned(), "users:2:1: no colon;"),
            (":$6$a$b".to_owned(), "users:2:1: no user name before the colon;"),
            ("u:".to_owned(), "users:2:3: no password hash after the colon;"),
            ("  u : \t".to_owned(), "users:2:6: no password hash after the colon;"),
            ("u:plain".to_owned(), "users:2:3: what follows the colon is no password hash"),
            ("u:$1$salt$hash".to_owned(), "users:2:3: what follows the colon is no password hash"),
            (format!("u:$6${salt}"), "users:2:3: the password hash has too few or too many parts"),
            (format!("u:$6${salt}${digest}:x"), "users:2:112: the SCRAM verifier is not of the form"),
            (format!("u:$6${salt}${digest}:"), "users:2:112: the SCRAM verifier is not of the form"),
            (format!("u:$6${salt}${digest}:$6${salt}${digest}"), "users:2:112: the SCRAM verifier is not of the form"),
            (format!("u:{SCRAM}:{SCRAM}"), "users:2:3: the keys of the SCRAM verifier"),
            (format!("u:{SCRAM}:$6${salt}${digest}"), "users:2:3: the keys of the SCRAM verifier"),
            (format!("u:{}", SCRAM.replace("$2:", "$0:")), "users:2:3: the SCRAM verifier has iterations other than"),
            (format!("I\u{ad}X:{SCRAM}"), "users:2:1: no SCRAM client sends this user name"),
            (format!("u:$6${salt}${digest}$"), "users:2:3: the password hash has too few or too many parts"),
            (format!("u:$6$${digest}"), "users:2:3: the salt of the password hash"),
            (format!("u:$6$*${digest}"), "users:2:3: the salt of the password hash"),
            (format!("u:$6${salt}$"), "users:2:3: the password hash does not end with base64 of 64 bytes"),
            (format!("u:$6${salt}$AAAA"), "users:2:3: the password hash does not end with base64 of 64 bytes"),
            (format!("u:$7$0${salt}${digest}"), "users:2:3: the password hash has iterations other than 1 to 1000000"),
            (format!("u:$7$1000001${salt}${digest}"), "users:2:3: the password hash has iterations other"),
            (format!("u:$7$+5${salt}${digest}"), "users:2:3: the password hash has iterations other"),
            (format!("u:$7$99999999999${salt}${digest}"), "users:2:3: the password hash has iterations other"),
            (format!("u:{}", argon2.replace("m=16", "m=4000000")), "users:2:3: the password hash asks for more than"),
            (format!("u:{}", argon2.replace("t=1", "t=4000000")), "users:2:3: the password hash asks for more than"),
            (format!("u:{}", argon2.replace("p=1", "p=900")), "users:2:3: the password hash asks for more than"),
            (format!("u:{}", argon2.replace("t=1", "t=0")), "users:2:3: the password hash asks for more than"),
            (format!("u:{}", argon2.replace(",t=1", "")), "users:2:3: the password hash is no argon2id PHC string"),
            (format!("u:{}", argon2.replace("v=19", "v=16")), "users:2:3: the password hash is no argon2id PHC string"),
            ("u:$argon2id$".to_owned(), "users:2:3: the password hash is no argon2id PHC string"),
            (
                format!("{}:$6${salt}${digest}", "x".repeat(65_536)),
                "users:2:1: the user name has more than 65,535 bytes",
            ),
            (SIX.to_owned(), "users:2:1: this user stands on line 1 already"),
        ];
        for (line, expected) in cases {
            let told = parse(&format!("{SIX}\n{line}\n")).unwrap_err().to_string();
            assert!(told.starts_with(expected), "{line}: {told}");
            assert!(!told.contains("plain") && !told.contains("AAAA"), "{told}");
        }
        let binary = Passwords::parse(b"six:\x00\x01\xff", Path::new("users")).unwrap_err();
        assert_eq!(binary.to_string(), "users:1:7: not UTF-8; save the file as UTF-8 text");
    }

    /// Beside a hash, alone, or not at all: what a user has not is stood in for, and a plain password needs one of them.
    #[test]
    fn scram_verifiers_stand_beside_hashes_or_alone() {
        let text = format!("both : {} :\t{SCRAM}\nalone:{SCRAM}\n{SIX}\n", SIX.split_once(':').unwrap().1);
        let users = parse(&text).unwrap();
        for (name, password, right) in [
            ("both", "secret", true),
            ("both", "pencil", false),
            ("alone", "pencil", true),
            ("alone", "secret", false),
            ("alone", "", false),
            ("six", "secret", true),
            ("six", "pencil", false),
            ("none", "pencil", false),
        ] {
            assert_eq!(users.verify(name, password.as_bytes()), right, "{name} {password}");
        }
        let verifier = |name: &str| users.verifier(name);
        for (name, own) in [("both", true), ("alone", true), ("six", false), ("none", false), ("", false)] {
            assert_eq!(verifier(name).to_text() == SCRAM, own, "{name}");
            assert_eq!((verifier(name).iterations, verifier(name).salt.len()), (2, 4), "{name}");
            assert_eq!(verifier(name).salt, verifier(name).salt, "{name}");
        }
        let nobody = parse("").unwrap().verifier("x");
        assert_eq!((nobody.iterations, nobody.salt.len()), (ITERATIONS, SALT_BYTES));
        let usual = SCRAM.replace("$2:", "$9:");
        let users = parse(&format!("a:{usual}\nb:{SCRAM}\nc:{usual}")).unwrap();
        assert_eq!((users.verifier("x").iterations, users.verifier("b").iterations), (9, 2));
        let fewer = SCRAM.replace("$2:", "$8:");
        for _ in 0..20 {
            let users = parse(&format!("a:{SCRAM}\nb:{fewer}\nc:{usual}")).unwrap();
            assert_eq!(
                (users.verifier("x").iterations, users.stand_in.as_ref().map(Hash::cost)),
                (9, Some(Cost::Scram(9)))
            );
        }
    }

    /// An unknown user costs what most users cost.
    #[test]
    fn the_stand_in_is_of_the_kind_most_used() {
        let seven = |name: &str, iterations: &str| SEVEN.replace("seven", name).replace("$101$", iterations);
        let text = [SIX.to_owned(), seven("a", "$7$"), seven("b", "$9$"), seven("c", "$9$")].join("\n");
        let users = parse(&text).unwrap();
        assert!(matches!(users.stand_in, Some(Hash::Pbkdf2 { iterations: 9, .. })));
        assert!(parse("").unwrap().stand_in.is_none());
    }

    const SCRAM: &str = "SCRAM-SHA-256$2:c2FsdA==$N0owGsXBfH12esosC4BHCgtNaJcrRB2tjKwgoe5o/r0=:ogf0krTd/slOXRLYzDjm8yDmBHbLGUj/GLs7kED/Y64=";
    const SIX: &str = "six:$6$WjmI4pWhJOdHIby9$xNEzcbWzwM7uFyTAbNQBS2bkvyPAX73I3n7IUpEPgyDVnr4eS7zcSxRpHtsrl3iWiUV9hdL6PFCGxAh6RGso4w==";
    const SEVEN: &str = "seven:$7$101$5AknfyxPHG8FZE5S$ieAIwvbjrAr3MxD8OS8hkRJVENfe1xGaBQwg4lK5cFs4kVZzwxyKynA60etme9h/VetTptPm3DRHlnAmuo321Q==";
}
