//! Tokens of service accounts in Secrets, and certificates.

use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};

use super::support::{Cluster, condition, path, text};

const TOKENS: &[&str] = &["serviceaccount-token-controller", "serviceaccount-controller"];
/// Without the controller that approves: an administrator may have any certificate of a node.
const CERTIFICATES: &[&str] =
    &["certificatesigningrequest-signing-controller", "certificatesigningrequest-cleaner-controller"];

fn token_secret(account: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": account}}})
}

#[tokio::test(start_paused = true)]
async fn a_token_secret_is_filled_and_goes_with_its_account() {
    let settings = knarr_controllers::Settings { root_ca: Some("authority".to_owned()), ..Default::default() };
    let cluster = Cluster::with_settings(TOKENS, settings).await;
    cluster.create(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}})).await;
    cluster.create(token_secret("robot")).await;
    let filled = cluster.until("Secret", "token", |secret| secret["data"]["token"].is_string()).await;
    let decode = |key: &str| base64::engine::general_purpose::STANDARD.decode(text(&filled["data"][key])).unwrap();
    assert_eq!(decode("namespace"), b"default");
    assert_eq!(decode("ca.crt"), b"authority");
    cluster.delete("ServiceAccount", "robot", "Background").await;
    cluster.until_gone("Secret", "token").await;
}

#[tokio::test(start_paused = true)]
async fn a_token_secret_of_no_account_is_deleted() {
    let cluster = Cluster::start(TOKENS).await;
    cluster.until_quiet().await;
    let (code, _) =
        cluster.request("POST", &path("Secret", "default"), "application/json", &token_secret("nobody")).await;
    // Admission may refuse it already.
    if code == 201 {
        cluster.advance(Duration::from_secs(60)).await;
        cluster.until_gone("Secret", "token").await;
    }
}

fn signing() -> knarr_controllers::Settings {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = parameters.self_signed(&key).expect("an authority").pem();
    let signing = knarr_controllers::SigningAuthority { certificate, key: key.serialize_pem() };
    knarr_controllers::Settings { signing: Some(signing), ..Default::default() }
}

fn request(signer: &str, user: &str, organization: &str) -> Value {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, user);
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
    let pem = parameters.serialize_request(&key).expect("a request").pem().expect("PEM");
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "r"}, "spec": {
        "request": base64::engine::general_purpose::STANDARD.encode(pem), "signerName": signer,
        "usages": ["digital signature", "client auth"]}})
}

async fn approve(cluster: &Cluster) {
    let now = cluster.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let at = format!("{}/r/approval", path("CertificateSigningRequest", ""));
    let approved = json!([{"type": "Approved", "status": "True", "reason": "Test", "message": "", "lastUpdateTime": now,
        "lastTransitionTime": now}]);
    cluster.patch_at(&at, json!({"status": {"conditions": approved}})).await;
}

/// Only approved requests are signed, and only those that their signer accepts.
#[tokio::test(start_paused = true)]
async fn approved_requests_are_signed_if_the_signer_accepts_them() {
    for (signer, user, organization, signed) in [
        ("kubernetes.io/kube-apiserver-client", "jane", "dev", true),
        ("kubernetes.io/kube-apiserver-client-kubelet", "system:node:a", "system:nodes", true),
        ("kubernetes.io/kube-apiserver-client-kubelet", "jane", "dev", false),
        ("example.com/other", "jane", "dev", false),
    ] {
        let cluster = Cluster::with_settings(CERTIFICATES, signing()).await;
        cluster.create(request(signer, user, organization)).await;
        cluster.until_quiet().await;
        let pending = cluster.get("CertificateSigningRequest", "r").await.unwrap();
        assert!(pending["status"]["certificate"].is_null(), "{signer}: not approved yet");
        approve(&cluster).await;
        let is_signed = |request: &Value| request["status"]["certificate"].is_string();
        let is_failed = |request: &Value| condition(request, "Failed")["status"] == "True";
        if signer.starts_with("kubernetes.io/") {
            let decided = cluster
                .until("CertificateSigningRequest", "r", |request| is_signed(request) || is_failed(request))
                .await;
            assert_eq!(is_signed(&decided), signed, "{signer} {user} {decided}");
        } else {
            cluster.until_quiet().await;
            let left = cluster.get("CertificateSigningRequest", "r").await.unwrap();
            assert!(!is_signed(&left) && !is_failed(&left), "{signer} is not ours");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_certificate_is_approved_for_those_who_may_have_it() {
    for (signer, user, organization, approved) in [
        ("kubernetes.io/kube-apiserver-client-kubelet", "system:node:a", "system:nodes", true),
        ("kubernetes.io/kube-apiserver-client-kubelet", "jane", "dev", false),
        ("kubernetes.io/kube-apiserver-client", "system:node:a", "system:nodes", false),
    ] {
        let cluster = Cluster::with_settings(&["certificatesigningrequest-approving-controller"], signing()).await;
        cluster.create(request(signer, user, organization)).await;
        let is_approved = |request: &Value| condition(request, "Approved")["status"] == "True";
        if approved {
            cluster.until("CertificateSigningRequest", "r", is_approved).await;
        } else {
            cluster.until_quiet().await;
            assert!(!is_approved(&cluster.get("CertificateSigningRequest", "r").await.unwrap()), "{signer} {user}");
        }
    }
}

/// Who may add nodes does not become one that there is. Kubernetes' setting lets them.
#[tokio::test(start_paused = true)]
async fn a_join_token_gives_no_certificate_of_an_existing_node() {
    for (keep_nodes_apart, name) in [(true, "a"), (true, "b"), (false, "a")] {
        let settings = knarr_controllers::Settings { keep_nodes_apart, ..signing() };
        let cluster = Cluster::with_settings(&["certificatesigningrequest-approving-controller"], settings).await;
        cluster.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})).await;
        let user = format!("system:node:{name}");
        cluster.create(request("kubernetes.io/kube-apiserver-client-kubelet", &user, "system:nodes")).await;
        let is_approved = |request: &Value| condition(request, "Approved")["status"] == "True";
        if keep_nodes_apart && name == "a" {
            cluster.until_quiet().await;
            assert!(!is_approved(&cluster.get("CertificateSigningRequest", "r").await.unwrap()));
            cluster.delete("Node", "a", "Background").await;
        }
        cluster.until("CertificateSigningRequest", "r", is_approved).await;
    }
}

/// A request may have any name; the one of another, with more behind a question mark, must not get that deleted.
#[tokio::test(start_paused = true)]
async fn an_old_request_takes_no_other_with_it() {
    let cluster = Cluster::with_settings(CERTIFICATES, signing()).await;
    let pending = request("kubernetes.io/kube-apiserver-client", "jane", "dev");
    let mut denied = pending.clone();
    denied["metadata"]["name"] = "r?x".into();
    cluster.create(pending).await;
    cluster.create(denied).await;
    let now = cluster.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let at = format!("{}/r%3Fx/approval", path("CertificateSigningRequest", ""));
    let decision = json!([{"type": "Denied", "status": "True", "reason": "Test", "message": "", "lastUpdateTime": now,
        "lastTransitionTime": now}]);
    cluster.patch_at(&at, json!({"status": {"conditions": decision}})).await;
    cluster.until_quiet().await;
    cluster.advance(Duration::from_secs(3 * 3600)).await;
    cluster.until_gone("CertificateSigningRequest", "r?x").await;
    assert!(cluster.get("CertificateSigningRequest", "r").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn old_requests_are_removed() {
    for (approved, hours) in [(true, 1), (false, 24)] {
        let cluster = Cluster::with_settings(CERTIFICATES, signing()).await;
        cluster.create(request("kubernetes.io/kube-apiserver-client", "jane", "dev")).await;
        if approved {
            approve(&cluster).await;
            let is_signed = |request: &Value| request["status"]["certificate"].is_string();
            cluster.until("CertificateSigningRequest", "r", is_signed).await;
        }
        cluster.until_quiet().await;
        cluster.advance(Duration::from_secs(hours * 3600 - 1200)).await;
        assert!(cluster.get("CertificateSigningRequest", "r").await.is_some(), "approved: {approved}");
        cluster.advance(Duration::from_secs(3 * 3600)).await;
        cluster.until_gone("CertificateSigningRequest", "r").await;
    }
}
