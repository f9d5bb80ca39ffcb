//! HelmChart and HelmChartConfig objects (`helm.cattle.io/v1`), as k3s has them, carried out by the Helm program of this host.
//!
//! `release` plans the command, `program` runs it, and this module decides when. A chart is installed again when its
//! specification, its configuration or its Secrets change; the hash of what was installed last is an annotation of the object.
//! Whoever may create these objects can install what the controller's user may, which is anything unless an administrator
//! binds it to less: no built-in role but `cluster-admin` may create them.

mod identity;
mod program;
mod release;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use knarr_apiserver::pki::private_directory;
use knarr_client::k8s_openapi::api::core::v1::Secret;
use knarr_client::kube::api::{ListParams, Patch, PatchParams};
use knarr_client::kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use knarr_client::kube::runtime::watcher;
use knarr_client::kube::{Api, Client, ResourceExt as _};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;

pub use identity::Identity;
use program::Helm;
use release::{ChartSpec, Release};

const CRDS: &str = include_str!("crds.yaml");
const MANAGER: &str = "knarr-helm";
const HASH: &str = "helmcharts.helm.cattle.io/configHash";
const UNMANAGED: &str = "helmcharts.helm.cattle.io/unmanaged";
const FINALIZER: &str = "wrangler.cattle.io/on-helm-chart-remove";

/// How many charts are installed at a time.
const MAX_RUNNING: usize = 4;
const INITIAL_BACKOFF: Duration = Duration::from_secs(10);
const MAX_BACKOFF: Duration = Duration::from_secs(300);
/// Secrets with values are not watched.
const RESYNC: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(5);

type Key = (String, String);

/// Installs charts until dropped. `directory` is Helm's own.
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
    let charts = watcher(api(client, "HelmChart", None), watcher::Config::default()).boxed();
    let configs = watcher(api(client, "HelmChartConfig", None), watcher::Config::default()).boxed();
    let mut changes = futures::stream::select(charts, configs);
    let mut queue = Queue::default();
    loop {
        let kubeconfig = identity.kubeconfig(Timestamp::now()).context("cannot create the kubeconfig of charts")?;
        let helm = Helm::find(kubeconfig, directory);
        queue.start_due(client, helm.as_ref()).await?;
        let pause = queue.pause();
        tokio::select! {
            change = changes.next() => {
                change.context("the watch ended")?.context("the watch failed")?;
            }
            Some(done) = queue.running.join_next() => queue.finish(done.context("a chart's task was cancelled")?),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// What is being done for which chart, and when those that failed are tried again.
#[derive(Default)]
struct Queue {
    running: JoinSet<(Key, anyhow::Result<()>)>,
    busy: Vec<Key>,
    waiting: BTreeMap<Key, (Instant, Duration)>,
}

impl Queue {
    /// Starts work on every chart that needs some.
    async fn start_due(&mut self, client: &Client, helm: Option<&Helm>) -> anyhow::Result<()> {
        let charts =
            api(client, "HelmChart", None).list(&ListParams::default()).await.context("cannot list HelmCharts")?;
        let known: BTreeSet<Key> = charts.iter().filter(|chart| !is_unmanaged(chart)).map(key_of).collect();
        self.retain(|key| known.contains(key));
        for chart in charts {
            let key = key_of(&chart);
            let is_due = self.waiting.get(&key).is_none_or(|(at, _)| *at <= Instant::now());
            if !is_due || self.busy.contains(&key) || self.running.len() >= MAX_RUNNING || is_unmanaged(&chart) {
                continue;
            }
            self.busy.push(key.clone());
            let (client, helm) = (client.clone(), helm.cloned());
            self.running.spawn(async move {
                // What goes wrong with one chart concerns no other.
                let reconciled = AssertUnwindSafe(reconcile(&client, helm.as_ref(), &chart)).catch_unwind().await;
                (key, reconciled.unwrap_or_else(|_| Err(anyhow::anyhow!("the controller panicked"))))
            });
        }
        Ok(())
    }

    /// Forgets charts that no longer exist: waiting for them would end no pause.
    fn retain(&mut self, exists: impl Fn(&Key) -> bool) {
        self.waiting.retain(|key, _| exists(key));
    }

    fn finish(&mut self, (key, done): (Key, anyhow::Result<()>)) {
        self.busy.retain(|busy| *busy != key);
        match done {
            Ok(()) => {
                self.waiting.remove(&key);
            }
            Err(error) => {
                let (namespace, name) = &key;
                tracing::warn!(namespace, name, error = format!("{error:#}"), "cannot install a chart");
                let backoff = self.waiting.get(&key).map_or(INITIAL_BACKOFF, |(_, last)| (*last * 2).min(MAX_BACKOFF));
                self.waiting.insert(key, (Instant::now() + backoff, backoff));
            }
        }
    }

    /// How long nothing is due.
    fn pause(&self) -> Duration {
        let next = self.waiting.values().map(|(at, _)| at.saturating_duration_since(Instant::now())).min();
        next.unwrap_or(RESYNC).clamp(Duration::from_millis(100), RESYNC)
    }
}

fn key_of(chart: &DynamicObject) -> Key {
    (chart.namespace().unwrap_or_default(), chart.name_any())
}

fn is_unmanaged(chart: &DynamicObject) -> bool {
    chart.annotations().contains_key(UNMANAGED)
}

/// Brings a release to what its objects say.
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

/// Installs a chart, unless that was done. Returns the hash of what was installed.
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
    let references = spec.values_secrets.iter().chain(config.iter().flat_map(|config| &config.values_secrets));
    let mut values = Vec::new();
    for reference in references {
        values.extend(values_of(client, &namespace, reference).await?);
    }
    let release = Release::plan((&namespace, &name), spec, config.as_ref(), values.clone());
    let release = release.map_err(anyhow::Error::msg)?;
    let hash = release.hash();
    if chart.annotations().get(HASH) == Some(&hash) {
        return Ok(None);
    }
    let helm =
        helm.context("Helm is not installed on this server: install it (https://helm.sh), and put it on the PATH")?;
    hold(client, chart).await?;
    let installed = helm.install(&release).await;
    installed.map_err(|error| anyhow::Error::msg(secrets::hide(&format!("{error:#}"), &values)))?;
    tracing::info!(namespace, name, "installed a chart");
    Ok(Some(hash))
}

async fn values_of(
    client: &Client,
    namespace: &str,
    reference: &release::SecretReference,
) -> anyhow::Result<Vec<Vec<u8>>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret =
        secrets.get(&reference.name).await.with_context(|| format!("cannot read Secret {}", reference.name))?;
    let data = secret.data.unwrap_or_default();
    let keys = reference.keys.iter().map(|key| {
        let value = data.get(key).map(|value| value.0.clone());
        value.with_context(|| format!("Secret {} has no key {key}", reference.name))
    });
    keys.collect()
}

/// Removes a release, and lets go of its object.
async fn remove(client: &Client, helm: Option<&Helm>, chart: &DynamicObject, spec: ChartSpec) -> anyhow::Result<()> {
    if !chart.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
        return Ok(());
    }
    let api = api(client, "HelmChart", chart.namespace());
    let target =
        if spec.target_namespace.is_empty() { chart.namespace().unwrap_or_default() } else { spec.target_namespace };
    let removed = match helm {
        Some(helm) => helm.remove(&chart.name_any(), &target).await,
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

async fn write_status(api: &Api<DynamicObject>, chart: &DynamicObject, failure: Option<&str>) -> anyhow::Result<()> {
    let status = json!({"status": {"conditions": conditions(failure)}});
    if chart.data.get("status") == status.get("status") {
        return Ok(());
    }
    let patched = api.patch_status(&chart.name_any(), &PatchParams::default(), &Patch::Merge(&status)).await;
    patched.map(drop).context("cannot write the status")
}

fn conditions(failure: Option<&str>) -> Value {
    match failure {
        None => json!([
            {"type": "Failed", "status": "False", "reason": "Installed", "message": ""},
            {"type": "Installed", "status": "True", "reason": "Installed", "message": ""},
        ]),
        Some(message) => json!([
            {"type": "Failed", "status": "True", "reason": "HelmFailed", "message": message},
            {"type": "Installed", "status": "False", "reason": "HelmFailed", "message": message},
        ]),
    }
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

    #[test]
    fn a_failed_chart_waits_longer_each_time() {
        let mut queue = Queue::default();
        let key: Key = ("default".into(), "web".into());
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            queue.busy.push(key.clone());
            queue.finish((key.clone(), Err(anyhow::anyhow!("no"))));
            assert_eq!(queue.waiting[&key].1.as_secs(), expected);
            assert!(queue.busy.is_empty());
        }
        queue.finish((key.clone(), Ok(())));
        assert!(queue.waiting.is_empty());
    }

    /// A chart that failed and was deleted would otherwise be due for ever: ten lists a second.
    #[test]
    fn a_deleted_chart_is_not_waited_for() {
        let mut queue = Queue::default();
        let key: Key = ("default".into(), "gone".into());
        queue.waiting.insert(key, (Instant::now(), INITIAL_BACKOFF));
        assert!(queue.pause() < Duration::from_secs(1));
        queue.retain(|_| false);
        assert_eq!(queue.pause(), RESYNC);
    }
}
