//! Service account tokens: only those that this server signed are accepted.
#![no_main]

use std::sync::{Arc, LazyLock};

use jiff::Timestamp;
use knarr_apiserver::authenticate::ServiceAccountTokens;
use knarr_apiserver::object_reader::ObjectReader;

const ISSUER: &str = "https://kubernetes.default.svc";

static TOKENS: LazyLock<ServiceAccountTokens> = LazyLock::new(|| {
    let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    ServiceAccountTokens::new(&key, ISSUER, vec![ISSUER.to_owned()]).expect("tokens")
});

struct Nothing;

impl ObjectReader for Nothing {
    fn get(&self, _: &str, _: &str, _: &str, _: &str) -> Option<Arc<serde_json::Value>> {
        None
    }

    fn list(&self, _: &str, _: &str, _: &str) -> Vec<Arc<serde_json::Value>> {
        Vec::new()
    }

    fn version(&self, _: &str, _: &str) -> u64 {
        0
    }
}

libfuzzer_sys::fuzz_target!(|input: &str| {
    let verified = TOKENS.verify(input, &[ISSUER.to_owned()], &Nothing, Timestamp::UNIX_EPOCH);
    assert!(verified.is_err());
});
