//! Seals what a new server receives with a key derived from its token's secret: only the holder of the token can open it,
//! whatever logs or proxies see of the connection.

use anyhow::anyhow;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

const PURPOSE: &[u8] = b"knarr server join v1";

/// A sealed message; both fields are base64.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sealed {
    salt: String,
    content: String,
}

impl Sealed {
    pub fn new(secret: &str, mut content: Vec<u8>) -> anyhow::Result<Self> {
        let salt: [u8; 32] = rand::random();
        let key = key(secret, &salt)?;
        let failed = |_| anyhow!("cannot encrypt");
        key.seal_in_place_append_tag(nonce(), Aad::from(PURPOSE), &mut content).map_err(failed)?;
        Ok(Self { salt: STANDARD.encode(salt), content: STANDARD.encode(content) })
    }

    pub fn open(&self, secret: &str) -> anyhow::Result<Vec<u8>> {
        let wrong = || anyhow!("what the server sent was not sealed with this token");
        let salt = STANDARD.decode(&self.salt).map_err(|_| wrong())?;
        let mut content = STANDARD.decode(&self.content).map_err(|_| wrong())?;
        let opened = key(secret, &salt)?.open_in_place(nonce(), Aad::from(PURPOSE), &mut content);
        opened.map(|content| content.to_vec()).map_err(|_| wrong())
    }
}

fn key(secret: &str, salt: &[u8]) -> anyhow::Result<LessSafeKey> {
    let failed = |_| anyhow!("cannot derive a key");
    let extracted = Salt::new(HKDF_SHA256, salt).extract(secret.as_bytes());
    let info = [PURPOSE];
    Ok(LessSafeKey::new(UnboundKey::from(extracted.expand(&info, &AES_256_GCM).map_err(failed)?)))
}

/// Each key seals one message, because each has a salt of its own.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_opens_a_sealed_message() {
        let sealed = Sealed::new("0123456789abcdef", b"keys".to_vec()).unwrap();
        assert_eq!(sealed.open("0123456789abcdef").unwrap(), b"keys");
        assert!(sealed.open("0123456789abcdeg").is_err());
        let text = serde_json::to_string(&sealed).unwrap();
        let mut read: Sealed = serde_json::from_str(&text).unwrap();
        read.salt = STANDARD.encode([1; 32]);
        assert!(read.open("0123456789abcdef").is_err());
        assert!(Sealed { salt: "!".into(), content: "!".into() }.open("a").is_err());
    }
}
