//! The record of a cluster's identity in its store: a server with another authority must not use the store, because each
//! server would reject the certificates and tokens of the other.

use anyhow::{Context as _, bail};
use bytes::Bytes;
use knarr_store::{Error, Store};
use serde::{Deserialize, Serialize};
use std::path::Path;

use crate::join::Pin;

const KEY: &str = "/registry/knarr/cluster";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ClusterRecord {
    /// The hash of the authority's public key, as in tokens.
    authority: String,
    /// A server of the cluster.
    server: String,
}

/// Refuses a store that belongs to another cluster, before this server creates an authority of its own.
pub async fn check(store: &dyn Store, data: &Path) -> anyhow::Result<()> {
    let Some(entry) = store.peek(KEY) else { return Ok(()) };
    let record: ClusterRecord = serde_json::from_slice(&entry.value()).context("the store's record of its cluster")?;
    match pins(data)?.contains(&record.authority) {
        true => Ok(()),
        false => bail!(
            "the store belongs to a running cluster, of which this host is no server: join it with the command that \
             `knarr token create --role server --print-join-command` prints on {}, and add --datastore",
            record.server
        ),
    }
}

/// Records this server's cluster, unless it is recorded already.
pub async fn ensure(store: &dyn Store, data: &Path, server: &str) -> anyhow::Result<()> {
    let authority = pins(data)?.into_iter().next().context("this server has no certificate authority")?;
    let record = ClusterRecord { authority, server: server.to_owned() };
    match store.create(KEY, Bytes::from(serde_json::to_vec(&record)?), None).await {
        Ok(_) => Ok(()),
        Err(Error::Exists(_)) => check(store, data).await,
        Err(error) => Err(error).context("cannot record the cluster in its store"),
    }
}

/// Records that the cluster has another authority now.
pub async fn replace_authority(store: &dyn Store, authority: &str) -> anyhow::Result<()> {
    let Some(entry) = store.peek(KEY) else { return Ok(()) };
    let mut record: ClusterRecord =
        serde_json::from_slice(&entry.value()).context("the store's record of its cluster")?;
    if record.authority == authority {
        return Ok(());
    }
    authority.clone_into(&mut record.authority);
    let saved = store.update(KEY, Bytes::from(serde_json::to_vec(&record)?), entry.revision, None).await;
    saved.map(drop).context("cannot record the cluster's new authority")
}

/// The hashes of the authorities in a data directory; the first one signs.
fn pins(data: &Path) -> anyhow::Result<Vec<String>> {
    let path = data.join("pki/ca.crt");
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let parsed: Result<Vec<_>, _> = x509_parser::pem::Pem::iter_from_buffer(&text).collect();
    let parsed = parsed.with_context(|| format!("{} is not a certificate", path.display()))?;
    parsed.iter().map(|pem| Ok(Pin::of(&pem.contents)?.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_apiserver::pki::{Identity, Pki};
    use knarr_store::{Embedded, Options};

    #[tokio::test]
    async fn a_store_is_used_by_servers_of_one_authority_only() {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(&directory.path().join("store"), Options::default()).unwrap();
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        check(&store, &one).await.unwrap();
        for data in [&one, &two] {
            Pki::open(&data.join("pki"), Identity::default(), jiff::Timestamp::now()).unwrap();
        }
        ensure(&store, &one, "https://10.0.0.1:6443").await.unwrap();
        ensure(&store, &one, "https://10.0.0.1:6443").await.unwrap();
        check(&store, &one).await.unwrap();
        let empty = directory.path().join("empty");
        for (data, step) in [(&two, "another"), (&empty, "none")] {
            let refused = check(&store, data).await.unwrap_err().to_string();
            assert!(refused.contains("knarr token create --role server"), "{step}: {refused}");
            assert!(refused.contains("https://10.0.0.1:6443"), "{step}: {refused}");
        }
        assert!(ensure(&store, &two, "https://10.0.0.2:6443").await.is_err());
    }
}
