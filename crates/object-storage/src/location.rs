//! `s3://bucket/key`.

use std::fmt;
use std::str::FromStr;

/// An object, or the common start of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub bucket: String,
    /// Without a slash at its start; may be empty.
    pub key: String,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not of the form s3://BUCKET/KEY")]
pub struct InvalidLocation(String);

impl Location {
    /// Whether a text is meant as a location, and not as the name of a file.
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with("s3://")
    }

    /// The key of an object below this location.
    pub fn child(&self, name: &str) -> String {
        let parent = self.key.trim_end_matches('/');
        if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") }
    }
}

impl FromStr for Location {
    type Err = InvalidLocation;

    fn from_str(text: &str) -> Result<Self, InvalidLocation> {
        let invalid = || InvalidLocation(text.to_owned());
        let rest = text.strip_prefix("s3://").ok_or_else(invalid)?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        // The name becomes part of a host name or of a path.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if bucket.is_empty() || bucket.starts_with('.') || !bucket.bytes().all(is_plain) || key.starts_with('/') {
            return Err(invalid());
        }
        Ok(Location { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "s3://{}/{}", self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_parsed() {
        for (text, bucket, key, child) in [
            ("s3://a", "a", "", "x"),
            ("s3://a/", "a", "", "x"),
            ("s3://a.b-c/d/e.snapshot", "a.b-c", "d/e.snapshot", "d/e.snapshot/x"),
            ("s3://a/d/", "a", "d/", "d/x"),
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!((location.bucket.as_str(), location.key.as_str()), (bucket, key), "{text}");
            assert_eq!(location.child("x"), child);
        }
        for text in
            ["", "s3://", "s3:///a", "s3://a//b", "s3://a b/c", "s3://a?b/c", "s3://../c", "/tmp/a", "http://a/b"]
        {
            assert!(text.parse::<Location>().is_err(), "{text}");
        }
    }
}
