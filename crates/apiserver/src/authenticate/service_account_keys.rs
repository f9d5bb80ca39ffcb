//! The keys of service-account tokens: one signs, several may verify.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm as Signing, EncodingKey, Header};
use rcgen::PublicKeyData;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;

use super::jwt::{Algorithm, PublicKey};

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("the service-account key cannot be read: {0}")]
    Read(#[from] rcgen::Error),
    #[error("the service-account key cannot be used: {0}")]
    Use(#[from] jsonwebtoken::errors::Error),
    #[error("the service-account key is neither an RSA nor an ECDSA key of P-256 or P-384")]
    Kind,
    #[error("{0}: {1}")]
    File(PathBuf, String),
    #[error("data does not contain any valid RSA or ECDSA public keys")]
    NoKeys,
}

/// The key that signs tokens.
pub struct SigningKey {
    key: EncodingKey,
    algorithm: Signing,
    pub public: PublicKey,
}

impl SigningKey {
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let pair = rcgen::KeyPair::from_pem(pem)?;
        let public = of_spki(&pair.subject_public_key_info()).ok_or(KeyError::Kind)?;
        let (algorithm, key) = match public.algorithm() {
            Algorithm::Es256 => (Signing::ES256, EncodingKey::from_ec_der(&pair.serialize_der())),
            Algorithm::Es384 => (Signing::ES384, EncodingKey::from_ec_der(&pair.serialize_der())),
            Algorithm::Rs256 => (Signing::RS256, EncodingKey::from_rsa_pem(pem.as_bytes())?),
            _ => return Err(KeyError::Kind),
        };
        Ok(SigningKey { key, algorithm, public })
    }

    pub fn sign(&self, claims: &impl Serialize) -> Result<String, KeyError> {
        let header = Header { kid: Some(self.public.id.clone()), typ: None, ..Header::new(self.algorithm) };
        Ok(jsonwebtoken::encode(&header, claims, &self.key)?)
    }
}

/// A public key, named by the hash of its encoding as Kubernetes names it.
fn of_spki(der: &[u8]) -> Option<PublicKey> {
    PublicKey::of_spki(URL_SAFE_NO_PAD.encode(Sha256::digest(der)), der)
}

/// All keys of a PEM file: public keys, private keys and certificates.
pub fn public_keys(pem: &str) -> Result<Vec<PublicKey>, KeyError> {
    let private = |der: Vec<u8>| -> Option<PublicKey> {
        let key = rustls_pki_types::PrivateKeyDer::try_from(der).ok()?;
        of_spki(&rcgen::KeyPair::try_from(&key).ok()?.subject_public_key_info())
    };
    let of_section = |section: Pem| match section.label.as_str() {
        "PUBLIC KEY" => of_spki(&section.contents),
        "RSA PUBLIC KEY" => of_spki(&rsa_info(&section.contents)),
        "PRIVATE KEY" | "RSA PRIVATE KEY" | "EC PRIVATE KEY" => private(section.contents),
        "CERTIFICATE" => {
            let certificate = X509Certificate::from_der(&section.contents).ok();
            certificate.and_then(|(_, certificate)| of_spki(certificate.public_key().raw))
        }
        _ => None,
    };
    let sections = Pem::iter_from_buffer(pem.as_bytes()).filter_map(Result::ok);
    let keys: Vec<PublicKey> = sections.filter_map(of_section).collect();
    if keys.is_empty() { Err(KeyError::NoKeys) } else { Ok(keys) }
}

/// Wraps an RSA key of PKCS #1 as a SubjectPublicKeyInfo.
fn rsa_info(pkcs1: &[u8]) -> Vec<u8> {
    const RSA_ENCRYPTION: [u8; 15] =
        [0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
    let bits = element(0x03, &[&[0], pkcs1].concat());
    element(0x30, &[&RSA_ENCRYPTION, bits.as_slice()].concat())
}

/// A DER element with a length of up to four bytes.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len() as u32;
    let mut encoded = vec![tag];
    if length < 0x80 {
        encoded.push(length as u8);
    } else {
        let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
        encoded.push(0x80 | bytes.len() as u8);
        encoded.extend(bytes);
    }
    encoded.extend(content);
    encoded
}

/// The key set that other servers verify tokens with.
pub fn key_set(keys: &[PublicKey]) -> Value {
    serde_json::json!({"keys": keys.iter().map(PublicKey::to_json).collect::<Vec<_>>()})
}
