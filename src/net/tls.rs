//! TLS 1.2 and 1.3 of a listener: its files, and who the client's certificate says it is.
//!
//! Must not know MQTT.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use thiserror::Error;
use tokio_rustls::TlsAcceptor;

use super::TlsConfig;

/// Why a listener's TLS cannot be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read, or holds no PEM of the right kind.
    #[error("{}: {problem}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
        /// The cause.
        source: rustls::pki_types::pem::Error,
    },
    /// A file holds nothing of what it should.
    #[error("{}: no {what} in it; it must be a PEM file", path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// Certificate and key do not fit, or are not usable.
    #[error("{}: {source}", path.display())]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
    /// The client authorities cannot be used.
    #[error("{}: {source}", path.display())]
    ClientCa {
        /// Which file.
        path: PathBuf,
        /// The cause.
        source: rustls::server::VerifierBuilderError,
    },
}

impl TlsError {
    /// The file that it is about.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::File { path, .. }
            | Self::Empty { path, .. }
            | Self::Unusable { path, .. }
            | Self::ClientCa { path, .. } => path,
        }
    }
}

/// Reads the files of `config`.
///
/// # Errors
/// [`TlsError`], which names the file.
pub(super) fn acceptor(config: &TlsConfig) -> Result<TlsAcceptor, TlsError> {
    let chain = certificates(&config.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&config.key).map_err(|source| TlsError::File {
        path: config.key.clone(),
        problem: format!("cannot read a private key: {source}"),
        source,
    })?;
    let builder = ServerConfig::builder();
    let builder = match &config.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|source| TlsError::Unusable { path: path.clone(), source })?;
            }
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots));
            let verifier = if config.require_client_certificate { verifier } else { verifier.allow_unauthenticated() };
            let verifier = verifier.build().map_err(|source| TlsError::ClientCa { path: path.clone(), source })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut server = builder
        .with_single_cert(chain, key)
        .map_err(|source| TlsError::Unusable { path: config.certificate.clone(), source })?;
    server.alpn_protocols = vec![b"mqtt".to_vec()];
    // An idle connection must not hold session tickets beyond the first.
    server.send_tls13_tickets = 1;
    Ok(TlsAcceptor::from(Arc::new(server)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |source: rustls::pki_types::pem::Error| TlsError::File {
        path: path.to_owned(),
        problem: format!("cannot read certificates: {source}"),
        source,
    };
    let all: Vec<_> = CertificateDer::pem_file_iter(path).map_err(file)?.collect::<Result<_, _>>().map_err(file)?;
    if all.is_empty() {
        return Err(TlsError::Empty { path: path.to_owned(), what: "certificate" });
    }
    Ok(all)
}
