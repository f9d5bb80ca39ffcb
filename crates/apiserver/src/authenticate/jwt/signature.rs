//! JSON web keys and signatures: RSA and ECDSA only.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384,
    RSA_PSS_2048_8192_SHA512, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Value, json};
use x509_parser::oid_registry::{OID_EC_P256, OID_NIST_EC_P384, OID_NIST_EC_P521};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey as ParsedKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// The signature algorithms that are accepted. `none` and those with shared keys are not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Es256,
    Es384,
    Es512,
    Ps256,
    Ps384,
    Ps512,
}

impl Algorithm {
    pub const ALL: [Algorithm; 9] = [
        Algorithm::Es256,
        Algorithm::Es384,
        Algorithm::Es512,
        Algorithm::Ps256,
        Algorithm::Ps384,
        Algorithm::Ps512,
        Algorithm::Rs256,
        Algorithm::Rs384,
        Algorithm::Rs512,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Rs256 => "RS256",
            Algorithm::Rs384 => "RS384",
            Algorithm::Rs512 => "RS512",
            Algorithm::Es256 => "ES256",
            Algorithm::Es384 => "ES384",
            Algorithm::Es512 => "ES512",
            Algorithm::Ps256 => "PS256",
            Algorithm::Ps384 => "PS384",
            Algorithm::Ps512 => "PS512",
        }
    }

    pub fn of_name(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// A public key of an issuer.
#[derive(Clone, Debug)]
pub struct PublicKey {
    pub id: String,
    material: Material,
}

#[derive(Clone, Debug)]
enum Material {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// An uncompressed point and its curve's name.
    Point {
        curve: Curve,
        point: Vec<u8>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Curve {
    P256,
    P384,
    P521,
}

/// A key as a key set has it.
#[derive(Deserialize)]
pub struct JsonWebKey {
    #[serde(default)]
    kty: String,
    #[serde(default)]
    kid: String,
    #[serde(default, rename = "use")]
    purpose: String,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
}

impl JsonWebKey {
    /// The key, if it is one for signatures and of a kind that is supported.
    pub fn public_key(&self) -> Option<PublicKey> {
        if self.purpose == "enc" {
            return None;
        }
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok();
        let material = match self.kty.as_str() {
            "RSA" => Material::Rsa { modulus: unsigned(decode(&self.n)?), exponent: unsigned(decode(&self.e)?) },
            "EC" => {
                let (curve, size) = match self.crv.as_str() {
                    "P-256" => (Curve::P256, 32_usize),
                    "P-384" => (Curve::P384, 48),
                    "P-521" => (Curve::P521, 66),
                    _ => return None,
                };
                let (x, y) = (decode(&self.x)?, decode(&self.y)?);
                let mut point = vec![4];
                for coordinate in [x, y] {
                    let missing = size.checked_sub(coordinate.len())?;
                    point.extend(std::iter::repeat_n(0, missing));
                    point.extend(coordinate);
                }
                Material::Point { curve, point }
            }
            _ => return None,
        };
        Some(PublicKey { id: self.kid.clone(), material })
    }
}

fn unsigned(bytes: Vec<u8>) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes[zeros..].to_vec()
}

impl PublicKey {
    /// Reads a SubjectPublicKeyInfo.
    pub fn of_spki(id: String, der: &[u8]) -> Option<PublicKey> {
        let (_, info) = SubjectPublicKeyInfo::from_der(der).ok()?;
        let material = match info.parsed().ok()? {
            ParsedKey::RSA(key) => {
                Material::Rsa { modulus: unsigned(key.modulus.to_vec()), exponent: unsigned(key.exponent.to_vec()) }
            }
            ParsedKey::EC(point) => {
                let oid = info.algorithm.parameters.as_ref()?.as_oid().ok()?;
                let curve =
                    [(OID_EC_P256, Curve::P256), (OID_NIST_EC_P384, Curve::P384), (OID_NIST_EC_P521, Curve::P521)]
                        .into_iter()
                        .find_map(|(own, curve)| (own == oid).then_some(curve))?;
                Material::Point { curve, point: point.data().to_vec() }
            }
            _ => return None,
        };
        Some(PublicKey { id, material })
    }

    /// The algorithm that this server signs with such a key.
    pub fn algorithm(&self) -> Algorithm {
        match &self.material {
            Material::Rsa { .. } => Algorithm::Rs256,
            Material::Point { curve: Curve::P256, .. } => Algorithm::Es256,
            Material::Point { curve: Curve::P384, .. } => Algorithm::Es384,
            Material::Point { curve: Curve::P521, .. } => Algorithm::Es512,
        }
    }

    /// The key as a key set has it.
    pub fn to_json(&self) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let algorithm = self.algorithm().name();
        match &self.material {
            Material::Rsa { modulus, exponent } => json!({
                "use": "sig", "kty": "RSA", "kid": self.id, "alg": algorithm, "n": encode(modulus), "e": encode(exponent),
            }),
            Material::Point { curve, point } => {
                let name = match curve {
                    Curve::P256 => "P-256",
                    Curve::P384 => "P-384",
                    Curve::P521 => "P-521",
                };
                let coordinates = point.get(1..).unwrap_or_default();
                let (x, y) = coordinates.split_at(coordinates.len() / 2);
                json!({
                    "use": "sig", "kty": "EC", "kid": self.id, "crv": name, "alg": algorithm, "x": encode(x), "y": encode(y),
                })
            }
        }
    }

    /// Whether the signature is this key's over the message. The key decides the family of algorithms, so that a token
    /// cannot have an RSA key used as anything else.
    pub fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match &self.material {
            Material::Rsa { modulus, exponent } => {
                let parameters = match algorithm {
                    Algorithm::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::Rs384 => &RSA_PKCS1_2048_8192_SHA384,
                    Algorithm::Rs512 => &RSA_PKCS1_2048_8192_SHA512,
                    Algorithm::Ps256 => &RSA_PSS_2048_8192_SHA256,
                    Algorithm::Ps384 => &RSA_PSS_2048_8192_SHA384,
                    Algorithm::Ps512 => &RSA_PSS_2048_8192_SHA512,
                    Algorithm::Es256 | Algorithm::Es384 | Algorithm::Es512 => return false,
                };
                RsaPublicKeyComponents { n: modulus, e: exponent }.verify(parameters, message, signature).is_ok()
            }
            Material::Point { curve, point } => {
                let parameters = match (algorithm, curve) {
                    (Algorithm::Es256, Curve::P256) => &ECDSA_P256_SHA256_FIXED,
                    (Algorithm::Es384, Curve::P384) => &ECDSA_P384_SHA384_FIXED,
                    (Algorithm::Es512, Curve::P521) => &ECDSA_P521_SHA512_FIXED,
                    _ => return false,
                };
                UnparsedPublicKey::new(parameters, point).verify(message, signature).is_ok()
            }
        }
    }
}
