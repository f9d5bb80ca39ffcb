//! Kubeconfig files that say how a webhook is called, and the client that calls it.

mod exec;
mod file;
mod user;
mod users;

pub use file::{Kubeconfig, KubeconfigError};
pub use user::{Presented, User};
pub use users::WebhookUsers;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Uri};
use knarr_api::value::Read;
use parking_lot::Mutex;
use serde_json::Value;

use super::egress::Network;
use super::http_client::{Call, CallFailed, HttpClient, Redirects};
use super::tls::{Identity, Trust, client_config};

/// A webhook of a kubeconfig file.
pub struct ConfiguredWebhook {
    url: Uri,
    user: User,
    timeout: Duration,
    trust: Trust,
    server_name: Option<String>,
    /// The client, and the certificate it shows. Another certificate needs other connections.
    client: Mutex<(Option<Arc<Identity>>, Arc<HttpClient>)>,
}

/// Why a webhook gave no usable response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebhookFailure {
    #[error("{0}")]
    NoResponse(#[from] CallFailed),
    #[error("{text}")]
    Status { code: u16, text: String },
    #[error("{0}")]
    Malformed(String),
}

impl WebhookFailure {
    /// Whether another attempt may succeed.
    pub fn is_temporary(&self) -> bool {
        match self {
            WebhookFailure::NoResponse(failed) => failed.why == "EOF" || failed.why.contains("reset by peer"),
            WebhookFailure::Status { code, .. } => matches!(code, 429 | 500 | 504),
            WebhookFailure::Malformed(_) => false,
        }
    }
}

/// The largest response of a configured webhook.
const MAX_RESPONSE: usize = 3 * 1024 * 1024;

impl ConfiguredWebhook {
    /// Reads the cluster and user of the current context.
    pub fn read(path: &Path, timeout: Duration) -> Result<ConfiguredWebhook, KubeconfigError> {
        let file = Kubeconfig::read(path)?;
        let cluster = file.cluster();
        let server = cluster.text(&["server"]);
        if server.is_empty() {
            return Err(KubeconfigError::NoCluster(path.to_owned()));
        }
        let url: Uri = server.parse().map_err(|_| KubeconfigError::Server(path.to_owned(), server.to_owned()))?;
        if url.authority().is_none() {
            return Err(KubeconfigError::Server(path.to_owned(), server.to_owned()));
        }
        if cluster.has(&["proxy-url"]) {
            return Err(KubeconfigError::Unsupported(path.to_owned(), "proxy-url"));
        }
        let trust = if cluster.flag(&["insecure-skip-tls-verify"]) == Some(true) {
            Trust::Anyone
        } else {
            Trust::Authorities(file.data(cluster, "certificate-authority", "certificate-authority-data")?)
        };
        let (name, user) = file.user();
        let user = User::read(&file, name, user)?;
        let server_name = Some(cluster.text(&["tls-server-name"])).filter(|name| !name.is_empty()).map(str::to_owned);
        let client =
            client(&trust, server_name.clone(), None).map_err(|error| KubeconfigError::File(path.to_owned(), error))?;
        Ok(ConfiguredWebhook { url, user, timeout, trust, server_name, client: Mutex::new((None, client)) })
    }

    /// Sends a JSON object and returns the JSON of a successful response.
    pub async fn review(&self, body: &Value) -> Result<Value, WebhookFailure> {
        let body = self.post(Bytes::from(body.to_string())).await?;
        serde_json::from_slice(&body).map_err(|error| WebhookFailure::Malformed(error.to_string()))
    }

    /// Sends JSON and returns the body of a successful response.
    pub async fn post(&self, body: Bytes) -> Result<Bytes, WebhookFailure> {
        let presented = self.user.present().await.map_err(WebhookFailure::Malformed)?;
        let mut headers = vec![
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (ACCEPT, HeaderValue::from_static("application/json, */*")),
            (USER_AGENT, HeaderValue::from_static("kube-apiserver")),
        ];
        headers.extend(presented.headers.iter().cloned());
        let call = Call {
            method: Method::POST,
            url: self.url.clone(),
            headers,
            body,
            timeout: self.timeout,
            max_response: MAX_RESPONSE,
        };
        let reply = self.client_showing(presented.identity.as_ref())?.send(call).await?;
        if reply.status.is_success() {
            return Ok(reply.body);
        }
        if reply.status == http::StatusCode::UNAUTHORIZED {
            self.user.refused(&presented).await;
        }
        let text = super::describe_failure(reply.status, &reply.body);
        Err(WebhookFailure::Status { code: reply.status.as_u16(), text })
    }

    /// The client that shows this certificate.
    fn client_showing(&self, identity: Option<&Arc<Identity>>) -> Result<Arc<HttpClient>, WebhookFailure> {
        let mut current = self.client.lock();
        if current.0.as_ref() != identity {
            let fresh = client(&self.trust, self.server_name.clone(), identity.map(Arc::as_ref));
            *current = (identity.cloned(), fresh.map_err(WebhookFailure::Malformed)?);
        }
        Ok(current.1.clone())
    }
}

fn client(trust: &Trust, server_name: Option<String>, identity: Option<&Identity>) -> Result<Arc<HttpClient>, String> {
    let tls = client_config(trust, identity).map_err(|error| error.to_string())?;
    Ok(Arc::new(HttpClient::new(tls, server_name, Redirects::Refuse).into_network(Network::ControlPlane)))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use http::header::AUTHORIZATION;

    use super::super::test_server::TestServer;
    use super::*;

    /// A kubeconfig that names a test server.
    pub fn kubeconfig(directory: &Path, server: &TestServer, path: &str, user: &str) -> PathBuf {
        let file = directory.join(format!("webhook-{}.yaml", server.port));
        let authority = STANDARD.encode(&server.certificate);
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: s, user: u}}}}]\n\
             clusters: [{{name: s, cluster: {{server: 'https://localhost:{}{path}', certificate-authority-data: \
             {authority}}}}}]\nusers: [{{name: u, user: {user}}}]\n",
            server.port
        );
        std::fs::write(&file, text).unwrap();
        file
    }

    const PLUGIN: &str = "{exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: /bin/echo, args: ['{\"kind\": \
                          \"ExecCredential\", \"apiVersion\": \"client.authentication.k8s.io/v1beta1\", \"status\": \
                          {\"token\": \"of-plugin\"}}']}}";

    #[tokio::test]
    async fn webhooks_are_called_with_the_users_credentials() {
        let directory = tempfile::tempdir().unwrap();
        let server = TestServer::start(|path, body| serde_json::json!({"path": path, "body": body})).await;
        std::fs::write(directory.path().join("token"), "from-file\n").unwrap();
        for (user, expected) in [
            ("{}", None),
            ("{token: abc}", Some("Bearer abc")),
            ("{tokenFile: token}", Some("Bearer from-file")),
            ("{username: u, password: p}", Some("Basic dTpw")),
            (PLUGIN, Some("Bearer of-plugin")),
            // Other credentials take precedence.
            (
                "{token: abc, exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: none}}",
                Some("Bearer abc"),
            ),
            ("{as: other, as-groups: [a]}", None),
        ] {
            let file = kubeconfig(directory.path(), &server, "/review", user);
            let webhook = ConfiguredWebhook::read(&file, Duration::from_secs(5)).unwrap();
            let response = webhook.review(&serde_json::json!({"a": 1})).await.unwrap();
            assert_eq!(response, serde_json::json!({"path": "/review", "body": {"a": 1}}));
            let received = server.received().remove(0);
            let sent = received.headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
            assert_eq!(sent.as_deref(), expected, "{user}");
            let acts_as = received.headers.get("impersonate-user").map(|value| value.to_str().unwrap());
            assert_eq!(acts_as, user.contains("as: other").then_some("other"));
        }
    }

    #[test]
    fn files_that_name_no_server_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k");
        for (text, wrong) in [
            ("", "no current-context"),
            ("current-context: c", "no current-context"),
            (
                "current-context: c\ncontexts: [{name: c, context: {cluster: s, user: u}}]\n\
              clusters: [{name: s, cluster: {server: not a url}}]",
                "is no server URL",
            ),
            (
                "current-context: c\ncontexts: [{name: c, context: {cluster: s, user: u}}]\n\
              clusters: [{name: s, cluster: {server: 'https://a'}}]\nusers: [{name: u, user: {exec: {}}}]",
                "command must be specified for u to use exec authentication plugin",
            ),
            (
                "current-context: c\ncontexts: [{name: c, context: {cluster: s, user: u}}]\n\
              clusters: [{name: s, cluster: {server: 'https://a'}}]\nusers: [{name: u, user: {auth-provider: {}}}]",
                "auth-provider is not supported",
            ),
            (
                "current-context: c\ncontexts: [{name: c, context: {cluster: s, user: u}}]\n\
              clusters: [{name: s, cluster: {server: 'https://a'}}]\nusers: [{name: u, user: {token: t, username: ann}}]",
                "username/password or bearer token may be set, but not both",
            ),
            (
                "current-context: c\ncontexts: [{name: c, context: {cluster: s, user: u}}]\n\
              clusters: [{name: s, cluster: {server: 'https://a', proxy-url: 'http://p'}}]",
                "proxy-url is not supported",
            ),
            (
                "current-context: c\ncontexts: [{name: c, context: {cluster: s, user: u}}]\n\
              clusters: [{name: s, cluster: {server: 'https://a', certificate-authority-data: '!'}}]",
                "invalid base64",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let refused = ConfiguredWebhook::read(&path, Duration::from_secs(1)).err().unwrap().to_string();
            assert!(refused.contains(wrong), "{text}: {refused}");
        }
        assert!(ConfiguredWebhook::read(&directory.path().join("none"), Duration::from_secs(1)).is_err());
    }
}
