//! Flags of how a node registers, and of what its pods may do.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{ArgAction, Args};
use knarr_client::k8s_openapi::api::core::v1::Taint;
use knarr_kubelet::Settings;

#[derive(Args, Clone, Debug, Default)]
pub struct RegistrationArguments {
    /// Labels of the node when it registers, such as zone=a.
    #[arg(long, value_delimiter = ',')]
    pub node_labels: Vec<String>,
    /// Taints of the node when it registers, such as dedicated=gpu:NoSchedule.
    #[arg(long, value_delimiter = ',')]
    pub register_with_taints: Vec<String>,
    /// Cloud provider: external, if a cloud controller manager initializes the node.
    #[arg(long, value_name = "PROVIDER", value_parser = ["external", ""])]
    pub cloud_provider: Option<String>,
    /// The node's ID at its cloud provider.
    #[arg(long, value_name = "ID")]
    pub provider_id: Option<String>,
    /// Register the node with the API server.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub register_node: Option<bool>,
    /// Resolver configuration that pods with dnsPolicy Default inherit [default: /etc/resolv.conf].
    #[arg(long)]
    pub resolv_conf: Option<PathBuf>,
    /// Give pods without a seccomp profile the runtime's.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub seccomp_default: bool,
    /// Namespaced sysctls that pods may set besides the safe ones; a trailing * matches any rest.
    #[arg(long, value_delimiter = ',')]
    pub allowed_unsafe_sysctls: Vec<String>,
}

impl RegistrationArguments {
    pub fn apply(&self, settings: &mut Settings) -> anyhow::Result<()> {
        for label in &self.node_labels {
            let (key, value) = label.split_once('=').unwrap_or((label, ""));
            settings.labels.insert(key.to_owned(), value.to_owned());
        }
        check_labels(&settings.labels)?;
        settings.external_cloud_provider = self.cloud_provider.as_deref() == Some("external");
        settings.provider_id = self.provider_id.clone().filter(|id| !id.is_empty());
        for text in &self.register_with_taints {
            settings.taints.push(taint(text)?);
        }
        settings.register = self.register_node.unwrap_or(settings.register);
        if let Some(path) = &self.resolv_conf {
            settings.resolv_conf = Some(path.clone());
        }
        settings.seccomp_default = self.seccomp_default;
        settings.allowed_unsafe_sysctls.clone_from(&self.allowed_unsafe_sysctls);
        Ok(())
    }
}

/// What a node may say of itself in the namespaces of Kubernetes.
const OWN_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
const OWN_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

fn check_labels(labels: &BTreeMap<String, String>) -> anyhow::Result<()> {
    let is_below = |namespace: &str, domain: &str| namespace == domain || namespace.ends_with(&format!(".{domain}"));
    let is_foreign = |key: &&String| {
        let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
        ["kubernetes.io", "k8s.io"].iter().any(|domain| is_below(namespace, domain))
            && !OWN_LABELS.contains(&key.as_str())
            && !OWN_NAMESPACES.iter().any(|own| is_below(namespace, own))
    };
    let unknown: Vec<&str> = labels.keys().filter(is_foreign).map(String::as_str).collect();
    if !unknown.is_empty() {
        bail!(
            "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{}]\n--node-labels in the \
             'kubernetes.io' namespace must begin with an allowed prefix ({}) or be in the specifically allowed set ({})",
            unknown.join(" "),
            OWN_NAMESPACES.join(", "),
            OWN_LABELS.join(", ")
        );
    }
    let wrong = labels.iter().filter_map(|(key, value)| {
        let of_key = Some((key, knarr_api::names::qualified_name(key))).filter(|(_, errors)| !errors.is_empty());
        let of_value = Some((value, knarr_api::names::label_value(value))).filter(|(_, errors)| !errors.is_empty());
        of_key.or(of_value).map(|(text, errors)| format!("'{text}' - {}", errors.join(", ")))
    });
    let wrong: Vec<String> = wrong.collect();
    if !wrong.is_empty() {
        bail!("invalid node labels: {}", wrong.join("; "));
    }
    Ok(())
}

fn taint(text: &str) -> anyhow::Result<Taint> {
    let (pair, effect) = text.split_once(':').with_context(|| format!("invalid taint spec: {text}"))?;
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        bail!("invalid taint effect: {effect}, unsupported taint effect");
    }
    let (key, value) = pair.split_once('=').map_or((pair, None), |(key, value)| (key, Some(value.to_owned())));
    Ok(Taint { key: key.to_owned(), value, effect: effect.to_owned(), ..Taint::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_taints_are_those_of_the_flags() {
        let arguments = RegistrationArguments {
            node_labels: vec!["zone=a".to_owned(), "gpu".to_owned()],
            register_with_taints: vec!["dedicated=gpu:NoSchedule".to_owned(), "slow:NoExecute".to_owned()],
            register_node: Some(false),
            ..RegistrationArguments::default()
        };
        let mut settings = Settings::new("one", "/data", "/run/x.sock".to_owned());
        arguments.apply(&mut settings).unwrap();
        let labels: Vec<_> = settings.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(labels, ["gpu=", "zone=a"]);
        let taints: Vec<_> =
            settings.taints.iter().map(|taint| (&*taint.key, taint.value.as_deref(), &*taint.effect)).collect();
        assert_eq!(taints, [("dedicated", Some("gpu"), "NoSchedule"), ("slow", None, "NoExecute")]);
        assert!(!settings.register);
        for (key, value, is_allowed) in [
            ("node.kubernetes.io/x", "a", true),
            ("x.node.kubernetes.io/x", "a", true),
            ("topology.kubernetes.io/zone", "a", true),
            ("example.org/x", "a", true),
            ("node-role.kubernetes.io/worker", "", false),
            ("x.k8s.io/x", "a", false),
            ("a b", "a", false),
            ("a", "b c", false),
        ] {
            let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
            assert_eq!(check_labels(&labels).is_ok(), is_allowed, "{key}={value}");
        }
        assert!(taint("a").is_err() && taint("a=b:Never").is_err());
    }
}
