//! `kube-apiserver`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use knarr_api::catalogue::RuntimeConfig;
use knarr_component_flags::{Gates, Given};

use super::store_host;
use super::translate::Translation;

/// Where Kubernetes keeps the network of Services if none is given.
const SERVICES: &str = "10.0.0.0/24";
/// How long the start waits for the store, as in Kubernetes.
const STORE_TIMEOUT: Duration = Duration::from_secs(60);

pub fn translate(given: &Given, gates: &Gates) -> anyhow::Result<Translation> {
    let defaults = ["audit-log-maxage", "audit-log-maxbackup", "enable-bootstrap-token-auth"];
    let mut translation = Translation::passing(given).with_defaults(given, &defaults);
    let certificates = PathBuf::from(given.value("cert-dir"));
    translation.set("data-dir", &certificates.join("knarr").display().to_string());
    translation.set("listen", &listen(given)?);
    match given.value("service-cluster-ip-range").as_str() {
        "" => {
            translation.warnings.push(format!("--service-cluster-ip-range is not given: using {SERVICES}"));
            translation.set("service-cluster-ip-range", SERVICES);
        }
        networks => translation.set("service-cluster-ip-range", networks),
    }
    if let Some(types) = given.given("kubelet-preferred-address-types") {
        translation.set_all("kubelet-preferred-address-types", types);
    }
    serving_certificate(given, &certificates, &mut translation);
    authorization(given, &mut translation);
    runtime_config(given, gates, &mut translation)?;
    translation.set_all("feature-gates", &given.values("feature-gates"));
    let errors = invalid(given);
    match errors.as_slice() {
        [] => {}
        [one] => bail!("{one}"),
        several => bail!("[{}]", several.join(", ")),
    }
    store(&given.values("etcd-servers"), &mut translation)?;
    Ok(translation)
}

/// What Kubernetes requires of the flags together.
fn invalid(given: &Given) -> Vec<String> {
    let has = |name: &str| !given.value(name).is_empty();
    let media_type = given.value("storage-media-type");
    let is_known = |media_type: &str| {
        matches!(media_type, "application/json" | "application/yaml" | "application/vnd.kubernetes.protobuf")
    };
    let checks = [
        (has("etcd-servers"), "--etcd-servers must be specified".to_owned()),
        (
            matches!(given.value("storage-backend").as_str(), "" | "etcd3"),
            "--storage-backend invalid, allowed values: etcd3. If not specified, it will default to 'etcd3'".to_owned(),
        ),
        (
            is_known(&media_type),
            format!(
                "--storage-media-type {media_type:?} invalid, allowed values: application/json, \
                 application/vnd.kubernetes.protobuf, application/yaml"
            ),
        ),
        (has("service-account-issuer"), "service-account-issuer is a required flag".to_owned()),
        (
            has("service-account-key-file"),
            "either `--service-account-key-file` or `--service-account-signing-endpoint` must be set".to_owned(),
        ),
        (
            has("service-account-signing-key-file") && has("service-account-issuer"),
            "--service-account-signing-key-file and --service-account-issuer are required flags".to_owned(),
        ),
    ];
    checks.into_iter().filter(|(holds, _)| !holds).map(|(_, message)| message).collect()
}

/// The address to listen on.
fn listen(given: &Given) -> anyhow::Result<String> {
    let port: i64 = given.value("secure-port").parse()?;
    if !(1..=65535).contains(&port) {
        bail!("--secure-port {port} must be between 1 and 65535, inclusive. It cannot be turned off with 0");
    }
    let address = given.value("bind-address");
    Ok(if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") })
}

/// A certificate in --cert-dir is served if none is given.
fn serving_certificate(given: &Given, directory: &Path, translation: &mut Translation) {
    if given.is_given("tls-cert-file") || given.is_given("tls-private-key-file") {
        return;
    }
    let (certificate, key) = (directory.join("apiserver.crt"), directory.join("apiserver.key"));
    if certificate.exists() && key.exists() {
        translation.set("tls-cert-file", &certificate.display().to_string());
        translation.set("tls-private-key-file", &key.display().to_string());
    }
}

/// Without a mode everything is allowed, but then not to anonymous requests.
fn authorization(given: &Given, translation: &mut Translation) {
    let mut modes = given.values("authorization-mode");
    if modes.is_empty() && !given.is_given("authorization-config") {
        modes = vec!["AlwaysAllow".to_owned()];
    }
    translation.set_all("authorization-mode", &modes);
    if modes.iter().any(|mode| mode == "AlwaysAllow") && given.is_on("anonymous-auth") {
        translation.warnings.push(
            "AnonymousAuth is not allowed with the AlwaysAllow authorizer. Resetting AnonymousAuth to false. You should use \
             a different authorizer"
                .to_owned(),
        );
        translation.set("anonymous-auth", "false");
    } else if let Some(values) = given.given("anonymous-auth") {
        translation.set_all("anonymous-auth", values);
    }
}

/// The group versions to serve, checked here because the gates are known here.
fn runtime_config(given: &Given, gates: &Gates, translation: &mut Translation) -> anyhow::Result<()> {
    let entries = given.values("runtime-config");
    let selection = RuntimeConfig::parse(entries.iter().map(String::as_str))?.select(&|gate| gates.is_on(gate))?;
    for absent in selection.absent {
        translation.warnings.push(format!("--runtime-config: {absent} is not served"));
    }
    translation.set_all("runtime-config", &entries);
    Ok(())
}

/// Where objects are kept: in etcd, or in the directory that Knarr's own `etcd` names.
fn store(servers: &[String], translation: &mut Translation) -> anyhow::Result<()> {
    match store_host::find(servers, STORE_TIMEOUT)? {
        Some(host) => {
            translation.set("store-dir", &host.directory.display().to_string());
            translation.set("store-unsafe-no-fsync", &(!host.is_durable).to_string());
        }
        None => translation.set_all("datastore", servers),
    }
    Ok(())
}
