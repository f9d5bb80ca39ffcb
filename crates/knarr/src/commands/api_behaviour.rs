//! The settings of the API server that change how it behaves: which versions it serves, timeouts, headers, its end.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use http::HeaderValue;
use knarr_api::catalogue::RuntimeConfig;
use knarr_apiserver::behaviour::{Behaviour, KUBELET_ADDRESS_TYPES, PortRange, RequestLimits, SharedHeaders};
use knarr_apiserver::configuration_file::duration;
use knarr_component_flags::Gates;
use knarr_rules::Features;
use regex::Regex;

/// Above this, clients would spend their time on opening connections.
const MAX_GOAWAY_CHANCE: f64 = 0.02;
const CORS_HELP: &str = "List of allowed origins for CORS, comma separated. An allowed origin can be a regular expression \
    to support subdomain matching. If this list is empty CORS will not be enabled. Please ensure each expression matches the \
    entire hostname by anchoring to the start with '^' or including the '//' prefix, and by anchoring to the end with '$' or \
    including the ':' port separator suffix. Examples of valid expressions are '//example\\.com(:|$)' and \
    '^https://example\\.com(:|$)'";

#[derive(Args, Clone, Debug)]
pub struct BehaviourArguments {
    /// Group versions and resources to serve or not, such as api/beta=true or batch/v1/jobs=false.
    #[arg(long, value_delimiter = ',')]
    pub runtime_config: Vec<String>,
    /// Features to switch on or off, such as PodLevelResources=false.
    #[arg(long, value_delimiter = ',')]
    pub feature_gates: Vec<String>,
    /// Timeout of requests that are not long-running.
    #[arg(long, value_parser = duration, default_value = "60s")]
    pub request_timeout: Duration,
    /// Minimum number of seconds for which a watch without a timeout is kept open.
    #[arg(long, default_value_t = 1800)]
    pub min_request_timeout: u64,
    /// How long events are kept.
    #[arg(long, value_parser = duration, default_value = "1h")]
    pub event_ttl: Duration,
    /// Number of objects of a collection that are deleted at once.
    #[arg(long, default_value_t = 1)]
    pub delete_collection_workers: usize,
    /// Types of node addresses at which kubelets are called, in order of preference.
    #[arg(long, value_delimiter = ',', default_values = KUBELET_ADDRESS_TYPES)]
    pub kubelet_preferred_address_types: Vec<String>,
    /// Range of the ports of Services on nodes.
    #[arg(long, default_value = "30000-32767")]
    pub service_node_port_range: PortRange,
    /// How long pods stay on a node that is not ready, in seconds, unless they say so themselves.
    #[arg(long, default_value_t = 300)]
    pub default_not_ready_toleration_seconds: i64,
    /// How long pods stay on a node that is unreachable, in seconds, unless they say so themselves.
    #[arg(long, default_value_t = 300)]
    pub default_unreachable_toleration_seconds: i64,
    /// Regular expressions of the origins of web pages that may use the API.
    #[arg(long, value_delimiter = ',')]
    pub cors_allowed_origins: Vec<String>,
    /// Directives of the header Strict-Transport-Security.
    #[arg(long, value_delimiter = ',')]
    pub strict_transport_security_directives: Vec<String>,
    /// Probability that an HTTP/2 client is asked to open another connection, at most 0.02.
    #[arg(long, default_value_t = 0.0)]
    pub goaway_chance: f64,
    /// How long requests are still served after the server receives the signal to stop; it is not ready in that time.
    #[arg(long, value_parser = duration, default_value = "0s")]
    pub shutdown_delay_duration: Duration,
    /// Refuse new requests with 429 while active ones finish, instead of closing the port.
    #[arg(long)]
    pub shutdown_send_retry_after: bool,
}

/// Gates that switch an admission plugin.
const PLUGIN_GATES: [(&str, &str); 3] = [
    ("MutatingAdmissionPolicy", "MutatingAdmissionPolicy"),
    ("NodeDeclaredFeatures", "NodeDeclaredFeatureValidator"),
    ("PodTopologyLabelsAdmission", "PodTopologyLabels"),
];

/// The feature gates of the arguments, which become those of the process.
pub fn gates(arguments: &BehaviourArguments) -> anyhow::Result<Gates> {
    let gates = Gates::parse(&arguments.feature_gates, true)?;
    crate::feature_gates::set(&gates);
    Ok(gates)
}

/// The admission plugins whose feature is off.
pub fn disabled_plugins(gates: &Gates) -> impl Iterator<Item = String> {
    PLUGIN_GATES.iter().filter(|(gate, _)| !gates.is_on(gate)).map(|(_, plugin)| (*plugin).to_owned())
}

/// The behaviour that the arguments and the feature gates ask for.
pub fn behaviour(arguments: &BehaviourArguments, gates: &Gates) -> anyhow::Result<Behaviour> {
    let runtime_config = RuntimeConfig::parse(arguments.runtime_config.iter().map(String::as_str))?;
    let selection = runtime_config.select(&|gate| gates.is_on(gate))?;
    for absent in &selection.absent {
        tracing::warn!("--runtime-config: {absent} is not served");
    }
    let chance = arguments.goaway_chance;
    if !(0.0..=MAX_GOAWAY_CHANCE).contains(&chance) {
        bail!("--goaway-chance can not be less than 0 or greater than 0.02");
    }
    Ok(Behaviour {
        built_in: selection.catalogue,
        requests: RequestLimits {
            timeout: arguments.request_timeout,
            min_watch: Duration::from_secs(arguments.min_request_timeout),
            concurrent_deletions: arguments.delete_collection_workers.max(1),
        },
        responses: SharedHeaders {
            allowed_origins: allowed_origins(&arguments.cors_allowed_origins)?,
            strict_transport_security: transport_security(&arguments.strict_transport_security_directives)?,
            goaway_chance: chance,
        },
        event_lifetime: arguments.event_ttl,
        node_ports: arguments.service_node_port_range,
        kubelet_address_types: arguments.kubelet_preferred_address_types.clone(),
        features: Features::new(gates.clone()),
    })
}

/// An expression that is not anchored would allow other hosts whose names contain the allowed one.
pub fn allowed_origins(given: &[String]) -> anyhow::Result<Vec<Regex>> {
    given.iter().map(|text| origin(text)).collect()
}

fn origin(text: &str) -> anyhow::Result<Regex> {
    if text.is_empty() {
        bail!("empty value in --cors-allowed-origins, help: {CORS_HELP}");
    }
    let wrong =
        |why: String| format!("--cors-allowed-origins has an invalid regular expression: {why}, help: {CORS_HELP}");
    let expression = Regex::new(text).map_err(|error| anyhow::anyhow!(wrong(error.to_string())))?;
    let has_any = |marks: [&str; 2]| marks.iter().any(|mark| text.contains(mark));
    if !has_any(["^", "//"]) || !has_any(["$", ":"]) {
        bail!(wrong("regular expression does not pin to start/end of host in the origin header".to_owned()));
    }
    Ok(expression)
}

/// The value of the header `Strict-Transport-Security`.
pub fn transport_security(directives: &[String]) -> anyhow::Result<Option<HeaderValue>> {
    for directive in directives {
        if directive.trim().is_empty() {
            bail!("empty value in strict-transport-security-directives");
        }
        let parts: Vec<&str> = directive.split('=').collect();
        let is_age = parts.len() == 2 && parts[0] == "max-age";
        if !is_age && !matches!(directive.as_str(), "includeSubDomains" | "preload") {
            bail!(
                "--strict-transport-security-directives invalid, allowed values: max-age=expireTime, includeSubDomains, \
                 preload. see https://tools.ietf.org/html/rfc6797#section-6.1 for more information"
            );
        }
    }
    if directives.is_empty() {
        return Ok(None);
    }
    let text = directives.join("; ");
    let value = HeaderValue::from_str(&text).with_context(|| format!("{text:?} cannot be a header"))?;
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: BehaviourArguments,
    }

    fn of(words: &[&str]) -> Result<Behaviour, String> {
        let line =
            <Line as clap::Parser>::try_parse_from(["test"].iter().chain(words)).map_err(|error| error.to_string())?;
        let gates = Gates::parse(&line.arguments.feature_gates, true).map_err(|error| error.to_string())?;
        behaviour(&line.arguments, &gates).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_kubernetes() {
        let own = of(&[]).unwrap();
        assert_eq!(own.requests.timeout, RequestLimits::default().timeout);
        assert_eq!(own.event_lifetime, Behaviour::default().event_lifetime);
        assert_eq!(own.node_ports, PortRange::default());
        assert!(own.built_in.resource("batch", "v1", "jobs").is_some());
    }

    #[test]
    fn flags_change_the_behaviour() {
        let changed = of(&[
            "--runtime-config=batch/v1=false,api/beta=true",
            "--feature-gates=ContainerStopSignals=true,EnvFiles=false",
            "--request-timeout=5s",
            "--event-ttl=10m",
            "--service-node-port-range=20000-20100",
            "--cors-allowed-origins=//example.com(:|$)",
            "--strict-transport-security-directives=max-age=31536000,includeSubDomains",
        ])
        .unwrap();
        assert!(changed.built_in.resource("batch", "v1", "jobs").is_none());
        assert!(changed.built_in.resource("networking.k8s.io", "v1beta1", "ipaddresses").is_some());
        assert_eq!((changed.requests.timeout.as_secs(), changed.event_lifetime.as_secs()), (5, 600));
        assert_eq!(changed.node_ports.to_string(), "20000-20100");
        assert!(changed.features.is_on("ContainerStopSignals") && !changed.features.is_on("EnvFiles"));
        let headers = changed.responses;
        assert!(headers.allowed_origins[0].is_match("https://example.com:8443"));
        assert_eq!(headers.strict_transport_security.unwrap(), "max-age=31536000; includeSubDomains");
    }

    /// The messages are those of kube-apiserver v1.36.
    #[test]
    fn wrong_values_are_refused() {
        for (word, message) in [
            ("--goaway-chance=0.5", "--goaway-chance can not be less than 0 or greater than 0.02"),
            (
                "--cors-allowed-origins=example.com",
                "--cors-allowed-origins has an invalid regular expression: regular expression does not pin to start/end of \
                 host in the origin header, help: ",
            ),
            (
                "--strict-transport-security-directives=never",
                "--strict-transport-security-directives invalid, allowed values: max-age=expireTime, includeSubDomains, preload.",
            ),
            ("--feature-gates=Foo=true", "unrecognized feature gate: Foo"),
            ("--runtime-config=batch/v9=true", "group version batch/v9 that has not been registered"),
        ] {
            let refused = of(&[word]).err().unwrap();
            assert!(refused.starts_with(message), "{refused}");
        }
    }
}
