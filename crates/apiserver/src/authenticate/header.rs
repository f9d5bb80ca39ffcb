//! Reads headers that decide the user of a request. An unreadable value is an error: ignoring it could attribute the request
//! to another user.

use http::HeaderMap;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value of the header {0} is not valid UTF-8")]
pub struct HeaderError(String);

/// All values of a header. UTF-8 is accepted, as Kubernetes accepts raw bytes.
pub fn texts(headers: &HeaderMap, name: &str) -> Result<Vec<String>, HeaderError> {
    let read = |value: &http::HeaderValue| match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(HeaderError(name.to_owned())),
    };
    headers.get_all(name).iter().map(read).collect()
}

/// The first value of a header.
pub fn text<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, HeaderError> {
    let value = headers.get(name).map(|value| std::str::from_utf8(value.as_bytes()));
    value.transpose().map_err(|_| HeaderError(name.to_owned()))
}
