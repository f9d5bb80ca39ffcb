//! What clients of the page try, who want more than their credentials give.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::{BodyExt as _, Full};
use jiff::{SignedDuration, Timestamp};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use serde_json::{Value, json};

use crate::authenticate::ClientConnection;
use crate::pki::{Identity, Pki, Purpose};
use crate::request::Sender;
use crate::request_tests::Cluster;

const ACCOUNT: &str = "/api/v1/namespaces/default/serviceaccounts/robot";
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Sends a request without a certificate.
async fn post(cluster: &Cluster, path: &str, headers: &HeaderMap, body: &Value) -> (u16, Value) {
    let mut request = Request::post(path).body(Full::new(Bytes::from(body.to_string()))).unwrap();
    request.headers_mut().extend(headers.clone());
    request.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    let response = cluster.server().handle(request, &Sender::Remote(None)).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

fn bearer(token: &str) -> HeaderMap {
    let value = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
    HeaderMap::from_iter([(http::header::AUTHORIZATION, value)])
}

/// The name of the user that a token stands for, or the code of the refusal.
async fn user_of(cluster: &Cluster, token: &str) -> Result<String, u16> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let (code, response) = post(cluster, WHO_AM_I, &bearer(token), &review).await;
    let name = response["status"]["userInfo"]["username"].as_str().map(str::to_owned);
    name.ok_or(code)
}

/// A session outlives no token, with or without a user that it impersonates. An empty header impersonates nobody.
#[tokio::test]
async fn a_session_ends_with_its_token_whoever_it_impersonates() {
    for (impersonated, name) in [
        (None, "system:serviceaccount:default:robot"),
        (Some(""), "system:serviceaccount:default:robot"),
        (Some("ann"), "ann"),
    ] {
        let cluster = Cluster::new().await;
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
        assert_eq!(cluster.json("POST", "/api/v1/namespaces/default/serviceaccounts", account).await.0, 201);
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "robot"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "robot"}],
        });
        let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        assert_eq!(cluster.json("POST", bindings, binding).await.0, 201);
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let (code, issued) = cluster.json("POST", &format!("{ACCOUNT}/token"), request).await;
        assert_eq!(code, 201, "{issued}");
        let mut headers = bearer(issued["status"]["token"].as_str().unwrap());
        headers.extend(
            impersonated
                .map(|name| (http::HeaderName::from_static("impersonate-user"), HeaderValue::from_static(name))),
        );
        let (code, link) = post(&cluster, "/ui/link", &headers, &Value::Null).await;
        assert_eq!(code, 200, "{link}");
        let (_, session) = post(&cluster, "/ui/session", &HeaderMap::new(), &json!({"code": link["code"]})).await;
        let token = session["token"].as_str().unwrap();
        assert_eq!(user_of(&cluster, token).await.as_deref(), Ok(name));
        assert_eq!(cluster.json("DELETE", ACCOUNT, Value::Null).await.0, 200);
        assert_eq!(user_of(&cluster, token).await, Err(401), "{impersonated:?}");
    }
}

/// A session outlives no certificate, with or without a user that it impersonates, and is that user's until then.
#[tokio::test]
async fn a_session_ends_with_its_certificate() {
    let cluster = Cluster::new().await;
    let directory = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let pki = Pki::open(directory.path(), Identity::default(), now).unwrap();
    let at = |time: Timestamp| UnixTime::since_unix_epoch(Duration::from_secs(time.as_second().unsigned_abs()));
    for (issued, impersonated, user) in [
        (now, None, Ok("kubernetes-admin")),
        (now, Some("ann"), Ok("ann")),
        (now - SignedDuration::from_hours(24 * 366), None, Err(401)),
        (now - SignedDuration::from_hours(24 * 366), Some("ann"), Err(401)),
    ] {
        let leaf = pki
            .authority
            .sign(&Purpose::Client { user: "kubernetes-admin".into(), group: "system:masters".into() }, issued);
        let leaf = leaf.unwrap();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(leaf.certificate.as_bytes()).map(Result::unwrap).collect();
        let connection = Arc::new(ClientConnection::new(pki.serving.clients(), &chain, at(issued)));
        let mut request = Request::post("/ui/link").body(Full::new(Bytes::new())).unwrap();
        request.headers_mut().extend(
            impersonated
                .map(|name| (http::HeaderName::from_static("impersonate-user"), HeaderValue::from_static(name))),
        );
        request.extensions_mut().insert(connection.clone());
        let response = cluster.server().handle(request, &connection.sender(at(issued))).await;
        assert_eq!(response.status(), 200);
        let link: Value = serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
        let (_, session) = post(&cluster, "/ui/session", &HeaderMap::new(), &json!({"code": link["code"]})).await;
        let token = session["token"].as_str().unwrap();
        assert_eq!(user_of(&cluster, token).await, user.map(str::to_owned), "{issued} {impersonated:?}");
    }
}

/// Whoever impersonates by a session cannot choose another user with headers of its own.
#[test]
fn the_user_of_a_session_is_not_replaced_by_headers() {
    let given = |name: &'static str| {
        HeaderMap::from_iter([
            (http::HeaderName::from_static("impersonate-user"), HeaderValue::from_static(name)),
            (http::HeaderName::from_static("impersonate-group"), HeaderValue::from_static("of-the-client")),
        ])
    };
    let mut stored = given("ann");
    stored.remove("impersonate-group");
    let mut headers = given("eve");
    let credential = super::Credential::Token("t".into(), Arc::new(stored));
    assert!(super::forward::sender(credential, &mut headers, UnixTime::now()).is_some());
    assert_eq!(headers["impersonate-user"], "ann");
    assert!(!headers.contains_key("impersonate-group"));
}

/// Anybody can send such requests, and many at a time: they must not fill memory.
#[tokio::test]
async fn a_body_without_credentials_is_short() {
    let cluster = Cluster::new().await;
    for path in ["/ui/session", "/ui/index.html"] {
        let method = if path == "/ui/session" { "POST" } else { "GET" };
        let body = Full::new(Bytes::from(vec![b' '; 5000]));
        let request = Request::builder().method(method).uri(path).body(body).unwrap();
        let response = cluster.server().handle(request, &Sender::Remote(None)).await;
        assert_eq!(response.status().as_u16(), 413, "{path}");
    }
}
