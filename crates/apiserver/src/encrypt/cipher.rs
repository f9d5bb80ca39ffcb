//! The supported encryption algorithms.

use aws_lc_rs::aead::{AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use crypto_secretbox::aead::Aead;
use crypto_secretbox::{KeyInit, XSalsa20Poly1305};
use rand::RngCore;

const VECTOR: usize = 16;
const NONCE: usize = 12;
const BOX_NONCE: usize = 24;

/// A named key.
pub struct Key {
    pub name: String,
    pub secret: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// AES-CBC with PKCS #7 padding.
    AesCbc,
    /// AES-GCM, with the store key as associated data.
    AesGcm,
    /// XSalsa20 and Poly1305.
    SecretBox,
}

impl Algorithm {
    /// The prefix of encrypted values.
    pub fn prefix(self) -> &'static str {
        match self {
            Algorithm::AesCbc => "k8s:enc:aescbc:v1:",
            Algorithm::AesGcm => "k8s:enc:aesgcm:v1:",
            Algorithm::SecretBox => "k8s:enc:secretbox:v1:",
        }
    }

    /// Kubernetes' error for a value whose key is not configured.
    pub fn unknown_key(self) -> &'static str {
        match self {
            Algorithm::AesCbc | Algorithm::AesGcm => "no matching key was found for the provided AES transformer",
            Algorithm::SecretBox => "no matching key was found for the provided Secretbox transformer",
        }
    }

    /// Kubernetes' error for a value of this many bytes that the key of its name does not open.
    pub fn wrong_key(self, length: usize) -> &'static str {
        let shortest = match self {
            Algorithm::AesCbc => VECTOR,
            Algorithm::AesGcm => NONCE,
            Algorithm::SecretBox => BOX_NONCE,
        };
        match self {
            _ if length < shortest => "the stored data was shorter than the required size",
            Algorithm::AesCbc if !length.is_multiple_of(VECTOR) => {
                "the stored data is not a multiple of the block size"
            }
            Algorithm::AesCbc => "invalid padding on input",
            Algorithm::AesGcm => "cipher: message authentication failed",
            Algorithm::SecretBox => "output array was not large enough for encryption",
        }
    }

    pub fn accepts_key_length(self, bytes: usize) -> bool {
        match self {
            Algorithm::AesCbc | Algorithm::AesGcm => matches!(bytes, 16 | 24 | 32),
            Algorithm::SecretBox => bytes == 32,
        }
    }

    pub fn encrypt(self, secret: &[u8], plain: &[u8], store_key: &str) -> Option<Vec<u8>> {
        let mut random = [0u8; BOX_NONCE];
        rand::rng().fill_bytes(&mut random);
        match self {
            Algorithm::AesCbc => {
                let vector: [u8; VECTOR] = random[..VECTOR].try_into().ok()?;
                let key = PaddedBlockEncryptingKey::cbc_pkcs7(block_key(secret)?).ok()?;
                let mut encrypted = plain.to_vec();
                key.less_safe_encrypt(&mut encrypted, EncryptionContext::Iv128(FixedLength::from(vector))).ok()?;
                Some([&vector[..], &encrypted].concat())
            }
            Algorithm::AesGcm => {
                let nonce: [u8; NONCE] = random[..NONCE].try_into().ok()?;
                let mut encrypted = plain.to_vec();
                let aad = Aad::from(store_key.as_bytes());
                gcm_key(secret)?.seal_in_place_append_tag(Nonce::from(&nonce), aad, &mut encrypted).ok()?;
                Some([&nonce[..], &encrypted].concat())
            }
            Algorithm::SecretBox => {
                let key = XSalsa20Poly1305::new_from_slice(secret).ok()?;
                let encrypted = key.encrypt((&random).into(), plain).ok()?;
                Some([&random[..], &encrypted].concat())
            }
        }
    }

    pub fn decrypt(self, secret: &[u8], encrypted: &[u8], store_key: &str) -> Option<Vec<u8>> {
        match self {
            Algorithm::AesCbc => {
                let (vector, encrypted) = encrypted.split_at_checked(VECTOR)?;
                let vector: [u8; VECTOR] = vector.try_into().ok()?;
                let key = PaddedBlockDecryptingKey::cbc_pkcs7(block_key(secret)?).ok()?;
                let mut plain = encrypted.to_vec();
                let context = DecryptionContext::Iv128(FixedLength::from(vector));
                let length = key.decrypt(&mut plain, context).ok()?.len();
                plain.truncate(length);
                Some(plain)
            }
            Algorithm::AesGcm => {
                let (nonce, encrypted) = encrypted.split_at_checked(NONCE)?;
                let nonce: [u8; NONCE] = nonce.try_into().ok()?;
                let mut plain = encrypted.to_vec();
                let aad = Aad::from(store_key.as_bytes());
                let length = gcm_key(secret)?.open_in_place(Nonce::from(&nonce), aad, &mut plain).ok()?.len();
                plain.truncate(length);
                Some(plain)
            }
            Algorithm::SecretBox => {
                let (nonce, encrypted) = encrypted.split_at_checked(BOX_NONCE)?;
                let nonce: [u8; BOX_NONCE] = nonce.try_into().ok()?;
                XSalsa20Poly1305::new_from_slice(secret).ok()?.decrypt((&nonce).into(), encrypted).ok()
            }
        }
    }
}

fn block_key(secret: &[u8]) -> Option<UnboundCipherKey> {
    let algorithm = match secret.len() {
        16 => &AES_128,
        24 => &AES_192,
        _ => &AES_256,
    };
    UnboundCipherKey::new(algorithm, secret).ok()
}

fn gcm_key(secret: &[u8]) -> Option<LessSafeKey> {
    let algorithm = match secret.len() {
        16 => &AES_128_GCM,
        24 => &AES_192_GCM,
        _ => &AES_256_GCM,
    };
    UnboundKey::new(algorithm, secret).ok().map(LessSafeKey::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encrypted_values_are_decrypted() {
        let (secret, plain) = ([7u8; 32], b"{\"kind\":\"Secret\"}");
        for algorithm in [Algorithm::AesCbc, Algorithm::AesGcm, Algorithm::SecretBox] {
            let encrypted = algorithm.encrypt(&secret, plain, "/registry/secrets/a/b").unwrap();
            assert!(!encrypted.windows(4).any(|part| part == b"kind"));
            assert_eq!(algorithm.decrypt(&secret, &encrypted, "/registry/secrets/a/b").unwrap(), plain);
            assert_ne!(algorithm.decrypt(&[8u8; 32], &encrypted, "/registry/secrets/a/b").as_deref(), Some(&plain[..]));
        }
        let encrypted = Algorithm::AesGcm.encrypt(&secret, plain, "/registry/secrets/a/b").unwrap();
        assert!(Algorithm::AesGcm.decrypt(&secret, &encrypted, "/registry/secrets/a/c").is_none(), "bound to its key");
    }
}
