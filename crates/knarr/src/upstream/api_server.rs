//! `kube-apiserver`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use knarr_api::catalogue::RuntimeConfig;
use knarr_apiserver::admit::EnabledPlugins;
use knarr_component_flags::{Gates, Given};

use super::translate::Translation;
use super::{api_server_checks, api_server_files, store_host};

/// Where Kubernetes keeps the network of Services if none is given.
const SERVICES: &str = "10.0.0.0/24";
/// How long the start waits for the store, as in Kubernetes.
const STORE_TIMEOUT: Duration = Duration::from_secs(60);

pub fn translate(given: &Given, gates: &Gates) -> anyhow::Result<Translation> {
    let errors = api_server_checks::errors(given);
    match errors.as_slice() {
        [] => {}
        [one] => bail!("{one}"),
        several => bail!("[{}]", several.join(", ")),
    }
    let defaults = ["audit-log-maxage", "audit-log-maxbackup", "enable-bootstrap-token-auth"];
    let mut translation = Translation::passing(given).with_defaults(given, &defaults);
    let certificates = PathBuf::from(given.value("cert-dir"));
    translation.set("data-dir", &certificates.join("knarr").display().to_string());
    translation.set("listen", &listen(given));
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
    // kubeadm and others leave the authority out, and nodes sign their serving certificates themselves.
    let authority = given.value("kubelet-certificate-authority");
    translation.set("kubelet-certificate-authority", &authority);
    if authority.is_empty() {
        translation.warnings.push(
            "--kubelet-certificate-authority is not given: serving certificates of kubelets are not verified"
                .to_owned(),
        );
        translation.set("kubelet-insecure-tls", "true");
    }
    serving_certificate(given, &certificates, &mut translation);
    authorization(given, &mut translation);
    runtime_config(given, gates, &mut translation)?;
    translation.set_all("feature-gates", &given.values("feature-gates"));
    admission_plugins(given, &mut translation);
    Ok(translation)
}

/// Refuses files that cannot be read before anything is waited for.
pub fn check_files(given: &Given) -> anyhow::Result<()> {
    match api_server_files::unreadable(given, |path| std::fs::File::open(path).map(drop)) {
        Some(error) => bail!("{error}"),
        None => Ok(()),
    }
}

/// The address to listen on.
fn listen(given: &Given) -> String {
    let (address, port) = (given.value("bind-address"), given.value("secure-port"));
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

/// The older `--admission-control` names all plugins that run: with an empty list, none.
fn admission_plugins(given: &Given, translation: &mut Translation) {
    let Some(named) = given.given("admission-control") else { return };
    let others = EnabledPlugins::names().filter(|name| !named.iter().any(|named| named == name));
    translation.set_all("disable-admission-plugins", &others.map(str::to_owned).collect::<Vec<_>>());
    translation.set_all("enable-admission-plugins", named);
}

/// A certificate in --cert-dir is served if none is given. Without one, the server's own is put there, which a start after
/// that finds and renews.
fn serving_certificate(given: &Given, directory: &Path, translation: &mut Translation) {
    if given.is_given("tls-cert-file") || given.is_given("tls-private-key-file") {
        return;
    }
    let (certificate, key) = (directory.join("apiserver.crt"), directory.join("apiserver.key"));
    if !certificate.exists() || !key.exists() || is_own(directory) {
        translation.set("serving-certificate-dir", &directory.display().to_string());
    } else {
        translation.set("tls-cert-file", &certificate.display().to_string());
        translation.set("tls-private-key-file", &key.display().to_string());
    }
}

/// Whether the certificate in --cert-dir is a copy of the server's own: it ends with the server's own authority.
fn is_own(directory: &Path) -> bool {
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
    let authority = read("knarr/pki/ca.crt");
    !authority.trim().is_empty() && read("apiserver.crt").trim_end().ends_with(authority.trim())
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

/// Where objects are kept: in etcd, or in the directory that Knarr's own `etcd` names. Waits for either.
pub fn set_store(given: &Given, translation: &mut Translation) -> anyhow::Result<()> {
    let servers = given.values("etcd-servers");
    match store_host::find(&servers, STORE_TIMEOUT)? {
        Some(host) => {
            // The directory has no other users whom a prefix would keep apart.
            translation.unset("etcd-prefix");
            translation.set("store-dir", &host.directory.display().to_string());
            translation.set("store-unsafe-no-fsync", &(!host.is_durable).to_string());
        }
        None => translation.set_all("datastore", &servers),
    }
    Ok(())
}
