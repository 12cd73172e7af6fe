//! The name of a client in its X.509 certificate.
//!
//! Knows DER; must not know of TLS: whether the certificate is to be trusted was decided before.

use x509_parser::asn1_rs::Tag;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a certificate names no client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// Not one X.509 certificate in DER.
    #[error("the certificate cannot be parsed: {0}")]
    Unparsable(String),
    /// The subject has no common name.
    #[error("the certificate's subject has no common name (CN)")]
    Missing,
    /// The common name has no character.
    #[error("the certificate's common name (CN) is empty")]
    Empty,
    /// The subject has several common names, equal or not.
    #[error("the certificate's subject has several common names (CN)")]
    Several,
    /// The common name has more bytes than [`MAX_COMMON_NAME_BYTES`].
    #[error("the certificate's common name (CN) has {0} bytes, more than {MAX_COMMON_NAME_BYTES}")]
    TooLong(usize),
    /// The common name is of a string type (that tag) other than UTF8String, PrintableString, NumericString and IA5String.
    #[error("the certificate's common name (CN) is neither UTF8String nor PrintableString (ASN.1 tag {0})")]
    StringType(u32),
    /// The common name is not UTF-8.
    #[error("the certificate's common name (CN) is not UTF-8")]
    NotUtf8,
    /// The common name has a control character, NUL for one.
    #[error("the certificate's common name (CN) has the control character U+{0:04X}")]
    ControlCharacter(u32),
}

/// The only common name in the subject of the certificate `der`.
///
/// # Errors
/// There is not exactly one that can be a user name. The certificate then is to be refused: no other name stands in.
pub fn common_name(der: &[u8]) -> Result<String, CertificateError> {
    use CertificateError as E;
    let (rest, certificate) = X509Certificate::from_der(der).map_err(|error| E::Unparsable(error.to_string()))?;
    if !rest.is_empty() {
        return Err(E::Unparsable("bytes follow it".to_owned()));
    }
    let mut names = certificate.subject().iter_common_name();
    let name = names.next().ok_or(E::Missing)?;
    if names.next().is_some() {
        return Err(E::Several);
    }
    let bytes = name.as_slice();
    if bytes.is_empty() {
        return Err(E::Empty);
    }
    if bytes.len() > MAX_COMMON_NAME_BYTES {
        return Err(E::TooLong(bytes.len()));
    }
    match name.attr_value().tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::NumericString | Tag::Ia5String => {}
        tag => return Err(E::StringType(tag.0)),
    }
    let text = std::str::from_utf8(bytes).map_err(|_| E::NotUtf8)?;
    match text.chars().find(|character| character.is_control()) {
        Some(control) => Err(E::ControlCharacter(u32::from(control))),
        None => Ok(text.to_owned()),
    }
}

/// X.520 allows 64 characters (`ub-common-name`), which are at most 256 bytes.
pub const MAX_COMMON_NAME_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use CertificateError as E;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn certificate(names: Vec<DnValue>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, "Fleet");
        for (kind, name) in [DnType::CommonName, DnType::CustomDnType(vec![2, 5, 4, 3])].into_iter().zip(names) {
            subject.push(kind, name);
        }
        params.distinguished_name = subject;
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    fn utf8(name: &str) -> DnValue {
        DnValue::Utf8String(name.to_owned())
    }

    /// Case D102.
    #[test]
    fn one_common_name_is_the_user_name() {
        let cases = [
            (vec![utf8("device-1")], Ok("device-1")),
            (vec![DnValue::PrintableString("device 2".try_into().unwrap())], Ok("device 2")),
            (vec![DnValue::Ia5String("a@b".try_into().unwrap())], Ok("a@b")),
            (vec![utf8("Gerät/+#")], Ok("Gerät/+#")),
            (vec![], Err(E::Missing)),
            (vec![utf8("")], Err(E::Empty)),
            (vec![utf8("a"), utf8("b")], Err(E::Several)),
            (vec![utf8("a"), utf8("a")], Err(E::Several)),
            (vec![DnValue::BmpString("device".try_into().unwrap())], Err(E::StringType(30))),
            (vec![DnValue::TeletexString("device".try_into().unwrap())], Err(E::StringType(20))),
            (vec![DnValue::UniversalString("device".try_into().unwrap())], Err(E::StringType(28))),
            (vec![utf8("a\0b")], Err(E::ControlCharacter(0))),
            (vec![utf8("a\u{85}b")], Err(E::ControlCharacter(0x85))),
        ];
        for (names, expected) in cases {
            assert_eq!(common_name(&certificate(names.clone())), expected.map(str::to_owned), "{names:?}");
        }
        assert_eq!(common_name(&certificate(vec![utf8(&"x".repeat(256))])).unwrap().len(), 256);
        assert_eq!(common_name(&certificate(vec![utf8(&"x".repeat(2_000))])), Err(E::TooLong(2_000)));
    }

    #[test]
    fn damaged_certificates_are_refused() {
        let good = certificate(vec![utf8("device-1")]);
        let at = good.windows(8).position(|window| window == b"device-1").unwrap();
        let mut not_utf8 = good.clone();
        not_utf8[at] = 0xff;
        // A self-signed certificate has the name as its issuer too, first.
        let at = at + 8 + good[at + 8..].windows(8).position(|window| window == b"device-1").unwrap();
        not_utf8[at] = 0xff;
        assert_eq!(common_name(&not_utf8), Err(E::NotUtf8));
        let longer = [good.as_slice(), b"\0"].concat();
        assert!(matches!(common_name(&longer), Err(E::Unparsable(_))));
        for end in 0..good.len() {
            assert!(matches!(common_name(&good[..end]), Err(E::Unparsable(_))), "cut at {end}");
        }
        for at in 0..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 0x11;
            let _ = common_name(&damaged); // must not panic
        }
    }
}
