//! Query parameters.

use std::borrow::Cow;

use knarr_api::status::Status;

/// The query parameters of a request in their order.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
    text: String,
}

impl Query {
    /// Parses a query string.
    pub fn parse(text: &str) -> Query {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key, true).into_owned(), decode(value, true).into_owned())
        });
        Query { pairs: pairs.collect(), text: text.to_owned() }
    }

    /// The query string as the client sent it.
    pub fn encoded(&self) -> &str {
        &self.text
    }

    /// The first value of a parameter.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(own, _)| own == key).map(|(_, value)| value.as_str())
    }

    /// The first value of a parameter, or an empty text.
    pub fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or_default()
    }

    /// All values of a parameter.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(own, _)| own == key).map(|(_, value)| value.as_str())
    }

    /// Whether a parameter is present, even if it is empty.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Anything but `false` and `0` is true, an empty value too.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(|value| !value.eq_ignore_ascii_case("false") && value != "0")
    }

    /// The value of a parameter as a number.
    pub fn integer(&self, key: &str) -> Result<Option<i64>, Status> {
        match self.get(key) {
            None | Some("") => Ok(None),
            Some(text) => parse_integer(text).map(Some),
        }
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

/// Parses a signed number.
pub fn parse_integer(text: &str) -> Result<i64, Status> {
    text.parse::<i64>().map_err(|error| {
        let why = match error.kind() {
            std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
    })
}

/// Decodes percent encoding; in queries a plus is a space.
pub fn decode(text: &str, plus_is_space: bool) -> Cow<'_, str> {
    if !text.bytes().any(|byte| byte == b'%' || (plus_is_space && byte == b'+')) {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'+' if plus_is_space => decoded.push(b' '),
            b'%' => match (bytes.get(at + 1).and_then(hex), bytes.get(at + 2).and_then(hex)) {
                (Some(high), Some(low)) => {
                    decoded.push(high << 4 | low);
                    at += 2;
                }
                _ => decoded.push(b'%'),
            },
            byte => decoded.push(byte),
        }
        at += 1;
    }
    Cow::Owned(
        String::from_utf8(decoded).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
    )
}

fn hex(byte: &u8) -> Option<u8> {
    (*byte as char).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_read() {
        let query = Query::parse("labelSelector=a%20in%20(b,c)&watch&limit=abc&x=1&x=2&plus=a+b");
        assert_eq!(query.text("labelSelector"), "a in (b,c)");
        assert_eq!(query.flag("watch"), Some(true));
        assert_eq!(query.all("x").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(query.text("plus"), "a b");
        let refusal = query.integer("limit").unwrap_err();
        assert_eq!(refusal.message, "strconv.ParseInt: parsing \"abc\": invalid syntax");
    }

    #[test]
    fn broken_escapes_stay_as_they_are() {
        assert_eq!(decode("a%2", false), "a%2");
        assert_eq!(decode("a%zz+", false), "a%zz+");
        assert_eq!(decode("%2Fx", false), "/x");
    }
}
