//! Parses image references, as far as the default pull policy depends on them.

/// Returns the default pull policy of an image.
pub fn default_pull_policy(image: &str) -> &'static str {
    if tag(image) == Some("latest") { "Always" } else { "IfNotPresent" }
}

/// Returns the tag of a valid image reference: `latest` if it has neither tag nor digest.
fn tag(image: &str) -> Option<&str> {
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) || is_bare_identifier(image) {
        return None;
    }
    // A colon before the last slash separates the port of the registry.
    let last = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match rest[last..].find(':') {
        Some(colon) => (&rest[..last + colon], Some(&rest[last + colon + 1..])),
        None => (rest, None),
    };
    if !is_name(name) || tag.is_some_and(|tag| !is_tag(tag)) {
        return None;
    }
    match (tag, digest) {
        (Some(tag), _) => Some(tag),
        (None, Some(_)) => None,
        (None, None) => Some("latest"),
    }
}

/// Returns whether a reference is a bare SHA-256 digest, which is an image ID and not a name.
fn is_bare_identifier(image: &str) -> bool {
    image.len() == 64 && image.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn is_name(name: &str) -> bool {
    let path = match name.split_once('/') {
        Some((first, rest)) if is_registry(first) => {
            if !is_registry_form(first) {
                return false;
            }
            rest
        }
        _ => name,
    };
    name.len() <= 255 && path.split('/').all(is_path_component)
}

/// Returns whether the first component is a registry: it has a dot, a port or capitals, or is `localhost`.
fn is_registry(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost" || first.chars().any(char::is_uppercase)
}

fn is_registry_form(registry: &str) -> bool {
    if let Some(rest) = registry.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else { return false };
        return !address.is_empty()
            && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':')
            && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
    }
    let (host, port) = match registry.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (registry, None),
    };
    port.is_none_or(is_port) && host.split('.').all(is_host_component)
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_host_component(part: &str) -> bool {
    let bytes = part.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

/// Lower-case letters and digits, separated by one dot, one or two underscores, or any number of dashes.
fn is_path_component(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = part.as_bytes();
    if !bytes.first().copied().is_some_and(plain) || !bytes.last().copied().is_some_and(plain) {
        return false;
    }
    bytes.split(|byte| plain(*byte)).all(|between| match between {
        [] | [b'.'] | [b'_'] | [b'_', b'_'] => true,
        dashes => dashes.iter().all(|byte| *byte == b'-'),
    })
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let bytes = tag.as_bytes();
    (1..=128).contains(&bytes.len())
        && word(bytes[0])
        && bytes.iter().all(|byte| word(*byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(is_part)
        && hex.len() >= 32
        && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_latest_is_always_pulled() {
        let digest = "sha256:".to_owned() + &"a1".repeat(32);
        for (image, policy) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.25", "IfNotPresent"),
            ("", "IfNotPresent"),
            ("localhost:5000/a/b", "Always"),
            ("registry.k8s.io/pause:3.10", "IfNotPresent"),
            ("Bad Name", "IfNotPresent"),
            ("UPPER", "IfNotPresent"),
            ("a__b/c---d", "Always"),
            ("a___b", "IfNotPresent"),
            ("a/b:", "IfNotPresent"),
            (&format!("nginx@{digest}"), "IfNotPresent"),
            (&format!("nginx:latest@{digest}"), "Always"),
            ("nginx@sha256:abc", "IfNotPresent"),
            (&"ab".repeat(32), "IfNotPresent"),
            ("[::1]:80/x", "Always"),
        ] {
            assert_eq!(default_pull_policy(image), policy, "{image}");
        }
    }
}
