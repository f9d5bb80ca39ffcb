//! `kubelet`.

use std::path::PathBuf;

use anyhow::bail;
use knarr_component_flags::{Gates, Given};

use super::kubelet_checks;
use super::translate::Translation;

/// Pulls that are not serialized have no limit.
const UNLIMITED_PULLS: &str = "1000";

pub fn translate(given: &Given, gates: &Gates) -> anyhow::Result<Translation> {
    let errors = kubelet_checks::errors(given, gates);
    match errors.as_slice() {
        [] => {}
        [one] => bail!("failed to validate kubelet configuration, error: {one}"),
        several => bail!("failed to validate kubelet configuration, error: [{}]", several.join(", ")),
    }
    let mut translation = Translation::passing(given);
    if !gates.is_on("GracefulNodeShutdown") {
        translation.unset("shutdown-grace-period-by-pod-priority");
    }
    let root = PathBuf::from(given.value("root-dir"));
    translation.set("root-dir", &root.display().to_string());
    translation.set("data-dir", &root.join("knarr").display().to_string());
    if !translation.has("pod-logs-dir") {
        translation.set("pod-logs-dir", crate::paths::DEFAULT_LOGS);
    }
    match (given.given("serialize-image-pulls"), translation.has("max-parallel-image-pulls")) {
        (Some(values), is_limited) if values == ["true"] => {
            if is_limited && !translation.is("max-parallel-image-pulls", "1") {
                bail!(
                    "invalid configuration: maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls \
                     (--serialize-image-pulls) is set to false"
                );
            }
            translation.unset("max-parallel-image-pulls");
            translation.set("max-parallel-image-pulls", "1");
        }
        (Some(_), false) => translation.set("max-parallel-image-pulls", UNLIMITED_PULLS),
        _ => {}
    }
    serving_certificate(given, &mut translation);
    access(given, &mut translation)?;
    // The runtime has its own CNI plugins.
    translation.set("network", "none");
    translation.set("container-runtime-endpoint", &given.value("container-runtime-endpoint"));
    translation.set("node-listen", &listen(given));
    translation.set("cgroup-root", &given.value("cgroup-root"));
    translation.set("reserved-memory", &given.values("reserved-memory").join(";"));
    if given.value("cluster-domain").is_empty() {
        translation.set_empty("cluster-domain");
    }
    // Of two addresses, the first is the node's main one.
    translation.set("node-ip", given.value("node-ip").split(',').next().unwrap_or_default());
    if given.value("pod-max-pids") != "-1" {
        translation.set("pod-max-pids", &given.value("pod-max-pids"));
    }
    if !given.is_given("kubeconfig") && !given.is_given("bootstrap-kubeconfig") {
        bail!("a kubelet without an API server is not supported: give --kubeconfig or --bootstrap-kubeconfig");
    }
    Ok(translation)
}

/// Certificates are requested only if the configuration says so; otherwise the kubelet signs its own.
fn serving_certificate(given: &Given, translation: &mut Translation) {
    translation.set("rotate-server-certificates", &given.value("rotate-server-certificates"));
    translation.set("cert-dir", &given.value("cert-dir"));
}

/// Who may use the endpoints. A configuration file has other defaults than the flags, which are older.
fn access(given: &Given, translation: &mut Translation) -> anyhow::Result<()> {
    const DEFAULTS_OF_FILES: [(&str, &str); 4] = [
        ("anonymous-auth", "false"),
        ("authentication-token-webhook", "true"),
        ("authorization-mode", "Webhook"),
        ("read-only-port", "0"),
    ];
    for (name, default) in DEFAULTS_OF_FILES {
        let is_default = given.is_given("config") && !given.is_given(name);
        translation.set(name, &if is_default { default.to_owned() } else { given.value(name) });
    }
    for name in [
        "authentication-token-webhook-cache-ttl",
        "authorization-webhook-cache-authorized-ttl",
        "authorization-webhook-cache-unauthorized-ttl",
    ] {
        translation.set(name, &given.value(name));
    }
    let mode = given.value("authorization-mode");
    if !matches!(mode.as_str(), "AlwaysAllow" | "Webhook") {
        bail!("failed to run Kubelet: unknown authorization mode {mode}");
    }
    Ok(())
}

fn listen(given: &Given) -> String {
    let (address, port) = (given.value("address"), given.value("port"));
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}
