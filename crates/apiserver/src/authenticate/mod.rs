//! Authentication: which user sent a request. By client certificate or bearer token (token file, bootstrap token, service
//! account), otherwise anonymous. Afterwards the user may impersonate another one.

mod bootstrap_token;
mod certificate;
mod connection;
mod front_proxy;
mod header;
mod impersonate;
mod secret_token;
mod service_account;
mod token_file;

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use jiff::Timestamp;
use knarr_api::status::Status;

pub use connection::{ClientAuthorities, ClientConnection};
pub use front_proxy::{CLIENT as FRONT_PROXY_CLIENT, user_of_headers};
pub use impersonate::impersonate;
pub use secret_token::{publish_tracking_start, record_token_uses};
pub use service_account::{BoundObject, KeyError, ServiceAccountTokens, TokenRequest};
pub use token_file::{TokenFile, TokenFileError};

use crate::object_reader::ObjectReader;
use crate::request::{GROUP_AUTHENTICATED, User};

/// Authenticates requests and tokens with every supported kind of credential.
pub struct Authenticator {
    token_file: TokenFile,
    service_accounts: Arc<ServiceAccountTokens>,
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
    pub fn new(token_file: TokenFile, service_accounts: Arc<ServiceAccountTokens>) -> Self {
        Authenticator { token_file, service_accounts }
    }

    /// The user of a request. A request without credentials is anonymous; one with invalid credentials is refused.
    pub fn request(
        &self,
        headers: &HeaderMap,
        certificate: Option<&User>,
        objects: &dyn ObjectReader,
        now: Timestamp,
    ) -> Result<UserAndWarning, Status> {
        let (mut user, warning) = match (certificate, bearer(headers).map_err(refused)?) {
            (Some(user), _) => (user.clone(), None),
            (None, Some(token)) => {
                let audiences = self.service_accounts.api_audiences();
                let found = self.token(&token, audiences, objects, now).map_err(refused)?;
                (found.user, found.warning)
            }
            (None, None) => return Ok((User::anonymous(), None)),
        };
        if !user.is_in(GROUP_AUTHENTICATED) {
            user.groups.push(GROUP_AUTHENTICATED.to_owned());
        }
        Ok((user, warning))
    }

    /// The user of a token, or why the token is invalid.
    pub fn token(
        &self,
        token: &str,
        audiences: &[String],
        objects: &dyn ObjectReader,
        now: Timestamp,
    ) -> Result<AuthenticatedToken, String> {
        let for_the_api = || {
            let own = self.service_accounts.api_audiences();
            audiences.iter().filter(|audience| own.contains(audience)).cloned().collect::<Vec<_>>()
        };
        let known = self.token_file.user(token).cloned().or_else(|| bootstrap_token::user(token, objects, now));
        if let Some(user) = known {
            let common = for_the_api();
            // These tokens are valid only for this API server.
            return if common.is_empty() {
                Err(INVALID_TOKEN.to_owned())
            } else {
                Ok(AuthenticatedToken { user, audiences: common, warning: None })
            };
        }
        self.service_accounts.verify(token, audiences, objects, now)
    }
}

/// The error for a token that no authenticator accepts.
pub const INVALID_TOKEN: &str = "invalid bearer token";

fn refused(why: String) -> Status {
    tracing::debug!(why, "credentials rejected");
    Status::unauthorized()
}

/// The token of an `Authorization: Bearer` header, or of a WebSocket's subprotocol, which is where browsers must put it.
fn bearer(headers: &HeaderMap) -> Result<Option<String>, String> {
    let text = header::text(headers, AUTHORIZATION.as_str()).map_err(|error| error.to_string())?;
    let token = text.and_then(|text| text.trim().split_once(' ')).and_then(|(scheme, token)| {
        let token = token.trim();
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    });
    match token {
        Some(token) => Ok(Some(token.to_owned())),
        None => websocket_bearer(headers),
    }
}

const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

fn websocket_bearer(headers: &HeaderMap) -> Result<Option<String>, String> {
    if !crate::watch::websocket::is_requested(headers) {
        return Ok(None);
    }
    let offered = header::texts(headers, SEC_WEBSOCKET_PROTOCOL.as_str()).map_err(|error| error.to_string())?;
    let (tokens, others): (Vec<&str>, Vec<&str>) = offered
        .iter()
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .partition(|name| name.starts_with(TOKEN_PROTOCOL));
    let token = match tokens[..] {
        [] => return Ok(None),
        [token] if !others.is_empty() => token.strip_prefix(TOKEN_PROTOCOL).unwrap_or_default(),
        [_] => return Err("missing additional subprotocol".to_owned()),
        _ => return Err("multiple base64.bearer.authorization tokens specified".to_owned()),
    };
    let decoded = URL_SAFE_NO_PAD.decode(token).map_err(|error| error.to_string())?;
    let decoded = String::from_utf8(decoded).map_err(|_| "invalid base64.bearer.authorization token".to_owned())?;
    if decoded.is_empty() { Err("empty token".to_owned()) } else { Ok(Some(decoded)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_reader::tests::Fixed;

    #[test]
    fn a_request_is_anonymous_authenticated_or_refused() {
        let file = TokenFile::parse("secret,ann,7,\"devs,ops\"\n").unwrap();
        let accounts = Arc::new(ServiceAccountTokens::for_tests());
        let authenticator = Authenticator::new(file, accounts);
        let objects = Fixed::new(vec![]);
        let authenticate = |header: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(AUTHORIZATION, header.parse().unwrap());
            }
            authenticator.request(&headers, None, &objects, Timestamp::UNIX_EPOCH)
        };
        assert_eq!(authenticate(None).unwrap().0, User::anonymous());
        let (ann, _) = authenticate(Some("bearer secret")).unwrap();
        assert_eq!((ann.name.as_str(), ann.groups.join(",").as_str()), ("ann", "devs,ops,system:authenticated"));
        assert_eq!(authenticate(Some("Bearer wrong")).unwrap_err().code, 401);
    }

    #[test]
    fn an_unreadable_token_does_not_make_a_request_anonymous() {
        let accounts = Arc::new(ServiceAccountTokens::for_tests());
        let file = TokenFile::parse("secret,ann,7,\n").unwrap();
        let authenticator = Authenticator::new(file, accounts);
        let objects = Fixed::new(vec![]);
        let authenticate = |fields: &[(http::HeaderName, &[u8])]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(name, http::HeaderValue::from_bytes(value).unwrap());
            }
            let known = authenticator.request(&headers, None, &objects, Timestamp::UNIX_EPOCH);
            known.map(|(user, _)| user.name).map_err(|status| status.code)
        };
        assert_eq!(authenticate(&[(AUTHORIZATION, b"Bearer \xff\xfe")]), Err(401));
        assert_eq!(authenticate(&[(AUTHORIZATION, "Bearer schlüssel".as_bytes())]), Err(401));
        let socket = |protocols: &'static [u8]| {
            authenticate(&[
                (http::header::UPGRADE, b"websocket"),
                (http::header::CONNECTION, b"Upgrade"),
                (SEC_WEBSOCKET_PROTOCOL, protocols),
            ])
        };
        assert_eq!(socket(b"base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io"), Ok("ann".into()));
        assert_eq!(socket(b"v4.channel.k8s.io"), Ok("system:anonymous".into()));
        for wrong in [
            &b"base64url.bearer.authorization.k8s.io.c2VjcmV0"[..],
            b"base64url.bearer.authorization.k8s.io.!, v4.channel.k8s.io",
            b"base64url.bearer.authorization.k8s.io._w, v4.channel.k8s.io",
            b"base64url.bearer.authorization.k8s.io.eA, base64url.bearer.authorization.k8s.io.eA, v4.channel.k8s.io",
            b"base64url.bearer.authorization.k8s.io.eA, \xff",
        ] {
            assert_eq!(socket(wrong), Err(401), "{}", String::from_utf8_lossy(wrong));
        }
    }
}
