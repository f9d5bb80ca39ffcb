//! Delegated authentication and authorization: a component with HTTPS endpoints lets the API server decide who sends a request
//! (TokenReview) and whether that user may (SubjectAccessReview).
//!
//! Credentials that cannot be read are refused. Only a request without credentials is anonymous, and only where the component
//! allows that.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

const MAX_CACHE_ENTRIES: usize = 1000;

/// A user, as the API server knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// The name.
    pub name: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl User {
    fn anonymous() -> Self {
        User {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..User::default()
        }
    }
}

/// What a user wants to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attributes {
    /// A request for a path.
    Path {
        /// The lower-case method.
        verb: &'static str,
        path: String,
    },
    /// A request for a part of a node.
    Node { verb: &'static str, subresource: &'static str, node: String },
}

/// Why there is no decision.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The credentials are missing, unreadable or not accepted.
    #[error("Unauthorized")]
    Unauthenticated,
    /// The API server cannot be asked.
    #[error("cannot review access: {0}")]
    Review(#[source] Box<kube::Error>),
}

/// How a component authenticates and for how long it caches decisions.
#[derive(Clone, Copy, Debug)]
pub struct AccessSettings {
    /// Whether requests without credentials are those of the anonymous user.
    pub anonymous: bool,
    /// How long reviews of tokens are cached; none ignores tokens, as if the request had none.
    pub tokens: Option<Duration>,
    /// How long allowed requests are cached.
    pub allowed: Duration,
    /// How long denied ones are.
    pub denied: Duration,
}

/// Authenticates and authorizes requests with the API server.
pub struct DelegatedAccess {
    authentication: Client,
    authorization: Client,
    settings: AccessSettings,
    users: Cache<[u8; 32], Option<User>>,
    decisions: Cache<(User, Attributes), bool>,
}

impl DelegatedAccess {
    /// `authentication` reviews tokens, `authorization` reviews access.
    pub fn new(authentication: Client, authorization: Client, settings: AccessSettings) -> Self {
        Self { authentication, authorization, settings, users: Cache::default(), decisions: Cache::default() }
    }

    /// The user who sent a request. A verified client certificate comes first; one that is ambiguous names no user, and is
    /// refused unless a token names one.
    pub async fn authenticate(
        &self,
        headers: &HeaderMap,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Result<User, AccessError> {
        let by_certificate = certificate.map(|certificate| user_of(certificate));
        if let Some(Some(user)) = by_certificate {
            return Ok(user);
        }
        let Some(lifetime) = self.settings.tokens else { return self.without_token(by_certificate.is_some()) };
        match bearer(headers)? {
            Some(token) => self.by_token(token, lifetime).await,
            None => self.without_token(by_certificate.is_some()),
        }
    }

    fn without_token(&self, has_ambiguous_certificate: bool) -> Result<User, AccessError> {
        match self.settings.anonymous && !has_ambiguous_certificate {
            true => Ok(User::anonymous()),
            false => Err(AccessError::Unauthenticated),
        }
    }

    async fn by_token(&self, token: &str, lifetime: Duration) -> Result<User, AccessError> {
        let key: [u8; 32] = Sha256::digest(token).into();
        let lifetime = |_: &Option<User>| lifetime;
        if let Some(user) = self.users.get(&key, lifetime) {
            return user.ok_or(AccessError::Unauthenticated);
        }
        let reviews: Api<TokenReview> = Api::all(self.authentication.clone());
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviewed = reviews.create(&PostParams::default(), &review).await.map_err(|error| {
            tracing::warn!(%error, "cannot review a token");
            AccessError::Unauthenticated
        })?;
        let status = reviewed.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| User {
            name: user.username.unwrap_or_default(),
            uid: user.uid,
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        });
        self.users.insert(key, user.clone(), lifetime);
        user.ok_or(AccessError::Unauthenticated)
    }

    /// Whether a user may do something.
    pub async fn is_allowed(&self, user: &User, attributes: Attributes) -> Result<bool, AccessError> {
        let key = (user.clone(), attributes);
        let lifetime = |allowed: &bool| if *allowed { self.settings.allowed } else { self.settings.denied };
        if let Some(allowed) = self.decisions.get(&key, lifetime) {
            return Ok(allowed);
        }
        let reviews: Api<SubjectAccessReview> = Api::all(self.authorization.clone());
        let review = SubjectAccessReview { spec: spec(user, &key.1), ..SubjectAccessReview::default() };
        let reviewed = reviews.create(&PostParams::default(), &review).await.map_err(|error| {
            tracing::warn!(%error, "cannot review access");
            AccessError::Review(Box::new(error))
        })?;
        let allowed = reviewed.status.is_some_and(|status| status.allowed && status.denied != Some(true));
        self.decisions.insert(key, allowed, lifetime);
        Ok(allowed)
    }
}

fn spec(user: &User, attributes: &Attributes) -> SubjectAccessReviewSpec {
    let mut spec = SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        uid: user.uid.clone(),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
        ..SubjectAccessReviewSpec::default()
    };
    match attributes {
        Attributes::Path { verb, path } => {
            spec.non_resource_attributes =
                Some(NonResourceAttributes { path: Some(path.clone()), verb: Some((*verb).to_owned()) });
        }
        Attributes::Node { verb, subresource, node } => {
            spec.resource_attributes = Some(ResourceAttributes {
                verb: Some((*verb).to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: Some((*subresource).to_owned()),
                name: Some(node.clone()),
                ..ResourceAttributes::default()
            });
        }
    }
    spec
}

/// The bearer token of a request. A header that cannot be read is refused; one of another scheme is no token.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, AccessError> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| AccessError::Unauthenticated)?;
    let token = text.trim().split_once(' ').and_then(|(scheme, token)| {
        let token = token.trim();
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    });
    Ok(token)
}

/// The subject's common name is the user, its organizations are the groups. The chain was already verified.
fn user_of(certificate: &CertificateDer<'_>) -> Option<User> {
    let identity = knarr_identity::of_certificate(certificate).ok()?;
    let mut groups = identity.groups;
    groups.push("system:authenticated".to_owned());
    let uid = Some(identity.uid).filter(|uid| !uid.is_empty());
    Some(User { name: identity.name, uid, groups, extra: BTreeMap::new() })
}

/// Decisions with the time they were made. How long one is used depends on it.
struct Cache<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Cache(Mutex::default())
    }
}

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    fn get(&self, key: &K, lifetime: impl Fn(&V) -> Duration) -> Option<V> {
        self.0.lock().get(key).filter(|(value, at)| at.elapsed() < lifetime(value)).map(|(value, _)| value.clone())
    }

    fn insert(&self, key: K, value: V, lifetime: impl Fn(&V) -> Duration) {
        let mut entries = self.0.lock();
        if entries.len() >= MAX_CACHE_ENTRIES {
            entries.retain(|_, (value, at)| at.elapsed() < lifetime(value));
        }
        // All entries are fresh: somebody tries many tokens or paths, and may not displace the memory.
        if entries.len() >= MAX_CACHE_ENTRIES {
            entries.clear();
        }
        entries.insert(key, (value, Instant::now()));
    }
}

#[cfg(test)]
mod tests;
