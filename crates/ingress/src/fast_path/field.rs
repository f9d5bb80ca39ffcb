//! Classifies header fields that a proxy must handle itself.

use crate::forwarded::is_origin_header;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Connection,
    ContentLength,
    Host,
    TransferEncoding,
    Upgrade,
    /// Requests something beyond forwarding bytes.
    Special,
    /// Hop-by-hop.
    HopByHop,
    /// Set by the proxy only, whatever a client sends.
    Origin,
    EndToEnd,
}

impl Field {
    pub fn of(name: &str) -> Self {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        // Most names are distinguished by their length already.
        match name.len() {
            2 if is("te") => Field::Special,
            4 if is("host") => Field::Host,
            6 if is("expect") => Field::Special,
            7 if is("upgrade") => Field::Upgrade,
            10 if is("connection") => Field::Connection,
            10 if is("keep-alive") => Field::HopByHop,
            14 if is("content-length") => Field::ContentLength,
            16 if is("proxy-connection") => Field::HopByHop,
            17 if is("transfer-encoding") => Field::TransferEncoding,
            18 if is("proxy-authenticate") => Field::HopByHop,
            19 if is("proxy-authorization") => Field::HopByHop,
            9 | 13.. if is_origin_header(name) => Field::Origin,
            _ => Field::EndToEnd,
        }
    }
}

/// The tokens of a list such as `keep-alive, close`.
pub fn words(value: &[u8]) -> impl Iterator<Item = &str> {
    let text = std::str::from_utf8(value).unwrap_or("?");
    text.split(',').map(str::trim).filter(|word| !word.is_empty())
}

/// Parses a Content-Length: digits only.
pub fn length(value: &[u8]) -> Option<u64> {
    let is_plain = !value.is_empty() && value.len() < 19 && value.iter().all(u8::is_ascii_digit);
    is_plain.then(|| std::str::from_utf8(value).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_known_in_any_case() {
        for (name, expected) in [
            ("Host", Field::Host),
            ("CONTENT-length", Field::ContentLength),
            ("X-Forwarded-For", Field::Origin),
            ("TE", Field::Special),
            ("Accept", Field::EndToEnd),
            ("Forwarded", Field::Origin),
            ("X_Forwarded_For", Field::Origin),
            ("x-forwarded-prefix", Field::Origin),
            ("x-forward", Field::EndToEnd),
        ] {
            assert_eq!(Field::of(name), expected, "{name}");
        }
        for (value, expected) in
            [("12", Some(12)), ("", None), ("+1", None), ("1 ", None), ("9999999999999999999", None)]
        {
            assert_eq!(length(value.as_bytes()), expected, "{value:?}");
        }
    }
}
