//! Service-account tokens: JSON web tokens signed by this cluster. A token is bound to a service account and optionally to a
//! pod, secret or node, all of which must still exist when the token is used.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use knarr_api::value::Read;
use parking_lot::Mutex;
use rcgen::PublicKeyData;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::AuthenticatedToken;
use super::secret_token::TokenUseTracker;
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

pub struct ServiceAccountTokens {
    issuer: String,
    audiences: Vec<String>,
    key_id: String,
    signing: EncodingKey,
    verifying: DecodingKey,
    public_point: Vec<u8>,
    verified: Mutex<BTreeMap<[u8; 32], Claims>>,
    /// Uses of tokens stored in secrets.
    pub(super) uses: TokenUseTracker,
}

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("the service-account key cannot be read: {0}")]
    Read(#[from] rcgen::Error),
    #[error("the service-account key cannot be used: {0}")]
    Use(#[from] jsonwebtoken::errors::Error),
    #[error("the service-account key is not an ECDSA P-256 key")]
    Kind,
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
    /// `key` is PEM. `audiences` are those for which a token is valid at the API server.
    pub fn new(key: &str, issuer: &str, audiences: Vec<String>) -> Result<Self, KeyError> {
        let pair = rcgen::KeyPair::from_pem(key)?;
        if pair.algorithm() != &rcgen::PKCS_ECDSA_P256_SHA256 {
            return Err(KeyError::Kind);
        }
        let public_point = pair.public_key_raw().to_vec();
        let key_id = URL_SAFE_NO_PAD.encode(Sha256::digest(pair.subject_public_key_info()));
        let (x, y) = coordinates(&public_point).ok_or(KeyError::Kind)?;
        Ok(ServiceAccountTokens {
            issuer: issuer.to_owned(),
            audiences,
            key_id,
            signing: EncodingKey::from_ec_pem(key.as_bytes())?,
            verifying: DecodingKey::from_ec_components(&x, &y)?,
            public_point,
            verified: Mutex::default(),
            uses: TokenUseTracker::default(),
        })
    }

    #[cfg(test)]
    pub fn for_tests() -> Self {
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        Self::new(&key, "https://issuer", vec!["https://issuer".into()]).unwrap()
    }

    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    pub fn api_audiences(&self) -> &[String] {
        &self.audiences
    }

    /// Issues a signed token; also returns the expiry time to report.
    pub fn issue(&self, request: &TokenRequest<'_>, now: Timestamp) -> Result<(String, Timestamp), KeyError> {
        let issued = now.as_second();
        let reference = |object: &Value| Reference {
            name: object.text(&["metadata", "name"]).to_owned(),
            uid: object.text(&["metadata", "uid"]).to_owned(),
        };
        let bound = |kind: &str| request.bound.as_ref().filter(|bound| bound.kind == kind);
        let for_the_api = request.audiences.iter().all(|audience| self.audiences.contains(audience));
        let extended = request.seconds == EXTENDED_REQUEST_SECONDS && bound("pod").is_some() && for_the_api;
        let account = reference(request.account);
        let claims = Claims {
            aud: request.audiences.clone(),
            exp: issued + if extended { EXTENDED_SECONDS } else { request.seconds },
            iat: issued,
            iss: self.issuer.clone(),
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
                warnafter: extended.then_some(issued + request.seconds),
            },
        };
        let header = Header { kid: Some(self.key_id.clone()), typ: None, ..Header::new(Algorithm::ES256) };
        let token = jsonwebtoken::encode(&header, &claims, &self.signing)?;
        let expires = now.saturating_add(SignedDuration::from_secs(request.seconds)).unwrap_or(Timestamp::MAX);
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
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_issuer(&[&self.issuer]);
        // The caller checks times and audiences.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        let decoded = jsonwebtoken::decode::<Claims>(token, &self.verifying, &validation)
            .map_err(|_| super::INVALID_TOKEN.to_owned())?;
        let mut verified = self.verified.lock();
        if verified.len() >= MAX_CACHED_TOKENS {
            verified.clear();
        }
        verified.insert(hash, decoded.claims.clone());
        Ok(decoded.claims)
    }

    /// The response of `/.well-known/openid-configuration`.
    pub fn discovery(&self, keys_uri: &str) -> Value {
        json!({
            "issuer": self.issuer, "jwks_uri": keys_uri, "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"],
        })
    }

    /// The response of `/openid/v1/jwks`.
    pub fn keys(&self) -> Value {
        let (x, y) = coordinates(&self.public_point).unwrap_or_default();
        json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": self.key_id, "crv": "P-256", "alg": "ES256", "x": x, "y": y,
        }]})
    }
}

/// The coordinates of an uncompressed point, encoded as in JSON web keys.
fn coordinates(point: &[u8]) -> Option<(String, String)> {
    let [4, rest @ ..] = point else { return None };
    if rest.len() != 64 {
        return None;
    }
    Some((URL_SAFE_NO_PAD.encode(&rest[..32]), URL_SAFE_NO_PAD.encode(&rest[32..])))
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
mod tests {
    use super::*;
    use crate::object_reader::tests::Fixed;

    fn object(name: &str, uid: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "n", "uid": uid}})
    }

    fn issue(tokens: &ServiceAccountTokens, now: Timestamp) -> String {
        let (account, pod) = (object("sa", "1"), object("p", "2"));
        let request = TokenRequest {
            namespace: "n",
            account: &account,
            audiences: vec!["https://issuer".into()],
            seconds: 600,
            bound: Some(BoundObject { kind: "pod", object: &pod, node: None }),
        };
        tokens.issue(&request, now).unwrap().0
    }

    #[test]
    fn a_token_is_valid_while_its_bound_objects_exist() {
        let tokens = ServiceAccountTokens::for_tests();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let token = issue(&tokens, now);
        let audiences = ["https://issuer".to_owned()];
        let there = Fixed::new(vec![("", "serviceaccounts", object("sa", "1")), ("", "pods", object("p", "2"))]);
        let good = tokens.verify(&token, &audiences, &there, now).unwrap();
        assert_eq!(good.user.name, "system:serviceaccount:n:sa");
        assert_eq!(good.user.extra["authentication.kubernetes.io/pod-name"], ["p"]);

        let later = now + SignedDuration::from_secs(601);
        assert!(tokens.verify(&token, &audiences, &there, later).is_err(), "expired");
        assert!(tokens.verify(&token, &["other".into()], &there, now).is_err(), "other audience");
        let replaced = Fixed::new(vec![("", "serviceaccounts", object("sa", "1")), ("", "pods", object("p", "3"))]);
        assert!(tokens.verify(&token, &audiences, &replaced, now).is_err(), "another pod of the same name");
        assert!(ServiceAccountTokens::for_tests().verify(&token, &audiences, &there, now).is_err(), "another key");
        assert!(tokens.verify("a.b.c", &audiences, &there, now).is_err(), "nonsense");
    }
}
