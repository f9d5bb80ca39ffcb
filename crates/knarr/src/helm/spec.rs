//! The specification of HelmChart and HelmChartConfig objects, as far as it is read.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The specification of a HelmChart, and of a HelmChartConfig, which has some of the fields. Those that describe the Job of
/// k3s are not read: there is none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChartSpec {
    pub chart: String,
    pub chart_content: String,
    pub repo: String,
    pub version: String,
    pub target_namespace: String,
    pub create_namespace: bool,
    pub values: Option<Value>,
    pub values_content: String,
    pub values_secrets: Vec<SecretReference>,
    pub set: BTreeMap<String, Value>,
    pub timeout: Option<String>,
    pub failure_policy: String,
    #[serde(rename = "insecureSkipTLSVerify")]
    pub insecure_skip_tls_verify: bool,
    #[serde(rename = "plainHTTP")]
    pub plain_http: bool,
    pub take_ownership: bool,
    pub server_side: String,
    pub force_conflicts: Option<bool>,
    pub driver: String,
    #[serde(rename = "repoCA")]
    pub repo_ca: String,
    pub auth_secret: Option<NameReference>,
    pub auth_pass_credentials: bool,
    pub docker_registry_secret: Option<NameReference>,
    #[serde(rename = "repoCAConfigMap")]
    pub repo_ca_config_map: Option<NameReference>,
}

impl ChartSpec {
    /// Whether the chart is named in a repository. Others are within the object, or have an address of their own.
    pub fn has_repository(&self) -> bool {
        self.chart_content.is_empty() && !self.repo.is_empty() && !is_address(&self.chart)
    }
}

/// An object in the chart's namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NameReference {
    pub name: String,
}

/// A Secret with values for a chart.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretReference {
    pub name: String,
    pub keys: Vec<String>,
    pub ignore_updates: bool,
}

/// Whether the name of a chart says where it is.
pub fn is_address(chart: &str) -> bool {
    ["https://", "http://", "oci://"].iter().any(|scheme| chart.starts_with(scheme))
}
