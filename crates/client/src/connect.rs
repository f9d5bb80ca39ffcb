//! Makes a client from a kubeconfig file, or from the surroundings when none is named.
//!
//! Requests share one HTTP/2 connection, so that hundreds in flight cost no handshakes. Watches have a connection each: they
//! last, and a server lets only so many streams through one connection.

use std::path::Path;
use std::sync::{Arc, OnceLock};
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

use crate::reach::Reach;

/// How long a connection may be silent before it is asked whether it still stands.
const SILENCE: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot read the kubeconfig")]
    Kubeconfig(#[source] kube::config::KubeconfigError),
    #[error("no kubeconfig was given and none could be inferred")]
    Infer(#[source] kube::config::InferConfigError),
    #[error("cannot make a client from the configuration")]
    Client(#[source] kube::Error),
    #[error("the server's name {0:?} is no name that TLS can check")]
    ServerName(String),
}

/// Connects as the kubeconfig says; without one, as `KUBECONFIG`, `~/.kube/config` or the pod's service account say.
///
/// Writes are recorded under the `agent`'s name. No read timeout is set: a watch may be silent for minutes and ends by the
/// server's own timeout.
pub async fn connect(kubeconfig: Option<&Path>, agent: &'static str) -> Result<Client, ConnectError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(ConnectError::Kubeconfig)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(ConnectError::Kubeconfig)?
        }
        None => Config::infer().await.map_err(ConnectError::Infer)?,
    };
    config.read_timeout = None;
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
    client_of(config)
}

fn client_of(config: Config) -> Result<Client, ConnectError> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Should another have installed one in between, that one does.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
    if config.proxy_url.is_some() {
        return Client::try_from(config).map_err(ConnectError::Client);
    }
    let connections = Connections {
        requests: legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(SILENCE)
            .http2_keep_alive_timeout(ANSWER)
            // A burst after a pause would open a connection for each request until one is known to be shared.
            .http2_keep_alive_while_idle(true)
            .pool_idle_timeout(None)
            .build(connector(&config, true)?),
        watches: legacy::Client::builder(TokioExecutor::new()).build(connector(&config, false)?),
        reach: Arc::default(),
    };
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer().map_err(ConnectError::Client)?)
        .layer(config.extra_headers_layer().map_err(ConnectError::Client)?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(Client::new(service, config.default_namespace))
}

fn connector(config: &Config, shares: bool) -> Result<HttpsConnector<HttpConnector>, ConnectError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    tcp.set_keepalive(Some(SILENCE));
    let tls = config.rustls_client_config().map_err(ConnectError::Client)?;
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let resolved = name.clone().try_into().map_err(|_| ConnectError::ServerName(name.clone()))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(resolved));
    }
    Ok(match shares {
        true => builder.enable_all_versions().wrap_connector(tcp),
        false => builder.enable_http1().wrap_connector(tcp),
    })
}

/// Put into a request's extensions, it learns the host and port that the request went to.
#[derive(Clone, Debug, Default)]
pub struct Server(Arc<OnceLock<String>>);

impl Server {
    /// Nothing before the first request, and of a server that is reached without a connection.
    pub fn name(&self) -> &str {
        self.0.get().map_or("", String::as_str)
    }

    fn learn(request: &Request<Body>) {
        if let Some((server, authority)) = request.extensions().get::<Self>().zip(request.uri().authority()) {
            server.0.get_or_init(|| authority.to_string());
        }
    }
}

type Connection = legacy::Client<HttpsConnector<HttpConnector>, Body>;

#[derive(Clone)]
struct Connections {
    requests: Connection,
    watches: Connection,
    reach: Arc<Reach>,
}

impl Service<Request<Body>> for Connections {
    type Response = Response<hyper::body::Incoming>;
    type Error = legacy::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Server::learn(&request);
        let connection = if lasts(request.uri().query()) { &self.watches } else { &self.requests };
        let (asked, answer, reach) = (self.reach.ask(), connection.request(request), self.reach.clone());
        Box::pin(async move {
            let answer = answer.await;
            reach.learn(asked, answer.as_ref().err().map(|error| error as &dyn std::error::Error));
            answer
        })
    }
}

/// Whether the request is answered for as long as the client listens.
fn lasts(query: Option<&str>) -> bool {
    let parameters = query.unwrap_or_default().split('&');
    parameters.into_iter().any(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        matches!(name, "watch" | "follow") && !matches!(value, "false" | "0")
    })
}

#[cfg(test)]
mod tests {
    use super::lasts;

    #[test]
    fn watches_go_their_own_way() {
        for (query, expected) in [
            (None, false),
            (Some("limit=500"), false),
            (Some("&watch=true&timeoutSeconds=290"), true),
            (Some("timeoutSeconds=290&watch"), true),
            (Some("watch=false"), false),
            (Some("follow=true"), true),
            (Some("labelSelector=watch%3Dtrue"), false),
        ] {
            assert_eq!(lasts(query), expected, "{query:?}");
        }
    }
}
