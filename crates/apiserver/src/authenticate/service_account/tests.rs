use super::*;
use crate::object_reader::tests::Fixed;

fn object(name: &str, uid: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "n", "uid": uid}})
}

fn issue(tokens: &ServiceAccountTokens, now: Timestamp) -> String {
    issue_for(tokens, vec!["https://issuer".into()], now)
}

fn issue_for(tokens: &ServiceAccountTokens, audiences: Vec<String>, now: Timestamp) -> String {
    let (account, pod) = (object("sa", "1"), object("p", "2"));
    let request = TokenRequest {
        namespace: "n",
        account: &account,
        audiences,
        seconds: 600,
        bound: Some(BoundObject { kind: "pod", object: &pod, node: None }),
    };
    tokens.issue(&request, now).unwrap().0
}

#[test]
fn a_token_is_valid_while_its_bound_objects_exist() {
    let tokens = ServiceAccountTokens::for_tests();
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let token = issue(&tokens, now);
    let audiences = ["https://issuer".to_owned()];
    let there = Fixed::new(vec![("", "serviceaccounts", object("sa", "1")), ("", "pods", object("p", "2"))]);
    let good = tokens.verify(&token, &audiences, &there, now).unwrap();
    assert_eq!(good.user.name, "system:serviceaccount:n:sa");
    assert_eq!(good.user.extra["authentication.kubernetes.io/pod-name"], ["p"]);

    let later = now + SignedDuration::from_secs(601);
    assert!(tokens.verify(&token, &audiences, &there, later).is_err(), "expired");
    assert!(tokens.verify(&token, &["other".into()], &there, now).is_err(), "other audience");
    let replaced = Fixed::new(vec![("", "serviceaccounts", object("sa", "1")), ("", "pods", object("p", "3"))]);
    assert!(tokens.verify(&token, &audiences, &replaced, now).is_err(), "another pod of the same name");
    assert!(ServiceAccountTokens::for_tests().verify(&token, &audiences, &there, now).is_err(), "another key");
    assert!(tokens.verify("a.b.c", &audiences, &there, now).is_err(), "nonsense");
}

/// An editor may request tokens, with audiences by the thousand.
#[test]
fn long_tokens_do_not_fill_memory() {
    let tokens = ServiceAccountTokens::for_tests();
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let there = Fixed::new(vec![("", "serviceaccounts", object("sa", "1")), ("", "pods", object("p", "2"))]);
    for (audience, count, is_long, cached) in
        [("a", 50_000, true, 0), ("a", 500, false, 0), (&*"a".repeat(5000), 1, true, 0), ("a", 2, false, 1)]
    {
        let audiences: Vec<String> =
            std::iter::repeat_n(audience, count).chain(["https://issuer"]).map(str::to_owned).collect();
        let token = issue_for(&tokens, audiences, now);
        assert_eq!(token.len() > MAX_CACHED_LENGTH, is_long);
        assert!(tokens.verify(&token, &["https://issuer".to_owned()], &there, now).is_ok());
        assert_eq!(tokens.verified.lock().len(), cached);
    }
}

/// A key and an issuer are replaced by accepting the old ones for a while.
#[test]
fn tokens_of_several_keys_and_issuers_are_accepted() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let there = Fixed::new(vec![("", "serviceaccounts", object("sa", "1")), ("", "pods", object("p", "2"))]);
    let audiences = ["https://issuer".to_owned()];
    let pair = |algorithm| rcgen::KeyPair::generate_for(algorithm).unwrap();
    let (old, new) = (pair(&rcgen::PKCS_ECDSA_P384_SHA384), pair(&rcgen::PKCS_ECDSA_P256_SHA256));
    let settings = |issuers: &[&str]| TokenSettings {
        issuers: issuers.iter().map(|issuer| (*issuer).to_owned()).collect(),
        ..TokenSettings::of_issuer("https://issuer")
    };
    let before = ServiceAccountTokens::new(&old.serialize_pem(), &[], settings(&["https://old"])).unwrap();
    let token = issue(&before, now);
    for (more, issuers, accepted) in [
        (vec![old.public_key_pem()], &["https://issuer", "https://old"][..], true),
        (vec![old.serialize_pem()], &["https://issuer", "https://old"], true),
        (vec![old.public_key_pem()], &["https://issuer"], false),
        (vec![], &["https://issuer", "https://old"], false),
    ] {
        let after = ServiceAccountTokens::new(&new.serialize_pem(), &more, settings(issuers)).unwrap();
        assert_eq!(after.verify(&token, &audiences, &there, now).is_ok(), accepted, "{issuers:?} {}", more.len());
        assert!(after.verify(&issue(&after, now), &audiences, &there, now).is_ok());
        assert_eq!(after.keys()["keys"].as_array().unwrap().len(), 1 + more.len());
        assert_eq!(after.discovery()["issuer"], "https://issuer");
    }
    assert!(ServiceAccountTokens::new(&new.serialize_pem(), &["nonsense".into()], settings(&["a"])).is_err());
}

#[test]
fn the_longest_validity_is_kept() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let expiry = |settings: TokenSettings, seconds: i64| {
        let tokens = ServiceAccountTokens::new(&key, &[], settings).unwrap();
        let (account, pod) = (object("sa", "1"), object("p", "2"));
        let bound = Some(BoundObject { kind: "pod", object: &pod, node: None });
        let audiences = vec!["https://issuer".to_owned()];
        let request = TokenRequest { namespace: "n", account: &account, audiences, seconds, bound };
        let (token, reported) = tokens.issue(&request, now).unwrap();
        let claims = tokens.signed_claims(&token).unwrap();
        (claims.exp - now.as_second(), reported.as_second() - now.as_second())
    };
    let plain = TokenSettings::of_issuer("https://issuer");
    let limited = TokenSettings { max_expiration: Some(SignedDuration::from_secs(3600)), ..plain.clone() };
    let unextended = TokenSettings { extends_expiration: false, ..limited.clone() };
    assert_eq!(expiry(plain, 86_400), (86_400, 86_400));
    assert_eq!(expiry(limited.clone(), 86_400), (3600, 3600));
    assert_eq!(expiry(limited, EXTENDED_REQUEST_SECONDS), (EXTENDED_SECONDS, EXTENDED_REQUEST_SECONDS));
    assert_eq!(expiry(unextended, EXTENDED_REQUEST_SECONDS), (3600, 3600));
}
