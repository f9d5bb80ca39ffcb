//! What the cluster's objects say about its hardening.

use std::collections::BTreeSet;

use knarr_client::k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use knarr_client::k8s_openapi::api::networking::v1::NetworkPolicy;
use knarr_client::k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use knarr_client::kube::api::ListParams;
use knarr_client::kube::{Api, Client, ResourceExt};

/// Namespaces of the system, which hold no applications.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// Subjects of `cluster-admin` in a new cluster.
const ADMINISTRATORS: [&str; 3] = ["system:masters", crate::join::MANIFESTS, crate::join::CHARTS];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// Applications' namespaces without an enforced Pod Security Standard other than `privileged`.
    pub without_pod_security: Vec<String>,
    /// Applications' namespaces without any NetworkPolicy.
    pub without_policies: Vec<String>,
    /// Subjects bound to `cluster-admin` beside those of a new cluster.
    pub administrators: Vec<String>,
    /// ClusterRoles, not of the system, that allow everything on something.
    pub with_wildcards: Vec<String>,
    /// Applications' namespaces whose default account mounts its token.
    pub with_default_tokens: Vec<String>,
    /// Whether anonymous users have more than the public information.
    pub anonymous_bindings: Vec<String>,
}

impl ClusterFacts {
    pub async fn read(client: Client) -> Result<Self, knarr_client::kube::Error> {
        let all = ListParams::default();
        let namespaces = Api::<Namespace>::all(client.clone()).list(&all).await?.items;
        let policies = Api::<NetworkPolicy>::all(client.clone()).list(&all).await?.items;
        let bindings = Api::<ClusterRoleBinding>::all(client.clone()).list(&all).await?.items;
        let roles = Api::<ClusterRole>::all(client.clone()).list(&all).await?.items;
        let named = ListParams::default().fields("metadata.name=default");
        let accounts = Api::<ServiceAccount>::all(client).list(&named).await?.items;
        Ok(Self::of(&namespaces, &policies, &bindings, &roles, &accounts))
    }

    fn of(
        namespaces: &[Namespace],
        policies: &[NetworkPolicy],
        bindings: &[ClusterRoleBinding],
        roles: &[ClusterRole],
        accounts: &[ServiceAccount],
    ) -> Self {
        let isolated: BTreeSet<String> = policies.iter().filter_map(ResourceExt::namespace).collect();
        let of_applications: Vec<&Namespace> =
            namespaces.iter().filter(|namespace| !SYSTEM.contains(&namespace.name_any().as_str())).collect();
        let enforces = |namespace: &Namespace| {
            namespace.labels().get(ENFORCE).is_some_and(|level| level == "baseline" || level == "restricted")
        };
        let is_built_in = |name: &str| name.starts_with("system:") || name.starts_with("knarr:");
        let has_wildcard = |role: &ClusterRole| {
            let is_any = |list: &Option<Vec<String>>| list.iter().flatten().any(|item| item == "*");
            role.rules.iter().flatten().any(|rule| rule.verbs.iter().any(|verb| verb == "*") && is_any(&rule.resources))
        };
        let subjects = |binding: &ClusterRoleBinding| -> Vec<String> {
            binding.subjects.iter().flatten().map(|subject| subject.name.clone()).collect()
        };
        let administrators = bindings.iter().filter(|binding| binding.role_ref.name == "cluster-admin");
        let anonymous = bindings.iter().filter(|binding| {
            let is_anonymous = |name: &String| name == "system:anonymous" || name == "system:unauthenticated";
            subjects(binding).iter().any(is_anonymous) && binding.role_ref.name != "system:public-info-viewer"
        });
        let names =
            |all: Vec<&&Namespace>| -> Vec<String> { all.into_iter().map(|namespace| namespace.name_any()).collect() };
        ClusterFacts {
            without_pod_security: names(of_applications.iter().filter(|namespace| !enforces(namespace)).collect()),
            without_policies: names(
                of_applications.iter().filter(|namespace| !isolated.contains(&namespace.name_any())).collect(),
            ),
            administrators: administrators
                .flat_map(subjects)
                .filter(|name| !ADMINISTRATORS.contains(&name.as_str()))
                .collect(),
            with_wildcards: roles
                .iter()
                .filter(|role| has_wildcard(role))
                .map(ResourceExt::name_any)
                .filter(|name| !is_built_in(name) && name != "cluster-admin")
                .collect(),
            with_default_tokens: accounts
                .iter()
                .filter(|account| {
                    account.name_any() == "default" && account.automount_service_account_token != Some(false)
                })
                .filter_map(ResourceExt::namespace)
                .filter(|namespace| !SYSTEM.contains(&namespace.as_str()))
                .collect(),
            anonymous_bindings: anonymous.map(ResourceExt::name_any).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn objects<K: serde::de::DeserializeOwned>(all: Vec<Value>) -> Vec<K> {
        all.into_iter().map(|object| from_value(object).unwrap()).collect()
    }

    #[test]
    fn what_opens_a_cluster_is_found() {
        let namespace = |name: &str, level: &str| json!({"metadata": {"name": name, "labels": {ENFORCE: level}}});
        let namespaces = objects(vec![
            namespace("kube-system", ""),
            namespace("open", "privileged"),
            namespace("closed", "restricted"),
        ]);
        let policies = objects(vec![json!({"metadata": {"name": "p", "namespace": "closed"}})]);
        let binding = |name: &str, role: &str, subject: &str| {
            json!({"metadata": {"name": name}, "roleRef": {"apiGroup": "", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "User", "name": subject}]})
        };
        let bindings = objects(vec![
            binding("cluster-admin", "cluster-admin", "system:masters"),
            binding("ops", "cluster-admin", "ann"),
            binding("public", "system:public-info-viewer", "system:unauthenticated"),
            binding("hole", "view", "system:anonymous"),
        ]);
        let role = |name: &str| json!({"metadata": {"name": name}, "rules": [{"verbs": ["*"], "resources": ["*"]}]});
        let roles = objects(vec![role("cluster-admin"), role("system:controller:x"), role("all")]);
        let account = |namespace: &str, mounts: Value| json!({"metadata": {"name": "default", "namespace": namespace}, "automountServiceAccountToken": mounts});
        let accounts = objects(vec![
            account("kube-system", Value::Null),
            account("open", Value::Null),
            account("closed", json!(false)),
        ]);
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            ClusterFacts::of(&namespaces, &policies, &bindings, &roles, &accounts),
            ClusterFacts {
                without_pod_security: texts(&["open"]),
                without_policies: texts(&["open"]),
                administrators: texts(&["ann"]),
                with_wildcards: texts(&["all"]),
                with_default_tokens: texts(&["open"]),
                anonymous_bindings: texts(&["hole"]),
            }
        );
    }
}
