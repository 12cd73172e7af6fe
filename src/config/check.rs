//! What cannot be combined, although each option alone is right.
//!
//! Must not open files or sockets: it judges the values alone.

use std::net::SocketAddr;

use tracing_subscriber::EnvFilter;

use super::Config;
use super::fault::{Fault, Origins};
use crate::net::config::{ListenerConfig, TlsConfig};
use crate::session::response;
use crate::storage::Durability;

/// Every combination in `config` that cannot be served.
pub(super) fn faults(config: &Config, origins: &Origins) -> Vec<Fault> {
    let mut found = Vec::new();
    let mut fault = |key: String, problem: String| {
        found.push(Fault { origin: origins.near(&key).clone(), key, problem });
    };
    if config.listeners.is_empty() {
        fault("listener".into(), "no listener: nobody could connect; add a [[listener]]".into());
    }
    for (index, listener) in config.listeners.iter().enumerate() {
        let key = |option: &str| format!("listener[{index}].{option}");
        if let Some(problem) = unguarded(listener, config.auth.password_file.is_some()) {
            fault(key("address"), problem);
        }
        if let Some(tls) = &listener.tls
            && let Some(problem) = certificates(listener, tls)
        {
            fault(key("tls.require_client_certificate"), problem.into());
        }
        let same = |other: &ListenerConfig| other.address == listener.address && listener.address.port() != 0;
        if let Some(first) = config.listeners.iter().take(index).position(same) {
            fault(key("address"), format!("{} is also the address of listener[{first}]", listener.address));
        }
    }
    if config.storage.durability != Durability::Memory && !cfg!(feature = "rocksdb") {
        let problem = "this build has no durable store (feature `rocksdb`): only \"memory\" can be served";
        fault("storage.durability".into(), problem.into());
    }
    if config.storage.commit_max_bytes < COMMIT_MIN_BYTES {
        let problem = format!("nothing would ever be committed: at least {COMMIT_MIN_BYTES}");
        fault("storage.commit_max_bytes".into(), problem);
    }
    if config.session.max_packet_size_bytes.get() < PACKET_MIN_BYTES {
        let problem = format!("no CONNECT would be small enough: at least {PACKET_MIN_BYTES}");
        fault("session.max_packet_size_bytes".into(), problem);
    }
    if let Some(problem) = response::fault(&config.session.response_topic_prefix) {
        fault("session.response_topic_prefix".into(), problem.into());
    }
    let server = &config.server;
    if server.server_reference.as_ref().is_some_and(|text| text.trim().is_empty() || text.contains('\0')) {
        fault("server.server_reference".into(), "names no server: write host or host:port".into());
    }
    if server.server_moved && server.server_reference.is_none() {
        fault("server.server_moved".into(), "says not where to: set server.server_reference too".into());
    }
    if let Some(problem) = level(&config.log.level) {
        fault("log.level".into(), problem);
    }
    found
}

/// What is wrong with a log level. A word that is no level would be taken for a module, and nothing would be logged.
fn level(text: &str) -> Option<String> {
    if let Err(error) = EnvFilter::builder().parse(text) {
        return Some(format!("{error}; write a level such as info, or pinnace=debug,info"));
    }
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty() && !word.contains(['=', '[', ':']));
    let unknown = words.into_iter().find(|word| !LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word)))?;
    let near = LEVELS
        .iter()
        .max_by(|one, other| strsim::jaro_winkler(one, unknown).total_cmp(&strsim::jaro_winkler(other, unknown)));
    Some(format!("{unknown:?} is no level; did you mean {:?}?", near.unwrap_or(&"info")))
}

fn unguarded(listener: &ListenerConfig, has_passwords: bool) -> Option<String> {
    let asks = has_passwords || listener.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    if asks || listener.allow_anonymous == Some(true) {
        return None;
    }
    let address: SocketAddr = listener.address;
    if listener.allows_anonymous() {
        return None;
    }
    Some(if listener.allow_anonymous == Some(false) {
        format!("nobody could log in at {address}: set auth.password_file, or tls.client_ca on this listener")
    } else {
        format!(
            "{address} is reachable from outside and asks for no authentication: set auth.password_file, or \
             tls.client_ca with require_client_certificate on this listener, or allow_anonymous = true to let everybody in"
        )
    })
}

fn certificates(listener: &ListenerConfig, tls: &TlsConfig) -> Option<&'static str> {
    if !tls.require_client_certificate {
        return None;
    }
    if tls.client_ca.is_none() {
        return Some("needs client_ca: the certificate authorities whose clients may connect");
    }
    (listener.allow_anonymous == Some(true))
        .then_some("contradicts allow_anonymous = true: without a certificate nobody gets in; drop one of the two")
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Less could not hold what one turn of a connection may store.
const COMMIT_MIN_BYTES: usize = 64 * 1024;
const PACKET_MIN_BYTES: u32 = 64;
