//! Authentication: which user sent a request. By client certificate or bearer token (token file, service account,
//! bootstrap token, identity provider, webhook), otherwise anonymous where that is allowed. Afterwards the user may
//! impersonate another one.

mod bearer;
mod bootstrap_token;
mod certificate;
mod connection;
mod front_proxy;
mod header;
mod impersonate;
pub mod jwt;
mod reload;
mod saved_sessions;
mod secret_token;
mod service_account;
mod service_account_keys;
mod session;
mod token_file;
mod webhook;

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderMap;
use jiff::Timestamp;
use knarr_api::status::Status;

pub use bearer::bearer;
pub use connection::{AddedAuthorities, ClientAuthorities, ClientConnection, CurrentAuthorities};
pub use front_proxy::{CLIENT as FRONT_PROXY_CLIENT, RequestHeaders};
pub use impersonate::{Impersonated, Impersonation, headers_of as impersonation_headers, replace as impersonate_as};
pub use reload::watch_configuration;
pub use saved_sessions::SavedSessions;
pub(crate) use secret_token::day;
pub use service_account::{BoundObject, ServiceAccountTokens, TokenRequest, TokenSettings};
pub use service_account_keys::KeyError;
pub use session::{Credential, Sessions};
pub use token_file::{TokenFile, TokenFileError};
pub use webhook::TokenWebhook;

use crate::object_reader::ObjectReader;
use crate::request::{GROUP_AUTHENTICATED, User};
use jwt::{Anonymous, JwtAuthenticators};

/// Authenticates requests and tokens with every supported kind of credential.
pub struct Authenticator {
    token_file: TokenFile,
    service_accounts: Arc<ServiceAccountTokens>,
    providers: ArcSwap<JwtAuthenticators>,
    anonymous: Anonymous,
    webhook: Option<TokenWebhook>,
    bootstrap_tokens: bool,
}

/// Authentication beyond the cluster's own credentials.
pub struct External {
    /// Identity providers.
    pub providers: JwtAuthenticators,
    pub anonymous: Anonymous,
    pub webhook: Option<TokenWebhook>,
    /// Whether tokens of nodes that join are accepted: `--enable-bootstrap-token-auth`.
    pub bootstrap_tokens: bool,
}

impl Default for External {
    fn default() -> Self {
        External {
            providers: JwtAuthenticators::default(),
            anonymous: Anonymous::Everywhere,
            webhook: None,
            bootstrap_tokens: true,
        }
    }
}

/// The user of a valid token, and which of the requested audiences the token was issued for.
#[derive(Debug)]
pub struct AuthenticatedToken {
    pub user: User,
    pub audiences: Vec<String>,
    /// A warning for the client that uses the token.
    pub warning: Option<&'static str>,
}

/// The user of a request, and a warning for its client.
pub type UserAndWarning = (User, Option<&'static str>);

impl Authenticator {
    pub fn new(token_file: TokenFile, service_accounts: Arc<ServiceAccountTokens>, external: External) -> Self {
        let External { providers, anonymous, webhook, bootstrap_tokens } = external;
        let providers = ArcSwap::from_pointee(providers);
        Authenticator { token_file, service_accounts, providers, anonymous, webhook, bootstrap_tokens }
    }

    /// The user of a request. A request without credentials is anonymous, where the configuration allows it; one with
    /// invalid credentials is refused.
    pub async fn request(
        &self,
        headers: &HeaderMap,
        path: &str,
        certificate: Option<&User>,
        objects: &dyn ObjectReader,
        now: Timestamp,
    ) -> Result<UserAndWarning, Status> {
        let (mut user, warning) = match (certificate, bearer(headers).map_err(refused)?) {
            (Some(user), _) => (user.clone(), None),
            (None, Some(token)) => {
                let audiences = self.service_accounts.api_audiences();
                // On the heap: most requests need no room for calls of other servers.
                let found = Box::pin(self.token(&token, audiences, objects, now)).await.map_err(refused)?;
                (found.user, found.warning)
            }
            (None, None) if self.anonymous.allows(path) => return Ok((User::anonymous(), None)),
            (None, None) => return Err(Status::unauthorized()),
        };
        if !user.is_in(GROUP_AUTHENTICATED) {
            user.groups.push(GROUP_AUTHENTICATED.to_owned());
        }
        Ok((user, warning))
    }

    /// The user of a token, or why the token is invalid.
    pub async fn token(
        &self,
        token: &str,
        audiences: &[String],
        objects: &dyn ObjectReader,
        now: Timestamp,
    ) -> Result<AuthenticatedToken, String> {
        let own = self.service_accounts.api_audiences();
        // What is no service account's token is valid for this API server only.
        let for_the_api: Vec<String> = audiences.iter().filter(|audience| own.contains(audience)).cloned().collect();
        let of_the_api = |user: User| {
            if for_the_api.is_empty() {
                return Err(INVALID_TOKEN.to_owned());
            }
            Ok(AuthenticatedToken { user, audiences: for_the_api.clone(), warning: None })
        };
        let known = self.token_file.user(token).cloned();
        let bootstrap = || self.bootstrap_tokens.then(|| bootstrap_token::user(token, objects, now)).flatten();
        let known = known.or_else(bootstrap);
        if let Some(user) = known {
            return of_the_api(user);
        }
        let mut errors = Vec::new();
        match self.service_accounts.verify(token, audiences, objects, now) {
            Ok(found) => return Ok(found),
            Err(error) => errors.push(error),
        }
        let providers = self.providers.load_full();
        match providers.user(token, now).await {
            Ok(Some(user)) if !for_the_api.is_empty() => return of_the_api(user),
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
        if let Some(webhook) = &self.webhook {
            match webhook.user(token, audiences, own).await {
                Ok(Some((user, audiences))) => return Ok(AuthenticatedToken { user, audiences, warning: None }),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        errors.retain(|error| error != INVALID_TOKEN);
        Err(match errors.as_slice() {
            [] => INVALID_TOKEN.to_owned(),
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        })
    }

    /// Replaces the identity providers.
    fn set_providers(&self, providers: JwtAuthenticators) {
        self.providers.store(Arc::new(providers));
    }
}

/// The error for a token that no authenticator accepts.
pub const INVALID_TOKEN: &str = "invalid bearer token";

fn refused(why: String) -> Status {
    tracing::debug!(why, "credentials rejected");
    Status::unauthorized()
}

#[cfg(test)]
mod tests {
    use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};

    use super::*;
    use crate::object_reader::tests::Fixed;

    #[tokio::test]
    async fn a_request_is_anonymous_authenticated_or_refused() {
        let file = TokenFile::parse("secret,ann,7,\"devs,ops\"\n").unwrap();
        let accounts = Arc::new(ServiceAccountTokens::for_tests());
        let authenticator = Authenticator::new(file, accounts, External::default());
        let objects = Fixed::new(vec![]);
        let authenticate = async |header: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(AUTHORIZATION, header.parse().unwrap());
            }
            authenticator.request(&headers, "/api", None, &objects, Timestamp::UNIX_EPOCH).await
        };
        assert_eq!(authenticate(None).await.unwrap().0, User::anonymous());
        let (ann, _) = authenticate(Some("bearer secret")).await.unwrap();
        assert_eq!((ann.name.as_str(), ann.groups.join(",").as_str()), ("ann", "devs,ops,system:authenticated"));
        assert_eq!(authenticate(Some("Bearer wrong")).await.unwrap_err().code, 401);
    }

    #[tokio::test]
    async fn requests_are_anonymous_at_allowed_paths_only() {
        let external = External { anonymous: Anonymous::At(vec!["/livez".into()]), ..External::default() };
        let accounts = Arc::new(ServiceAccountTokens::for_tests());
        let authenticator = Authenticator::new(TokenFile::parse("").unwrap(), accounts, external);
        let objects = Fixed::new(vec![]);
        let headers = HeaderMap::new();
        let code = async |path: &str| {
            let known = authenticator.request(&headers, path, None, &objects, Timestamp::UNIX_EPOCH).await;
            known.map(|(user, _)| user.name).map_err(|status| status.code)
        };
        assert_eq!(code("/livez").await, Ok("system:anonymous".into()));
        assert_eq!(code("/api").await, Err(401));
    }

    #[tokio::test]
    async fn bootstrap_tokens_are_accepted_unless_disabled() {
        let encode = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
        let objects = Fixed::new(vec![(
            "",
            "secrets",
            serde_json::json!({"metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
                "type": "bootstrap.kubernetes.io/token", "data": {"token-id": encode("abcdef"),
                "token-secret": encode("0123456789abcdef"), "usage-bootstrap-authentication": encode("true")}}),
        )]);
        for bootstrap_tokens in [true, false] {
            let external = External { bootstrap_tokens, ..External::default() };
            let accounts = Arc::new(ServiceAccountTokens::for_tests());
            let authenticator = Authenticator::new(TokenFile::parse("").unwrap(), accounts, external);
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, "Bearer abcdef.0123456789abcdef".parse().unwrap());
            let known = authenticator.request(&headers, "/api", None, &objects, Timestamp::UNIX_EPOCH).await;
            assert_eq!(known.is_ok(), bootstrap_tokens);
        }
    }

    #[tokio::test]
    async fn an_unreadable_token_does_not_make_a_request_anonymous() {
        let accounts = Arc::new(ServiceAccountTokens::for_tests());
        let file = TokenFile::parse("secret,ann,7,\n").unwrap();
        let authenticator = Authenticator::new(file, accounts, External::default());
        let objects = Fixed::new(vec![]);
        let authenticate = async |fields: &[(http::HeaderName, &[u8])]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(name, http::HeaderValue::from_bytes(value).unwrap());
            }
            let known = authenticator.request(&headers, "/", None, &objects, Timestamp::UNIX_EPOCH).await;
            known.map(|(user, _)| user.name).map_err(|status| status.code)
        };
        assert_eq!(authenticate(&[(AUTHORIZATION, b"Bearer \xff\xfe")]).await, Err(401));
        assert_eq!(authenticate(&[(AUTHORIZATION, "Bearer schlüssel".as_bytes())]).await, Err(401));
        let socket = async |protocols: &'static [u8]| {
            authenticate(&[
                (http::header::UPGRADE, b"websocket"),
                (http::header::CONNECTION, b"Upgrade"),
                (SEC_WEBSOCKET_PROTOCOL, protocols),
            ])
            .await
        };
        assert_eq!(
            socket(b"base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io").await,
            Ok("ann".into())
        );
        assert_eq!(socket(b"v4.channel.k8s.io").await, Ok("system:anonymous".into()));
        for wrong in [
            &b"base64url.bearer.authorization.k8s.io.c2VjcmV0"[..],
            b"base64url.bearer.authorization.k8s.io.!, v4.channel.k8s.io",
            b"base64url.bearer.authorization.k8s.io._w, v4.channel.k8s.io",
            b"base64url.bearer.authorization.k8s.io.eA, base64url.bearer.authorization.k8s.io.eA, v4.channel.k8s.io",
            b"base64url.bearer.authorization.k8s.io.eA, \xff",
        ] {
            assert_eq!(socket(wrong).await, Err(401), "{}", String::from_utf8_lossy(wrong));
        }
    }
}
