//! Names of repositories, tags and digests, and the paths of the API that contain them.
//!
//! A value of these types matched the specification's grammar: it contains no dot segment and no separator that could lead
//! out of the store's directory.

use sha2::{Digest as _, Sha256};

use crate::error::Error;

const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// The name of a repository, such as `team/app`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

/// A tag, such as `v1.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(String);

/// The SHA-256 digest of a blob or manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest(String);

/// What a manifest is requested by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    Tag(Tag),
    Digest(Digest),
}

/// What a path of the API leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Root,
    Catalog,
    Tags(Name),
    Manifest(Name, Reference),
    Blob(Name, Digest),
    NewUpload(Name),
    Upload(Name, String),
}

impl Name {
    fn parse(text: &str) -> Result<Name, Error> {
        let is_valid = text.len() <= MAX_NAME && text.split('/').all(is_component);
        if is_valid { Ok(Name(text.to_owned())) } else { Err(Error::NameInvalid) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Letters and digits, separated by one dot, one or two underscores, or dashes.
fn is_component(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let (Some(first), Some(last)) = (text.bytes().next(), text.bytes().next_back()) else { return false };
    let separators = text.split(|character: char| character.is_ascii_lowercase() || character.is_ascii_digit());
    let is_separator = |text: &str| matches!(text, "" | "." | "_" | "__") || text.bytes().all(|byte| byte == b'-');
    is_plain(first) && is_plain(last) && separators.into_iter().all(is_separator)
}

impl Tag {
    fn parse(text: &str) -> Option<Tag> {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let is_valid = (1..=MAX_TAG).contains(&text.len())
            && text.bytes().next().is_some_and(is_word)
            && text.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'));
        is_valid.then(|| Tag(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Digest {
    /// Only SHA-256 is supported, as by most registries.
    pub fn parse(text: &str) -> Result<Digest, Error> {
        let digits = text.strip_prefix("sha256:").ok_or(Error::DigestInvalid)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.len() == 64 && digits.bytes().all(is_digit) {
            return Ok(Digest(digits.to_owned()));
        }
        Err(Error::DigestInvalid)
    }

    pub fn of(content: &[u8]) -> Digest {
        Digest::finish(Sha256::new().chain_update(content))
    }

    pub fn finish(hash: Sha256) -> Digest {
        Digest(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The digits, without the name of the algorithm.
    pub fn digits(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "sha256:{}", self.0)
    }
}

impl Reference {
    fn parse(text: &str) -> Result<Reference, Error> {
        if text.contains(':') {
            return Digest::parse(text).map(Reference::Digest);
        }
        Tag::parse(text).map(Reference::Tag).ok_or(Error::ManifestUnknown)
    }
}

impl Target {
    /// Names may contain the words of the API, so paths are read from their end.
    pub fn parse(path: &str) -> Result<Target, Error> {
        let below = path.strip_prefix("/v2").ok_or(Error::NameUnknown)?;
        if matches!(below, "" | "/") {
            return Ok(Target::Root);
        }
        let below = below.strip_prefix('/').ok_or(Error::NameUnknown)?;
        if below == "_catalog" {
            return Ok(Target::Catalog);
        }
        let segments: Vec<&str> = below.split('/').collect();
        let name = |count: usize| Name::parse(&segments[..segments.len() - count].join("/"));
        match segments.as_slice() {
            [_, .., "tags", "list"] => Ok(Target::Tags(name(2)?)),
            [_, .., "blobs", "uploads", ""] | [_, .., "blobs", "uploads"] => {
                Ok(Target::NewUpload(name(if segments.last() == Some(&"") { 3 } else { 2 })?))
            }
            [_, .., "blobs", "uploads", id] => {
                let id = uuid::Uuid::try_parse(id).map_err(|_| Error::UploadUnknown)?;
                Ok(Target::Upload(name(3)?, id.to_string()))
            }
            [_, .., "blobs", digest] => Ok(Target::Blob(name(2)?, Digest::parse(digest)?)),
            [_, .., "manifests", reference] => Ok(Target::Manifest(name(2)?, Reference::parse(reference)?)),
            _ => Err(Error::NameUnknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_targets() {
        let name = |text: &str| Name(text.to_owned());
        let digits = "a".repeat(64);
        let digest = Digest(digits.clone());
        let id = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        for (path, expected) in [
            ("/v2/", Target::Root),
            ("/v2/_catalog", Target::Catalog),
            ("/v2/a/tags/list", Target::Tags(name("a"))),
            ("/v2/a/b/manifests/v1", Target::Manifest(name("a/b"), Reference::Tag(Tag("v1".into())))),
            ("/v2/manifests/manifests/v1", Target::Manifest(name("manifests"), Reference::Tag(Tag("v1".into())))),
            (&format!("/v2/a/blobs/sha256:{digits}"), Target::Blob(name("a"), digest)),
            ("/v2/a/blobs/uploads/", Target::NewUpload(name("a"))),
            (&format!("/v2/a/blobs/uploads/{id}"), Target::Upload(name("a"), id.to_owned())),
        ] {
            assert_eq!(Target::parse(path).ok(), Some(expected), "{path}");
        }
    }

    #[test]
    fn hostile_paths_lead_nowhere() {
        let long = format!("/v2/{}/tags/list", "a".repeat(300));
        for path in [
            "/",
            "/v1/",
            "/v2/../../etc/tags/list",
            "/v2/a/../b/tags/list",
            "/v2/.a/tags/list",
            "/v2/_a/tags/list",
            "/v2/a//b/tags/list",
            "/v2/A/tags/list",
            "/v2/a..b/tags/list",
            "/v2/a___b/tags/list",
            "/v2/a/manifests/..",
            "/v2/a/manifests/.hidden",
            "/v2/a/manifests/sha256:../../x",
            "/v2/a/blobs/sha256:ABC",
            "/v2/a/blobs/uploads/../x",
            "/v2/a%2f..%2fb/tags/list",
            &long,
        ] {
            assert!(Target::parse(path).is_err(), "{path}");
        }
    }
}
