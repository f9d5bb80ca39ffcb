//! `/configz`: the kubelet's settings as a KubeletConfiguration.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Response;
use serde_json::{Value, json};

use super::{Body, Server};
use crate::eviction::Limit;

pub fn response(server: &Server) -> Response<Body> {
    let settings = &server.context.settings;
    let limits = |render: &dyn Fn(&Limit) -> Option<String>| {
        let limits = settings.eviction.limits.iter();
        limits.filter_map(|limit| Some((limit.signal.name(), render(limit)?))).collect::<BTreeMap<_, _>>()
    };
    let seconds = |time: Duration| format!("{}s", time.as_secs_f64());
    let access = &settings.access;
    let lifetimes = access.decisions.unwrap_or_default();
    let mut config = json!({
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "enableServer": true,
        "address": settings.serving.ip().to_string(),
        "port": settings.serving.port(),
        "rotateCertificates": true,
        "serverTLSBootstrap": settings.request_serving_certificate,
        "tlsMinVersion": settings.algorithms.min_version,
        "tlsCipherSuites": settings.algorithms.cipher_suites,
        "authentication": {
            "x509": { "clientCAFile": settings.client_ca },
            "webhook": { "enabled": access.tokens.is_some(), "cacheTTL": seconds(access.tokens.unwrap_or_default()) },
            "anonymous": { "enabled": access.anonymous },
        },
        "authorization": {
            "mode": if access.decisions.is_some() { "Webhook" } else { "AlwaysAllow" },
            "webhook": {
                "cacheAuthorizedTTL": seconds(lifetimes.allowed), "cacheUnauthorizedTTL": seconds(lifetimes.denied),
            },
        },
        "readOnlyPort": settings.read_only_port.unwrap_or_default(),
        "registerNode": settings.register,
        "containerRuntimeEndpoint": settings.runtime_endpoint,
        "podLogsDir": settings.log_root,
        "resolvConf": settings.resolv_conf,
        "cgroupsPerQOS": true,
        "podPidsLimit": settings.pod_pids_limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX)),
        "seccompDefault": settings.seccomp_default,
        "allowedUnsafeSysctls": settings.allowed_unsafe_sysctls,
        "shutdownGracePeriodByPodPriority": settings.shutdown.iter().map(|period| json!({
            "priority": period.priority, "shutdownGracePeriodSeconds": period.grace.as_secs() })).collect::<Vec<_>>(),
        "memorySwap": { "swapBehavior": if settings.limited_swap { "LimitedSwap" } else { "NoSwap" } },
        "providerID": settings.provider_id,
        "imageMinimumGCAge": seconds(settings.images.min_age),
        "imageMaximumGCAge": seconds(settings.images.max_age.unwrap_or_default()),
        "imagePullCredentialsVerificationPolicy": settings.images.verification.name(),
        "evictionPressureTransitionPeriod": format!("{}s", settings.eviction.transition.as_secs()),
        "crashLoopBackOff": { "maxContainerRestartPeriod": seconds(settings.tuning.restart_backoff.max) },
        "localStorageCapacityIsolation": true,
        "maxPods": settings.max_pods,
        "clusterDomain": settings.cluster_domain,
        "clusterDNS": settings.cluster_dns.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "staticPodPath": settings.manifests,
        "containerLogMaxSize": settings.log_max_size.to_string(),
        "containerLogMaxFiles": settings.log_max_files,
        "imageGCHighThresholdPercent": settings.image_gc_high_percent,
        "imageGCLowThresholdPercent": settings.image_gc_low_percent,
        "cgroupDriver": server.context.cgroups.as_ref().map(|cgroups| cgroups.driver().name()),
        "cgroupRoot": settings.cgroup_root,
        "nodeLeaseDurationSeconds": settings.tuning.lease_seconds,
    });
    let policies = &settings.resources;
    let more = json!({
        "evictionHard": limits(&|limit| limit.grace.is_none().then(|| limit.below.to_string())),
        "evictionSoft": limits(&|limit| limit.grace.map(|_| limit.below.to_string())),
        "evictionSoftGracePeriod": limits(&|limit| limit.grace.map(seconds)),
        "evictionMinimumReclaim": limits(&|limit| limit.reclaim.map(|reclaim| reclaim.to_string())),
        "evictionMaxPodGracePeriod": settings.eviction.max_pod_grace,
        "cpuManagerPolicy": if policies.static_cpus { "static" } else { "none" },
        "memoryManagerPolicy": if policies.static_memory { "Static" } else { "None" },
        "topologyManagerPolicy": policies.topology.name(),
        "topologyManagerScope": policies.scope.name(),
        "cpuCFSQuota": true,
        "cpuCFSQuotaPeriod": "100ms",
        "enforceNodeAllocatable": ["pods"],
        "serializeImagePulls": settings.images.max_parallel_pulls == 1,
        "maxParallelImagePulls": settings.images.max_parallel_pulls,
        "nodeStatusUpdateFrequency": seconds(settings.tuning.status_update),
        "nodeStatusReportFrequency": seconds(settings.tuning.status_report),
        "nodeStatusMaxImages": settings.tuning.status_images.map_or(-1, |max| i64::try_from(max).unwrap_or(i64::MAX)),
        "containerLogMonitorInterval": seconds(settings.tuning.log_check),
        "singleProcessOOMKill": settings.tuning.single_process_oom_kill,
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "enableDebuggingHandlers": settings.tuning.debugging_handlers,
        "enableSystemLogHandler": settings.tuning.system_log_handler,
        "enableSystemLogQuery": settings.system_log_query,
        "failSwapOn": settings.fail_swap_on,
        "failCgroupV1": settings.fail_cgroup_v1,
        "healthzBindAddress": settings.health.map(|address| address.ip().to_string()),
        "healthzPort": settings.health.map_or(0, |address| address.port()),
    });
    if let (Some(config), Value::Object(more)) = (config.as_object_mut(), more) {
        config.extend(more);
    }
    super::json(&json!({ "kubeletconfig": config }))
}
