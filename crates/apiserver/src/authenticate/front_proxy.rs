//! Users authenticated by a front proxy, which presents a certificate of its own authority and names the user in headers.

use http::HeaderMap;

use super::header::{HeaderError, texts};
use crate::request::User;

/// The common name that a front proxy's certificate must have.
pub const CLIENT: &str = "front-proxy-client";

/// The user that the headers name, if any.
pub fn user_of_headers(headers: &HeaderMap) -> Result<Option<User>, HeaderError> {
    let first = |name: &str| texts(headers, name).map(|texts| texts.into_iter().next().unwrap_or_default());
    let name = first("x-remote-user")?;
    if name.is_empty() {
        return Ok(None);
    }
    let groups = texts(headers, "x-remote-group")?;
    let mut user = User { name, groups, uid: first("x-remote-uid")?, ..User::default() };
    for header in headers.keys() {
        if let Some(key) = header.as_str().strip_prefix("x-remote-extra-") {
            let key = crate::route::query::decode(key, false).to_lowercase();
            user.extra.entry(key).or_default().extend(texts(headers, header.as_str())?);
        }
    }
    Ok(Some(user))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_the_user() {
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
}
