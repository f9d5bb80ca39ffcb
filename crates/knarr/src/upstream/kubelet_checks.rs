//! What the kubelet requires of its configuration, from flags and files alike: the checks, their order and their messages.

use std::ops::RangeInclusive;

use knarr_component_flags::{Gates, Given};

/// Fields whose numbers must be within bounds, with the flags that set them.
const RANGES: [(&str, &str, Bounds); 14] = [
    ("eventBurst", "event-burst", Bounds::NotNegative),
    ("eventRecordQPS", "event-qps", Bounds::NotNegative),
    ("healthzPort", "healthz-port", Bounds::PortOrOff("1")),
    ("imageGCHighThresholdPercent", "image-gc-high-threshold", Bounds::Between(0..=100)),
    ("imageGCLowThresholdPercent", "image-gc-low-threshold", Bounds::Between(0..=100)),
    ("kubeAPIBurst", "kube-api-burst", Bounds::NotNegative),
    ("kubeAPIQPS", "kube-api-qps", Bounds::NotNegative),
    ("maxOpenFiles", "max-open-files", Bounds::NotNegative),
    ("maxPods", "max-pods", Bounds::NotNegative),
    ("oomScoreAdj", "oom-score-adj", Bounds::Between(-1000..=1000)),
    ("podsPerCore", "pods-per-core", Bounds::NotNegative),
    ("port", "port", Bounds::Between(1..=65535)),
    ("readOnlyPort", "read-only-port", Bounds::PortOrOff("0")),
    ("registryBurst", "registry-burst", Bounds::NotNegative),
];
const TOPOLOGY_POLICIES: [&str; 4] = ["none", "best-effort", "restricted", "single-numa-node"];
const HAIRPIN_MODES: [&str; 3] = ["none", "hairpin-veth", "promiscuous-bridge"];
const PODS: &str = "pods";
const NONE: &str = "none";
/// What can be enforced beside the pods' limits, with the field and the flag that name its cgroup.
const RESERVED: [(&str, &str, &str, &str); 2] = [
    ("system-reserved", "system-reserved-compressible", "systemReservedCgroup", "system-reserved-cgroup"),
    ("kube-reserved", "kube-reserved-compressible", "kubeReservedCgroup", "kube-reserved-cgroup"),
];

enum Bounds {
    NotNegative,
    Between(RangeInclusive<i64>),
    /// A port, or 0 to serve nothing; the messages of Kubernetes differ in the first number.
    PortOrOff(&'static str),
}

impl Bounds {
    /// What is wrong with a number, if anything.
    fn refuse(&self, number: i64) -> Option<String> {
        match self {
            Bounds::NotNegative => (number < 0).then(|| "must not be a negative number".to_owned()),
            Bounds::Between(range) => (!range.contains(&number))
                .then(|| format!("must be between {} and {}, inclusive", range.start(), range.end())),
            Bounds::PortOrOff(first) => {
                (!(0..=65535).contains(&number)).then(|| format!("must be between {first} and 65535, inclusive"))
            }
        }
    }
}

/// All errors of the configuration.
pub fn errors(given: &Given, gates: &Gates) -> Vec<String> {
    let mut found: Vec<String> = RANGES.iter().filter_map(|row| out_of_bounds(given, row)).collect();
    found.extend(choices(given));
    found.extend(enforcements(given));
    found.extend(without_gate(given, gates));
    if given.value("container-runtime-endpoint").is_empty() {
        found.push("the containerRuntimeEndpoint was not specified or empty".to_owned());
    }
    found.into_iter().map(|error| format!("invalid configuration: {error}")).collect()
}

fn out_of_bounds(given: &Given, (field, flag, bounds): &(&str, &str, Bounds)) -> Option<String> {
    let number: i64 = given.value(flag).parse().ok()?;
    let reason = bounds.refuse(number)?;
    Some(format!("{field} (--{flag}) {number} {reason}"))
}

/// What is configured although its feature gate is off.
fn without_gate(given: &Given, gates: &Gates) -> Vec<String> {
    let is_set =
        |name: &str| given.settings().any(|(own, values)| own == name && values.iter().any(|value| value != "0"));
    let has_grace_period = is_set("shutdown-grace-period") || is_set("shutdown-grace-period-critical-pods");
    let required = [
        (
            given.is_on("rotate-server-certificates"),
            "RotateKubeletServerCertificate",
            "serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate",
        ),
        (
            has_grace_period,
            "GracefulNodeShutdown",
            "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate GracefulNodeShutdown",
        ),
        (
            is_set("shutdown-grace-period-by-pod-priority"),
            "GracefulNodeShutdownBasedOnPodPriority",
            "Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority",
        ),
    ];
    let required = required.into_iter().chain([(
        is_set("max-container-restart-period"),
        "KubeletCrashLoopBackOffMax",
        "FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not be set",
    )]);
    let missing = required.filter(|(is_used, gate, _)| *is_used && !gates.is_on(gate));
    missing.map(|(_, _, message)| message.to_owned()).collect()
}

fn choices(given: &Given) -> Vec<String> {
    let (policy, scope) = (given.value("topology-manager-policy"), given.value("topology-manager-scope"));
    let hairpin = given.value("hairpin-mode");
    let mut found = Vec::new();
    if !TOPOLOGY_POLICIES.contains(&policy.as_str()) {
        let known = TOPOLOGY_POLICIES.map(|policy| format!("{policy:?}")).join(" ");
        found.push(format!("topologyManagerPolicy (--topology-manager-policy) {policy:?} must be one of: [{known}]"));
    }
    if !matches!(scope.as_str(), "container" | "pod") {
        found.push(format!(
            "topologyManagerScope (--topology-manager-scope) {scope:?} must be one of: \"container\", or \"pod\""
        ));
    }
    if !HAIRPIN_MODES.contains(&hairpin.as_str()) {
        found.push(format!(
            "option {hairpin:?} specified for hairpinMode (--hairpin-mode). Valid options are \"none\", \"hairpin-veth\" or \
             \"promiscuous-bridge\""
        ));
    }
    found
}

fn enforcements(given: &Given) -> Vec<String> {
    let enforced = given.values("enforce-node-allocatable");
    let has = |name: &str| enforced.iter().any(|own| own == name);
    let mut found = Vec::new();
    for (whole, compressible, _, _) in RESERVED.iter().filter(|(whole, part, ..)| has(whole) && has(part)) {
        found.push(format!(
            "both {whole:?} and {compressible:?} cannot be specified together in enforceNodeAllocatable \
             (--enforce-node-allocatable)"
        ));
    }
    for (index, name) in enforced.iter().enumerate() {
        found.extend(enforcement(given, &enforced, index, name));
    }
    found
}

fn enforcement(given: &Given, all: &[String], index: usize, name: &str) -> Option<String> {
    if all[..index].iter().any(|earlier| earlier == name) {
        return Some(format!(
            "duplicated enforcements {name:?} in enforceNodeAllocatable (--enforce-node-allocatable)"
        ));
    }
    if name == NONE {
        return (all.len() > 1).then(|| {
            format!(
                "enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements when {NONE:?} is \
                 specified"
            )
        });
    }
    let reserved = RESERVED.iter().find(|(whole, compressible, ..)| [*whole, *compressible].contains(&name));
    match reserved {
        Some((whole, compressible, field, flag)) if given.value(flag).is_empty() => Some(format!(
            "{field} (--{flag}) must be specified when {whole:?} or {compressible:?} included in enforceNodeAllocatable \
             (--enforce-node-allocatable)"
        )),
        None if name != PODS => Some(format!(
            "option {name:?} specified for enforceNodeAllocatable (--enforce-node-allocatable). Valid options are {PODS:?}, \
             \"system-reserved\", \"system-reserved-compressible\", \"kube-reserved\", \"kube-reserved-compressible\" or \
             {NONE:?}"
        )),
        _ if !given.is_on("cgroups-per-qos") => Some(format!(
            "cgroupsPerQOS (--cgroups-per-qos) must be set to true when {name:?} contained in enforceNodeAllocatable \
             (--enforce-node-allocatable)"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use knarr_component_flags::{CommandLine, Component, configure, parse};
    use serde_json::json;

    use super::*;

    fn errors_of(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let CommandLine::Run(given) = parse(Component::Kubelet, &words).unwrap() else { panic!("{line}") };
        errors(&given, &Gates::of(&given).unwrap())
    }

    #[test]
    fn accepts_what_kubernetes_accepts() {
        for line in [
            "",
            "--healthz-port=0 --read-only-port=0",
            "--enforce-node-allocatable=none",
            "--enforce-node-allocatable=",
            "--enforce-node-allocatable=none --cgroups-per-qos=false",
            "--enforce-node-allocatable=pods,system-reserved --system-reserved-cgroup=/s",
            "--topology-manager-policy=single-numa-node --topology-manager-scope=pod",
            "--oom-score-adj=-1000",
            "--rotate-server-certificates",
            "--feature-gates=RotateKubeletServerCertificate=false,GracefulNodeShutdown=false",
        ] {
            assert_eq!(errors_of(line), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn refuses_in_the_words_of_kubernetes() {
        for (line, message) in [
            ("--event-burst=-1", "eventBurst (--event-burst) -1 must not be a negative number"),
            ("--healthz-port=70000", "healthzPort (--healthz-port) 70000 must be between 1 and 65535, inclusive"),
            ("--read-only-port=-1", "readOnlyPort (--read-only-port) -1 must be between 0 and 65535, inclusive"),
            ("--port=0", "port (--port) 0 must be between 1 and 65535, inclusive"),
            (
                "--image-gc-high-threshold=101",
                "imageGCHighThresholdPercent (--image-gc-high-threshold) 101 must be between 0 and 100, inclusive",
            ),
            ("--oom-score-adj=2000", "oomScoreAdj (--oom-score-adj) 2000 must be between -1000 and 1000, inclusive"),
            (
                "--topology-manager-policy=x",
                "topologyManagerPolicy (--topology-manager-policy) \"x\" must be one of: [\"none\" \"best-effort\" \
                 \"restricted\" \"single-numa-node\"]",
            ),
            (
                "--hairpin-mode=x",
                "option \"x\" specified for hairpinMode (--hairpin-mode). Valid options are \"none\", \"hairpin-veth\" or \
                 \"promiscuous-bridge\"",
            ),
            (
                "--enforce-node-allocatable=kube-reserved",
                "kubeReservedCgroup (--kube-reserved-cgroup) must be specified when \"kube-reserved\" or \
                 \"kube-reserved-compressible\" included in enforceNodeAllocatable (--enforce-node-allocatable)",
            ),
            (
                "--cgroups-per-qos=false",
                "cgroupsPerQOS (--cgroups-per-qos) must be set to true when \"pods\" contained in enforceNodeAllocatable \
                 (--enforce-node-allocatable)",
            ),
            (
                "--enforce-node-allocatable=pods,none",
                "enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements when \"none\" is \
                 specified",
            ),
            (
                "--rotate-server-certificates --feature-gates=RotateKubeletServerCertificate=false",
                "serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate",
            ),
            ("--container-runtime-endpoint=", "the containerRuntimeEndpoint was not specified or empty"),
        ] {
            assert_eq!(errors_of(line), [format!("invalid configuration: {message}")], "{line}");
        }
    }

    #[test]
    fn grace_periods_of_a_shutdown_need_their_gates() {
        let by_priority = json!([{"priority": 0, "shutdownGracePeriodSeconds": 5}]);
        for (field, value, gate, message) in [
            (
                "shutdownGracePeriod",
                json!("30s"),
                "GracefulNodeShutdown",
                "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate \
                 GracefulNodeShutdown",
            ),
            (
                "shutdownGracePeriodByPodPriority",
                by_priority,
                "GracefulNodeShutdownBasedOnPodPriority",
                "Specifying shutdownGracePeriodByPodPriority requires feature gate \
                 GracefulNodeShutdownBasedOnPodPriority",
            ),
        ] {
            for is_on in [true, false] {
                let mut document = json!({"kind": "KubeletConfiguration",
                    "apiVersion": "kubelet.config.k8s.io/v1beta1", "featureGates": {gate: is_on}});
                document[field] = value.clone();
                let mut given = Given::empty(Component::Kubelet);
                configure(&mut given, &document, true).unwrap();
                let expected = if is_on { vec![] } else { vec![format!("invalid configuration: {message}")] };
                assert_eq!(errors(&given, &Gates::of(&given).unwrap()), expected, "{field}");
            }
        }
    }
}
