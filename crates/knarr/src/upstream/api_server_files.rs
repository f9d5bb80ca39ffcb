//! The files that kube-apiserver reads before it connects to the store, and its messages if they are missing.

use std::io;

use knarr_apiserver::pki::NamedCertificate;
use knarr_component_flags::Given;

/// Files that must be readable, in the order of Kubernetes, with its messages: `{path}` is the quoted path, `{open}` and
/// `{stat}` are the errors of these calls.
const FILES: [(&str, &str); 22] = [
    ("tls-cert-file", "{open}"),
    ("tls-private-key-file", "{open}"),
    ("tls-sni-cert-key", "failed to load SNI cert and key: {open}"),
    ("client-ca-file", "{open}"),
    ("requestheader-client-ca-file", "{open}"),
    ("token-auth-file", "{open}"),
    ("service-account-key-file", "{open}"),
    ("service-account-signing-key-file", "failed to parse service-account-issuer-key-file: {open}"),
    ("authentication-config", "failed to load authentication configuration from file {path}: {open}"),
    ("authorization-config", "{open}"),
    (
        "egress-selector-config-file",
        "failed to read egress selector config: unable to read egress selector configuration from {path} [{open}]",
    ),
    ("tracing-config-file", "failed to read tracing config: unable to read tracing configuration from {path}: {open}"),
    (
        "encryption-provider-config",
        "error while parsing file: error while loading file: error reading encryption provider configuration file {path}: \
         {open}",
    ),
    ("etcd-cafile", "error creating storage factory: {open}"),
    ("etcd-certfile", "error creating storage factory: {open}"),
    ("etcd-keyfile", "error creating storage factory: {open}"),
    ("oidc-ca-file", "{open}"),
    ("authentication-token-webhook-config-file", "{stat}"),
    ("authorization-policy-file", "invalid authorization config: {open}"),
    ("authorization-webhook-config-file", "invalid authorization config: {stat}"),
    ("audit-policy-file", "loading audit policy file: failed to read file path {path}: {open}"),
    ("audit-webhook-config-file", "initializing audit webhook: {stat}"),
];
/// This one is read later, but it needs nothing of the store either.
const LATE: (&str, &str) = (
    "admission-control-config-file",
    "failed to read plugin config: unable to read admission control configuration from {path} [{open}]",
);

/// The message for the first file that is missing or closed to this user; `open` opens a file for reading.
pub fn unreadable(given: &Given, open: impl Fn(&str) -> io::Result<()>) -> Option<String> {
    FILES.iter().chain([&LATE]).find_map(|(flag, message)| {
        paths(given, flag).iter().filter(|path| !path.is_empty()).find_map(|path| {
            let reason = match open(path).err()?.kind() {
                io::ErrorKind::NotFound => "no such file or directory",
                io::ErrorKind::PermissionDenied => "permission denied",
                // Whoever reads it has the better message.
                _ => return None,
            };
            let message = message.replace("{path}", &format!("{path:?}"));
            let message = message.replace("{open}", &format!("open {path}: {reason}"));
            Some(message.replace("{stat}", &format!("stat {path}: {reason}")))
        })
    })
}

/// The files that a flag names.
fn paths(given: &Given, flag: &str) -> Vec<String> {
    let values = given.values(flag);
    if flag != "tls-sni-cert-key" {
        return values;
    }
    let named = values.iter().filter_map(|value| value.parse::<NamedCertificate>().ok());
    let files = named.flat_map(|named| [named.certificate, named.key]);
    files.map(|path| path.display().to_string()).collect()
}
