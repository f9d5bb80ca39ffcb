//! `kube-controller-manager`.

use anyhow::bail;
use knarr_component_flags::Given;
use knarr_controllers::CONTROLLERS;

use super::translate::Translation;

/// Defaults of Kubernetes that differ from Knarr's.
pub const LEADER_DEFAULTS: [&str; 4] =
    ["leader-elect", "leader-elect-lease-duration", "leader-elect-renew-deadline", "leader-elect-retry-period"];

/// Older names of controllers, which Kubernetes still accepts.
const ALIASES: [(&str, &str); 42] = [
    ("attachdetach", "persistentvolume-attach-detach-controller"),
    ("bootstrapsigner", "bootstrap-signer-controller"),
    ("cloud-node-lifecycle", "cloud-node-lifecycle-controller"),
    ("clusterrole-aggregation", "clusterrole-aggregation-controller"),
    ("cronjob", "cronjob-controller"),
    ("csrapproving", "certificatesigningrequest-approving-controller"),
    ("csrcleaner", "certificatesigningrequest-cleaner-controller"),
    ("csrsigning", "certificatesigningrequest-signing-controller"),
    ("daemonset", "daemonset-controller"),
    ("deployment", "deployment-controller"),
    ("disruption", "disruption-controller"),
    ("endpoint", "endpoints-controller"),
    ("endpointslice", "endpointslice-controller"),
    ("endpointslicemirroring", "endpointslice-mirroring-controller"),
    ("ephemeral-volume", "ephemeral-volume-controller"),
    ("garbagecollector", "garbage-collector-controller"),
    ("horizontalpodautoscaling", "horizontal-pod-autoscaler-controller"),
    ("job", "job-controller"),
    ("legacy-service-account-token-cleaner", "legacy-serviceaccount-token-cleaner-controller"),
    ("namespace", "namespace-controller"),
    ("nodeipam", "node-ipam-controller"),
    ("nodelifecycle", "node-lifecycle-controller"),
    ("persistentvolume-binder", "persistentvolume-binder-controller"),
    ("persistentvolume-expander", "persistentvolume-expander-controller"),
    ("podgc", "pod-garbage-collector-controller"),
    ("pv-protection", "persistentvolume-protection-controller"),
    ("pvc-protection", "persistentvolumeclaim-protection-controller"),
    ("replicaset", "replicaset-controller"),
    ("replicationcontroller", "replicationcontroller-controller"),
    ("resource-claim-controller", "resourceclaim-controller"),
    ("resourcequota", "resourcequota-controller"),
    ("root-ca-cert-publisher", "root-ca-certificate-publisher-controller"),
    ("route", "node-route-controller"),
    ("service", "service-lb-controller"),
    ("serviceaccount", "serviceaccount-controller"),
    ("serviceaccount-token", "serviceaccount-token-controller"),
    ("statefulset", "statefulset-controller"),
    ("storage-version-gc", "storageversion-garbage-collector-controller"),
    ("svm", "storage-version-migrator-controller"),
    ("tokencleaner", "token-cleaner-controller"),
    ("ttl", "ttl-controller"),
    ("ttl-after-finished", "ttl-after-finished-controller"),
];

/// Controllers of Kubernetes that Knarr does not have.
const ABSENT: [&str; 11] = [
    "cloud-node-lifecycle-controller",
    "kube-apiserver-serving-clustertrustbundle-publisher-controller",
    "node-route-controller",
    "podcertificaterequest-cleaner-controller",
    "podgroup-protection-controller",
    "resourcepoolstatusrequest-controller",
    "selinux-warning-controller",
    "service-lb-controller",
    "storage-version-migrator-controller",
    "storageversion-garbage-collector-controller",
    "validatingadmissionpolicy-status-controller",
];

/// The controllers to run, by their present names.
fn controllers(given: &Given, translation: &mut Translation) -> anyhow::Result<()> {
    let mut selected = Vec::new();
    for word in given.values("controllers") {
        let (sign, name) = word.strip_prefix('-').map_or(("", word.as_str()), |name| ("-", name));
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, present)| present);
        if name == "*" || CONTROLLERS.iter().any(|controller| controller.name == name) {
            selected.push(format!("{sign}{name}"));
        } else if !ABSENT.contains(&name) {
            bail!("{:?} is not in the list of known controllers", word.trim_start_matches('-'));
        } else if sign.is_empty() {
            translation
                .warnings
                .push(format!("--controllers={word} has no effect: Knarr does not have this controller"));
        }
    }
    translation.set_all("controllers", &selected);
    Ok(())
}

pub fn translate(given: &Given) -> anyhow::Result<Translation> {
    let mut translation = Translation::passing(given).with_defaults(given, &LEADER_DEFAULTS);
    match given.value("cloud-provider").as_str() {
        "" | "external" => {}
        other => bail!("--cloud-provider: Unsupported value: {other:?}: supported values: \"external\""),
    }
    controllers(given, &mut translation)?;
    networks_of_nodes(given, &mut translation)?;
    Ok(translation)
}

/// Networks of nodes are allocated only if that is requested.
fn networks_of_nodes(given: &Given, translation: &mut Translation) -> anyhow::Result<()> {
    if !given.is_on("allocate-node-cidrs") {
        return Ok(());
    }
    let networks: Vec<String> = given.value("cluster-cidr").split(',').map(|part| part.trim().to_owned()).collect();
    if networks.iter().all(String::is_empty) {
        bail!("--cluster-cidr must be specified when --allocate-node-cidrs is set");
    }
    translation.set_all("cluster-cidr", &networks);
    let size = given.value("node-cidr-mask-size");
    if size == "0" {
        return Ok(());
    }
    match networks.as_slice() {
        [one] if one.contains(':') => translation.set("node-cidr-mask-size-ipv6", &size),
        [_] => translation.set("node-cidr-mask-size-ipv4", &size),
        _ => bail!("usage of --node-cidr-mask-size is not allowed with dual-stack clusters"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_older_name_stands_for_a_controller_that_is_known() {
        let is_known =
            |name: &str| CONTROLLERS.iter().any(|controller| controller.name == name) || ABSENT.contains(&name);
        let unknown: Vec<&str> = ALIASES.iter().map(|(_, present)| *present).filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let both: Vec<&&str> =
            ABSENT.iter().filter(|name| CONTROLLERS.iter().any(|controller| controller.name == **name)).collect();
        assert!(both.is_empty(), "{both:?} are here");
    }
}
