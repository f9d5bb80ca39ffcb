//! Bootstrap tokens sign `cluster-info`, and end when they expire.

use std::time::Duration;

use base64::Engine as _;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::support::{Cluster, path, text};

const CONTROLLERS: &[&str] = &["bootstrap-signer-controller", "token-cleaner-controller"];
const SIGNATURE: &str = "jws-kubeconfig-abcdef";

fn token(expiration: &str, may_sign: &str) -> Value {
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"}, "data": {
            "token-id": encode("abcdef"), "token-secret": encode("0123456789abcdef"),
            "usage-bootstrap-signing": encode(may_sign), "expiration": encode(expiration)}})
}

async fn cluster_info(cluster: &Cluster) -> Value {
    cluster.until_quiet().await;
    cluster.get_in("kube-public", "ConfigMap", "cluster-info").await.expect("it is never deleted")["data"].clone()
}

async fn has_token(cluster: &Cluster) -> bool {
    cluster.get_in("kube-system", "Secret", "bootstrap-token-abcdef").await.is_some()
}

async fn started() -> Cluster {
    let cluster = Cluster::start(CONTROLLERS).await;
    let info = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "cluster-info", "namespace": "kube-public"}, "data": {"kubeconfig": "first"}});
    cluster.create(info).await;
    cluster
}

fn in_an_hour(cluster: &Cluster) -> String {
    let at = cluster.now().saturating_add(SignedDuration::from_hours(1)).expect("a time");
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[tokio::test(start_paused = true)]
async fn a_token_signs_until_it_expires_and_is_deleted_then() {
    let cluster = started().await;
    assert!(cluster_info(&cluster).await[SIGNATURE].is_null());
    cluster.create(token(&in_an_hour(&cluster), "true")).await;
    let signature = cluster_info(&cluster).await[SIGNATURE].clone();
    assert_eq!(text(&signature).split('.').count(), 3, "a detached signature: {signature}");
    let at = format!("{}/cluster-info", path("ConfigMap", "kube-public"));
    cluster.patch_at(&at, json!({"data": {"kubeconfig": "second"}})).await;
    let renewed = cluster_info(&cluster).await[SIGNATURE].clone();
    assert!(renewed.is_string() && renewed != signature, "{renewed}");
    cluster.advance(Duration::from_secs(1800)).await;
    assert!(has_token(&cluster).await && cluster_info(&cluster).await[SIGNATURE] == renewed);
    cluster.advance(Duration::from_secs(1900)).await;
    assert!(!has_token(&cluster).await && cluster_info(&cluster).await[SIGNATURE].is_null());
}

#[tokio::test(start_paused = true)]
async fn a_token_for_other_uses_signs_nothing() {
    let cluster = started().await;
    cluster.create(token(&in_an_hour(&cluster), "false")).await;
    assert!(cluster_info(&cluster).await[SIGNATURE].is_null());
    let at = format!("{}/bootstrap-token-abcdef", path("Secret", "kube-system"));
    let may_sign = base64::engine::general_purpose::STANDARD.encode("true");
    cluster.patch_at(&at, json!({"data": {"usage-bootstrap-signing": may_sign}})).await;
    assert!(cluster_info(&cluster).await[SIGNATURE].is_string());
}
