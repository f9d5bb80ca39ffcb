//! The credentials of a node: first its join token, then a client certificate in its own name, which is renewed before it expires.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use knarr_client::ServerReachability;
use knarr_client::kube::client::Body;
use knarr_client::kube::config::{AuthInfo, Config, KubeConfigOptions, Kubeconfig};
use knarr_client::kube::{self, Client};
use knarr_kubelet::certificates::{self, Purpose};
use tower::service_fn;

use super::token_client::token_client;
use super::{BootstrapToken, pem};

/// Address and authority of the API server, without credentials.
#[derive(Clone)]
struct ServerConnection(Config);

/// A node or its network components, with a client certificate.
#[derive(Clone)]
pub struct Identity {
    connection: ServerConnection,
    node: String,
    directory: PathBuf,
    purpose: Purpose,
    /// The cluster's authorities; certificates are renewed when the first one has not signed them.
    authority_file: Option<PathBuf>,
    /// Client that requests new certificates; by default the identity itself.
    requester: Option<Client>,
    current: Arc<ArcSwap<Client>>,
    reachability: Arc<ServerReachability>,
}

impl ServerConnection {
    /// `authorities` in DER.
    fn new(server: &http::Uri, authorities: &[Vec<u8>]) -> Self {
        let mut config = Config::new(server.clone());
        config.root_cert = Some(authorities.to_vec());
        Self::from(config)
    }

    /// The connection of a configuration, without its credentials.
    fn from(mut config: Config) -> Self {
        config.auth_info = AuthInfo::default();
        // A watch may be silent for minutes, and the server closes it.
        config.read_timeout = None;
        Self(config).named("kubelet")
    }

    /// The same with another user agent.
    fn named(mut self, agent: &'static str) -> Self {
        self.0.headers.retain(|(name, _)| *name != http::header::USER_AGENT);
        self.0.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
        self
    }

    fn client(&self, directory: &Path, purpose: &Purpose) -> anyhow::Result<Client> {
        let files = certificates::files(directory, purpose);
        let mut config = self.0.clone();
        config.auth_info = AuthInfo {
            client_certificate: Some(files.certificate.to_string_lossy().into_owned()),
            client_key: Some(files.key.to_string_lossy().into_owned()),
            ..AuthInfo::default()
        };
        Client::try_from(config).with_context(|| format!("cannot use the certificate {}", files.certificate.display()))
    }
}

impl Identity {
    /// Uses the certificate in the directory if it is valid, else requests one with the token.
    pub async fn obtain(
        server: &http::Uri,
        authorities: &[Vec<u8>],
        token: &BootstrapToken,
        node: &str,
        directory: &Path,
        authority_file: &Path,
    ) -> anyhow::Result<Self> {
        let connection = ServerConnection::new(server, authorities);
        certificates::finish_replacement(directory, &Purpose::Client)?;
        // A certificate that is due for renewal renews itself: the token may have expired long ago.
        if !is_valid(directory, &Purpose::Client) {
            let client = token_client(server, authorities, token)?;
            let made = certificates::ensure(&client, node, directory, &Purpose::Client).await;
            made.map_err(|error| explain(error, &token.id))?;
        }
        let mut identity = Self::known(connection, node, directory, Purpose::Client, None)?;
        identity.authority_file = Some(authority_file.to_owned());
        Ok(identity)
    }

    /// Uses the certificate in the directory if it is valid, else requests one with the kubeconfig's credentials.
    pub async fn bootstrap(kubeconfig: &Path, node: &str, directory: &Path) -> anyhow::Result<Self> {
        let unusable = || format!("cannot use {}", kubeconfig.display());
        let file = Kubeconfig::read_from(kubeconfig).with_context(unusable)?;
        let config =
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.with_context(unusable)?;
        let connection = ServerConnection::from(config.clone());
        certificates::finish_replacement(directory, &Purpose::Client)?;
        if !is_valid(directory, &Purpose::Client) {
            let client = Client::try_from(config).with_context(unusable)?;
            certificates::ensure(&client, node, directory, &Purpose::Client)
                .await
                .context("cannot obtain the node's certificate")?;
        }
        Self::known(connection, node, directory, Purpose::Client, None)
    }

    /// The identity of the node's network components, requested by the node.
    pub async fn network(&self) -> anyhow::Result<Self> {
        self.component(Purpose::Network, "knarr-network")
            .await
            .context("cannot obtain the certificate of the node's network")
    }

    /// The identity of the node's CSI controller, requested by the node.
    pub async fn storage(&self) -> anyhow::Result<Self> {
        self.component(Purpose::Storage, "knarr-storage")
            .await
            .context("cannot obtain the certificate of the node's storage")
    }

    async fn component(&self, purpose: Purpose, agent: &'static str) -> anyhow::Result<Self> {
        certificates::finish_replacement(&self.directory, &purpose)?;
        // A certificate that is due is renewed later: the component must work while the server is unreachable.
        if !is_valid(&self.directory, &purpose) {
            certificates::ensure(&self.client(), &self.node, &self.directory, &purpose).await?;
        }
        let connection = self.connection.clone().named(agent);
        let mut component = Self::known(connection, &self.node, &self.directory, purpose, Some(self.client()))?;
        // All identities use the same server, so that its loss is logged once.
        component.reachability = Arc::clone(&self.reachability);
        component.authority_file.clone_from(&self.authority_file);
        Ok(component)
    }

    fn known(
        connection: ServerConnection,
        node: &str,
        directory: &Path,
        purpose: Purpose,
        requester: Option<Client>,
    ) -> anyhow::Result<Self> {
        let current = Arc::new(ArcSwap::from_pointee(connection.client(directory, &purpose)?));
        let (node, directory) = (node.to_owned(), directory.to_owned());
        let (authority_file, reachability) = (None, Arc::default());
        Ok(Identity { connection, node, directory, purpose, authority_file, requester, current, reachability })
    }

    /// A kubeconfig for other programs that act as the node. It references the certificate files, so that it stays valid
    /// after a renewal.
    pub fn kubeconfig(&self) -> serde_json::Value {
        use base64::Engine;
        let files = certificates::files(&self.directory, &Purpose::Client);
        let authorities = self.connection.0.root_cert.iter().flatten().map(|der| pem(der)).collect::<String>();
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "default", "cluster": {
                "server": self.connection.0.cluster_url.to_string(),
                "certificate-authority-data": base64::engine::general_purpose::STANDARD.encode(authorities),
            } }],
            "users": [{ "name": "default", "user": {
                "client-certificate": files.certificate,
                "client-key": files.key,
            } }],
            "contexts": [{ "name": "default", "context": { "cluster": "default", "user": "default" } }],
            "current-context": "default",
        })
    }

    /// A client for one command, with the certificate of the node on a data directory.
    pub fn client_of(server: &http::Uri, data: &Path) -> anyhow::Result<Client> {
        let file = data.join("pki/ca.crt");
        let text =
            std::fs::read(&file).with_context(|| format!("cannot read {}: has this node joined?", file.display()))?;
        let parsed: Result<Vec<_>, _> = x509_parser::pem::Pem::iter_from_buffer(&text).collect();
        let parsed = parsed.with_context(|| format!("{} is not a certificate", file.display()))?;
        let authorities: Vec<Vec<u8>> = parsed.into_iter().map(|pem| pem.contents).collect();
        ServerConnection::new(server, &authorities).client(&data.join("kubelet/pki"), &Purpose::Client)
    }

    /// A client that always uses the current certificate.
    pub fn client(&self) -> Client {
        let (current, reachability) = (Arc::clone(&self.current), Arc::clone(&self.reachability));
        let send = service_fn(move |request: http::Request<Body>| {
            let (client, reachability) = (current.load_full(), reachability.clone());
            async move {
                let epoch = reachability.start_request();
                let response = client.as_ref().clone().send(request).await;
                reachability
                    .finish_request(epoch, response.as_ref().err().map(|error| error as &dyn std::error::Error));
                response
            }
        });
        let server = self.connection.0.cluster_url.authority().map(http::uri::Authority::as_str);
        knarr_client::measured_client(send, server.unwrap_or_default())
    }

    /// Renews the certificate until dropped.
    pub async fn keep(self) {
        let client = self.requester.clone().unwrap_or_else(|| self.client());
        let (connection, directory, purpose, current) =
            (self.connection, self.directory.clone(), self.purpose.clone(), self.current);
        let renewed = move |result: Result<&knarr_kubelet::CertificateFiles, ()>| match result
            .map(|_| connection.client(&directory, &purpose))
        {
            Ok(Ok(client)) => current.store(Arc::new(client)),
            Ok(Err(error)) => tracing::error!(error = format!("{error:#}"), "cannot use the renewed certificate"),
            Err(()) => {}
        };
        certificates::keep(client, self.node, self.directory, self.purpose, self.authority_file, renewed).await;
    }
}

/// Whether the directory contains a valid certificate and its key.
fn is_valid(directory: &Path, purpose: &Purpose) -> bool {
    let files = certificates::files(directory, purpose);
    let Ok(text) = std::fs::read(&files.certificate) else { return false };
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(&text) else { return false };
    files.key.exists() && pem.parse_x509().is_ok_and(|certificate| certificate.validity().is_valid())
}

fn explain(error: certificates::CertificateError, token: &str) -> anyhow::Error {
    let status = match &error {
        certificates::CertificateError::Api(inner) => match inner.as_ref() {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        },
        _ => None,
    };
    let error = anyhow::Error::new(error);
    match status {
        Some(401) => error.context(format!(
            "the server rejected the token {token}: it has expired or was deleted; \
             create a new one with `knarr token create --print-join-command` on the server"
        )),
        _ => error.context("cannot obtain the node's certificate"),
    }
}
