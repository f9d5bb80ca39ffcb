//! Updates the authorities that a node trusts while the cluster replaces its certificate authority.
//!
//! The servers publish their authorities in the cluster's settings; the first one signs. A node that finds other authorities than
//! its own saves them and restarts with them. Its certificates are renewed by the signing authority. When all of them are, the
//! node records that in an annotation of its Node object. Servers drop the old authority only when all nodes have done so.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use knarr_client::k8s_openapi::api::core::v1::{ConfigMap, Node};
use knarr_client::kube::api::{Patch, PatchParams};
use knarr_client::kube::{Api, Client};
use knarr_kubelet::certificates::{self, Purpose};
use serde_json::json;
use x509_parser::pem::Pem;

use super::{Pin, pem};
use crate::{cluster, restart};

/// The annotation of a Node with the hash of the authority that signed its certificates.
pub const ANNOTATION: &str = "knarr.io/certificate-authority";
/// The key of the settings with the authorities.
pub const SETTING: &str = "authorities";
const INTERVAL: Duration = Duration::from_secs(30);
/// The files with the authorities that a node trusts.
#[derive(Clone, Debug)]
pub struct Trust {
    data: PathBuf,
    /// The directories of the node's certificates: its client certificates, and the serving certificate of its kubelet.
    certificates: [PathBuf; 2],
}

impl Trust {
    /// `kubelet` is the kubelet's directory.
    pub fn of(data: &Path, kubelet: &Path) -> Self {
        Self { data: data.to_owned(), certificates: [data.join("kubelet/pki"), kubelet.join("pki")] }
    }

    pub fn file(&self) -> PathBuf {
        self.data.join("pki/ca.crt")
    }

    /// The hash of the authority in the node's join token, if the authority was replaced since.
    fn origin(&self) -> PathBuf {
        self.data.join("pki/ca.origin")
    }

    /// The saved authorities (DER), the signing one first, if they are those of the token's cluster.
    pub fn load(&self, pin: Pin) -> Option<Vec<Vec<u8>>> {
        let authorities = parse(&std::fs::read_to_string(self.file()).ok()?).ok()?;
        let is_pinned = authorities.iter().any(|authority| Pin::of(authority).is_ok_and(|found| found == pin));
        let is_successor =
            || std::fs::read_to_string(self.origin()).is_ok_and(|origin| origin.trim() == pin.to_string());
        (is_pinned || is_successor()).then_some(authorities)
    }

    /// Saves the authority that a token pins.
    pub fn save(&self, authority: &[u8]) -> anyhow::Result<()> {
        write(&self.file(), &pem(authority))
    }

    /// Saves published authorities, if they are new. An authority that is trusted already must be among them.
    fn replace(&self, published: &str, pin: Option<Pin>) -> anyhow::Result<bool> {
        let current = std::fs::read_to_string(self.file()).context("cannot read the authorities")?;
        let (old, new) = (parse(&current)?, parse(published)?);
        if old == new {
            return Ok(false);
        }
        ensure!(
            new.iter().any(|authority| old.contains(authority)),
            "the published authorities are of another cluster"
        );
        if let Some(pin) = pin {
            write(&self.origin(), &pin.to_string())?;
        }
        let text: String = new.iter().map(|authority| pem(authority)).collect();
        write(&self.file(), &text)?;
        Ok(true)
    }

    /// The hash of the signing authority.
    fn signer(&self) -> anyhow::Result<String> {
        let first = parse(&std::fs::read_to_string(self.file())?)?.swap_remove(0);
        Ok(Pin::of(&first)?.to_string())
    }

    /// Whether the node has certificates, and the signing authority has signed all of them.
    fn is_complete(&self) -> bool {
        let serving = Purpose::Serving { names: Vec::new(), addresses: Vec::new() };
        let purposes = [Purpose::Client, Purpose::Network, Purpose::Storage, serving];
        let all = self
            .certificates
            .iter()
            .flat_map(|directory| purposes.iter().map(|purpose| certificates::files(directory, purpose).certificate));
        let existing: Vec<PathBuf> = all.filter(|path| path.exists()).collect();
        let is_current = |path: &PathBuf| matches!(certificates::signer_of(path, &self.file()), Ok(Some(0)));
        !existing.is_empty() && existing.iter().all(is_current)
    }
}

/// Watches the published authorities until dropped. `pin` is the hash in the token of an agent; servers get their authorities from
/// each other.
pub async fn keep(client: Client, node: String, trust: Trust, pin: Option<Pin>) {
    let mut annotated = String::new();
    loop {
        if let Err(error) = look(&client, &node, &trust, pin, &mut annotated).await {
            tracing::debug!(error = format!("{error:#}"), "cannot compare authorities");
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Compares the published authorities with those of this node, and its certificates with the signing one.
async fn look(
    client: &Client,
    node: &str,
    trust: &Trust,
    pin: Option<Pin>,
    annotated: &mut String,
) -> anyhow::Result<()> {
    if pin.is_some() {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), cluster::NAMESPACE);
        let settings = maps.get(cluster::NAME).await.context("cannot read the cluster's settings")?;
        if let Some(published) = settings.data.unwrap_or_default().get(SETTING)
            && trust.replace(published, pin)?
        {
            tracing::info!("the cluster's certificate authorities have changed; restarting with them");
            restart::request();
            // This process ends.
            return std::future::pending().await;
        }
    }
    if !trust.is_complete() {
        return Ok(());
    }
    let hash = trust.signer()?;
    if *annotated != hash {
        let nodes: Api<Node> = Api::all(client.clone());
        let patch = json!({"metadata": {"annotations": {ANNOTATION: hash}}});
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(&patch)).await.context("cannot annotate the node")?;
        *annotated = hash;
    }
    Ok(())
}

/// The certificates of a file (DER).
fn parse(text: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let parsed: Result<Vec<Pem>, _> = Pem::iter_from_buffer(text.as_bytes()).collect();
    let parsed: Vec<Vec<u8>> = parsed.context("not a certificate")?.into_iter().map(|pem| pem.contents).collect();
    if parsed.is_empty() {
        bail!("no certificate");
    }
    Ok(parsed)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = (|| {
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        let beside = path.with_extension("new");
        std::fs::write(&beside, text)?;
        std::fs::File::open(&beside)?.sync_all()?;
        knarr_files::rename_durably(&beside, path)
    })();
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use knarr_apiserver::pki::Authority;

    fn authority(name: &str) -> (String, Pin) {
        let text = Authority::create(name, Timestamp::now()).unwrap().certificate;
        let pin = Pin::of(&parse(&text).unwrap()[0]).unwrap();
        (text, pin)
    }

    #[test]
    fn authorities_follow_each_other_and_strangers_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let trust = Trust::of(directory.path(), directory.path());
        let ((old, pin), (new, new_pin), (other, _)) = (authority("old"), authority("new"), authority("other"));
        assert!(trust.load(pin).is_none());
        trust.save(&parse(&old).unwrap()[0]).unwrap();
        assert_eq!(trust.load(pin).unwrap().len(), 1);
        assert!(trust.load(new_pin).is_none());
        assert!(!trust.replace(&old, Some(pin)).unwrap());
        assert!(trust.replace(&other, Some(pin)).is_err());
        assert!(trust.replace("", Some(pin)).is_err());
        for published in [format!("{old}{new}"), format!("{new}{old}"), new.clone()] {
            assert!(trust.replace(&published, Some(pin)).unwrap());
            assert!(!trust.replace(&published, Some(pin)).unwrap());
            // The token with the old hash is still that of this cluster.
            assert!(trust.load(pin).is_some());
        }
        assert_eq!(trust.signer().unwrap(), new_pin.to_string());
        assert!(trust.load(new_pin).is_some());
        assert!(!trust.is_complete(), "there are no certificates");
    }
}
