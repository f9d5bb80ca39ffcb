//! Names of objects in paths of requests.

use std::borrow::Cow;
use std::fmt::Write as _;

/// A name as it is written in a path. Requests contain names as they are given: of a role or a certificate request named
/// `a?b`, which is allowed, they would be about `a`.
pub fn path_name(name: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte);
    if name.bytes().all(is_plain) {
        return name.into();
    }
    let mut written = String::with_capacity(name.len() * 2);
    for byte in name.bytes() {
        match is_plain(byte) {
            true => written.push(byte.into()),
            false => drop(write!(written, "%{byte:02X}")),
        }
    }
    written.into()
}

#[cfg(test)]
mod tests {
    use super::path_name;

    #[test]
    fn names_are_escaped() {
        for (name, written) in
            [("a-b.c", "a-b.c"), ("system:node", "system:node"), ("r?x#y", "r%3Fx%23y"), ("a ä", "a%20%C3%A4")]
        {
            assert_eq!(path_name(name), written);
        }
    }
}
