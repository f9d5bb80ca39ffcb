//! What kube-apiserver requires of its flags before it connects to the store: the checks, their order and their messages.

use knarr_apiserver::admit::EnabledPlugins;
use knarr_component_flags::Given;
use knarr_network::cidr::Cidr;

use crate::commands::api_behaviour::{allowed_origins, transport_security};

const MODES: [&str; 6] = ["AlwaysAllow", "AlwaysDeny", "ABAC", "Webhook", "RBAC", "Node"];
const AUDIT_MODES: &str = "batch,blocking,blocking-strict";
const MEDIA_TYPES: [&str; 3] = ["application/json", "application/vnd.kubernetes.protobuf", "application/yaml"];

/// All errors of the flags, in the order of Kubernetes.
pub fn errors(given: &Given) -> Vec<String> {
    // An error in what Kubernetes completes before it validates ends the program without further errors.
    if let Some(error) = incomplete(given) {
        return vec![error];
    }
    let checks = [generic, storage, authentication, authorization, audit, admission, tokens, metrics, services];
    checks.iter().flat_map(|check| check(given)).collect()
}

fn collect<const N: usize>(checks: [(bool, String); N]) -> Vec<String> {
    checks.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, message)| message).collect()
}

fn is_negative(given: &Given, name: &str) -> bool {
    given.value(name).starts_with('-')
}

fn incomplete(given: &Given) -> Option<String> {
    let format = given.value("logging-format");
    if !matches!(format.as_str(), "" | "text" | "json") {
        return Some(format!("format: Invalid value: {format:?}: Unsupported log format"));
    }
    let ranges = given.value("service-cluster-ip-range");
    let wrong = ranges.split(',').enumerate().find(|(_, range)| !range.is_empty() && range.parse::<Cidr>().is_err());
    if let Some((index, _)) = wrong {
        return Some(format!("service-cluster-ip-range[{index}] is not a valid cidr"));
    }
    let (certificate, key) = (given.value("tls-cert-file"), given.value("tls-private-key-file"));
    if certificate.is_empty() != key.is_empty() {
        return Some("missing filename for serving cert".to_owned());
    }
    let sizes = given.values("watch-cache-sizes");
    let is_size = |text: &str| text.split_once('#').is_some_and(|(_, size)| size.parse::<i64>().is_ok());
    sizes.iter().find(|size| !is_size(size)).map(|size| format!("invalid value of watch cache size: {size}"))
}

fn generic(given: &Given) -> Vec<String> {
    let negative = |name: &str| (is_negative(given, name), format!("--{name} can not be negative value"));
    let chance: f64 = given.value("goaway-chance").parse().unwrap_or_default();
    let [reads, writes] = ["max-requests-inflight", "max-mutating-requests-inflight"].map(|name| given.value(name));
    let mut found = collect([
        (is_negative(given, "livez-grace-period"), "--livez-grace-period can not be a negative value".to_owned()),
        negative("max-requests-inflight"),
        negative("max-mutating-requests-inflight"),
        negative("request-timeout"),
        (
            !(0.0..=0.02).contains(&chance),
            "--goaway-chance can not be less than 0 or greater than 0.02".to_owned(),
        ),
        negative("min-request-timeout"),
        negative("storage-initialization-timeout"),
        negative("shutdown-delay-duration"),
        (
            is_negative(given, "shutdown-watch-termination-grace-period"),
            "shutdown-watch-termination-grace-period, if provided, can not be a negative value".to_owned(),
        ),
        (
            given.is_on("enable-priority-and-fairness") && reads == "0" && writes == "0",
            "invalid configuration: MaxRequestsInFlight=0 and MaxMutatingRequestsInFlight=0; they must add up to something \
             positive"
                .to_owned(),
        ),
    ]);
    let security = transport_security(&given.values("strict-transport-security-directives")).err();
    let origins = allowed_origins(&given.values("cors-allowed-origins")).err();
    found.extend(security.into_iter().chain(origins).map(|error| error.to_string()));
    found
}

fn storage(given: &Given) -> Vec<String> {
    let (media_type, port) = (given.value("storage-media-type"), given.value("secure-port"));
    let has_file = !given.value("encryption-provider-config").is_empty();
    collect([
        (given.values("etcd-servers").is_empty(), "--etcd-servers must be specified".to_owned()),
        (
            !matches!(given.value("storage-backend").as_str(), "" | "etcd3"),
            "--storage-backend invalid, allowed values: etcd3. If not specified, it will default to 'etcd3'".to_owned(),
        ),
        (
            !has_file && given.is_on("encryption-provider-config-automatic-reload"),
            "--encryption-provider-config-automatic-reload must be set with --encryption-provider-config".to_owned(),
        ),
        (
            !media_type.is_empty() && !MEDIA_TYPES.contains(&media_type.as_str()),
            format!("--storage-media-type {media_type:?} invalid, allowed values: {}", MEDIA_TYPES.join(", ")),
        ),
        (
            !port.parse::<i64>().is_ok_and(|port| (1..=65535).contains(&port)),
            format!("--secure-port {port} must be between 1 and 65535, inclusive. It cannot be turned off with 0"),
        ),
    ])
}

fn authentication(given: &Given) -> Vec<String> {
    let has = |name: &str| !given.value(name).is_empty();
    let has_oidc = given.names().any(|name| name.starts_with("oidc-"));
    let has_issuer_and_client = has("oidc-issuer-url") && has("oidc-client-id");
    let has_file = has("authentication-config");
    let mut found = collect([
        (
            has_oidc && !has_file && !has_issuer_and_client,
            "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set".to_owned(),
        ),
        (has_oidc && has_file, "authentication-config file and oidc-* flags are mutually exclusive".to_owned()),
    ]);
    let issuers = given.values("service-account-issuer");
    for (index, issuer) in issuers.iter().enumerate() {
        if issuer.is_empty() {
            found.push("service-account-issuer should not be an empty string".to_owned());
        } else if issuers[..index].contains(issuer) {
            found.push(format!("service-account-issuer {issuer:?} is already specified"));
        }
    }
    let uri = given.value("service-account-jwks-uri");
    found.extend(collect([
        (issuers.is_empty(), "service-account-issuer is a required flag".to_owned()),
        (
            given.values("service-account-key-file").is_empty(),
            "either `--service-account-key-file` or `--service-account-signing-endpoint` must be set".to_owned(),
        ),
        (
            !uri.is_empty() && !uri.starts_with("https://"),
            format!("service-account-jwks-uri requires https scheme, parsed as: {uri}"),
        ),
    ]));
    found
}

fn authorization(given: &Given) -> Vec<String> {
    let has_flags = |name: &str| name == "authorization-mode" || name.starts_with("authorization-webhook-");
    if !given.value("authorization-config").is_empty() {
        return collect([(
            given.names().any(has_flags),
            "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are \
             defined"
                .to_owned(),
        )]);
    }
    let modes = given.values("authorization-mode");
    let (policy, webhook) =
        (given.value("authorization-policy-file"), given.value("authorization-webhook-config-file"));
    let mut found = Vec::new();
    for mode in &modes {
        found.extend(collect([
            (!MODES.contains(&mode.as_str()), format!("authorization-mode {mode:?} is not a valid mode")),
            (
                mode == "ABAC" && policy.is_empty(),
                "authorization-mode ABAC's authorization policy file not passed".to_owned(),
            ),
            (
                mode == "Webhook" && webhook.is_empty(),
                "authorization-mode Webhook's authorization config file not passed".to_owned(),
            ),
        ]));
    }
    let has = |mode: &str| modes.iter().any(|own| own == mode);
    let is_repeated = modes.iter().enumerate().any(|(index, mode)| modes[..index].contains(mode));
    let all: Vec<String> = modes.iter().map(|mode| format!("{mode:?}")).collect();
    found.extend(collect([
        (!policy.is_empty() && !has("ABAC"), "cannot specify --authorization-policy-file without mode ABAC".to_owned()),
        (
            !webhook.is_empty() && !has("Webhook"),
            "cannot specify --authorization-webhook-config-file without mode Webhook".to_owned(),
        ),
        (is_repeated, format!("authorization-mode [{}] has mode specified more than once", all.join(" "))),
    ]));
    found
}

fn audit(given: &Given) -> Vec<String> {
    let mut found = Vec::new();
    for (plugin, file) in [("log", "audit-log-path"), ("webhook", "audit-webhook-config-file")] {
        if !given.value(file).is_empty() {
            found.extend(audit_mode(given, plugin));
        }
    }
    if !given.value("audit-log-path").is_empty() {
        let format = given.value("audit-log-format");
        found.extend(collect([(
            !matches!(format.as_str(), "legacy" | "json"),
            format!("invalid audit log format {format}, allowed formats are \"legacy,json\""),
        )]));
        for name in ["audit-log-maxage", "audit-log-maxbackup", "audit-log-maxsize"] {
            let message = format!("--{name} {} can't be a negative number", given.value(name));
            found.extend(collect([(is_negative(given, name), message)]));
        }
    }
    found
}

fn audit_mode(given: &Given, plugin: &str) -> Option<String> {
    let mode = given.value(&format!("audit-{plugin}-mode"));
    if !AUDIT_MODES.split(',').any(|known| known == mode) {
        return Some(format!("invalid audit {plugin} mode {mode}, allowed modes are {AUDIT_MODES:?}"));
    }
    let sizes = [("buffer-size", "buffer size"), ("max-size", "max batch size")];
    sizes.iter().filter(|_| mode == "batch").find_map(|(flag, name)| {
        let size = given.value(&format!("audit-{plugin}-batch-{flag}"));
        let is_positive = size.parse::<i64>().is_ok_and(|size| size > 0);
        (!is_positive).then(|| format!("invalid audit batch {plugin} {name} {size}, must be a positive number"))
    })
}

fn admission(given: &Given) -> Vec<String> {
    let [named, enabled, disabled] =
        ["admission-control", "enable-admission-plugins", "disable-admission-plugins"].map(|name| given.values(name));
    let is_changed = given.is_given("enable-admission-plugins") || given.is_given("disable-admission-plugins");
    let mut found = collect([(
        given.is_given("admission-control") && is_changed,
        "admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive"
            .to_owned(),
    )]);
    let is_unknown = |name: &&String| !EnabledPlugins::names().any(|known| known == name.as_str());
    for (flag, names) in [
        ("admission-control", &named),
        ("enable-admission-plugins", &enabled),
        ("disable-admission-plugins", &disabled),
    ] {
        found.extend(names.iter().filter(is_unknown).map(|name| format!("{flag} plugin {name:?} is unknown")));
    }
    let both: Vec<&str> = enabled.iter().filter(|name| disabled.contains(name)).map(String::as_str).collect();
    let message = format!("[{}] in enable-admission-plugins and disable-admission-plugins overlapped", both.join(" "));
    found.extend(collect([(!both.is_empty(), message)]));
    found
}

fn tokens(given: &Given) -> Vec<String> {
    let is_tried = ["service-account-signing-key-file", "service-account-issuer", "api-audiences"]
        .iter()
        .any(|name| !given.value(name).is_empty());
    let has_key = !given.value("service-account-signing-key-file").is_empty();
    let longest = given.value("service-account-max-token-expiration");
    let longest = knarr_component_flags::parse_duration_nanoseconds(&longest).unwrap_or_default() / 1_000_000_000;
    collect([
        (!is_tried, "--service-account-signing-key-file and --service-account-issuer are required flags".to_owned()),
        (
            is_tried && !has_key,
            "--service-account-signing-key-file, --service-account-issuer, and --api-audiences should be specified together"
                .to_owned(),
        ),
        (
            longest != 0 && !(3600..=1 << 32).contains(&longest),
            "the service-account-max-token-expiration must be between 1 hour and 2^32 seconds".to_owned(),
        ),
    ])
}

fn metrics(given: &Given) -> Vec<String> {
    let (shown, previous) = (given.value("show-hidden-metrics-for-version"), knarr_version::previous_release());
    collect([(
        !shown.is_empty() && shown != previous,
        format!(
            "metrics.showHiddenMetricsForVersion: Invalid value: {shown:?}: must be omitted or have the value \
             '{previous}'; only the previous minor version is allowed"
        ),
    )])
}

fn services(given: &Given) -> Vec<String> {
    let ranges = given.value("service-cluster-ip-range");
    let networks: Vec<Cidr> = ranges.split(',').filter_map(|range| range.parse().ok()).collect();
    let count = given.value("apiserver-count");
    collect([
        (networks.len() > 2, "--service-cluster-ip-range must not contain more than two entries".to_owned()),
        (
            matches!(networks.as_slice(), [first, second, ..] if first.is_ipv4() == second.is_ipv4()),
            "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family".to_owned(),
        ),
        (
            !count.parse::<i64>().is_ok_and(|count| count > 0),
            format!("--apiserver-count should be a positive number, but value '{count}' provided"),
        ),
    ])
}
