//! Which of a secret's credentials are for the registry of an image.

use base64::Engine;
use knarr_cri::messages::AuthConfig;
use serde::Deserialize;
use std::collections::BTreeMap;

use crate::objects::Content;

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    auth: String,
    #[serde(default, rename = "identitytoken")]
    identity_token: String,
}

/// The most specific first. A secret that can't be read holds none.
pub fn matching(secret: &Content, image: &str) -> Vec<AuthConfig> {
    let auths = match secret.kind.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => secret
            .data
            .get(".dockerconfigjson")
            .and_then(|content| serde_json::from_slice::<DockerConfig>(content).ok())
            .map(|config| config.auths),
        Some("kubernetes.io/dockercfg") => {
            secret.data.get(".dockercfg").and_then(|content| serde_json::from_slice(content).ok())
        }
        _ => None,
    };
    let place = place_of(image);
    let mut found: Vec<(String, Entry)> =
        auths.into_iter().flatten().filter(|(pattern, _)| covers(pattern, &place)).collect();
    found.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.len()));
    found.into_iter().map(|(server, entry)| credentials(server, entry)).collect()
}

fn credentials(server_address: String, entry: Entry) -> AuthConfig {
    let mut auth = AuthConfig {
        username: entry.username,
        password: entry.password,
        server_address,
        identity_token: entry.identity_token,
        ..Default::default()
    };
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(entry.auth.trim_end_matches('=').to_string() + padding(&entry.auth));
    if auth.username.is_empty()
        && let Some((user, password)) = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok()).and_then(|text| {
            text.split_once(':').map(|(user, password)| (user.to_string(), password.trim_end_matches('\0').to_string()))
        })
    {
        auth.username = user;
        auth.password = password;
    }
    auth
}

fn padding(encoded: &str) -> &'static str {
    ["", "===", "==", "="][encoded.trim_end_matches('=').len() % 4]
}

/// Registry and path without tag and digest; a bare name belongs to Docker's registry.
fn place_of(image: &str) -> String {
    let path = image.split('@').next().unwrap_or_default();
    let path = match path.rsplit_once('/') {
        Some((front, last)) => format!("{front}/{}", last.split(':').next().unwrap_or_default()),
        None => path.split(':').next().unwrap_or_default().to_string(),
    };
    let first = path.split('/').next().unwrap_or_default();
    if path.contains('/') && (first.contains(['.', ':']) || first == "localhost") {
        path
    } else if path.contains('/') {
        format!("docker.io/{path}")
    } else {
        format!("docker.io/library/{path}")
    }
}

/// `https://host/v1/`, `host`, `host/path` and `*.host` are all in use.
fn covers(pattern: &str, place: &str) -> bool {
    let pattern = pattern.trim_start_matches("https://").trim_start_matches("http://");
    let pattern = pattern.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches("/v2");
    let pattern = if pattern == "index.docker.io" { "docker.io" } else { pattern };
    let (host, path) = pattern.split_once('/').unwrap_or((pattern, ""));
    let (place_host, place_path) = place.split_once('/').unwrap_or((place, ""));
    let (parts, place_parts): (Vec<&str>, Vec<&str>) = (host.split('.').collect(), place_host.split('.').collect());
    let same_host = parts.len() == place_parts.len()
        && parts.iter().zip(&place_parts).all(|(part, found)| match part.split_once('*') {
            Some((front, back)) => found.starts_with(front) && found.ends_with(back),
            None => part == found,
        });
    same_host && (path.is_empty() || place_path == path || place_path.starts_with(&format!("{path}/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_matched() {
        for (pattern, image, expected) in [
            ("https://index.docker.io/v1/", "busybox", true),
            ("https://index.docker.io/v1/", "user/app:1", true),
            ("r.example.org", "r.example.org/a/b:1", true),
            ("r.example.org/a", "r.example.org/a/b:1", true),
            ("r.example.org/a", "r.example.org/ab:1", false),
            ("*.example.org", "r.example.org/a", true),
            ("*.example.org", "example.org/a", false),
            ("localhost:5000", "localhost:5000/a@sha256:0", true),
        ] {
            assert_eq!(covers(pattern, &place_of(image)), expected, "{pattern} {image}");
        }
    }
}
