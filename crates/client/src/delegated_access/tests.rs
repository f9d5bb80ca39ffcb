use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// An API server that accepts the token `good` as ann, and allows her `/metrics`.
fn server(requests: Arc<AtomicUsize>) -> Client {
    let respond = move |request: Request<Body>| {
        requests.fetch_add(1, Ordering::SeqCst);
        async move {
            let body = request.into_body().collect().await.map_err(|_| std::io::Error::other("body"))?.to_bytes();
            let mut review: Value = serde_json::from_slice(&body)?;
            review["status"] = if review["kind"] == "TokenReview" {
                match review["spec"]["token"].as_str() {
                    Some("good") => json!({"authenticated": true, "user": {"username": "ann", "groups": ["g"]}}),
                    _ => json!({}),
                }
            } else {
                let spec = &review["spec"];
                let path = spec["nonResourceAttributes"]["path"].as_str();
                let node = spec["resourceAttributes"]["name"].as_str();
                json!({"allowed": spec["user"] == "ann" && (path == Some("/metrics") || node == Some("own"))})
            };
            Ok::<_, std::io::Error>(Response::new(Body::from(serde_json::to_vec(&review)?)))
        }
    };
    Client::new(tower::service_fn(respond), "default")
}

fn access(anonymous: bool, requests: Arc<AtomicUsize>) -> DelegatedAccess {
    let tokens = Some(Duration::from_secs(20));
    let settings =
        AccessSettings { anonymous, tokens, allowed: Duration::from_secs(100), denied: Duration::from_secs(10) };
    let client = server(requests);
    DelegatedAccess::new(client.clone(), client, settings)
}

fn two_names() -> CertificateDer<'static> {
    use rustls::pki_types::pem::PemObject;
    // Made with openssl: `/O=system:nodes/CN=system:kube-controller-manager/CN=system:node:x`.
    CertificateDer::from_pem_slice(include_bytes!("two_names.crt")).expect("a certificate")
}

fn alice() -> CertificateDer<'static> {
    let mut parameters = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "alice");
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    let key = rcgen::KeyPair::generate().expect("a key");
    parameters.self_signed(&key).expect("a certificate").der().clone()
}

#[tokio::test]
async fn unreadable_credentials_are_refused() {
    let (ambiguous, alice) = (two_names(), alice());
    for (case, header, certificate, with_anonymous, without) in [
        ("nothing", None, None, Some("system:anonymous"), None),
        ("a token", Some(&b"Bearer good"[..]), None, Some("ann"), Some("ann")),
        ("another case", Some(b"bearer good"), None, Some("ann"), Some("ann")),
        ("a wrong token", Some(b"Bearer bad"), None, None, None),
        ("another scheme", Some(b"Basic YTpi"), None, Some("system:anonymous"), None),
        ("an empty token", Some(b"Bearer "), None, Some("system:anonymous"), None),
        ("not UTF-8", Some(b"Bearer \xff"), None, None, None),
        ("not UTF-8 at all", Some(b"\xff\xfe"), None, None, None),
        ("a certificate", None, Some(&alice), Some("alice"), Some("alice")),
        ("a certificate and a wrong token", Some(b"Bearer bad"), Some(&alice), Some("alice"), Some("alice")),
        ("an ambiguous certificate", None, Some(&ambiguous), None, None),
        ("an ambiguous certificate and a token", Some(b"Bearer good"), Some(&ambiguous), Some("ann"), Some("ann")),
        ("an ambiguous certificate and another scheme", Some(b"Basic YTpi"), Some(&ambiguous), None, None),
    ] {
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, HeaderValue::from_bytes(header).expect("a header"));
        }
        for (anonymous, expected) in [(true, with_anonymous), (false, without)] {
            let access = access(anonymous, Arc::default());
            let user = access.authenticate(&headers, certificate).await.ok().map(|user| user.name);
            assert_eq!(user.as_deref(), expected, "{case}, anonymous: {anonymous}");
        }
    }
}

#[test]
fn certificates_name_user_and_groups() {
    let user = user_of(&alice()).expect("a user");
    assert_eq!(
        (user.name.as_str(), user.groups.join(" ")),
        ("alice", "system:masters system:authenticated".to_owned())
    );
    assert_eq!(user_of(&two_names()), None);
}

#[tokio::test(start_paused = true)]
async fn decisions_are_cached_for_their_time() {
    let requests = Arc::new(AtomicUsize::new(0));
    let access = access(false, requests.clone());
    let ann = User { name: "ann".to_owned(), ..User::default() };
    let ask = |path: &str| access.is_allowed(&ann, Attributes::Path { verb: "get", path: path.to_owned() });
    for (after, path, allowed, count) in [
        (0, "/metrics", true, 1),
        (99, "/metrics", true, 1),
        (2, "/metrics", true, 2),
        (0, "/other", false, 3),
        (9, "/other", false, 3),
        (2, "/other", false, 4),
    ] {
        tokio::time::advance(Duration::from_secs(after)).await;
        assert_eq!(ask(path).await.expect("a decision"), allowed, "{path}");
        assert_eq!(requests.load(Ordering::SeqCst), count, "{path} after {after} s");
    }
    let own = |node: &str| Attributes::Node { verb: "get", subresource: "proxy", node: node.to_owned() };
    assert!(access.is_allowed(&ann, own("own")).await.expect("a decision"));
    assert!(!access.is_allowed(&ann, own("other")).await.expect("a decision"));
}

#[tokio::test]
async fn caches_stay_small() {
    let access = access(true, Arc::default());
    let ann = User { name: "ann".to_owned(), ..User::default() };
    for number in 0..MAX_CACHE_ENTRIES + 10 {
        let asked = access.is_allowed(&ann, Attributes::Path { verb: "get", path: format!("/{number}") }).await;
        assert!(!asked.expect("a decision"));
    }
    assert!(access.decisions.0.lock().len() <= MAX_CACHE_ENTRIES);
}
