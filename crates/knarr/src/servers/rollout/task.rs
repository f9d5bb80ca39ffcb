//! Executes a rollout on this server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use knarr_apiserver::encrypt::Configuration;
use knarr_client::k8s_openapi::api::core::v1::Node;
use knarr_client::kube::api::ListParams;
use knarr_client::kube::{Api, Client};
use knarr_store::{Error, EtcdAdministration, Revision, Store};

use super::{Action, Files, Kind, Rollout, encryption, rewrite};
use crate::join::AUTHORITY_ANNOTATION;
use crate::restart;
use crate::servers::member::server_name;
use crate::servers::record;

const KEY: &str = "/registry/knarr/rollout";
const INTERVAL: Duration = Duration::from_secs(2);

/// The parts of the server that rollouts use.
#[derive(Clone)]
pub struct Rollouts {
    pub store: Arc<dyn Store>,
    /// May list nodes.
    pub client: Client,
    pub data: PathBuf,
    /// The encryption configuration, whether it exists or not.
    pub encryption: PathBuf,
    pub name: String,
    /// How long Events are kept.
    pub event_lifetime: Duration,
    /// The members of etcd, if there are other servers.
    pub members: Option<Arc<EtcdAdministration>>,
}

/// Runs until dropped.
pub async fn run(rollouts: Rollouts) {
    loop {
        if let Err(error) = rollouts.step().await {
            tracing::warn!(error = format!("{error:#}"), "cannot continue the rollout of keys; retrying");
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

impl Rollouts {
    /// The rollout in progress, with its revision.
    pub async fn load(&self) -> anyhow::Result<Option<(Rollout, Revision)>> {
        self.store.sync().await.context("cannot read the store")?;
        self.peek()
    }

    fn peek(&self) -> anyhow::Result<Option<(Rollout, Revision)>> {
        let Some(entry) = self.store.peek(KEY) else { return Ok(None) };
        let rollout = serde_json::from_slice(&entry.value()).context("the store's record of a rollout is invalid")?;
        Ok(Some((rollout, entry.revision)))
    }

    /// Records a new rollout; there is one at a time.
    pub async fn start(&self, rollout: &Rollout) -> Result<(), Error> {
        let text = serde_json::to_vec(rollout).map_err(|error| Error::Unavailable(error.to_string()))?;
        self.store.create(KEY, Bytes::from(text), None).await.map(drop)
    }

    pub async fn save(&self, rollout: &Rollout, revision: Revision) -> anyhow::Result<()> {
        let saved = self.store.update(KEY, Bytes::from(serde_json::to_vec(rollout)?), revision, None).await;
        saved.map(drop).context("cannot save the state of the rollout")
    }

    /// All servers, in the same order on each of them.
    pub async fn servers(&self) -> anyhow::Result<Vec<String>> {
        let Some(members) = &self.members else { return Ok(vec![self.name.clone()]) };
        let members = members.members().await.context("cannot list the servers")?;
        // A joining server counts, too: it received the files of one step, and must not miss the following ones.
        let mut names: Vec<String> = members.iter().map(server_name).collect();
        names.sort();
        Ok(names)
    }

    /// The secret from which the encryption key of a rollout's files is derived; only servers have it.
    pub fn secret(&self) -> anyhow::Result<String> {
        let path = self.data.join("pki/service-account.key");
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    async fn step(&self) -> anyhow::Result<()> {
        // Usually there is no rollout, which the local index shows without a request to etcd.
        if self.peek()?.is_none() {
            return Ok(());
        }
        let Some((mut rollout, revision)) = self.load().await? else { return Ok(()) };
        let sealed = rollout.steps.get(rollout.step).context("the rollout has no such step")?;
        let files: Files = serde_json::from_slice(&sealed.open(&self.secret()?)?).context("a step is invalid")?;
        let servers = self.servers().await?;
        match rollout.next(&servers, &self.name, files.are_in(&self.data, &self.encryption)) {
            Action::Wait => Ok(()),
            Action::Acknowledge => {
                rollout.applied.insert(self.name.clone(), rollout.step);
                self.save(&rollout, revision).await?;
                tracing::info!(step = rollout.step + 1, of = rollout.steps.len(), "new keys are in use");
                Ok(())
            }
            Action::Apply => {
                tracing::info!(step = rollout.step + 1, of = rollout.steps.len(), "restarting with new keys");
                files.save_pending(&self.data)?;
                restart::request();
                // The restart ends this process.
                std::future::pending().await
            }
            Action::Advance => {
                if self.can_advance(&rollout).await? {
                    self.prepare_last_step(&rollout).await?;
                    rollout.step += 1;
                    self.save(&rollout, revision).await?;
                }
                Ok(())
            }
            Action::Finish => self.finish(&rollout, revision).await,
        }
    }

    /// Whether nothing depends on what the next step removes.
    async fn can_advance(&self, rollout: &Rollout) -> anyhow::Result<bool> {
        match rollout.kind {
            Kind::Authority if rollout.step == 0 || rollout.is_forced => Ok(true),
            Kind::Authority => Ok(self.nodes_behind(&rollout.authority).await?.is_empty()),
            Kind::Encryption if rollout.step == encryption::REWRITE_AFTER => self.rewrite().await.map(|()| true),
            Kind::Encryption => Ok(true),
        }
    }

    /// Before the last step, which leaves servers only the new authority, sets it in the store's record of the cluster.
    async fn prepare_last_step(&self, rollout: &Rollout) -> anyhow::Result<()> {
        if rollout.kind == Kind::Authority && rollout.step + 2 == rollout.steps.len() {
            record::replace_authority(&*self.store, &rollout.authority).await?;
        }
        Ok(())
    }

    async fn finish(&self, rollout: &Rollout, revision: Revision) -> anyhow::Result<()> {
        // A rollout without a third step introduced encryption: no step has rewritten the objects yet.
        if rollout.kind == Kind::Encryption && rollout.steps.len() <= encryption::REWRITE_AFTER + 1 {
            self.rewrite().await?;
        }
        self.store.delete(KEY, revision).await.context("cannot end the rollout")?;
        tracing::info!(kind = ?rollout.kind, "all servers have new keys");
        Ok(())
    }

    /// The nodes whose certificates were not signed by the authority with this hash.
    pub async fn nodes_behind(&self, authority: &str) -> anyhow::Result<Vec<String>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let nodes = nodes.list(&ListParams::default()).await.context("cannot list nodes")?;
        let behind = nodes.items.into_iter().filter(|node| {
            let known = node.metadata.annotations.as_ref().and_then(|all| all.get(AUTHORITY_ANNOTATION));
            known.is_none_or(|known| known != authority)
        });
        Ok(behind.filter_map(|node| node.metadata.name).collect())
    }

    async fn rewrite(&self) -> anyhow::Result<()> {
        rewrite::all(&*self.store, &read_configuration(&self.encryption)?, self.event_lifetime).await
    }
}

fn read_configuration(path: &Path) -> anyhow::Result<Configuration> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Configuration::parse(&text).with_context(|| format!("cannot use {}", path.display()))
}
