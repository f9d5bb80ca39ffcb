//! Join tokens: `ID.SECRET.PIN`. The first two are a Kubernetes bootstrap token, the pin is the SHA-256 of the public key of
//! the cluster's certificate authority, the same hash that kubeadm prints.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use rand::Rng;
use sha2::{Digest, Sha256};

/// The bootstrap token, which the API server stores.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    pub id: String,
    pub secret: String,
}

/// The hash of an authority's public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin([u8; 32]);

#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub bootstrap: BootstrapToken,
    pub pin: Pin,
}

const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;

impl BootstrapToken {
    pub fn generate() -> Self {
        let mut random = rand::rng();
        let mut letters = |count: usize| -> String {
            let alphabet = b"abcdefghijklmnopqrstuvwxyz0123456789";
            (0..count).map(|_| char::from(alphabet[random.random_range(0..alphabet.len())])).collect()
        };
        BootstrapToken { id: letters(ID_LENGTH), secret: letters(SECRET_LENGTH) }
    }

    /// The bearer token for the API server.
    pub fn bearer(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

impl Pin {
    /// The pin of a certificate (DER).
    pub fn of(certificate: &[u8]) -> anyhow::Result<Self> {
        let (_, parsed) =
            x509_parser::parse_x509_certificate(certificate).context("cannot parse the authority's certificate")?;
        Ok(Pin(Sha256::digest(parsed.public_key().raw).into()))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.bootstrap.bearer(), self.pin)
    }
}

// Secrets are never printed by accident.
impl fmt::Debug for BootstrapToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "BootstrapToken({})", self.id)
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "JoinToken({}, {})", self.bootstrap.id, self.pin)
    }
}

impl FromStr for JoinToken {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parts: Vec<&str> = text.trim().split('.').collect();
        match parts.as_slice() {
            [id, secret, pin] if is_word(id, ID_LENGTH) && is_word(secret, SECRET_LENGTH) => {
                let bootstrap = BootstrapToken { id: (*id).to_owned(), secret: (*secret).to_owned() };
                Ok(JoinToken { bootstrap, pin: pin.parse()? })
            }
            [id, secret] if is_word(id, ID_LENGTH) && is_word(secret, SECRET_LENGTH) => {
                bail!(
                    "the token has no hash of the cluster's certificate authority: \
                     use the whole command that `knarr token create --print-join-command` prints"
                )
            }
            _ => bail!(
                "not a join token (ID.SECRET.HASH): use the one that \
                 `knarr token create --print-join-command` prints on the server"
            ),
        }
    }
}

impl FromStr for Pin {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() || !text.is_ascii() {
            bail!("the hash in the token has {} characters, expected {}: is it complete?", text.len(), 2 * bytes.len());
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16)
                .context("the hash in the token is not hexadecimal")?;
        }
        Ok(Pin(bytes))
    }
}

fn is_word(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_token_is_parsed() {
        let token = JoinToken { bootstrap: BootstrapToken::generate(), pin: Pin([0xa7; 32]) };
        assert_eq!(token.to_string().parse::<JoinToken>().unwrap(), token);
        assert!(!format!("{token:?}").contains(&token.bootstrap.secret));
    }

    #[test]
    fn an_invalid_token_is_rejected_with_the_reason() {
        let pin = "ab".repeat(32);
        for (text, reason) in [
            ("abcdef.0123456789abcdef".to_owned(), "has no hash"),
            (format!("abcdef.0123456789abcdef.{}", &pin[2..]), "has 62 characters"),
            (format!("abcdef.0123456789abcdef.{}", "xy".repeat(32)), "not hexadecimal"),
            (format!("ABCDEF.0123456789abcdef.{pin}"), "not a join token"),
            ("K10something".to_owned(), "not a join token"),
        ] {
            let error = text.parse::<JoinToken>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
