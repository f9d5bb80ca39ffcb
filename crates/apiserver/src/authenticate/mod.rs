//! Authentication: who asks. By client certificate, by token (file, bootstrap, service account), or nobody; then, where
//! the request asks for it and the user may, as somebody else.

mod bootstrap_token;
mod certificate;
mod front_proxy;
mod held_token;
mod impersonate;
mod service_account;
mod token_file;

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use knarr_api::status::Status;

pub use certificate::user_of_certificate;
pub use front_proxy::{CLIENT as FRONT_PROXY_CLIENT, is_front_proxy, user_of_headers};
pub use held_token::{follow as follow_uses, publish_since};
pub use impersonate::impersonate;
pub use service_account::{Bound, KeyError, ServiceAccountTokens, TokenRequest};
pub use token_file::{TokenFile, TokenFileError};

use crate::objects::Objects;
use crate::request::{GROUP_AUTHENTICATED, User};

/// Knows every kind of credential.
pub struct Authenticator {
    token_file: TokenFile,
    service_accounts: Arc<ServiceAccountTokens>,
}

/// A token that was found good, and the audiences it was made for among those asked about.
#[derive(Debug)]
pub struct Authenticated {
    pub user: User,
    pub audiences: Vec<String>,
    /// What whoever uses it should know.
    pub warning: Option<&'static str>,
}

/// Whose request it is, and what they are to be warned of.
pub type Known = (User, Option<&'static str>);

impl Authenticator {
    pub fn new(token_file: TokenFile, service_accounts: Arc<ServiceAccountTokens>) -> Self {
        Authenticator { token_file, service_accounts }
    }

    /// Who sent a request. A request without credentials is anonymous; one with wrong credentials is refused.
    pub fn request(
        &self,
        headers: &HeaderMap,
        certificate: Option<&User>,
        objects: &dyn Objects,
        now: Timestamp,
    ) -> Result<Known, Status> {
        let (mut user, warning) = match (certificate, bearer(headers)) {
            (Some(user), _) => (user.clone(), None),
            (None, Some(token)) => {
                let audiences = self.service_accounts.api_audiences();
                let found = self.token(token, audiences, objects, now).map_err(|why| {
                    tracing::debug!(why, "a token was refused");
                    Status::unauthorized()
                })?;
                (found.user, found.warning)
            }
            (None, None) => return Ok((User::anonymous(), None)),
        };
        if !user.is_in(GROUP_AUTHENTICATED) {
            user.groups.push(GROUP_AUTHENTICATED.to_owned());
        }
        Ok((user, warning))
    }

    /// Whom a token stands for, or why it stands for nobody.
    pub fn token(
        &self,
        token: &str,
        audiences: &[String],
        objects: &dyn Objects,
        now: Timestamp,
    ) -> Result<Authenticated, String> {
        let for_the_api = || {
            let own = self.service_accounts.api_audiences();
            audiences.iter().filter(|audience| own.contains(audience)).cloned().collect::<Vec<_>>()
        };
        let known = self.token_file.user(token).cloned().or_else(|| bootstrap_token::user(token, objects, now));
        if let Some(user) = known {
            let common = for_the_api();
            // Such tokens are for this server alone.
            return if common.is_empty() {
                Err(UNKNOWN.to_owned())
            } else {
                Ok(Authenticated { user, audiences: common, warning: None })
            };
        }
        self.service_accounts.verify(token, audiences, objects, now)
    }
}

/// What is said of a token that nobody knows.
pub const UNKNOWN: &str = "invalid bearer token";

/// The token of an `Authorization: Bearer` header, or of a WebSocket's subprotocol, where browsers have to put it.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::tests::Fixed;

    #[test]
    fn a_request_is_anonymous_known_or_refused() {
        let file = TokenFile::parse("secret,ann,7,\"devs,ops\"\n").unwrap();
        let accounts = Arc::new(ServiceAccountTokens::for_tests());
        let authenticator = Authenticator::new(file, accounts);
        let objects = Fixed::new(vec![]);
        let ask = |header: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(AUTHORIZATION, header.parse().unwrap());
            }
            authenticator.request(&headers, None, &objects, Timestamp::UNIX_EPOCH)
        };
        assert_eq!(ask(None).unwrap().0, User::anonymous());
        let (ann, _) = ask(Some("bearer secret")).unwrap();
        assert_eq!((ann.name.as_str(), ann.groups.join(",").as_str()), ("ann", "devs,ops,system:authenticated"));
        assert_eq!(ask(Some("Bearer wrong")).unwrap_err().code, 401);
    }
}
