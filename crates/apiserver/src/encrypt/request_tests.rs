//! Tests of requests for objects whose stored values cannot be decrypted, or not yet.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use knarr_store::{Embedded, Options, Store};
use serde_json::{Value, json};

use super::kms::KmsProvider;
use super::kms::test_plugin::TestPlugin;
use super::{Configuration, Encrypted, Encryption};
use crate::request_tests::Cluster;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const KEY: &str = "/registry/secrets/default/plain";
const AESGCM: &str = "{aesgcm: {keys: [{name: a, secret: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}]}}";

fn embedded(directory: &tempfile::TempDir) -> Arc<dyn Store> {
    Arc::new(Embedded::open(directory.path(), Options::default()).unwrap())
}

/// A configuration by which Secrets are encrypted by these providers.
fn configuration(providers: &str) -> Configuration {
    let text =
        format!("kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{providers}]}}]");
    Configuration::parse(&text).unwrap()
}

/// A server whose Secrets are encrypted by these providers.
async fn cluster(inner: &Arc<dyn Store>, providers: &str) -> Cluster {
    cluster_with(inner, configuration(providers)).await
}

async fn cluster_with(inner: &Arc<dyn Store>, configuration: Configuration) -> Cluster {
    let encryption = Encryption::new(configuration);
    Cluster::encrypted(Arc::new(Encrypted::new(inner.clone(), encryption.clone())), encryption).await
}

fn secret(name: &str) -> Value {
    json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default", "labels": {"a": "b"}},
           "data": {"key": "dmFsdWU="}, "type": "Opaque"})
}

#[tokio::test]
async fn plain_values_are_refused_without_the_identity_provider() {
    let directory = tempfile::tempdir().unwrap();
    let inner = embedded(&directory);
    let plain = Bytes::from(secret("plain").to_string());
    let stored = inner.create(KEY, plain.clone(), None).await.unwrap();
    let strict = cluster(&inner, AESGCM).await;
    let path = format!("{SECRETS}/plain");
    let refused = "Internal error occurred: no matching prefix found";
    let list_refused = format!("Internal error occurred: unable to transform key {KEY:?}: no matching prefix found");
    for (method, path, body, message) in [
        ("GET", path.as_str(), Value::Null, refused),
        ("PUT", &path, secret("plain"), refused),
        ("DELETE", &path, Value::Null, refused),
        ("GET", SECRETS, Value::Null, &list_refused),
        ("GET", &format!("{SECRETS}?labelSelector=a%3Dother"), Value::Null, &list_refused),
        ("GET", &format!("{SECRETS}?fieldSelector=metadata.name%3Dplain"), Value::Null, &list_refused),
        ("DELETE", SECRETS, Value::Null, &list_refused),
    ] {
        let (code, status) = strict.json(method, path, body).await;
        let found = (code, status["reason"].as_str(), status["message"].as_str());
        assert_eq!(found, (500, Some("InternalError"), Some(message)), "{method} {path}");
    }
    let now = inner.peek(KEY).unwrap();
    assert_eq!((now.revision, now.value()), (stored.revision, plain), "nothing changed the value");
    assert_eq!(strict.json("POST", SECRETS, secret("new")).await.0, 201);
    assert_eq!(strict.json("GET", &format!("{SECRETS}/new"), Value::Null).await.0, 200);

    let both = cluster(&inner, &format!("{AESGCM}, {{identity: {{}}}}")).await;
    assert_eq!(both.json("GET", &path, Value::Null).await.1["data"]["key"], "dmFsdWU=");
    assert_eq!(both.json("GET", SECRETS, Value::Null).await.0, 200);
}

fn kms(plugin: &TestPlugin, timeout: &str) -> String {
    format!("{{kms: {{apiVersion: v2, name: vault, endpoint: '{}', timeout: {timeout}}}}}", plugin.endpoint())
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Waits for a state of the plugin or the server.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_key_service_holds_no_threads_and_is_asked_once() {
    const REQUESTS: usize = 200;
    let plugin = TestPlugin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let inner = embedded(&directory);
    let other = cluster(&inner, &kms(&plugin, "1h")).await;
    let cluster = Arc::new(cluster(&inner, &kms(&plugin, "1h")).await);
    plugin.hang_decryptions(true);
    let asked = plugin.decryptions();
    // The other server's key is not this one's.
    assert_eq!(other.json("POST", SECRETS, secret("s")).await.0, 201);
    let threads_before = threads();
    let reads: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let cluster = cluster.clone();
            tokio::spawn(async move { cluster.json("GET", &format!("{SECRETS}/s"), Value::Null).await })
        })
        .collect();
    until("the plugin is asked", async || plugin.decryptions() > asked).await;
    for _ in 0..50 {
        assert_eq!(cluster.json("GET", "/api/v1/namespaces/default/pods", Value::Null).await.0, 200);
    }
    assert!(reads.iter().all(|read| !read.is_finished()), "reads wait for the key");
    assert!(threads() < threads_before + 50, "{} threads, {threads_before} before", threads());
    assert_eq!(plugin.decryptions() - asked, 1, "calls for one key");
    plugin.hang_decryptions(false);
    for read in reads {
        let (code, read) = read.await.unwrap();
        assert_eq!((code, &read["data"]["key"]), (200, &json!("dmFsdWU=")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_key_service_is_reported_to_clients_and_by_healthz() {
    let plugin = TestPlugin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let inner = embedded(&directory);
    let before = cluster(&inner, &kms(&plugin, "1h")).await;
    assert_eq!(before.json("POST", SECRETS, secret("s")).await.0, 201);
    drop(before);
    // A server that starts has none of the keys.
    plugin.hang(true);
    let configuration = configuration(&kms(&plugin, "300ms"));
    let provider = configuration.kms_providers().remove(0);
    let cluster = Arc::new(cluster_with(&inner, configuration).await);
    let reads: Vec<_> = (0..200)
        .map(|index| {
            let cluster = cluster.clone();
            let path = if index % 2 == 0 { format!("{SECRETS}/s") } else { SECRETS.to_owned() };
            tokio::spawn(async move { cluster.json("GET", &path, Value::Null).await })
        })
        .collect();
    let why = "failed to decrypt DEK, error: rpc error: code = DeadlineExceeded desc = context deadline exceeded";
    for read in reads {
        let (code, status) = read.await.unwrap();
        let message = status["message"].as_str().unwrap_or_default();
        assert!(code == 500 && message.ends_with(why), "{code} {message}");
    }
    let (code, status) = cluster.json("POST", SECRETS, secret("other")).await;
    let message = status["message"].as_str().unwrap_or_default();
    assert!(code >= 500 && message.contains("cannot be encrypted"), "{code} {message}");
    let reports = async |line: &str| cluster.text("/healthz?verbose").await.1.contains(line);
    until("healthz reports the plugin", async || reports("[-]kms-providers failed").await).await;
    plugin.hang(false);
    until("the Secret can be read", async || cluster.json("GET", &format!("{SECRETS}/s"), Value::Null).await.0 == 200)
        .await;
    // A plugin that is healthy and hangs later. It is polled by the minute otherwise.
    let interval = Duration::from_millis(10);
    let polls = tokio::spawn(KmsProvider::poll_while_used(Arc::downgrade(&provider), interval, interval));
    until("healthz reports health", async || reports("[+]kms-providers ok").await).await;
    plugin.hang(true);
    until("healthz reports the plugin again", async || reports("[-]kms-providers failed").await).await;
    assert_eq!(cluster.text("/healthz").await.0, 500);
    assert!(!polls.is_finished(), "it is polled whatever its health");
    polls.abort();
}
