//! The parsers of tokens and of what issuers send, for fuzzing.

use std::sync::LazyLock;

use knarr_api::field::Errors;
use serde_json::json;

use super::mapping::Mapping;
use super::signature::Algorithm;
use super::token::{Claims, UntrustedToken, check_claims};
use super::{Configuration, configuration, discovery, key_set};

const ISSUER: &str = "https://issuer.example";
const NOW: i64 = 1_700_000_000;

static MAPPINGS: LazyLock<Vec<Mapping>> = LazyLock::new(|| {
    let by_name = json!({"username": {"claim": "sub", "prefix": "p:"}, "groups": {"claim": "groups", "prefix": "g:"}});
    let by_expression = json!({
        "username": {"expression": "claims.sub + string(claims.n)"}, "groups": {"expression": "claims.groups.map(g, g + 'x')"},
        "uid": {"expression": "claims.?id.orValue('none')"},
        "extra": [{"key": "example.org/all", "valueExpression": "claims.groups.filter(g, g.matches('^a+$'))"}],
    });
    let compile = |mappings: serde_json::Value| {
        let document = json!({
            "issuer": {"url": ISSUER, "audiences": ["a"]}, "claimMappings": mappings,
            "userValidationRules": [{"expression": "!user.username.startsWith('system:')", "message": "reserved"}],
        });
        configuration::compile(&document, 0, &[], &mut Errors::new()).1
    };
    [by_name, by_expression].into_iter().filter_map(compile).collect()
});

/// A token as it comes in a header. Its claims are read as if its signature were right; no system user comes of them.
pub fn token(text: &str) {
    let Some(token) = UntrustedToken::parse(text) else { return };
    let _ = (token.issuer(), token.algorithm(), token.key_id());
    if let Some(claims) = token.claims().as_object() {
        check(claims);
    }
}

/// The claims of a token.
pub fn claims(text: &str) {
    if let Ok(claims) = serde_json::from_str(text) {
        check(&claims);
    }
}

fn check(claims: &Claims) {
    let Ok(now) = jiff::Timestamp::from_second(NOW) else { return };
    let _ = check_claims(claims, ISSUER, &["a".to_owned()], now);
    assert_eq!(MAPPINGS.len(), 2, "the mappings are valid");
    for mapping in MAPPINGS.iter() {
        if let Ok(user) = mapping.user(claims) {
            assert!(!user.name.is_empty() && !user.name.starts_with("system:"), "{user:?}");
        }
    }
}

/// An AuthenticationConfiguration, compiled and used.
pub fn configuration(text: &str) {
    let Ok(parsed) = Configuration::parse(text, &["https://kubernetes.default.svc".to_owned()]) else { return };
    let claims = json!({"sub": "ann", "groups": ["a"], "exp": NOW});
    for (index, document) in parsed.issuers().iter().enumerate() {
        let mut errors = Errors::new();
        let (_, mapping) = configuration::compile(document, index, parsed.reserved(), &mut errors);
        if let (Some(mapping), Some(claims)) = (mapping, claims.as_object()) {
            let _ = mapping.user(claims);
        }
    }
}

/// What an issuer sends: its discovery document, or its keys, which verify nothing.
pub fn issuer_document(bytes: &[u8]) {
    if let Ok(url) = discovery::parse(bytes, ISSUER) {
        assert_eq!(url.scheme_str(), Some("https"));
    }
    for key in key_set::parse(bytes).unwrap_or_default() {
        for algorithm in Algorithm::ALL {
            assert!(!key.verifies(algorithm, b"message", b"signature"));
        }
        let _ = key.to_json();
    }
}
