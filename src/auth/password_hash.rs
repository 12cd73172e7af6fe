//! One password's hash: parsing, checking, making.
//!
//! Knows four kinds of hash; must not know users or files.

use std::sync::Arc;

use argon2::password_hash::phc::PasswordHash;
use argon2::{ARGON2ID_IDENT, Argon2, Params, PasswordHasher, PasswordVerifier};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq;

use super::password_verifier::{InvalidVerifier, PREFIX, Verifier};

/// A hash as it stands in a password file.
#[derive(Clone)]
pub(super) enum Hash {
    /// `$6$`: SHA-512 of password and salt.
    Sha512 { salt: Box<[u8]>, digest: [u8; 64] },
    /// `$7$`: PBKDF2 with HMAC-SHA-512.
    Pbkdf2 { iterations: u32, salt: Box<[u8]>, digest: [u8; 64] },
    /// `$argon2id$`, a PHC string.
    Argon2id(Box<PasswordHash>),
    /// `SCRAM-SHA-256$`, where a user has nothing else.
    Scram(Arc<Verifier>),
}

/// What makes two hashes equally slow to check.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Cost {
    Sha512,
    Pbkdf2(u32),
    Argon2id(String),
    Scram(u32),
}

/// Why a text is no hash. The text itself is not told: it may be a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidHash {
    #[error("no password hash after the colon")]
    Empty,
    #[error("what follows the colon is no password hash that begins with $6$, $7$, $argon2id$ or SCRAM-SHA-256$")]
    UnknownKind,
    #[error("the password hash has too few or too many parts between its $ signs")]
    Parts,
    #[error("the salt of the password hash is not base64 of 1 to {MAX_SALT_BYTES} bytes")]
    Salt,
    #[error("the password hash does not end with base64 of 64 bytes")]
    Digest,
    #[error("the password hash has iterations other than 1 to {MAX_ITERATIONS}")]
    Iterations,
    #[error("the password hash is no argon2id PHC string of version 19 with m, t, p, salt and hash")]
    Phc,
    #[error(
        "the password hash asks for more than m={MAX_MEMORY_KIB}, t={MAX_PASSES}, p={MAX_LANES}, or for impossible values"
    )]
    Argon2Cost,
    #[error(transparent)]
    Scram(#[from] InvalidVerifier),
}

/// Why no hash could be made.
#[derive(Debug, thiserror::Error)]
#[error("the password cannot be hashed: {0}")]
pub struct HashingError(argon2::password_hash::Error);

impl Hash {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidHash> {
        if text.is_empty() {
            return Err(InvalidHash::Empty);
        }
        if text.starts_with("$argon2id$") {
            return argon2id(text);
        }
        if text.starts_with(PREFIX) {
            return Ok(Self::Scram(Arc::new(Verifier::parse(text)?)));
        }
        let mut parts = text.split('$');
        match (parts.next(), parts.next(), parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(""), Some("6"), Some(salt), Some(digest), None, None) => {
                Ok(Self::Sha512 { salt: decode_salt(salt)?, digest: decode_digest(digest)? })
            }
            (Some(""), Some("7"), Some(iterations), Some(salt), Some(digest), None) => Ok(Self::Pbkdf2 {
                iterations: decode_iterations(iterations)?,
                salt: decode_salt(salt)?,
                digest: decode_digest(digest)?,
            }),
            (Some(""), Some("6" | "7"), ..) => Err(InvalidHash::Parts),
            _ => Err(InvalidHash::UnknownKind),
        }
    }

    /// A new argon2id PHC string for `password`, with a random salt.
    pub(super) fn create(password: &[u8]) -> Result<String, HashingError> {
        Argon2::default().hash_password(password).map(|hash| hash.to_string()).map_err(HashingError)
    }

    /// Whether it is the hash of `password`. The comparison takes the same time wherever they differ.
    pub(super) fn verify(&self, password: &[u8]) -> bool {
        match self {
            Self::Sha512 { salt, digest } => {
                let computed = Sha512::new().chain_update(password).chain_update(salt).finalize();
                computed.ct_eq(digest.as_slice()).into()
            }
            Self::Pbkdf2 { iterations, salt, digest } => {
                let computed: [u8; 64] = pbkdf2::pbkdf2_hmac_array::<Sha512, 64>(password, salt, *iterations);
                computed.ct_eq(digest).into()
            }
            Self::Argon2id(hash) => Argon2::default().verify_password(password, hash.as_ref()).is_ok(),
            Self::Scram(verifier) => verifier.verify(password),
        }
    }

    pub(super) fn cost(&self) -> Cost {
        match self {
            Self::Sha512 { .. } => Cost::Sha512,
            Self::Pbkdf2 { iterations, .. } => Cost::Pbkdf2(*iterations),
            Self::Argon2id(hash) => Cost::Argon2id(hash.params.to_string()),
            Self::Scram(verifier) => Cost::Scram(verifier.iterations),
        }
    }
}

fn argon2id(text: &str) -> Result<Hash, InvalidHash> {
    let hash = PasswordHash::new(text).map_err(|_| InvalidHash::Phc)?;
    let known = hash.params.iter().all(|(name, _)| matches!(name.as_str(), "m" | "t" | "p"));
    let whole = hash.salt.is_some()
        && hash.hash.is_some()
        && ["m", "t", "p"].iter().all(|name| hash.params.get(*name).is_some());
    if hash.algorithm != ARGON2ID_IDENT || hash.version != Some(19) || !known || !whole {
        return Err(InvalidHash::Phc);
    }
    let cost = Params::try_from(&hash).map_err(|_| InvalidHash::Argon2Cost)?;
    if cost.m_cost() > MAX_MEMORY_KIB || cost.t_cost() > MAX_PASSES || cost.p_cost() > MAX_LANES {
        return Err(InvalidHash::Argon2Cost);
    }
    Ok(Hash::Argon2id(Box::new(hash)))
}

fn decode_salt(text: &str) -> Result<Box<[u8]>, InvalidHash> {
    let salt = BASE64_STANDARD.decode(text).map_err(|_| InvalidHash::Salt)?;
    if salt.is_empty() || salt.len() > MAX_SALT_BYTES {
        return Err(InvalidHash::Salt);
    }
    Ok(salt.into())
}

fn decode_digest(text: &str) -> Result<[u8; 64], InvalidHash> {
    let digest = BASE64_STANDARD.decode(text).map_err(|_| InvalidHash::Digest)?;
    digest.try_into().map_err(|_| InvalidHash::Digest)
}

fn decode_iterations(text: &str) -> Result<u32, InvalidHash> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let iterations = text.parse().ok().filter(|_| digits);
    iterations.filter(|iterations| (1..=MAX_ITERATIONS).contains(iterations)).ok_or(InvalidHash::Iterations)
}

/// Bounds against a slip of the pen in a file: about a second of work, and 256 MiB, for each login.
const MAX_ITERATIONS: u32 = 1_000_000;
const MAX_MEMORY_KIB: u32 = 256 * 1024;
const MAX_PASSES: u32 = 16;
const MAX_LANES: u32 = 16;
const MAX_SALT_BYTES: usize = 64;
