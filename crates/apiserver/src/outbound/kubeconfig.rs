//! Kubeconfig files that say how a webhook is called, and the client that calls it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderName, HeaderValue, Method, Uri};
use knarr_api::decode;
use knarr_api::value::Read;
use serde_json::Value;

use super::http_client::{Call, CallFailed, HttpClient, Redirects};
use super::tls::{Identity, Trust, client_config};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KubeconfigError {
    #[error("{0}: {1}")]
    File(PathBuf, String),
    #[error("{0}: no current-context, or it names no cluster")]
    NoCluster(PathBuf),
    #[error("{0}: {1:?} is no server URL")]
    Server(PathBuf, String),
    #[error("{0}: {1} is not supported here")]
    Unsupported(PathBuf, &'static str),
    #[error("{0}: invalid base64 in {1}")]
    Encoding(PathBuf, &'static str),
}

/// A webhook of a kubeconfig file.
pub struct ConfiguredWebhook {
    client: HttpClient,
    url: Uri,
    authorization: Credentials,
    timeout: Duration,
}

enum Credentials {
    None,
    Header(HeaderValue),
    /// Read for each request, since such tokens are replaced.
    File(PathBuf),
}

/// Why a webhook gave no usable answer.
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
        let unreadable = |error: String| KubeconfigError::File(path.to_owned(), error);
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        let document = decode::untyped_yaml(text.as_bytes()).map_err(|error| unreadable(error.to_string()))?.value;
        let named = |list: &str, name: &str, field: &str| {
            let entry = document.items(&[list]).iter().find(|entry| entry.text(&["name"]) == name);
            entry.map(|entry| entry.at(&[field]).clone()).unwrap_or_default()
        };
        let context = named("contexts", document.text(&["current-context"]), "context");
        let cluster = named("clusters", context.text(&["cluster"]), "cluster");
        let user = named("users", context.text(&["user"]), "user");
        let server = cluster.text(&["server"]);
        if server.is_empty() {
            return Err(KubeconfigError::NoCluster(path.to_owned()));
        }
        let url: Uri = server.parse().map_err(|_| KubeconfigError::Server(path.to_owned(), server.to_owned()))?;
        if url.authority().is_none() {
            return Err(KubeconfigError::Server(path.to_owned(), server.to_owned()));
        }
        let file = File { path };
        let trust = if cluster.flag(&["insecure-skip-tls-verify"]) == Some(true) {
            Trust::Anyone
        } else {
            Trust::Authorities(file.data(&cluster, "certificate-authority", "certificate-authority-data")?)
        };
        for (field, name) in [("exec", "exec"), ("auth-provider", "auth-provider")] {
            if user.has(&[field]) {
                return Err(KubeconfigError::Unsupported(path.to_owned(), name));
            }
        }
        let certificate = file.data(&user, "client-certificate", "client-certificate-data")?;
        let key = file.data(&user, "client-key", "client-key-data")?;
        let identity = (!certificate.is_empty() && !key.is_empty()).then_some(Identity { certificate, key });
        let tls = client_config(&trust, identity.as_ref()).map_err(|error| unreadable(error.to_string()))?;
        let server_name = Some(cluster.text(&["tls-server-name"])).filter(|name| !name.is_empty()).map(str::to_owned);
        let authorization = file.credentials(&user)?;
        Ok(ConfiguredWebhook {
            client: HttpClient::new(tls, server_name, Redirects::Refuse),
            url,
            authorization,
            timeout,
        })
    }

    /// Sends a JSON object and returns the JSON of a successful response.
    pub async fn review(&self, body: &Value) -> Result<Value, WebhookFailure> {
        let body = self.post(Bytes::from(body.to_string())).await?;
        serde_json::from_slice(&body).map_err(|error| WebhookFailure::Malformed(error.to_string()))
    }

    /// Sends JSON and returns the body of a successful response.
    pub async fn post(&self, body: Bytes) -> Result<Bytes, WebhookFailure> {
        let call = Call {
            method: Method::POST,
            url: self.url.clone(),
            headers: self.headers()?,
            body,
            timeout: self.timeout,
            max_response: MAX_RESPONSE,
        };
        let reply = self.client.send(call).await?;
        if reply.status.is_success() {
            return Ok(reply.body);
        }
        let text = super::describe_failure(reply.status, &reply.body);
        Err(WebhookFailure::Status { code: reply.status.as_u16(), text })
    }

    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, WebhookFailure> {
        let mut headers = vec![
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (ACCEPT, HeaderValue::from_static("application/json, */*")),
            (USER_AGENT, HeaderValue::from_static("kube-apiserver")),
        ];
        match &self.authorization {
            Credentials::None => {}
            Credentials::Header(value) => headers.push((AUTHORIZATION, value.clone())),
            Credentials::File(path) => {
                let token = std::fs::read_to_string(path)
                    .map_err(|error| WebhookFailure::Malformed(format!("cannot read the token file: {error}")))?;
                let value = secret(format!("Bearer {}", token.trim()))
                    .ok_or_else(|| WebhookFailure::Malformed("the token file holds no token".to_owned()))?;
                headers.push((AUTHORIZATION, value));
            }
        }
        Ok(headers)
    }
}

fn secret(text: String) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

struct File<'a> {
    path: &'a Path,
}

impl File<'_> {
    /// PEM given in place, or in a file whose path is relative to the kubeconfig.
    fn data(&self, of: &Value, file: &'static str, inline: &'static str) -> Result<String, KubeconfigError> {
        let given = of.text(&[inline]);
        if !given.is_empty() {
            let bytes = STANDARD.decode(given).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            return bytes.ok_or_else(|| KubeconfigError::Encoding(self.path.to_owned(), inline));
        }
        match of.text(&[file]) {
            "" => Ok(String::new()),
            named => {
                let named = self.beside(named);
                std::fs::read_to_string(&named).map_err(|error| KubeconfigError::File(named, error.to_string()))
            }
        }
    }

    fn beside(&self, named: &str) -> PathBuf {
        match self.path.parent() {
            Some(directory) => directory.join(named),
            None => PathBuf::from(named),
        }
    }

    fn credentials(&self, user: &Value) -> Result<Credentials, KubeconfigError> {
        let wrong = |field: &'static str| KubeconfigError::Encoding(self.path.to_owned(), field);
        let header = |text: String, field| secret(text).map(Credentials::Header).ok_or_else(|| wrong(field));
        match (user.text(&["tokenFile"]), user.text(&["token"]), user.text(&["username"])) {
            ("", "", "") => Ok(Credentials::None),
            ("", "", name) => {
                let plain = format!("{name}:{}", user.text(&["password"]));
                header(format!("Basic {}", STANDARD.encode(plain)), "username")
            }
            ("", token, _) => header(format!("Bearer {token}"), "token"),
            (file, _, _) => Ok(Credentials::File(self.beside(file))),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
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
        ] {
            let file = kubeconfig(directory.path(), &server, "/review", user);
            let webhook = ConfiguredWebhook::read(&file, Duration::from_secs(5)).unwrap();
            let response = webhook.review(&serde_json::json!({"a": 1})).await.unwrap();
            assert_eq!(response, serde_json::json!({"path": "/review", "body": {"a": 1}}));
            let received = server.received().remove(0);
            let sent = received.headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
            assert_eq!(sent.as_deref(), expected, "{user}");
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
                "exec is not supported",
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
