//! Clients that act as service accounts of kube-system, each with its own short-lived token. All share the connections to the
//! server, which carry no client certificate.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{Request, Response, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::client::{Body, ConfigExt, retry::RetryPolicy};
use kube::config::AuthInfo;
use kube::{Api, Client, Config};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder};

use crate::connect::{ConnectError, Connections, connections};

const NAMESPACE: &str = "kube-system";
/// The lifetime of requested tokens; servers may grant another.
const LIFETIME: Duration = Duration::from_secs(3600);

/// Why a service account has no token.
#[derive(Debug, thiserror::Error)]
enum TokenError {
    #[error("cannot get a token of the service account {account}")]
    Request {
        account: &'static str,
        #[source]
        source: kube::Error,
    },
    #[error("the server's response for the service account {0} has no usable token")]
    Missing(&'static str),
}

/// Makes clients of service accounts.
pub struct AccountClients {
    config: Config,
    connections: Connections,
    /// Creates accounts and requests their tokens.
    root: Client,
}

impl AccountClients {
    /// Connects to the server of a configuration without its credentials, which only `root` has.
    pub fn new(mut config: Config, root: Client) -> Result<Self, ConnectError> {
        config.auth_info = AuthInfo::default();
        Ok(Self { connections: connections(&config)?, config, root })
    }

    /// A client that acts as an account. Its token is requested before the first request; an account that does not exist is
    /// created.
    pub fn client(&self, account: &'static str) -> Result<Client, ConnectError> {
        let authenticated = Authenticated {
            tokens: Arc::new(Tokens { account, root: self.root.clone(), current: Mutex::default() }),
            connections: self.connections.clone(),
        };
        let service = ServiceBuilder::new()
            .layer(self.config.base_uri_layer())
            .option_layer(self.config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
            .layer(self.config.extra_headers_layer().map_err(ConnectError::Client)?)
            .service(authenticated);
        Ok(Client::new(service, self.config.default_namespace.clone()))
    }
}

/// The token of an account.
struct Tokens {
    account: &'static str,
    root: Client,
    /// With the time to replace it.
    current: Mutex<Option<(HeaderValue, Instant)>>,
}

impl Tokens {
    /// The header of the current token, or of a new one.
    async fn header(&self) -> Result<HeaderValue, TokenError> {
        let mut current = self.current.lock().await;
        if let Some((header, until)) = &*current
            && Instant::now() < *until
        {
            return Ok(header.clone());
        }
        let requested = Instant::now();
        let (token, lifetime) = self.request().await?;
        let mut header =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| TokenError::Missing(self.account))?;
        header.set_sensitive(true);
        // Replaced after four fifths of its lifetime, before it is refused.
        *current = Some((header.clone(), requested + lifetime * 4 / 5));
        Ok(header)
    }

    /// Forgets a token that the server refused.
    async fn discard(&self, refused: &HeaderValue) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|(header, _)| header == refused) {
            *current = None;
        }
    }

    async fn request(&self) -> Result<(String, Duration), TokenError> {
        let failed = |source| TokenError::Request { account: self.account, source };
        let api: Api<ServiceAccount> = Api::namespaced(self.root.clone(), NAMESPACE);
        let seconds = i64::try_from(LIFETIME.as_secs()).ok();
        let spec = TokenRequestSpec { expiration_seconds: seconds, ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let mut result = api.create_token_request(self.account, &PostParams::default(), &request).await;
        if result.as_ref().is_err_and(|error| has_code(error, 404)) {
            let mut account = ServiceAccount::default();
            account.metadata.name = Some(self.account.to_owned());
            // It exists when another controller manager was first.
            if let Err(error) = api.create(&PostParams::default(), &account).await
                && !has_code(&error, 409)
            {
                return Err(failed(error));
            }
            result = api.create_token_request(self.account, &PostParams::default(), &request).await;
        }
        let granted = result.map_err(failed)?;
        let granted_seconds = granted.spec.and_then(|spec| spec.expiration_seconds);
        let lifetime =
            granted_seconds.and_then(|seconds| u64::try_from(seconds).ok()).map_or(LIFETIME, Duration::from_secs);
        let token = granted.status.and_then(|status| status.token).filter(|token| !token.is_empty());
        Ok((token.ok_or(TokenError::Missing(self.account))?, lifetime))
    }
}

fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Adds the account's token to each request.
#[derive(Clone)]
struct Authenticated {
    tokens: Arc<Tokens>,
    connections: Connections,
}

impl Service<Request<Body>> for Authenticated {
    type Response = Response<hyper::body::Incoming>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let (tokens, mut connections) = (self.tokens.clone(), self.connections.clone());
        Box::pin(async move {
            let header = tokens.header().await?;
            request.headers_mut().insert(AUTHORIZATION, header.clone());
            let response = connections.call(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                tokens.discard(&header).await;
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex as Recorded;
    use serde_json::{Value, json};

    /// A server without the account until it is created, which numbers its tokens.
    fn server(seen: Arc<Recorded<Vec<String>>>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let seen = seen.clone();
            async move {
                let path = request.uri().path().to_owned();
                let mut seen = seen.lock();
                let exists = seen.iter().any(|path| path.ends_with("/serviceaccounts"));
                let issued = seen.iter().filter(|path| path.ends_with("/token")).count();
                let (code, body): (u16, Value) = match (path.ends_with("/token"), exists) {
                    (true, false) => (
                        404,
                        json!({"kind": "Status", "status": "Failure", "message": "", "reason": "NotFound", "code": 404}),
                    ),
                    (true, true) => (
                        201,
                        json!({"spec": {"audiences": [], "expirationSeconds": 1000},
                        "status": {"token": format!("token-{issued}"), "expirationTimestamp": "2026-01-01T00:00:00Z"}}),
                    ),
                    (false, _) => (201, json!({"metadata": {"name": "job-controller"}})),
                };
                seen.push(path);
                let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                response.map_err(BoxError::from)
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_requested_once_and_replaced_in_time() {
        let seen = Arc::new(Recorded::new(Vec::new()));
        let tokens = Tokens { account: "job-controller", root: server(seen.clone()), current: Mutex::default() };
        let first = tokens.header().await.unwrap();
        assert_eq!(first, "Bearer token-1");
        assert!(first.is_sensitive());
        let account = "/api/v1/namespaces/kube-system/serviceaccounts";
        let token = format!("{account}/job-controller/token");
        assert_eq!(*seen.lock(), [token.as_str(), account, token.as_str()]);
        tokio::time::advance(Duration::from_secs(799)).await;
        assert_eq!(tokens.header().await.unwrap(), first);
        tokio::time::advance(Duration::from_secs(2)).await;
        let second = tokens.header().await.unwrap();
        assert_eq!(second, "Bearer token-2");
        tokens.discard(&first).await;
        assert_eq!(tokens.header().await.unwrap(), second);
        tokens.discard(&second).await;
        assert_eq!(tokens.header().await.unwrap(), "Bearer token-3");
    }
}
