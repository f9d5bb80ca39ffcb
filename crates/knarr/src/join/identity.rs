//! Who a node is to the API: first whoever holds the token, then itself, by a certificate that is renewed in time.

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

use super::{BootstrapToken, pem};

/// Where and by which authority the API server is reached; whoever asks is added.
#[derive(Clone)]
struct Way(Config);

/// A node, or its network components, with a certificate to be known by.
pub struct Identity {
    way: Way,
    node: String,
    folder: PathBuf,
    purpose: Purpose,
    /// Who asks for new certificates; without it the identity itself does.
    asks: Option<Client>,
    current: Arc<ArcSwap<Client>>,
    reachability: Arc<ServerReachability>,
}

impl Way {
    /// `authority` in DER.
    fn new(server: &http::Uri, authority: &[u8]) -> Self {
        let mut config = Config::new(server.clone());
        config.root_cert = Some(vec![authority.to_vec()]);
        Self::from(config)
    }

    /// The way of a configuration, whoever that one speaks for.
    fn from(mut config: Config) -> Self {
        config.auth_info = AuthInfo::default();
        // A watch may be silent for minutes and ends by the server's own timeout.
        config.read_timeout = None;
        Self(config).named("kubelet")
    }

    /// The same for a component of another name.
    fn named(mut self, agent: &'static str) -> Self {
        self.0.headers.retain(|(name, _)| *name != http::header::USER_AGENT);
        self.0.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
        self
    }

    /// A client that speaks with the token alone.
    fn with_token(&self, token: &BootstrapToken) -> anyhow::Result<Client> {
        let mut config = self.0.clone();
        config.auth_info.token = Some(token.bearer().into());
        Client::try_from(config).context("a client cannot be made from the token")
    }

    fn client(&self, folder: &Path, purpose: &Purpose) -> anyhow::Result<Client> {
        let files = certificates::files(folder, purpose);
        let mut config = self.0.clone();
        config.auth_info = AuthInfo {
            client_certificate: Some(files.certificate.to_string_lossy().into_owned()),
            client_key: Some(files.key.to_string_lossy().into_owned()),
            ..AuthInfo::default()
        };
        Client::try_from(config)
            .with_context(|| format!("the certificate {} cannot be used", files.certificate.display()))
    }
}

impl Identity {
    /// Takes the certificate in the folder if it is still good, else asks for one with the token.
    pub async fn obtain(
        server: &http::Uri,
        authority: &[u8],
        token: &BootstrapToken,
        node: &str,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let way = Way::new(server, authority);
        certificates::settle(folder, &Purpose::Client)?;
        // A certificate that is due is renewed with itself: the token may have expired long ago.
        if !is_good(folder, &Purpose::Client) {
            let client = way.with_token(token)?;
            let made = certificates::ensure(&client, node, folder, &Purpose::Client).await;
            made.map_err(|error| explain(error, &token.id))?;
        }
        Self::known(way, node, folder, Purpose::Client, None)
    }

    /// Takes the certificate in the folder if it is still good, else asks for one as whoever the kubeconfig names.
    pub async fn bootstrap(kubeconfig: &Path, node: &str, folder: &Path) -> anyhow::Result<Self> {
        let unusable = || format!("{} cannot be used", kubeconfig.display());
        let file = Kubeconfig::read_from(kubeconfig).with_context(unusable)?;
        let config =
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.with_context(unusable)?;
        let way = Way::from(config.clone());
        certificates::settle(folder, &Purpose::Client)?;
        if !is_good(folder, &Purpose::Client) {
            let client = Client::try_from(config).with_context(unusable)?;
            certificates::ensure(&client, node, folder, &Purpose::Client)
                .await
                .context("the node got no certificate")?;
        }
        Self::known(way, node, folder, Purpose::Client, None)
    }

    /// The identity of the node's network components, for which the node asks.
    pub async fn network(&self) -> anyhow::Result<Self> {
        certificates::settle(&self.folder, &Purpose::Network)?;
        // A certificate that is due is renewed later: the network must work while the server is away.
        if !is_good(&self.folder, &Purpose::Network) {
            certificates::ensure(&self.client(), &self.node, &self.folder, &Purpose::Network)
                .await
                .context("the node's network got no certificate")?;
        }
        let way = self.way.clone().named("knarr-network");
        Self::known(way, &self.node, &self.folder, Purpose::Network, Some(self.client()))
    }

    fn known(way: Way, node: &str, folder: &Path, purpose: Purpose, asks: Option<Client>) -> anyhow::Result<Self> {
        let current = Arc::new(ArcSwap::from_pointee(way.client(folder, &purpose)?));
        let (node, folder) = (node.to_owned(), folder.to_owned());
        Ok(Identity { way, node, folder, purpose, asks, current, reachability: Arc::default() })
    }

    /// A kubeconfig by which other programs on the node speak for it. It names the files of the certificate, so that it
    /// stays good when that is renewed.
    pub fn kubeconfig(&self) -> serde_json::Value {
        use base64::Engine;
        let files = certificates::files(&self.folder, &Purpose::Client);
        let authorities = self.way.0.root_cert.iter().flatten().map(|der| pem(der)).collect::<String>();
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "default", "cluster": {
                "server": self.way.0.cluster_url.to_string(),
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

    /// A client for one command, with the certificate that the node on a data directory has.
    pub fn client_of(server: &http::Uri, data: &Path) -> anyhow::Result<Client> {
        let file = data.join("pki/ca.crt");
        let text = std::fs::read(&file).with_context(|| format!("cannot read {}: has it joined?", file.display()))?;
        let (_, pem) =
            x509_parser::pem::parse_x509_pem(&text).with_context(|| format!("{} is no certificate", file.display()))?;
        Way::new(server, &pem.contents).client(&data.join("kubelet/pki"), &Purpose::Client)
    }

    /// A client that always shows the newest certificate.
    pub fn client(&self) -> Client {
        let (current, reachability) = (Arc::clone(&self.current), Arc::clone(&self.reachability));
        let send = service_fn(move |request: http::Request<Body>| {
            let (client, reachability) = (current.load_full(), reachability.clone());
            async move {
                let epoch = reachability.start_request();
                let answer = client.as_ref().clone().send(request).await;
                reachability.finish_request(epoch, answer.as_ref().err().map(|error| error as &dyn std::error::Error));
                answer
            }
        });
        Client::new(send, "default")
    }

    /// Renews the certificate for as long as the node lives.
    pub async fn keep(self) {
        let client = self.asks.clone().unwrap_or_else(|| self.client());
        let (way, folder, purpose, current) = (self.way, self.folder.clone(), self.purpose.clone(), self.current);
        let renewed = move |result: Result<&knarr_kubelet::CertificateFiles, ()>| match result
            .map(|_| way.client(&folder, &purpose))
        {
            Ok(Ok(client)) => current.store(Arc::new(client)),
            Ok(Err(error)) => tracing::error!(error = format!("{error:#}"), "the renewed certificate cannot be used"),
            Err(()) => {}
        };
        certificates::keep(client, self.node, self.folder, self.purpose, renewed).await;
    }
}

/// Whether the folder holds a certificate, and its key, that has not expired.
fn is_good(folder: &Path, purpose: &Purpose) -> bool {
    let files = certificates::files(folder, purpose);
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
            "the server does not know the token {token}: it has expired or was deleted; \
             `knarr token create --print-join-command` on the server makes a new one"
        )),
        _ => error.context("the node got no certificate"),
    }
}
