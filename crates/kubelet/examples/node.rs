//! Runs a node with a containerd of its own against the API a kubeconfig names, until it is interrupted:
//! `node NAME DATA_DIRECTORY KUBECONFIG [CLIENT_CA]`. The pod network must be configured in `DATA_DIRECTORY/cni`.

use std::path::{Path, PathBuf};

use knarr_cri::containerd::{Containerd, HealthChecks, import_directory};
use knarr_kubelet::{Settings, Signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    rustls::crypto::aws_lc_rs::default_provider().install_default().map_err(|_| "a TLS provider is set already")?;
    tracing_subscriber::fmt()
        .with_env_filter("info,knarr_kubelet=debug,knarr_cri=debug")
        .with_writer(std::io::stderr)
        .init();
    let arguments: Vec<String> = std::env::args().collect();
    let [_, name, data, kubeconfig, rest @ ..] = arguments.as_slice() else {
        return Err("usage: node NAME DATA_DIRECTORY KUBECONFIG [CLIENT_CA]".into());
    };
    let data = PathBuf::from(data);
    let containerd = Containerd::new(&data.join("containerd"), Path::new("/usr/lib/cni"), &data.join("cni"));
    let runtime = containerd.ensure().await?;
    import_directory(&runtime, &data.join("images")).await?;
    tokio::spawn(containerd.clone().supervise(runtime, HealthChecks::default()));
    let endpoint = containerd.socket().to_string_lossy().into_owned();
    let mut settings = Settings::new(name.as_str(), data.join("kubelet"), endpoint);
    settings.client_ca = rest.first().map(PathBuf::from);
    settings.cluster_dns = vec!["10.96.0.10".parse()?];
    settings.log_root = data.join("logs");
    settings.manifests = Some(data.join("manifests"));
    // The rules of the API are in the binary; here pods run as they are.
    settings.pod_rules = Some(|_| Ok(()));
    settings.cgroup_root = format!("/knarr-{name}");
    // A host shared with others may be full by their doing.
    settings.eviction.limits.retain(|limit| limit.signal == Signal::Memory);
    settings.image_gc_high_percent = 99;
    let client = knarr_client::connect(Some(Path::new(kubeconfig)), "kubelet").await?;
    knarr_kubelet::run(client, settings, async {
        if let Err(error) = tokio::signal::ctrl_c().await {
            eprintln!("{error}");
        }
    })
    .await?;
    Ok(())
}
