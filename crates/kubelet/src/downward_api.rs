//! The downward API: fields of a pod and resources of its containers, as environment variables and files show them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::go_duration::quote;
use knarr_client::quantity::{self, milli_value, value};

use crate::pod;

#[derive(Debug, thiserror::Error)]
pub enum DownwardError {
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    #[error("container \"{0}\" not found")]
    Container(String),
    #[error("unsupported container resource : {0}")]
    Resource(String),
}

/// The values of node and sandbox that the downward API exposes in environments and volumes.
pub struct DownwardContext {
    pub node_name: String,
    pub node_addresses: Vec<String>,
    pub pod_addresses: Vec<String>,
    /// Used instead of a limit that the container does not set.
    pub allocatable: BTreeMap<String, Quantity>,
}

/// A field of the pod by its path.
pub fn field_value(pod: &Pod, path: &str, downward: &DownwardContext) -> Result<String, DownwardError> {
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let values = match map {
            "metadata.labels" => &pod.metadata.labels,
            "metadata.annotations" => &pod.metadata.annotations,
            _ => return Err(DownwardError::Field(path.to_string())),
        };
        return Ok(values.as_ref().and_then(|values| values.get(key)).cloned().unwrap_or_default());
    }
    let first = |list: &[String]| list.first().cloned().unwrap_or_default();
    Ok(match path {
        "metadata.name" => pod::name(pod).to_string(),
        "metadata.namespace" => pod::namespace(pod).to_string(),
        "metadata.uid" => pod::uid(pod).to_string(),
        "metadata.labels" => quoted_lines(&pod.metadata.labels),
        "metadata.annotations" => quoted_lines(&pod.metadata.annotations),
        "spec.nodeName" => downward.node_name.clone(),
        "spec.serviceAccountName" => pod::spec(pod).service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => first(&downward.node_addresses),
        "status.hostIPs" => downward.node_addresses.join(","),
        "status.podIP" => first(&downward.pod_addresses),
        "status.podIPs" => downward.pod_addresses.join(","),
        other => return Err(DownwardError::Field(other.to_string())),
    })
}

/// One `key="value"` a line, sorted, with the value quoted as programs expect.
fn quoted_lines(values: &Option<BTreeMap<String, String>>) -> String {
    let lines = values.iter().flatten().map(|(key, value)| format!("{key}={}", quote(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// A container's request or limit in units of the divisor, rounded up.
pub fn resource_value(
    pod: &Pod,
    own: Option<&Container>,
    selector: &ResourceFieldSelector,
    downward: &DownwardContext,
) -> Result<String, DownwardError> {
    let found;
    let container = match selector.container_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => {
            found = pod::find(pod, name).ok_or_else(|| DownwardError::Container(name.to_string()))?.container;
            &found
        }
        None => own.ok_or_else(|| DownwardError::Container(String::new()))?,
    };
    let unknown = || DownwardError::Resource(selector.resource.clone());
    let (section, name) = selector.resource.split_once('.').ok_or_else(unknown)?;
    let amount = match section {
        "limits" => {
            let named = |limits: &Option<BTreeMap<String, Quantity>>| {
                limits
                    .as_ref()
                    .and_then(|limits| limits.get(name))
                    .filter(|limit| !quantity::of(limit).is_zero())
                    .cloned()
            };
            let whole = || pod::spec(pod).resources.as_ref().and_then(|whole| named(&whole.limits));
            let own = named(pod::limits(container)).or_else(whole);
            own.or_else(|| downward.allocatable.get(name).cloned())
        }
        "requests" => {
            let request = pod::requests(container).as_ref().and_then(|requests| requests.get(name)).cloned();
            let limit = || pod::limits(container).as_ref().and_then(|limits| limits.get(name)).cloned();
            request.or_else(limit)
        }
        _ => return Err(unknown()),
    };
    let amount = amount.unwrap_or_else(|| Quantity("0".into()));
    let divisor = selector.divisor.as_ref().filter(|divisor| !quantity::of(divisor).is_zero());
    let one = Quantity("1".into());
    let divisor = divisor.unwrap_or(&one);
    let (amount, divisor) = if name == "cpu" {
        (milli_value(&amount), milli_value(divisor).max(1))
    } else {
        (value(&amount), value(divisor).max(1))
    };
    Ok(amount.div_euclid(divisor).saturating_add(i64::from(amount.rem_euclid(divisor) != 0)).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_and_resources_are_read() {
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p", "labels": { "b": "x\"y", "a": "1" } },
            "spec": { "containers": [{ "name": "c", "resources": { "limits": { "cpu": "1250m", "memory": "64Mi" } } }] } }))
        .expect("a pod");
        let downward = DownwardContext {
            node_name: "node".into(),
            node_addresses: vec!["1.2.3.4".into()],
            pod_addresses: vec!["10.0.0.1".into(), "fd00::1".into()],
            allocatable: BTreeMap::from([("ephemeral-storage".to_string(), Quantity("10Gi".into()))]),
        };
        for (path, expected) in [
            ("metadata.labels", "a=\"1\"\nb=\"x\\\"y\""),
            ("metadata.labels['a']", "1"),
            ("metadata.annotations['a']", ""),
            ("status.podIPs", "10.0.0.1,fd00::1"),
            ("status.hostIP", "1.2.3.4"),
        ] {
            assert_eq!(field_value(&pod, path, &downward).expect("a field"), expected, "{path}");
        }
        assert!(field_value(&pod, "spec.containers", &downward).is_err());
        for (resource, divisor, expected) in [
            ("limits.cpu", "1", "2"),
            ("limits.cpu", "1m", "1250"),
            ("limits.memory", "1Mi", "64"),
            ("limits.memory", "0", "67108864"),
            ("requests.memory", "1Ki", "65536"),
            ("limits.ephemeral-storage", "1Gi", "10"),
            ("requests.ephemeral-storage", "1", "0"),
        ] {
            let selector = ResourceFieldSelector {
                container_name: Some("c".into()),
                divisor: Some(Quantity(divisor.into())),
                resource: resource.into(),
            };
            assert_eq!(resource_value(&pod, None, &selector, &downward).expect("an amount"), expected, "{resource}");
        }
    }

    #[test]
    fn limits_default_to_the_pod_and_then_to_the_node() {
        let downward = DownwardContext {
            node_name: String::new(),
            node_addresses: Vec::new(),
            pod_addresses: Vec::new(),
            allocatable: BTreeMap::from([("cpu", "8"), ("memory", "1Gi")].map(|(k, v)| (k.into(), Quantity(v.into())))),
        };
        let cases = [
            (json!({ "cpu": "1" }), json!({ "cpu": "2", "memory": "64Mi" }), ["1", "67108864"]),
            (json!({}), json!({ "cpu": "2" }), ["2", "1073741824"]),
            (json!({ "cpu": "0" }), json!({ "cpu": "0" }), ["8", "1073741824"]),
        ];
        for (own, whole, expected) in cases {
            let pod: Pod = serde_json::from_value(json!({ "spec": { "resources": { "limits": whole },
                "containers": [{ "name": "c", "resources": { "limits": own } }] } }))
            .expect("a pod");
            let found = ["limits.cpu", "limits.memory"].map(|resource| {
                let container_name = Some("c".into());
                let selector = ResourceFieldSelector { container_name, divisor: None, resource: resource.into() };
                resource_value(&pod, None, &selector, &downward).expect("an amount")
            });
            assert_eq!(found, expected, "{own} {whole}");
        }
    }
}
