//! `pinnace certs demo`: a certificate authority, a server and two devices to try TLS with.
//!
//! For trying only: its keys lie unencrypted in one directory. Must not replace a file that is there.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use super::{Failure, print};

/// `pinnace certs ...`
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a demo authority, a server certificate for localhost, and the devices `device-1` and `device-2`.
    Demo(DemoArgs),
}

/// Where to put them.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// The directory; it is made where it is missing.
    pub dir: PathBuf,
}

/// Makes the demo certificates in `dir` and prints what to do with them.
///
/// # Errors
/// A file that is there already, or that cannot be written.
pub fn demo(dir: &Path) -> Result<(), Failure> {
    let files = make().map_err(Failure::failed)?;
    write(dir, &files)?;
    print(next_steps(dir))
}

struct File {
    name: String,
    content: String,
    mode: u32,
}

fn make() -> Result<Vec<File>, rcgen::Error> {
    let authority = CertifiedIssuer::self_signed(authority()?, KeyPair::generate()?)?;
    let mut files = pair("ca", authority.pem(), authority.key());
    let mut sign = |name: &str, params: &CertificateParams| -> Result<(), rcgen::Error> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?;
        files.extend(pair(name, certificate.pem(), &key));
        Ok(())
    };
    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    sign("server", &leaf("localhost", names.to_vec(), ExtendedKeyUsagePurpose::ServerAuth)?)?;
    for device in DEVICES {
        sign(device, &leaf(device, Vec::new(), ExtendedKeyUsagePurpose::ClientAuth)?)?;
    }
    Ok(files)
}

fn pair(name: &str, certificate: String, key: &KeyPair) -> Vec<File> {
    vec![
        File { name: format!("{name}.pem"), content: certificate, mode: 0o644 },
        File { name: format!("{name}.key"), content: key.serialize_pem(), mode: 0o600 },
    ]
}

fn authority() -> Result<CertificateParams, rcgen::Error> {
    let mut params = named("Pinnace demo CA", Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn leaf(name: &str, subjects: Vec<String>, usage: ExtendedKeyUsagePurpose) -> Result<CertificateParams, rcgen::Error> {
    let mut params = named(name, subjects)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn named(name: &str, subjects: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(subjects)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = date_time_ymd(1970, 1, 1);
    // A day early, for devices whose clock is behind.
    params.not_before = epoch + now.saturating_sub(DAY);
    params.not_after = epoch + now + VALID;
    Ok(params)
}

fn write(dir: &Path, files: &[File]) -> Result<(), Failure> {
    let failed = |path: &Path, error: &io::Error| Failure::Failed(format!("{}: {error}", path.display()));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| failed(dir, &error))?;
    if let Some(there) = files.iter().map(|file| dir.join(&file.name)).find(|path| path.symlink_metadata().is_ok()) {
        let problem = "is there already; choose another directory, nothing was changed";
        return Err(Failure::Failed(format!("{} {problem}", there.display())));
    }
    for file in files {
        let path = dir.join(&file.name);
        let opened = OpenOptions::new().write(true).create_new(true).mode(file.mode).open(&path);
        opened
            .and_then(|mut opened| opened.write_all(file.content.as_bytes()))
            .map_err(|error| failed(&path, &error))?;
    }
    Ok(())
}

fn next_steps(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "Made in {dir}: ca, server, device-1 and device-2, each as .pem and .key. They are for trying only.

A listener that lets in exactly the holders of such certificates; put it into {dir}/pinnace.toml:

  [[listener]]
  address = \"127.0.0.1:8883\"
  [listener.tls]
  certificate = \"server.pem\"
  key = \"server.key\"
  client_ca = \"ca.pem\"
  require_client_certificate = true

Serve it, subscribe as one device and publish as the other:

  pinnace serve --config {dir}/pinnace.toml
  mosquitto_sub -h localhost -p 8883 --cafile {dir}/ca.pem --cert {dir}/device-1.pem --key {dir}/device-1.key -t 'demo/#' -v
  mosquitto_pub -h localhost -p 8883 --cafile {dir}/ca.pem --cert {dir}/device-2.pem --key {dir}/device-2.key -t demo/hello -m hi
"
    )
}

const DEVICES: [&str; 2] = ["device-1", "device-2"];
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const VALID: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_are_private_and_nothing_is_replaced() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("demo");
        demo(&dir).unwrap();
        let mut names = Vec::new();
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            let name = entry.file_name().into_string().unwrap();
            assert_eq!(mode & 0o077 == 0, name.ends_with(".key"), "{name} {mode:o}");
            names.push(name);
        }
        names.sort();
        let expected = "ca.key ca.pem device-1.key device-1.pem device-2.key device-2.pem server.key server.pem";
        assert_eq!(names.join(" "), expected);

        let before = fs::read(dir.join("server.key")).unwrap();
        fs::remove_file(dir.join("ca.key")).unwrap();
        let Err(Failure::Failed(problem)) = demo(&dir) else { panic!("refused") };
        assert!(problem.contains("is there already"), "{problem}");
        assert_eq!(fs::read(dir.join("server.key")).unwrap(), before);
        assert!(!dir.join("ca.key").exists());
    }

    #[test]
    fn each_certificate_is_for_its_use() {
        let files = make().unwrap();
        for (name, common_name, server, client, authority) in [
            ("ca.pem", "Pinnace demo CA", false, false, true),
            ("server.pem", "localhost", true, false, false),
            ("device-1.pem", "device-1", false, true, false),
            ("device-2.pem", "device-2", false, true, false),
        ] {
            let file = files.iter().find(|file| file.name == name).unwrap();
            let (_, pem) = x509_parser::pem::parse_x509_pem(file.content.as_bytes()).unwrap();
            let certificate = pem.parse_x509().unwrap();
            assert_eq!(certificate.subject().iter_common_name().next().unwrap().as_str().unwrap(), common_name);
            assert_eq!(certificate.is_ca(), authority, "{name}");
            assert!(certificate.validity().is_valid(), "{name}");
            let usage = certificate.extended_key_usage().unwrap();
            assert_eq!(usage.as_ref().is_some_and(|usage| usage.value.server_auth), server, "{name}");
            assert_eq!(usage.as_ref().is_some_and(|usage| usage.value.client_auth), client, "{name}");
        }
    }
}
