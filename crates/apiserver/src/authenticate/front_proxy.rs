//! Users authenticated by a front proxy, which presents a certificate of its own authority and names the user in headers.

use http::{HeaderMap, HeaderName};

use super::header::{HeaderError, texts};
use crate::request::User;

/// The common name that a front proxy's certificate must have.
pub const CLIENT: &str = "front-proxy-client";

/// The headers in which front proxies name users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeaders {
    pub username: Vec<String>,
    pub uid: Vec<String>,
    pub group: Vec<String>,
    pub extra_prefixes: Vec<String>,
}

impl Default for RequestHeaders {
    fn default() -> Self {
        let one = |name: &str| vec![name.to_owned()];
        RequestHeaders {
            username: one("X-Remote-User"),
            uid: one("X-Remote-Uid"),
            group: one("X-Remote-Group"),
            extra_prefixes: one("X-Remote-Extra-"),
        }
    }
}

impl RequestHeaders {
    /// Whether a header names users.
    pub fn is_one(&self, name: &HeaderName) -> bool {
        let is_named = |own: &String| name.as_str().eq_ignore_ascii_case(own);
        let starts =
            |prefix: &String| name.as_str().get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
        self.username.iter().chain(&self.uid).chain(&self.group).any(is_named) || self.extra_prefixes.iter().any(starts)
    }

    /// The user that the headers name, if any. Of several names for an attribute, the first that is given counts.
    pub fn user(&self, headers: &HeaderMap) -> Result<Option<User>, HeaderError> {
        let first = |names: &[String]| -> Result<String, HeaderError> {
            for name in names {
                if let Some(text) = texts(headers, name)?.into_iter().find(|text| !text.is_empty()) {
                    return Ok(text);
                }
            }
            Ok(String::new())
        };
        let name = first(&self.username)?;
        if name.is_empty() {
            return Ok(None);
        }
        let mut user = User { name, uid: first(&self.uid)?, ..User::default() };
        for name in &self.group {
            user.groups.extend(texts(headers, name)?);
        }
        for header in headers.keys() {
            let key = self.extra_prefixes.iter().find_map(|prefix| {
                let name = header.as_str();
                let matches = name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
                matches.then(|| &name[prefix.len()..])
            });
            if let Some(key) = key {
                let key = crate::route::query::decode(key, false).to_lowercase();
                user.extra.entry(key).or_default().extend(texts(headers, header.as_str())?);
            }
        }
        Ok(Some(user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_the_user() {
        let user_of_headers = |headers: &HeaderMap| RequestHeaders::default().user(headers);
        let mut headers = HeaderMap::new();
        assert_eq!(user_of_headers(&headers), Ok(None));
        for (name, value) in [
            ("x-remote-user", "ann"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-extra-example.com%2fscope", "all"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let user = user_of_headers(&headers).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.groups.join(",").as_str()), ("ann", "a,b"));
        assert_eq!(user.extra["example.com/scope"], ["all"]);
        for name in ["x-remote-user", "x-remote-group", "x-remote-uid", "x-remote-extra-scope"] {
            let mut headers = headers.clone();
            let unreadable = http::HeaderValue::from_bytes(b"\xff").unwrap();
            headers.insert(http::HeaderName::from_static(name), unreadable);
            assert!(user_of_headers(&headers).is_err(), "{name}");
        }
    }

    #[test]
    fn headers_have_the_configured_names() {
        let own = RequestHeaders {
            username: vec!["X-User".into(), "X-Name".into()],
            uid: vec![],
            group: vec!["X-Team".into()],
            extra_prefixes: vec!["X-More-".into()],
        };
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", "eve".parse().unwrap());
        assert_eq!(own.user(&headers), Ok(None));
        for (name, value) in [("x-name", "ann"), ("x-team", "a"), ("x-remote-group", "b"), ("x-more-scope", "all")] {
            headers.append(http::HeaderName::from_static(name), value.parse().unwrap());
        }
        let user = own.user(&headers).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.groups.join(",").as_str()), ("ann", "a"));
        assert_eq!(user.extra["scope"], ["all"]);
        let is_one = |name: &'static str| own.is_one(&HeaderName::from_static(name));
        assert!(["x-user", "x-name", "x-team", "x-more-scope"].into_iter().all(is_one));
        assert!(!["x-remote-user", "x-mor", "x-users", "accept"].into_iter().any(is_one));
    }
}
