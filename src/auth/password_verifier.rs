//! A SCRAM-SHA-256 verifier (RFC 5802, RFC 7677): what a server keeps of a password, in the form that PostgreSQL made known.
//!
//! Knows keys and their text; must not know users, files, or the messages of an exchange.
//!
//! The text is `SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY`, the last three in base64.

use std::borrow::Cow;
use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// What remains of a password for SCRAM: nobody can log in with it, nor compute the password from it but by guessing.
#[derive(Clone)]
pub struct Verifier {
    /// How often the password is hashed.
    pub(super) iterations: u32,
    /// Made anew for each password.
    pub(super) salt: Box<[u8]>,
    stored_key: Key,
    server_key: Key,
}

pub(super) type Key = [u8; 32];

/// Why a text is no verifier. The text itself is not told.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidVerifier {
    #[error("the SCRAM verifier is not of the form SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY")]
    Form,
    #[error("the SCRAM verifier has iterations other than 1 to {MAX_ITERATIONS}")]
    Iterations,
    #[error("the salt of the SCRAM verifier is not base64 of 1 to {MAX_SALT_BYTES} bytes")]
    Salt,
    #[error("the keys of the SCRAM verifier are not base64 of 32 bytes each")]
    Keys,
}

/// Why no verifier could be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifierError {
    /// SASLprep does not take the password: clients would not agree on its bytes.
    #[error(
        "the password cannot be used with SCRAM: it must be UTF-8 text without control characters, private or unassigned \
         code points (RFC 4013); choose another one"
    )]
    Password,
    /// The operating system gave no random bytes.
    #[error("no random salt: {0}")]
    Random(#[from] getrandom::Error),
}

impl Verifier {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidVerifier> {
        let rest = text.strip_prefix(PREFIX).ok_or(InvalidVerifier::Form)?;
        let (cost, keys) = rest.split_once('$').ok_or(InvalidVerifier::Form)?;
        let (iterations, salt) = cost.split_once(':').ok_or(InvalidVerifier::Form)?;
        let (stored_key, server_key) = keys.split_once(':').ok_or(InvalidVerifier::Form)?;
        let digits = iterations.bytes().all(|byte| byte.is_ascii_digit());
        let iterations = iterations.parse().ok().filter(|count| digits && (1..=MAX_ITERATIONS).contains(count));
        let salt = BASE64_STANDARD.decode(salt).map_err(|_| InvalidVerifier::Salt)?;
        if salt.is_empty() || salt.len() > MAX_SALT_BYTES {
            return Err(InvalidVerifier::Salt);
        }
        Ok(Self {
            iterations: iterations.ok_or(InvalidVerifier::Iterations)?,
            salt: salt.into(),
            stored_key: decode_key(stored_key)?,
            server_key: decode_key(server_key)?,
        })
    }

    /// A new one for `password`, with a random salt.
    pub(super) fn create(password: &[u8]) -> Result<Self, VerifierError> {
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt)?;
        let password = prepare(password).ok_or(VerifierError::Password)?;
        Ok(Self::derive(password.as_bytes(), &salt, ITERATIONS))
    }

    pub(super) fn derive(prepared: &[u8], salt: &[u8], iterations: u32) -> Self {
        let salted: Key = pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(prepared, salt, iterations);
        let client_key = hmac(&salted, &[b"Client Key"]);
        Self {
            iterations,
            salt: salt.into(),
            stored_key: Sha256::digest(client_key).into(),
            server_key: hmac(&salted, &[b"Server Key"]),
        }
    }

    /// What stands in for the verifier of a user who has none: the same for the same name as long as the process runs, so that an
    /// exchange with it tells nothing. No proof fits it.
    pub(super) fn stand_in(username: &str, iterations: u32, salt_bytes: usize) -> Self {
        let derived = |label: &[u8]| hmac(&SECRET, &[label, username.as_bytes()]);
        let salt: Vec<u8> = derived(b"salt 1:").into_iter().chain(derived(b"salt 2:")).take(salt_bytes).collect();
        Self { iterations, salt: salt.into(), stored_key: derived(b"stored:"), server_key: derived(b"server:") }
    }

    /// Whether it is that of `password`: as slow as its iterations, and as slow for what no verifier can be of.
    pub(super) fn verify(&self, password: &[u8]) -> bool {
        let prepared = prepare(password);
        let fits = Choice::from(u8::from(prepared.is_some()));
        let bytes = prepared.as_deref().map_or(password, str::as_bytes);
        let derived = Self::derive(bytes, &self.salt, self.iterations);
        (derived.stored_key.ct_eq(&self.stored_key) & fits).into()
    }

    /// Whether `proof` shows that the client knows the password. The comparison takes the same time wherever they differ.
    pub(super) fn proves(&self, proof: &Key, auth_message: &[&[u8]]) -> bool {
        let mut client_key = hmac(&self.stored_key, auth_message);
        client_key.iter_mut().zip(proof).for_each(|(byte, proof)| *byte ^= proof);
        let stored_key: Key = Sha256::digest(client_key).into();
        stored_key.ct_eq(&self.stored_key).into()
    }

    /// Shows the client that this server has the verifier.
    pub(super) fn signature(&self, auth_message: &[&[u8]]) -> Key {
        hmac(&self.server_key, auth_message)
    }

    /// The text of a password file.
    pub(super) fn to_text(&self) -> String {
        let [salt, stored_key, server_key] =
            [&*self.salt, &self.stored_key, &self.server_key].map(|bytes| BASE64_STANDARD.encode(bytes));
        format!("{PREFIX}{}:{salt}${stored_key}:{server_key}", self.iterations)
    }
}

/// Never a key.
impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Verifier({} iterations)", self.iterations)
    }
}

/// A name or password as SASLprep (RFC 4013) leaves it; none where it refuses it, or leaves nothing.
pub(super) fn prepare(text: &[u8]) -> Option<Cow<'_, str>> {
    let prepared = stringprep::saslprep(std::str::from_utf8(text).ok()?).ok()?;
    (!prepared.is_empty()).then_some(prepared)
}

fn decode_key(text: &str) -> Result<Key, InvalidVerifier> {
    let key = BASE64_STANDARD.decode(text).map_err(|_| InvalidVerifier::Keys)?;
    key.try_into().map_err(|_| InvalidVerifier::Keys)
}

fn hmac(key: &Key, parts: &[&[u8]]) -> Key {
    // HMAC pads a key to a block with zeros.
    let mut block = [0; 64];
    block.iter_mut().zip(key).for_each(|(byte, key)| *byte = *key);
    let mut mac = Hmac::<Sha256>::new(&block.into());
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// Without a random source no exchange begins: see `scram`.
static SECRET: LazyLock<Key> = LazyLock::new(|| {
    let mut secret = [0; 32];
    let _ = getrandom::fill(&mut secret);
    secret
});

/// The name of the method, which its verifiers begin with.
pub(super) const PREFIX: &str = "SCRAM-SHA-256$";
/// What RFC 7677 recommends, and a microcontroller does within a second.
pub(super) const ITERATIONS: u32 = 15_000;
pub(super) const SALT_BYTES: usize = 16;
/// Bounds against a slip of the pen in a file.
const MAX_ITERATIONS: u32 = 1_000_000;
const MAX_SALT_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7677, 3: user `user`, password `pencil`.
    fn pencil() -> Verifier {
        let salt = BASE64_STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        Verifier::derive(b"pencil", &salt, 4096)
    }

    /// The verifier that PostgreSQL makes of RFC 7677's example.
    #[test]
    fn the_example_of_the_rfc() {
        let text = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
                    wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";
        assert_eq!(pencil().to_text(), text);
        let parsed = Verifier::parse(text).unwrap();
        assert!(
            parsed.verify(b"pencil") && !parsed.verify(b"pencil ") && !parsed.verify(b"") && !parsed.verify(b"\xff")
        );
        assert_eq!(format!("{parsed:?}"), "Verifier(4096 iterations)");
    }

    #[test]
    fn made_verifiers_differ_and_hold() {
        let [one, two] = [Verifier::create(b"secret").unwrap(), Verifier::create(b"secret").unwrap()];
        assert!(one.salt != two.salt && one.stored_key != two.stored_key && one.iterations == ITERATIONS);
        assert!(Verifier::parse(&one.to_text()).unwrap().verify(b"secret") && !two.verify(b"secrets"));
        for password in [&b"\xff"[..], b"a\0b", b"", "\u{ad}".as_bytes(), "\u{e000}".as_bytes()] {
            assert_eq!(Verifier::create(password).unwrap_err(), VerifierError::Password, "{password:?}");
        }
    }

    /// RFC 4013, 3: what clients type differently is the same password.
    #[test]
    fn names_and_passwords_are_prepared() {
        for (text, prepared) in [
            ("I\u{ad}X", "IX"),
            ("user", "user"),
            ("USER", "USER"),
            ("\u{aa}", "a"),
            ("\u{2168}", "IX"),
            ("a\u{a0}b", "a b"),
        ] {
            assert_eq!(prepare(text.as_bytes()).as_deref(), Some(prepared), "{text:?}");
        }
        for refused in ["\u{7}", "\u{627}1", ""] {
            assert_eq!(prepare(refused.as_bytes()), None, "{refused:?}");
        }
        assert!(Verifier::derive(b"IX", b"salt", 1).verify("I\u{ad}X".as_bytes()));
    }

    #[test]
    fn stand_ins_are_as_verifiers_are() {
        let one = Verifier::stand_in("ann", 4096, 16);
        let again = Verifier::stand_in("ann", 4096, 16);
        let other = Verifier::stand_in("bob", 4096, 16);
        assert_eq!((one.to_text(), one.salt.len(), one.iterations), (again.to_text(), 16, 4096));
        assert!(one.salt != other.salt && one.stored_key != other.stored_key && one.server_key != one.stored_key);
        assert_eq!(Verifier::stand_in("ann", 1, MAX_SALT_BYTES).salt.len(), MAX_SALT_BYTES);
        assert!(!one.salt.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn malformed_verifiers_are_refused() {
        let good = pencil().to_text();
        let cases = [
            (good.replace("SCRAM-SHA-256", "SCRAM-SHA-1"), InvalidVerifier::Form),
            (good.replacen(':', "$", 1), InvalidVerifier::Form),
            (good.replacen("==$", "==:", 1), InvalidVerifier::Form),
            (PREFIX.to_owned(), InvalidVerifier::Form),
            (good.replace("4096", "0"), InvalidVerifier::Iterations),
            (good.replace("4096", "+1"), InvalidVerifier::Iterations),
            (good.replace("4096", ""), InvalidVerifier::Iterations),
            (good.replace("4096", "1000001"), InvalidVerifier::Iterations),
            (good.replace("W22Z", "W2 Z"), InvalidVerifier::Salt),
            (good.replace("W22ZaJ0SNY7soEsUEjb6gQ==", ""), InvalidVerifier::Salt),
            (good.replace("W22ZaJ0SNY7soEsUEjb6gQ==", &"A".repeat(88)), InvalidVerifier::Salt),
            (good.replace("WG5d", ""), InvalidVerifier::Keys),
            (good.replace("wfPL", "wfPLwfPL"), InvalidVerifier::Keys),
            (format!("{good}:x"), InvalidVerifier::Keys),
            (good.replace("l2dU=", "l2dV="), InvalidVerifier::Keys),
        ];
        for (text, problem) in cases {
            assert_eq!(Verifier::parse(&text).unwrap_err(), problem, "{text}");
        }
    }
}
