//! Headers that decide whose request it is. What cannot be read is an error: overlooked, it would make the request
//! somebody else's.

use http::HeaderMap;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value of the header {0} is not valid UTF-8")]
pub struct Unreadable(String);

/// All values of a header. They are UTF-8, as in the servers of Kubernetes, which take bytes as they come.
pub fn texts(headers: &HeaderMap, name: &str) -> Result<Vec<String>, Unreadable> {
    let read = |value: &http::HeaderValue| match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(Unreadable(name.to_owned())),
    };
    headers.get_all(name).iter().map(read).collect()
}

/// The first value of a header.
pub fn text<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, Unreadable> {
    let value = headers.get(name).map(|value| std::str::from_utf8(value.as_bytes()));
    value.transpose().map_err(|_| Unreadable(name.to_owned()))
}
