//! The stored form of a value, and its encryption with a key of its own.

use std::collections::BTreeMap;

use aws_lc_rs::hkdf::{HKDF_SHA256, Prk};
use knarr_api::names;

use crate::encrypt::cipher::Algorithm;

/// The encrypted key source is a seed from which keys are derived, not a key.
pub const SEED_SOURCE: i32 = 1;
pub const SEED_SIZE: usize = 32;
const INFO_SIZE: usize = 32;
const MAX_KEY_ID: usize = 1024;
const MAX_SOURCE: usize = 1024;
const MAX_ANNOTATIONS: usize = 32 * 1024;

#[derive(Clone, PartialEq, prost::Message)]
pub struct EncryptedObject {
    #[prost(bytes = "vec", tag = "1")]
    pub encrypted_data: Vec<u8>,
    #[prost(string, tag = "2")]
    pub key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    pub encrypted_dek_source: Vec<u8>,
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: BTreeMap<String, Vec<u8>>,
    #[prost(int32, tag = "5")]
    pub source_type: i32,
}

impl EncryptedObject {
    pub fn check(&self) -> Result<(), String> {
        if !matches!(self.source_type, 0 | SEED_SOURCE) {
            return Err(format!("unknown encryptedDEKSourceType: {}", self.source_type));
        }
        if self.encrypted_data.is_empty() {
            return Err("encrypted data is empty".to_owned());
        }
        match self.encrypted_dek_source.len() {
            0 => return Err("failed to validate encrypted DEK source: encrypted DEK source is empty".to_owned()),
            size if size > MAX_SOURCE => {
                return Err(format!(
                    "failed to validate encrypted DEK source: encrypted DEK source is {size} bytes, which exceeds the max \
                     size of {MAX_SOURCE}"
                ));
            }
            _ => {}
        }
        check_key_id(&self.key_id).map_err(|error| format!("failed to validate key id: {error}"))?;
        let total: usize = self.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        if total > MAX_ANNOTATIONS {
            return Err(format!(
                "failed to validate annotations: total size of annotations is {total}, which exceeds the max size of \
                 {MAX_ANNOTATIONS}"
            ));
        }
        let is_qualified = |name: &str| names::is_subdomain(name) && name.contains('.');
        match self.annotations.keys().find(|name| !is_qualified(name)) {
            Some(name) => Err(format!("failed to validate annotations: {name:?} is no fully qualified domain name")),
            None => Ok(()),
        }
    }
}

pub fn check_key_id(key_id: &str) -> Result<(), String> {
    match key_id.len() {
        0 => Err("keyID is empty".to_owned()),
        size if size > MAX_KEY_ID => Err(format!("keyID is {size} bytes, which exceeds the max size of {MAX_KEY_ID}")),
        _ => Ok(()),
    }
}

/// Key IDs are shown as hashes, since they may reveal something of the key service.
pub fn hash(key_id: &str) -> String {
    use sha2::{Digest, Sha256};
    let digits: String = Sha256::digest(key_id.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// What the plugin decrypted: a seed, or a key of earlier versions.
pub enum Source {
    Seed(Vec<u8>),
    Key(Vec<u8>),
}

impl Source {
    pub fn seed(seed: Vec<u8>) -> Result<Source, String> {
        if seed.len() < SEED_SIZE {
            return Err(format!("invalid seed length {} used for key generation", seed.len()));
        }
        Ok(Source::Seed(seed))
    }

    pub fn key(key: Vec<u8>) -> Result<Source, String> {
        if Algorithm::AesGcm.accepts_key_length(key.len()) {
            Ok(Source::Key(key))
        } else {
            Err(format!("crypto/aes: invalid key size {}", key.len()))
        }
    }

    /// Each value has a key of its own, derived from the seed and random bytes that are stored with it.
    pub fn encrypt(&self, plain: &[u8], store_key: &str) -> Result<Vec<u8>, String> {
        let failed = || "the value cannot be encrypted".to_owned();
        match self {
            Source::Key(key) => Algorithm::AesGcm.encrypt(key, plain, store_key).ok_or_else(failed),
            Source::Seed(seed) => {
                let mut info = [0; INFO_SIZE];
                aws_lc_rs::rand::fill(&mut info).map_err(|_| failed())?;
                let key = derived(seed, &info).ok_or_else(failed)?;
                let encrypted = Algorithm::AesGcm.encrypt(&key, plain, store_key).ok_or_else(failed)?;
                Ok([&info[..], &encrypted].concat())
            }
        }
    }

    pub fn decrypt(&self, encrypted: &[u8], store_key: &str) -> Result<Vec<u8>, String> {
        let failed = || "cipher: message authentication failed".to_owned();
        match self {
            Source::Key(key) => Algorithm::AesGcm.decrypt(key, encrypted, store_key).ok_or_else(failed),
            Source::Seed(seed) => {
                let (info, encrypted) = encrypted
                    .split_at_checked(INFO_SIZE)
                    .ok_or("the stored data was shorter than the required size")?;
                let key = derived(seed, info).ok_or_else(failed)?;
                Algorithm::AesGcm.decrypt(&key, encrypted, store_key).ok_or_else(failed)
            }
        }
    }
}

/// A stored value, for fuzzing: whatever was stored, nothing comes out that was not encrypted with the key.
pub fn fuzz(bytes: &[u8]) {
    use prost::Message as _;
    let Ok(object) = EncryptedObject::decode(bytes) else { return };
    let _ = (object.check(), hash(&object.key_id));
    for source in [Source::seed(vec![1; SEED_SIZE]), Source::key(vec![1; 32])].into_iter().flatten() {
        assert!(source.decrypt(&object.encrypted_data, "/registry/secrets/a/b").is_err());
    }
}

/// Only HKDF's expansion: the seed is random already.
fn derived(seed: &[u8], info: &[u8]) -> Option<[u8; 32]> {
    let mut key = [0; 32];
    Prk::new_less_safe(HKDF_SHA256, seed).expand(&[info], HKDF_SHA256).ok()?.fill(&mut key).ok()?;
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that Go's hkdf.Expand(sha256) gives for the same input.
    #[test]
    fn keys_are_derived_as_by_kubernetes() {
        let key = derived(&[1; 32], &[2; 32]).unwrap();
        let shown: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        // T(1) = HMAC-SHA256(seed, info || 0x01)
        let mac = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &[1; 32]);
        let expected = aws_lc_rs::hmac::sign(&mac, &[&[2; 32][..], &[1]].concat());
        let expected: String = expected.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn objects_are_checked() {
        let good = EncryptedObject {
            encrypted_data: vec![1],
            key_id: "k".into(),
            encrypted_dek_source: vec![1],
            annotations: BTreeMap::from([("a.example".to_owned(), vec![1])]),
            source_type: SEED_SOURCE,
        };
        assert_eq!(good.check(), Ok(()));
        for wrong in [
            EncryptedObject { encrypted_data: vec![], ..good.clone() },
            EncryptedObject { key_id: String::new(), ..good.clone() },
            EncryptedObject { key_id: "k".repeat(1025), ..good.clone() },
            EncryptedObject { encrypted_dek_source: vec![], ..good.clone() },
            EncryptedObject { encrypted_dek_source: vec![0; 1025], ..good.clone() },
            EncryptedObject { source_type: 7, ..good.clone() },
            EncryptedObject { annotations: BTreeMap::from([("Not A Name".to_owned(), vec![])]), ..good.clone() },
            EncryptedObject { annotations: BTreeMap::from([("a.b".to_owned(), vec![0; 40_000])]), ..good },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
