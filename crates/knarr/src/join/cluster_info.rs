//! The public ConfigMap `cluster-info`: what a host without credentials reads to discover the cluster, as kubeadm publishes
//! it. The bootstrap signer adds a signature for each token, by which the host verifies the content.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

pub const NAMESPACE: &str = "kube-public";
pub const NAME: &str = "cluster-info";
/// Role and RoleBinding that open the ConfigMap to everybody.
pub const ROLE: &str = "kubeadm:bootstrap-signer-clusterinfo";
const ANONYMOUS: (&str, &str) = ("User", "system:anonymous");

/// How clients reach and verify the API server.
pub struct ClusterInfo {
    /// URL of the API server.
    pub server: String,
    /// Certificate of the cluster's authority (PEM).
    pub authority: String,
}

impl ClusterInfo {
    /// The ConfigMap with the one key that the server owns. It is applied, not replaced, so the signer's keys survive.
    pub fn config_map(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "data": {"kubeconfig": self.kubeconfig()},
        })
    }

    /// A kubeconfig without a user.
    fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {}\n    server: {}\n  name: \"\"\n\
             contexts: null\ncurrent-context: \"\"\nkind: Config\nusers: null\n",
            STANDARD.encode(&self.authority),
            self.server
        )
    }
}

pub fn role() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": ROLE, "namespace": NAMESPACE},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["get"]}],
    })
}

/// Who may read it.
pub fn subjects() -> [(&'static str, &'static str); 1] {
    [ANONYMOUS]
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_client::kube::config::Kubeconfig;

    #[test]
    fn the_kubeconfig_names_server_and_authority_but_no_user() {
        let info = ClusterInfo { server: "https://[fd00::1]:6443".to_owned(), authority: "PEM".to_owned() };
        let map = info.config_map();
        let config = Kubeconfig::from_yaml(map["data"]["kubeconfig"].as_str().unwrap()).unwrap();
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://[fd00::1]:6443"));
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("UEVN"));
        assert!(config.auth_infos.is_empty() && config.contexts.is_empty());
    }
}
