//! How strictly the spec of a pod is validated. Updates tolerate violations that the stored object already has.

use knarr_api::value::Read;
use serde_json::Value;

use super::validation::{resources, scheduling, security};
use crate::common::{formats, label_selector};

/// Which violations are tolerated, because the stored object already has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether a pod is validated, not a template.
    pub is_pod: bool,
    pub invalid_affinity_selector_values: bool,
    pub invalid_node_affinity_values: bool,
    pub indivisible_huge_pages: bool,
    pub invalid_spread_selectors: bool,
    pub repeated_spread_keys: bool,
    pub non_local_token_paths: bool,
    pub host_sysctls: bool,
    pub user_namespaces_with_devices: bool,
    pub user_namespaces_with_host_network: bool,
    pub comparing_tolerations: bool,
    pub restarting_init_containers: bool,
    pub invalid_deletion_cost: bool,
    pub any_se_linux_change_policy: bool,
}

impl Options {
    /// `old` is the stored pod or template: the object with `metadata` and `spec`.
    pub fn of(old: Option<&Value>, is_pod: bool) -> Options {
        let Some(old) = old else { return Options { is_pod, ..Options::default() } };
        let spec = old.at(&["spec"]);
        let has_user_namespace = spec.flag(&["hostUsers"]) == Some(false);
        Options {
            is_pod,
            invalid_affinity_selector_values: has_invalid_affinity_selector(spec),
            invalid_node_affinity_values: scheduling::has_invalid_required_node_affinity(spec),
            indivisible_huge_pages: resources::has_indivisible_huge_pages(spec),
            invalid_spread_selectors: spec
                .items(&["topologySpreadConstraints"])
                .iter()
                .any(|constraint| label_selector::is_invalid(constraint.at(&["labelSelector"]))),
            repeated_spread_keys: scheduling::has_repeated_spread_keys(spec),
            non_local_token_paths: has_non_local_token_path(spec),
            host_sysctls: security::has_host_sysctls(spec),
            user_namespaces_with_devices: has_user_namespace
                && containers(spec).any(|container| !container.items(&["volumeDevices"]).is_empty()),
            user_namespaces_with_host_network: has_user_namespace && spec.flag(&["hostNetwork"]) == Some(true),
            comparing_tolerations: spec
                .items(&["tolerations"])
                .iter()
                .any(|toleration| matches!(toleration.text(&["operator"]), "Lt" | "Gt")),
            restarting_init_containers: spec.items(&["initContainers"]).iter().any(|container| {
                container.text(&["restartPolicy"]) != "Always"
                    && container
                        .items(&["resizePolicy"])
                        .iter()
                        .any(|policy| policy.text(&["restartPolicy"]) == "RestartContainer")
            }),
            any_se_linux_change_policy: spec.has(&["securityContext", "seLinuxChangePolicy"]),
            invalid_deletion_cost: !super::annotations::is_deletion_cost(old.at(&["metadata", "annotations"])),
        }
    }
}

/// Returns all containers of a pod: init, main and ephemeral containers.
pub fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|list| spec.items(&[list]))
}

fn has_invalid_affinity_selector(spec: &Value) -> bool {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let affinity = spec.at(&["affinity"]);
    let is_invalid = |term: &Value| {
        ["labelSelector", "namespaceSelector"].iter().any(|name| label_selector::has_invalid_value(term.at(&[name])))
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        affinity.items(&[kind, REQUIRED]).iter().any(is_invalid)
            || affinity.items(&[kind, PREFERRED]).iter().any(|term| is_invalid(term.at(&["podAffinityTerm"])))
    })
}

fn has_non_local_token_path(spec: &Value) -> bool {
    spec.items(&["volumes"]).iter().flat_map(|volume| volume.items(&["projected", "sources"])).any(|source| {
        let target = source.text(&["serviceAccountToken", "path"]);
        let mut errors = knarr_api::field::Errors::new();
        formats::local_non_reserved_path(&mut errors, &knarr_api::field::Path::default(), target);
        !errors.is_empty()
    })
}
