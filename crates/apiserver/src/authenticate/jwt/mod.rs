//! Tokens of identity providers: JSON web tokens whose issuers an AuthenticationConfiguration (or the `--oidc-*` flags)
//! names. Claims become a user by claim names or CEL expressions. Error messages are those of Kubernetes.

mod configuration;
mod discovery;
mod distributed;
mod expression;
mod flags;
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile_tests;
mod key_set;
mod mapping;
mod signature;
#[cfg(test)]
pub(crate) mod test_issuer;
mod token;

use std::sync::Arc;

use jiff::Timestamp;
use knarr_api::field::Errors;

pub use configuration::{Anonymous, Configuration, ConfigurationError};
pub use flags::{OidcFlags, OidcFlagsError};
pub use signature::Algorithm;
pub(super) use signature::PublicKey;
pub(super) use token::UntrustedToken;

use crate::request::User;
use configuration::Issuer;
use discovery::Provider;
use mapping::Mapping;

/// Authenticates the tokens of one issuer.
pub struct JwtAuthenticator {
    issuer: Issuer,
    mapping: Mapping,
    provider: Provider,
    groups_claim: distributed::Resolver,
}

impl JwtAuthenticator {
    fn new(issuer: Issuer, mapping: Mapping, algorithms: Vec<Algorithm>) -> Result<Self, ConfigurationError> {
        let provider = Provider::new(&issuer, algorithms.clone())?;
        let groups_claim = distributed::Resolver::new(mapping.groups_claim(), &issuer, algorithms)?;
        Ok(JwtAuthenticator { issuer, mapping, provider, groups_claim })
    }

    /// The user of a token; `None` if the token is not of this issuer.
    async fn user(&self, token: &str, now: Timestamp) -> Result<Option<User>, String> {
        let Some(parsed) = UntrustedToken::parse(token).filter(|token| token.issuer() == self.issuer.url) else {
            return Ok(None);
        };
        let keys = self.provider.keys().ok_or("oidc: authenticator not initialized")?;
        let verified = token::verify(&parsed, &self.issuer.url, &self.issuer.audiences, &keys, now).await;
        let mut claims = verified.map_err(|error| format!("oidc: verify token: {error}"))?;
        let expanded = self.groups_claim.expand(&mut claims, now).await;
        expanded.map_err(|error| format!("oidc: could not expand distributed claims: {error}"))?;
        self.mapping.user(&claims).map(Some)
    }

    /// Whether keys can be fetched, or why not.
    fn health(&self) -> Result<(), String> {
        self.provider
            .health()
            .map_err(|error| format!("oidc: authenticator for issuer {:?} is not healthy: {error}", self.issuer.url))
    }
}

/// The authenticators of all configured issuers.
#[derive(Default)]
pub struct JwtAuthenticators(Vec<JwtAuthenticator>);

impl JwtAuthenticators {
    /// Starts fetching the issuers' keys; dropping the authenticators stops it.
    pub fn start(configuration: &Configuration, algorithms: &[Algorithm]) -> Result<Self, ConfigurationError> {
        let mut all = Vec::new();
        let mut errors = Errors::new();
        for (index, document) in configuration.issuers().iter().enumerate() {
            let (issuer, mapping) = configuration::compile(document, index, configuration.reserved(), &mut errors);
            if let (Some(issuer), Some(mapping)) = (issuer, mapping) {
                all.push(JwtAuthenticator::new(issuer, mapping, algorithms.to_vec())?);
            }
        }
        if errors.is_empty() { Ok(JwtAuthenticators(all)) } else { Err(ConfigurationError::of(&errors)) }
    }

    /// The user of a token, or the first error. `None` if the token is of none of the issuers.
    pub async fn user(&self, token: &str, now: Timestamp) -> Result<Option<User>, String> {
        for authenticator in &self.0 {
            if let Some(user) = authenticator.user(token, now).await? {
                return Ok(Some(user));
            }
        }
        Ok(None)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The errors of issuers that cannot be used at present.
    pub fn unhealthy(&self) -> Vec<String> {
        self.0.iter().filter_map(|one| one.health().err()).collect()
    }
}

/// Shared by the tasks that use a provider.
type Shared<T> = Arc<arc_swap::ArcSwapOption<T>>;

#[cfg(test)]
mod tests {
    use super::test_issuer::{TestIssuer, claims};
    use super::*;
    use serde_json::json;

    async fn authenticators(yaml: &str) -> JwtAuthenticators {
        let configuration = Configuration::parse(yaml, &[]).unwrap();
        let started = JwtAuthenticators::start(&configuration, &Algorithm::ALL).unwrap();
        test_issuer::initialized(&started).await;
        started
    }

    fn now() -> Timestamp {
        Timestamp::now()
    }

    #[tokio::test]
    async fn claims_become_a_user_by_name() {
        let issuer = TestIssuer::start().await;
        let jwt = authenticators(&issuer.configuration(
            "claimMappings: {username: {claim: sub, prefix: 'oidc:'}, groups: {claim: roles, prefix: 'g:'}, \
             uid: {claim: id}}",
        ))
        .await;
        let token = issuer.sign(&claims(&issuer, json!({"roles": ["a", "b"], "id": "7", "jti": "j"})));
        let user = jwt.user(&token, now()).await.unwrap().unwrap();
        assert_eq!(
            (user.name.as_str(), user.uid.as_str(), user.groups.join(",").as_str()),
            ("oidc:ann", "7", "g:a,g:b")
        );
        assert_eq!(user.extra["authentication.kubernetes.io/credential-id"], ["JTI=j"]);
        let single = issuer.sign(&claims(&issuer, json!({"roles": "only", "id": "7"})));
        assert_eq!(jwt.user(&single, now()).await.unwrap().unwrap().groups, ["g:only"]);
        let without = issuer.sign(&claims(&issuer, json!({"roles": []})));
        let refused = jwt.user(&without, now()).await.unwrap_err();
        assert_eq!(refused, "oidc: parse uid claim \"id\": claim not present");
        assert_eq!(jwt.user("not.a.token", now()).await, Ok(None));
    }

    #[tokio::test]
    async fn claims_become_a_user_by_expressions() {
        let issuer = TestIssuer::start().await;
        let jwt = authenticators(&issuer.configuration(
            "claimMappings:\n    username: {expression: \"claims.sub + ':' + claims.tenant\"}\n    \
             groups: {expression: 'claims.roles.split(\",\")'}\n    uid: {expression: claims.id}\n    \
             extra: [{key: example.org/team, valueExpression: 'claims.?team.orValue(\"none\")'}]\n  \
             claimValidationRules: [{claim: hd, requiredValue: example.org}, \
             {expression: 'claims.exp - claims.iat <= 3600', message: too long}]\n  \
             userValidationRules: [{expression: \"!user.username.startsWith('system:')\", message: reserved}]",
        ))
        .await;
        let good = json!({"tenant": "t", "roles": "a,b", "id": "7", "hd": "example.org"});
        let with = |change: serde_json::Value| {
            let mut all = good.clone();
            all.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            issuer.sign(&claims(&issuer, all))
        };
        let user = jwt.user(&with(json!({})), now()).await.unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.groups.join(",").as_str()), ("ann:t", "a,b"));
        assert_eq!(user.extra["example.org/team"], ["none"]);
        for (change, refused) in [
            (json!({"hd": "other"}), "oidc: required claim hd value does not match. Got = other, want = example.org"),
            (
                json!({"sub": "system:masters"}),
                "oidc: error evaluating user info validation rule: validation expression \
                 '!user.username.startsWith('system:')' failed: reserved",
            ),
            (
                json!({"iat": 5}),
                "oidc: error evaluating claim validation expression: validation expression \
                 'claims.exp - claims.iat <= 3600' failed: too long",
            ),
            (
                json!({"id": 7}),
                "oidc: error evaluating uid claim expression: uid claim expression must return a string",
            ),
            (
                json!({"roles": 7}),
                "oidc: error evaluating group claim expression: expression 'claims.roles.split(\",\")' resulted in \
                 error: no such overload",
            ),
        ] {
            assert_eq!(jwt.user(&with(change), now()).await, Err(refused.to_owned()));
        }
    }

    #[tokio::test]
    async fn an_unverified_address_is_no_name() {
        let issuer = TestIssuer::start().await;
        let jwt = authenticators(&issuer.configuration("claimMappings: {username: {claim: email, prefix: ''}}")).await;
        let user = |extra: serde_json::Value| {
            let token = issuer.sign(&claims(&issuer, extra));
            let jwt = &jwt;
            async move { jwt.user(&token, now()).await.map(|user| user.unwrap().name) }
        };
        assert_eq!(user(json!({"email": "a@b"})).await, Ok("a@b".to_owned()));
        assert_eq!(user(json!({"email": "a@b", "email_verified": true})).await, Ok("a@b".to_owned()));
        let refused = user(json!({"email": "a@b", "email_verified": false})).await;
        assert_eq!(refused, Err("oidc: email not verified".to_owned()));
        assert!(user(json!({"email": "a@b", "email_verified": "yes"})).await.is_err());
    }

    #[tokio::test]
    async fn groups_are_fetched_from_where_a_token_says() {
        let issuer = TestIssuer::start().await;
        let jwt = authenticators(&issuer.configuration(
            "claimMappings: {username: {claim: sub, prefix: ''}, groups: {claim: groups, prefix: 'd:'}}",
        ))
        .await;
        issuer.serve_text("/groups", &issuer.sign(&claims(&issuer, json!({"groups": ["far"]}))));
        let source = format!("{}/groups", issuer.url());
        let token = issuer.sign(&claims(
            &issuer,
            json!({"_claim_names": {"groups": "s"}, "_claim_sources": {"s": {"endpoint": source, "access_token": "t"}}}),
        ));
        // The first use of a source's issuer starts its discovery.
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        let user = loop {
            match jwt.user(&token, now()).await {
                Ok(user) => break user.unwrap(),
                Err(error) => assert!(error.contains("verifier not initialized"), "{error}"),
            }
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        };
        assert_eq!(user.groups, ["d:far"]);
    }
}
