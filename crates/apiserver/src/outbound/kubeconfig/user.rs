//! The user of a kubeconfig file: the credentials that are sent to the server.

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use jiff::Timestamp;
use knarr_api::value::Read;
use serde_json::{Value, json};

use super::exec::{ExecCredentials, ExecPlugin};
use super::file::{Kubeconfig, KubeconfigError};
use crate::outbound::Identity;

/// A user's credentials.
pub struct User {
    authorization: Authorization,
    certificate: Certificate,
    /// Asked if there are no other credentials.
    plugin: Option<ExecPlugin>,
    /// Headers that name another user to act as.
    impersonation: Vec<(HeaderName, HeaderValue)>,
}

impl std::fmt::Debug for User {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("User")
    }
}

enum Authorization {
    None,
    Header(HeaderValue),
    /// Read for each request, since such tokens are replaced.
    File(PathBuf),
}

enum Certificate {
    None,
    Given(Arc<Identity>),
    /// Read for each request, since certificates are renewed.
    Files {
        certificate: PathBuf,
        key: PathBuf,
    },
}

/// The credentials of one request. They have no `Debug`, so that no log can show them.
#[derive(Default)]
pub struct Presented {
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub identity: Option<Arc<Identity>>,
    credentials: Option<Arc<ExecCredentials>>,
}

impl User {
    /// Reads a user; plugins may learn of the cluster.
    pub fn read(file: &Kubeconfig, name: &str, user: &Value) -> Result<User, KubeconfigError> {
        if user.has(&["auth-provider"]) {
            return Err(KubeconfigError::Unsupported(file.path().to_owned(), "auth-provider"));
        }
        let wrong = |why: String| KubeconfigError::User(file.path().to_owned(), why);
        let authorization = Authorization::read(file, user)?;
        let certificate = Certificate::read(file, user)?;
        let has_other = !matches!((&authorization, &certificate), (Authorization::None, Certificate::None));
        let plugin = match user.at(&["exec"]) {
            Value::Null => None,
            exec => {
                let cluster = cluster_info(file)?;
                let plugin = ExecPlugin::read(exec, name, file.directory(), &cluster).map_err(wrong)?;
                (!has_other).then_some(plugin)
            }
        };
        let impersonation = impersonation(user).ok_or_else(|| wrong(format!("{name}: invalid user to impersonate")))?;
        Ok(User { authorization, certificate, plugin, impersonation })
    }

    /// The current credentials. The error names no secret.
    pub async fn present(&self) -> Result<Presented, String> {
        let mut presented = Presented { headers: self.impersonation.clone(), ..Presented::default() };
        match &self.authorization {
            Authorization::None => {}
            Authorization::Header(value) => presented.headers.push((AUTHORIZATION, value.clone())),
            Authorization::File(path) => {
                let token =
                    std::fs::read_to_string(path).map_err(|error| format!("cannot read the token file: {error}"))?;
                let value = bearer(token.trim()).ok_or("the token file holds no token")?;
                presented.headers.push((AUTHORIZATION, value));
            }
        }
        presented.identity = match &self.certificate {
            Certificate::None => None,
            Certificate::Given(identity) => Some(identity.clone()),
            Certificate::Files { certificate, key } => {
                let read = |path: &PathBuf| {
                    std::fs::read_to_string(path).map_err(|error| format!("open {}: {error}", path.display()))
                };
                Some(Arc::new(Identity { certificate: read(certificate)?, key: read(key)? }))
            }
        };
        if let Some(plugin) = &self.plugin {
            let credentials = plugin.credentials(Timestamp::now()).await?;
            if !credentials.token.is_empty() {
                let value = bearer(&credentials.token).ok_or("the plugin's token cannot be a header")?;
                presented.headers.push((AUTHORIZATION, value));
            }
            presented.identity = credentials.identity.clone();
            presented.credentials = Some(credentials);
        }
        Ok(presented)
    }

    /// The server did not accept the credentials: a plugin is called again for the next request.
    pub async fn refused(&self, presented: &Presented) {
        if let (Some(plugin), Some(used)) = (&self.plugin, &presented.credentials) {
            plugin.refused(used).await;
        }
    }
}

impl Authorization {
    fn read(file: &Kubeconfig, user: &Value) -> Result<Self, KubeconfigError> {
        let wrong = |field: &'static str| KubeconfigError::Encoding(file.path().to_owned(), field);
        let (token_file, token, name) = (user.text(&["tokenFile"]), user.text(&["token"]), user.text(&["username"]));
        let has_token = !token.is_empty() || !token_file.is_empty();
        if has_token && !name.is_empty() {
            let why = "username/password or bearer token may be set, but not both".to_owned();
            return Err(KubeconfigError::User(file.path().to_owned(), why));
        }
        match (token_file, token, name) {
            ("", "", "") => Ok(Authorization::None),
            ("", "", name) => {
                let plain = format!("{name}:{}", user.text(&["password"]));
                let value = secret(format!("Basic {}", STANDARD.encode(plain)));
                value.map(Authorization::Header).ok_or_else(|| wrong("username"))
            }
            ("", token, _) => bearer(token).map(Authorization::Header).ok_or_else(|| wrong("token")),
            (path, _, _) => Ok(Authorization::File(file.beside(path))),
        }
    }
}

impl Certificate {
    fn read(file: &Kubeconfig, user: &Value) -> Result<Self, KubeconfigError> {
        let certificate = file.data(user, "client-certificate", "client-certificate-data")?;
        let key = file.data(user, "client-key", "client-key-data")?;
        if certificate.is_empty() || key.is_empty() {
            return Ok(Certificate::None);
        }
        let identity = Identity { certificate, key };
        // An invalid pair is an error now, and not at the first request.
        super::super::tls::client_config(&super::super::tls::Trust::Anyone, Some(&identity))
            .map_err(|error| KubeconfigError::User(file.path().to_owned(), error.to_string()))?;
        let is_inline = user.has(&["client-certificate-data"]) || user.has(&["client-key-data"]);
        if is_inline {
            return Ok(Certificate::Given(Arc::new(identity)));
        }
        Ok(Certificate::Files {
            certificate: file.beside(user.text(&["client-certificate"])),
            key: file.beside(user.text(&["client-key"])),
        })
    }
}

/// What a plugin learns of the cluster, if it asks to.
fn cluster_info(file: &Kubeconfig) -> Result<Value, KubeconfigError> {
    let cluster = file.cluster();
    let mut info = json!({ "server": cluster.text(&["server"]) });
    for field in ["tls-server-name", "proxy-url", "insecure-skip-tls-verify", "disable-compression"] {
        if cluster.has(&[field]) {
            info[field] = cluster.at(&[field]).clone();
        }
    }
    let authority = file.data(cluster, "certificate-authority", "certificate-authority-data")?;
    if !authority.is_empty() {
        info["certificate-authority-data"] = STANDARD.encode(authority).into();
    }
    let extensions = cluster.items(&["extensions"]).iter();
    let own = extensions.clone().find(|entry| entry.text(&["name"]) == "client.authentication.k8s.io/exec");
    if let Some(own) = own {
        info["config"] = own.at(&["extension"]).clone();
    }
    Ok(info)
}

fn impersonation(user: &Value) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let mut headers = Vec::new();
    let name = user.text(&["as"]);
    if name.is_empty() {
        return Some(headers);
    }
    let value = |text: &str| HeaderValue::from_str(text).ok();
    headers.push((HeaderName::from_static("impersonate-user"), value(name)?));
    if let Some(uid) = user.at(&["as-uid"]).as_str() {
        headers.push((HeaderName::from_static("impersonate-uid"), value(uid)?));
    }
    for group in user.items(&["as-groups"]).iter().filter_map(Value::as_str) {
        headers.push((HeaderName::from_static("impersonate-group"), value(group)?));
    }
    for (key, values) in user.fields(&["as-user-extra"]).into_iter().flatten() {
        let header = HeaderName::try_from(format!("impersonate-extra-{}", key.to_lowercase())).ok()?;
        for text in values.as_array().into_iter().flatten().filter_map(Value::as_str) {
            headers.push((header.clone(), value(text)?));
        }
    }
    Some(headers)
}

fn bearer(token: &str) -> Option<HeaderValue> {
    if token.is_empty() { None } else { secret(format!("Bearer {token}")) }
}

fn secret(text: String) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
