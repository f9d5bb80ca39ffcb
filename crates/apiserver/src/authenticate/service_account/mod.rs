//! Service-account tokens: JSON web tokens signed by this cluster. A token is bound to a service account and optionally to a
//! pod, secret or node, all of which must still exist when the token is used.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use knarr_api::value::Read;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::AuthenticatedToken;
use super::jwt::{PublicKey, UntrustedToken};
use super::secret_token::TokenUseTracker;
use super::service_account_keys::{KeyError, SigningKey, key_set, public_keys};
use crate::object_reader::ObjectReader;
use crate::request::User;

/// The lifetime that the token volume of every pod requests. Such tokens are valid for a year and cause warnings after this
/// time, so that clients that never reload their token keep working.
const EXTENDED_REQUEST_SECONDS: i64 = 3607;
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;
/// How long a bound object that is being deleted still counts as existing.
const DELETION_LEEWAY: SignedDuration = SignedDuration::from_secs(60);
/// How many verified tokens are cached. Verifying a signature costs much more than a lookup.
const MAX_CACHED_TOKENS: usize = 4096;
/// Longer tokens are not cached: whoever may request tokens chooses their audiences, thousands of them if they like.
const MAX_CACHED_LENGTH: usize = 4096;
/// Tokens of more audiences are not cached either: each audience of one letter takes many times its length in memory.
const MAX_CACHED_AUDIENCES: usize = 16;

pub struct ServiceAccountTokens {
    settings: TokenSettings,
    signing: SigningKey,
    /// The keys whose tokens are accepted; the signing key's are.
    verifying: Vec<PublicKey>,
    verified: Mutex<BTreeMap<[u8; 32], Claims>>,
    /// Uses of tokens stored in secrets.
    pub(crate) uses: TokenUseTracker,
}

/// How tokens are issued and accepted.
#[derive(Clone, Debug)]
pub struct TokenSettings {
    /// The first is that of new tokens; tokens of all are accepted.
    pub issuers: Vec<String>,
    /// Those for which a token is valid at the API server.
    pub audiences: Vec<String>,
    /// Where the key set is, if it is not below the issuer.
    pub keys_uri: Option<String>,
    /// The longest validity of a new token.
    pub max_expiration: Option<SignedDuration>,
    /// Whether tokens that pods get by default are valid for a year.
    pub extends_expiration: bool,
}

impl TokenSettings {
    /// One issuer, which is also the audience.
    pub fn of_issuer(issuer: &str) -> TokenSettings {
        TokenSettings {
            issuers: vec![issuer.to_owned()],
            audiences: vec![issuer.to_owned()],
            keys_uri: None,
            max_expiration: None,
            extends_expiration: true,
        }
    }
}

/// The parameters of a token to issue.
pub struct TokenRequest<'a> {
    pub namespace: &'a str,
    pub account: &'a Value,
    pub audiences: Vec<String>,
    pub seconds: i64,
    pub bound: Option<BoundObject<'a>>,
}

/// The object whose deletion invalidates a token.
pub struct BoundObject<'a> {
    /// `pod`, `secret` or `node`.
    pub kind: &'static str,
    pub object: &'a Value,
    /// The node of a bound pod, where it is known.
    pub node: Option<&'a Value>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Claims {
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    iss: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    jti: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Private,
    nbf: i64,
    sub: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Private {
    namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<Reference>,
    serviceaccount: Reference,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    warnafter: Option<i64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Reference {
    name: String,
    uid: String,
}

impl ServiceAccountTokens {
    /// `key` is PEM of the key that signs; tokens of the keys in `more` (PEM) are accepted too.
    pub fn new(key: &str, more: &[String], settings: TokenSettings) -> Result<Self, KeyError> {
        let signing = SigningKey::from_pem(key)?;
        let mut verifying = vec![signing.public.clone()];
        for pem in more {
            for key in public_keys(pem)? {
                if verifying.iter().all(|known| known.id != key.id) {
                    verifying.push(key);
                }
            }
        }
        Ok(ServiceAccountTokens {
            settings,
            signing,
            verifying,
            verified: Mutex::default(),
            uses: TokenUseTracker::default(),
        })
    }

    #[cfg(test)]
    pub fn for_tests() -> Self {
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        Self::new(&key, &[], TokenSettings::of_issuer("https://issuer")).unwrap()
    }

    /// The issuer of new tokens.
    pub fn issuer(&self) -> &str {
        self.settings.issuers.first().map(String::as_str).unwrap_or_default()
    }

    pub fn issuers(&self) -> &[String] {
        &self.settings.issuers
    }

    pub fn api_audiences(&self) -> &[String] {
        &self.settings.audiences
    }

    /// Issues a signed token; also returns the expiry time to report.
    pub fn issue(&self, request: &TokenRequest<'_>, now: Timestamp) -> Result<(String, Timestamp), KeyError> {
        let issued = now.as_second();
        let reference = |object: &Value| Reference {
            name: object.text(&["metadata", "name"]).to_owned(),
            uid: object.text(&["metadata", "uid"]).to_owned(),
        };
        let bound = |kind: &str| request.bound.as_ref().filter(|bound| bound.kind == kind);
        let for_the_api = request.audiences.iter().all(|audience| self.settings.audiences.contains(audience));
        let extended = self.settings.extends_expiration
            && request.seconds == EXTENDED_REQUEST_SECONDS
            && bound("pod").is_some()
            && for_the_api;
        let seconds = match self.settings.max_expiration {
            Some(longest) if !extended => request.seconds.min(longest.as_secs()),
            _ => request.seconds,
        };
        let account = reference(request.account);
        let claims = Claims {
            aud: request.audiences.clone(),
            exp: issued + if extended { EXTENDED_SECONDS } else { seconds },
            iat: issued,
            iss: self.issuer().to_owned(),
            jti: uuid::Uuid::new_v4().to_string(),
            nbf: issued,
            sub: format!("system:serviceaccount:{}:{}", request.namespace, account.name),
            kubernetes: Private {
                namespace: request.namespace.to_owned(),
                node: bound("pod")
                    .and_then(|bound| bound.node)
                    .or(bound("node").map(|bound| bound.object))
                    .map(reference),
                pod: bound("pod").map(|bound| reference(bound.object)),
                secret: bound("secret").map(|bound| reference(bound.object)),
                serviceaccount: account,
                warnafter: extended.then_some(issued + seconds),
            },
        };
        let token = self.signing.sign(&claims)?;
        let expires = now.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        Ok((token, expires))
    }

    /// Verifies a token: signature, validity period, audiences, and that every object it is bound to still exists.
    pub fn verify(
        &self,
        token: &str,
        audiences: &[String],
        objects: &dyn ObjectReader,
        now: Timestamp,
    ) -> Result<AuthenticatedToken, String> {
        let claims = self.claims(token)?;
        if claims.exp <= now.as_second() {
            return Err("service account token has expired".into());
        }
        if claims.nbf > now.as_second() + 60 {
            return Err("service account token is not valid yet".into());
        }
        let common: Vec<String> = audiences.iter().filter(|audience| claims.aud.contains(audience)).cloned().collect();
        if common.is_empty() {
            let quoted = |list: &[String]| list.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(" ");
            let (own, target) = (quoted(&claims.aud), quoted(audiences));
            return Err(format!("token audiences [{own}] is invalid for the target audiences [{target}]"));
        }
        check_bound(&claims.kubernetes, objects, now)?;
        let warning = self.check_secret(token, &claims.kubernetes, objects, now)?;
        Ok(AuthenticatedToken { user: user(&claims), audiences: common, warning })
    }

    fn check_secret(
        &self,
        token: &str,
        claims: &Private,
        objects: &dyn ObjectReader,
        now: Timestamp,
    ) -> Result<Option<&'static str>, String> {
        // Most tokens are not stored in secrets; return early, since every request of a pod is checked here.
        let Some(secret) = &claims.secret else { return Ok(None) };
        let get = |resource: &str, of: &Reference| objects.get("", resource, &claims.namespace, &of.name);
        match (get("secrets", secret), get("serviceaccounts", &claims.serviceaccount)) {
            (Some(secret), Some(account)) => self.uses.check(token, &secret, &account, now),
            _ => Ok(None),
        }
    }

    fn claims(&self, token: &str) -> Result<Claims, String> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(claims) = self.verified.lock().get(&hash) {
            return Ok(claims.clone());
        }
        // The caller checks times and audiences.
        let claims = self.signed_claims(token).ok_or_else(|| super::INVALID_TOKEN.to_owned())?;
        if token.len() > MAX_CACHED_LENGTH || claims.aud.len() > MAX_CACHED_AUDIENCES {
            return Ok(claims);
        }
        let mut verified = self.verified.lock();
        if verified.len() >= MAX_CACHED_TOKENS {
            verified.clear();
        }
        verified.insert(hash, claims.clone());
        Ok(claims)
    }

    /// The claims of a token that one of the keys signed, if it is of one of the issuers.
    fn signed_claims(&self, token: &str) -> Option<Claims> {
        let token = UntrustedToken::parse(token)
            .filter(|token| self.settings.issuers.iter().any(|own| own == token.issuer()))?;
        let algorithm = token.algorithm()?;
        if !self.verifying.iter().any(|key| token.is_signed_by(key, algorithm)) {
            return None;
        }
        serde_json::from_value(token.claims().clone()).ok()
    }

    /// The response of `/.well-known/openid-configuration`.
    pub fn discovery(&self) -> Value {
        let keys_uri = match &self.settings.keys_uri {
            Some(uri) => uri.clone(),
            None => format!("{}/openid/v1/jwks", self.issuer()),
        };
        let mut algorithms: Vec<&str> = self.verifying.iter().map(|key| key.algorithm().name()).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        json!({
            "issuer": self.issuer(), "jwks_uri": keys_uri, "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": algorithms,
        })
    }

    /// The response of `/openid/v1/jwks`.
    pub fn keys(&self) -> Value {
        key_set(&self.verifying)
    }
}

fn check_bound(claims: &Private, objects: &dyn ObjectReader, now: Timestamp) -> Result<(), String> {
    let exists = |resource: &str, namespace: &str, reference: &Reference| {
        let object = objects
            .get("", resource, namespace, &reference.name)
            .ok_or_else(|| format!("{resource} {:?} not found", reference.name))?;
        if object.text(&["metadata", "uid"]) != reference.uid {
            return Err(format!("the UID of {resource} {:?} does not match the claim", reference.name));
        }
        let deleted = knarr_api::time::parse(object.text(&["metadata", "deletionTimestamp"]));
        let gone = deleted.and_then(|at| at.saturating_add(DELETION_LEEWAY).ok()).is_some_and(|at| at < now);
        if gone { Err(format!("{resource} {:?} has been deleted", reference.name)) } else { Ok(()) }
    };
    exists("serviceaccounts", &claims.namespace, &claims.serviceaccount)?;
    if let Some(pod) = &claims.pod {
        return exists("pods", &claims.namespace, pod);
    }
    if let Some(secret) = &claims.secret {
        exists("secrets", &claims.namespace, secret)?;
    }
    if let Some(node) = &claims.node {
        exists("nodes", "", node)?;
    }
    Ok(())
}

fn user(claims: &Claims) -> User {
    let private = &claims.kubernetes;
    let mut extra = BTreeMap::new();
    let mut add = |key: &str, value: &str| {
        extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
    };
    if !claims.jti.is_empty() {
        add("credential-id", &format!("JTI={}", claims.jti));
    }
    if let Some(pod) = &private.pod {
        add("pod-name", &pod.name);
        add("pod-uid", &pod.uid);
    }
    if let Some(node) = &private.node {
        add("node-name", &node.name);
        add("node-uid", &node.uid);
    }
    User {
        name: claims.sub.clone(),
        uid: private.serviceaccount.uid.clone(),
        groups: vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{}", private.namespace)],
        extra,
    }
}

#[cfg(test)]
mod tests;
