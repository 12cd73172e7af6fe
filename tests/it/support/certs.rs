//! Certificates made for a test, and what a TLS client needs of them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// A certification authority in memory; its certificate is `NAME.pem` in the directory.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub certificate: PathBuf,
    dir: PathBuf,
}

/// A certificate with its key, as PEM files.
#[derive(Debug, Clone)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// A new one.
    pub fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name = named(name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let path = dir.join(format!("{name}.pem"));
        std::fs::write(&path, certificate.pem()).unwrap();
        Self { issuer: Issuer::new(params, key), certificate: path, dir: dir.into() }
    }

    /// A server certificate for localhost and 127.0.0.1.
    pub fn server(&self) -> Identity {
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.distinguished_name = named("localhost");
        self.sign("server", params)
    }

    /// A client certificate with this common name.
    pub fn client(&self, common_name: &str) -> Identity {
        self.client_of(common_name, named(common_name))
    }

    /// A client certificate with any subject; its files are named by `name`.
    pub fn client_of(&self, name: &str, subject: DistinguishedName) -> Identity {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name = subject;
        self.sign(name, params)
    }

    /// A client certificate that ran out.
    pub fn expired_client(&self, common_name: &str) -> Identity {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name = named(common_name);
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        self.sign(&format!("{common_name}-expired"), params)
    }

    fn sign(&self, name: &str, mut params: CertificateParams) -> Identity {
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(60).collect();
        let made =
            Identity { certificate: self.dir.join(format!("{name}.pem")), key: self.dir.join(format!("{name}.key")) };
        std::fs::write(&made.certificate, certificate.pem()).unwrap();
        std::fs::write(&made.key, key.serialize_pem()).unwrap();
        made
    }
}

/// A subject of one common name.
pub fn named(common_name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, common_name);
    subject
}

/// A client that trusts `ca` and shows `identity`, over these versions of TLS.
pub fn tls_client_of(
    ca: &Path,
    identity: Option<&Identity>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let chain = CertificateDer::pem_file_iter(&identity.certificate).unwrap().map(Result::unwrap).collect();
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&identity.key).unwrap()).unwrap()
        }
    })
}

/// As [`tls_client_of`] with every version.
pub fn tls_client(ca: &Path, identity: Option<&Identity>) -> Arc<rustls::ClientConfig> {
    tls_client_of(ca, identity, rustls::ALL_VERSIONS)
}
