//! Distributed claims: the groups of a token that must be fetched from elsewhere, as another signed token.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Method, Uri};
use jiff::Timestamp;
use knarr_api::value::Read;
use parking_lot::Mutex;
use serde_json::Value;

use super::configuration::{ConfigurationError, Issuer};
use super::discovery::{self, Provider};
use super::key_set::FETCH_TIMEOUT;
use super::signature::Algorithm;
use super::token::{self, Claims, UntrustedToken};
use crate::outbound::{Call, HttpClient};

const MAX_CLAIM: usize = 1 << 20;
/// The maximum number of fetched sources of one token. Only signed tokens name sources, but none needs many.
const MAX_SOURCES: usize = 16;

pub struct Resolver {
    claim: Option<String>,
    audiences: Vec<String>,
    algorithms: Vec<Algorithm>,
    client: Arc<HttpClient>,
    providers: Mutex<HashMap<String, Arc<Provider>>>,
}

impl Resolver {
    pub fn new(claim: Option<&str>, issuer: &Issuer, algorithms: Vec<Algorithm>) -> Result<Self, ConfigurationError> {
        Ok(Resolver {
            claim: claim.map(str::to_owned),
            audiences: issuer.audiences.clone(),
            algorithms,
            client: discovery::client(issuer)?,
            providers: Mutex::default(),
        })
    }

    /// Adds the claim if the token says where it is.
    pub async fn expand(&self, claims: &mut Claims, now: Timestamp) -> Result<(), String> {
        let Some(claim) = &self.claim else { return Ok(()) };
        let Some(names) = claims.get("_claim_names").filter(|_| !claims.contains_key(claim)) else { return Ok(()) };
        if !names.as_object().is_some_and(|names| names.values().all(Value::is_string)) {
            return Err("oidc: error parsing distributed claim names: not a map of strings".to_owned());
        }
        let sources = claims.get("_claim_sources").ok_or("oidc: no claim sources")?;
        if !sources.is_object() {
            return Err("oidc: could not parse claim sources: not a map".to_owned());
        }
        let Some(name) = names.get(claim).and_then(Value::as_str) else { return Ok(()) };
        let Some(source) = sources.get(name) else {
            return Err(format!("id token _claim_names contained a source {name} missing in _claims_sources"));
        };
        let endpoint = source.text(&["endpoint"]);
        if endpoint.is_empty() {
            return Ok(());
        }
        let value = self.resolve(claim, endpoint, source.text(&["access_token"]), now).await?;
        claims.insert(claim.clone(), value);
        Ok(())
    }

    async fn resolve(&self, claim: &str, endpoint: &str, access: &str, now: Timestamp) -> Result<Value, String> {
        let fetched = self.fetch(endpoint, access).await;
        let text = fetched.map_err(|error| format!("while getting distributed claim {claim:?}: {error}"))?;
        let parsed = UntrustedToken::parse(text.trim()).ok_or_else(|| {
            format!("getting untrusted issuer from endpoint {endpoint} failed for claim {claim:?}: malformed token")
        })?;
        let issuer = parsed.issuer().to_owned();
        let keys = self.provider(&issuer).and_then(|provider| provider.keys()).ok_or_else(|| {
            format!("verifying untrusted issuer {issuer} failed: verifier not initialized for issuer: {issuer:?}")
        })?;
        let verified = token::verify(&parsed, &issuer, &self.audiences, &keys, now).await;
        let mut found = verified.map_err(|error| format!("verify distributed claim token: {error}"))?;
        found.remove(claim).ok_or_else(|| {
            format!("jwt returned by distributed claim endpoint {endpoint:?} did not contain claim: {claim}")
        })
    }

    fn provider(&self, issuer: &str) -> Option<Arc<Provider>> {
        let mut providers = self.providers.lock();
        if let Some(provider) = providers.get(issuer) {
            return Some(provider.clone());
        }
        if !issuer.starts_with("https://") || providers.len() >= MAX_SOURCES {
            return None;
        }
        let provider = Arc::new(Provider::of_url(issuer, self.client.clone(), self.algorithms.clone()));
        providers.insert(issuer.to_owned(), provider.clone());
        Some(provider)
    }

    async fn fetch(&self, endpoint: &str, access: &str) -> Result<String, String> {
        let url: Uri = endpoint.parse().map_err(|error| format!("while calling {endpoint}: {error}"))?;
        if url.scheme_str() != Some("https") {
            return Err(format!("while calling {endpoint}: URL scheme must be https"));
        }
        let mut headers = Vec::new();
        if !access.is_empty() {
            let mut value = HeaderValue::from_str(&format!("Bearer {access}")).map_err(|error| error.to_string())?;
            value.set_sensitive(true);
            headers.push((AUTHORIZATION, value));
        }
        let call = Call {
            method: Method::GET,
            url,
            headers,
            body: Bytes::new(),
            timeout: FETCH_TIMEOUT,
            max_response: MAX_CLAIM,
        };
        let reply = self.client.send(call).await.map_err(|error| error.to_string())?;
        if !reply.status.is_success() {
            return Err(format!("error while getting distributed claim JWT: {}", reply.status));
        }
        String::from_utf8(reply.body.to_vec()).map_err(|_| "could not decode distributed claim response".to_owned())
    }
}
