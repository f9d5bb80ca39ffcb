//! A KubeSchedulerConfiguration file. Unknown fields are rejected: they are typos.

use std::path::PathBuf;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::extender::ExtenderSettings;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct File {
    #[serde(default, rename = "apiVersion")]
    _api_version: IgnoredAny,
    #[serde(default, rename = "kind")]
    _kind: IgnoredAny,
    #[serde(default)]
    pub(super) percentage_of_nodes_to_score: Option<i64>,
    #[serde(default)]
    pub(super) pod_initial_backoff_seconds: Option<i64>,
    #[serde(default)]
    pub(super) pod_max_backoff_seconds: Option<i64>,
    #[serde(default)]
    pub(super) profiles: Vec<FileProfile>,
    #[serde(default)]
    pub(super) extenders: Vec<ExtenderSettings>,
    #[serde(default)]
    pub(super) client_connection: ClientConnection,
    #[serde(default)]
    pub(super) leader_election: LeaderSettings,
    #[serde(default)]
    pub(super) parallelism: Option<i64>,
    // The following fields tune components that Knarr does not have.
    #[serde(default, rename = "delayCacheUntilActive")]
    _delay_cache_until_active: IgnoredAny,
    #[serde(default, rename = "enableProfiling")]
    _enable_profiling: IgnoredAny,
    #[serde(default, rename = "enableContentionProfiling")]
    _enable_contention_profiling: IgnoredAny,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientConnection {
    #[serde(default)]
    pub(super) kubeconfig: PathBuf,
    #[serde(default, rename = "acceptContentTypes")]
    _accept_content_types: IgnoredAny,
    #[serde(default, rename = "contentType")]
    _content_type: IgnoredAny,
    #[serde(default, rename = "qps")]
    _qps: IgnoredAny,
    #[serde(default, rename = "burst")]
    _burst: IgnoredAny,
}

/// Leader election settings. What is missing comes from the command line.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LeaderSettings {
    pub leader_elect: Option<bool>,
    /// Durations as Kubernetes writes them: `15s`.
    pub lease_duration: Option<String>,
    pub renew_deadline: Option<String>,
    pub retry_period: Option<String>,
    pub resource_lock: Option<String>,
    pub resource_name: Option<String>,
    pub resource_namespace: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct FileProfile {
    #[serde(default)]
    pub(super) scheduler_name: Option<String>,
    #[serde(default)]
    pub(super) percentage_of_nodes_to_score: Option<i64>,
    #[serde(default)]
    pub(super) plugins: FilePlugins,
    #[serde(default)]
    pub(super) plugin_config: Vec<PluginConfig>,
}

/// The plugins at each extension point. Here, plugins that only prepare, reserve or bind belong to the plugin they serve.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct FilePlugins {
    pub(super) multi_point: PluginSet,
    pub(super) pre_filter: PluginSet,
    pub(super) filter: PluginSet,
    pub(super) post_filter: PluginSet,
    pub(super) score: PluginSet,
    pub(super) pre_enqueue: PluginSet,
    pub(super) queue_sort: PluginSet,
    pub(super) pre_score: PluginSet,
    pub(super) reserve: PluginSet,
    pub(super) permit: PluginSet,
    pub(super) pre_bind: PluginSet,
    pub(super) bind: PluginSet,
    pub(super) post_bind: PluginSet,
    pub(super) placement_generate: PluginSet,
    pub(super) placement_score: PluginSet,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PluginSet {
    pub(super) enabled: Vec<NamedPlugin>,
    pub(super) disabled: Vec<NamedPlugin>,
}

impl PluginSet {
    pub(super) fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|plugin| plugin.name == "*" || plugin.name == name)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamedPlugin {
    pub(super) name: String,
    #[serde(default)]
    pub(super) weight: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PluginConfig {
    pub(super) name: String,
    #[serde(default)]
    pub(super) args: serde_json::Value,
}
