//! The parameters and path segments of a request.

use http::Request;

/// The parameters of a query; a name may come more than once.
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn of<B>(request: &Request<B>) -> Self {
        let query = request.uri().query().unwrap_or_default();
        Self(query.split('&').filter(|part| !part.is_empty()).map(pair).collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
    }

    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| matches!(value, "1" | "true" | "True" | "TRUE"))
    }
}

fn pair(part: &str) -> (String, String) {
    let (key, value) = part.split_once('=').unwrap_or((part, ""));
    (decode(key, true), decode(value, true))
}

/// Decodes percent escapes, and `+` as a blank in queries.
pub fn decode(text: &str, plus_is_blank: bool) -> String {
    let bytes = text.as_bytes();
    let mut result = Vec::with_capacity(bytes.len());
    let mut position = 0;
    while position < bytes.len() {
        let hex = (bytes[position] == b'%').then(|| text.get(position + 1..position + 3)).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                result.push(byte);
                position += 3;
            }
            None => {
                result.push(if plus_is_blank && bytes[position] == b'+' { b' ' } else { bytes[position] });
                position += 1;
            }
        }
    }
    String::from_utf8_lossy(&result).into_owned()
}
