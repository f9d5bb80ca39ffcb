//! Finds the key set of an issuer by OpenID Connect discovery, in the background until it succeeds.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{Method, Uri};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::task::JoinHandle;

use super::Shared;
use super::configuration::{ConfigurationError, Issuer};
use super::key_set::{FETCH_TIMEOUT, KeySet};
use super::signature::Algorithm;
use crate::outbound::{Call, HttpClient, Redirects, Trust, client_config};

const RETRY_INTERVAL: Duration = Duration::from_secs(10);
const WELL_KNOWN: &str = "/.well-known/openid-configuration";
const MAX_DOCUMENT: usize = 1 << 20;

/// An issuer whose keys are known, or are being looked for.
pub struct Provider {
    keys: Shared<KeySet>,
    problem: Arc<Mutex<Option<String>>>,
    discovering: JoinHandle<()>,
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.discovering.abort();
    }
}

/// How an issuer's documents are fetched.
pub fn client(issuer: &Issuer) -> Result<Arc<HttpClient>, ConfigurationError> {
    let trust = Trust::Authorities(issuer.certificate_authority.clone());
    let tls = client_config(&trust, None).map_err(|error| ConfigurationError::Client(error.to_string()))?;
    let client = HttpClient::new(tls, None, Redirects::Follow);
    Ok(Arc::new(match issuer.network {
        Some(network) => client.into_network(network),
        None => client,
    }))
}

impl Provider {
    pub fn new(issuer: &Issuer, algorithms: Vec<Algorithm>) -> Result<Self, ConfigurationError> {
        let document = if issuer.discovery_url.is_empty() {
            format!("{}{WELL_KNOWN}", issuer.url.trim_end_matches('/'))
        } else {
            issuer.discovery_url.clone()
        };
        Ok(Provider::discover(issuer.url.clone(), document, client(issuer)?, algorithms))
    }

    /// The provider of an issuer without settings of its own.
    pub fn of_url(issuer: &str, client: Arc<HttpClient>, algorithms: Vec<Algorithm>) -> Self {
        let document = format!("{}{WELL_KNOWN}", issuer.trim_end_matches('/'));
        Provider::discover(issuer.to_owned(), document, client, algorithms)
    }

    fn discover(issuer: String, document: String, client: Arc<HttpClient>, algorithms: Vec<Algorithm>) -> Self {
        let keys: Shared<KeySet> = Arc::new(ArcSwapOption::empty());
        let problem =
            Arc::new(Mutex::new(Some(format!("oidc: authenticator for issuer {issuer:?} is not initialized"))));
        let (found, trouble) = (keys.clone(), problem.clone());
        let discovering = knarr_supervisor::spawn(async move {
            loop {
                match key_set_url(&client, &issuer, &document).await {
                    Ok(url) => {
                        found.store(Some(Arc::new(KeySet::new(client, url, algorithms))));
                        *trouble.lock() = None;
                        return;
                    }
                    Err(error) => {
                        tracing::error!(issuer, error, "oidc authenticator: initializing plugin");
                        *trouble.lock() = Some(error);
                    }
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        });
        Provider { keys, problem, discovering }
    }

    pub fn keys(&self) -> Option<Arc<KeySet>> {
        self.keys.load_full()
    }

    pub fn health(&self) -> Result<(), String> {
        self.problem.lock().clone().map_or(Ok(()), Err)
    }
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    issuer: String,
    #[serde(default)]
    jwks_uri: String,
}

async fn key_set_url(client: &HttpClient, issuer: &str, document: &str) -> Result<Uri, String> {
    let call = Call {
        method: Method::GET,
        url: document.parse().map_err(|error| format!("parse {document:?}: {error}"))?,
        headers: Vec::new(),
        body: Bytes::new(),
        timeout: FETCH_TIMEOUT,
        max_response: MAX_DOCUMENT,
    };
    let reply = client.send(call).await.map_err(|error| error.to_string())?;
    if reply.status != http::StatusCode::OK {
        return Err(format!("{}: {}", reply.status, short(&reply.body)));
    }
    parse(&reply.body, issuer)
}

/// The address of the key set in a discovery document.
pub fn parse(body: &[u8], issuer: &str) -> Result<Uri, String> {
    let found: Document = serde_json::from_slice(body)
        .map_err(|error| format!("oidc: failed to decode provider discovery object: {error}"))?;
    if found.issuer != issuer {
        return Err(format!(
            "oidc: issuer did not match the issuer returned by provider, expected {issuer:?} got {:?}",
            found.issuer
        ));
    }
    if found.jwks_uri.is_empty() {
        return Err("provider did not return JWKS URL".to_owned());
    }
    let url: Uri = found.jwks_uri.parse().map_err(|error| format!("parse {:?}: {error}", found.jwks_uri))?;
    if url.scheme_str() == Some("https") { Ok(url) } else { Err(format!("the JWKS URL {url} is not https")) }
}

fn short(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned()
}
