//! Creates a client from a kubeconfig file, or from the environment when none is given.
//!
//! Requests share one HTTP/2 connection, so that hundreds in flight need no extra handshakes. Each watch has its own
//! connection: it is long-lived, and a server limits the streams per connection.

use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt, retry::RetryPolicy};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder};

use crate::reachability::ServerReachability;
use crate::request_metrics::{self, Measured};

/// How long a connection may be idle before a keep-alive ping.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(15);

/// Why no client could be created.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig can't be read.
    #[error("cannot read the kubeconfig")]
    Kubeconfig(#[source] kube::config::KubeconfigError),
    /// There is no configuration in the environment.
    #[error("no kubeconfig was given and none could be inferred")]
    Infer(#[source] kube::config::InferConfigError),
    /// The configuration is invalid.
    #[error("cannot create a client from the configuration")]
    Client(#[source] kube::Error),
    /// The configured server name is not a valid TLS server name.
    #[error("the server name {0:?} is not valid for TLS")]
    ServerName(String),
    /// The URL in place of the configured one is no URL.
    #[error("{0:?} is no URL of an API server")]
    ServerUrl(String),
}

/// Connects with the given kubeconfig; without one, with `KUBECONFIG`, `~/.kube/config` or the pod's service account.
///
/// `agent` is the user agent, which names the field manager of writes. There is no read timeout: a watch may be silent for
/// minutes, and the server ends it.
pub async fn connect(kubeconfig: Option<&Path>, agent: &'static str) -> Result<Client, ConnectError> {
    client_of(read_config(kubeconfig, agent).await?)
}

/// The configuration of a client: see [`connect`].
pub async fn read_config(kubeconfig: Option<&Path>, agent: &'static str) -> Result<Config, ConnectError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(ConnectError::Kubeconfig)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(ConnectError::Kubeconfig)?
        }
        None => Config::infer().await.map_err(ConnectError::Infer)?,
    };
    set_agent(&mut config, agent);
    Ok(config)
}

/// Connects like [`connect`], but to the server at `url` if one is given: then without a kubeconfig there are no credentials.
pub async fn connect_at(
    url: Option<&str>,
    kubeconfig: Option<&Path>,
    agent: &'static str,
) -> Result<Client, ConnectError> {
    client_of(read_config_at(url, kubeconfig, agent).await?)
}

/// The configuration of a client: see [`connect_at`].
pub async fn read_config_at(
    url: Option<&str>,
    kubeconfig: Option<&Path>,
    agent: &'static str,
) -> Result<Config, ConnectError> {
    let Some(url) = url else { return read_config(kubeconfig, agent).await };
    let Some(path) = kubeconfig else {
        let mut config = Config::new(server_url(url, false)?);
        set_agent(&mut config, agent);
        return Ok(config);
    };
    let mut config = read_config(Some(path), agent).await?;
    let user = &config.auth_info;
    let has_certificate = user.client_certificate.is_some() || user.client_certificate_data.is_some();
    let has_tls = config.root_cert.is_some() || config.accept_invalid_certs || has_certificate;
    config.cluster_url = server_url(url, has_tls)?;
    Ok(config)
}

/// A server's URL. `host:port` without a scheme is reached with TLS if anything is configured for that.
fn server_url(given: &str, has_tls: bool) -> Result<http::Uri, ConnectError> {
    let scheme = if has_tls { "https" } else { "http" };
    let url = if given.contains("://") { given.to_owned() } else { format!("{scheme}://{given}") };
    let parsed = url.parse::<http::Uri>().ok().filter(|url| url.authority().is_some());
    parsed
        .filter(|url| matches!(url.scheme_str(), Some("http" | "https")))
        .ok_or(ConnectError::ServerUrl(given.to_owned()))
}

/// Connects with a configuration, like [`connect`].
pub fn connect_with(mut config: Config, agent: &'static str) -> Result<Client, ConnectError> {
    set_agent(&mut config, agent);
    client_of(config)
}

fn set_agent(config: &mut Config, agent: &'static str) {
    config.read_timeout = None;
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
}

fn client_of(config: Config) -> Result<Client, ConnectError> {
    if config.proxy_url.is_some() {
        install_crypto_provider();
        return Client::try_from(config).map_err(ConnectError::Client);
    }
    let connections = connections(&config)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer().map_err(ConnectError::Client)?)
        .layer(config.extra_headers_layer().map_err(ConnectError::Client)?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(Client::new(service, config.default_namespace))
}

fn install_crypto_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only when another thread has just installed one, which is as good.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
}

/// Connections to the configured server, as whoever its client certificate names.
pub(crate) fn connections(config: &Config) -> Result<Connections, ConnectError> {
    install_crypto_provider();
    knarr_metrics::register(request_metrics::FAMILIES);
    Ok(Connections {
        requests: legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .http2_keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            // A burst after a pause would open a connection for each request until one is known to be shared.
            .http2_keep_alive_while_idle(true)
            .pool_idle_timeout(None)
            .build(connector(config, true)?),
        watches: legacy::Client::builder(TokioExecutor::new()).build(connector(config, false)?),
        reachability: Arc::default(),
    })
}

fn connector(config: &Config, shared: bool) -> Result<HttpsConnector<HttpConnector>, ConnectError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    tcp.set_keepalive(Some(KEEP_ALIVE_INTERVAL));
    let tls = config.rustls_client_config().map_err(ConnectError::Client)?;
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let resolved = name.clone().try_into().map_err(|_| ConnectError::ServerName(name.clone()))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(resolved));
    }
    Ok(match shared {
        true => builder.enable_all_versions().wrap_connector(tcp),
        false => builder.enable_http1().wrap_connector(tcp),
    })
}

type Connection = legacy::Client<HttpsConnector<HttpConnector>, Body>;

#[derive(Clone)]
pub(crate) struct Connections {
    requests: Connection,
    watches: Connection,
    reachability: Arc<ServerReachability>,
}

impl Service<Request<Body>> for Connections {
    type Response = Response<hyper::body::Incoming>;
    type Error = legacy::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let connection = if is_watch(request.uri().query()) { &self.watches } else { &self.requests };
        let (connection, reachability) = (connection.clone(), self.reachability.clone());
        // By the caller's task: a panic in the one that calls this, which all requests share, would fail them for ever.
        Box::pin(async move {
            let measured = Measured::start(&request);
            let epoch = reachability.start_request();
            let response = connection.request(request).await;
            measured.finish(&response);
            reachability.finish_request(epoch, response.as_ref().err().map(|error| error as &dyn std::error::Error));
            response
        })
    }
}

/// Whether the response lasts until the client closes it: a watch, or a followed log.
fn is_watch(query: Option<&str>) -> bool {
    let parameters = query.unwrap_or_default().split('&');
    parameters.into_iter().any(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        matches!(name, "watch" | "follow") && !matches!(value, "false" | "0")
    })
}

#[cfg(test)]
mod tests {
    use super::{is_watch, server_url};

    #[test]
    fn servers_are_named_with_or_without_a_scheme() {
        for (given, has_tls, expected) in [
            ("https://a:6443", false, Some("https://a:6443/")),
            ("http://a:8080", true, Some("http://a:8080/")),
            ("a:8080", false, Some("http://a:8080/")),
            ("10.0.0.1:6443", true, Some("https://10.0.0.1:6443/")),
            ("https://[fd00::1]:6443/prefix", true, Some("https://[fd00::1]:6443/prefix")),
            ("", false, None),
            ("ftp://a", false, None),
            ("https://", true, None),
        ] {
            let found = server_url(given, has_tls).ok().map(|url| url.to_string());
            assert_eq!(found.as_deref(), expected, "{given}");
        }
    }

    #[test]
    fn watches_have_their_own_connections() {
        for (query, expected) in [
            (None, false),
            (Some("limit=500"), false),
            (Some("&watch=true&timeoutSeconds=290"), true),
            (Some("timeoutSeconds=290&watch"), true),
            (Some("watch=false"), false),
            (Some("follow=true"), true),
            (Some("labelSelector=watch%3Dtrue"), false),
        ] {
            assert_eq!(is_watch(query), expected, "{query:?}");
        }
    }
}
