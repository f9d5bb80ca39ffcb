//! Continue tokens: where the next page of a list starts, and at which revision.

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::{DecodeError, Engine};
use knarr_api::decode;
use knarr_api::status::Status;
use serde::{Deserialize, Serialize};

const VERSION: &str = "meta.k8s.io/v1";

/// The `continue` parameter of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct ContinueToken {
    /// `None` continues on the newest state, not the one the list started with.
    pub revision: Option<u64>,
    /// The key after which the page starts, below the prefix of the list.
    pub after: String,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    #[serde(default)]
    v: String,
    #[serde(default)]
    rv: i64,
    #[serde(default)]
    start: String,
}

impl ContinueToken {
    /// Encodes the first key that may come next: the last one served and a zero byte.
    pub fn encode(&self) -> String {
        let rv = self.revision.map_or(-1, |revision| revision as i64);
        let wire = Wire { v: VERSION.to_owned(), rv, start: format!("{}\0", self.after) };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&wire).unwrap_or_default())
    }

    pub fn decode(text: &str) -> Result<ContinueToken, Status> {
        let refuse = |why: &str| Status::bad_request(format!("invalid continue token: continue key is not valid{why}"));
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| {
            let at = match error {
                DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => at,
                DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => text.len(),
            };
            refuse(&format!(": illegal base64 data at input byte {at}"))
        })?;
        decode::untyped_json(&bytes).map_err(|error| refuse(&format!(": {error}")))?;
        let wire: Wire = serde_json::from_slice(&bytes).map_err(|error| refuse(&format!(": {error}")))?;
        if wire.v != VERSION {
            return Err(refuse(&format!(": server does not recognize this encoded version {}", wire.v)));
        }
        if wire.rv == 0 {
            return Err(refuse(": incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        }
        if wire.start.is_empty() {
            return Err(refuse(": encoded start key empty (version meta.k8s.io/v1)"));
        }
        let after = wire.start.trim_start_matches('/').trim_end_matches('\0');
        if after.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(refuse(&format!(": {}", wire.start)));
        }
        Ok(ContinueToken { revision: (wire.rv > 0).then_some(wire.rv as u64), after: after.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip() {
        for token in [
            ContinueToken { revision: Some(12), after: "web/one".into() },
            ContinueToken { revision: None, after: "one".into() },
        ] {
            assert_eq!(ContinueToken::decode(&token.encode()).unwrap(), token);
        }
    }

    #[test]
    fn invalid_tokens_are_refused() {
        let forged = |rv, start: &str| {
            URL_SAFE_NO_PAD.encode(format!("{{\"v\":\"meta.k8s.io/v1\",\"rv\":{rv},\"start\":\"{start}\"}}"))
        };
        for text in ["*", "e30", &forged(0, "a"), &forged(1, ""), &forged(1, "../secrets/a")] {
            assert!(ContinueToken::decode(text).is_err(), "{text}");
        }
    }
}
