//! Replaces the encryption configuration when its file changes.
//!
//! As in Kubernetes, a new configuration is used once its KMS plugins are healthy. Until then, and if it cannot be used, the
//! previous one stays in use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::configuration::{Configuration, ConfigurationError};
use super::store::Encryption;
use crate::configuration_file;

/// How long new plugins may take to become healthy, and how often they are asked meanwhile.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);
const HEALTH_INTERVAL: Duration = Duration::from_millis(100);
/// When a configuration whose plugins were not healthy is loaded again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Replaces the configuration whenever its file changes, until the server stops. An invalid file changes nothing; one whose
/// plugins are not healthy is tried again.
pub async fn watch_configuration(
    encryption: Encryption,
    path: PathBuf,
    known: String,
    stopping: watch::Receiver<bool>,
) {
    let (sender, texts) = watch::channel(known.clone());
    let watching = configuration_file::watch(path.clone(), known, stopping, move |text| {
        sender.send_replace(text.to_owned());
    });
    tokio::select! {
        () = watching => {}
        () = load(encryption, path, texts) => {}
    }
}

/// Loads each new text.
async fn load(encryption: Encryption, path: PathBuf, mut texts: watch::Receiver<String>) {
    let path = path.display();
    let mut is_retry = false;
    loop {
        tokio::select! {
            changed = texts.changed() => if changed.is_err() { return },
            () = sleep(RETRY_INTERVAL), if is_retry => {}
        }
        let text = texts.borrow_and_update().clone();
        let loaded = encryption.reload(&text).await;
        is_retry = matches!(loaded, Err(ConfigurationError::Unhealthy(_)));
        match loaded {
            Ok(()) => tracing::info!(%path, "loaded new encryption configuration"),
            Err(error) => tracing::error!(%path, %error, "cannot load the encryption configuration"),
        }
    }
}

impl Encryption {
    /// Replaces the configuration. One that is invalid, or whose plugins do not become healthy, changes nothing.
    pub async fn reload(&self, text: &str) -> Result<(), ConfigurationError> {
        let configuration = Configuration::parse(text)?;
        wait_until_healthy(&configuration).await?;
        self.replace(Arc::new(configuration)).await;
        Ok(())
    }
}

async fn wait_until_healthy(configuration: &Configuration) -> Result<(), ConfigurationError> {
    let deadline = Instant::now() + HEALTH_TIMEOUT;
    for provider in configuration.kms_providers() {
        let mut last = String::new();
        let is_healthy = async {
            while let Err(error) = provider.check_now().await {
                last = error;
                sleep(HEALTH_INTERVAL).await;
            }
        };
        if timeout_at(deadline, is_healthy).await.is_err() {
            return Err(ConfigurationError::Unhealthy(last));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use knarr_store::{Embedded, Options, Range, Store};

    use super::super::kms::test_plugin::TestPlugin;
    use super::super::store::Encrypted;
    use super::*;

    const KEY: &str = "/registry/secrets/default/s";
    const CIPHER: &str = "{aesgcm: {keys: [{name: a, secret: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}]}}";

    fn text(providers: &str) -> String {
        format!("kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{providers}]}}]")
    }

    fn kms(name: &str, plugin: &TestPlugin) -> String {
        format!("{{kms: {{apiVersion: v2, name: {name}, endpoint: '{}'}}}}", plugin.endpoint())
    }

    fn embedded(directory: &tempfile::TempDir) -> Arc<dyn Store> {
        Arc::new(Embedded::open(directory.path(), Options::default()).unwrap())
    }

    fn encryption(providers: &str) -> Encryption {
        Encryption::new(Configuration::parse(&text(providers)).unwrap())
    }

    async fn write(store: &Encrypted, key: &str) {
        store.create(key, Bytes::from_static(b"plain"), None).await.unwrap();
    }

    /// What the server reads for itself does not wait for a plugin.
    #[tokio::test]
    async fn values_stay_readable_while_the_configuration_is_replaced() {
        let (plugin, directory) = (TestPlugin::start().await, tempfile::tempdir().unwrap());
        let inner = embedded(&directory);
        let (old, vault) = (encryption(&kms("vault", &plugin)), kms("vault", &plugin));
        let store = Encrypted::new(inner.clone(), old.clone());
        write(&store, KEY).await;
        // Of a server that uses the new configuration already.
        let other = Encrypted::new(inner, encryption(&format!("{}, {vault}", kms("new", &plugin))));
        let their_key = "/registry/secrets/default/theirs";
        write(&other, their_key).await;
        old.reload(&text(&format!("{}, {vault}", kms("new", &plugin)))).await.unwrap();
        for key in [KEY, their_key] {
            assert_eq!(&store.peek(key).unwrap().value()[..], b"plain", "{key}");
        }
    }

    #[tokio::test]
    async fn a_configuration_is_used_once_its_plugins_are_healthy() {
        let (plugin, directory) = (TestPlugin::start().await, tempfile::tempdir().unwrap());
        let (inner, used) = (embedded(&directory), encryption(CIPHER));
        let store = Encrypted::new(inner.clone(), used.clone());
        plugin.set_health("sealed");
        let file = directory.path().join("encryption.yaml");
        let new = text(&format!("{}, {CIPHER}", kms("vault", &plugin)));
        std::fs::write(&file, new).unwrap();
        let (stop, stopping) = watch::channel(false);
        let watching = tokio::spawn(watch_configuration(used, file, text(CIPHER), stopping));
        while plugin.statuses() == 0 {
            sleep(Duration::from_millis(10)).await;
        }
        write(&store, KEY).await;
        assert!(inner.peek(KEY).unwrap().value().starts_with(b"k8s:enc:aesgcm:v1:a:"), "the previous one is in use");
        plugin.set_health("ok");
        for number in 0.. {
            let key = format!("{KEY}-{number}");
            write(&store, &key).await;
            if inner.peek(&key).unwrap().value().starts_with(b"k8s:enc:kms:v2:vault:") {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(&store.peek(KEY).unwrap().value()[..], b"plain");
        stop.send_replace(true);
        watching.await.unwrap();
    }

    #[tokio::test]
    async fn a_configuration_without_its_plugin_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (inner, used) = (embedded(&directory), encryption(CIPHER));
        let store = Encrypted::new(inner.clone(), used.clone());
        let plugin = TestPlugin::start().await;
        plugin.set_health("sealed");
        let new = text(&format!("{}, {CIPHER}", kms("vault", &plugin)));
        tokio::time::pause();
        let refused = used.reload(&new).await;
        tokio::time::resume();
        assert!(matches!(refused, Err(ConfigurationError::Unhealthy(_))), "{refused:?}");
        assert!(used.reload("nonsense").await.is_err());
        write(&store, KEY).await;
        store.prepare_read(&Range::key(KEY)).await;
        assert!(inner.peek(KEY).unwrap().value().starts_with(b"k8s:enc:aesgcm:v1:a:"));
    }
}
