//! The HTTPS endpoints of standalone components: health, metrics, configuration, flags and status, at Kubernetes' ports.
//!
//! Health is served to everyone. For all other paths the API server decides: it reviews the caller's token and access.
//! `access` asks it, `pages` renders.

mod access;
mod pages;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use clap::Args;
use http::{Request, Response};
use http_body_util::Full;
use jiff::Timestamp;
use knarr_client::k8s_openapi::api::core::v1::ConfigMap;
use knarr_client::kube::{Api, Client};
use knarr_identity::Authorities;
use knarr_kubelet::CertificateFiles;
use knarr_kubelet::certificates::ensure_self_signed;
use knarr_kubelet::tls::{self, ClientAuthorities, ClientCertificate, ServingCertificate};
use knarr_listen::{Incoming, Limits, Peer};
use knarr_supervisor::Supervisor;
use rustls_pki_types::UnixTime;
use tokio::net::TcpListener;

use crate::tls_arguments::TlsArguments;
use access::Access;
pub use pages::{Pages, of_api_server};

/// How long the start waits for the cluster's authority of client certificates.
const AUTHORITY_TIMEOUT: Duration = Duration::from_secs(10);

const LIMITS: Limits = Limits { connections: 256, streams: 32, ..Limits::DEFAULT };

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Endpoints")]
pub struct ServingArguments {
    /// Address of the HTTPS endpoints.
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Port of the HTTPS endpoints, 0 for none [default: 10259 for the scheduler, 10257 for the controllers].
    #[arg(long)]
    pub secure_port: Option<u16>,
    /// Serving certificate (PEM); by default a self-signed one. Files that are replaced are served without a restart.
    #[arg(long, requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key (PEM) of the serving certificate.
    #[arg(long, requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Directory of the self-signed serving certificate, created there if missing; by default it is in memory.
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    #[command(flatten)]
    pub tls: TlsArguments,
    /// CA certificates (PEM) for client certificates; by default those of the cluster.
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// Kubeconfig file for reviews of tokens; by default that of the component.
    #[arg(long)]
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Kubeconfig file for reviews of access; by default that of the component.
    #[arg(long)]
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Paths that are served without authorization.
    #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
    pub authorization_always_allow_paths: Vec<String>,
}

/// Listens, and serves as a component of `supervisor`.
pub async fn start(
    arguments: &ServingArguments,
    default_port: u16,
    pages: Pages,
    client: &Client,
    supervisor: &Supervisor,
) -> anyhow::Result<()> {
    let algorithms = arguments.tls.checked()?;
    let port = arguments.secure_port.unwrap_or(default_port);
    if port == 0 {
        return Ok(());
    }
    let address = SocketAddr::new(arguments.bind_address, port);
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let certificate = certificate(arguments, pages.component, supervisor)?;
    let authorities = authorities(arguments, client).await?;
    if let Some((authorities, path)) = authorities.clone().zip(arguments.client_ca_file.clone()) {
        supervisor.restart("client-authorities", move || authorities.clone().watch(path.clone()));
    }
    let config = tls::server_config(certificate, authorities.as_ref(), &algorithms)?;
    let access = Access::new(
        reviewer(arguments.authentication_kubeconfig.as_ref(), client).await?,
        reviewer(arguments.authorization_kubeconfig.as_ref(), client).await?,
        arguments.authorization_always_allow_paths.clone(),
    );
    let (pages, access) = (Arc::new(pages), Arc::new(access));
    let connected = move |peer: Peer<'_>| {
        let certificate = Arc::new(ClientCertificate::new(authorities.clone(), peer.certificates));
        let (pages, access) = (pages.clone(), access.clone());
        move |request: Request<Incoming>| {
            let (pages, access, certificate) = (pages.clone(), access.clone(), certificate.clone());
            async move { handle(&pages, &access, &certificate, &request).await }
        }
    };
    supervisor.essential("endpoints", async move {
        // Served until the process exits.
        let (_never, stop) = tokio::sync::watch::channel(false);
        knarr_listen::serve(listener, config, LIMITS, stop, connected).await;
    });
    tracing::info!(%address, "serving health and metrics");
    Ok(())
}

/// The serving certificate: of the files, which are watched, or one in memory.
fn certificate(
    arguments: &ServingArguments,
    component: &str,
    supervisor: &Supervisor,
) -> anyhow::Result<ServingCertificate> {
    let address = arguments.bind_address.to_string();
    let mut hosts = vec!["localhost", "127.0.0.1"];
    if !arguments.bind_address.is_unspecified() && !hosts.contains(&address.as_str()) {
        hosts.push(&address);
    }
    let directory = arguments.cert_dir.as_deref().filter(|directory| !directory.as_os_str().is_empty());
    let files = match (&arguments.tls_cert_file, &arguments.tls_private_key_file, directory) {
        (Some(certificate), Some(key), _) => CertificateFiles { certificate: certificate.clone(), key: key.clone() },
        (_, _, Some(directory)) => ensure_self_signed(directory, component, &hosts, Timestamp::now())?,
        _ => return Ok(ServingCertificate::self_signed(hosts.into_iter().map(str::to_owned).collect())?),
    };
    let certificate = ServingCertificate::from_files(&files.certificate, &files.key)?;
    let served = certificate.clone();
    supervisor.restart("serving-certificate", move || knarr_kubelet::watch_files(files.clone(), served.clone()));
    Ok(certificate)
}

async fn handle<B>(
    pages: &Pages,
    access: &Access,
    certificate: &ClientCertificate,
    request: &Request<B>,
) -> Response<Full<Bytes>> {
    match access.check(request, certificate.certificate(UnixTime::now())).await {
        Ok(()) => pages.serve(request),
        Err(denied) => denied,
    }
}

async fn reviewer(kubeconfig: Option<&PathBuf>, own: &Client) -> anyhow::Result<Client> {
    match kubeconfig {
        Some(path) => Ok(knarr_client::connect(Some(path.as_path()), "knarr").await?),
        None => Ok(own.clone()),
    }
}

/// The authorities of client certificates: from a file, or those that the API server publishes.
async fn authorities(arguments: &ServingArguments, client: &Client) -> anyhow::Result<Option<ClientAuthorities>> {
    if let Some(path) = &arguments.client_ca_file {
        return Ok(Some(ClientAuthorities::from_file(path)?));
    }
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
    let published = tokio::time::timeout(AUTHORITY_TIMEOUT, maps.get("extension-apiserver-authentication")).await;
    let data = match published {
        Ok(Ok(map)) => map.data.unwrap_or_default(),
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot read the authority of client certificates: only tokens are accepted");
            return Ok(None);
        }
        Err(_) => {
            tracing::warn!("the API server did not respond: client certificates are not accepted");
            return Ok(None);
        }
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let parsed = data.get("client-ca-file").map(|pem| Authorities::from_pem(pem.as_bytes(), &provider));
    let parsed = parsed.map(|parsed| parsed.map(ClientAuthorities::new));
    parsed.transpose().context("cannot use the published authority of client certificates")
}
