//! Targets that read tokens.

use std::sync::{Arc, LazyLock};

use jiff::Timestamp;
use knarr_api::status::Status;
use knarr_apiserver::authenticate::{ServiceAccountTokens, TokenFile, TokenSettings, jwt};
use knarr_apiserver::object_reader::ObjectReader;
use serde_json::Value;

const ISSUER: &str = "https://kubernetes.default.svc";

static TOKENS: LazyLock<ServiceAccountTokens> = LazyLock::new(|| {
    let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    ServiceAccountTokens::new(&key, &[], TokenSettings::of_issuer(ISSUER)).expect("tokens")
});

struct Nothing;

impl ObjectReader for Nothing {
    fn get(&self, _: &str, _: &str, _: &str, _: &str) -> Option<Arc<Value>> {
        None
    }

    fn list(&self, _: &str, _: &str, _: &str) -> Vec<Arc<Value>> {
        Vec::new()
    }

    fn read(&self, _: &str, _: &str, _: &str, _: &str) -> Result<Option<Arc<Value>>, Status> {
        Ok(None)
    }

    fn read_all(&self, _: &str, _: &str, _: &str) -> Result<Vec<Arc<Value>>, Status> {
        Ok(Vec::new())
    }

    fn version(&self, _: &str, _: &str) -> u64 {
        0
    }
}

/// Service account tokens: only those that this server signed are accepted.
pub fn service_account_token(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    let verified = TOKENS.verify(input, &[ISSUER.to_owned()], &Nothing, Timestamp::UNIX_EPOCH);
    assert!(verified.is_err());
}

/// A file of static tokens.
pub fn token_file(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    if let Ok(file) = TokenFile::parse(input) {
        let _ = file.user(input.split(',').next().unwrap_or_default());
    }
}

/// An AuthenticationConfiguration, with its expressions.
pub fn authentication_configuration(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    jwt::fuzzing::configuration(input);
}

/// Discovery documents and key sets of identity providers.
pub fn issuer_document(input: &[u8]) {
    jwt::fuzzing::issuer_document(input);
}

/// Values in the store that a KMS plugin's key encrypts.
pub fn kms_value(input: &[u8]) {
    knarr_apiserver::encrypt::fuzzing::kms_value(input);
}

/// Tokens of identity providers, and the users that their claims become. The claims by themselves are an input, too.
pub fn web_token(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    match input.starts_with('{') {
        true => jwt::fuzzing::claims(input),
        false => jwt::fuzzing::token(input),
    }
}
