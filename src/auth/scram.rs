//! SCRAM-SHA-256 (RFC 5802, RFC 7677), the server's side: messages of the client in, the server's out.
//!
//! Must not know how the messages travel, nor where verifiers come from: it asks for one by name, and every name has one (see
//! [`Passwords::verifier`](super::Passwords::verifier)). So what an exchange answers does not tell whether a user exists.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::password_verifier::{Key, Verifier, prepare};

/// Its name as an Authentication Method.
pub const METHOD: &str = "SCRAM-SHA-256";

/// One exchange.
#[derive(Debug)]
pub struct Exchange {
    /// The server's part of the nonce.
    nonce: Box<str>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The client's first message may come; `true` where it was asked for.
    First(bool),
    /// The client's final message may come.
    Final(Box<Pending>),
    Over,
}

/// What the final message must fit.
#[derive(Debug)]
struct Pending {
    username: Box<str>,
    /// `c=` of the GS2 header, and `r=` of the whole nonce: how the final message must begin.
    begins: String,
    /// client-first-message-bare and server-first-message, each with a comma behind.
    transcript: String,
}

/// What follows from a message of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send this, and wait for an answer.
    Challenge(Box<[u8]>),
    /// The client has the password. Send `data`, by which the client knows the server.
    Proven {
        /// The user, as the password file names it.
        username: Box<str>,
        /// The server's final message.
        data: Box<[u8]>,
    },
}

/// Why an exchange ends. None but [`Refused::Wrong`] says anything that the client's messages do not say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No such user, no verifier, or another password.
    #[error("wrong user name or password")]
    Wrong,
    /// Not a SCRAM message.
    #[error("malformed SCRAM message: {0}")]
    Malformed(&'static str),
    /// The client requires what the server did not offer.
    #[error("SCRAM: {0} is not supported")]
    Unsupported(&'static str),
    /// The exchange is not bound to what was said before.
    #[error("SCRAM: {0} is not that of this exchange")]
    Foreign(&'static str),
    /// A user wants to act as another one.
    #[error("SCRAM: the authorization identity is not the user")]
    OtherIdentity,
    /// The operating system gave no random bytes.
    #[error("SCRAM: the server has no random nonce")]
    NoNonce,
}

impl Exchange {
    /// A new one, with a random nonce.
    ///
    /// # Errors
    /// [`Refused::NoNonce`]
    pub fn begin() -> Result<Self, Refused> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|_| Refused::NoNonce)?;
        Ok(Self::with_nonce(&BASE64_STANDARD.encode(nonce)))
    }

    fn with_nonce(nonce: &str) -> Self {
        Self { nonce: nonce.into(), state: State::First(false) }
    }

    /// Takes the client's next message; `verifier` gives the verifier of a user, or what stands in for it. Who began with no message at all
    /// is asked for the first one.
    ///
    /// # Errors
    /// Why the exchange is over.
    pub fn receive(
        &mut self,
        message: Option<&[u8]>,
        verifier: impl FnOnce(&str) -> Arc<Verifier>,
    ) -> Result<Step, Refused> {
        match (std::mem::replace(&mut self.state, State::Over), message) {
            (State::First(false), None) => {
                self.state = State::First(true);
                Ok(Step::Challenge(Box::default()))
            }
            (State::Over, _) => Err(Refused::Malformed("nothing was to come")),
            (_, None) => Err(Refused::Malformed("it is missing")),
            (State::First(_), Some(message)) => self.first(text(message)?, verifier),
            (State::Final(pending), Some(message)) => last(&pending, text(message)?, verifier),
        }
    }

    fn first(&mut self, message: &str, verifier: impl FnOnce(&str) -> Arc<Verifier>) -> Result<Step, Refused> {
        let First { header, bare, username, nonce } = First::parse(message)?;
        let verifier = verifier(&username);
        let (server, salt) = (&self.nonce, BASE64_STANDARD.encode(&verifier.salt));
        let challenge = format!("r={nonce}{server},s={salt},i={}", verifier.iterations);
        self.state = State::Final(Box::new(Pending {
            username,
            begins: format!("c={},r={nonce}{server}", BASE64_STANDARD.encode(header)),
            transcript: format!("{bare},{challenge},"),
        }));
        Ok(Step::Challenge(challenge.into_bytes().into()))
    }
}

/// The verifier is asked for again: an exchange that began before a reload of the password file does not prove what it no longer says.
fn last(pending: &Pending, message: &str, verifier: impl FnOnce(&str) -> Arc<Verifier>) -> Result<Step, Refused> {
    let (without_proof, proof) =
        message.rsplit_once(",p=").ok_or(Refused::Malformed("the final message does not end with a proof"))?;
    let mut parts = without_proof.split(',');
    let mut expected = pending.begins.split(',');
    for (name, what) in [("c=", "the channel binding"), ("r=", "the nonce")] {
        let part = parts.next().filter(|part| part.starts_with(name));
        let part = part.ok_or(Refused::Malformed("the final message does not begin with c= and r="))?;
        if Some(part) != expected.next() {
            return Err(Refused::Foreign(what));
        }
    }
    extensions(parts)?;
    let proof = BASE64_STANDARD.decode(proof).ok().and_then(|proof| Key::try_from(proof).ok());
    let proof = proof.ok_or(Refused::Malformed("the proof is not base64 of 32 bytes"))?;
    let verifier = verifier(&pending.username);
    let auth_message = [pending.transcript.as_bytes(), without_proof.as_bytes()];
    if !verifier.proves(&proof, &auth_message) {
        return Err(Refused::Wrong);
    }
    let data = format!("v={}", BASE64_STANDARD.encode(verifier.signature(&auth_message)));
    Ok(Step::Proven { username: pending.username.clone(), data: data.into_bytes().into() })
}

/// client-first-message.
#[derive(Debug, PartialEq, Eq)]
struct First<'a> {
    /// GS2 header.
    header: &'a str,
    /// client-first-message-bare.
    bare: &'a str,
    /// Decoded and prepared.
    username: Box<str>,
    nonce: &'a str,
}

impl<'a> First<'a> {
    fn parse(message: &'a str) -> Result<Self, Refused> {
        let (flag, rest) = message.split_once(',').ok_or(Refused::Malformed("no GS2 header"))?;
        match flag {
            "n" | "y" => {}
            _ if flag.starts_with("p=") => return Err(Refused::Unsupported("channel binding")),
            _ => return Err(Refused::Malformed("the first message does not begin with n or y")),
        }
        let (authzid, bare) = rest.split_once(',').ok_or(Refused::Malformed("no end of the GS2 header"))?;
        let header = message.get(..message.len() - bare.len()).unwrap_or_default();
        if bare.starts_with("m=") {
            return Err(Refused::Unsupported("a mandatory extension"));
        }
        let mut parts = bare.split(',');
        let username =
            parts.next().and_then(|part| part.strip_prefix("n=")).ok_or(Refused::Malformed("no user name"))?;
        let nonce = parts.next().and_then(|part| part.strip_prefix("r=")).ok_or(Refused::Malformed("no nonce"))?;
        if nonce.is_empty() || !nonce.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Refused::Malformed("the nonce is not printable ASCII"));
        }
        extensions(parts)?;
        let username = name(username)?;
        if !authzid.is_empty() {
            let authzid =
                authzid.strip_prefix("a=").ok_or(Refused::Malformed("an authorization identity without a="))?;
            if name(authzid)? != username {
                return Err(Refused::OtherIdentity);
            }
        }
        Ok(Self { header, bare, username, nonce })
    }
}

/// Text without NUL, and not so much of it that it could only do harm.
fn text(message: &[u8]) -> Result<&str, Refused> {
    if message.len() > MESSAGE_MAX {
        return Err(Refused::Malformed("it is longer than 16,384 bytes"));
    }
    let text = std::str::from_utf8(message).map_err(|_| Refused::Malformed("it is not UTF-8"))?;
    if text.contains('\0') { Err(Refused::Malformed("it contains U+0000")) } else { Ok(text) }
}

/// saslname, decoded and prepared by SASLprep (RFC 5802, 5.1).
fn name(text: &str) -> Result<Box<str>, Refused> {
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('=') {
        decoded.push_str(before);
        let (character, after) = match after.split_at_checked(2) {
            Some(("2C", after)) => (',', after),
            Some(("3D", after)) => ('=', after),
            _ => return Err(Refused::Malformed("a name with = that is neither =2C nor =3D")),
        };
        decoded.push(character);
        rest = after;
    }
    decoded.push_str(rest);
    let prepared = prepare(decoded.as_bytes()).ok_or(Refused::Malformed("a name that SASLprep refuses"))?;
    Ok(prepared.into())
}

/// Optional extensions mean nothing here; a mandatory one cannot be ignored, wherever it stands.
fn extensions<'a>(parts: impl Iterator<Item = &'a str>) -> Result<(), Refused> {
    for part in parts {
        match part.as_bytes() {
            [b'm', b'=', ..] => return Err(Refused::Unsupported("a mandatory extension")),
            [letter, b'=', _, ..] if letter.is_ascii_alphabetic() => {}
            _ => return Err(Refused::Malformed("an extension that is none")),
        }
    }
    Ok(())
}

/// Base64 of a multiple of three bytes needs no padding.
const NONCE_BYTES: usize = 18;
const MESSAGE_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use hmac::{Hmac, KeyInit, Mac};
    use proptest::prelude::*;
    use sha2::{Digest, Sha256};

    use super::*;

    fn mac(key: &[u8], text: &str) -> [u8; 32] {
        Hmac::<Sha256>::new_from_slice(key).unwrap().chain_update(text).finalize().into_bytes().into()
    }

    /// A client's final message for its first one and the server's: shares nothing with the server but its crates.
    fn client_final(first: &str, challenge: &str, password: &str) -> String {
        let bare = first.splitn(3, ',').nth(2).unwrap();
        let header = BASE64_STANDARD.encode(&first[..first.len() - bare.len()]);
        let value = |name: &str| challenge.split(',').find_map(|part| part.strip_prefix(name)).unwrap();
        let salt = BASE64_STANDARD.decode(value("s=")).unwrap();
        let salted = pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(password.as_bytes(), &salt, value("i=").parse().unwrap());
        let client_key = mac(&salted, "Client Key");
        let without_proof = format!("c={header},r={}", value("r="));
        let signature = mac(&Sha256::digest(client_key), &format!("{bare},{challenge},{without_proof}"));
        let proof: Vec<u8> = client_key.iter().zip(signature).map(|(key, byte)| key ^ byte).collect();
        format!("{without_proof},p={}", BASE64_STANDARD.encode(proof))
    }

    fn challenge(exchange: &mut Exchange, first: &str) -> String {
        match exchange.receive(Some(first.as_bytes()), user) {
            Ok(Step::Challenge(challenge)) => String::from_utf8(challenge.into()).unwrap(),
            other => panic!("{first}: {other:?}"),
        }
    }

    /// Each user has the password `secret`; nobody else has one.
    fn user(name: &str) -> Arc<Verifier> {
        Arc::new(match name {
            "user" | "a,b=c" | "IX" => Verifier::derive(b"secret", b"salt", 2),
            unknown => Verifier::stand_in(unknown, 2, 4),
        })
    }

    /// RFC 7677, 3.
    #[test]
    fn the_example_of_the_rfc() {
        let salt = BASE64_STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let pencil = Arc::new(Verifier::derive(b"pencil", &salt, 4096));
        let mut exchange = Exchange::with_nonce("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0");
        let mut receive = |message: &str| {
            exchange.receive(Some(message.as_bytes()), |name| {
                assert_eq!(name, "user");
                pencil.clone()
            })
        };
        let first = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        assert_eq!(receive("n,,n=user,r=rOprNGfwEbeRWgbNEkqO"), Ok(Step::Challenge(first.as_bytes().into())));
        let last = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        let signature = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
        assert_eq!(client_final("n,,n=user,r=rOprNGfwEbeRWgbNEkqO", first, "pencil"), last);
        assert_eq!(receive(last), Ok(Step::Proven { username: "user".into(), data: signature.as_bytes().into() }));
        assert_eq!(receive(last), Err(Refused::Malformed("nothing was to come")));
    }

    #[test]
    fn who_may_be_named_how() {
        let cases = [
            ("n,,n=user,r=x", "user"),
            ("y,,n=user,r=x", "user"),
            ("n,a=user,n=user,r=x", "user"),
            ("n,,n=a=2Cb=3Dc,r=!~", "a,b=c"),
            ("n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=x", "a,b=c"),
            ("n,,n=I\u{ad}X,r=x,z=ignored=,y=1", "IX"),
        ];
        for (first, name) in cases {
            let mut exchange = Exchange::begin().unwrap();
            assert_eq!(
                exchange.receive(None, user),
                Ok(Step::Challenge(Box::default())),
                "asked for the first message"
            );
            let challenge = challenge(&mut exchange, first);
            let last = client_final(first, &challenge, "secret");
            let (without_proof, proof) = last.rsplit_once(",p=").unwrap();
            let mut receive = |message: &str| exchange.receive(Some(message.as_bytes()), user);
            // An extension that is not part of what was proven.
            let wrong = format!("{without_proof},x=y,p={proof}");
            assert!(matches!(receive(&last), Ok(Step::Proven { username, .. }) if *username == *name), "{first}");
            assert!(receive(&wrong).is_err());
        }
    }

    #[test]
    fn malformed_first_messages() {
        let malformed = [
            "",
            "n",
            "n,",
            "n,,",
            "x,,n=user,r=x",
            "N,,n=user,r=x",
            "nn,,n=user,r=x",
            ",,n=user,r=x",
            "n,,r=x,n=user",
            "n,,n=user",
            "n,,n=user,",
            "n,,n=user,r=",
            "n,,n=user,r=a b",
            "n,,n=user,r=\u{e4}",
            "n,,n=,r=x",
            "n,,user,r=x",
            "n,,n=a=2cb,r=x",
            "n,,n=a=,r=x",
            "n,,n=a=2,r=x",
            "n,,n=a=2B,r=x",
            "n,,n=a=\u{e4}\u{e4},r=x",
            "n,,n=\u{7},r=x",
            "n,,n=user,r=x,",
            "n,,n=user,r=x,y",
            "n,,n=user,r=x,1=y",
            "n,,n=user,r=x,y=",
            "n,user,n=user,r=x",
            "n,a=,n=user,r=x",
            "n,,n=us\0er,r=x",
            "n,,n=\u{ad},r=x",
        ];
        for first in malformed {
            let outcome = Exchange::begin().unwrap().receive(Some(first.as_bytes()), user);
            assert!(matches!(outcome, Err(Refused::Malformed(_))), "{first:?}: {outcome:?}");
        }
        let long = format!("n,,n=user,r={}", "x".repeat(MESSAGE_MAX));
        let others: [(&[u8], Refused); 8] = [
            (b"n,,n=\xff,r=x", Refused::Malformed("it is not UTF-8")),
            (long.as_bytes(), Refused::Malformed("it is longer than 16,384 bytes")),
            (b"p=tls-exporter,,n=user,r=x", Refused::Unsupported("channel binding")),
            (b"p=,,n=user,r=x", Refused::Unsupported("channel binding")),
            (b"n,,m=x,n=user,r=x", Refused::Unsupported("a mandatory extension")),
            (b"n,,n=user,r=x,m=x", Refused::Unsupported("a mandatory extension")),
            (b"n,a=root,n=user,r=x", Refused::OtherIdentity),
            (b"n,a=User,n=user,r=x", Refused::OtherIdentity),
        ];
        for (first, refused) in others {
            assert_eq!(Exchange::begin().unwrap().receive(Some(first), user), Err(refused));
        }
        let mut silent = Exchange::begin().unwrap();
        assert!(silent.receive(None, user).is_ok());
        assert_eq!(silent.receive(None, user), Err(Refused::Malformed("it is missing")));
    }

    #[test]
    fn malformed_final_messages() {
        let first = "n,,n=user,r=x";
        let good = |exchange: &mut Exchange| client_final(first, &challenge(exchange, first), "secret");
        type Change = fn(&str) -> String;
        let malformed: [Change; 11] = [
            |_| String::new(),
            |last| last.replace(",p=", ",q="),
            |last| last.rsplit_once(',').unwrap().0.to_owned(),
            |last| last.replace("c=biws,", ""),
            |last| last.replace("c=biws", "b=biws"),
            |last| last.replace(",r=", ",n="),
            |last| format!("{last}="),
            |last| format!("{last},x=y"),
            |last| last.replace(",p=", ",x,p="),
            |last| last.replace('=', ""),
            |last| last.rsplit_once(",p=").unwrap().0.to_owned() + ",p=AAAA",
        ];
        for change in malformed {
            let mut exchange = Exchange::begin().unwrap();
            let last = change(&good(&mut exchange));
            let outcome = exchange.receive(Some(last.as_bytes()), user);
            assert!(matches!(outcome, Err(Refused::Malformed(_))), "{last:?}: {outcome:?}");
        }
        let others: [(Change, Refused); 7] = [
            (|last| last.replace("biws", "eSws"), Refused::Foreign("the channel binding")),
            (|last| last.replace("biws", "biwt"), Refused::Foreign("the channel binding")),
            (|last| last.replace(",p=", "A,p="), Refused::Foreign("the nonce")),
            (|last| last.replace("r=x", "r=y"), Refused::Foreign("the nonce")),
            (|_| format!("c=biws,r=x,p={}", BASE64_STANDARD.encode([0; 32])), Refused::Foreign("the nonce")),
            (|last| last.replace(",p=", ",m=x,p="), Refused::Unsupported("a mandatory extension")),
            (|last| last.replace(",p=", ",x=y,p="), Refused::Wrong),
        ];
        for (change, refused) in others {
            let mut exchange = Exchange::begin().unwrap();
            let last = change(&good(&mut exchange));
            assert_eq!(exchange.receive(Some(last.as_bytes()), user), Err(refused), "{last}");
        }
        let mut exchange = Exchange::begin().unwrap();
        challenge(&mut exchange, first);
        assert_eq!(exchange.receive(None, user), Err(Refused::Malformed("it is missing")));
    }

    /// The same answers for an unknown user, one without a verifier and a wrong password.
    #[test]
    fn what_is_answered_tells_nothing() {
        for (first, password) in [("n,,n=user,r=x", "wrong"), ("n,,n=nobody,r=x", "secret"), ("n,,n=nobody,r=x", "")] {
            let mut exchange = Exchange::with_nonce("fixed");
            let challenged = challenge(&mut exchange, first);
            assert!(challenged.starts_with("r=xfixed,s=") && challenged.ends_with("==,i=2"), "{challenged}");
            assert_eq!(challenged, challenge(&mut Exchange::with_nonce("fixed"), first), "the same each time");
            let last = client_final(first, &challenged, password);
            assert_eq!(exchange.receive(Some(last.as_bytes()), user), Err(Refused::Wrong));
        }
    }

    /// A password that was changed while an exchange was under way.
    #[test]
    fn the_verifier_in_force_decides() {
        let first = "n,,n=user,r=x";
        let mut exchange = Exchange::begin().unwrap();
        let last = client_final(first, &challenge(&mut exchange, first), "secret");
        let changed = |_: &str| Arc::new(Verifier::derive(b"other", b"salt", 2));
        assert_eq!(exchange.receive(Some(last.as_bytes()), changed), Err(Refused::Wrong));
    }

    #[test]
    fn nonces_differ() {
        let [one, two] = [Exchange::begin().unwrap(), Exchange::begin().unwrap()];
        assert!(one.nonce != two.nonce && one.nonce.len() == 24);
    }

    proptest! {
        /// A client with the password passes, and learns that the server has its verifier; nothing that was changed on the way passes.
        #[test]
        fn the_right_client_passes_and_no_flipped_bit(
            password in "[ -~]{1,40}", nonce in "[!-+.-~]{1,30}", salt in prop::collection::vec(any::<u8>(), 1..64),
            iterations in 1..4u32, at in any::<prop::sample::Index>(), bit in 0..8, in_first: bool, header in "[ny],(a=user)?,",
        ) {
            let verifier = Arc::new(Verifier::derive(password.as_bytes(), &salt, iterations));
            let lookup = |name: &str| if name == "user" { verifier.clone() } else { Arc::new(Verifier::stand_in(name, 2, 4)) };
            let first = format!("{header}n=user,r={nonce}");
            let run = |flip: Option<(bool, usize)>| {
                let flipped = |text: &str, now: bool| {
                    let mut bytes = text.as_bytes().to_vec();
                    if let Some((_, at)) = flip.filter(|(in_first, _)| *in_first == now) {
                        bytes[at] ^= 1u8 << bit;
                    }
                    bytes
                };
                let mut exchange = Exchange::with_nonce("0123456789");
                let Step::Challenge(sent) = exchange.receive(Some(&flipped(&first, true)), lookup)? else { panic!("no challenge") };
                let last = client_final(&first, std::str::from_utf8(&sent).unwrap(), &password);
                exchange.receive(Some(&flipped(&last, false)), lookup).map(|step| (step, last))
            };
            let (step, last) = run(None).unwrap();
            let Step::Proven { username, data } = step else { panic!("not proven") };
            prop_assert_eq!(&*username, "user");
            prop_assert!(data.starts_with(b"v="));
            let len = if in_first { first.len() } else { last.len() };
            let outcome = run(Some((in_first, at.index(len))));
            prop_assert!(outcome.is_err(), "{:?}", outcome);
        }

        /// Whatever comes, the answer is a refusal.
        #[test]
        fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..200), text in "[npyacrm=,23DC ]{0,60}") {
            for message in [&noise[..], text.as_bytes()] {
                let mut exchange = Exchange::with_nonce("n");
                let outcome = exchange.receive(Some(message), user);
                let proven = matches!(outcome, Ok(Step::Proven { .. }));
                prop_assert!(!proven);
                let mut exchange = Exchange::with_nonce("n");
                challenge(&mut exchange, "n,,n=user,r=x");
                prop_assert!(exchange.receive(Some(message), user).is_err());
            }
        }
    }
}
