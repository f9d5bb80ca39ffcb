//! HelmChart and HelmChartConfig objects (`helm.cattle.io/v1`), as k3s has them, carried out by the Helm program of this host.
//!
//! `release` plans the command, `program` runs it, and this module decides when. A chart is installed again when its
//! specification, its configuration or its Secrets change; an annotation of the object holds the hash of what was installed last.
//! Users who may create these objects act with the rights of the controller's user, which has all unless an administrator binds it
//! to a smaller role. So no built-in role but `cluster-admin` may create them.

mod access;
mod identity;
mod program;
mod queue;
mod references;
mod release;
mod secrets;
mod spec;
mod status;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use knarr_apiserver::pki::private_directory;
use knarr_client::kube::api::{ListParams, Patch, PatchParams};
use knarr_client::kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use knarr_client::kube::runtime::watcher;
use knarr_client::kube::{Api, Client, ResourceExt as _};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use access::Access;
pub use identity::Identity;
use program::Helm;
use queue::{Key, Queue};
use release::{Release, SecretValues};
use spec::ChartSpec;
use status::write_status;

const CRDS: &str = include_str!("crds.yaml");
const MANAGER: &str = "knarr-helm";
const HASH: &str = "helmcharts.helm.cattle.io/configHash";
const UNMANAGED: &str = "helmcharts.helm.cattle.io/unmanaged";
const FINALIZER: &str = "wrangler.cattle.io/on-helm-chart-remove";

/// The interval at which Secrets with values are read, since they are not watched.
const RESYNC: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(5);

/// Installs charts until dropped. Helm keeps its files in `directory`.
pub async fn run(client: Client, identity: Identity, directory: PathBuf) {
    loop {
        if let Err(error) = watch(&client, &identity, &directory).await {
            tracing::warn!(error = format!("{error:#}"), "cannot watch HelmCharts");
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn watch(client: &Client, identity: &Identity, directory: &Path) -> anyhow::Result<()> {
    // The directory holds the values of Secrets while a chart is installed.
    private_directory(directory).context("cannot create Helm's directory")?;
    for below in ["cache", "config", "data"] {
        std::fs::create_dir_all(directory.join(below)).context("cannot create Helm's directory")?;
    }
    create_kinds(client).await.context("cannot create the kinds of charts")?;
    Controller { client, identity, directory, queue: Queue::default(), running: JoinSet::new() }.run().await
}

struct Controller<'a> {
    client: &'a Client,
    identity: &'a Identity,
    directory: &'a Path,
    queue: Queue,
    running: JoinSet<Done>,
}

struct Done {
    key: Key,
    generation: Option<i64>,
    reconciled: anyhow::Result<()>,
}

impl Controller<'_> {
    async fn run(mut self) -> anyhow::Result<()> {
        let mut charts = watcher(api(self.client, "HelmChart", None), watcher::Config::default()).boxed();
        let mut configs = watcher(api(self.client, "HelmChartConfig", None), watcher::Config::default()).boxed();
        let mut resync = tokio::time::interval(RESYNC);
        loop {
            self.start_due().await?;
            let retry = self.queue.pause(Instant::now()).unwrap_or(RESYNC);
            tokio::select! {
                change = charts.next() => {
                    if let Some(chart) = changed(change)? {
                        self.queue.observe(key_of(&chart), chart.metadata.generation);
                    }
                }
                change = configs.next() => {
                    if let Some(config) = changed(change)? {
                        self.queue.reconsider(key_of(&config));
                    }
                }
                Some(done) = self.running.join_next() => self.finish(done.context("a chart's task was cancelled")?),
                _ = resync.tick() => self.add_all().await?,
                () = tokio::time::sleep(retry) => {}
            }
        }
    }

    async fn add_all(&mut self) -> anyhow::Result<()> {
        let charts = api(self.client, "HelmChart", None).list(&ListParams::default()).await;
        for chart in charts.context("cannot list HelmCharts")? {
            self.queue.add(key_of(&chart));
        }
        Ok(())
    }

    /// Starts processing the charts that are due.
    async fn start_due(&mut self) -> anyhow::Result<()> {
        while let Some(key) = self.queue.next(Instant::now()) {
            let api = api(self.client, "HelmChart", Some(key.0.clone()));
            let chart = api.get_opt(&key.1).await.context("cannot read a HelmChart")?;
            let Some(chart) = chart.filter(|chart| !is_unmanaged(chart)) else {
                self.queue.finish(key, None, Instant::now());
                continue;
            };
            let kubeconfig =
                self.identity.kubeconfig(Timestamp::now()).context("cannot create the kubeconfig of charts")?;
            let (client, helm) = (self.client.clone(), Helm::find(kubeconfig, self.directory));
            self.running.spawn(async move {
                // The failure of one chart does not affect the others.
                let reconciled = AssertUnwindSafe(reconcile(&client, helm.as_ref(), &chart)).catch_unwind().await;
                let reconciled = reconciled.unwrap_or_else(|_| Err(anyhow::anyhow!("the controller panicked")));
                Done { key, generation: chart.metadata.generation, reconciled }
            });
        }
        Ok(())
    }

    fn finish(&mut self, done: Done) {
        let failed = done.reconciled.err().map(|error| {
            let (namespace, name) = &done.key;
            tracing::warn!(namespace, name, error = format!("{error:#}"), "cannot install a chart");
            done.generation
        });
        self.queue.finish(done.key, failed, Instant::now());
    }
}

/// The object of an event; none at the edges of a list.
fn changed(event: Option<watcher::Result<watcher::Event<DynamicObject>>>) -> anyhow::Result<Option<DynamicObject>> {
    use watcher::Event;
    match event.context("the watch ended")?.context("the watch failed")? {
        Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => Ok(Some(object)),
        Event::Init | Event::InitDone => Ok(None),
    }
}

fn key_of(chart: &DynamicObject) -> Key {
    (chart.namespace().unwrap_or_default(), chart.name_any())
}

fn is_unmanaged(chart: &DynamicObject) -> bool {
    chart.annotations().contains_key(UNMANAGED)
}

/// Reconciles a release with its objects.
async fn reconcile(client: &Client, helm: Option<&Helm>, chart: &DynamicObject) -> anyhow::Result<()> {
    let spec = ChartSpec::deserialize(chart.data.get("spec").unwrap_or(&Value::Null)).context("spec is invalid");
    if chart.metadata.deletion_timestamp.is_some() {
        return remove(client, helm, chart, spec.unwrap_or_default()).await;
    }
    let outcome = match spec {
        Ok(spec) => install(client, helm, chart, &spec).await,
        Err(error) => Err(error),
    };
    let api = api(client, "HelmChart", chart.namespace());
    let failure = outcome.as_ref().err().map(|error| format!("{error:#}"));
    if outcome.as_ref().is_ok_and(Option::is_none) {
        // It is installed as it is.
        return Ok(());
    }
    write_status(&api, chart, failure.as_deref()).await?;
    if let Some(hash) = outcome? {
        annotate(&api, chart, &hash).await?;
    }
    Ok(())
}

/// Installs a chart, unless it is installed already. Returns the hash of what was installed.
async fn install(
    client: &Client,
    helm: Option<&Helm>,
    chart: &DynamicObject,
    spec: &ChartSpec,
) -> anyhow::Result<Option<String>> {
    let (namespace, name) = (chart.namespace().unwrap_or_default(), chart.name_any());
    let configs = api(client, "HelmChartConfig", Some(namespace.clone()));
    let config = configs.get_opt(&name).await.context("cannot read the HelmChartConfig")?;
    let config = config.map(|config| ChartSpec::deserialize(config.data.get("spec").unwrap_or(&Value::Null)));
    let config = config.transpose().context("the HelmChartConfig is invalid")?;
    let values = SecretValues {
        chart: references::values(client, &namespace, spec).await?,
        config: match &config {
            Some(config) => references::values(client, &namespace, config).await?,
            None => Vec::new(),
        },
    };
    let access =
        Access::plan(spec, &references::sources(client, &namespace, spec).await?).map_err(anyhow::Error::msg)?;
    let hidden = hidden_texts(&values, &access);
    let release = Release::plan((&namespace, &name), spec, config.as_ref(), values, access);
    let release = release.map_err(anyhow::Error::msg)?;
    let hash = release.hash();
    if chart.annotations().get(HASH) == Some(&hash) {
        return Ok(None);
    }
    let helm =
        helm.context("Helm is not installed on this server: install it (https://helm.sh), and put it on the PATH")?;
    hold(client, chart).await?;
    let installed = helm.install(&release).await;
    installed.map_err(|error| anyhow::Error::msg(secrets::hide(&format!("{error:#}"), &hidden)))?;
    tracing::info!(namespace, name, "installed a chart");
    Ok(Some(hash))
}

/// The texts that no message may contain.
fn hidden_texts(values: &SecretValues, access: &Access) -> Vec<Vec<u8>> {
    let values = values.chart.iter().chain(&values.config).map(|value| value.content.clone());
    values.chain(access.hidden.iter().cloned()).collect()
}

/// Removes a release, and then the finalizer of its object.
async fn remove(client: &Client, helm: Option<&Helm>, chart: &DynamicObject, spec: ChartSpec) -> anyhow::Result<()> {
    if !chart.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
        return Ok(());
    }
    let api = api(client, "HelmChart", chart.namespace());
    let target = match spec.target_namespace.as_str() {
        "" => chart.namespace().unwrap_or_default(),
        target => target.to_owned(),
    };
    let removed = match helm {
        Some(helm) => helm.remove(&chart.name_any(), &target, &spec.driver).await,
        None => Err(anyhow::anyhow!("Helm is not installed on this server: the release cannot be removed")),
    };
    if let Err(error) = removed {
        write_status(&api, chart, Some(&format!("{error:#}"))).await?;
        return Err(error);
    }
    let left: Vec<&String> = chart.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).collect();
    // The version keeps a finalizer that somebody adds meanwhile.
    let patch = json!({"metadata": {"finalizers": left, "resourceVersion": chart.resource_version()}});
    match api.patch(&chart.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
        Err(knarr_client::kube::Error::Api(status)) if status.code == 404 => Ok(()),
        patched => patched.map(drop).context("cannot remove the finalizer"),
    }
}

/// Keeps the object until its release is removed.
async fn hold(client: &Client, chart: &DynamicObject) -> anyhow::Result<()> {
    if chart.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
        return Ok(());
    }
    let all: Vec<&str> = chart.finalizers().iter().map(String::as_str).chain([FINALIZER]).collect();
    let patch = json!({"metadata": {"finalizers": all, "resourceVersion": chart.resource_version()}});
    let api = api(client, "HelmChart", chart.namespace());
    let patched = api.patch(&chart.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map(drop).context("cannot add the finalizer")
}

async fn annotate(api: &Api<DynamicObject>, chart: &DynamicObject, hash: &str) -> anyhow::Result<()> {
    let patch = json!({"metadata": {"annotations": {HASH: hash}}});
    let patched = api.patch(&chart.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map(drop).context("cannot record what was installed")
}

fn api(client: &Client, kind: &str, namespace: Option<String>) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("helm.cattle.io", "v1", kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Creates the custom resource definitions, and waits until their kinds are served.
async fn create_kinds(client: &Client) -> anyhow::Result<()> {
    let resource =
        ApiResource::from_gvk(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
    let definitions: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    for object in kinds()? {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        definitions.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object)).await?;
    }
    for kind in ["HelmChart", "HelmChartConfig"] {
        while api(client, kind, None).list(&ListParams::default().limit(1)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

fn kinds() -> anyhow::Result<Vec<Value>> {
    let documents = serde_yaml_ng::Deserializer::from_str(CRDS);
    Ok(documents.map(Value::deserialize).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kinds_are_two_and_have_the_fields_that_are_read() {
        let kinds = kinds().unwrap();
        let fields = |index: usize| {
            kinds[index].pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties").unwrap().clone()
        };
        assert_eq!(kinds.len(), 2);
        for field in ["chart", "chartContent", "repo", "version", "set", "valuesSecrets", "timeout", "failurePolicy"] {
            assert!(fields(0).get(field).is_some(), "{field}");
        }
        assert!(fields(1).get("valuesContent").is_some());
    }

    /// Helm runs with the rights of the server: creating a chart is the right to everything.
    #[test]
    fn only_administrators_create_charts() {
        let objects = knarr_apiserver::bootstrap::desired_objects(&[]);
        let roles = objects.iter().map(|desired| &desired.object).filter(|object| object["kind"] == "ClusterRole");
        let has = |list: &Value, wanted: &[&str]| {
            list.as_array().into_iter().flatten().any(|word| word.as_str().is_some_and(|word| wanted.contains(&word)))
        };
        let grants = |rule: &Value| {
            has(&rule["apiGroups"], &["*", "helm.cattle.io"])
                && has(&rule["resources"], &["*", "helmcharts", "helmchartconfigs"])
                && has(&rule["verbs"], &["*", "create", "update", "patch"])
        };
        let names: Vec<&str> = roles
            .filter(|role| role["rules"].as_array().into_iter().flatten().any(grants))
            .filter_map(|role| role["metadata"]["name"].as_str())
            .collect();
        // The garbage collector removes owners' references of any object.
        assert_eq!(names, ["cluster-admin", "system:controller:generic-garbage-collector"]);
        // And no role of an aggregate comes with the definitions.
        assert!(kinds().unwrap().iter().all(|kind| kind["kind"] == "CustomResourceDefinition"));
    }
}
