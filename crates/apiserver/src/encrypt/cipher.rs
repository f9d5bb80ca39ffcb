//! The ways in which a value can be encrypted.

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

/// One key under its name.
pub struct Key {
    pub name: String,
    pub secret: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// AES-CBC with PKCS #7 padding.
    AesCbc,
    /// AES-GCM, bound to the place where the value is kept.
    AesGcm,
    /// XSalsa20 and Poly1305.
    SecretBox,
}

impl Algorithm {
    /// What stands before a value that was encrypted so.
    pub fn prefix(self) -> &'static str {
        match self {
            Algorithm::AesCbc => "k8s:enc:aescbc:v1:",
            Algorithm::AesGcm => "k8s:enc:aesgcm:v1:",
            Algorithm::SecretBox => "k8s:enc:secretbox:v1:",
        }
    }

    pub fn takes_key_of(self, bytes: usize) -> bool {
        match self {
            Algorithm::AesCbc | Algorithm::AesGcm => matches!(bytes, 16 | 24 | 32),
            Algorithm::SecretBox => bytes == 32,
        }
    }

    pub fn encrypt(self, secret: &[u8], plain: &[u8], place: &str) -> Option<Vec<u8>> {
        let mut random = [0u8; BOX_NONCE];
        rand::rng().fill_bytes(&mut random);
        match self {
            Algorithm::AesCbc => {
                let vector: [u8; VECTOR] = random[..VECTOR].try_into().ok()?;
                let key = PaddedBlockEncryptingKey::cbc_pkcs7(block_key(secret)?).ok()?;
                let mut sealed = plain.to_vec();
                key.less_safe_encrypt(&mut sealed, EncryptionContext::Iv128(FixedLength::from(vector))).ok()?;
                Some([&vector[..], &sealed].concat())
            }
            Algorithm::AesGcm => {
                let nonce: [u8; NONCE] = random[..NONCE].try_into().ok()?;
                let mut sealed = plain.to_vec();
                let aad = Aad::from(place.as_bytes());
                gcm_key(secret)?.seal_in_place_append_tag(Nonce::from(&nonce), aad, &mut sealed).ok()?;
                Some([&nonce[..], &sealed].concat())
            }
            Algorithm::SecretBox => {
                let key = XSalsa20Poly1305::new_from_slice(secret).ok()?;
                let sealed = key.encrypt((&random).into(), plain).ok()?;
                Some([&random[..], &sealed].concat())
            }
        }
    }

    pub fn decrypt(self, secret: &[u8], sealed: &[u8], place: &str) -> Option<Vec<u8>> {
        match self {
            Algorithm::AesCbc => {
                let (vector, sealed) = sealed.split_at_checked(VECTOR)?;
                let vector: [u8; VECTOR] = vector.try_into().ok()?;
                let key = PaddedBlockDecryptingKey::cbc_pkcs7(block_key(secret)?).ok()?;
                let mut plain = sealed.to_vec();
                let context = DecryptionContext::Iv128(FixedLength::from(vector));
                let length = key.decrypt(&mut plain, context).ok()?.len();
                plain.truncate(length);
                Some(plain)
            }
            Algorithm::AesGcm => {
                let (nonce, sealed) = sealed.split_at_checked(NONCE)?;
                let nonce: [u8; NONCE] = nonce.try_into().ok()?;
                let mut plain = sealed.to_vec();
                let aad = Aad::from(place.as_bytes());
                let length = gcm_key(secret)?.open_in_place(Nonce::from(&nonce), aad, &mut plain).ok()?.len();
                plain.truncate(length);
                Some(plain)
            }
            Algorithm::SecretBox => {
                let (nonce, sealed) = sealed.split_at_checked(BOX_NONCE)?;
                let nonce: [u8; BOX_NONCE] = nonce.try_into().ok()?;
                XSalsa20Poly1305::new_from_slice(secret).ok()?.decrypt((&nonce).into(), sealed).ok()
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
    fn what_was_encrypted_comes_back() {
        let (secret, plain) = ([7u8; 32], b"{\"kind\":\"Secret\"}");
        for algorithm in [Algorithm::AesCbc, Algorithm::AesGcm, Algorithm::SecretBox] {
            let sealed = algorithm.encrypt(&secret, plain, "/registry/secrets/a/b").unwrap();
            assert!(!sealed.windows(4).any(|part| part == b"kind"));
            assert_eq!(algorithm.decrypt(&secret, &sealed, "/registry/secrets/a/b").unwrap(), plain);
            assert_ne!(algorithm.decrypt(&[8u8; 32], &sealed, "/registry/secrets/a/b").as_deref(), Some(&plain[..]));
        }
        let sealed = Algorithm::AesGcm.encrypt(&secret, plain, "/registry/secrets/a/b").unwrap();
        assert!(Algorithm::AesGcm.decrypt(&secret, &sealed, "/registry/secrets/a/c").is_none(), "bound to its place");
    }
}
