//! Tokens and issuers that try to be accepted although they should not.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::test_issuer::{TestIssuer, claims, initialized};
use super::{Algorithm, Configuration, JwtAuthenticators};

const MAPPING: &str = "claimMappings: {username: {claim: sub, prefix: ''}}";

async fn started(issuer: &TestIssuer) -> JwtAuthenticators {
    let configuration = Configuration::parse(&issuer.configuration(MAPPING), &[]).unwrap();
    let jwt = JwtAuthenticators::start(&configuration, &Algorithm::ALL).unwrap();
    initialized(&jwt).await;
    jwt
}

async fn refused(jwt: &JwtAuthenticators, token: &str) -> String {
    jwt.user(token, Timestamp::now()).await.expect_err("the token is accepted")
}

fn unsigned(header: Value, claims: &Value, signature: &[u8]) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{}", part(&header), part(claims), URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test]
async fn tokens_without_a_signature_of_the_issuer_are_refused() {
    let issuer = TestIssuer::start().await;
    let jwt = started(&issuer).await;
    let all = claims(&issuer, json!({}));
    let expected = r#"["ES256" "ES384" "ES512" "PS256" "PS384" "PS512" "RS256" "RS384" "RS512"]"#;
    for name in ["none", "None", "NONE", "HS256", "HS512", "EdDSA", ""] {
        let token = unsigned(json!({"alg": name, "kid": "k1"}), &all, b"");
        assert_eq!(
            refused(&jwt, &token).await,
            format!(
                "oidc: verify token: oidc: id token signed with unsupported algorithm, expected {expected} got {name:?}"
            )
        );
    }
    // A shared-key signature with the public key as the secret.
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, issuer.public_key().to_string().as_bytes());
    let head = unsigned(json!({"alg": "HS256", "kid": "k1"}), &all, b"");
    let tag = aws_lc_rs::hmac::sign(&key, head.trim_end_matches('.').as_bytes());
    let forged = format!("{head}{}", URL_SAFE_NO_PAD.encode(tag.as_ref()));
    assert!(refused(&jwt, &forged).await.contains("unsupported algorithm"));

    const UNSIGNED: &str = "oidc: verify token: failed to verify signature: failed to verify id token signature";
    for header in [
        // Another algorithm than the key's.
        json!({"alg": "RS256", "kid": "k1"}),
        json!({"alg": "ES512", "kid": "k1"}),
        // Keys that come with the token, or from where it says, are not used.
        json!({"alg": "ES256", "kid": "k1", "jwk": {"kty": "EC"}, "jku": "https://localhost/keys"}),
        json!({"alg": "ES256", "kid": "../../keys"}),
        json!({"alg": "ES256", "kid": "' OR 1=1 --"}),
        json!({"alg": "ES256", "kid": "k1", "crit": ["exp"]}),
    ] {
        let elsewhere = TestIssuer::start().await;
        let token = elsewhere.sign_with(header.clone(), &all);
        assert_eq!(refused(&jwt, &token).await, UNSIGNED, "{header}");
    }
    let token = issuer.sign(&all);
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let (header, _) = signed.split_once('.').unwrap();
    let other = URL_SAFE_NO_PAD.encode(claims(&issuer, json!({"sub": "root"})).to_string());
    assert_eq!(refused(&jwt, &format!("{header}.{other}.{signature}")).await, UNSIGNED);
    assert_eq!(refused(&jwt, &format!("{signed}.")).await, UNSIGNED);
}

#[tokio::test]
async fn tokens_for_others_and_of_others_are_refused() {
    let issuer = TestIssuer::start().await;
    let jwt = started(&issuer).await;
    let now = Timestamp::now().as_second();
    for (change, why) in [
        (json!({"aud": "other"}), r#"oidc: verify token: oidc: expected audience "kubernetes" got ["other"]"#),
        (json!({"aud": null}), r#"oidc: verify token: oidc: expected audience "kubernetes" got []"#),
        (json!({"exp": now - 1}), "oidc: verify token: oidc: token is expired (Token Expiry: "),
        (json!({"exp": null}), "oidc: verify token: oidc: token is expired (Token Expiry: 1970-01-01 00:00:00"),
        (json!({"nbf": now + 3600}), "oidc: verify token: oidc: current time "),
        (
            json!({"sub": {"a": "b"}}),
            "oidc: verify token: oidc: failed to unmarshal claims: json: cannot unmarshal object into Go struct field \
             idToken.sub of type string",
        ),
    ] {
        let found = refused(&jwt, &issuer.sign(&claims(&issuer, change))).await;
        assert!(found.starts_with(why), "{found}");
    }
    let other = issuer.sign(&claims(&issuer, json!({"iss": "https://elsewhere"})));
    assert_eq!(jwt.user(&other, Timestamp::now()).await, Ok(None), "it may be another authenticator's");
}

#[tokio::test]
async fn keys_are_rotated_and_unknown_keys_cause_few_requests() {
    let mut issuer = TestIssuer::start().await;
    let jwt = started(&issuer).await;
    let old = issuer.sign(&claims(&issuer, json!({})));
    assert!(jwt.user(&old, Timestamp::now()).await.unwrap().is_some());
    issuer.rotate("k2");
    issuer.serve("/keys", &json!({"keys": [issuer.public_key()]}));
    let new = issuer.sign(&claims(&issuer, json!({})));
    assert!(jwt.user(&new, Timestamp::now()).await.unwrap().is_some(), "the new key is fetched");
    assert!(jwt.user(&old, Timestamp::now()).await.is_err(), "the old key is gone");
    issuer.server.received();
    for index in 0..200 {
        let token =
            issuer.sign_with(json!({"alg": "ES256", "kid": format!("unknown-{index}")}), &claims(&issuer, json!({})));
        refused(&jwt, &token).await;
    }
    let fetches = issuer.server.received().len();
    assert!((1..=10).contains(&fetches), "{fetches}");
    assert!(jwt.user(&new, Timestamp::now()).await.unwrap().is_some(), "known keys still work");
}

#[tokio::test]
async fn key_sets_that_are_huge_or_wrong_are_not_used() {
    let issuer = TestIssuer::start().await;
    let jwt = started(&issuer).await;
    let token = issuer.sign(&claims(&issuer, json!({})));
    let key = issuer.public_key();
    let huge = json!({"keys": vec![key.clone(); 20_000]}).to_string();
    assert!(huge.len() > super::key_set::MAX_KEY_SET);
    for (code, text, why) in [
        (200, huge.as_str(), "larger than 1048576 bytes"),
        (200, "<html>", "oidc: failed to decode keys"),
        (500, "", "oidc: get keys failed: 500"),
        (200, r#"{"keys":[7,{"kty":"oct","k":"c2VjcmV0","kid":"k1"}]}"#, "failed to verify id token signature"),
    ] {
        issuer.serve_whole("/keys", code, Vec::new(), text);
        let found = refused(&jwt, &token).await;
        assert!(found.contains(why), "{found}");
    }
    issuer.serve_whole("/keys", 302, vec![("location", "http://127.0.0.1:1/keys".to_owned())], "");
    assert!(refused(&jwt, &token).await.contains("only https is allowed"));
    issuer.serve("/keys", &json!({"keys": [key]}));
    assert!(jwt.user(&token, Timestamp::now()).await.unwrap().is_some());
}

#[tokio::test]
async fn documents_of_another_issuer_are_not_used() {
    let issuer = TestIssuer::start().await;
    let keys = format!("{}/keys", issuer.url());
    for (document, why) in [
        (
            json!({"issuer": "https://evil", "jwks_uri": keys}),
            "oidc: issuer did not match the issuer returned by provider",
        ),
        (json!({"issuer": issuer.url()}), "provider did not return JWKS URL"),
        (json!({"issuer": issuer.url(), "jwks_uri": "http://a/keys"}), "is not https"),
        (json!("text"), "oidc: failed to decode provider discovery object"),
    ] {
        issuer.serve("/.well-known/openid-configuration", &document);
        let configuration = Configuration::parse(&issuer.configuration(MAPPING), &[]).unwrap();
        let jwt = JwtAuthenticators::start(&configuration, &Algorithm::ALL).unwrap();
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        while jwt.unhealthy()[0].contains("not initialized") {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert!(jwt.unhealthy()[0].contains(why), "{:?}", jwt.unhealthy());
        let token = issuer.sign(&claims(&issuer, json!({})));
        assert_eq!(refused(&jwt, &token).await, "oidc: authenticator not initialized");
    }
}

#[tokio::test]
async fn expressions_that_never_end_are_stopped() {
    let issuer = TestIssuer::start().await;
    let endless = "claimMappings: {username: {expression: 'lists.range(1000000000).map(x, lists.range(1000000000)).size() > 0 ? claims.sub : claims.sub'}}";
    let configuration = Configuration::parse(&issuer.configuration(endless), &[]).unwrap();
    let jwt = JwtAuthenticators::start(&configuration, &Algorithm::ALL).unwrap();
    initialized(&jwt).await;
    let found = refused(&jwt, &issuer.sign(&claims(&issuer, json!({})))).await;
    assert!(found.ends_with("operation cancelled: actual cost limit exceeded"), "{found}");
}
