//! The form of image references, and what follows from it.

pub fn default_policy(name: &str) -> &'static str {
    if name.ends_with(":latest") { "Always" } else { "IfNotPresent" }
}

/// Why a reference is invalid. Capital letters, the most frequent mistake, get their own message.
pub fn why_invalid(name: &str) -> String {
    let wrong = "invalid reference format".to_string();
    let path = name.split_once('@').map_or(name, |(path, _)| path);
    let path = match path.rsplit_once('/') {
        Some((first, last)) => format!("{first}/{}", last.split(':').next().unwrap_or_default()),
        None => path.split(':').next().unwrap_or_default().to_string(),
    };
    let is_host = |part: &str| part.contains(['.', ':']) || part == "localhost" || part.to_lowercase() != part;
    let rest = path.split_once('/').filter(|(host, _)| is_host(host)).map_or(path.as_str(), |(_, rest)| rest);
    let lower = rest.to_lowercase();
    if lower == rest || with_tag(&lower).is_none() {
        wrong
    } else {
        format!("{wrong}: repository name ({rest}) must be lowercase")
    }
}

/// The image without tag and digest.
pub fn without_tag(image: &str) -> String {
    let path = image.split('@').next().unwrap_or_default();
    match path.rsplit_once('/') {
        Some((front, last)) => format!("{front}/{}", last.split(':').next().unwrap_or_default()),
        None => path.split(':').next().unwrap_or_default().to_string(),
    }
}

/// The reference, with `:latest` if it has neither tag nor digest; none if it is invalid.
pub fn with_tag(name: &str) -> Option<String> {
    let (path, digest) = name.split_once('@').map_or((name, None), |(path, digest)| (path, Some(digest)));
    let last = path.rsplit('/').next()?;
    let (repository, tag) = match last.split_once(':') {
        Some((_, tag)) => (&path[..path.len() - tag.len() - 1], Some(tag)),
        None => (path, None),
    };
    let parts: Vec<&str> = repository.split('/').collect();
    let skip = usize::from(parts.len() > 1 && (parts[0].contains(['.', ':']) || parts[0] == "localhost"));
    let good = |part: &&str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c))
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    if parts.len() == skip || !parts[skip..].iter().all(good) {
        return None;
    }
    if tag.is_some_and(|tag| tag.is_empty() || !tag.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))) {
        return None;
    }
    Some(if tag.is_none() && digest.is_none() { format!("{name}:latest") } else { name.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_a_tag_or_are_refused() {
        for (name, expected) in [
            ("busybox", Some("busybox:latest")),
            ("busybox:1", Some("busybox:1")),
            ("localhost:5000/a/b", Some("localhost:5000/a/b:latest")),
            ("r.io/a@sha256:ab", Some("r.io/a@sha256:ab")),
            ("UPPER", None),
            ("", None),
            ("a//b", None),
            ("a:", None),
            ("b b", None),
        ] {
            assert_eq!(with_tag(name).as_deref(), expected, "{name}");
        }
        let upper = "invalid reference format: repository name (Case) must be lowercase";
        for (name, expected) in [("a//b", "invalid reference format"), ("UPPER/Case", upper), ("Case:1", upper)] {
            assert_eq!(why_invalid(name), expected, "{name}");
        }
    }
}
