//! The client's side of SCRAM-SHA-256 (RFC 5802, RFC 7677) and of AUTH.
//!
//! Shares nothing with the broker but the cryptographic crates.

use base64::{Engine, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::{
    Client, Connect, Packet, Value,
    wire::{self, property},
};

/// The method's name.
pub const METHOD: &str = "SCRAM-SHA-256";

fn mac(key: &[u8], text: &[u8]) -> [u8; 32] {
    Hmac::<Sha256>::new_from_slice(key).unwrap().chain_update(text).finalize().into_bytes().into()
}

/// The entry of a password file that holds nothing but a verifier, quick to compute.
pub fn verifier(password: &str) -> String {
    let salt = b"sixteen salt byt";
    let salted = pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(password.as_bytes(), salt, 3);
    let stored_key = Sha256::digest(mac(&salted, b"Client Key"));
    let [salt, stored, server] =
        [&salt[..], &stored_key[..], &mac(&salted, b"Server Key")[..]].map(|bytes| BASE64_STANDARD.encode(bytes));
    format!("{METHOD}$3:{salt}${stored}:{server}")
}

/// A client that proves who it is, once.
pub struct Scram {
    password: String,
    header: String,
    bare: String,
    /// What the server must say at the end.
    signature: Vec<u8>,
}

impl Scram {
    /// Of a user.
    pub fn new(user: &str, password: &str) -> Self {
        static NONCE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let nonce = NONCE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let user = user.replace('=', "=3D").replace(',', "=2C");
        let bare = format!("n={user},r=nonce-of-the-client-{nonce}");
        Self { password: password.into(), header: "n,,".into(), bare, signature: Vec::new() }
    }

    /// The first message.
    pub fn first(&self) -> Vec<u8> {
        [self.header.as_bytes(), self.bare.as_bytes()].concat()
    }

    /// The final message that answers a challenge.
    pub fn last(&mut self, challenge: &[u8]) -> Vec<u8> {
        let challenge = std::str::from_utf8(challenge).unwrap();
        let [nonce, salt, iterations] =
            ["r=", "s=", "i="].map(|name| challenge.split(',').find_map(|part| part.strip_prefix(name)).unwrap());
        let own = self.bare.split_once(",r=").unwrap().1;
        assert!(nonce.len() >= own.len() + 16 && nonce.starts_with(own), "{nonce}");
        let salt = BASE64_STANDARD.decode(salt).unwrap();
        let salted =
            pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(self.password.as_bytes(), &salt, iterations.parse().unwrap());
        let client_key = mac(&salted, b"Client Key");
        let without_proof = format!("c={},r={nonce}", BASE64_STANDARD.encode(&self.header));
        let said = format!("{},{challenge},{without_proof}", self.bare);
        let signature = mac(&Sha256::digest(client_key), said.as_bytes());
        let proof: Vec<u8> = client_key.iter().zip(signature).map(|(key, byte)| key ^ byte).collect();
        let signature = mac(&mac(&salted, b"Server Key"), said.as_bytes());
        self.signature = format!("v={}", BASE64_STANDARD.encode(signature)).into();
        format!("{without_proof},p={}", BASE64_STANDARD.encode(proof)).into()
    }

    /// Checks the last words of a server that has the verifier [MQTT-4.12.0-5].
    pub fn check(&self, packet: &Packet) {
        assert_eq!(packet.property(property::AUTHENTICATION_METHOD), Some(&Value::Text(METHOD.into())), "{packet:?}");
        assert!(!self.signature.is_empty());
        assert_eq!(packet.property(property::AUTHENTICATION_DATA), Some(&Value::Binary(self.signature.clone())));
    }
}

/// A CONNECT with a method, and data if there is some.
pub fn by(connect: Connect, method: &str, data: Option<&[u8]>) -> Connect {
    let connect = connect.property(property::AUTHENTICATION_METHOD, Value::Text(method.into()));
    match data {
        Some(data) => connect.property(property::AUTHENTICATION_DATA, Value::Binary(data.into())),
        None => connect,
    }
}

/// An AUTH.
pub fn auth(code: u8, method: Option<&str>, data: Option<&[u8]>) -> Vec<u8> {
    let mut list = Vec::new();
    list.extend(method.map(|method| (property::AUTHENTICATION_METHOD, Value::Text(method.into()))));
    list.extend(data.map(|data| (property::AUTHENTICATION_DATA, Value::Binary(data.into()))));
    let mut body = vec![code];
    wire::properties(&mut body, &list);
    wire::packet(0xf0, &body)
}

/// The AUTH that goes on with `data`.
pub fn go_on(data: &[u8]) -> Vec<u8> {
    auth(0x18, Some(METHOD), Some(data))
}

/// The AUTH that begins again with `data`.
pub fn again(data: &[u8]) -> Vec<u8> {
    auth(0x19, Some(METHOD), Some(data))
}

/// The data of the AUTH that comes next, which must ask for more: a code of 0x18, the method, and nothing but data [MQTT-4.12.0-2],
/// [MQTT-4.12.0-5].
pub fn challenge(client: &mut Client) -> Vec<u8> {
    let packet = client.wait_for("a challenge", |packet| !matches!(packet, Packet::Publish(_) | Packet::Ack { .. }));
    let Packet::Auth { code: 0x18, properties } = &packet else { panic!("expected a challenge, got {packet:?}") };
    assert_eq!(packet.property(property::AUTHENTICATION_METHOD), Some(&Value::Text(METHOD.into())));
    assert!(properties.iter().all(|(id, _)| [0x15, 0x16].contains(id)), "{packet:?}");
    match packet.property(property::AUTHENTICATION_DATA) {
        Some(Value::Binary(data)) => data.clone(),
        None => Vec::new(),
        other => panic!("{other:?}"),
    }
}

/// Sends CONNECT with the first message; gives the challenge.
pub fn challenged(client: &mut Client, connect: &Connect, scram: &Scram) -> Vec<u8> {
    client.speak_v5(true);
    client.send(&by(connect.clone(), METHOD, Some(&scram.first())).encode());
    challenge(client)
}

/// The whole exchange; gives the CONNACK, whose last words are right where it lets the client in.
pub fn try_login(client: &mut Client, connect: &Connect, scram: &mut Scram) -> Packet {
    let challenge = challenged(client, connect, scram);
    client.send(&go_on(&scram.last(&challenge)));
    let connack = client.receive();
    if matches!(connack, Packet::ConnAck { code: 0, .. }) {
        scram.check(&connack);
    }
    client.connack = Some(connack.clone());
    connack
}
