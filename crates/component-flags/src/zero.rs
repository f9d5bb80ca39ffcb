//! Fields of configuration files whose zero value means that they are not set, because Kubernetes puts the default in its place.
//! Tools write such files with all fields: kubeadm's has `nodeStatusUpdateFrequency: 0s`.

use knarr_go_duration as go_duration;
use serde_json::Value;

/// By kind; fields that are pointers in Kubernetes are not among them, since their zero is a value.
const DEFAULTED: [(&str, &[&str]); 2] = [
    (
        "KubeletConfiguration",
        &[
            "address",
            "authentication.webhook.cacheTTL",
            "authorization.mode",
            "authorization.webhook.cacheAuthorizedTTL",
            "authorization.webhook.cacheUnauthorizedTTL",
            "cgroupDriver",
            "configMapAndSecretChangeDetectionStrategy",
            "containerLogMaxSize",
            "containerRuntimeEndpoint",
            "contentType",
            "cpuManagerPolicy",
            "cpuManagerReconcilePeriod",
            "eventBurst",
            "evictionPressureTransitionPeriod",
            "fileCheckFrequency",
            "hairpinMode",
            "healthzBindAddress",
            "httpCheckFrequency",
            "imageMinimumGCAge",
            "imagePullCredentialsVerificationPolicy",
            "kubeAPIBurst",
            "maxOpenFiles",
            "maxPods",
            "memoryManagerPolicy",
            "memoryReservationPolicy",
            "nodeLeaseDurationSeconds",
            "nodeStatusReportFrequency",
            "nodeStatusUpdateFrequency",
            "podLogsDir",
            "port",
            "registryBurst",
            "runtimeRequestTimeout",
            "streamingConnectionIdleTimeout",
            "syncFrequency",
            "topologyManagerPolicy",
            "topologyManagerScope",
            "volumePluginDir",
            "volumeStatsAggPeriod",
        ],
    ),
    (
        "KubeProxyConfiguration",
        &[
            "bindAddress",
            "clientConnection.burst",
            "clientConnection.contentType",
            "clientConnection.qps",
            "configSyncPeriod",
            "healthzBindAddress",
            "iptables.minSyncPeriod",
            "iptables.syncPeriod",
            "ipvs.syncPeriod",
            "metricsBindAddress",
            "nftables.minSyncPeriod",
            "nftables.syncPeriod",
        ],
    ),
];

/// Whether a field of this kind of file is left at its default by this value.
pub fn is_unset(kind: &str, path: &str, value: &Value) -> bool {
    let is_defaulted = || DEFAULTED.iter().any(|(of, paths)| *of == kind && paths.contains(&path));
    is_zero(value) && is_defaulted()
}

/// Whether a value is what Kubernetes has for a field that nobody set.
pub fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || go_duration::parse(text) == Ok(0),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fields;

    #[test]
    fn every_path_is_a_field() {
        for (kind, paths) in DEFAULTED {
            for path in paths {
                assert!(fields(kind).iter().any(|field| field.path == *path), "{kind} has no {path}");
            }
        }
    }

    #[test]
    fn zero_is_unset_only_where_kubernetes_has_no_pointer() {
        let kind = "KubeletConfiguration";
        for (path, value, expected) in [
            ("nodeStatusUpdateFrequency", json!("0s"), true),
            ("nodeStatusUpdateFrequency", json!("10s"), false),
            ("containerRuntimeEndpoint", json!(""), true),
            ("maxPods", json!(0), true),
            ("resolvConf", json!(""), false),
            ("healthzPort", json!(0), false),
            ("shutdownGracePeriod", json!("0s"), false),
        ] {
            assert_eq!(is_unset(kind, path, &value), expected, "{path}: {value}");
        }
        assert!(!is_unset("KubeProxyConfiguration", "nodeStatusUpdateFrequency", &json!("0s")), "another kind");
    }
}
