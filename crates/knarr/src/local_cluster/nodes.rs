//! Starts, stops and removes the nodes of a cluster. Runs where their network is: on the host, or inside the cluster's namespaces.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use knarr_client::k8s_openapi::api::core::v1::Node;
use knarr_client::kube::{Api, api::ListParams};

use super::node::Join;
use super::readiness::{PodNetwork, has_started};
use super::spec::Spec;
use super::{Progress, kubeconfig, network, node, ports};
use crate::data_directory_lock;

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The nodes of one cluster.
pub struct Nodes<'a> {
    pub spec: &'a Spec,
    /// The directory of the cluster.
    pub directory: &'a Path,
}

impl Nodes<'_> {
    /// Starts a cluster that is not running, and waits until its nodes are ready. Nodes without the built-in pod network count as
    /// ready if they lack only a network plugin, which the user installs afterwards.
    pub async fn start(&self, progress: Progress<'_>) -> anyhow::Result<()> {
        let (spec, directory, started) = (self.spec, self.directory, Timestamp::now());
        progress("creating the network");
        network::create(spec)?;
        for number in 1..=spec.nodes {
            node::write_registry(spec, directory, number)?;
        }
        // For a cluster in a user namespace, the first process of the namespaces does this.
        if !spec.is_rootless() {
            ports::start(directory, spec).await?;
        }
        progress(if spec.servers > 1 { "starting the first server" } else { "starting the server" });
        // Servers that have joined before are started together: one alone has no quorum of etcd.
        let (joined, new): (Vec<u8>, Vec<u8>) =
            (2..=spec.servers).partition(|number| node::has_joined(spec, directory, *number));
        let mut children = vec![self.start_node(1, None)?];
        for number in joined {
            children.push(self.start_node(number, None)?);
        }
        self.wait("the API server", &mut children, async || {
            Ok(kubeconfig::path(spec, directory).exists() && self.is_ready().await)
        })
        .await?;
        self.start_servers(&new, &mut children, progress).await?;
        if spec.nodes > spec.servers {
            let count = spec.nodes - spec.servers;
            progress(&format!("starting {count} agent{}", if count == 1 { "" } else { "s" }));
            let join = node::join(spec, directory, "agent")?;
            for number in spec.servers + 1..=spec.nodes {
                children.push(self.start_node(number, Some(&join))?);
            }
        }
        progress("waiting for the nodes");
        // For nodes that were restarted, a report from before the start does not count.
        let new = children.iter().filter(|(_, child)| child.is_some()).map(|(number, _)| spec.node_name(*number));
        let new: Vec<String> = new.collect();
        let since = |name: &str| new.iter().any(|new| new == name).then_some(started);
        self.wait("the nodes to start", &mut children, async || Ok(self.started_nodes(since).await? >= spec.nodes))
            .await
    }

    /// Starts servers that have not joined yet, one after the other: each changes the members of etcd.
    async fn start_servers(
        &self,
        new: &[u8],
        children: &mut Vec<(u8, Option<Child>)>,
        progress: Progress<'_>,
    ) -> anyhow::Result<()> {
        let (spec, directory) = (self.spec, self.directory);
        for number in new.iter().copied() {
            progress(&format!("starting server {number}"));
            let join = node::join(spec, directory, "server")?;
            children.push(self.start_node(number, Some(&join))?);
            self.wait("the server to join", children, async || {
                Ok(node::has_joined(spec, directory, number) && self.started_nodes(|_| None).await? >= number)
            })
            .await?;
        }
        Ok(())
    }

    fn start_node(&self, number: u8, join: Option<&Join>) -> anyhow::Result<(u8, Option<Child>)> {
        let (spec, directory) = (self.spec, self.directory);
        if data_directory_lock::find(&spec.data(directory, number))?.is_some() {
            return Ok((number, None));
        }
        Ok((number, Some(node::start(spec, directory, number, join)?)))
    }

    /// Waits for a condition; fails when the process of a node exits.
    async fn wait(
        &self,
        what: &str,
        children: &mut [(u8, Option<Child>)],
        mut condition: impl AsyncFnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        const TIMEOUT: Duration = Duration::from_secs(300);
        let started = Instant::now();
        while !condition().await? {
            for (number, child) in children.iter_mut() {
                if let Some(status) = child.as_mut().map(Child::try_wait).transpose()?.flatten() {
                    let log = node::log_path(self.spec, self.directory, *number);
                    bail!("{} ended ({status}):\n{}", self.spec.node_name(*number), last_lines(&log));
                }
            }
            ensure!(started.elapsed() < TIMEOUT, "timed out waiting for {what}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn is_ready(&self) -> bool {
        let Ok(client) = self.client().await else { return false };
        let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else { return false };
        client.request_text(request).await.is_ok()
    }

    /// The number of nodes that have started. If `since` returns a time for a node, it must have reported after that time.
    async fn started_nodes(&self, since: impl Fn(&str) -> Option<Timestamp>) -> anyhow::Result<u8> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        let listed = nodes.list(&ListParams::default()).await?;
        let started = (1..=self.spec.nodes).filter(|number| {
            let (name, network) =
                (self.spec.node_name(*number), PodNetwork::of_node(self.spec, self.directory, *number));
            let node = listed.items.iter().find(|node| node.metadata.name.as_deref() == Some(&*name));
            node.is_some_and(|node| has_started(node, network, since(&name)))
        });
        Ok(u8::try_from(started.count()).unwrap_or(u8::MAX))
    }

    async fn client(&self) -> anyhow::Result<knarr_client::kube::Client> {
        let file = tempfile::NamedTempFile::new()?;
        let kubeconfig = kubeconfig::read(self.spec, self.directory, &self.spec.inner_api())?;
        std::fs::write(file.path(), serde_yaml_ng::to_string(&kubeconfig)?)?;
        Ok(knarr_client::connect(Some(file.path()), "knarr").await?)
    }

    /// Stops the nodes and removes their pods, and their data, too, unless these are kept.
    pub fn remove(&self, keep_data: bool, progress: Progress<'_>) -> anyhow::Result<()> {
        let (spec, directory) = (self.spec, self.directory);
        ports::stop(directory)?;
        // Pods are removed inside the network namespaces, which do not survive a restart of the host.
        network::create(spec)?;
        // Agents are stopped first, so that servers see no node disappear. Servers are stopped together: the last ones of
        // several would wait for a quorum.
        for number in (spec.servers + 1..=spec.nodes).rev() {
            progress(&format!("stopping {}", spec.node_name(number)));
            node::stop(spec, directory, number)?;
        }
        progress(if spec.servers > 1 { "stopping the servers" } else { "stopping the server" });
        std::thread::scope(|scope| {
            let stop = |number| scope.spawn(move || node::stop(spec, directory, number));
            let stopping: Vec<_> = (1..=spec.servers).map(stop).collect();
            stopping.into_iter().try_for_each(|one| match one.join() {
                Ok(stopped) => stopped.map(drop),
                Err(_) => bail!("a server could not be stopped"),
            })
        })?;
        for number in (1..=spec.nodes).rev() {
            progress(&format!("removing the pods of {}", spec.node_name(number)));
            node::remove(spec, directory, number, keep_data)
                .with_context(|| format!("cannot remove {}", spec.node_name(number)))?;
        }
        Ok(())
    }

    /// Deletes the data of nodes of which nothing runs and nothing is mounted.
    pub fn delete_data(&self) -> anyhow::Result<()> {
        for number in 1..=self.spec.nodes {
            let data = self.spec.data(self.directory, number);
            if data.exists() {
                std::fs::remove_dir_all(&data).with_context(|| format!("cannot remove {}", data.display()))?;
            }
        }
        Ok(())
    }

    /// Imports an archive of images into all nodes.
    pub fn load(&self, archive: &Path, progress: Progress<'_>) -> anyhow::Result<()> {
        let spec = self.spec;
        for number in 1..=spec.nodes {
            let loaded = node::load(spec, self.directory, number, archive)
                .with_context(|| format!("cannot load {} into {}", archive.display(), spec.node_name(number)))?;
            progress(&format!("{}: {}", spec.node_name(number), loaded.lines().collect::<Vec<_>>().join(" ")));
        }
        Ok(())
    }
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}
