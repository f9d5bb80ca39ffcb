//! Command lines of kube-apiserver and the errors that they are refused with.

use std::io;

use knarr_component_flags::{CommandLine, Component, parse};

use super::api_server_checks::errors;
use super::api_server_files::unreadable;

const REQUIRED: &str = "--etcd-servers=http://e:1 --service-account-issuer=https://x --service-account-key-file=k \
                        --service-account-signing-key-file=k";

fn errors_of(line: &str) -> Vec<String> {
    let words: Vec<String> = format!("{REQUIRED} {line}").split_whitespace().map(str::to_owned).collect();
    let CommandLine::Run(given) = parse(Component::ApiServer, &words).unwrap() else { panic!("{line}") };
    let open = |path: &str| if path == "/nope" { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) };
    let found = errors(&given);
    if found.is_empty() { unreadable(&given, open).into_iter().collect() } else { found }
}

#[test]
fn accepts_what_kubernetes_accepts() {
    for line in [
        "",
        "--storage-media-type=",
        "--max-requests-inflight=0",
        "--max-requests-inflight=0 --max-mutating-requests-inflight=0 --enable-priority-and-fairness=false",
        "--service-cluster-ip-range=10.0.0.0/24,fd00::/108",
        "--audit-log-mode=nope",
        "--show-hidden-metrics-for-version=1.35",
        "--watch-cache-sizes=pods#100",
        "--authorization-mode=Webhook --authorization-webhook-config-file=f",
        "--service-account-issuer=https://y",
    ] {
        assert_eq!(errors_of(line), Vec::<String>::new(), "{line}");
    }
}

/// Messages recorded from kube-apiserver v1.36.4.
#[test]
fn refuses_in_the_words_of_kubernetes() {
    let missing = "open /nope: no such file or directory";
    for (line, message) in [
        ("--service-cluster-ip-range=foo", "service-cluster-ip-range[0] is not a valid cidr"),
        (
            "--service-cluster-ip-range=10.0.0.0/24,10.1.0.0/24",
            "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family",
        ),
        ("--authorization-mode=Foo", "authorization-mode \"Foo\" is not a valid mode"),
        ("--authorization-mode=RBAC,RBAC", "authorization-mode [\"RBAC\" \"RBAC\"] has mode specified more than once"),
        ("--authorization-mode=ABAC", "authorization-mode ABAC's authorization policy file not passed"),
        (
            "--authorization-policy-file=f --authorization-mode=RBAC",
            "cannot specify --authorization-policy-file without mode ABAC",
        ),
        (
            "--authorization-config=/nope --authorization-mode=RBAC",
            "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags \
             are defined",
        ),
        ("--enable-admission-plugins=Nope", "enable-admission-plugins plugin \"Nope\" is unknown"),
        (
            "--enable-admission-plugins=NodeRestriction --disable-admission-plugins=NodeRestriction",
            "[NodeRestriction] in enable-admission-plugins and disable-admission-plugins overlapped",
        ),
        ("--admission-control=Nope", "admission-control plugin \"Nope\" is unknown"),
        (
            "--admission-control=LimitRanger --enable-admission-plugins=LimitRanger",
            "admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive",
        ),
        ("--max-requests-inflight=-1", "--max-requests-inflight can not be negative value"),
        (
            "--max-requests-inflight=0 --max-mutating-requests-inflight=0",
            "invalid configuration: MaxRequestsInFlight=0 and MaxMutatingRequestsInFlight=0; they must add up to \
             something positive",
        ),
        ("--request-timeout=-1s", "--request-timeout can not be negative value"),
        ("--livez-grace-period=-1s", "--livez-grace-period can not be a negative value"),
        ("--goaway-chance=0.5", "--goaway-chance can not be less than 0 or greater than 0.02"),
        ("--tls-cert-file=/nope", "missing filename for serving cert"),
        ("--tls-cert-file=/nope --tls-private-key-file=/nope", missing),
        ("--client-ca-file=/nope", missing),
        ("--tls-sni-cert-key=/nope,/nope:a", "failed to load SNI cert and key: open /nope: no such file or directory"),
        (
            "--strict-transport-security-directives=foo",
            "--strict-transport-security-directives invalid, allowed values: max-age=expireTime, includeSubDomains, \
             preload. see https://tools.ietf.org/html/rfc6797#section-6.1 for more information",
        ),
        (
            "--egress-selector-config-file=/nope",
            "failed to read egress selector config: unable to read egress selector configuration from \"/nope\" [open \
             /nope: no such file or directory]",
        ),
        ("--authentication-token-webhook-config-file=/nope", "stat /nope: no such file or directory"),
        (
            "--authorization-mode=Webhook --authorization-webhook-config-file=/nope",
            "invalid authorization config: stat /nope: no such file or directory",
        ),
        (
            "--authorization-mode=ABAC --authorization-policy-file=/nope",
            "invalid authorization config: open /nope: no such file or directory",
        ),
        ("--audit-webhook-config-file=/nope", "initializing audit webhook: stat /nope: no such file or directory"),
        (
            "--admission-control-config-file=/nope",
            "failed to read plugin config: unable to read admission control configuration from \"/nope\" [open /nope: no \
             such file or directory]",
        ),
        ("--service-account-issuer=", "service-account-issuer should not be an empty string"),
        (
            "--service-account-signing-key-file=/nope",
            "failed to parse service-account-issuer-key-file: open /nope: no such file or directory",
        ),
        (
            "--service-account-max-token-expiration=1m",
            "the service-account-max-token-expiration must be between 1 hour and 2^32 seconds",
        ),
        (
            "--audit-policy-file=/nope",
            "loading audit policy file: failed to read file path \"/nope\": open /nope: no such file or directory",
        ),
        (
            "--audit-log-mode=nope --audit-log-path=-",
            "invalid audit log mode nope, allowed modes are \"batch,blocking,blocking-strict\"",
        ),
        (
            "--audit-log-mode=batch --audit-log-path=- --audit-log-batch-buffer-size=-1",
            "invalid audit batch log buffer size -1, must be a positive number",
        ),
        ("--audit-log-maxage=-1 --audit-log-path=-", "--audit-log-maxage -1 can't be a negative number"),
        (
            "--oidc-client-id=a",
            "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set",
        ),
        ("--logging-format=xml", "format: Invalid value: \"xml\": Unsupported log format"),
        ("--watch-cache-sizes=foo", "invalid value of watch cache size: foo"),
        (
            "--show-hidden-metrics-for-version=1.20",
            "metrics.showHiddenMetricsForVersion: Invalid value: \"1.20\": must be omitted or have the value '1.35'; \
             only the previous minor version is allowed",
        ),
        ("--apiserver-count=0", "--apiserver-count should be a positive number, but value '0' provided"),
        ("--etcd-cafile=/nope", "error creating storage factory: open /nope: no such file or directory"),
        ("--storage-initialization-timeout=-1s", "--storage-initialization-timeout can not be negative value"),
    ] {
        assert_eq!(errors_of(line), [message], "{line}");
    }
}

#[test]
fn reports_all_errors_together() {
    let found = errors_of("--max-requests-inflight=-1 --storage-backend=etcd9 --apiserver-count=0");
    assert_eq!(found.len(), 3, "{found:?}");
}

/// Messages recorded from kube-apiserver v1.36.4, which waits for no store before it prints them either.
#[test]
fn refuses_what_cannot_be_used_before_the_store_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let policies = write("policies", "{}\nnonsense\n");
    let webhook = write("webhook", "apiVersion: v1\nkind: Config\n");
    for (line, message) in [
        ("--tls-min-version=VersionTLS09".to_owned(), "unknown tls version \"VersionTLS09\"".to_owned()),
        ("--tls-cipher-suites=FOO".to_owned(), "Cipher suite FOO not supported or doesn't exist".to_owned()),
        (
            "--oidc-issuer-url=http://x --oidc-client-id=a".to_owned(),
            "invalid authentication configuration: jwt[0].issuer.url: Invalid value: \"http://x\": URL scheme must be https"
                .to_owned(),
        ),
        (
            format!("--authorization-mode=ABAC --authorization-policy-file={policies}"),
            format!("invalid authorization config: error reading policy file {policies}, line 1: error decoding policy"),
        ),
        // Own words, as early.
        (
            format!("--authentication-token-webhook-config-file={webhook}"),
            format!("{webhook}: no current-context, or it names no cluster"),
        ),
        (
            format!("--authorization-mode=Webhook --authorization-webhook-config-file={webhook}"),
            format!("invalid authorization config: {webhook}: no current-context, or it names no cluster"),
        ),
        (format!("--tls-sni-cert-key={webhook},{webhook}"), format!("failed to load SNI cert and key: {webhook}: ")),
        (
            format!("--egress-selector-config-file={webhook}"),
            "failed to read egress selector config: no kind \"Config\" is registered".to_owned(),
        ),
    ] {
        let words: Vec<String> = format!("{REQUIRED} {line}").split_whitespace().map(str::to_owned).collect();
        let CommandLine::Run(given) = parse(Component::ApiServer, &words).unwrap() else { panic!("{line}") };
        let translation = super::translation(&given).unwrap();
        let error = crate::commands::check_api_server(translation.words()).expect_err(&line);
        let error = crate::error_message::error_message(&error);
        assert!(error.starts_with(&message), "{line}: {error}");
    }
}
