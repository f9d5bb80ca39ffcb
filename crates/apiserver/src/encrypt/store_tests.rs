//! Tests of the store that encrypts.

use super::*;
use knarr_store::{Embedded, Options};

#[tokio::test]
async fn values_are_stored_encrypted_and_read_decrypted() {
    let directory = tempfile::tempdir().unwrap();
    let inner: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
    let key = "A".repeat(43) + "=";
    let text = format!(
        "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{aesgcm: {{keys: [{{name: a, \
         secret: {key}}}]}}}}]}}]"
    );
    let store = Encrypted::new(inner.clone(), Encryption::new(Configuration::parse(&text).unwrap()));
    let place = "/registry/secrets/default/s";
    let mut watch = store.watch("/registry/secrets/", store.revision()).unwrap();
    let stored = store.create(place, Bytes::from_static(b"plain"), None).await.unwrap();
    assert_eq!(&stored.value()[..], b"plain");
    assert!(inner.peek(place).unwrap().value().starts_with(b"k8s:enc:aesgcm:v1:a:"));
    assert_eq!(&store.peek(place).unwrap().value()[..], b"plain");
    match watch.next().await {
        Some(Notice::Events(events)) => assert_eq!(&events[0].current.as_ref().unwrap().value()[..], b"plain"),
        other => panic!("{other:?}"),
    }
    match store.update(place, Bytes::new(), 1_000_000, None).await {
        Err(Error::Conflict { current: Some(current), .. }) => assert_eq!(&current.value()[..], b"plain"),
        other => panic!("{other:?}"),
    }
}

/// As kube-apiserver with `--etcd-prefix` does it.
#[tokio::test]
async fn values_are_bound_to_the_key_in_etcd() {
    let directory = tempfile::tempdir().unwrap();
    let inner: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
    let text = format!(
        "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{aesgcm: {{keys: [{{name: a, \
         secret: {}=}}]}}}}]}}]",
        "A".repeat(43)
    );
    let configuration = || Configuration::parse(&text).unwrap();
    let store = Encrypted::new(inner.clone(), Encryption::new(configuration())).with_prefix("/other");
    let place = "/registry/secrets/default/s";
    store.create(place, Bytes::from_static(b"plain"), None).await.unwrap();
    assert_eq!(&store.peek(place).unwrap().value()[..], b"plain");
    let sealed = inner.peek(place).unwrap().value();
    assert!(configuration().decrypt(place, &sealed).is_err());
    let opened = configuration().decrypt_at(place, "/other/secrets/default/s", &sealed);
    assert_eq!(opened.as_deref(), Ok(&b"plain"[..]));
}

/// kube-apiserver encrypts protobuf; it is read as what this server would have stored.
#[tokio::test]
async fn protobuf_that_another_server_encrypted_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let inner: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
    let secret = serde_json::json!({
        "kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s", "namespace": "default"},
        "data": {"key": "dmFsdWU="}, "type": "Opaque",
    });
    let place = "/registry/secrets/default/s";
    for provider in ["aesgcm", "aescbc", "secretbox"] {
        let text = format!(
            "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{{provider}: {{keys: \
             [{{name: a, secret: {}=}}]}}}}]}}]",
            "A".repeat(43)
        );
        let configuration = Configuration::parse(&text).unwrap();
        let protobuf = knarr_api::protobuf::encode(&secret).unwrap();
        let encrypted = configuration.encrypt(place, &protobuf).unwrap();
        let stored = inner.create(place, encrypted.into(), None).await.unwrap();
        let store = Encrypted::new(inner.clone(), Encryption::new(configuration));
        let mut watch = store.watch("/registry/secrets/", stored.revision - 1).unwrap();
        let read = |entry: &Entry| serde_json::from_slice::<serde_json::Value>(&entry.value()).unwrap();
        assert_eq!(read(&store.peek(place).unwrap()), secret, "{provider}");
        match watch.next().await {
            Some(Notice::Events(events)) => assert_eq!(read(events[0].current.as_ref().unwrap()), secret),
            other => panic!("{provider}: {other:?}"),
        }
        store.delete(place, stored.revision).await.unwrap();
    }
}

#[tokio::test]
async fn keys_are_replaced_while_the_server_runs() {
    let directory = tempfile::tempdir().unwrap();
    let inner: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
    let key = |letter: &str| letter.repeat(43) + "=";
    let text = |keys: &[(&str, &str)]| {
        let keys: Vec<String> =
            keys.iter().map(|(name, letter)| format!("{{name: {name}, secret: {}}}", key(letter))).collect();
        format!(
            "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{aesgcm: {{keys: [{}]}}}}]}}]",
            keys.join(", ")
        )
    };
    let encryption = Encryption::new(Configuration::parse(&text(&[("a", "A")])).unwrap());
    let store = Encrypted::new(inner.clone(), encryption.clone());
    let place = |name: &str| format!("/registry/secrets/default/{name}");
    store.create(&place("old"), Bytes::from_static(b"old"), None).await.unwrap();
    assert!(encryption.reload("nonsense").await.is_err());
    encryption.reload(&text(&[("b", "E"), ("a", "A")])).await.unwrap();
    store.create(&place("new"), Bytes::from_static(b"new"), None).await.unwrap();
    assert!(inner.peek(&place("new")).unwrap().value().starts_with(b"k8s:enc:aesgcm:v1:b:"));
    assert_eq!(&store.peek(&place("old")).unwrap().value()[..], b"old");
    assert_eq!(&store.peek(&place("new")).unwrap().value()[..], b"new");
}

#[tokio::test]
async fn values_are_encrypted_with_keys_of_a_plugin() {
    let plugin = super::super::kms::test_plugin::TestPlugin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let inner: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
    let text = format!(
        "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{kms: {{apiVersion: v2, name: \
         vault, endpoint: '{}'}}}}, {{identity: {{}}}}]}}]",
        plugin.endpoint()
    );
    let encryption = Encryption::new(Configuration::parse(&text).unwrap());
    let store = Encrypted::new(inner.clone(), encryption.clone());
    let place = "/registry/secrets/default/s";
    store.create(place, Bytes::from_static(b"plain"), None).await.unwrap();
    assert!(inner.peek(place).unwrap().value().starts_with(b"k8s:enc:kms:v2:vault:"));
    assert_eq!(&store.peek(place).unwrap().value()[..], b"plain");
    let again = Encrypted::new(inner, Encryption::new(Configuration::parse(&text).unwrap()));
    again.prepare_read(&Range::key(place)).await;
    assert_eq!(&again.peek(place).unwrap().value()[..], b"plain", "after a restart");
}

/// What a server reads for itself does not wait for the plugin.
#[tokio::test]
async fn keys_of_other_servers_are_opened_as_they_arrive() {
    let plugin = super::super::kms::test_plugin::TestPlugin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let inner: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
    let text = format!(
        "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{kms: {{apiVersion: v2, name: \
         vault, endpoint: '{}'}}}}]}}]",
        plugin.endpoint()
    );
    let store = || Arc::new(Encrypted::new(inner.clone(), Encryption::new(Configuration::parse(&text).unwrap())));
    let (own, other) = (store(), store());
    let (stop, stopping) = tokio::sync::watch::channel(false);
    let opening = tokio::spawn(open_keys(own.clone(), stopping));
    let place = "/registry/secrets/default/s";
    other.create(place, Bytes::from_static(b"plain"), None).await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    // A read would ask for the key, too.
    while plugin.decryptions() == 0 || own.peek(place).unwrap().value()[..] != b"plain"[..] {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.send_replace(true);
    opening.await.unwrap();
}
