//! Rewrites all encrypted objects, so that they are encrypted with the current key.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use knarr_apiserver::encrypt::{Configuration, check_readable};
use knarr_store::{Error, Range, Store};

/// How many keys are read at a time.
const PAGE: usize = 200;
const EVENTS: &str = "/registry/events/";

/// `event_lifetime` is that of rewritten Events: a rewrite cannot keep the remaining one.
pub async fn all(store: &dyn Store, configuration: &Configuration, event_lifetime: Duration) -> anyhow::Result<()> {
    let mut after: Option<String> = None;
    let mut count = 0;
    store.sync().await.context("cannot read the store")?;
    loop {
        let range = Range { prefix: "/registry/", after: after.as_deref(), limit: PAGE, ..Range::default() };
        let page = store.peek_range(&range).context("cannot read the store")?;
        let Some(last) = page.entries.last() else { break };
        let last = last.key.to_string();
        for entry in page.entries.iter().filter(|entry| configuration.concerns(&entry.key)) {
            one(store, &entry.key, event_lifetime).await?;
            count += 1;
        }
        after = Some(last);
    }
    tracing::info!(count, "encrypted objects with the new key");
    Ok(())
}

async fn one(store: &dyn Store, key: &str, event_lifetime: Duration) -> anyhow::Result<()> {
    let ttl = key.starts_with(EVENTS).then_some(event_lifetime);
    store.prepare_read(&Range::key(key)).await;
    let Some(entry) = store.peek(key) else { return Ok(()) };
    // A value that cannot be decrypted is read as a placeholder, which must not be written back.
    check_readable([&entry]).map_err(|status| anyhow!("{}", status.message))?;
    match store.update(key, entry.value(), entry.revision, ttl).await {
        // On a conflict, the other writer has encrypted the object with the new key.
        Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot encrypt {key} with the new key")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use knarr_apiserver::encrypt::{Encrypted, Encryption};
    use knarr_store::{Embedded, Options};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const KEY: &str = "/registry/secrets/default/a";

    fn text(keys: &[&str]) -> String {
        let secret = |name: &str| format!("{{name: {name}, secret: {}A=}}", name.repeat(42));
        let keys: Vec<String> = keys.iter().map(|name| secret(name)).collect();
        format!(
            "kind: EncryptionConfiguration\nresources: [{{resources: [secrets], providers: [{{secretbox: {{keys: [{}]}}}}]}}]",
            keys.join(", ")
        )
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let inner: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
        let parse = |keys: &[&str]| Configuration::parse(&text(keys)).unwrap();
        let store = |keys: &[&str]| Encrypted::new(inner.clone(), Encryption::new(parse(keys)));
        store(&["A"]).create(KEY, Bytes::from_static(b"{}"), None).await.unwrap();
        all(&store(&["B", "A"]), &parse(&["B", "A"]), HOUR).await.unwrap();
        let sealed = inner.peek(KEY).unwrap().value();
        assert!(sealed.starts_with(b"k8s:enc:secretbox:v1:B:"));
        let refused = all(&store(&["C"]), &parse(&["C"]), HOUR).await.unwrap_err().to_string();
        assert!(refused.contains(KEY) && refused.contains("no matching key was found"), "{refused}");
        assert_eq!(inner.peek(KEY).unwrap().value(), sealed);
    }
}
