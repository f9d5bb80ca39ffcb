//! Authenticates and authorizes requests to the kubelet with the API server.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use http::{Method, Request, Response, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};

use super::{Body, text};

/// How long the API server's decisions are cached; denials for a shorter time.
const ALLOWED_TTL: Duration = Duration::from_secs(120);
const DENIED_TTL: Duration = Duration::from_secs(30);
const MAX_CACHE_ENTRIES: usize = 1000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct User {
    name: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

pub struct Access {
    client: Client,
    node: String,
    users: Mutex<HashMap<[u8; 32], (Option<User>, Instant)>>,
    decisions: Mutex<HashMap<(User, &'static str, &'static str), (bool, Instant)>>,
}

impl Access {
    pub fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.to_string(), users: Mutex::default(), decisions: Mutex::default() }
    }

    /// Checks a request. The error is the response to send if it is not allowed.
    pub async fn check<B>(
        &self,
        request: &Request<B>,
        certificate: Option<&CertificateDer<'static>>,
    ) -> Result<(), Response<Body>> {
        let user = match certificate.and_then(|certificate| user_of(certificate)) {
            Some(user) => user,
            None => self.by_token(request).await?,
        };
        let verb = verb(request.method());
        for subresource in subresources(request.uri().path()) {
            if self.is_allowed(&user, verb, subresource).await? {
                return Ok(());
            }
        }
        let last = subresources(request.uri().path()).last().copied().unwrap_or("proxy");
        Err(text(
            StatusCode::FORBIDDEN,
            format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{last}])\n", user.name),
        ))
    }

    async fn by_token<B>(&self, request: &Request<B>) -> Result<User, Response<Body>> {
        let unauthorized = || text(StatusCode::UNAUTHORIZED, "Unauthorized");
        let header = request.headers().get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|header| header.strip_prefix("Bearer ")).map(str::trim).ok_or_else(unauthorized)?;
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some((user, at)) = self.users.lock().get(&key)
            && at.elapsed() < if user.is_some() { ALLOWED_TTL } else { DENIED_TTL }
        {
            return user.clone().ok_or_else(unauthorized);
        }
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let review =
            TokenReview { spec: TokenReviewSpec { token: token.to_string(), audiences: None }, ..Default::default() };
        let reviewed = reviews.create(&PostParams::default(), &review).await.map_err(|error| {
            tracing::warn!(%error, "cannot review a token");
            unauthorized()
        })?;
        let status = reviewed.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| User {
            name: user.username.unwrap_or_default(),
            uid: user.uid,
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        });
        store(&self.users, key, user.clone());
        user.ok_or_else(unauthorized)
    }

    async fn is_allowed(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, Response<Body>> {
        let key = (user.clone(), verb, subresource);
        if let Some((allowed, at)) = self.decisions.lock().get(&key)
            && at.elapsed() < if *allowed { ALLOWED_TTL } else { DENIED_TTL }
        {
            return Ok(*allowed);
        }
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: user.uid.clone(),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.to_string()),
                    version: Some("v1".to_string()),
                    resource: Some("nodes".to_string()),
                    subresource: Some(subresource.to_string()),
                    name: Some(self.node.clone()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let reviewed = reviews.create(&PostParams::default(), &review).await.map_err(|error| {
            tracing::warn!(%error, "cannot review access");
            text(StatusCode::INTERNAL_SERVER_ERROR, "Authorization error")
        })?;
        let allowed = reviewed.status.is_some_and(|status| status.allowed);
        store(&self.decisions, key, allowed);
        Ok(allowed)
    }
}

fn store<K: std::hash::Hash + Eq, V>(cache: &Mutex<HashMap<K, (V, Instant)>>, key: K, value: V) {
    let mut cache = cache.lock();
    if cache.len() >= MAX_CACHE_ENTRIES {
        cache.retain(|_, (_, at)| at.elapsed() < DENIED_TTL);
    }
    cache.insert(key, (value, Instant::now()));
}

/// The subject's common name is the user, its organizations are the groups. The chain was already verified.
fn user_of(certificate: &CertificateDer<'_>) -> Option<User> {
    let identity = knarr_identity::of_certificate(certificate).ok()?;
    let mut groups = identity.groups;
    groups.push("system:authenticated".to_string());
    let uid = Some(identity.uid).filter(|uid| !uid.is_empty());
    Some(User { name: identity.name, uid, groups, extra: BTreeMap::new() })
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// The node subresources of a path, most specific first: access to any of them allows the request.
fn subresources(path: &str) -> &'static [&'static str] {
    let under = |prefix: &str| path == prefix || path.starts_with(&format!("{prefix}/"));
    if under("/stats") {
        &["stats"]
    } else if under("/metrics") {
        &["metrics"]
    } else if under("/logs") {
        &["log"]
    } else if under("/checkpoint") {
        &["checkpoint"]
    } else if under("/statusz") {
        &["statusz"]
    } else if under("/flagz") {
        &["configz"]
    } else if under("/configz") {
        &["configz", "proxy"]
    } else if under("/healthz") {
        &["healthz", "proxy"]
    } else if under("/pods") || under("/runningpods") {
        &["pods", "proxy"]
    } else {
        &["proxy"]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_belong_to_parts_of_the_node() {
        for (path, expected) in [
            ("/metrics/cadvisor", "metrics"),
            ("/metricsx", "proxy"),
            ("/stats/summary", "stats"),
            ("/exec/a/b/c", "proxy"),
            ("/healthz", "healthz proxy"),
            ("/logs/", "log"),
            ("/statusz", "statusz"),
            ("/flagz", "configz"),
        ] {
            assert_eq!(subresources(path).join(" "), expected, "{path}");
        }
    }

    /// Made with openssl: `/O=system:nodes/CN=system:kube-controller-manager/CN=system:node:x`.
    #[test]
    fn a_certificate_with_two_names_has_no_user() {
        use rustls_pki_types::pem::PemObject;
        let der = CertificateDer::from_pem_slice(include_bytes!("two_names.crt")).expect("a certificate");
        assert_eq!(user_of(&der), None);
    }

    #[test]
    fn certificates_name_user_and_groups() {
        let mut parameters = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "alice");
        parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = parameters.self_signed(&key).expect("a certificate");
        let user = user_of(certificate.der()).expect("a user");
        assert_eq!(user.name, "alice");
        assert_eq!(user.groups, ["system:masters", "system:authenticated"]);
    }
}
