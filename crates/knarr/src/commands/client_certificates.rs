//! The certificates with which the API server calls kubelets and aggregated API servers, and their renewal.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use knarr_apiserver::outbound::Identity as ProxyIdentity;
use knarr_apiserver::outbound::kubelet_tls::Trust;
use knarr_apiserver::pki::Pki;
use knarr_apiserver::state::ApiServer;

use super::apiserver::Arguments;

/// Short, because clocks are set.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(20);

/// How this server shows itself to kubelets and aggregated API servers: with files, or with certificates of its own.
#[derive(Clone)]
pub struct ClientCertificates {
    trust: Trust,
    kubelets: Option<(PathBuf, PathBuf)>,
    aggregated: Option<(PathBuf, PathBuf)>,
}

impl ClientCertificates {
    pub fn configured(arguments: &Arguments, pki: &Pki) -> anyhow::Result<Self> {
        Ok(Self {
            trust: kubelet_trust(arguments, pki)?,
            kubelets: arguments.kubelet_client_certificate.clone().zip(arguments.kubelet_client_key.clone()),
            aggregated: arguments.proxy_client_cert_file.clone().zip(arguments.proxy_client_key_file.clone()),
        })
    }
}

/// The certificate and key of a pair of files.
fn read_pair((certificate, key): &(PathBuf, PathBuf)) -> anyhow::Result<(String, String)> {
    let read =
        |path: &PathBuf| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    Ok((read(certificate)?, read(key)?))
}

/// Renews certificates long before they expire, without a restart.
pub async fn renew(pki: Arc<Pki>, server: Arc<ApiServer>, clients: ClientCertificates) {
    let mut stopping = server.backend.stopping.clone();
    loop {
        tokio::select! {
            () = tokio::time::sleep(RENEWAL_INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        let now = Timestamp::now();
        let renewed = pki.renew(now).map_err(anyhow::Error::from);
        let renewed = renewed.and_then(|()| apply(&pki, &server, &clients, now));
        if let Err(error) = renewed {
            tracing::error!(%error, "cannot renew certificates");
        }
    }
}

/// Sets the current client certificates for kubelets and aggregated APIs.
pub fn apply(pki: &Pki, server: &ApiServer, clients: &ClientCertificates, now: Timestamp) -> anyhow::Result<()> {
    let proxy = match &clients.aggregated {
        Some(files) => read_pair(files)?,
        None => pki.front_proxy_client(now).map(|own| (own.certificate, own.key))?,
    };
    server.discovery.aggregation.set_identity(ProxyIdentity { certificate: proxy.0, key: proxy.1 });
    let (certificate, key) = match &clients.kubelets {
        Some(files) => read_pair(files)?,
        None => pki.kubelet_client(now).map(|own| (own.certificate, own.key))?,
    };
    Ok(server.kubelets.set_credentials(&certificate, &key, &clients.trust)?)
}

fn kubelet_trust(arguments: &Arguments, pki: &Pki) -> anyhow::Result<Trust> {
    if arguments.kubelet_insecure_tls {
        return Ok(Trust::Anyone);
    }
    let mut authorities = pki.authority.certificate.clone();
    if let Some(path) = &arguments.kubelet_certificate_authority {
        let more = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        authorities.push('\n');
        authorities.push_str(&more);
    }
    Ok(Trust::Authorities(authorities))
}
