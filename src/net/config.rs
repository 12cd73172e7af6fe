//! The options of the network: limits on connections; of each listener: where it listens, who may come in, and its TLS files.
//!
//! Plain values. Must not know how they are read, nor open the files that they name.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Limits on connections, whichever listener they come through (`[network]`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The most connections open at once; 0: as many as the limit of open files allows.
    pub max_connections: u32,
    /// The most connections open at once from one address (IPv6: one /64 network); 0: no limit.
    pub max_connections_per_address: u32,
    /// The most new connections in a second; 0: no limit.
    pub max_new_connections_per_sec: u32,
    /// The most new connections in a second from one address (IPv6: one /64 network); 0: no limit.
    pub max_new_connections_per_sec_per_address: u32,
}

/// One listening socket (`[[listener]]`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListenerConfig {
    /// The socket address. Port 0 takes a free port, which the log names.
    pub address: SocketAddr,
    /// Whether a client may connect without a certificate, user name and password. Unset: on loopback addresses only.
    pub allow_anonymous: Option<bool>,
    /// The most connections open at once through this listener; 0: only the limit of the process.
    pub max_connections: u32,
    /// TLS on this listener; absent: plain TCP.
    pub tls: Option<TlsConfig>,
}

impl ListenerConfig {
    /// A plain TCP listener at `address`, with every other option at its default.
    #[must_use]
    pub fn plain(address: SocketAddr) -> Self {
        Self { address, allow_anonymous: None, max_connections: 0, tls: None }
    }

    /// Whether a client may connect without any credentials: as configured, else on loopback addresses only, and never
    /// where a client certificate is required.
    #[must_use]
    pub fn allows_anonymous(&self) -> bool {
        !self.requires_client_certificate() && self.allow_anonymous.unwrap_or_else(|| self.address.ip().is_loopback())
    }

    /// Whether only clients with a certificate that `client_ca` signed get in.
    #[must_use]
    pub fn requires_client_certificate(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some() && tls.require_client_certificate)
    }
}

impl Default for ListenerConfig {
    fn default() -> Self {
        Self::plain(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)))
    }
}

/// The TLS files of a listener (`[listener.tls]`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The server's certificate and its chain, PEM.
    pub certificate: PathBuf,
    /// The private key of the certificate, PEM.
    pub key: PathBuf,
    /// The certificate authorities whose client certificates are accepted, PEM. Unset: none is asked for.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is refused.
    #[serde(default)]
    pub require_client_certificate: bool,
}

const DEFAULT_PORT: u16 = 1883;

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(address: &str, allow: Option<bool>, certificates: Option<bool>) -> ListenerConfig {
        let tls = certificates.map(|required| TlsConfig {
            certificate: "server.pem".into(),
            key: "server.key".into(),
            client_ca: Some("ca.pem".into()),
            require_client_certificate: required,
        });
        ListenerConfig { allow_anonymous: allow, tls, ..ListenerConfig::plain(address.parse().unwrap()) }
    }

    #[test]
    fn anonymous_clients_come_in_on_loopback_or_where_it_is_said() {
        let cases = [
            ("127.0.0.1:1883", None, None, true),
            ("127.8.9.1:1883", None, None, true),
            ("[::1]:1883", None, None, true),
            ("127.0.0.1:1883", Some(false), None, false),
            ("127.0.0.1:1883", None, Some(true), false),
            ("127.0.0.1:1883", Some(true), Some(true), false),
            ("127.0.0.1:1883", None, Some(false), true),
            ("0.0.0.0:1883", None, None, false),
            ("[::]:1883", None, None, false),
            ("192.0.2.1:1883", None, None, false),
            ("192.0.2.1:1883", Some(true), None, true),
            ("192.0.2.1:1883", Some(true), Some(true), false),
        ];
        for (address, allow, certificates, expected) in cases {
            let listener = listener(address, allow, certificates);
            assert_eq!(listener.allows_anonymous(), expected, "{listener:?}");
        }
    }
}
