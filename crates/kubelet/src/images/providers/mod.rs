//! Credential providers: programs of the node's operator that have credentials for registries.
//!
//! The configuration is read once, when the node starts; an invalid one fails the start. If a provider fails, images are pulled
//! with the credentials of the others, or without any.

mod cache;
mod config;
mod exec;

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use knarr_client::go_duration;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

use super::access::{AccountUsed, hexadecimal};
use crate::api_text::api_text;
use crate::counters::Counters;
use crate::pod;
use crate::settings::CredentialProviderFiles;
use crate::tokens::Tokens;
use cache::{AccountKey, Cache, Logins, Scope};
use config::{ProviderConfig, TokenAttributes};
use exec::{Plugin, Request, Response};

#[cfg(test)]
pub use exec::Login;

/// Why the configuration of credential providers cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProviderError(String);

/// How many processes of one plugin may run at a time.
const MAX_PROCESSES: usize = 8;
/// The lifetime of service account tokens for plugins.
const TOKEN_SECONDS: i64 = 3600;

/// Access to service accounts.
pub trait Accounts: Send + Sync {
    fn account<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<ServiceAccount, String>>;
    /// A token of the pod's service account.
    fn token<'a>(&'a self, pod: &'a Pod, audience: &'a str) -> BoxFuture<'a, Result<String, String>>;
}

/// The service accounts of the API.
pub struct ApiAccounts {
    pub client: kube::Client,
    pub tokens: Tokens,
}

impl Accounts for ApiAccounts {
    fn account<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<ServiceAccount, String>> {
        let accounts: kube::Api<ServiceAccount> = kube::Api::namespaced(self.client.clone(), namespace);
        Box::pin(async move { accounts.get(name).await.map_err(|error| api_text(&error)) })
    }

    fn token<'a>(&'a self, pod: &'a Pod, audience: &'a str) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(async move {
            let token = self.tokens.get(pod, audience, TOKEN_SECONDS).await.map_err(|error| error.to_string())?;
            Ok(token.value)
        })
    }
}

/// All providers of a node.
pub struct Providers {
    providers: Vec<Provider>,
    accounts: Arc<dyn Accounts>,
    metrics: Arc<Counters>,
}

struct Provider {
    plugin: Plugin,
    cache: Mutex<Cache>,
    /// Calls in progress: the same question is asked once at a time.
    calls: Mutex<HashMap<CallKey, Arc<OnceCell<Result<Response, String>>>>>,
    processes: Semaphore,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct CallKey {
    image: String,
    token: Option<String>,
    annotations: BTreeMap<String, String>,
}

/// Credentials by registry, and the service account they were issued for.
pub type Provided = (Logins, Option<AccountUsed>);

impl Providers {
    /// Reads the configuration; without one there are no providers.
    pub fn open(
        files: Option<&CredentialProviderFiles>,
        accounts: Arc<dyn Accounts>,
        metrics: Arc<Counters>,
    ) -> Result<Self, ProviderError> {
        let mut providers = Vec::new();
        if let Some(files) = files {
            let directory = &files.directory;
            if let Err(error) = std::fs::metadata(directory) {
                return Err(ProviderError(match error.kind() {
                    std::io::ErrorKind::NotFound => {
                        format!("plugin binary directory {} did not exist", directory.display())
                    }
                    _ => format!("error inspecting binary directory {}: {error}", directory.display()),
                }));
            }
            let configuration = config::read(&files.configuration)?;
            metrics.set("kubelet_credential_provider_config_info", &[("hash", &configuration.hash)], 1.0);
            for config in configuration.providers {
                let program = executable(directory, &config.name)?;
                providers.push(Provider::new(config, program));
            }
        }
        Ok(Self { providers, accounts, metrics })
    }

    /// Whether any provider is for this image.
    pub fn cover(&self, repository: &str) -> bool {
        self.providers.iter().any(|provider| provider.covers(repository))
    }

    /// The credentials of all providers for an image of a pod.
    pub async fn provide(&self, pod: &Pod, repository: &str) -> Vec<Provided> {
        let mut provided = Vec::new();
        for provider in self.providers.iter().filter(|provider| provider.covers(repository)) {
            match self.provide_one(provider, pod, repository).await {
                Ok(found) => provided.extend(found),
                Err(error) => {
                    let (provider, image) = (&provider.plugin.config.name, repository);
                    tracing::error!(
                        error,
                        provider,
                        image,
                        pod = pod::title(pod),
                        "Failed to provide credentials for image"
                    );
                }
            }
        }
        provided
    }

    async fn provide_one(&self, provider: &Provider, pod: &Pod, image: &str) -> Result<Option<Provided>, String> {
        let identity = match &provider.plugin.config.token {
            Some(token) => match self.identity(token, pod).await? {
                Some(identity) => identity,
                None => return Ok(None),
            },
            None => Identity::default(),
        };
        let cached = provider.cache.lock().get(image, identity.key.as_ref(), Instant::now());
        if let Some(logins) = cached {
            return Ok(Some((logins, identity.used())));
        }
        let response = provider.ask(image, &identity, &self.metrics).await.map_err(|reason| {
            format!("failed to get credential from external registry credential provider: {reason}")
        })?;
        let used = identity.used();
        Ok(Some((provider.accept(image, identity, response)?, used)))
    }

    /// The service account that a plugin with tokens is asked for; none if it is not to be asked.
    async fn identity(&self, attributes: &TokenAttributes, pod: &Pod) -> Result<Option<Identity>, String> {
        let name = pod::spec(pod).service_account_name.as_deref().unwrap_or_default();
        if name.is_empty() {
            return Ok((!attributes.require_account).then(Identity::default));
        }
        let namespace = pod::namespace(pod);
        let account = self.accounts.account(namespace, name).await;
        let account = account.map_err(|reason| format!("failed to get service account: {reason}"))?;
        let known = account.metadata.annotations.unwrap_or_default();
        let mut annotations = BTreeMap::new();
        for key in &attributes.required_annotations {
            // An annotation may be how workloads opt in.
            let Some(value) = known.get(key) else { return Ok(None) };
            annotations.insert(key.clone(), value.clone());
        }
        let optional = attributes.optional_annotations.iter();
        annotations.extend(optional.filter_map(|key| Some((key.clone(), known.get(key)?.clone()))));
        let token = self.accounts.token(pod, &attributes.audience).await;
        let token = token.map_err(|reason| format!("failed to get service account token: {reason}"))?;
        let digest = hexadecimal(&Sha256::digest(&token));
        let key = AccountKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: account.metadata.uid.unwrap_or_default(),
            annotations,
            token: attributes.cache_by_token.then(|| digest.clone()),
        };
        Ok(Some(Identity { key: Some(key), token: Some(token), digest: Some(digest) }))
    }
}

/// For whom a plugin is asked. It has no `Debug`, so that no log can show the token.
#[derive(Default)]
struct Identity {
    key: Option<AccountKey>,
    token: Option<String>,
    digest: Option<String>,
}

impl Identity {
    fn used(&self) -> Option<AccountUsed> {
        let key = self.key.as_ref()?;
        Some(AccountUsed { namespace: key.namespace.clone(), name: key.name.clone(), uid: key.uid.clone() })
    }
}

impl Provider {
    fn new(config: ProviderConfig, program: PathBuf) -> Self {
        Self {
            plugin: Plugin::new(config, program),
            cache: Mutex::default(),
            calls: Mutex::default(),
            processes: Semaphore::new(MAX_PROCESSES),
        }
    }

    fn covers(&self, repository: &str) -> bool {
        self.plugin.config.match_images.iter().any(|pattern| super::glob::covers(pattern, repository))
    }

    async fn ask(&self, image: &str, identity: &Identity, metrics: &Counters) -> Result<Response, String> {
        let annotations = identity.key.as_ref().map(|key| key.annotations.clone()).unwrap_or_default();
        let key = CallKey { image: image.to_owned(), token: identity.digest.clone(), annotations: annotations.clone() };
        let call = self.calls.lock().entry(key.clone()).or_default().clone();
        let request = Request { image: image.to_owned(), token: identity.token.clone(), annotations };
        let response = call.get_or_init(|| self.run(&request, metrics)).await.clone();
        let mut calls = self.calls.lock();
        if calls.get(&key).is_some_and(|known| Arc::ptr_eq(known, &call)) {
            calls.remove(&key);
        }
        response
    }

    async fn run(&self, request: &Request, metrics: &Counters) -> Result<Response, String> {
        let _turn = self.processes.acquire().await.map_err(|error| error.to_string())?;
        let started = std::time::Instant::now();
        let labels = [("plugin_name", self.plugin.config.name.as_str())];
        let response = self.plugin.ask(request).await;
        metrics.observe("kubelet_credential_provider_plugin_duration", &labels, started.elapsed());
        if response.is_err() {
            metrics.count("kubelet_credential_provider_plugin_errors_total", &labels);
        }
        response
    }

    /// The credentials of a response, which are cached as it says.
    fn accept(&self, image: &str, identity: Identity, response: Response) -> Result<Logins, String> {
        let logins = response.auth.unwrap_or_default();
        let config = &self.plugin.config;
        let caches_tokens = config.token.as_ref().is_some_and(|token| token.cache_by_token);
        if let Some(token) = identity.token.filter(|_| !caches_tokens)
            && logins.values().any(|login| login.password == token)
        {
            return Err("credential provider plugin returned the service account token as the password which is not \
                allowed when service account cache type is not set to 'Token'"
                .to_owned());
        }
        let kind = &response.cache_key_type;
        let scope = Scope::of(kind, image)
            .ok_or_else(|| format!("credential provider plugin did not return a valid cacheKeyType: {kind}"))?;
        let lifetime = match response.cache_duration.as_deref() {
            None => config.default_cache,
            // With a duration that cannot be parsed, the response is not cached.
            Some(text) => go_duration::parse_positive(text).unwrap_or_default(),
        };
        if !lifetime.is_zero() {
            self.cache.lock().put(scope, identity.key, logins.clone(), lifetime, Instant::now());
        }
        Ok(logins)
    }
}

fn executable(directory: &Path, name: &str) -> Result<PathBuf, ProviderError> {
    let program = directory.join(name);
    let shown = program.display();
    match std::fs::metadata(&program) {
        Ok(facts) if facts.is_file() && facts.permissions().mode() & 0o111 != 0 => Ok(program),
        Ok(_) => Err(ProviderError(format!("error inspecting binary executable {shown}: permission denied"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(ProviderError(format!("plugin binary executable {shown} did not exist")))
        }
        Err(error) => Err(ProviderError(format!("error inspecting binary executable {shown}: {error}"))),
    }
}

#[cfg(test)]
mod tests;
