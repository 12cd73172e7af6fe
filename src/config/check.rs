//! What cannot be combined, although each option alone is right.
//!
//! Must not open files or sockets: it judges the values alone.

use std::net::{Ipv6Addr, SocketAddr};

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
    if config.storage.durability == Durability::Memory && !config.durability.rules.is_empty() {
        let problem = "nothing is stored with storage.durability = \"memory\", so no topic can be kept better: drop the rules, or set \
                       \"os\" or \"fsync\"";
        fault("durability.rule".into(), problem.into());
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
    if let Some(problem) = server.server_reference.as_deref().and_then(reference) {
        fault("server.server_reference".into(), problem);
    }
    if server.worker_threads > WORKER_THREADS_MAX {
        let problem = format!("more than {WORKER_THREADS_MAX} threads; 0 takes one for each core, which serves most");
        fault("server.worker_threads".into(), problem);
    }
    if server.server_moved && server.server_reference.is_none() {
        fault("server.server_moved".into(), "says not where to: set server.server_reference too".into());
    }
    if let Some(problem) = level(&config.log.level) {
        fault("log.level".into(), problem);
    }
    found
}

/// What is wrong with a Server Reference: references with a space between them (4.11), each in the form that is recommended there.
fn reference(text: &str) -> Option<String> {
    const FORM: &str = "write host or host:port, several separated by a space";
    if text.trim().is_empty() {
        return Some(format!("names no server: {FORM}"));
    }
    if let Some(control) = text.chars().find(|character| character.is_control()) {
        return Some(format!("holds the control character U+{:04X}: {FORM}", u32::from(control)));
    }
    if text.len() > usize::from(u16::MAX) {
        return Some("is longer than 65535 bytes, the most that DISCONNECT can hold".into());
    }
    if text.split(' ').any(str::is_empty) {
        return Some(format!("has a space too many, which stands for a server without a name: {FORM}"));
    }
    let wrong = text.split(' ').find(|one| !is_server(one))?;
    Some(format!("{wrong:?} is no server: {FORM}, an IPv6 address with a port in brackets"))
}

/// A name, or one with a port: one that holds colons in brackets then.
fn is_server(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let Some((host, rest)) = bracketed.split_once(']') else { return false };
            (host, (!rest.is_empty()).then_some(rest))
        }
        None if text.parse::<Ipv6Addr>().is_ok() => (text, None),
        None => match text.find(':') {
            Some(at) => (text.get(..at).unwrap_or_default(), text.get(at..)),
            None => (text, None),
        },
    };
    !host.is_empty() && port.is_none_or(|port| port.strip_prefix(':').is_some_and(is_port))
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
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
/// Each thread has a stack and a read buffer of its own; a number far above that of any machine's cores is a slip.
const WORKER_THREADS_MAX: usize = 1024;
